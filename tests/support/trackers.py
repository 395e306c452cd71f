"""The content of trackers' files, read by the trackers' own code."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.result.loggers.runs import CURVE

BLOCK = 32768


@dataclass(frozen=True)
class Tracked:
    """One run."""

    axes: dict[str, Any]
    verdict: str
    figures: dict[str, float]
    step_times: dict[int, float]
    reason: str


def of_tensorboard(folder: Path) -> dict[str, Tracked]:
    """By name, what TensorBoard itself reads in `folder`."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    found = {}
    for place in folder.iterdir():
        events = EventAccumulator(str(place))
        events.Reload()
        told = events.PluginTagToContent("hparams")
        start = metadata.parse_session_start_info_plugin_data(
            told[metadata.SESSION_START_INFO_TAG]
        )
        axes = {name: value.string_value or value.number_value
                for name, value in start.hparams.items()}  # fmt: skip
        experiment = metadata.parse_experiment_plugin_data(told[metadata.EXPERIMENT_TAG])
        figures = {each.name.tag: _values(events, each.name.tag)[0]
                   for each in experiment.metric_infos}  # fmt: skip
        times = _values(events, CURVE) if CURVE in events.Tags()["tensors"] else {}
        texts = [each for each in events.Tags()["tensors"] if each.startswith("reason")]
        reason = events.Tensors(texts[0])[0].tensor_proto.string_val[0].decode() if texts else ""
        found[place.name] = Tracked(axes, axes.pop("verdict"), figures, times, reason)
    return found


def _values(events: Any, tag: str) -> dict[int, float]:
    from tensorboard.util import tensor_util

    return {each.step: float(tensor_util.make_ndarray(each.tensor_proto))
            for each in events.Tensors(tag)}  # fmt: skip


def of_wandb(folder: Path) -> dict[str, Tracked]:
    """By name, what the messages of Weights & Biases say in `folder`."""
    found = {}
    for path in folder.glob("offline-run-*/*.wandb"):
        name = verdict = reason = ""
        config: dict[str, Any] = {}
        summary: dict[str, Any] = {}
        times = {}
        for record in _records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name, reason = record.run.display_name, record.run.notes
                [verdict] = record.run.tags
                config |= _items(record.run.config.update)
            elif kind == "history":
                items = _items(record.history.item)
                times[items["_step"]] = items[CURVE]
            elif kind == "summary":
                summary |= _items(record.summary.update)
        axes = {key: value for key, value in config.items() if not key.startswith("_")}
        figures = {key: value for key, value in summary.items()
                   if not key.startswith("_") and key not in ("verdict", CURVE)}  # fmt: skip
        found[name] = Tracked(axes, verdict, figures, times, reason)
    return found


def _items(messages: Any) -> dict[str, Any]:
    return {m.key or ".".join(m.nested_key): json.loads(m.value_json) for m in messages}


def _records(path: Path) -> Iterator[Any]:
    """A file is a log of LevelDB's format after 7 bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield messages.Record.FromString(parts)
            parts = b""


READERS: dict[str, Callable[[Path], dict[str, Tracked]]] = {
    "tensorboard": of_tensorboard, "wandb-offline": of_wandb,
}  # fmt: skip
"""By the name of the logger."""
