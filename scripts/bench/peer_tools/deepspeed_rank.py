"""The user's script that DeepSpeed's autotuner starts for each experiment.

The engine ends the process itself: after the first forward of the model's profile, and after the
steps that the autotuner times.
"""

from __future__ import annotations

import argparse

from peer_tools.task import Task
from peer_tools.training import build, limit, ooms_counted, tokens
from torch.utils.data import DataLoader

# The tool is imported last, so the memory of its libraries can be measured.
# isort: split
import deepspeed


def main() -> None:
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--task")
    parser.add_argument("--local_rank", type=int)
    options = parser.parse_args()
    task = Task.read(options.task)
    deepspeed.init_distributed()
    limit(task)
    with ooms_counted(task):
        module = build(task)
        engine, *_ = deepspeed.initialize(
            options, model=module, model_parameters=module.parameters()
        )
        batches = DataLoader(tokens(task), engine.train_micro_batch_size_per_gpu())
        for ids_bt, targets_bt in batches:
            engine.backward(engine(ids_bt, targets_bt))
            engine.step()


if __name__ == "__main__":
    main()
