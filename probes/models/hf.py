"""Models of transformers, from a config: random weights, nothing downloaded.

Batches and losses follow the recipe's task. B: samples, T: seq_len, U: target_len.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from difflib import get_close_matches
from functools import cache, partial
from typing import Any
from unittest.mock import patch

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import init
from torch.nn.utils.parametrize import is_parametrized

from autotune.wire.emulated import emulating
from autotune.wire.ranks import ModelSpec, Rows
from autotune.wire.recipe import LORA_ALPHA
from probes import recompute
from probes.faults import UnsupportedError
from probes.models import (
    Batch,
    FamilyModels,
    chunked,
    in_lists,
    past,
    quantized,
    samples,
    within,
)

_ALIKE = 0.9
"""The least similarity of a misspelled name in a config and the right one."""
MASKED_SHARE = 0.15
"""Share of tokens that masked models predict. Source: BERT (arXiv 1810.04805), section 3.1."""
_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "masked": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "ctc": "AutoModelForCTC",
    "image-text": "AutoModelForImageTextToText",
}
_CLASSIFIES = ("classification", "image-classification")


class HfModels(FamilyModels):
    """Models of transformers."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        """Objects that transformers only holds by weak references."""
        self._takes_mask = True
        """Whether the latest model takes an attention_mask."""
        self._packs = False
        """Whether the latest model separates samples by their positions."""
        self._config: Any = None
        """The config of the latest model."""
        self._head: ChunkedHead | None = None
        """The head of the latest model, if its loss is chunked."""

    def import_library(self) -> None:
        """Import transformers without torchao, which is for quantized weights. That takes two
        seconds and asks a GPU, after which no rank can be forked."""
        with _hidden("torchao"):
            import transformers
            import transformers.modeling_utils

            assert transformers.modeling_utils  # the package loads its modules lazily

    def make(self, spec: ModelSpec) -> nn.Module:
        """The module in torch's default dtype, whatever the config says: the engine chooses it."""
        try:
            self.import_library()
            import transformers
        except ImportError as error:
            raise UnsupportedError(f"transformers cannot be imported: {error}") from error
        self._config = config = copy.deepcopy(_config(spec))  # transformers writes into it
        made = getattr(transformers, _CLASSES[spec.recipe["task"]])
        trusted = bool(spec.recipe["code"])  # --trust-remote-code was given, or there is no code
        lora = spec.recipe["lora"]
        chosen = {} if spec.attention == "auto" else {"attn_implementation": spec.attention}
        # Adapters replace modules, which tensors without data do not allow.
        faking = lora is not None and detect_fake_mode() is not None
        device = torch.get_default_device()
        with ExitStack() as stack:
            if faking:
                stack.enter_context(unset_fake_temporarily())
            if faking or spec.quantized:
                stack.enter_context(torch.device("meta"))
            try:
                module: nn.Module = made.from_config(
                    config,
                    dtype=torch.get_default_dtype(),
                    trust_remote_code=trusted,
                    **chosen,
                )
            except (
                ValueError, KeyError, TypeError, AttributeError, ImportError, AssertionError
            ) as error:  # fmt: skip
                axes = ("attention",) if chosen else ()
                if type(config) not in made._model_mapping and "auto_map" not in vars(config):
                    raise UnsupportedError(
                        f"transformers has no {made.__name__} for {config.model_type}; name"
                        " another --task, or feed it with --model factory:FILE:make"
                    ) from error
                raise UnsupportedError(f"transformers: {_first_line(error)}", *axes) from error
            except IndexError as error:
                reason = "transformers cannot draw its weights where DeepSpeed shards them"
                raise UnsupportedError(reason, "zero_stage") from error
            takes = inspect.signature(module.forward).parameters
            self._takes_mask = "attention_mask" in takes
            code = inspect.getsource(sys.modules[type(module).__module__])
            self._packs = "position_ids" in takes and "create_causal_mask" in code
            if spec.checkpointing != "none":
                _checkpoint(module, spec.checkpointing)
            if lora is not None:
                self.linear = quantized.linear(module)
                if spec.quantized:
                    quantized.replace(module, spec.base)
                module = _adapted(module, **lora)
            if config.model_type == "llava":
                _freeze_unused(module, config.vision_feature_layer)
        module._drawn_by = _drawing(module)  # type: ignore[assignment]
        if spec.quantized and device.type != "meta":
            quantized.fill(module, device, partial(self.draw, module, within=False))
            self.tie(module)
        elif faking:
            module.to_empty(device="cpu")
        self._head = ChunkedHead(module, spec.recipe["task"]) if spec.loss == "chunked" else None
        return module.train()

    def batch(
        self, spec: ModelSpec, micro_batch: int, seq_len: int, generator: torch.Generator | None
    ) -> Batch:
        """Random tokens, int64: `input_ids` (B, T), and `labels` by the task: (B, T), (B, U), or
        (B) for classification. Images and sound are those of `samples`."""
        whole = _config(spec)
        config = whole.get_text_config()

        def tokens(length: int) -> Tensor:
            # Some models summarize a sample at its first padding: there is none.
            return torch.randint(
                min(10, config.vocab_size - 1), config.vocab_size, (micro_batch, length),
                generator=generator,
            )  # fmt: skip

        match spec.recipe["task"]:
            case "image-classification":
                return samples.images(config, micro_batch, generator)
            case "speech-seq2seq":
                return samples.speech(config, micro_batch, tokens(seq_len), generator)
            case "ctc":
                return samples.sound(config, micro_batch, seq_len, tokens, generator)
        ids_bt = tokens(seq_len)
        match spec.recipe["task"]:
            case "causal":
                return {"input_ids": ids_bt, "labels": ids_bt.clone()}
            case "seq2seq":
                return {"input_ids": ids_bt, "labels": tokens(target_len(spec, seq_len))}
            case "masked":
                shown = torch.rand(ids_bt.shape, generator=generator) >= MASKED_SHARE
                return {"input_ids": ids_bt, "labels": ids_bt.masked_fill(shown, chunked.IGNORED)}
            case "classification":
                labels_b = torch.randint(config.num_labels, (micro_batch,), generator=generator)
                return {"input_ids": ids_bt, "labels": labels_b}
            case "image-text":
                lengths = [seq_len] * micro_batch
                return samples.images_and_text(spec, whole, ids_bt, lengths, generator)
        raise UnsupportedError(
            f"task {spec.recipe['task']} is not known to this version of the probes"
        )

    def masked(self, spec: ModelSpec, batch: Batch, lengths: Sequence[int]) -> Batch:
        """`batch` with an `attention_mask` (B, T) if the model takes one. Labels past an end do
        not count."""
        config = _config(spec).get_text_config()
        past_bt = past(lengths, batch["input_ids"].shape[1])
        if spec.recipe["task"] == "image-text":
            seeded, ids_bt = torch.Generator().manual_seed(0), batch["input_ids"]
            batch = samples.images_and_text(spec, _config(spec), ids_bt, lengths, seeded)
        found = batch | {"input_ids": batch["input_ids"].masked_fill(past_bt, config.pad_token_id)}
        if spec.recipe["task"] == "seq2seq":
            said = [target_len(spec, length) for length in lengths]
            past_bu = past(said, batch["labels"].shape[1])
            found["labels"] = batch["labels"].masked_fill(past_bu, chunked.IGNORED)
        elif spec.recipe["task"] != "classification":
            found["labels"] = batch["labels"].masked_fill(past_bt, chunked.IGNORED)
        if self._takes_mask:
            found["attention_mask"] = (~past_bt).long()
        return found

    def packed(self, spec: ModelSpec, batch: Batch, rows: Rows) -> Batch:
        """`batch` with `position_ids` (B, T) that begin anew with each sample. transformers makes
        a mask from them, or calls flash attention for a single row.

        Source: transformers.masking_utils.find_packed_sequence_indices, and
        modeling_flash_attention_utils._is_packed_sequence, which takes one row.
        """
        if spec.recipe["task"] != "causal" or not self._packs:
            raise UnsupportedError("this model of transformers takes no packed samples", "pack")
        ids_bt = batch["input_ids"]
        _, position_bt, last_bt = within(rows, ids_bt.shape[1])
        # A label belongs to the token before it, so the first of a sample does not count.
        labels_bt = batch["labels"].masked_fill(position_bt == 0, chunked.IGNORED)
        past_bt = last_bt & last_bt.roll(1, dims=1)
        found = {
            "input_ids": ids_bt,
            "labels": labels_bt.masked_fill(past_bt, chunked.IGNORED),
            "position_ids": position_bt,
        }
        if spec.attention == "flash_attention_2":
            return {name: each.reshape(1, -1) for name, each in found.items()}
        return found

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(_as_with_data(batch))
            if _is_without_data(batch):
                batch = stack.enter_context(samples.without_data(model, batch))
            if self._head is not None:
                return self._head.loss(model, batch)
            if "input_values" in batch:
                config: Any = self._config
                logits_btv = model(input_values=batch["input_values"]).logits
                return samples.ctc_loss(config, logits_btv, batch["labels"])
            mean: Tensor = model(**batch).loss
            return mean

    def sizes(self, spec: ModelSpec, module: nn.Module) -> tuple[int, int]:
        config = _config(spec).get_text_config()
        classifies = spec.recipe["task"] in _CLASSIFIES
        outputs = config.num_labels if classifies else config.vocab_size
        first = (p.shape[-1] for p in module.parameters() if p.dim() >= 2)
        return int(getattr(config, "hidden_size", 0) or next(first)), int(outputs)

    def units(self, module: nn.Module) -> Iterator[nn.Module]:
        """The blocks that the model itself wants whole, without those that share a parameter: a
        tied embedding belongs to no block. Without such names, the members of its lists."""
        names = set(getattr(module, "_no_split_modules", None) or ())
        listed = set() if names else set(in_lists(module))
        shared = _shared(module)
        found: set[nn.Module] = set()

        def walk(parent: nn.Module) -> Iterator[nn.Module]:
            for child in parent.children():
                mine = {id(parameter) for parameter in child.parameters()}
                named = type(child).__name__ in names or child in listed
                is_unit = named and mine and not mine & shared
                if is_unit and child not in found:
                    found.add(child)
                    yield child
                else:
                    yield from walk(child)

        yield from walk(module)

    def draw(self, module: nn.Module, unit: nn.Module, *, within: bool = True) -> None:
        """Have transformers draw the weights, by the model within `module` that has the part."""
        parts = _inside_out(unit) if within else [unit]
        for part in parts:
            adapted: Any = part
            if is_parametrized(part, "weight"):  # as by a norm: transformers draws a copy
                with torch.no_grad():
                    adapted.weight = init.kaiming_uniform_(
                        torch.empty_like(adapted.weight), math.sqrt(5)
                    )
            owner = module._drawn_by.get(part, module)  # type: ignore[operator, union-attr]
            owner._initialize_weights(part)
            if hasattr(part, "reset_lora_parameters"):
                for name in adapted.lora_A:
                    adapted.reset_lora_parameters(name, True)

    def tie(self, module: nn.Module) -> None:
        """Tie parameters again."""
        module.tie_weights()  # type: ignore[operator]

    @contextmanager
    def sharded(self, config: dict[str, Any]) -> Iterator[None]:
        """A context in which DeepSpeed shards a model while it is made. It is transformers' own
        way: inside `deepspeed.zero.Init` it would draw weights of shards."""
        from transformers.integrations.deepspeed import HfDeepSpeedConfig

        self._kept.append(HfDeepSpeedConfig(config))  # type: ignore[no-untyped-call]
        yield

    def is_block_weight(self, name: str) -> bool:
        """Blocks are in lists, so their number is in the name."""
        return re.search(r"\.\d+\.", name) is not None


FAMILY = HfModels()


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """A context in which `package` cannot be imported, unless it was before."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


def _drawing(module: nn.Module) -> dict[nn.Module, nn.Module]:
    """Parts of models within `module` whose weights are drawn in another way, as a vision tower's
    are; with that model."""
    own = module._init_weights.__func__  # type: ignore[union-attr]
    within = [each for each in module.modules() if hasattr(each, "_initialize_weights")]
    others: list[Any] = [each for each in within if each._init_weights.__func__ is not own]  # type: ignore[union-attr]
    return {part: other for other in others for part in other.modules()}


def _adapted(module: nn.Module, rank: int, targets: list[str], dropout: float = 0.0) -> nn.Module:
    """`module` with low-rank adapters; only these are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UnsupportedError(f"--lora: peft cannot be imported: {error}") from error
    config = LoraConfig(
        r=rank, lora_alpha=LORA_ALPHA * rank, lora_dropout=dropout,
        target_modules=targets or "all-linear",
    )  # fmt: skip
    try:
        # Adapters in the model's own dtype: engines shard one dtype at a time.
        adapted: nn.Module = get_peft_model(module, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise UnsupportedError(f"peft: {_first_line(error)}") from error
    return adapted


def _freeze_unused(module: nn.Module, taken: int | list[int]) -> None:
    """Freeze what LLaVA's vision tower has after the last layer of which it takes states: no
    gradient comes there, and data parallelism would wait for it."""
    tower: Any = next(each for each in module.modules() if hasattr(each, "vision_tower"))
    seeing = getattr(tower.vision_tower, "vision_model", tower.vision_tower)
    layers = seeing.encoder.layers
    used = max(n % (len(layers) + 1) for n in (taken if isinstance(taken, list) else [taken]))
    for part in (*layers[used:], seeing.post_layernorm):
        part.requires_grad_(False)


def target_len(spec: ModelSpec, seq_len: int) -> int:
    """The decoder's tokens for `seq_len` tokens: as requested, or a quarter as many, about as in
    the training of T5 (arXiv 1910.10683, section 3.1.4)."""
    return int(spec.recipe["target_len"] or max(1, seq_len // 4))


def _is_without_data(batch: Batch) -> bool:
    return detect_fake_mode(list(batch.values())) is not None or emulating()


def _as_with_data(batch: Batch) -> AbstractContextManager[object]:
    """On tensors without values, tell a model whether a row is one sample. It would look at the
    positions, and make a mask if it cannot."""
    from transformers import masking_utils

    if not _is_without_data(batch):
        return nullcontext()
    packed = torch.zeros_like if "position_ids" in batch else lambda position_ids: None
    return patch.object(masking_utils, "find_packed_sequence_indices", packed)


class ChunkedHead:
    """A model's head that returns the mean loss instead of logits, which never exist at once."""

    def __init__(self, module: Any, task: str) -> None:
        """Raises `UnsupportedError` for an unknown kind of head."""
        head = module.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise UnsupportedError(f"its head is {type(head).__name__}", "loss")
        self._config: Any = module.config
        self._shift_right = None
        if task == "seq2seq":
            self._shift_right = module.prepare_decoder_input_ids_from_labels
        self._predicts_next = task in ("causal", "image-text")
        self._softcap: float | None = getattr(self._config, "final_logit_softcapping", None)
        if self._softcap is not None:
            self._config.final_logit_softcapping = None  # done here instead
        self._head = head
        self._logits = head.forward
        self._targets: Tensor | None = None
        self._said: Tensor | None = None
        self._checked = False
        head.forward = self._forward  # type: ignore[method-assign, assignment]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss. Raises `UnsupportedError` if the model changes its logits further."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        labels = batch["labels"]
        if self._shift_right is not None:
            inputs["decoder_input_ids"] = self._shift_right(labels)
        elif self._predicts_next:
            # The last token has no next one.
            labels = nn.functional.pad(labels[:, 1:], (0, 1), value=chunked.IGNORED)
        self._targets = labels.flatten()
        mean: Tensor = model(**inputs).logits
        if not self._checked:
            found, said = mean.detach(), self._said
            same = said is not None and not found.dim()
            valued = detect_fake_mode(found) is None and not emulating()
            if same and said is not None and valued:
                same = bool(torch.equal(found.nan_to_num(), said.detach().nan_to_num()))
            if not same:
                raise UnsupportedError("it changes its logits further", "loss")
            self._checked = True
        return mean

    def _forward(self, x_btd: Tensor) -> Tensor:
        assert self._targets is not None, "set by `loss`"
        self._said = chunked.cross_entropy(self._capped, x_btd.flatten(0, 1), self._targets)
        return self._said

    def _capped(self, x_nd: Tensor) -> Tensor:
        logits_nv: Tensor = self._logits(x_nd)
        if self._softcap is None:
            return logits_nv
        return self._softcap * torch.tanh(logits_nv / self._softcap)


def _config(spec: ModelSpec) -> Any:
    return _config_of(json.dumps(spec.recipe["config"], sort_keys=True), spec.recipe["code"])


@cache
def _config_of(text: str, code: str) -> Any:
    from transformers import AutoConfig

    body = json.loads(text)
    try:
        if code:
            trusted = True  # else the recipe would not name its folder
            config = AutoConfig.from_pretrained(code, trust_remote_code=trusted, **body)
        else:
            config = AutoConfig.for_model(**body)
    except Exception as error:
        raise UnsupportedError(f"transformers: {_first_line(error)}") from error
    _check_names(config, body)
    of_text = config.get_text_config()
    if getattr(of_text, "pad_token_id", None) is None:
        of_text.pad_token_id = 0  # classification looks for it; no token is 0
    config.use_cache = of_text.use_cache = False  # only for generation
    for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)  # the peak is that of all layers, which DDP waits for
    return config


def _check_names(config: Any, body: dict[str, Any]) -> None:
    """Refuse unknown names: transformers would take the default instead of the value."""
    cls = type(config)
    known = {
        *getattr(cls, "__dataclass_fields__", ()),
        *inspect.signature(cls.__init__).parameters,
    }
    known |= {*cls.attribute_map, *cls.attribute_map.values()}
    public = {name for name in known if not name.startswith("_")}
    for name in body.keys() - known:
        near = get_close_matches(name, public - body.keys(), 1, _ALIKE)
        if near and not name.startswith("_") and not name.endswith("_token_id"):
            raise UnsupportedError(f"{cls.__name__} has no field {name}; did you mean {near[0]}?")


def _first_line(error: BaseException) -> str:
    first, *more = (str(error).strip() or type(error).__name__).splitlines()
    return " ".join([first, *(more[:1] if first.endswith(":") else [])])


def _checkpoint(module: nn.Module, kind: str) -> None:
    name = type(module).__name__
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise UnsupportedError(f"{name} has no activation checkpointing", "checkpointing")
    arguments, more = recompute.arguments(kind), {}
    if recompute.every(kind) > 1:
        more["every_n_layers"] = recompute.every(kind)
    if recompute.on_host(kind):
        more["offload"] = True
    switch = getattr(module, "activation_checkpointing_enable", None)
    try:
        if switch is not None:
            switch(activation_checkpointing_kwargs=arguments, **more)
            return
        old: Any = module
        old.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments, **more)
    except TypeError as error:
        reason = f"transformers: {_first_line(error)}; a newer one may have {kind}"
        raise UnsupportedError(reason, "checkpointing") from error


def _shared(module: nn.Module) -> set[int]:
    """Parameters that several modules hold."""
    seen: set[int] = set()
    shared: set[int] = set()
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def _inside_out(unit: nn.Module) -> Iterator[nn.Module]:
    for child in unit.children():
        yield from _inside_out(child)
    yield unit
