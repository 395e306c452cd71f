"""Worker groups with real ranks: what each way of failing becomes, and what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autotune.installed import CHECKOUT
from autotune.measure.runner import StopRequestedError, local, ops, places
from autotune.measure.runner import group as group_module
from autotune.measure.runner.channel import Peer
from autotune.space.engines.deepspeed import DeepSpeed
from autotune.space.outcome import Verdict
from autotune.wire.budget import VirtualTime
from autotune.wire.ranks import Fault
from autotune.wire.reports import Energy, InPhase, Peaks
from autotune.wire.stopping import Phase
from tests.support import defaults
from tests.support.agents import until
from tests.support.pools import MIB, RULE, SMALL, Cpu, Gpu, Make, ranks
from tests.support.programs import FAULTY_RANK, ROOT, TESTS
from tests.support.scripted import report

pytestmark = pytest.mark.slow

OFFLOADED = replace(SMALL, zero_stage=1, offload="optimizer")
"""Beside a GPU, this needs an op that DeepSpeed compiles."""
JOB = defaults.job(OFFLOADED, rule=RULE)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def set_up(what: str) -> None:
        monkeypatch.setenv("FAULT", what)

    return set_up


# A group that works.


def test_a_probe_reports_steps_peaks_and_what_it_ran_on(start: Make) -> None:
    result = start().run()
    assert result.verdict is Verdict.OK
    assert len(result.reported.step_s) >= RULE.timed_steps
    assert len(result.reported.warmup_step_s) >= RULE.warmup_steps
    assert result.reported.peaks.device_bytes > 100 * MIB
    assert result.parameters == 12 * 64**2 + 2 * 256 * 64 + 3 * 64
    assert "torch" in (result.versions or {})


def test_candidates_of_one_build_share_a_group(start: Make) -> None:
    group = start()
    first, second = group.run(), group.run(replace(SMALL, micro_batch=2, seq_len=64))
    assert (first.warm, second.warm) == (False, True)
    assert first.group_start_s > 0
    assert second.group_start_s == 0


def test_another_build_gets_another_group_and_the_old_one_is_gone(start: Make) -> None:
    group = start()
    group.run()
    old = {child.pid for child in ranks()}
    group.run(replace(SMALL, checkpointing="full"))
    new = {child.pid for child in ranks()}
    assert new
    assert not old & new


@pytest.mark.parametrize("stage", [0, 2])
def test_ranks_listen_on_loopback_alone(start: Make, stage: int) -> None:
    group = start(world_size=2)
    assert group.run(replace(SMALL, zero_stage=stage)).verdict is Verdict.OK
    listening = [
        connection.laddr.ip
        for rank in ranks()
        for connection in rank.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 2  # rank 0's store, and gloo's of each rank
    assert set(listening) == {"127.0.0.1"}


@pytest.mark.parametrize("stage", [0, 2])
def test_launchers_variables(start: Make, monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in (
            {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": str(port), "RANK": "7", "WORLD_SIZE": "9"}
            | {"LOCAL_RANK": "5", "LOCAL_SIZE": "2", "LOCAL_WORLD_SIZE": "9", "GROUP_RANK": "3"}
            | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}
            | {"SLURM_PROCID": "7", "SLURM_LOCALID": "5", "SLURM_NTASKS": "9"}
            | {"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "9", "PMI_RANK": "7"}
        ).items():
            monkeypatch.setenv(name, value)
        result = start(world_size=2).run(replace(SMALL, zero_stage=stage))
    assert (result.verdict, result.reason) == (Verdict.OK, "")
    assert not list(Path("/dev/shm").glob(f"*_{port}_*"))


def test_ranks_of_one_host_add_up_their_host_memory_and_nothing_else() -> None:
    first = report(1.0, 5 * MIB)
    second = replace(first, peaks=replace(first.peaks, device_bytes=7 * MIB, host_bytes=MIB))
    merged = group_module.merge([[first, second]]).peaks
    assert merged == replace(first.peaks, device_bytes=7 * MIB, host_bytes=6 * MIB)


def test_phases_of_ranks_are_put_together_as_their_peaks_are() -> None:
    first = report(1.0, 5 * MIB)
    phases = {"hot": InPhase(peaks=first.peaks, seconds=1.0, count=1)}
    larger = {"hot": replace(phases["hot"], peaks=Peaks.same(7 * MIB))}
    merged = group_module.merge([
        [replace(first, phases=phases), replace(first, phases=larger)],
        [replace(first, phases=phases)],
    ]).phases["hot"].peaks  # fmt: skip
    assert (merged.device_bytes, merged.host_bytes) == (7 * MIB, 12 * MIB)


def test_of_several_hosts_the_one_that_holds_or_suffers_the_most_counts() -> None:
    calm = report(1.0, 5 * MIB)
    hot = replace(
        calm,
        peaks=replace(calm.peaks, host_bytes=9 * MIB),
        conditions=replace(calm.conditions, thermally_throttled=True, foreign_bytes=3),
    )
    busy = replace(calm, conditions=replace(calm.conditions, steal_cpu_s=1e6))
    merged = group_module.merge([[calm, calm], [hot], [busy]])
    assert merged.peaks == replace(calm.peaks, host_bytes=10 * MIB)  # of the first one's two
    assert merged.conditions.steal_cpu_s == 1e6
    assert merged.conditions.thermally_throttled
    assert merged.conditions.foreign_bytes == 3


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([Energy(2.0, "GPU-1"), Energy(3.0, "GPU-0")], Energy(5.0, "GPU-0, GPU-1")),
        ([Energy(2.0, "a host"), Energy(2.1, "a host")], Energy(2.1, "a host")),
        ([Energy(2.0, "GPU-0"), None], None),
    ],
    ids=["two devices", "one host", "one unknown"],
)
def test_the_energy_of_ranks_adds_up_each_device_once(
    parts: list[Energy | None], whole: Energy | None
) -> None:
    reports = [replace(report(1.0, MIB), energy=part) for part in parts]
    assert group_module.merge([reports]).energy == whole


def test_a_probe_that_cannot_reach_the_incumbent_stops_early(start: Make) -> None:
    result = start().run(needed_step_s=1e-9)
    assert result.verdict is Verdict.PRUNED
    assert len(result.reported.warmup_step_s) == RULE.warmup_steps


def test_every_phase_is_announced_in_order(start: Make) -> None:
    group = start()
    group.run()
    plain = [phase for phase in Phase if phase is not Phase.COMPILE]
    # Where nothing was imported before, that is announced by the one who does it, too.
    assert list(dict.fromkeys(group.phases))[:5] == plain[:5]


# Memory.


def test_a_real_oom_is_said_to_be_one_and_the_next_probe_runs(start: Make) -> None:
    small = start().run()
    capacity_bytes = small.reported.peaks.device_bytes + 200 * MIB
    group = start(capacity_bytes=capacity_bytes)
    large = group.run(replace(SMALL, micro_batch=512, seq_len=512))
    assert large.verdict is Verdict.OOM
    assert large.peaks is not None
    assert large.peaks.device_bytes <= capacity_bytes
    assert group.run().verdict is Verdict.OK


def test_an_oom_of_one_rank_ends_the_group(start: Make, fault: Callable[[str], None]) -> None:
    fault("oom@warmup:1")
    group = start(world_size=2)
    assert group.run().verdict is Verdict.OOM
    assert not ranks()


def test_a_warm_group_shows_the_peak_of_a_fresh_one(start: Make) -> None:
    group = start()
    fresh = group.run()
    group.run(replace(SMALL, micro_batch=256, seq_len=128))
    warm = group.run()
    assert warm.reported.peaks.device_bytes == pytest.approx(
        fresh.reported.peaks.device_bytes, rel=0.03
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_a_warm_deepspeed_group_agrees_with_a_fresh_one(start: Make, stage: int) -> None:
    group = start(world_size=2)
    small = replace(SMALL, zero_stage=stage, micro_batch=2, seq_len=64)
    many = replace(RULE, warmup_steps=10, timed_steps=30)
    fresh = group.run(small, rule=many)
    group.run(replace(small, micro_batch=32, seq_len=128))
    warm = group.run(small, rule=many)
    assert (fresh.warm, warm.warm) == (False, True)
    assert warm.reported.peaks.device_bytes == pytest.approx(
        fresh.reported.peaks.device_bytes, rel=0.03
    )
    # In time of the processor: what passes beside it is up to how busy the machine is.
    warm_cpu_s, fresh_cpu_s = (
        each.conditions.own_cpu_s / len(each.step_s) for each in (warm.reported, fresh.reported)
    )
    assert warm_cpu_s == pytest.approx(fresh_cpu_s, rel=0.5)


# Engines.


def test_deepspeed_s_own_refusal_is_told(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = DeepSpeed.config
    monkeypatch.setattr(
        DeepSpeed, "config", lambda *how: ours(*how) | {"prescale_gradients": True}
    )
    result = start().run(replace(SMALL, zero_stage=2))
    assert result.verdict is Verdict.UNSUPPORTED
    assert "DeepSpeed: pre-scale gradients is not yet supported with ZeRO-2" in result.reason


def test_a_cpu_needs_no_ops(start: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    group = start(world_size=2)
    result = group.run(replace(SMALL, zero_stage=2, offload="optimizer"))
    assert (result.verdict, result.reason) == (Verdict.OK, "")
    assert not group.notes
    assert not (tmp_path / "extensions").exists()


def test_deepspeed_s_ops_are_loaded_once(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "OPS", [sys.executable, "-c", ""])
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", ""])
    group = start(device=Gpu)
    for stage in (1, 2):
        assert group.run(replace(OFFLOADED, zero_stage=stage)).verdict is Verdict.CRASHED
    assert [note.split(";")[0] for note in group.notes] == ["loading DeepSpeed's CPUAdamBuilder"]


def test_no_deepspeed_loads_no_ops(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", ""])
    group = start(device=Gpu, engine="fsdp")
    assert group.run(OFFLOADED).verdict is Verdict.CRASHED
    assert not group.notes


def test_what_needs_an_op_that_cannot_be_loaded_is_unsupported_and_nothing_else_is(
    start: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "OPS", [sys.executable, "-c", "raise SystemExit(1)"])
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", ""])
    group = start(device=Gpu)
    for depth in (1, 2):
        result = group.run(replace(OFFLOADED, depth=depth))
        assert (result.verdict, result.lacks_op) == (Verdict.UNSUPPORTED, "CPUAdamBuilder")
        assert result.reason == (
            "DeepSpeed's CPUAdamBuilder cannot be loaded, see ops-0.log:"
            " repair that, or use --offload none"
        )
    assert len(group.notes) == 1
    assert group.run(replace(SMALL, zero_stage=1)).verdict is Verdict.CRASHED


def test_an_op_is_waited_for_half_of_the_time_and_what_needs_it_is_unsupported_then(
    start: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "OPS", [sys.executable, "-c", "import time; time.sleep(3600)"])
    now = VirtualTime()
    monkeypatch.setattr(ops, "time", SimpleNamespace(monotonic=now, sleep=now.advance))
    result = start(device=Gpu).pool.run(JOB, 200.0)
    assert (result.verdict, result.lacks_op) == (Verdict.UNSUPPORTED, "CPUAdamBuilder")
    assert result.reason == (
        "DeepSpeed's CPUAdamBuilder was not loaded in 100 s, 50% of the time that was left:"
        " give more --budget"
    )
    assert not ranks()


class Leaking(Cpu):
    """Ranks give device memory back in some steps, and not all of it."""

    kind = "cuda"
    held = (0, 3 * 2**30, 2 * 2**30, 2**30, 2**30)

    def __init__(self) -> None:
        self._asked = iter([*self.held, *[2**30] * 1000])

    def in_use_bytes(self) -> tuple[int, ...]:
        return (next(self._asked),)


def test_memory_that_is_freed_is_waited_for(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", ""])
    group = start(device=Leaking)
    began = time.monotonic()
    assert group.run(replace(SMALL)).verdict is Verdict.CRASHED
    assert group.notes == ["device memory is 1.00 GiB over its baseline after a group's end"]
    assert time.monotonic() - began < places.MOST_S


def test_memory_is_not_given_up_while_a_process_that_holds_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = VirtualTime()
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=now, sleep=now.advance))

    def held() -> int:
        return 2**30 if now() < 10 else 0

    assert places.left_bytes(held, lambda: now() < 9.9) == 0
    now = VirtualTime()
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=now, sleep=now.advance))
    assert places.left_bytes(held, lambda: False) == 2**30


def test_processes_of_a_session_live_on_without_its_leader(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.Popen(['sleep', '600'])"
    process = local.spawn([sys.executable, "-c", child], b"", tmp_path / "leader.log", {})
    process.reap()
    assert process.exit_code() == 0
    assert process.lives()
    os.killpg(process.pid, signal.SIGKILL)
    assert until(lambda: not process.lives(), 10)


def test_a_stop_ends_the_loading_of_ops(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "OPS", [sys.executable, "-c", "import time; time.sleep(3600)"])
    group = start(device=Gpu)
    group.stop = True
    with pytest.raises(StopRequestedError):
        group.run(OFFLOADED)
    assert not ranks()


def test_ranks_hold_their_state_between_steps(start: Make) -> None:
    result = start(width=512).run(replace(SMALL, depth=4))
    assert result.parameters is not None
    # Weights and two moments, 12 bytes a parameter; no gradients.
    assert result.reported.state_bytes == pytest.approx(12 * result.parameters, rel=0.2)


# Ranks that go.


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("leave@warmup:1", "rank 1 left with exit code 7 in phase warmup"),
        ("killed@timed:0", "rank 0 was ended by SIGKILL in phase timed"),
        ("error@warmup:0", "rank 0 in phase warmup: ZeroDivisionError: a bug"),
        ("old_version@build:1", "version 0, this side speaks 1"),
    ],
)
def test_a_rank_that_breaks_is_crashed_with_its_cause_and_its_peer_is_gone(
    start: Make,
    fault: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    says: str,
) -> None:
    monkeypatch.setattr("autotune.measure.runner.channel.PEER_TIMEOUT_S", 1)
    fault(what)
    result = start(world_size=2).run()
    assert result.verdict is Verdict.CRASHED
    assert says in result.reason
    assert not ranks()


@pytest.mark.parametrize("what", ["hang@timed:1", "stop@timed:0"])
def test_a_rank_that_hangs_is_ended_with_its_group_at_its_deadline(
    start: Make, fault: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setitem(group_module.PHASE_DEADLINE_S, Phase.TIMED, 1.0)
    fault(what)
    result = start(world_size=2).run()
    assert result.verdict is Verdict.HUNG
    assert "in phase timed" in result.reason
    assert not ranks()


@pytest.mark.parametrize(("budget_s", "step_s"), [(120, 30), (1200, 120), (86400, 180)])
def test_steps_may_be_silent_for_a_tenth_of_the_budget(budget_s: float, step_s: float) -> None:
    deadline_s = group_module.phase_deadlines(budget_s)
    stepping = dict.fromkeys((Phase.WARMUP, Phase.TIMED, Phase.HOT), step_s)
    assert deadline_s == group_module.PHASE_DEADLINE_S | stepping


def test_a_hang_in_a_small_budget_is_ended_by_the_budgets_deadline(
    start: Make, fault: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "STEP_DEADLINE_S", 1.0)
    fault("hang@warmup:0")
    result = start(budget_s=20).run()
    assert result.verdict is Verdict.HUNG
    assert "rank 0 gave no sign for 2 s in phase warmup" in result.reason


def test_a_rank_s_child_ends_with_its_group(start: Make, fault: Callable[[str], None]) -> None:
    fault("child@warmup:0")
    group = start()
    group.run()
    assert len(ranks()) == 3  # the rank, the guard of its session, and what was left behind
    group.pool.retire(time.monotonic() + 10)
    assert not ranks()


def test_a_study_that_is_killed_leaves_nothing_that_its_ranks_started(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from support.pools import Started\n"
        "from tests.support.programs import FAULTY_RANK\n"
        "from autotune.measure.runner import local; local.WORKER = FAULTY_RANK\n"
        "study = Started(Path(sys.argv[1])); study.run(); print('ran', flush=True)\n"
        "time.sleep(3600)"
    )
    study = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=TESTS,
        env=os.environ | {"FAULT": "child@warmup:0", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    with study:
        assert study.stdout is not None
        assert study.stdout.readline() == b"ran\n"
        family = psutil.Process(study.pid).children(recursive=True)
        assert len(family) == 3
        study.kill()
        assert not psutil.wait_procs(family, timeout=5)[1]


def test_a_live_group_whose_rank_died_between_probes_is_replaced(start: Make) -> None:
    group = start()
    group.run()
    rank = next(each for each in ranks() if each.ppid() == os.getpid())
    rank.kill()
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)  # the pool itself must reap it
    again = group.run()
    assert again.verdict is Verdict.OK
    assert not again.warm


def test_a_rank_that_never_starts_crashed(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", "raise SystemExit(3)"])
    result = start().run()
    assert result.verdict is Verdict.CRASHED
    assert "exit code 3 before it dialled" in result.reason


def test_last_words_of_a_rank_that_is_still_being_let_in_count(
    start: Make, fault: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_word = Peer.wait_for_word

    def late(peer: Peer) -> None:
        wait_for_word(peer)
        while ranks():  # it ends in the meantime, which the group sees at its next look
            time.sleep(0.01)
        time.sleep(3 * group_module.POLL_S)

    monkeypatch.setattr(Peer, "wait_for_word", late)
    monkeypatch.setattr(local, "WORKER", FAULTY_RANK)
    fault("error@import:0")
    assert "ZeroDivisionError: a bug in the user's model" in start().run().reason


@pytest.mark.parametrize("linked", [False, True], ids=["as it is", "behind a link"])
def test_an_installed_package_is_not_put_before_the_standard_library(
    linked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PYTHONPATH would do that with all of site-packages."""
    libraries = CHECKOUT
    if linked:
        libraries = tmp_path / "site-packages"
        libraries.symlink_to(CHECKOUT)
    assert str(CHECKOUT) in local.module_path()["PYTHONPATH"].split(os.pathsep)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(libraries))
    assert local.module_path() == {}


# Logs.


class Growing:
    """A log to which somebody writes as fast as it is read."""

    def __init__(self, path: Path, texts: list[bytes]) -> None:
        self._path = path
        self._texts = texts

    def open(self, mode: str, buffering: int = -1) -> Any:
        stream = self._path.open(mode, buffering=buffering)
        if mode == "ab":
            return stream
        read = stream.read

        def read_all() -> bytes:
            found: bytes = read()
            if self._texts:
                with self._path.open("ab") as more:
                    more.write(self._texts.pop(0))
            return found

        watched = SimpleNamespace(seek=stream.seek, truncate=stream.truncate, readall=read_all)
        return nullcontext(watched)


def test_a_log_is_cut_while_it_grows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local, "MAX_LOG_BYTES", MIB)
    log = tmp_path / "log"
    log.write_bytes(b"first\n" + b"x" * MIB)
    written = [b"y" * MIB + b"\n"] * 5 + [b"the last\n"]
    local._cut_middle(Growing(log, written))  # type: ignore[arg-type]
    assert written == []
    found = log.read_bytes()
    assert found.startswith(b"first\n")
    assert found.endswith(b"the last\n")
    assert len(found) <= MIB


def test_a_log_that_grows_without_end_keeps_its_start_and_its_latest_lines(
    start: Make, fault: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "MAX_LOG_BYTES", MIB)
    fault("chatter@warmup:0")
    group = start()
    assert group.run().verdict is Verdict.OK
    group.pool.close()
    log = tmp_path / "group001-rank0.log"
    head, cut, latest = log.read_text().partition("[this log passed 1 MiB;")
    assert log.stat().st_size <= MIB
    assert "line 0 of" in head
    assert cut
    assert "[this log" not in latest
    assert "line 131072 of" not in head
    whole = latest.rpartition("\n")[0]  # the last line is torn where the rank was ended by force
    assert int(whole.rpartition("\nline ")[2].split()[0]) >= 131072
    assert group.notes == ["group001-rank0.log passed 1 MiB; its middle is cut"]


def test_groups_are_numbered_on_from_the_logs_that_are_there(start: Make, tmp_path: Path) -> None:
    for number in (2, 1000):
        (tmp_path / f"group{number:03d}-rank0.log").write_text("of an earlier run")
    start().run()
    assert (tmp_path / "group1001-rank0.log").exists()


def test_a_log_is_added_to_and_never_overwritten(tmp_path: Path) -> None:
    log = tmp_path / "describe.log"
    for word in ("first", "second"):
        process = local.spawn(["echo", word], b"", log, {})
        process.reap()
    assert log.read_text() == "first\nsecond\n"


# Files.


def test_what_ranks_leave_in_their_temporary_folders_goes_with_them(
    start: Make,
    fault: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TMPDIR", "/proc/nowhere")
    monkeypatch.setenv("HOME", "/proc/nowhere")
    fault("litter@warmup:0")
    group = start(world_size=2)
    assert group.run().verdict is Verdict.OK
    (left,) = tmp_path.glob("*/left*")
    assert left.parent == tmp_path / "group001-rank0.tmp"
    assert left.parent.stat().st_mode & 0o777 == 0o700
    for rank in psutil.Process().children():
        rank.kill()
    group.pool.close()
    assert {path.suffix for path in tmp_path.iterdir()} == {".log"}


@pytest.mark.parametrize("home", ["/proc/nowhere", "home"])
def test_ops_are_compiled_in_the_study_where_the_users_cache_cannot_be_written(
    start: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    for name in ("XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    ask = "import os; print(os.environ.get('TORCH_EXTENSIONS_DIR', 'as usual'))"
    monkeypatch.setattr(local, "OPS", [sys.executable, "-c", ask])
    monkeypatch.setattr(local, "WORKER", [sys.executable, "-c", ask])
    start(device=Gpu).run(OFFLOADED)
    where = "as usual" if home == "home" else str(tmp_path / "torch_extensions")
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert logs == [f"{where}\n"] * 2


# The budget and the user.


def test_a_probe_past_the_budget_is_skipped(start: Make, fault: Callable[[str], None]) -> None:
    fault("hang@import:0")
    asked = defaults.job(rule=RULE)
    result = start().pool.run(asked, time.monotonic() + 0.5)
    assert result.verdict is Verdict.SKIPPED
    assert not ranks()


def test_a_wish_to_stop_ends_the_wait(start: Make, fault: Callable[[str], None]) -> None:
    fault("hang@import:0")
    group = start()
    group.stop = True
    with pytest.raises(StopRequestedError):
        group.run()
    group.pool.close()
    assert not ranks()


@pytest.mark.parametrize("cause", ["oom", "host_oom"])
def test_whose_memory_ran_out_is_kept(cause: Any) -> None:
    fault = Fault(cause=cause, phase=Phase.TIMED, error="e", traceback="")
    result = group_module._out_of_memory(SimpleNamespace(number=0), fault)  # type: ignore[arg-type]
    assert (result.verdict, result.of_host) == (Verdict.OOM, cause == "host_oom")
