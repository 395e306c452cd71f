"""A user's script, which is tuned instead of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune.errors import UsageError
from autotune.space.command import Command, parse_own, parse_set
from autotune.space.models import where
from autotune.space.options.flag import as_path, checked, option
from autotune.space.presets import expanded


def _arguments(text: str, flag: str) -> str:
    if not text.strip():
        raise UsageError(f'{flag}: is empty; write "--eval_steps 5 --save_steps 5", or none of it')
    return text


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    # fmt: off
    template: str | None = option(
        "--script", expanded, "COMMAND",
        "Command of your own training script. autotune fills in {micro_batch}, {seq_len} and"
        " other axes, {out} (a scratch folder), and the files {deepspeed_config},"
        " {accelerate_config} and {training_args}. torchtitan:CONFIG and megatron, with further"
        " arguments, stand for the commands of these.", key="script")
    axis: str | None = option(
        "--axis", partial(checked, parse=parse_own), "AXIS",
        'Axis of your own for --script: "attn=sdpa,eager" fills in {attn}, and "n=2:8" {n}. Can be'
        " repeated.",
        type=list[str])
    given: str | None = option(
        "--set", partial(checked, parse=parse_set), "VALUE",
        "Fixed value for --script: lr=1e-4 fills in {lr}. Can be repeated.",
        type=list[str])
    phase_args: str | None = option(
        "--phase-args", _arguments, "ARGUMENTS",
        'Arguments with which --script evaluates and saves soon: "--eval_steps 5 --save_steps 5".'
        " The winner is launched once more with them, untimed, and its memory then counts, too."
        " Without them it waits for these phases; none: it does not.")
    model_config: Path | None = option(
        "--model-config", as_path, "FILE",
        "config.json of transformers that describes a script's model. It leaves out impossible"
        " degrees of parallelism, and improves predictions of memory and time.")
    # fmt: on

    def __post_init__(self) -> None:
        if self.template is not None:
            self.command  # noqa: B018 - which checks it
            return
        given = {
            "--axis": self.axis, "--set": self.given, "--phase-args": self.phase_args,
            "--model-config": self.model_config,
        }  # fmt: skip
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} {value}: only with --script")

    @property
    def command(self) -> Command:
        """The command that starts the script. Raises `UsageError` if it cannot start."""
        assert self.template is not None
        own, given = parse_own(self.axis or "", "--axis"), parse_set(self.given or "", "--set")
        command = Command(
            template=self.template, own=own, given=given, folder=where.folder(),
            phase_args=self.phase_args or "",
        )  # fmt: skip
        try:
            command.with_phases  # noqa: B018 - which checks it
        except UsageError as error:
            raise UsageError(str(error).replace("--script", "--phase-args", 1)) from error
        return command
