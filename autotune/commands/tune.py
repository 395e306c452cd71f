"""The study itself, new or resumed: `python -m autotune` without a command."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from autotune.commands.exits import ExitCode, complain
from autotune.errors import UsageError
from autotune.result.files import create_folder, default_folder, hold, refuse_used_folder
from autotune.result.folder.folder import Folder
from autotune.space.options import FLAGS, GROUPS, Flag, Options, text_of

if TYPE_CHECKING:
    from autotune.device.device import Device
    from autotune.measure.testbed.testbed import Testbed
    from autotune.result.folder.manifest import Manifest
    from autotune.space.space import Space
    from autotune.study.session import Setup


@dataclass(frozen=True, kw_only=True)
class Tune:
    """The request of one command line."""

    options: Options
    dry_run: bool = False
    resume: Path | None = None
    """The study to go on with; its manifest then has the options."""
    join: str | None = None
    """The study in a database to join; it then has the options."""
    own: frozenset[str] = frozenset()
    """Names of options given with `join`: folder and devices."""
    budget_s: float | None = None
    """The budget of a resumed study, from now on."""
    accepted: frozenset[str] = frozenset()
    verify: bool = False
    """Whether the winner is trained for longer at the end, within the budget."""
    built_in: bool = False
    """Whether the user named no model or script."""
    embedded: bool = False
    """Whether the process is the user's, e.g. a notebook's, and goes on afterwards."""

    def __call__(self, argv: list[str], started: float) -> int:
        """Run it; returns the exit code. See `Run`."""
        from autotune.show.report.reporters import reporter_for
        from autotune.study import session
        from autotune.wire.budget import StopFlag

        os.umask(os.umask(0o022) | 0o022)  # no other user may write in a study's folder
        prepare = _begin if self.resume is None else _resume
        prepare = prepare if self.join is None else _join
        try:
            with ExitStack() as held:
                setup = prepare(self, argv, held)
                if setup is None:
                    return ExitCode.FOUND
                share = 1 - VERIFY_SHARE if self.verify else 1.0
                clock = setup.testbed.clock(share * setup.options.limits.budget_s, started)
                ended = session.run(
                    setup,
                    reporter=reporter_for(
                        sys.stdout, clock.elapsed_s, setup.options.search.objective
                    ),
                    clock=clock,
                    stop=StopFlag(embedded=self.embedded),
                )
                if ended.message:
                    complain(ended.message)
                if self.verify and ended.code.name == ExitCode.FOUND.name:
                    return _verified(self, Path(setup.manifest.folder), started)
                return ExitCode[ended.code.name]
        except KeyboardInterrupt:  # before the study, which handles signals itself
            if self.resume is None:
                raise
            complain("stopped; earlier measurements are kept")
            known = Folder(self.resume).best.exists()
            return ExitCode.STOPPED if known else ExitCode.NO_MEASUREMENT


VERIFY_STEPS = 200
VERIFY_SHARE = 0.2
"""Share of the budget for --verify."""
_WITH_JOIN = {*GROUPS["devices"], *GROUPS["cluster"]} - {"world_size"}
_HEADINGS = {
    "limits": "Budget and limits", "devices": "Devices", "cluster": "Several machines",
    "script": "Your own script", "model": "Model", "space": "Space", "search": "Search",
    "output": "Output",
}  # fmt: skip
"""Titles of groups of options, in the order of `--help`."""
_GROUPS = {name: Group(text, sort_key=at) for at, (name, text) in enumerate(_HEADINGS.items(), 1)}


def own_flag(text: str, metavar: str | None = None, **more: Any) -> Parameter:
    """A flag of one command alone. Its value may start with a hyphen."""
    hyphen = metavar is not None
    return Parameter(
        help=text, metavar=metavar, allow_leading_hyphen=hyphen, show_default=False, **more
    )


_of_this_run = partial(own_flag, group=_GROUPS["output"])


def tune(
    *,
    resume: Annotated[str | None, _of_this_run(
        "Go on with the interrupted study in this folder. It keeps its options.", "DIR")] = None,
    join: Annotated[str | None, _of_this_run(
        "Join other processes in a study, on the same kind of devices: --join URL/NAME, as the"
        " study prints it. Only --budget, --out and options of devices can be added.",
        "URL")] = None,
    accept_changed: Annotated[str | None, _of_this_run(
        "Fields that may have changed since a resumed or joined study began, e.g. driver,torch.",
        "NAMES")] = None,
    verify: Annotated[bool, _of_this_run(
        f"Train the winner for up to {VERIFY_STEPS} steps at the end, in a fifth of the budget,"
        " and compare. Exit code 6 means that the result does not hold.")] = False,
    dry_run: Annotated[bool, _of_this_run(
        "Print the search space and the first probe. Nothing is measured or written.")] = False,
    config: Annotated[Path | None, _of_this_run(
        "TOML file with these options as top-level keys (default: the table [tool.autotune] of"
        " the nearest pyproject.toml). The command line wins. It is not read with --resume or"
        " --join.",
        "FILE")] = None,
    **options: Any,
) -> Tune:  # fmt: skip
    """Find the fastest training configuration that fits in memory, by running real steps."""
    # `config.read_config` read `config` before.
    if resume is not None and not resume.strip():
        raise UsageError("--resume: no folder given; write --resume DIR")
    if verify and resume is not None:
        raise UsageError(
            f"--verify: not with --resume; when it has ended, run autotune verify {resume}"
        )
    if join is not None:
        given = {"resume": resume, "verify": verify, "dry_run": dry_run, "config": config}
        for name, value in (given | options).items():
            if value not in (None, False) and name not in _WITH_JOIN | {"budget_s", "out"}:
                flag = FLAGS[name].name if name in FLAGS else f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag}: not with --join; leave it out")
    if accept_changed is not None and resume is None and join is None:
        raise UsageError("--accept-changed: only with --resume DIR or --join URL/NAME")
    asked = Options.from_texts({name: _text(name, value) for name, value in options.items()})
    if verify and (asked.devices.recorded or asked.devices.emulated):
        raise UsageError(
            f"--verify: {asked.devices.device} has no device to train on; leave it out"
        )
    return Tune(
        options=asked,
        dry_run=dry_run,
        resume=None if resume is None else Path(resume),
        join=join,
        own=frozenset(options) & _WITH_JOIN,
        budget_s=asked.limits.budget_s if "budget_s" in options else None,
        verify=verify,
        built_in=resume is None
        and join is None
        and not asked.devices.recorded
        and not options.keys() & {"model", "script"},
        accepted=frozenset(filter(None, (accept_changed or "").replace(" ", "").split(","))),
    )


def _text(name: str, value: Any) -> str:
    """The text of the option `name`. Repeated options are joined."""
    several = FLAGS[name].type == list[str] and isinstance(value, list | tuple)
    return ";".join(value) if several else text_of(value)


def parameter(group: str, name: str, flag: Flag) -> inspect.Parameter:
    """The option `name` of a study as a parameter of `tune`."""
    switch = flag.type is bool
    # A value may start with a hyphen, so our parser judges -5m.
    shown = Parameter(
        name=flag.name, group=_GROUPS[group], help=flag.help, metavar=flag.metavar,
        allow_leading_hyphen=not switch, show_default=False if switch else None,
    )  # fmt: skip
    default = False if switch else flag.default
    type_ = flag.type if default is not None else flag.type | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, shown]
    )


def take_options(command: Callable[..., Any], groups: Mapping[str, Mapping[str, Flag]]) -> None:
    """Give `command` the options of a study in `groups` instead of its `**options`."""
    *own, _ = inspect.signature(command, eval_str=True).parameters.values()
    options = [
        parameter(group, *item) for group, flags in groups.items() for item in flags.items()
    ]
    command.__signature__ = inspect.Signature([*options, *own])  # type: ignore[attr-defined]


take_options(tune, GROUPS)


def _begin(asked: Tune, argv: list[str], held: ExitStack) -> Setup | None:
    """A new study in a folder that `held` releases. None after a dry run."""
    from autotune.commands.dry_run import print_plan
    from autotune.device import remark
    from autotune.device.idle import check_idle
    from autotune.measure.testbed.lengths import read_mix
    from autotune.result.folder.earlier import NOTHING, learn
    from autotune.result.folder.manifest import manifest_of
    from autotune.study.predict.predictor import Predictor
    from autotune.study.search import first_candidate

    options = asked.options
    refuse_used_folder(options.output.out)
    read_mix(options)  # its errors come before a device is opened
    options = _with_storage(options)
    testbed = _opened(options, held)
    space = testbed.space(options)
    device = testbed.device
    folder = options.output.out or _folder(options, device)
    kept = options.but(device=testbed.spec)
    now = manifest_of(kept, space, testbed.fingerprint(space), folder, argv)
    now = learn(now, options.search.learn_from, testbed.learns)
    if options.search.learn_from not in (None, NOTHING) and not now.earlier:
        complain(
            f"--learn-from {options.search.learn_from}: no study in it ran on these devices with"
            " this software, so nothing was learned"
        )
    if warning := remark(device):
        complain(warning)
    if asked.dry_run:
        predictor = Predictor(space, device.kind, now.earlier, objective=options.search.objective)
        first = first_candidate(options, space, device.kind, now.earlier)
        print_plan(space, first, options.limits.budget_s, predictor)
        return None
    check_idle(device, options.devices.allow_busy)
    create_folder(folder)
    held.enter_context(hold(folder))
    refuse_used_folder(folder)  # another study may have been faster
    if options.search.weigh:
        now = _weighed(now, options, space, device)
    from autotune.study.session import Setup

    return Setup(
        options=options, space=space, testbed=testbed, manifest=now, built_in=asked.built_in
    )


def _weighed(now: Manifest, options: Options, space: Space, device: Device) -> Manifest:
    """`now` with weighed peaks of its space; a line tells what was weighed, or why not."""
    on_gpus = device.kind == "cuda" and not options.devices.recorded
    why = "" if on_gpus else "nothing is measured on GPUs"
    why = "GPUs are emulated anyway" if options.devices.emulated else why
    if why := "a script is not weighed before its study" if options.script.template else why:
        complain(f"--weigh: nothing was weighed: {why}")
        return now
    from autotune.advise.plan.ahead import weighed_ahead

    name = device.infos[0].name
    found = weighed_ahead(space, name, options, now.earlier, complain)
    return now if found is None else replace(now, earlier=[*now.earlier, found])


def _folder(options: Options, device: Device) -> Path:
    kind = "emulated" if options.devices.emulated else device.kind
    return default_folder(options.subject, kind)


def _opened(options: Options, held: ExitStack) -> Testbed:
    """The testbed. Emulated devices are there until `held` ends."""
    from autotune.measure.testbed import open_testbed

    if options.devices.emulated:
        from autotune.device.emulated.emulation import NOT_SUPPORTED, Emulation
        from autotune.result.files import RESULTS
        from autotune.result.folder.earlier import context_bytes

        cards = held.enter_context(Emulation(options.devices.emulated))
        cards.know(context_bytes(options.output.out or RESULTS / "new", options.search.learn_from))
        for unit in cards.units:
            unit.energy = NOT_SUPPORTED
    return open_testbed(options)


def _with_storage(options: Options) -> Options:
    """`options` with an absolute URL of their storage, if one is given."""
    if options.output.storage is None:
        return options
    from autotune.result.folder.storage import checked

    return options.but(storage=checked(options.output.storage))


def _resume(asked: Tune, argv: list[str], held: ExitStack) -> Setup:
    from autotune.result.folder import manifest

    assert asked.resume is not None
    then = manifest.read(asked.resume)
    held.enter_context(hold(asked.resume))
    options = _with_storage(then.asked())
    given = asked.options.cluster  # head node and job may be others
    options = options.but(
        interface=given.interface or options.cluster.interface,
        nodes=given.nodes or options.cluster.nodes,
    )
    return _going_on(asked, then, options, argv, held)


def _join(asked: Tune, argv: list[str], held: ExitStack) -> Setup:
    """The study in a database, in a folder of this process."""
    from autotune.result.folder.storage import manifest_in

    assert asked.join is not None
    refuse_used_folder(asked.options.output.out)
    url, then = manifest_in(asked.join)
    own = {key: value for key, value in asked.options.flat().items() if key in asked.own}
    options = then.asked(f"--join {asked.join}").but(storage=url, **own)
    setup = _going_on(asked, then, options, argv, held)
    folder = Path(setup.manifest.folder)
    create_folder(folder)
    held.enter_context(hold(folder))
    refuse_used_folder(folder)
    return setup


def _going_on(
    asked: Tune, then: Manifest, options: Options, argv: list[str], held: ExitStack
) -> Setup:
    """The study of `then`, resumed or joined. Limits and earlier studies stay."""
    from autotune.device import remark
    from autotune.device.idle import check_idle
    from autotune.result.folder import manifest
    from autotune.study.session import Resumed, Setup

    testbed, joined = _opened(options, held), asked.join is not None
    if joined and (warning := remark(testbed.device)):
        complain(warning)
    here = testbed.space(options, then.workload())
    space = replace(here, limits=then.limits())
    folder = asked.resume or asked.options.output.out
    folder = folder or _folder(options, testbed.device)
    now = replace(
        manifest.manifest_of(
            options.but(device=testbed.spec), space, testbed.fingerprint(here), folder,
            argv if joined else then.argv,
        ),
        earlier=then.earlier, study_name=then.study_name,
        part=token_hex(4) if joined else then.part,
    )  # fmt: skip
    before, after = (then.of_any_devices(), now.of_any_devices()) if joined else (then, now)
    flag = f"--join {asked.join}" if joined else "--resume"
    busy = options.devices.allow_busy or asked.options.devices.allow_busy
    resumed = Resumed(
        argv=argv,
        budget_s=asked.budget_s,
        accepted=manifest.check(before, after, asked.accepted, flag),
        check_idle=lambda: check_idle(testbed.device, busy),
        joined=joined,
    )
    return Setup(options=options, space=space, testbed=testbed, manifest=now, resumed=resumed)


def _verified(asked: Tune, folder: Path, started: float) -> int:
    """Verify the result in `folder` in the rest of the budget; returns the exit code."""
    from autotune.commands.verify import train
    from autotune.result.best import Best
    from autotune.study.verify import START_S, needed_s

    path = Folder(folder).best
    left_s = started + asked.options.limits.budget_s - time.monotonic()
    if left_s < needed_s(Best.read(path)):
        complain(f"not verified: the budget is spent; run autotune verify {folder}")
        return ExitCode.FOUND
    return train(path, VERIFY_STEPS, left_s - START_S, embedded=asked.embedded)
