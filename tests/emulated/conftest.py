"""Programs on emulated cards. Skipped where torch is built without CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
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


FORKS = """
import json, os, signal, sys, traceback
import torch, torch.distributed
def run(program, environment, argv, folder):
    signal.alarm(200)
    for name, stream in (("out", 1), ("err", 2)):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = argv
    exec(program, {"__name__": "__main__"})
for line in sys.stdin:
    program, environment, each = json.loads(line)
    pids = []
    for argv, folder in each:
        pids.append(os.fork())
        if pids[-1] == 0:
            code = 1
            try:
                run(program, environment, argv, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
    print(*(os.waitpid(pid, 0)[1] for pid in pids), flush=True)
"""


@cache
def forks() -> subprocess.Popen[str]:
    """A process that has imported torch, until `end_forks`."""
    cards = Emulation("1x24GiB")
    cards.close()  # each child has cards of its own
    return begin(cards, FORKS, stdin=subprocess.PIPE)


@pytest.fixture(scope="module", autouse=True)
def end_forks() -> Iterator[None]:
    """Tests of other modules look for processes that are left."""
    yield
    if forks.cache_info().currsize:
        forks().kill()
        forks().communicate()
        forks.cache_clear()


def ended(cards: Emulation, program: str, each: Sequence[Sequence[str]]) -> list[Any]:
    """What processes on these cards printed at last, as JSON: one for `each` list of arguments.
    They are forked after torch was imported, and have to end well."""
    server = forks()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as home:
        folders = [Path(home, str(i)) for i in range(len(each))]
        for folder in folders:
            folder.mkdir()
        asked = [program, cards.environment, [*zip(each, map(str, folders), strict=True)]]
        print(json.dumps(asked), file=server.stdin, flush=True)
        codes = server.stdout.readline().split()
        assert codes == ["0"] * len(each), [(f / "err").read_text()[-3000:] for f in folders]
        return [json.loads((f / "out").read_text().splitlines()[-1]) for f in folders]


def answers(cards: Emulation, program: str) -> Any:
    """What a program on these cards printed at last, as JSON; it has `json` and `torch`."""
    return ended(cards, f"import json, torch\n{program}", [()])[0]


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
    each = [(str(rank), str(count), str(store)) for rank in range(count)]
    return ended(cards, (JOIN if join else WORDS) + program, each)
