"""Everything worth measuring on a machine with one GPU, in steps of less than 9 minutes each.

    scripts/on_gpu [--out results/gpu] [STEP ...]

Without names it runs the steps that are not done yet, in order; with names just those, again.
Each writes into a folder of its own: log.txt, and result.json once it is done. `--list` shows
where it stands. Nothing is downloaded. `--device cpu --small` runs the same steps on little work
without a GPU, to try them out; what they print then says nothing about one. The exit code is 1
where a step failed or is not through, 0 else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # autotune need not be installed

import pandas as pd
from shared import ROOT, probing, wiring

from autotune.device import open_device
from autotune.measure.runner import Result, Runner
from autotune.measure.testbed.machine import Machine
from autotune.result.folder.table import load_trials
from autotune.space.candidate import Candidate
from autotune.space.options import Options
from autotune.space.outcome import Verdict
from autotune.wire.reports import Report
from autotune.wire.stopping import Rule, interval

STEP_LIMIT_S = 490.0
END_S = 20.0
SMI_EVERY_MS = 20
MIB = 2**20
ALLOCATORS = {"default": "", "expandable": "expandable_segments:True"}
"""Values of PYTORCH_CUDA_ALLOC_CONF."""
RULE = Rule(
    warmup_steps=3, warmup_tolerance=0.1, warmup_limit_s=3.0,
    timed_steps=5, half_width=0.01, timed_limit_s=3.0,
)  # fmt: skip


class StepError(Exception):
    """A step found something wrong; what, in words."""


class NotThrough(Exception):  # noqa: N818
    """A step ran out of its time, and goes on when it is run again."""


@dataclass(frozen=True)
class Bench:
    """What a step works with."""

    device: str
    small: bool
    folder: Path
    """Its own."""
    log: TextIO
    until: float
    """On the monotonic clock: what is not through by then is run again."""

    def say(self, line: str = "") -> None:
        """Print `line`, and keep it."""
        print(line, flush=True)
        print(line, file=self.log, flush=True)

    def python(self, *arguments: str) -> int:
        """Run this Python with `arguments`, which is asked to stop when the step has to."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        }
        self.say("$ python " + " ".join(arguments))
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment,
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise NotThrough from None
        finally:
            _end(process)

    @contextmanager
    def pool(self, options: Options, allocator: str = "") -> Iterator[Runner]:
        """Worker groups for the space of `options`, with that allocator setting."""
        testbed = Machine(open_device(self.device), self.device)
        with mock.patch.dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=allocator):
            wires = wiring(self.folder / "logs", 3600.0, self.say)
            (runner,) = testbed.runners(testbed.space(options), [wires])
            try:
                yield runner
            finally:
                runner.close()

    def probe(
        self, pool: Runner, candidate: Candidate, rule: Rule = RULE, *, fresh: bool = False
    ) -> Result:
        """One probe, measured to the end of `rule`."""
        if time.monotonic() > self.until:
            raise NotThrough
        result = pool.run(probing(candidate, rule, fresh=fresh), self.until)
        if result.verdict is Verdict.SKIPPED:
            raise NotThrough
        return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """What still runs of it: the studies that tests started would go on, and keep the GPU."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def measured(result: Result) -> Report:
    """Its report; raises `StepError` where there is none."""
    if result.report is None:
        raise StepError(f"{result.verdict}: {result.reason}")
    return result.report


# The steps.


def tests(bench: Bench) -> dict[str, Any]:
    """`pytest -m gpu`."""
    files = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text(encoding="utf-8")
    )
    before = [f"--deselect={name}" for name, how in _ended(bench).items() if how == "PASSED"]
    how = ["-v", "-m", "gpu", "-p", "no:cacheprovider", "--tb=short"]
    code = bench.python("-m", "pytest", *how, *files, *before)
    counts = Counter(_ended(bench).values())
    bench.say(str(dict(counts)))
    no_gpu = not counts["PASSED"] and open_device(bench.device).kind == "cuda"
    if code not in (0, 5) or no_gpu:  # a few need packages that may not be there
        raise StepError(f"pytest ended with {code}: {dict(counts)}")
    return {"counts": dict(counts)}


def _ended(bench: Bench) -> dict[str, str]:
    """How tests ended, of this call of the step and of those before it."""
    text = (bench.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    return dict(re.findall(r"^(tests/\S+) (PASSED|FAILED|SKIPPED|ERROR)\b", text, re.MULTILINE))


def facts(bench: Bench) -> dict[str, Any]:
    """What the device, NVML and torch say of themselves."""
    import torch

    device = open_device(bench.device)
    found: dict[str, Any] = {"fingerprint": device.fingerprint(), "torch": torch.__version__}
    found["in_use_bytes"] = device.in_use_bytes()
    if device.kind == "cuda":
        smi = subprocess.run(
            ["nvidia-smi", "-q", "-d", "MEMORY,CLOCK,POWER,PERFORMANCE"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        bench.say(smi.stdout)
        found["torch_cuda"] = torch.version.cuda
    return found


LITTLE = (
    "--depth", "1", "--seq-len", "32", "--micro-batch", "1,2", "--finals", "1", "--trials", "2",
    "--gpt", "width=64,vocab_size=256", "--world-size", "1", "--budget", "30s",
)  # fmt: skip
SCRIPT = (
    "--script",
    f"{sys.executable} {ROOT / 'tests' / 'support' / 'own_script.py'} plain"
    " --batch {micro_batch} --len {seq_len}",
)


def study(bench: Bench, flags: Sequence[str], small: Sequence[str] = LITTLE) -> dict[str, Any]:
    """Run a study anew; what it found, and how many of its trials ended how."""
    out = bench.folder / "study"
    asked = small if bench.small else flags
    code = bench.python("-m", "autotune", "--device", bench.device, "--out", str(out), *asked)
    if code != 0:
        raise StepError(f"the study ended with {code}, see log.txt")
    verdicts = dict(Counter(load_trials(out)["verdict"]))
    best = json.loads((out / "best.json").read_text())
    bench.say(f"{verdicts}; best: {best['config']}")
    return {"verdicts": verdicts, "best": best}


def oom(bench: Bench) -> dict[str, Any]:
    """A smaller card, pretended, and a space that runs out of it; what is left afterwards."""
    device = open_device(bench.device)
    before = device.in_use_bytes()
    found = study(
        bench,
        ["--budget", "3m", "--capacity", "24GiB", "--sampler", "random", "--depth", "12,24",
         "--micro-batch", "1,2,4,8,16,32,64,128,256", "--seq-len", "2048"],
        ["--budget", "90s", "--capacity", "1500MiB", "--sampler", "random", "--depth", "2",
         "--micro-batch", "1,64", "--seq-len", "512", "--trials", "2", "--finals", "1"],
    )  # fmt: skip
    deadline = time.monotonic() + 10.0
    while (after := device.in_use_bytes()) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    left = max(a - b for a, b in zip(after, before, strict=True))
    bench.say(f"{left / MIB:.0f} MiB more in use than before")
    if left > 64 * MIB:
        raise StepError(f"{left / MIB:.0f} MiB were left on the device")
    return found | {"left_bytes": left}


def peaks(bench: Bench) -> dict[str, Any]:
    """Peaks of trials.csv beside those that nvidia-smi saw, every 20 ms."""
    asked = ["--query-gpu=timestamp,memory.used", "--format=csv,noheader,nounits", "--id=0"]
    began, readings = pd.Timestamp.now(), bench.folder / "smi.csv"
    if bench.device == "cpu":
        return study(bench, ["--budget", "3m"])
    with readings.open("wb") as file:
        smi = ["nvidia-smi", *asked, f"-lms={SMI_EVERY_MS}"]
        watch = subprocess.Popen(smi, stdout=file)
    try:
        found = study(bench, ["--budget", "3m"])
    finally:
        watch.terminate()
        watch.wait()
    rows = beside(load_trials(bench.folder / "study"), smi_readings(readings, began))
    off = (rows["mib"] / rows["smi_mib"] - 1).abs()
    bench.say(f"{rows.to_string()}\noff by {off.median():.2%} (median), {off.max():.2%} at most")
    return found | {"rows": rows.to_dict("records")}


def smi_readings(path: Path, began: pd.Timestamp) -> pd.Series[float]:
    """MiB in use, by the seconds since `began`. The last line may be torn."""
    seen = pd.read_csv(path, names=["at", "mib"], skipinitialspace=True).dropna()
    at = pd.to_datetime(seen["at"], format="%Y/%m/%d %H:%M:%S.%f")
    return pd.Series(seen["mib"].to_numpy(), index=(at - began).dt.total_seconds())


def beside(trials: pd.DataFrame, seen: pd.Series[float]) -> pd.DataFrame:
    """The peak of each trial in MiB, and what nvidia-smi saw meanwhile above what it saw first."""
    rows = trials[trials["peak_device_bytes"].notna()]
    ends = rows["started_s"] + rows["probe_s"]
    spans = zip(rows["started_s"], ends, strict=True)
    base = seen.iloc[:50].min()
    return pd.DataFrame({
        "key": rows["key"], "mib": rows["peak_device_bytes"] / MIB,
        "smi_mib": [seen[start:end].max() - base for start, end in spans],
    })  # fmt: skip


def warm(bench: Bench) -> dict[str, Any]:
    """Peaks in a warm group beside those in a fresh one, for both kinds of allocator segments."""
    sizes = (1, 2) if bench.small else (2, 4, 8, 16, 32)
    options = _options(bench, sizes)
    found: dict[str, Any] = {}
    for name, setting in ALLOCATORS.items():
        with bench.pool(options, setting) as pool:
            for candidate in reversed(_candidates(options)):  # large first: its segments stay
                in_warm = measured(bench.probe(pool, candidate)).peaks.device_bytes
                found[f"{name} {candidate.key}"] = [in_warm]
            for candidate in _candidates(options):
                in_fresh = measured(bench.probe(pool, candidate, fresh=True)).peaks.device_bytes
                found[f"{name} {candidate.key}"].append(in_fresh)
    for key, (in_warm, in_fresh) in found.items():
        bench.say(f"{key:44} warm {in_warm / MIB:9.0f} MiB   fresh {in_fresh / MIB:9.0f} MiB")
    return {"peaks": found}


def logits(bench: Bench) -> dict[str, Any]:
    """Logits of 131072 tokens x 32768 words: more elements than 32 bits count."""
    micro, seq, vocab = (2, 64, 1024) if bench.small else (64, 2048, 32768)
    options = _options(bench, (micro,)).but(depth=(1,), seq_len=(seq,), gpt=f"vocab_size={vocab}")
    with bench.pool(options) as pool:
        result = bench.probe(pool, _candidates(options)[0])
    bench.say(f"{result.verdict} {result.reason}")
    if result.verdict not in ("ok", "oom"):
        raise StepError(f"{result.verdict}: {result.reason}")
    return {"verdict": result.verdict, "reason": result.reason}


def sustained(bench: Bench) -> dict[str, Any]:
    """Step times after a moment and after a while: what the clocks do under load."""
    options = _options(bench, (2,) if bench.small else (8,))
    spans = (0.5, 1.0) if bench.small else (1.0, 3.0, 10.0, 30.0)
    found = {}
    with bench.pool(options) as pool:
        for span in spans:
            rule = replace(RULE, half_width=0.0, timed_limit_s=span, warmup_limit_s=0.0)
            report = measured(bench.probe(pool, _candidates(options)[0], rule, fresh=True))
            seen = report.conditions
            found[f"{span:g} s"] = {
                "step_s": interval(report.step_s).median, "steps": len(report.step_s),
                "sm_clock_mhz": seen.sm_clock_mhz, "power_w": seen.power_w,
                "temperature_c": seen.temperature_c, "throttle_reasons": seen.throttle_reasons,
            }  # fmt: skip
            bench.say(f"{span:5g} s of steps: {found[f'{span:g} s']}")
    return {"spans": found}


def fidelity(bench: Bench) -> dict[str, Any]:
    """Probes beside long runs, with the table in the log."""
    asked = ["--configs", "3", "--minutes", "0.5", "--", "--budget", "2m"]
    if bench.small:
        asked = ["--configs", "1", "--steps", "20", "--", *LITTLE]
    code = bench.python("scripts/bench/fidelity.py", *asked, "--device", bench.device)
    if code:
        raise StepError(f"fidelity.py ended with {code}, see log.txt")
    return {}


def grid(bench: Bench) -> dict[str, Any]:
    """A recorded grid for replays; it goes on from call to call."""
    path = bench.folder / "grid.csv"
    space = [
        "--depth", "12,20", "--seq-len", "1024,2048", "--micro-batch", "2,4,8,16,32,64",
        "--checkpointing", "none,full", "--zero", "0,2,3", "--offload", "none,optimizer",
    ]  # fmt: skip
    if bench.small:
        space = list(LITTLE)
    repeats = "1" if bench.small else "2"
    device = open_device(bench.device)
    if device.kind == "cuda":  # what others hold now and later is not to make it another space
        most = device.infos[0].capacity_bytes * 19 // 20
        space += ["--capacity", f"{most // 2**30}GiB"]
    code = bench.python(
        "scripts/bench/record_grid.py", str(path), "--repeats", repeats,
        "--", "--device", bench.device, *space,
    )  # fmt: skip
    if code:
        raise StepError(f"record_grid ended with {code}, see log.txt")
    return {"rows": len(path.read_text().splitlines())}


STEPS: dict[str, tuple[str, Callable[[Bench], dict[str, Any]]]] = {
    "tests": ("pytest -m gpu", tests),
    "facts": ("what the device, NVML and torch say of themselves", facts),
    "default": (
        "the main job as a user runs it, with a short budget",
        partial(study, flags=["--budget", "4m"]),
    ),
    "zero": (
        "the same over ZeRO stages and offload",
        partial(
            study,
            flags=["--budget", "7m", "--zero", "0,1,2,3", "--offload", "none,optimizer"],
            small=[*LITTLE, "--zero", "0,1"],
        ),
    ),
    "axes": (
        "the axes that matter on a GPU: compiling, the allocator, the loss, checkpointing",
        partial(
            study,
            flags=[
                "--budget", "7m", "--compile", "off,on", "--allocator", "default,expandable",
                "--loss", "whole,chunked", "--checkpointing", "none,full,selective,host",
                "--depth", "12", "--seq-len", "1024",
            ],
            small=[*LITTLE, "--attention", "sdpa,eager", "--loss", "whole,chunked"],
        ),
    ),
    "script": (
        "a training script as a user would have it, launched for each probe",
        partial(
            study,
            flags=[SCRIPT[0], f"{SCRIPT[1]} --cuda --width 2048", "--budget", "3m",
                   "--micro-batch", "1:64", "--seq-len", "512,1024"],
            small=[*SCRIPT, "--budget", "60s", "--micro-batch", "1,2", "--seq-len", "32",
                   "--trials", "1", "--finals", "1"],
        ),
    ),
    "oom": ("a smaller card, pretended, and a space that runs out of it; what is left", oom),
    "peaks": ("peaks of trials.csv beside those that nvidia-smi saw", peaks),
    "warm": ("peaks in a warm group beside those in a fresh one, for both allocators", warm),
    "logits": ("more elements of logits than 32 bits count", logits),
    "sustained": ("what the clocks do under load", sustained),
    "fidelity": ("short probes beside training runs of 200 steps", fidelity),
    "grid": ("a recorded grid for replays; it goes on from call to call", grid),
}  # fmt: skip
"""What each is for, and what does it."""


# What they share.


def _options(bench: Bench, sizes: Sequence[int]) -> Options:
    """One depth and length, and those micro batches."""
    options = Options.of(
        device=bench.device, depth=(12,), seq_len=(1024,), micro_batch=tuple(sizes),
        checkpointing=("none",), world_size=1,
    )  # fmt: skip
    if bench.small:
        options = options.but(depth=(1,), seq_len=(32,), gpt="width=64,vocab_size=256")
    return options


def _candidates(options: Options) -> list[Candidate]:
    """In ascending order of tokens."""
    return [
        Candidate(depth=depth, seq_len=seq_len, micro_batch=micro_batch)
        for depth in options.space.axes.get("depth") or ()
        for seq_len in options.space.axes.get("seq_len") or ()
        for micro_batch in options.space.axes.get("micro_batch") or ()
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/on_gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    what = "; ".join(f"{name}: {of}" for name, (of, _) in STEPS.items())
    parser.add_argument("step", nargs="*", help=what)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true", help="little work, to try the steps out")
    parser.add_argument("--list", action="store_true", help="what is done")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.step) - STEPS.keys():
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if asked.list:
        for name in STEPS:
            print(f"{name:10} {_state(asked.out / name)}")
        return 0
    wanted = asked.step or [n for n in STEPS if _state(asked.out / n) != "done"]
    went = [run(name, asked) for name in wanted]
    return int(not all(went))


def run(name: str, asked: argparse.Namespace) -> bool:
    """Whether that step went through. It begins anew, but for what it keeps itself."""
    folder = asked.out / name
    folder.mkdir(parents=True, exist_ok=True)
    again = (folder / "result.json").exists()
    (folder / "result.json").unlink(missing_ok=True)
    _forget(folder / "study")
    began = time.monotonic()
    about, step = STEPS[name]
    print(f"== {name}: {about}", flush=True)
    with (folder / "log.txt").open("w" if again else "a") as log:
        bench = Bench(asked.device, asked.small, folder, log, began + STEP_LIMIT_S)
        try:
            found = step(bench)
        except NotThrough:
            bench.say(f"{name}: not through yet, run it again")
            return False
        except Exception as error:  # noqa: BLE001 - the next step may work all the same
            bench.say(f"{name}: FAILED: {type(error).__name__}: {error}")
            return False
    took_s = time.monotonic() - began
    result = {"took_s": round(took_s, 1), "device": asked.device, "small": asked.small} | found
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{name}: done in {took_s:.0f} s", flush=True)
    return True


def _state(folder: Path) -> str:
    if (folder / "result.json").exists():
        return "done"
    return "begun" if folder.exists() else "to do"


def _forget(study: Path) -> None:
    if study.exists():
        study.rename(Path(tempfile.mkdtemp(dir=study.parent, prefix="before-")) / study.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
