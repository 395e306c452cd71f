"""Tests and measurements for a machine with one GPU, in steps of less than 9 minutes each.

    scripts/on_gpu [--out results/gpu] [STEP ...]

Without names it runs the missing steps, in order; with names just those, again. Each writes to a
folder of its own: log.txt, and result.json at its end. `--list` shows the state. Nothing is
downloaded. `--device cpu --small` tries the same steps with little work and without a GPU; its
numbers say nothing about one. The exit code is 1 if a step failed or is not through, else 0.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # autotune need not be installed

import pandas as pd
from shared import ROOT, run, say

from autotune.device import open_device
from autotune.result.folder.table import load_trials

STEP_LIMIT_S = 490.0
END_S = 20.0
SMI_EVERY_MS = 20
MIB = 2**20


class StepError(Exception):
    """A step found an error, which the message names."""


class NotThrough(Exception):  # noqa: N818
    """A step ran out of its time, and goes on when it is run again."""


@dataclass(frozen=True)
class Bench:
    """The tools of a step."""

    device: str
    small: bool
    folder: Path
    """The folder of the step."""
    log: TextIO
    until: float
    """The end of its time on the monotonic clock; an unfinished step is run again."""

    def say(self, line: str = "") -> None:
        """Print `line`, and write it to the log."""
        print(line, flush=True)
        print(line, file=self.log, flush=True)

    def python(self, *arguments: str) -> int:
        """Run this Python with `arguments`. It is asked to stop at the end of the step's time."""
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


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all children: studies of tests would go on, and keep the GPU."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


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
    if code not in (0, 5) or no_gpu:  # a few tests need packages that may be missing
        raise StepError(f"pytest ended with {code}: {dict(counts)}")
    return {"counts": dict(counts)}


def _ended(bench: Bench) -> dict[str, str]:
    """The ends of tests, of this call of the step and of earlier ones."""
    text = (bench.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    return dict(re.findall(r"^(tests/\S+) (PASSED|FAILED|SKIPPED|ERROR)\b", text, re.MULTILINE))


def facts(bench: Bench) -> dict[str, Any]:
    """Facts about the device, NVML and torch."""
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
    """Run a study anew; returns its result, and numbers of trials by verdict."""
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
    """A pretended smaller card, and a space that runs out of its memory; then leftovers."""
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
    """Peaks of trials.csv beside those of nvidia-smi, every 20 ms."""
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
    """The peak of each trial in MiB, and nvidia-smi's highest reading above its first one."""
    rows = trials[trials["peak_device_bytes"].notna()]
    ends = rows["started_s"] + rows["probe_s"]
    spans = zip(rows["started_s"], ends, strict=True)
    base = seen.iloc[:50].min()
    return pd.DataFrame({
        "key": rows["key"], "mib": rows["peak_device_bytes"] / MIB,
        "smi_mib": [seen[start:end].max() - base for start, end in spans],
    })  # fmt: skip


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
    if device.kind == "cuda":  # others' memory must not change the space
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
    "fidelity": ("short probes beside training runs of 200 steps", fidelity),
    "grid": ("a recorded grid for replays; it goes on from call to call", grid),
}  # fmt: skip
"""The purpose and the function of each step."""


def main(
    *step: str, out: Path = ROOT / "results" / "gpu", device: str = "cuda:0", small: bool = False,
    list: bool = False,
) -> int:  # fmt: skip
    """`list` shows what is done; `small` steps have little work, to try them out."""
    if unknown := set(step) - STEPS.keys():
        say(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
        return 2
    if list:
        for name in STEPS:
            print(f"{name:10} {_state(out / name)}")
        return 0
    wanted = step or [n for n in STEPS if _state(out / n) != "done"]
    went = [went_through(name, out / name, device, small) for name in wanted]
    return int(not all(went))


def went_through(name: str, folder: Path, device: str, small: bool) -> bool:
    """Run a step anew; it may keep files of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    again = (folder / "result.json").exists()
    (folder / "result.json").unlink(missing_ok=True)
    _forget(folder / "study")
    began = time.monotonic()
    about, step = STEPS[name]
    print(f"== {name}: {about}", flush=True)
    with (folder / "log.txt").open("w" if again else "a") as log:
        bench = Bench(device, small, folder, log, began + STEP_LIMIT_S)
        try:
            found = step(bench)
        except NotThrough:
            bench.say(f"{name}: not through yet, run it again")
            return False
        except Exception as error:  # noqa: BLE001 - the next step may work all the same
            bench.say(f"{name}: FAILED: {type(error).__name__}: {error}")
            return False
    took_s = time.monotonic() - began
    result = {"took_s": round(took_s, 1), "device": device, "small": small} | found
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
    run(main)
