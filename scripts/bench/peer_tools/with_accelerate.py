"""accelerate's `find_executable_batch_size`: `python with_accelerate.py TASK`.

As in its guide, an inner function takes the batch size and makes all that holds memory.
"""

from __future__ import annotations

import sys
from itertools import islice

from peer_tools.task import Answer, Task
from peer_tools.training import FAMILY, STEPS, build, limit, ooms_counted, tokens
from torch.utils.data import DataLoader

from autotune.wire.recipe import CLIP_NORM
from probes.engines.ddp import optimizers

# The tool is imported last, so the memory of its libraries can be measured.
# isort: split
from accelerate import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    Accelerator,
    find_executable_batch_size,
)


def main() -> None:
    task = Task.read(sys.argv[1])
    accelerator = Accelerator(cpu=True)
    limit(task)

    def train(batch_size: int) -> int:
        accelerator.free_memory()
        with ooms_counted(task):
            module = build(task)
            model, optimizer, batches = accelerator.prepare(
                module, *optimizers(module, "adamw", FAMILY), DataLoader(tokens(task), batch_size)
            )
            for ids_bt, targets_bt in islice(batches, STEPS):
                optimizer.zero_grad()
                accelerator.backward(model(ids_bt, targets_bt))
                accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
                optimizer.step()
        return batch_size

    found: int = find_executable_batch_size(train, starting_batch_size=task.most)()
    task.tell(Answer(found))


if __name__ == "__main__":
    main()
