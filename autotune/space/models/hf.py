"""Models of transformers, by their config: of a folder or file, or one that is kept here.

Nothing is downloaded: weights are random, and a config has to be on the disk. transformers itself
is never imported here; `probes/models/hf.py` builds models from these recipes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.installed import missing
from autotune.space.models.defaults import (
    BLOCK_FLOATS,
    MICRO_BATCHES,
    Defaults,
    ModelRequest,
    shown_sizes,
)
from autotune.space.models.family import Family
from autotune.space.models.tasks import SAMPLES, SEEING, TASKS, guessed, samples

PREFIX = "hf:"
TINY = "-tiny"
FUSED = "mamba-ssm"
"""The value for fused kernels in a recipe."""

_DEPTHS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"),
    *("num_encoder_layers", "encoder_num_hidden_layers", "layers_block_type"),
)
"""Names of a config's depth, or of a list of its blocks; the first that it has counts."""
_OTHER_DEPTHS = ("num_decoder_layers", "decoder_layers", "decoder_num_hidden_layers")
"""Depths that are set with it."""
_PARTS = (
    *(("text_config",), ("encoder", "decoder")),
    *(("encoder_config", "decoder_config"), ("encoder_config",)),
)
"""Parts of a config that may have the depth in its place."""
_POSITIONS = ("max_position_embeddings", "n_positions")
_RELATIVE = ("t5", "mt5", "umt5", "longt5")
"""Types of model in which `n_positions` limits nothing."""
_EVEN = ("mamba", "falcon_mamba")
"""Types of model without attention, which loop over tokens without their kernels."""
_FIRST = ("first_k_dense_replace", "num_dense_layers")
"""So many first blocks have no experts."""
_OWN = "per_layer_config"
"""Values of some blocks that differ from the model's, by the block's number."""
_SHARED = "num_kv_shared_layers"
"""So many last blocks take keys and values of earlier ones; none if there are no earlier ones."""
_SOME = ("_layers", "_idxs", "_layer_ids", "_layer_indices")
"""Endings of lists of the blocks that are of one kind."""
_OF_SOUND = ("conv_", "tdnn_")
"""Lists with an entry for each layer before or after the blocks begin so."""
_SHORT = 64
_SCANS = {"mamba": 9, "falcon_mamba": 9, "mamba2": 12}
"""Bytes of bf16 a token and inner channel that a block keeps with the kernels of mamba-ssm. They
are for projection, convolution, scan and output. The kernels recompute the rest (their
selective_scan_interface.py and ssd_combined.py)."""
_SCAN_OUTER = 6
"""Bytes a token and channel: input and output of a norm."""
_KERNELS = ("mamba_ssm", "causal_conv1d")
"""Modules with these kernels; without them transformers computes the same in plain torch."""
_WITH_KERNEL = re.compile(r'_with_fallback\(\s*"\w+",\s*"(\w+)"')
"""Finds, in a model's source in transformers, the package of a function."""
_LOOP_BYTES = 14
"""Bytes in plain torch a token, inner channel and entry of the scanned state: three products in
fp32, and a factor of the output's weights."""
_CHUNK_BYTES = (12, 30)
"""The same for mamba2: a token, head and token of its chunk; and a token and inner channel."""
_PADDED = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm")
"""Types of model whose positions begin after the padding's."""


@cache
def kept() -> tuple[str, ...]:
    """Names of the configs in this package."""
    files = resources.files("autotune.space.models.ready").iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


def ready() -> tuple[str, ...]:
    """The same, with the name of a small twin of the same structure for each."""
    return tuple(full for name in kept() for full in (name, name + TINY))


class Hf(Family):
    counted = True

    def recipe(self, asked: ModelRequest) -> dict[str, Any]:
        """Config and task of the model that `--model` names. Raises UsageError if there is no such
        config, or it needs an option or a package."""
        for package in ("transformers", "accelerate", *(["peft"] if asked.lora else [])):
            if why := missing(package):
                flag = "--lora" if package == "peft" else f"--model {asked.model}"
                raise UsageError(f"{flag}: {why}")
        config, folder = _read(asked.model)
        if "auto_map" in config and not asked.trust_remote_code:
            raise UsageError(
                f"--model {asked.model}: its config comes with Python code; read it, then pass"
                " --trust-remote-code to run it"
            )
        left_out: list[str] = []
        sees = (asked.task or guessed(config)) == "image-text"
        if not sees and _places(config) == ("text_config",):
            config, left_out = _text_of(asked.model, config)
            if "vision_config" in left_out and asked.image_size is not None:
                raise UsageError(
                    f"--image-size {shown_sizes(asked.image_size)}: {asked.model} is tuned without"
                    f" images, its text model alone: they are known of {', '.join(SEEING)}; leave"
                    " it out"
                )
        task = asked.task or _task(asked.model, config)
        of_samples = samples(asked.model, task, config, asked.image_size)
        if asked.target_len is not None and task != "seq2seq":
            raise UsageError(
                f"--target-len {asked.target_len}: only for seq2seq models; {asked.model} is"
                f" trained as {task}"
            )
        return {
            "config": config,
            "task": task,
            "target_len": asked.target_len,
            "code": str(folder) if "auto_map" in config else "",
            "lora": None if asked.lora is None else asked.lora.recipe,
            "left_out": left_out,
            **of_samples,
            **({"kernels": _kernels(asked)} if config["model_type"] in _SCANS else {}),
        }

    def defaults(self, recipe: Mapping[str, Any], device_kind: str) -> Defaults:
        most = self.most_seq_len(recipe)
        usual = SAMPLES[recipe["task"]].lengths(recipe, device_kind)
        lengths = [n for n in usual if most is None or n <= most]
        return Defaults(
            depth=(_depth(recipe["config"]) or 1,),
            seq_len=tuple(lengths) or (most or 1,),
            micro_batch=MICRO_BATCHES[device_kind],
            vocab_size=0,
        )

    def lacks(self, recipe: Mapping[str, Any], axis: str, value: str) -> str:
        if axis == "loss" and value != "whole":
            return SAMPLES[recipe["task"]].whole_loss
        if axis == "float8" and value != "off" and recipe["lora"]:
            return "--lora freezes the layers that fp8 makes faster; leave one of them out"
        return missing("bitsandbytes") if axis == "base" and value in ("nf4", "int8") else ""

    def most_seq_len(self, recipe: Mapping[str, Any]) -> int | None:
        config = _stacks(recipe["config"])[0]
        if recipe["config"]["model_type"] in _RELATIVE:
            return None
        if (most := SAMPLES[recipe["task"]].most(config)) is not None:
            return most
        most = next((config[n] for n in _POSITIONS if isinstance(config.get(n), int)), None)
        if most is not None and recipe["config"]["model_type"] in _PADDED:
            return int(most - (config.get("pad_token_id") or 0) - 1)
        return most

    def wrong_length(self, recipe: Mapping[str, Any], seq_len: int) -> str:
        return SAMPLES[recipe["task"]].wrong(recipe, seq_len)

    def mixed(self, recipe: Mapping[str, Any], seq_len: int) -> dict[int, int]:
        images = recipe.get("images", ())
        if len(images) < 2:
            return {}
        return Counter(seq_len - images[-1]["tokens"] + each["tokens"] for each in images)

    def one_length(self, recipe: Mapping[str, Any]) -> str:
        return SAMPLES[recipe["task"]].one_length

    def check_depth(self, recipe: Mapping[str, Any], depth: int) -> None:
        config = recipe["config"]
        whole = _depth(config)
        if whole is None and depth != 1:
            raise UsageError(
                f"--depth {depth}: the depth of a {config['model_type']} cannot be set, its config"
                f" has none of {', '.join(_DEPTHS)}; leave --depth out"
            )

    def at_depth(self, recipe: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The recipe of the same model with `depth` blocks, in encoder and decoder alike. Lists
        with an entry for each block are cut, or go on as they began."""
        same = _depth(recipe["config"]) == depth
        return dict(recipe) if same else self.of_blocks(recipe, range(depth))

    def of_blocks(self, recipe: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
        return {**recipe, "config": _of_blocks(recipe["config"], places)}

    def kinds(self, recipe: Mapping[str, Any], depth: int) -> list[int]:
        stacks = _stacks(recipe["config"])
        lists = [each for of in stacks for each in _by_block(of).values()]
        chosen = [each for of in stacks for each in _some(of).values()]
        values = [
            [*(each[i % _period(each)] for each in lists), *(is_it(i) for is_it in chosen)]
            for i in range(depth)
        ]
        return [values.index(each) for each in values]

    def parts(self, recipe: Mapping[str, Any]) -> list[tuple[int, ...]]:
        """Each kind of block; or a whole period, if that is fewer blocks to trace."""
        kinds = self.kinds(recipe, _depth(recipe["config"]) or 1)
        period, different = _period(kinds), sorted(set(kinds))
        if len(different) * (len(different) + 2) <= 3 * period:
            return [(kind,) for kind in different]
        return [tuple(range(period))]

    def looked_at(self, recipe: Mapping[str, Any], seq_lens: Sequence[int]) -> tuple[int, ...]:
        even = recipe["config"]["model_type"] in _EVEN and min(seq_lens) > _SHORT
        return (_SHORT,) if even else tuple(seq_lens)

    def untraced(self, recipe: Mapping[str, Any], device_kind: str) -> str:
        if not _is_fused(recipe, device_kind):
            return ""
        kind = recipe["config"]["model_type"]
        return f"kernels of a {kind} keep less than the loops that they stand for"

    def block_floats(self, recipe: Mapping[str, Any], device_kind: str) -> float:
        config = recipe["config"]
        inner = _SCANS.get(config["model_type"])
        if inner is None:
            return BLOCK_FLOATS
        width = float(config["hidden_size"])
        wide = float(config.get("intermediate_size") or config.get("expand", 2) * width)
        if _is_fused(recipe, device_kind):
            return (inner * wide / width + _SCAN_OUTER) / 2
        if config["model_type"] in _EVEN:
            a_token = _LOOP_BYTES * wide * config.get("state_size", 16)
        else:
            of_chunk, of_channel = _CHUNK_BYTES
            heads = config.get("num_heads", 128)
            a_token = of_chunk * heads * config.get("chunk_size", 256) + of_channel * wide
        return max(BLOCK_FLOATS, float(a_token) / width / 2)


def _kernels(asked: ModelRequest) -> str:
    """The kernels that a GPU runs: those of mamba-ssm, or torch's."""
    there = asked.fused or all(find_spec(name) is not None for name in _KERNELS)
    return FUSED if there else "torch"


def replaced_kernels(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """Packages whose kernels transformers runs if they are installed; a trace runs transformers'
    own code instead. None if closed forms cover the kernels.

    They are read from the model's source in transformers, which is not imported.
    """
    kind = recipe.get("config", {}).get("model_type", "")
    library = find_spec("transformers")
    if not kind or kind in _SCANS or library is None:
        return ()
    name = kind.removesuffix("_text").replace("-", "_")
    for folder in library.submodule_search_locations or ():
        source = Path(folder) / "models" / name / f"modeling_{name}.py"
        if source.is_file():
            return tuple(sorted(set(_WITH_KERNEL.findall(source.read_text(encoding="utf-8")))))
    return ()


def _is_fused(recipe: Mapping[str, Any], device_kind: str) -> bool:
    # Older studies, without the entry, assumed fused kernels.
    scans = recipe["config"]["model_type"] in _SCANS and device_kind != "cpu"
    return scans and recipe.get("kernels", FUSED) == FUSED


def _read(model: str) -> tuple[dict[str, Any], Path | None]:
    """The config that `model` names, and its folder."""
    if not model.startswith(PREFIX):
        return _kept(model), None
    name = model.removeprefix(PREFIX)
    if not name.strip():
        raise UsageError(f"--model {model}: no path given; write hf:PATH")
    path = Path(name)
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"), object_hook=_number)
    except FileNotFoundError:
        raise UsageError(f"--model {model}: {why_missing(name, path)}") from None
    except OSError as error:
        raise UsageError(f"--model {model}: {file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--model {model}: {file} is not JSON: {error!s:.100}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(f"--model {model}: {file} is not a config of transformers: no model_type")
    return config, file.parent.absolute()


def _number(value: dict[str, Any]) -> Any:
    """A number that is not finite, as transformers 5 saves it; other objects as they are."""
    return float(str(value["__float__"])) if value.keys() == {"__float__"} else value


def why_missing(name: str, path: Path) -> str:
    """Why there is no config of the model `name` at `path`, and how to get one."""
    if path.is_dir():
        return f"there is no config.json in {path}"
    if path.suffix == ".json" or name.startswith((".", "/", "~")):
        return "no such file or folder"
    return (
        f"no such file or folder, and nothing is downloaded; save the config first: python -c"
        f" \"from transformers import AutoConfig as C; C.from_pretrained('{name}')"
        ".save_pretrained('DIR')\", then --model hf:DIR"
    )


def _kept(model: str) -> dict[str, Any]:
    name = model.removesuffix(TINY)
    ready = resources.files("autotune.space.models.ready")
    text = (ready / f"{name}.json").read_text(encoding="utf-8")
    kept = json.loads(text)
    config: dict[str, Any] = kept["config"]
    return config | kept["tiny"] if model.endswith(TINY) else config


def _text_of(model: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The text model's config in one for several media, and the names of its other parts."""
    text: dict[str, Any] = config["text_config"]
    if "auto_map" in config or not isinstance(text.get("model_type"), str):
        raise UsageError(
            f"--model {model}: its config has parts for images or sound; save its text_config as"
            " a file, and write --model hf:FILE --task causal"
        )
    others = [name for name, part in config.items()
              if isinstance(part, dict) and name.endswith("_config") and name != "text_config"
              and "model_type" in part]  # fmt: skip
    tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
    return {"architectures": ["ForCausalLM"], **tied, **text}, others


def _task(model: str, config: Mapping[str, Any]) -> str:
    if (task := guessed(config)) is not None:
        return task
    raise UsageError(
        f"--model {model}: its config does not name its task; pass --task, one of"
        f" {', '.join(TASKS)}"
    )


def _depth(config: Mapping[str, Any]) -> int | None:
    found = [value for name in _DEPTHS if (value := _stacks(config)[0].get(name)) is not None]
    return next((len(of) if isinstance(of, list) else int(of) for of in found), None)


def _places(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the parts of a config that have the depth in its place: that of the text, in one
    for several media, or encoder and decoder."""
    if any(config.get(name) is not None for name in _DEPTHS):
        return ()
    return next((names for names in _PARTS if all(
        isinstance(config.get(name), dict) for name in names
    )), ())  # fmt: skip


def _stacks(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config, or its parts that have the depth."""
    places = _places(config)
    return [of for name in places for of in _stacks(config[name])] or [config]


def _of_blocks(config: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """The same config with these blocks of each stack."""
    if parts := _places(config):
        return {**config, **{name: _of_blocks(config[name], places) for name in parts}}
    made = dict(config)
    if _depth(config) is not None:
        for name, value in _by_block(config).items():
            each = [value[place % _period(value)] for place in places]
            made[name] = "".join(each) if isinstance(value, str) else each
        if own := config.get(_OWN):
            made[_OWN] = {str(i): own[key] for i, n in enumerate(places) if (key := str(n)) in own}
        for name, is_it in _some(config).items():
            found = [i for i, place in enumerate(places) if is_it(place)]
            made[name] = len(found) if name in _FIRST else found
        for name in (*_DEPTHS, *_OTHER_DEPTHS):
            if isinstance(made.get(name), int):
                made[name] = len(places)
        if made.get(_SHARED) and len(places) <= made[_SHARED]:
            made[_SHARED] = 0
    return made


def _some(config: Mapping[str, Any]) -> dict[str, Callable[[int], bool]]:
    """Whether a block is of one kind, by the name of the list or number that says so."""
    whole = _depth(config) or 1
    lists = {
        name: lambda place, value=value: place % whole in value
        for name, value in config.items()
        if name.endswith(_SOME) and isinstance(value, list) and _are_places(value)
    }
    firsts = {name: config[name] for name in _FIRST if isinstance(config.get(name), int)}
    return {**lists, **{name: range(first).__contains__ for name, first in firsts.items()}}


def _are_places(value: list[Any]) -> bool:
    return all(type(each) is int for each in value) and value == sorted(set(value))


def _by_block(config: Mapping[str, Any]) -> dict[str, list[Any] | str]:
    """Lists that have an entry for each block, and patterns that have a letter for each."""
    whole = _depth(config) or 1
    lists = {
        name: value
        for name, value in config.items()
        if (isinstance(value, list) or (name.endswith("_pattern") and isinstance(value, str)))
        and len(value) == whole
        and name != "architectures"
        and name not in _some(config)
        and not name.startswith(_OF_SOUND)
    }
    if not lists and config.get("model_type", "").startswith("gemma3"):
        # transformers' default.
        pattern = config.get("sliding_window_pattern") or 6
        kinds = ["sliding_attention"] * (pattern - 1) + ["full_attention"]
        return {"layer_types": [kinds[i % pattern] for i in range(whole)]}
    return lists


def _period(kinds: Sequence[Any]) -> int:
    """The least number of entries after which they repeat."""
    return next(n for n in range(1, len(kinds) + 1) if all(
        kind == kinds[i % n] for i, kind in enumerate(kinds)
    ))  # fmt: skip
