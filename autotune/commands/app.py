"""The command line: argv -> options -> one command. The only owner of exit codes."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter, UnusedCliTokensError
from cyclopts.config import Dict

from autotune import __version__
from autotune.files import create_folder, default_folder, hold, refuse_used_folder
from autotune.options import (
    DEFAULT_BUDGET_S,
    Checkpointing,
    Dtype,
    EngineName,
    Objective,
    Offload,
    OptimizerName,
    Options,
    SamplerName,
    UsageError,
    parse_bytes,
    parse_duration_s,
    parse_global_batch,
    parse_ints,
    parse_names,
    parse_share,
)
from autotune.space.space import Space, resolve

if TYPE_CHECKING:
    from autotune.device import Device
    from autotune.folder.manifest import Manifest
    from autotune.study.session import Resumed


class ExitCode(IntEnum):
    """What the process ends with; the names are those of `ending.Ending` where it has one."""

    FOUND = 0
    INTERNAL = 1
    """A folder that cannot be written any more; or an uncaught exception, with its traceback."""
    USAGE = 2
    NOTHING_FITS = 3
    STOPPED = 4
    """By the user, with a result written."""
    NO_MEASUREMENT = 5


@dataclass(frozen=True)
class Request:
    """What one command line asks for."""

    options: Options
    dry_run: bool = False
    resume: Path | None = None
    """The study to go on with; its manifest has the options then."""
    budget_s: float | None = None
    """Of a resumed study, from now on."""
    accepted: frozenset[str] = frozenset()


def main(argv: list[str], started: float | None = None) -> int:
    """Runs the command line `argv` (without the program's name) and returns the exit code.

    The budget counts from `started`, a reading of `time.monotonic`; from now where it is None.
    """
    started = time.monotonic() if started is None else started
    try:
        request = app(
            argv, exit_on_error=False, print_error=False, result_action="return_value"
        )  # None where --help or --version was all
        return ExitCode.FOUND if request is None else _tune(request, argv, started)
    except (UsageError, CycloptsError) as error:
        _complain(one_line(error))
        return ExitCode.USAGE
    except KeyboardInterrupt:  # before the study, which takes signals itself
        _complain("stopped before anything was measured")
        return ExitCode.NO_MEASUREMENT


def entry(started: float) -> None:
    """Runs the process's own command line and ends it; for `started` see `main`."""
    code = main(sys.argv[1:], started)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # Python would try again as it ends, and exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _complain(message: str) -> None:
    with suppress(OSError):  # nobody reads it; the exit code says it too
        print(f"autotune: {_in_one_line(message)}", file=sys.stderr)


def _in_one_line(text: str) -> str:
    """`text` without line ends, and with what would steer a terminal written out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def one_line(error: UsageError | CycloptsError) -> str:
    """What is wrong with the input, and what would be right."""
    if isinstance(error, UnusedCliTokensError):
        return _in_one_line(
            f"unexpected {' '.join(error.unused_tokens or [])}; see --help;"
            " several values are joined by commas, e.g. --depth 2,4"
        )
    return _in_one_line(str(error))


def _tune(request: Request, argv: list[str], started: float) -> int:
    os.umask(os.umask(0o022) | 0o022)  # nobody else writes in a study's folder
    if request.resume is not None:
        try:
            return _resume(request, request.resume, argv, started)
        except KeyboardInterrupt:  # before the study, which takes signals itself
            _complain("stopped; what was measured before is kept")
            known = (request.resume / "best.json").exists()
            return ExitCode.STOPPED if known else ExitCode.NO_MEASUREMENT
    from autotune.device import check_idle
    from autotune.folder.manifest import manifest_of
    from autotune.report.plan import print_plan
    from autotune.study import study

    options = request.options
    refuse_used_folder(options.out)
    device, space = _ground(options)
    if request.dry_run:
        print_plan(space, study.first_candidate(options, space, device.kind))
        return ExitCode.FOUND
    check_idle(device, options.allow_busy)
    folder = create_folder(options.out or default_folder(options.model, device.kind))
    with hold(folder):
        refuse_used_folder(folder)  # another study may have come before
        now = manifest_of(options, space, device, folder, argv)
        return _run(options, now, space=space, device=device, started=started)


def _resume(request: Request, folder: Path, argv: list[str], started: float) -> int:
    from autotune.device import check_idle
    from autotune.folder import manifest
    from autotune.study.session import Resumed

    then = manifest.read(folder)
    with hold(folder):
        options = recorded(then)
        device, space = _ground(options)
        space = replace(space, limits=then.limits())
        now = manifest.manifest_of(options, space, device, folder, then.argv)
        resumed = Resumed(
            argv,
            request.budget_s,
            manifest.check(then, now, request.accepted),
            lambda: check_idle(device, options.allow_busy or request.options.allow_busy),
        )
        return _run(options, now, space=space, device=device, started=started, resumed=resumed)


def recorded(then: Manifest) -> Options:
    """The options that a manifest holds, checked as those of a command line are.

    Raises:
        UsageError: there is one that this version does not know or would not take.
    """
    try:
        request: Request | None = _make_app(config=None)(
            then.arguments(), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except (UsageError, CycloptsError) as error:
        raise UsageError(f"--resume {then.folder}: its options: {one_line(error)}") from error
    if request is None:  # --help is no option of a study
        raise UsageError(f"--resume {then.folder}: its options ask for help")
    return request.options


def _ground(options: Options) -> tuple[Device, Space]:
    from autotune.device import open_device
    from autotune.device.cpu import cores, host_memory_bytes

    device = open_device(options.device)
    return device, resolve(options, device, host_memory_bytes(), cores())


def _run(
    options: Options,
    now: Manifest,
    *,
    space: Space,
    device: Device,
    started: float,
    resumed: Resumed | None = None,
) -> int:
    from autotune.budget import Clock
    from autotune.replay.device import ReplayDevice
    from autotune.report.terminal import reporter_for
    from autotune.study import session

    clock = Clock(options.budget_s, started)
    if isinstance(device, ReplayDevice):
        clock = Clock(options.budget_s, device.time(), device.time)
    ended = session.run(
        options,
        space=space,
        device=device,
        manifest=now,
        reporter=reporter_for(sys.stdout, clock.elapsed_s),
        clock=clock,
        resumed=resumed,
    )
    if ended.message:
        _complain(ended.message)
    return ExitCode[ended.code.name]


_LIMITS = Group("Budget and limits", sort_key=1)
_DEVICES = Group("Devices", sort_key=2)
_SPACE = Group("Space", sort_key=3)
_SEARCH = Group("Search", sort_key=4)
_OUTPUT = Group("Output", sort_key=5)


def _flag(group: Group, text: str, metavar: str | None = None) -> Parameter:
    """A flag whose value may start with a hyphen, so that our parser judges -5m."""
    return Parameter(group=group, help=text, metavar=metavar, allow_leading_hyphen=True)


def tune(
    *,
    budget: Annotated[str | None, _flag(
        _LIMITS, "Wall-clock time for everything, from start to the written best.json:"
        " 90s, 30m or 1.5h (default: 30m; of a resumed study what is left of it).",
        "TIME")] = None,
    ceiling: Annotated[str, _flag(
        _LIMITS, "Share of a device's memory that a configuration may use at its peak.",
        "SHARE")] = "80%",
    host_ceiling: Annotated[str, _flag(
        _LIMITS, "Share of the host's memory that all ranks together may use at their peak.",
        "SHARE")] = "90%",
    capacity: Annotated[str | None, _flag(
        _LIMITS, "Pretend that each rank's device has only this much memory, e.g. 24GiB"
        " (default: the smallest device's memory; on cpu the host's, divided by the ranks).",
        "SIZE")] = None,
    device: Annotated[str, _flag(
        _DEVICES, "auto, cpu, cuda for all GPUs, cuda:0,2 for some, or replay:FILE.csv for a grid"
        " that was recorded (auto: all GPUs where there are any, else cpu).",
        "DEVICE")] = "auto",
    allow_busy: Annotated[bool, Parameter(
        group=_DEVICES, show_default=False,
        help="Measure even though other processes use the devices.")] = False,
    world_size: Annotated[int | None, _flag(
        _DEVICES, "Ranks that train together (default: one per GPU; on cpu 1).", "N")] = None,
    model: Annotated[str, _flag(
        _SPACE, "Model family; gpt is a decoder with rotary embeddings, RMSNorm and heads of 64.",
        "NAME")] = "gpt",
    width: Annotated[int | None, _flag(
        _SPACE, "Channels of the model, a multiple of 64 (default: 64 x depth).", "N")] = None,
    vocab_size: Annotated[int | None, _flag(
        _SPACE, "Tokens in the vocabulary (default: 32768; on cpu 4096).", "N")] = None,
    depth: Annotated[str | None, _flag(
        _SPACE, "Numbers of blocks, e.g. 2,4,6 or 2:6:2 (default: 12,16,20,24; on cpu 2,4).",
        "INTS")] = None,
    seq_len: Annotated[str | None, _flag(
        _SPACE, "Tokens per sample, e.g. 128,256 (default: 1024,2048; on cpu 64,128).",
        "INTS")] = None,
    micro_batch: Annotated[str | None, _flag(
        _SPACE, "Samples per rank and micro-step, e.g. 1:64 or 8,16"
        " (default: 12 sizes from 1 to 128; on cpu 1:16).", "INTS")] = None,
    engine: Annotated[EngineName, _flag(
        _SPACE, "Training engine (auto: ddp for stage 0, deepspeed for the others).")] = "auto",
    zero: Annotated[str | None, _flag(
        _SPACE, "ZeRO stages, e.g. 0,2,3; for fsdp 3 gives parameters back after forward and 2"
        " keeps them (default: the engine's stages on several ranks; 0 on one).",
        "INTS")] = None,
    offload: Annotated[str | None, _flag(
        _SPACE, "What moves to host memory: none, optimizer, all (optimizer and parameters)"
        " (default: none; all three where stage 0 cannot hold the deepest model).",
        "NAMES")] = None,
    checkpointing: Annotated[str | None, _flag(
        _SPACE, "Activation checkpointing: none, full or none,full (default: both).",
        "NAMES")] = None,
    dtype: Annotated[Dtype, _flag(
        _SPACE, "Type of the matrix products (auto: bf16 where the GPU has it, else fp16;"
        " on cpu fp32).")] = "auto",
    optimizer: Annotated[OptimizerName | None, _flag(
        _SPACE, "adamw, or muon for the matrices and AdamW for the rest (default: adamw)."
        )] = None,
    global_batch: Annotated[str | None, _flag(
        _SPACE, "What one optimizer step must see over all ranks, in tokens (65536tok) or in"
        " samples (256); candidates that do not divide it are left out (default: one"
        " micro-step per rank, whatever that is).", "BATCH")] = None,
    objective: Annotated[Objective, _flag(
        _SEARCH, "What to maximise; flops is model FLOP/s, which unlike the others does not"
        " favour the shallowest model.")] = "flops",
    sampler: Annotated[SamplerName, _flag(
        _SEARCH, "Who proposes candidates: frontier, by what it believes of all of them, or one of"
        " Optuna's samplers (gp needs scipy).")] = "frontier",
    seed: Annotated[int, _flag(
        _SEARCH, "Seed of the sampler, the weights and the data.", "N")] = 0,
    trials: Annotated[int | None, _flag(
        _SEARCH, "End the search after this many trials (default: when the budget is spent).",
        "N")] = None,
    finals: Annotated[int, _flag(
        _SEARCH, "Best candidates that are measured again in fresh processes at the end.",
        "N")] = 3,
    out: Annotated[Path | None, _flag(
        _OUTPUT, "Folder for everything the study writes, new or empty"
        " (default: results/<UTC time>-<model>-<device>).", "DIR")] = None,
    resume: Annotated[str | None, _flag(
        _OUTPUT, "Go on with the study in this folder, however it was interrupted, with the"
        " options that it was started with.", "DIR")] = None,
    accept_changed: Annotated[str | None, _flag(
        _OUTPUT, "Fields that may differ from when a resumed study began, e.g. driver,torch.",
        "NAMES")] = None,
    dry_run: Annotated[bool, Parameter(
        group=_OUTPUT, show_default=False,
        help="Print the space and the first probe; start and write nothing.")] = False,
    config: Annotated[Path | None, _flag(
        _OUTPUT, "TOML file whose top-level keys are these options (default: the table"
        " [tool.autotune] of the nearest pyproject.toml); the command line wins.",
        "FILE")] = None,
) -> Request:  # fmt: skip
    """Find the fastest training configuration that fits, by running real steps."""
    del config  # read by `_read_config`, before this runs
    if sampler == "gp" and importlib.util.find_spec("scipy") is None:
        raise UsageError("--sampler gp: needs scipy; pip install scipy, or use --sampler frontier")
    budget_s = None if budget is None else parse_duration_s(budget, "--budget")
    if resume is not None and not resume.strip():
        raise UsageError("--resume: names no folder; write --resume DIR")
    if accept_changed is not None and resume is None:
        raise UsageError("--accept-changed: only with --resume DIR")
    options = Options(
        budget_s=DEFAULT_BUDGET_S if budget_s is None else budget_s,
        ceiling=parse_share(ceiling, "--ceiling"),
        host_ceiling=parse_share(host_ceiling, "--host-ceiling"),
        capacity_bytes=None if capacity is None else parse_bytes(capacity, "--capacity"),
        device=device,
        allow_busy=allow_busy,
        world_size=world_size,
        model=model,
        width=width,
        vocab_size=vocab_size,
        depth=None if depth is None else parse_ints(depth, "--depth"),
        seq_len=None if seq_len is None else parse_ints(seq_len, "--seq-len"),
        micro_batch=None if micro_batch is None else parse_ints(micro_batch, "--micro-batch"),
        engine=engine,
        zero=None if zero is None else parse_ints(zero, "--zero", least=0),
        offload=None if offload is None else parse_names(offload, "--offload", Offload),
        checkpointing=(
            None
            if checkpointing is None
            else parse_names(checkpointing, "--checkpointing", Checkpointing)
        ),
        dtype=dtype,
        optimizer=optimizer,
        global_batch=(
            None if global_batch is None else parse_global_batch(global_batch, "--global-batch")
        ),
        objective=objective,
        sampler=sampler,
        seed=seed,
        out=out,
        finals=finals,
        trials=trials,
    )
    accepted = frozenset(filter(None, (accept_changed or "").replace(" ", "").split(",")))
    study = None if resume is None else Path(resume)
    return Request(options, dry_run, study, budget_s, accepted)


def _read_config(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fills options that the command line left out from the TOML file, where there is one."""
    given = {argument.name for argument in arguments if argument.tokens}
    if "--resume" in given:
        _refuse_beside_resume(given)
        return
    (config,) = [argument for argument in arguments if argument.name == "--config"]
    named = Path(config.tokens[0].value) if config.tokens else None
    path = named or _nearest_pyproject()
    if path is None:
        return
    table = _read_table(path, () if named else ("tool", "autotune"))
    texts = {key: _text(path, key, value) for key, value in table.items()}
    Dict(texts, source=str(path), use_commands_as_keys=False)(app, commands, arguments)


def _refuse_beside_resume(given: set[str]) -> None:
    """A resumed study has its options already, and a configuration file is none of them.

    Raises:
        UsageError: another one is given.
    """
    if others := sorted(given - {"--resume", "--budget", "--accept-changed", "--allow-busy"}):
        raise UsageError(
            f"{others[0]}: a resumed study keeps the options that it was started with; beside"
            " --resume only --budget, --accept-changed and --allow-busy can be given"
        )


def _nearest_pyproject() -> Path | None:
    here = Path.cwd()
    paths = (folder / "pyproject.toml" for folder in (here, *here.parents))
    return next((path for path in paths if path.is_file()), None)


def _read_table(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a TOML file with --config") from error
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    for key in keys:
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {key} must be a table, written [{'.'.join(keys)}]")
    return table


def _text(path: Path, key: str, value: object) -> str:
    """`value` of `key` in the file as the command line would write it."""
    known = [name.replace("_", "-") for name in inspect.signature(tune).parameters]
    known = [name for name in known if name not in ("config", "resume", "accept-changed")]
    if key.replace("_", "-") not in known:
        close = difflib.get_close_matches(key, known, 1) or ["budget"]
        raise UsageError(f"{path}: unknown key {key}; did you mean {close[0]}?")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and value:
        return ",".join(_text(path, key, item) for item in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{path}: {key} must be text, a number, true, false or a list of them")


def _make_app(config: Callable[..., None] | None) -> App:
    made = App(
        name="autotune",
        usage="Usage: python -m autotune [OPTIONS]",
        version=f"autotune {__version__}",
        help_format="plaintext",
        default_parameter=Parameter(negative=()),
        config=config,
        default_command=tune,
    )
    made.command(tune)
    return made


app = _make_app(_read_config)
