"""Degrees of parallelism: possible ones, and their effect on memory and time.

dp = ranks / (tp x pp x cp). These divisions must have no remainder; sources are in brackets:

- ranks by tp x pp x cp; dp by dp_shard (torchtitan 0.3, distributed/parallel_dims.py).
- dp_shard x cp by ep. In torchtitan dp_shard x cp x tp ranks share the experts. In Megatron-LM
  (core/parallel_state.py) dp x cp do, since tp cuts experts, too. This rule suits both.
- attention heads and groups of queries by tp, layers by pp, experts by ep (Megatron-LM,
  training/arguments.py; torchtitan, models/common/decoder.py).
- seq_len by 2 x cp, whose halves share causal work evenly; and by tp with sequence parallelism
  (both).

Memory: "Reducing Activation Recomputation" (arXiv 2205.05198, section 4). Of a layer's 34 parts tp
cuts 24, and all with sequence parallelism. A first stage keeps as much as the model.

Time: "Efficient Large-Scale Language Model Training" (arXiv 2104.04473, sections 2.2 and 3.2). The
bubble is (pp - 1) / m of the work of m micro-batches. Four times in a micro-step tp adds up a
layer's activations (arXiv 1909.08053, section 3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.space.candidate import Candidate
from autotune.space.models.described import Description
from autotune.space.workload import Workload

_PAIRS = 2
"""Parts of a sequence for each rank of cp: an early and a late one, since attention is causal."""
_CUT_BY_TP = 24 / 34
"""Share of a layer's activations that tp cuts without sequence parallelism."""
_SENT_BY_TP = 4
"""Sums of a layer's activations in a micro-step, forward and backward."""
_SENT_BY_CP = 3
"""Passes of keys and values round the ring in a micro-step: one forward, two backward."""
_SENT_BY_EP = 4
"""Times that tokens go to experts, or come back."""
_OF_A_NODE = 8
"""GPUs that fast links join in a usual machine."""
_SLOWER = 8.0
"""Links between machines are slower by this factor: 50 GB/s instead of NVLink's 450."""
_SEQUENCE_PARALLEL = re.compile(r"--sequence-parallel\b|\btorchtitan\.train\b")
_NOT_SEQUENCE_PARALLEL = re.compile(r"no.enable.sequence.parallel")
_SHARDED = re.compile(r"\{dp_(shard|replicate)\}")


@dataclass(frozen=True)
class Impossible:
    """Why a candidate cannot be launched."""

    axes: tuple[str, ...]
    """The axes whose values are the cause."""
    reason: str


def description(workload: Workload) -> Description | None:
    """The description of a script's model, if the user named its config."""
    found = workload.recipe.get("described")
    return None if found is None else Description(**found)


def impossible(workload: Workload, c: Candidate, model: Description | None) -> Impossible | None:
    """Why `c` cannot be launched with `model`, if that is known; None if it may be."""
    ranks, dp, shard = workload.world_size, workload.replicas(c), workload.shard(c)
    rules: list[tuple[object, tuple[str, ...], str]] = []
    if model is not None:
        rules += [
            (model.heads % c.tp, ("tp",), f"tp must divide the model's {model.heads} heads"),
            (model.kv_heads % c.tp, ("tp",),
             f"tp must divide the model's {model.kv_heads} KV heads"),
            (c.depth % c.pp, ("pp",), f"pp must divide the model's {c.depth} layers"),
            (c.ep > 1 and not model.experts, ("ep",), "the model has no experts"),
            (model.experts % c.ep, ("ep",), f"ep must divide the model's {model.experts} experts"),
        ]  # fmt: skip
    rules += [
        (ranks % c.ranks_a_replica, ("tp", "pp", "cp"),
         f"tp x pp x cp must divide {ranks} rank{'s' * (ranks > 1)}"),
        (dp % shard, ("tp", "pp", "cp", "dp_shard"), "dp_shard must divide dp"),
        (shard * c.cp % c.ep, ("tp", "pp", "cp", "dp_shard", "ep"),
         "ep must divide dp_shard x cp"),
        (c.cp > 1 and c.seq_len > 1 and c.seq_len % (_PAIRS * c.cp), ("seq_len", "cp"),
         "2 x cp must divide seq_len"),
        (c.tp > 1 and c.seq_len > 1 and _cuts_sequences(workload)
         and c.seq_len % (c.tp * (_PAIRS * c.cp if c.cp > 1 else 1)), ("seq_len", "tp", "cp"),
         "tp, with cp 2 x tp x cp, must divide seq_len"),
    ]  # fmt: skip
    return next((Impossible(axes, why) for wrong, axes, why in rules if wrong), None)


def _cuts_sequences(workload: Workload) -> bool:
    """Whether the command shows that ranks of tp cut sequences, too."""
    command = workload.recipe.get("command", "")
    return bool(_SEQUENCE_PARALLEL.search(command)) and not _NOT_SEQUENCE_PARALLEL.search(command)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """A rank's shares of a whole model and a whole micro-batch."""

    state: float = 1.0
    """Share of weights, gradients and optimizer."""
    blocks: float = 1.0
    """Share of the blocks' activations."""
    head: float = 1.0
    """Share of the logits."""


def shares(workload: Workload, c: Candidate) -> Shares:
    """A rank's shares by the degrees of `c`, before any ZeRO stage."""
    if not workload.of_script:
        return Shares()
    state = _of_weights(workload, c) / (c.tp * c.pp)
    if _SHARDED.search(workload.recipe.get("command", "")) and not c.zero_stage:
        state /= workload.shard(c) * c.cp
    cut = 1.0 if _cuts_sequences(workload) else _CUT_BY_TP
    blocks = (cut / c.tp + 1 - cut) / c.cp
    return Shares(state=state, blocks=blocks, head=1 / (c.tp * c.cp))


def _of_weights(workload: Workload, c: Candidate) -> float:
    """Share of weights that ep leaves, of those that tp and pp leave."""
    if c.ep == 1 or (model := description(workload)) is None:
        return 1.0
    of_experts = model.expert_parameters(c.depth) / workload.shape(c.depth).parameters
    return 1 - of_experts + of_experts / c.ep


def bubble(c: Candidate, micro_steps: int) -> float:
    """A pipeline's time as a multiple of its work. Without accumulation micro-batches are cut."""
    parts = micro_steps if micro_steps > 1 else c.micro_batch
    return 1 + (c.pp - 1) / parts


def sent_bytes(workload: Workload, c: Candidate) -> float:
    """Bytes that a rank sends in a micro-step; `_SLOWER` times those between machines."""
    if c.ranks_a_replica * c.ep == 1:
        return 0.0
    shape, number_bytes = workload.shape(c.depth), 4 if workload.dtype == "fp32" else 2
    tokens = c.tokens / c.cp * shape.width * number_bytes
    layers = shape.depth / c.pp
    on_a_node = min(workload.ranks_on_a_node, _OF_A_NODE)

    def slow(ranks: int) -> float:
        return _SLOWER if ranks > on_a_node else 1.0

    model = description(workload)
    groups = model.kv_heads / model.heads if model else 1.0
    chosen = model.chosen if model else 1
    return tokens * (
        _SENT_BY_TP * layers * 2 * (c.tp - 1) / c.tp * slow(c.tp)
        + _SENT_BY_CP * layers * 2 * groups / c.tp * (c.cp - 1) * slow(c.tp * c.cp)
        + _SENT_BY_EP * layers * chosen / c.tp * (c.ep - 1) / c.ep * slow(c.tp * c.cp * c.ep)
        + 2 * (c.pp > 1) / c.tp * slow(c.ranks_a_replica)
    )
