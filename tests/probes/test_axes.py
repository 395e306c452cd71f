"""What attention, loss, checkpointing, compiling and storage do: the same numbers, other costs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autotune.space.axes import AXES
from autotune.space.candidate import Build
from autotune.space.engines import ENGINES
from autotune.space.models import FAMILIES
from autotune.wire.helpers import Describe
from autotune.wire.ranks import ModelSpec
from autotune.wire.stopping import Phase
from probes import recompute
from probes.compiling import compile_blocks
from probes.describe import describe
from probes.engines import made
from probes.faults import UnsupportedError, fault
from probes.models import chunked, family
from tests.support.choice import campaign
from tests.support.jobs import train
from tests.support.models import SMALL, counted, uncounted, usual_depth
from tests.support.records import WORKLOAD

GPT = ModelSpec(name="gpt", depth=3, width=128, vocab_size=512, checkpointing="none")
KINDS = ("full", "selective", "host", "1/2", "1/3")
SAME = 1e-5


def learnt(spec: ModelSpec) -> tuple[float, float]:
    """Loss and norm of the gradients of one batch."""
    torch.manual_seed(3)
    np.random.seed(3)  # models of sound mask by it
    made = family(spec.name)
    module = made.make(spec)
    batch = made.batch(spec, 2, 32, torch.Generator().manual_seed(5))
    loss = made.loss(module, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    unused = [n for n, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []
    of = [p.grad.norm() for p in module.parameters() if p.grad is not None]
    return float(loss.detach()), float(torch.stack(of).norm())


def peak_bytes(
    spec: ModelSpec, seq_len: int = 64, *, dtype: str = "fp32", weights: str = "fp32"
) -> int:
    (traced,) = describe(
        Describe(
            models=[replace(spec, param_dtype="bf16" if weights == "bf16" else "auto")],
            seq_lens=[seq_len], micro_batches=[4], dtype=dtype,
            optimizer="adamw", device_kind="cpu", gradients_stay=False,
        )
    ).models  # fmt: skip
    return traced.peak_bytes[0][0]


# The built-in gpt.


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_of_any_kind_learns_the_same(kind: str) -> None:
    assert learnt(replace(GPT, checkpointing=kind)) == pytest.approx(learnt(GPT), rel=SAME)


TRAITS: list[dict[str, Any]] = [{}, {"softcap": 15}, {"tied": True}, {"qk_norm": True}]


@pytest.mark.parametrize("traits", TRAITS, ids=str)
def test_attention_and_loss_learn_the_same_in_every_form(traits: dict[str, Any]) -> None:
    spec = replace(GPT, recipe=traits)
    plain = learnt(spec)
    assert learnt(replace(spec, attention="eager")) == pytest.approx(plain, rel=SAME)
    assert learnt(replace(spec, loss="chunked")) == pytest.approx(plain, rel=SAME)


@pytest.mark.slow
def test_what_is_kept_differs_as_it_should() -> None:
    deep = replace(GPT, depth=8, vocab_size=64)
    peaks = {kind: peak_bytes(replace(deep, checkpointing=kind)) for kind in ("none", *KINDS)}
    assert peaks["full"] < peaks["selective"] < peaks["none"]
    assert peaks["full"] < peaks["1/2"] < peaks["1/3"] < peaks["none"]
    assert peaks["host"] == peaks["full"]  # the CPU is the host


@pytest.mark.slow
def test_a_chunked_loss_never_holds_all_logits() -> None:
    wide = replace(GPT, depth=1, vocab_size=32768)
    saved = peak_bytes(wide) - peak_bytes(replace(wide, loss="chunked"))
    logits_bytes = 4 * 64 * 4 * 32768
    assert saved > logits_bytes


def test_eager_attention_holds_its_weights() -> None:
    deep = replace(GPT, depth=8, vocab_size=64)
    eager = replace(deep, attention="eager")
    assert peak_bytes(eager, seq_len=512) > 1.1 * peak_bytes(deep, seq_len=512)


def test_host_checkpointing_moves_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside a GPU: inputs of blocks are packed, and nothing else."""
    packed: list[torch.Size] = []

    class Moved(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, pin_memory: bool) -> None:
            assert pin_memory

            def pack(tensor: Tensor) -> Tensor:
                packed.append(tensor.shape)
                return tensor

            super().__init__(pack, lambda tensor: tensor)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(recompute, "save_on_cpu", Moved)
    assert learnt(replace(GPT, checkpointing="host")) == pytest.approx(learnt(GPT), rel=SAME)
    assert packed.count(torch.Size([2, 32, 128])) == GPT.depth  # and the rotations beside them
    assert len(packed) <= 4 * GPT.depth


def test_ignored_targets_do_not_count() -> None:
    x, targets = torch.randn(40, 16), torch.randint(50, (40,))
    targets[7:31] = chunked.IGNORED
    head = nn.Linear(16, 50).requires_grad_(False)
    whole = nn.functional.cross_entropy(head(x), targets)
    assert float(chunked.cross_entropy(head, x, targets)) == pytest.approx(float(whole), rel=SAME)


# Models of transformers.


@pytest.mark.parametrize("name", SMALL)
def test_every_family_learns_the_same_with_each_value(name: str) -> None:
    pytest.importorskip("transformers")
    of = uncounted(name)
    depth = usual_depth(of)
    plain = learnt(of.spec(depth))
    values = [Build(depth=depth, attention="eager")]
    if not FAMILIES["hf"].lacks(of.recipe, "loss", "chunked"):
        values.append(Build(depth=depth, loss="chunked"))
    values += [Build(depth=depth, checkpointing=kind) for kind in KINDS]
    for build in values:
        assert learnt(of.spec(depth, build)) == pytest.approx(plain, rel=1e-4), build


def test_a_loss_that_is_more_than_cross_entropy_is_not_chunked() -> None:
    pytest.importorskip("transformers")
    of = uncounted("llama-3-8b-tiny")
    of.recipe["config"] = of.recipe["config"] | {"model_type": "granite", "logits_scaling": 8.0}
    with pytest.raises(UnsupportedError, match="changes its logits further") as caught:
        learnt(of.spec(2, Build(depth=2, loss="chunked")))
    assert caught.value.axes == ("loss",)


def test_attention_that_a_model_lacks_is_unsupported_alone() -> None:
    pytest.importorskip("transformers")
    of = uncounted("mamba-7b-tiny")
    with pytest.raises(UnsupportedError) as caught:
        family("hf").make(of.spec(2, Build(depth=2, attention="sdpa")))
    assert caught.value.axes == ("attention",)


def test_checkpointing_that_it_lacks_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "supports_gradient_checkpointing", False)
    with pytest.raises(UnsupportedError) as caught:
        family("hf").make(uncounted("gpt2-tiny").spec(2, Build(depth=2, checkpointing="full")))
    assert caught.value.axes == ("checkpointing",)


# Engines.

ON_ENGINES = [("ddp", 0), ("fsdp", 3), ("deepspeed", 3), *campaign(("deepspeed", 2))]
ALL_NEW = {"loss": "chunked", "attention": "eager", "checkpointing": "selective"}
SOME_NEW = {"loss": "chunked", "checkpointing": "1/2"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Losses of the plain values, by model."""
    made = {"gpt": WORKLOAD, "t5-small-tiny": counted("t5-small-tiny", (2,), (32,))}
    return {
        name: train(tmp_path_factory.mktemp(name) / "a", "ddp", workload=of, copy=True).losses
        for name, of in made.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "stage"), ON_ENGINES)
@pytest.mark.parametrize("model", ["gpt", "t5-small-tiny"])
def test_engines_learn_the_same_with_other_values(
    tmp_path: Path, plain: dict[str, list[float]], model: str, engine: str, stage: int
) -> None:
    of = WORKLOAD if model == "gpt" else counted(model, (2,), (32,))
    axes = ALL_NEW if model == "gpt" else SOME_NEW
    other = train(tmp_path / "b", engine, stage=stage, workload=of, copy=True, **axes)  # type: ignore[arg-type]
    assert other.losses == pytest.approx(plain[model], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "stage"), [("ddp", 0), ("fsdp", 3), ("deepspeed", 1)])
def test_weights_that_are_bf16_alone_take_half(tmp_path: Path, engine: str, stage: int) -> None:
    """They learn, and what is held is what best.json says."""
    ranks = 1 if engine == "ddp" else 2  # DDP keeps gradients in its buckets
    # A product in bf16 takes many times that in fp32 where the processor has none.
    how: dict[str, Any] = {"stage": stage, "dtype": "bf16", "width": 512, "steps": 3}
    how |= {"world_size": ranks, "global_batch": 2 * ranks}
    plain = train(tmp_path / "a", engine, **how)
    low = train(tmp_path / "b", engine, **how, param_dtype="bf16")
    assert low.losses[-1] < low.losses[0] == pytest.approx(plain.losses[0], rel=0.02)
    build = Build(depth=2, zero_stage=stage)
    of = replace(WORKLOAD, width=512, vocab_size=97, dtype="bf16", world_size=ranks)
    before, after = (
        ENGINES[engine].state(of, each) for each in (build, replace(build, param_dtype="bf16"))
    )
    saved = before.weights + before.optimizer - after.weights - after.optimizer
    assert plain.state_bytes - low.state_bytes == pytest.approx(saved, rel=0.05)
    kept = ENGINES[engine].dtypes("bf16", replace(build, param_dtype="bf16"))
    assert (kept["weights"], kept["master_weights"], kept["optimizer"]) == ("bf16",) * 3


@pytest.mark.slow
def test_fp32_weights_with_bf16_products_on_deepspeed(tmp_path: Path) -> None:
    how: dict[str, Any] = {"dtype": "bf16", "steps": 3, "param_dtype": "fp32"}
    for stage in (1, 3):
        found = train(tmp_path / str(stage), "deepspeed", stage=stage, **how)
        assert found.losses[-1] < found.losses[0]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "stage"), [("fsdp", 3), ("deepspeed", 1)])
def test_gradients_are_sent_in_the_type_that_is_asked_for(
    tmp_path: Path, engine: str, stage: int
) -> None:
    """Rounded on their way they learn nearly the same, and nothing else is exactly as before."""
    how: dict[str, Any] = {"stage": stage, "steps": 3}
    plain, again = (train(tmp_path / name, engine, **how) for name in ("a", "b"))
    low = train(tmp_path / "c", engine, **how, reduce_dtype="bf16")
    assert plain.losses == again.losses != low.losses == pytest.approx(plain.losses, rel=0.01)
    build = Build(depth=2, zero_stage=stage, reduce_dtype="bf16")
    assert ENGINES[engine].dtypes("fp32", build)["reduction"] == "bf16"
    assert ENGINES["ddp"].lacks(build, "cpu") is not None


def test_selective_checkpointing_that_an_engine_cannot_is_unsupported_with_it_alone() -> None:
    text = "c10d.x invocation index 6 encountered during backward but not found in storage. This"
    said = fault(RuntimeError(text), Phase.WARMUP, "cpu", None)
    assert (said.cause, said.axes) == (
        "unsupported", ["checkpointing", "zero_stage", "offload"],
    )  # fmt: skip


# Compiling.


def test_what_the_compiler_cannot_do_is_unsupported() -> None:
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.exc import InductorError

    error = BackendCompilerFailed(None, RuntimeError("no such op"), None)
    for each in (error, InductorError(RuntimeError("no"), None)):
        said = fault(each, Phase.COMPILE, "cpu", None)
        assert said.cause == "unsupported"
        assert "compile" in said.axes


def test_memory_that_runs_out_while_compiling_is_memory() -> None:
    from torch._inductor.exc import InductorError

    error = InductorError(torch.OutOfMemoryError("CUDA out of memory"), None)
    assert fault(error, Phase.COMPILE, "cuda", None).cause == "oom"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager_decomp_partition", *campaign("inductor")])
def test_compiled_models_checkpoint_too(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selective checkpointing computes no matrix product again, compiled or not.

    What is computed again is decided before code is made of it, which is what takes long.
    """
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    found = {}
    for kind in ("none", "selective", "full"):
        module = family("gpt").make(replace(GPT, checkpointing=kind))
        batch = family("gpt").batch(GPT, 2, 32, torch.Generator().manual_seed(5))
        compile_blocks(family("gpt").blocks(module))
        family("gpt").loss(module, batch).backward()  # type: ignore[no-untyped-call]
        with FlopCounterMode(display=False) as counter:
            family("gpt").loss(module, batch).backward()  # type: ignore[no-untyped-call]
        found[kind] = counter.get_total_flops()
    assert found["selective"] == found["none"] < found["full"]


def test_dynamic_shapes_are_compiled_once_for_all_and_learn_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = [(2, 40), (3, 48), (5, 56)]  # torch takes a size for the weights' if both are equal

    def trained(**axes: str) -> tuple[list[float], int]:
        """Losses of all `shapes`, and how often a block was compiled."""
        graphs = []

        def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
            graphs.append(inputs)
            return graph

        torch._dynamo.reset()
        torch.manual_seed(3)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "compile", partial(torch.compile, backend=backend))
            module = made(replace(GPT, depth=1, **axes), family("gpt"))  # type: ignore[arg-type]
        drawn = torch.Generator().manual_seed(5)
        batches = [family("gpt").batch(GPT, *shape, drawn) for shape in shapes]
        losses = [family("gpt").loss(module, each).detach() for each in batches]
        return [float(each) for each in losses], len(graphs)

    plain, none = trained()
    static, each = trained(compile="on")
    dynamic, once = trained(compile="on", dynamic="on")
    assert (none, each, once) == (0, len(shapes), 1)
    assert static == pytest.approx(plain, rel=SAME)
    assert dynamic == pytest.approx(plain, rel=SAME)


@pytest.mark.parametrize("name", ENGINES)
def test_dynamic_shapes_need_compiling(name: str) -> None:
    plain = Build(depth=2, zero_stage=ENGINES[name].stages[-1])
    lack = ENGINES[name].lacks(replace(plain, dynamic="on"), "cpu")
    assert lack is not None
    assert lack.axes == ("dynamic", "compile")
    assert ENGINES[name].lacks(replace(plain, dynamic="on", compile="on"), "cpu") is None


def test_a_model_without_blocks_is_not_compiled() -> None:
    bare = family("gpt").make(replace(GPT, depth=0))
    assert list(family("gpt").blocks(bare)) == []
    with pytest.raises(UnsupportedError, match="no blocks to compile") as caught:
        made(replace(GPT, depth=0, compile="on"), family("gpt"))
    assert caught.value.axes == ("compile",)


def test_a_model_says_nothing_of_the_next_one() -> None:
    """transformers writes into the config that it is given."""
    pytest.importorskip("transformers")
    of = uncounted("llama-3-8b-tiny")
    made: list[Any] = [
        family("hf").make(of.spec(2, Build(depth=2, attention=name)))
        for name in ("auto", "eager", "auto")
    ]
    kinds = [each.config._attn_implementation for each in made]
    assert kinds == ["sdpa", "eager", "sdpa"]


def test_a_chunked_loss_of_transformers_is_traced() -> None:
    pytest.importorskip("transformers")
    of = uncounted("gpt2-tiny")
    whole, chunks = (
        peak_bytes(of.spec(2, Build(depth=2, loss=each))) for each in ("whole", "chunked")
    )
    assert 0 < chunks < whole


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_mixture_of_experts_is_traced_in_half_precision(weights: str) -> None:
    """Its experts' weights are fp32 under autocast; what tells shapes of their products takes
    bf16 alone."""
    pytest.importorskip("transformers")
    spec = uncounted("mixtral-tiny").spec(2, Build(depth=2))
    peaks = {dtype: peak_bytes(spec, dtype=dtype, weights=weights) for dtype in ("fp32", "bf16")}
    assert 0 < peaks["bf16"] < 1.05 * peaks["fp32"]


# Products in fp8.


@pytest.mark.parametrize("recipe", AXES["float8"].words[1:])
def test_fp8_learns_nearly_the_same_by_any_recipe(recipe: str) -> None:
    pytest.importorskip("torchao")

    def learnt(spec: ModelSpec) -> tuple[float, float, int]:
        """Loss and norm of the gradients of one batch, and layers in fp8; drawn as with FSDP."""
        gpt = family("gpt")
        with torch.device("meta"):
            module = made(spec, gpt, "bf16")
        module.to_empty(device="cpu")
        torch.manual_seed(3)
        gpt.draw(module, module)
        loss = gpt.loss(module, gpt.batch(spec, 2, 32, torch.Generator().manual_seed(5)))
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [p.grad.norm() for p in module.parameters() if p.grad is not None]
        low = sum(type(part).__name__ == "Float8Linear" for part in module.modules())
        return float(loss.detach()), float(torch.stack(norms).norm()), low

    loss, norm, none = learnt(GPT)
    found, found_norm, low = learnt(replace(GPT, float8=recipe))
    assert (none, low) == (0, 4 * GPT.depth)  # and not the head
    assert loss != found == pytest.approx(loss, rel=1e-3)
    assert found_norm == pytest.approx(norm, rel=0.05)


def test_fp8_needs_sizes_in_multiples_of_16() -> None:
    pytest.importorskip("torchao")
    with pytest.raises(UnsupportedError, match="no linear layer"):
        made(replace(GPT, width=40, float8="rowwise"), family("gpt"), "bf16")


# An optimizer of 8 bits.


@pytest.mark.slow
def test_adamw_of_8_bits_learns_and_holds_a_quarter(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    how: dict[str, Any] = {"world_size": 1, "width": 512, "steps": 4, "depth": 1}
    plain = train(tmp_path / "a", "ddp", **how)
    low = train(tmp_path / "b", "ddp", **how, optimizer="adamw8bit")
    assert low.losses[-1] < low.losses[0] == pytest.approx(plain.losses[0], rel=1e-5)
    of = replace(WORKLOAD, width=512, vocab_size=97)
    before, after = (
        ENGINES["ddp"].state(of, Build(depth=1, optimizer=name)) for name in ("adamw", "adamw8bit")
    )
    assert before.optimizer > 3.9 * after.optimizer
    saved = before.optimizer - after.optimizer
    assert plain.state_bytes - low.state_bytes == pytest.approx(saved, rel=0.05)
