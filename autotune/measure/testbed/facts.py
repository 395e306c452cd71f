"""Facts that all candidates of a model share, as shown to users."""

from __future__ import annotations

from dataclasses import asdict

from autotune.device.device import Device
from autotune.space.axes import AXES
from autotune.space.mix import LengthMix
from autotune.space.models import hf
from autotune.space.models.counted import CountedShape
from autotune.space.models.defaults import GptTraits, shown_sizes
from autotune.space.options import Options
from autotune.space.space import LEFT_OUT, Fixed
from autotune.space.workload import Workload


def facts(options: Options, workload: Workload, device: Device, dtype_why: str) -> list[Fixed]:
    """Facts about model, arithmetic and device."""
    if workload.shapes:
        sizes = [] if workload.family == "factory" else [
            Fixed("width", str(workload.shapes[0].width), "the model's"),
            Fixed("outputs", str(workload.vocab_size), "the model's"),
        ]  # fmt: skip
        sizes += [
            Fixed("parameters", ", ".join(_count(s) for s in workload.shapes), "counted"),
            *_task(options, workload, device.kind),
        ]  # fmt: skip
    else:
        width_rule = f"{options.model.traits.aspect_ratio} x depth"
        width_why = "--gpt" if options.model.width else f"{width_rule}, the gpt family's rule"
        vocabulary_why = f"default on {device.kind}"
        if options.model.vocab_size:
            vocabulary_why = "--gpt" if "vocab_size" in options.model.said else "--preset"
        sizes = [
            Fixed("width", str(options.model.width or width_rule), width_why),
            Fixed("vocab_size", str(workload.vocab_size), vocabulary_why),
            *(Fixed(name, str(value), "--gpt" if name in options.model.said else "--preset")
              for name, value in workload.recipe.items()
              if name != "aspect_ratio" and value != asdict(GptTraits())[name]),
        ]  # fmt: skip
    return [
        Fixed("model", options.model.name, "--model"),
        *sizes,
        Fixed("dtype", workload.dtype, dtype_why),
        *([] if (mix := workload.length_mix) is None else [_mix(mix, options)]),
        Fixed("device", device.infos[0].name, device.why),
    ]


def _mix(mix: LengthMix, options: Options) -> Fixed:
    flag = "--length-mix" if options.space.length_mix else "--image-size"
    first, last = mix.lengths[0], mix.lengths[-1]
    what = f"{mix.samples} samples of {first} to {last} tokens, {mix.mean(last):.0f} in the mean"
    return Fixed("lengths", what, f"{flag} {mix.file}")


def _count(shape: CountedShape) -> str:
    n = shape.parameters
    return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.3g} M"


def _task(options: Options, workload: Workload, device_kind: str) -> list[Fixed]:
    if "task" not in workload.recipe:
        return []
    task_why = "--task" if options.model.task else "the model's"
    fixed = [Fixed("task", workload.recipe["task"], task_why)]
    if workload.recipe["task"] == "seq2seq":
        said = options.model.target_len
        fixed.append(
            Fixed("target_len", str(said), "--target-len") if said
            else Fixed("target_len", "a quarter of seq_len", "default, as T5's; --target-len")
        )  # fmt: skip
    if token := workload.recipe.get("token"):
        fixed.append(Fixed("token", token, "the model's"))
    if images := workload.recipe.get("images"):
        sizes = shown_sizes(each["size"] for each in images)
        takes = ", ".join(str(each["tokens"]) for each in images)
        why = "--image-size" if options.model.image_size else "default; --image-size"
        fixed.append(Fixed("images", f"{sizes}, of {takes} tokens", why))
    if kernels := workload.recipe.get("kernels"):
        why = "installed, or assumed to be"
        if device_kind == "cpu":
            kernels, why = "torch", "a CPU has no others"
        elif kernels != hf.FUSED:
            why = f"{hf.FUSED} is not installed, whose kernels hold less and are faster"
        fixed.append(Fixed("kernels", kernels, why))
    if options.model.lora is not None:
        stepped = ", ".join(f"{shape.trainable / 1e6:.2f} M" for shape in workload.shapes)
        fixed.append(Fixed("lora", f"{options.model.lora}: {stepped} trained", "--lora"))
    if left_out := workload.recipe.get("left_out"):
        fixed.append(Fixed(LEFT_OUT, ", ".join(left_out), "only the text model is tuned"))
    return fixed


def usual_optimizer(workload: Workload, depth: int) -> Fixed:
    """The optimizer, if the user chose none."""
    if workload.shape(depth).own_optimizer:
        return Fixed("optimizer", "own", "the model's")
    return Fixed("optimizer", AXES["optimizer"].plain, "default")
