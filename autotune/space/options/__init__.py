"""Every option of a study, declared once.

Options are in groups: model, space, limits, devices and so on, one frozen dataclass each. A field
of a group holds the option's value. Its `Flag` has the flag, the help, and the function that reads
its text. Options of axes come from the rows of `space.axes.AXES`. The command line, the TOML
table, the manifest and `--resume` all use these.

Each group checks itself; `Options` checks combinations of groups. Nothing here looks at a device:
values that depend on one stay `None` until the testbed chooses them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from autotune.errors import UsageError
from autotune.space.axes import AXES, SCRIPT_AXES
from autotune.space.options.devices import ClusterOptions, DeviceOptions, Parallel
from autotune.space.options.flag import Flag, flags_of, listed, text_of
from autotune.space.options.limits import LimitOptions
from autotune.space.options.model import ModelOptions
from autotune.space.options.script import ScriptOptions
from autotune.space.options.search import OutputOptions, SearchOptions
from autotune.space.options.space import AXIS_FLAGS, SpaceOptions
from autotune.units import gib

__all__ = ["FLAGS", "GROUPS", "Flag", "Options", "Parallel", "SpaceOptions", "text_of"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """One study as the user asked for it. `None` means: choose what fits the device."""

    limits: LimitOptions = field(default_factory=LimitOptions)
    devices: DeviceOptions = field(default_factory=DeviceOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    script: ScriptOptions = field(default_factory=ScriptOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    space: SpaceOptions = field(default_factory=SpaceOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    output: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        if self.script.template is not None:
            self._check_script()
        for name in () if self.script.template else SCRIPT_AXES:
            if values := self.space.axes.get(name):
                raise UsageError(f"{AXES[name].flag} {listed(values)}: only with --script")
        self._check_unlike()
        elsewhere = self.devices.recorded or self.devices.emulated
        if elsewhere and self.cluster.launch is not None:
            raise UsageError(
                f"--launch {self.cluster.launch}: {self.devices.device} needs no node; leave it"
                " out"
            )

    def _check_unlike(self) -> None:
        """Refuses options that micro-batches by rank exclude or need."""
        sizes, axis = self.limits.capacity_bytes, AXES["micro_batch_per_rank"]
        if (vectors := self.space.axes.get(axis.name)) is None:
            if isinstance(sizes, tuple):
                raise UsageError(
                    f"--capacity {listed(tuple(map(gib, sizes)))}: several sizes only with"
                    f" {axis.flag}; write one"
                )
            return
        flag = f"{axis.flag} {listed(vectors)}"
        if self.devices.recorded or self.cluster.launch or self.devices.parallel != 1:
            raise UsageError(
                f"{flag}: only for one group on the devices of this machine; leave out --launch,"
                " --parallel and a recording"
            )

    def _check_script(self) -> None:
        """Refuses options that a script decides itself."""
        asked = self.flat()
        own = ("task", "target_len", "image_size", "lora", "trust_remote_code", "preset", "gpt")
        for key in (*own, "routing"):
            if asked[key] not in (None, False):
                raise UsageError(f"{FLAGS[key].name}: the script has its own; leave it out")
        for key in ("eval_batch", "save"):
            if asked[key] is not None:
                raise UsageError(f"{FLAGS[key].name}: is for models; use --phase-args")
        if self.model.name != "gpt":
            raise UsageError(
                f"--model {self.model.name}: --script has its own model; leave one of them out"
            )
        if self.devices.recorded:
            raise UsageError(
                f"--device {self.devices.device}: a recording cannot run a script; use --device"
                " cpu or cuda"
            )
        for key in ("launch", "nodes", "interface"):
            if asked[key] is not None:
                raise UsageError(
                    f"{FLAGS[key].name} {asked[key]}: scripts run on this machine only; remove"
                    f" {FLAGS[key].name}"
                )
        if self.devices.parallel != 1:
            raise UsageError(
                f"--parallel {self.devices.parallel}: scripts are launched one at a time; leave"
                " it out"
            )
        if self.space.length_mix is not None:
            raise UsageError(
                f"--length-mix {self.space.length_mix}: a script has its own data; leave it out"
            )

    @property
    def subject(self) -> str:
        """The model or the script, to show."""
        return self.model.name if self.script.template is None else self.script.command.name

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Options from values by their keys.

        Raises:
            UsageError: options exclude each other.
            KeyError: unknown option.
        """
        if values.get("script") is not None and values.get("objective", "flops") == "flops":
            # The FLOPs of a script are unknown. Tokens order its candidates in the same way.
            values["objective"] = "tokens_per_s"
        if values.get("dtype") == "fp8":  # beside products in bf16
            values |= {"dtype": "bf16", "float8": values.get("float8") or ("tensorwise",)}
        axes = {axis: values.pop(key, None) for key, (axis, _) in AXIS_FLAGS.items()}
        given: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
        given["space"]["axes"] = {axis: of for axis, of in axes.items() if of is not None}
        places = {key: (group, name) for group, found in _FIELDS.items()
                  for key, (name, _) in found.items()}  # fmt: skip
        for key, value in values.items():
            group, name = places[key]
            given[group][name] = value
        return cls(**{group: of(**given[group]) for group, of in _GROUPS.items()})

    def flat(self) -> dict[str, Any]:
        """The value of every option, by its key."""
        values = {
            key: getattr(getattr(self, group), name)
            for group, found in _FIELDS.items() for key, (name, _) in found.items()
        }  # fmt: skip
        return values | {key: self.space.axes.get(axis) for key, (axis, _) in AXIS_FLAGS.items()}

    def but(self, **changes: Any) -> Options:
        """The same with other values of the options with these keys. Raises as `of`."""
        return self.of(**(self.flat() | changes))

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Options:
        """Options from `texts` by their keys, as on a command line. Raises UsageError if an option
        does not accept its text, or options exclude each other."""
        return cls.of(**{key: FLAGS[key].read(text, FLAGS[key].name)
                         for key, text in texts.items()})  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """These options by their keys as JSON types, for a manifest."""
        plain: dict[str, Any] = json.loads(json.dumps(self.flat(), default=_plain))
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Options:
        """The options that `to_json` wrote, without the folder, checked as in `from_texts`. Raises
        UsageError if this version does not know an option, or does not accept its value."""
        texts = {}
        for key, value in plain.items():
            if key not in FLAGS:
                raise UsageError(f"{key!a:.80} is not an option of this version")
            if key != "out" and value is not None:
                texts[key] = text_of(value) + "s" * (key == "budget_s")
        return cls.from_texts(texts)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


_GROUPS: dict[str, Any] = {each.name: each.default_factory for each in fields(Options)}
_FIELDS = {group: flags_of(of) for group, of in _GROUPS.items()}
_OF_AXES: dict[str, dict[str, Flag]] = {"space": {}, "script": {}}
for _key, (_axis, _flag) in AXIS_FLAGS.items():
    _OF_AXES["script" if _axis in SCRIPT_AXES else "space"][_key] = _flag
GROUPS: dict[str, dict[str, Flag]] = {
    group: (_OF_AXES["space"] if group == "space" else {})
    | {key: flag for key, (_, flag) in found.items()}
    | _OF_AXES.get(group, {})
    for group, found in _FIELDS.items()
}
"""Flags by group and key, in the order of `--help`; axes come first in the group of the space."""
FLAGS: dict[str, Flag] = {key: flag for group in GROUPS.values() for key, flag in group.items()}
"""By the keys of the options: their names in Python, in a manifest and in best.json."""
