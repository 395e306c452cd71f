"""`python -m autotune verify`: train a result for longer, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands import Run
from autotune.commands.exits import ExitCode, complain
from autotune.errors import UsageError, refused

if TYPE_CHECKING:
    from autotune.result.best import Verified


def verify(
    best: Annotated[Path, Parameter(help="best.json or its study folder.")],
    /,
    *,
    steps: Annotated[int, Parameter(help="Optimizer steps to train for.")] = 200,
    minutes: Annotated[float, Parameter(help="Approximate time limit in minutes.")] = 5.0,
) -> Run:
    """Train a result for longer, and compare speed and memory with the measurement."""

    def run(argv: list[str], started: float) -> int:
        from autotune.study.verify import LEAST_STEPS

        if steps < LEAST_STEPS:
            raise UsageError(f"--steps {steps}: must be at least {LEAST_STEPS}")
        if not 0 < minutes <= 24 * 60:
            raise UsageError(f"--minutes {minutes:g}: must be above 0, and at most 1440")
        return train(best / "best.json" if best.is_dir() else best, steps, 60 * minutes)

    return run


def train(path: Path, steps: int, limit_s: float, *, embedded: bool = False) -> int:
    """Verify the result in `path`, write the outcome there, and print it; returns the exit code.
    Raises UsageError if there is no result, or it cannot be trained here."""
    from dataclasses import replace
    from shutil import rmtree

    from autotune.measure.runner import StopRequestedError
    from autotune.result.best import Best
    from autotune.study.verify import VerifyError, verify
    from autotune.wire.budget import StopFlag

    found = Best.read(path)
    stop, logs = StopFlag(embedded=embedded), _logs(path)
    kept = False
    try:
        verified = verify(
            found, steps=steps, limit_s=limit_s, logs=logs, note=complain, stop=lambda: bool(stop)
        )
        kept = verified.ran_out is not None
    except VerifyError as error:
        kept = True
        complain(f"{error}; logs: {logs}")
        return ExitCode.NO_MEASUREMENT
    except StopRequestedError:
        complain("stopped: the result is neither verified nor changed")
        return ExitCode.STOPPED
    finally:
        stop.restore()
        if not kept:
            rmtree(logs, ignore_errors=True)
    with refused(str(path)):
        replace(found, verified=verified).write(path)
    of_script = found.command is not None
    print("\n".join(lines(verified, asked=found.asked.get("phase_args"), of_script=of_script)))
    if kept:
        print(f"Logs: {logs}")
    return exit_of(verified)


def _logs(path: Path) -> Path:
    """A new folder beside the result in `path`, kept if the run broke."""
    import tempfile

    with refused(str(path.parent)):
        return Path(tempfile.mkdtemp(prefix="verify-", dir=path.parent))


def exit_of(found: Verified) -> ExitCode:
    if found.cannot_tell:
        return ExitCode.NO_MEASUREMENT
    return ExitCode.FOUND if found.passed else ExitCode.NOT_VERIFIED


def lines(found: Verified, *, asked: str | None = None, of_script: bool = True) -> list[str]:
    """The outcome in sentences; a script was `asked` to come to phases by --phase-args."""
    from autotune.show.report.result import not_seen
    from autotune.show.report.text import si
    from autotune.units import gib
    from autotune.wire.reports import DURING

    if found.tokens_per_s is None or found.share_of_measured is None or found.peak_bytes is None:
        after = "" if of_script else f"after {found.steps} steps "  # a script says it
        said = [
            f"DOES NOT HOLD: {after}{found.ran_out}",
            "Run the study again with a lower --ceiling, or use a smaller batch where it ran out.",
        ]
        return said + _other(found)
    first, *_, last = found.quarters
    during = f" {DURING[found.peak_in]}" if found.peak_in else ""
    growth_bytes = found.growth_bytes_per_100_steps
    grown = "" if growth_bytes is None else (
        f"; memory held grew by {growth_bytes / 2**20:.1f} MiB in 100 steps"
    )  # fmt: skip
    held = "Holds" if found.passed else "CANNOT TELL" if found.cannot_tell else "DOES NOT HOLD"
    said = [
        f"{held}: {si(found.tokens_per_s)} tokens/s in"
        f" {found.steps} steps, {found.share_of_measured:.1%} of what the study measured",
        f"Quarters: {', '.join(si(each) for each in found.quarters)} tokens/s; the last is"
        f" {last / first:.1%} of the first",
        f"Peak: {gib(found.peak_bytes)}{during}, {gib(found.limit_bytes)} are allowed; allocator"
        f" retries {found.alloc_retries}{grown}",
    ]
    if found.cannot_tell:
        said.insert(1, f"Slower, but {found.cannot_tell}")
    if found.faster and not found.other_hardware:
        said.insert(
            1,
            f"Faster by {found.share_of_measured - 1:.0%}, beyond the study's noise: the machine"
            " was busier or slower then; run the study again, since another configuration may be"
            " the best now",
        )
    unseen = found.unseen if found.passed or found.cannot_tell else None
    return said + not_seen(unseen, asked=asked, of_script=of_script) + _other(found)


def _other(found: Verified) -> list[str]:
    return [f"Not the same hardware: {found.other_hardware}"] if found.other_hardware else []
