"""Ranks that are forked: as good as fresh processes, and spawned where they cannot be."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pynvml
import pytest
import torch

from autotune.measure.runner import StopRequestedError, forks, local
from autotune.measure.runner.group import PHASE_DEADLINE_S
from autotune.measure.runner.node import LocalNode
from autotune.space.outcome import Verdict
from autotune.wire.stopping import Phase
from probes import engines, forkserver
from tests.support import records
from tests.support.pools import SMALL, Cpu, Make, Started, kept, ranks, servers
from tests.support.programs import QUICK_RANK, ROOT

pytestmark = pytest.mark.slow

# As good as fresh processes.


def node_of(logs: Path, note: Callable[[str], object], **how: bool) -> LocalNode:
    return LocalNode(Cpu(), logs, Cpu().rank_environment(1), note, **how)  # type: ignore[arg-type]


def test_a_forked_rank_has_the_peak_of_a_spawned_one(start: Make, tmp_path: Path) -> None:
    candidate = replace(SMALL, depth=2, micro_batch=4)

    def peak(node: LocalNode) -> int:
        group = start(width=512, node=node)
        report = group.run(candidate, fresh=True).report
        group.pool.close()
        assert report is not None
        return report.peaks.device_bytes

    spawning = node_of(tmp_path, print, works=False)
    # The least of three, in turn, and of up to six where these differ: allocations of other
    # threads sometimes add a percent, and other programs change the resident part of a
    # library's file. The kernel maps runs of pages around the ones that are touched: on a busy
    # machine 1.1 % were measured, with the larger libraries of torch's CUDA build 1.4 %.
    near, pairs = 0.02, [(peak(kept()), peak(spawning)) for _ in range(3)]
    forked, spawned = map(min, zip(*pairs, strict=True))
    while len(pairs) < 6 and forked != pytest.approx(spawned, rel=near):
        pairs.append((peak(kept()), peak(spawning)))
        forked, spawned = map(min, zip(*pairs, strict=True))
    assert forked == pytest.approx(spawned, rel=near)


def test_a_forked_rank_is_a_child_of_the_study_and_imported_nothing_itself(start: Make) -> None:
    start().run()
    (rank,) = (each for each in ranks() if each.ppid() == os.getpid())
    assert rank.cmdline() == psutil.Process(servers(kept())["ddp"]).cmdline()
    assert os.getsid(rank.pid) == rank.pid


def test_a_forked_rank_has_the_variables_that_it_was_started_with(
    start: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAULT", "litter@warmup:0")  # read by the rank, not by its server
    group = start()
    group.run()
    (left,) = (tmp_path / "group001-rank0.tmp").iterdir()
    assert left.name.startswith("left")
    group.pool.close()
    assert not left.exists()


def test_a_forked_rank_leaves_no_zombie(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "child@warmup:0")
    group = start()
    group.run()
    assert len(ranks()) == 3  # the rank, the guard of its session, and what it left behind
    group.pool.retire(time.monotonic() + 10)
    children = psutil.Process().children(recursive=True)
    assert [p for p in children if p.status() == psutil.STATUS_ZOMBIE] == []


# Where they cannot be forked.

FORKED: list[LocalNode] = []
SERVER = """
import sys, threading, time; sys.path.append({root!r})
from probes import forkserver
forkserver.import_libraries = lambda *needs: None
{beside}
forkserver.main()
"""


@pytest.fixture
def quick(start: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Groups of quick ranks, forked by a server that does something beside it."""
    monkeypatch.setattr(local, "WORKER", QUICK_RANK)

    def one(beside: str = "") -> Started:
        program = SERVER.format(root=str(ROOT), beside=beside)
        monkeypatch.setattr(forks, "SERVER", [sys.executable, "-c", program])
        notes: list[str] = []
        forked = node_of(tmp_path, notes.append)
        started = start(node=forked, notes=notes)
        FORKED.append(forked)
        return started

    yield one
    FORKED.clear()


AS_QUICK = (
    "sys.argv[0] = ''; from tests.support import quick_rank, faulty_rank;"
    " forkserver.rank.serve = quick_rank.serve; forkserver.rank.Rank = faulty_rank.FaultyRank"
)


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ("sys.exit('no torch here')", "the fork server is gone, see forkserver-ddp.log"),
        ("threading.Thread(target=time.sleep, args=(99,), daemon=True).start()", "1 thread"),
        ("forkserver._DRIVERS = ('/dev/zero',); driver = open('/dev/zero')", "opened /dev/zero"),
        ("forkserver.fork = lambda *how: sys.exit(3)", "the fork server is gone"),
        ("forkserver.fork = lambda *how: 1", "could not be handed over"),
        ("forkserver.become = lambda *how: forkserver.os._exit(3)", "did not come up"),
        ("forkserver.become = lambda *how: time.sleep(99)", "did not come up"),
    ],
)
def test_where_no_rank_can_be_forked_one_line_says_why_and_it_is_spawned(
    quick: Make, monkeypatch: pytest.MonkeyPatch, beside: str, why: str
) -> None:
    monkeypatch.setitem(PHASE_DEADLINE_S, Phase.IMPORT, 10.0)
    group = quick(beside)
    assert group.run().verdict is Verdict.OK
    assert group.run(fresh=True).verdict is Verdict.OK
    (note,) = group.notes
    assert re.match("each rank( of ddp)? imports its libraries itself from now on: ", note)
    assert why in note


def test_the_ranks_of_other_engines_are_forked_all_the_same(quick: Make) -> None:
    group = quick(f"if sys.argv[1] == 'deepspeed': sys.exit('cannot')\n{AS_QUICK}")
    (forked,) = FORKED
    forked.prepare("deepspeed", "gpt", lambda: False, time.monotonic() + 60)
    assert forked.ready("deepspeed")
    (note,) = group.notes
    assert note.startswith("each rank of deepspeed imports its libraries itself")
    assert group.run().verdict is Verdict.OK
    assert list(servers(forked)) == ["ddp"]


def test_what_is_unsupported_came_up_well(quick: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "unsupported@build:0")
    group = quick(AS_QUICK)
    assert group.run().verdict is Verdict.UNSUPPORTED
    assert group.notes == []


def test_nvml_is_not_opened_by_what_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed does. Drivers leave a thread behind, beside which no rank is forked."""
    asked: list[object] = []

    def load(engine: str) -> None:
        pynvml.nvmlInit()
        asked.append(torch.cuda._device_count_nvml())

    init: object = partial(asked.append, "NVML")
    count: object = partial(asked.append, "torch's NVML")
    monkeypatch.setattr(pynvml, "nvmlInit", init)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", count)
    monkeypatch.setattr(engines, "load", load)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    forkserver.import_libraries("ddp", "gpt")
    assert asked == [2]
    assert pynvml.nvmlInit is init
    assert torch.cuda._device_count_nvml is count


def test_models_are_traced_though_imports_take_longer_than_a_trace_may(quick: Make) -> None:
    """The ranks need what is imported, too."""
    started = quick("time.sleep(1.0)")
    until = time.monotonic() + 30
    assert started.pool.trace(records.space(), 0.5, until) is None
    assert "imports took" not in str(started.notes)
    late = quick("time.sleep(1.0)")
    assert late.pool.trace(records.space(), 0.5, time.monotonic() + 0.5) is None
    assert "imports took over" in str(late.notes)


def test_a_server_that_is_killed_between_two_groups_is_not_needed(quick: Make) -> None:
    group = quick(AS_QUICK)
    assert group.run().verdict is Verdict.OK
    assert group.notes == []
    os.kill(servers(FORKED[0])["ddp"], signal.SIGKILL)
    assert group.run(fresh=True).verdict is Verdict.OK
    assert "the fork server is gone" in "".join(group.notes)


def test_before_each_fork_it_is_asked_again_whether_there_may_be_one(quick: Make) -> None:
    """After the first one the server begins a thread."""
    group = quick(
        f"{AS_QUICK}\nfork = forkserver.fork\n"
        "def then(*how):\n"
        "    made = fork(*how)\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "    return made\n"
        "forkserver.fork = then"
    )
    assert group.run().verdict is Verdict.OK
    assert group.notes == []
    assert group.run(fresh=True).verdict is Verdict.OK
    (note,) = group.notes
    assert "1 thread" in note


def test_a_candidate_that_breaks_after_others_came_up_is_at_fault_itself(
    quick: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = quick(AS_QUICK)
    assert group.run().verdict is Verdict.OK
    monkeypatch.setenv("FAULT", "error@build:0")
    assert group.run(fresh=True).verdict is Verdict.CRASHED
    assert group.notes == []


def test_the_user_can_stop_while_a_server_imports(quick: Make) -> None:
    group = quick("time.sleep(99)")
    group.stop = True
    with pytest.raises(StopRequestedError):
        group.run()
    group.pool.close()
    assert ranks() == []


def test_a_server_that_hangs_is_ended(quick: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "IMPORT_LIMIT_S", 0.2)
    group = quick("time.sleep(99)")
    assert group.run().verdict is Verdict.OK
    assert "take too long, see forkserver-ddp.log" in "".join(group.notes)
    assert servers(FORKED[0]) == {}


def test_a_server_goes_with_the_study(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); from pathlib import Path; import time\n"
        "from autotune.measure.runner.forks import Forks\n"
        "forks = Forks(Path(sys.argv[1]), {}, print)\n"
        "forks.prepare('ddp', 'gpt', lambda: False, time.monotonic() + 60)\n"
        "print('up', flush=True)\n"
        "time.sleep(99)"
    )
    study = psutil.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=-1)
    with study:
        assert study.stdout.readline() == b"up\n"
        (server,) = study.children()
        study.kill()
        server.wait(5)


def test_a_rank_that_nobody_adopts_ends(quick: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_PR_SET_CHILD_SUBREAPER", 0)  # no such request
    group = quick(AS_QUICK)
    assert group.run().verdict is Verdict.OK
    assert "could not be handed over" in "".join(group.notes)
    forked = [p for p in psutil.process_iter(["cmdline"]) if AS_QUICK in str(p.info["cmdline"])]
    assert psutil.wait_procs(forked, timeout=5)[1] == []


def test_a_server_that_imports_past_a_deadline_is_waited_for_by_the_next_one(quick: Make) -> None:
    group = quick("time.sleep(0.6); " + AS_QUICK)
    node = FORKED[0]
    node.prepare("ddp", "gpt", lambda: False, time.monotonic() + 0.1)
    assert not node.ready("ddp")
    assert group.run().verdict is Verdict.OK
    assert node.ready("ddp")
    assert group.notes == []
