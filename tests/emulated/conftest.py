"""Programs on emulated cards. Skipped where torch is built without CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.device.emulated.build import cuda_torch
from autotune.device.emulated.emulation import Emulation
from autotune.errors import UsageError

Emulate = Callable[..., Emulation]
Told = Callable[[str, str], Any]

REPO = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("emulated")]
    try:
        cuda_torch()
    except UsageError as error:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=str(error)))


@pytest.fixture
def emulate() -> Iterator[Emulate]:
    """Makes emulations, which end with the test."""
    made: list[Emulation] = []

    def one(spec: str, **how: Any) -> Emulation:
        made.append(Emulation(spec, **how))
        return made[-1]

    yield one
    for each in made:
        each.close()


def begin(
    cards: Emulation, program: str, *arguments: str, stdin: int | None = None
) -> subprocess.Popen[str]:
    """A Python program on these cards."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env=cards.environment, cwd=REPO, text=True,
        stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> str:
    """What it printed; it has to end well."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err[-3000:]
    return out


def answers(cards: Emulation, program: str) -> Any:
    """What a program on these cards printed at last, as JSON; it has `json` and `torch`."""
    return json.loads(end(begin(cards, f"import json, torch\n{program}")).splitlines()[-1])


CARDS = ("A100-80GB", "H100", "H200", "RTX4090")
EACH_LINE = """
import json, sys, torch
for line in sys.stdin:
    device, program = json.loads(line)
    torch.cuda.set_device(device)
    exec(program, {"json": json, "torch": torch})
    sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    """As `answers`, of a program on a card of `CARDS`; a module's run in one process."""
    cards = Emulation("+".join(f"1x{card}" for card in CARDS))
    process = begin(cards, EACH_LINE, stdin=subprocess.PIPE)
    asked, said = process.stdin, process.stdout
    assert asked is not None
    assert said is not None

    def one(card: str, program: str) -> Any:
        print(json.dumps([CARDS.index(card), program]), file=asked, flush=True)
        line = said.readline()
        assert line, process.communicate()[1][-3000:]
        return json.loads(line)

    yield one
    process.kill()
    process.communicate()
    cards.close()


WORDS = """
import json, os, sys, torch
import torch.distributed as dist
rank, ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
def there(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).cuda()
def here(tensor):
    return tensor.cpu().tolist()
"""
JOIN = (
    WORDS
    + """
dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks,
                        device_id=torch.device("cuda", rank))
"""
)


def ranks(
    cards: Emulation, program: str, store: Any, count: int = 4, *, join: bool = True
) -> list[Any]:
    """What each of the ranks printed at last. They `join` a process group first."""
    program = (JOIN if join else WORDS) + program
    each = [begin(cards, program, str(rank), str(count), str(store)) for rank in range(count)]
    return [json.loads(end(process).splitlines()[-1]) for process in each]
