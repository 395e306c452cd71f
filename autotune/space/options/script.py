"""A script of the user's own, which is tuned in the place of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autotune.errors import UsageError
from autotune.space.command import Command, parse_own, parse_set
from autotune.space.models import where
from autotune.space.options.flag import as_it_is, checked, option


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    # fmt: off
    template: str | None = option(
        "--script", as_it_is, "COMMAND",
        "Tune this command instead of a model: your own script, with {micro_batch}, {seq_len} and"
        " so on where their values go, {out} for a scratch folder, {deepspeed_config},"
        " {accelerate_config} and {training_args} for files.", key="script")
    axis: str | None = option(
        "--axis", partial(checked, parse=parse_own), "AXIS",
        'An axis of a script\'s own, which goes where {attn} is: "attn=sdpa,eager". May be given'
        " several times.", type=list[str])
    given: str | None = option(
        "--set", partial(checked, parse=parse_set), "VALUE",
        "What goes into a script's command where {lr} is: lr=1e-4. May be given several times.",
        type=list[str])
    # fmt: on

    def __post_init__(self) -> None:
        if self.template is not None:
            self.command  # noqa: B018 - which checks it
            return
        for flag, value in (("--axis", self.axis), ("--set", self.given)):
            if value is not None:
                raise UsageError(f"{flag} {value}: only with --script")

    @property
    def command(self) -> Command:
        """The command that starts the script. Raises `UsageError` if it could not be started."""
        assert self.template is not None
        own, given = parse_own(self.axis or "", "--axis"), parse_set(self.given or "", "--set")
        return Command(self.template, own, given, where.folder())
