"""Degrees of parallelism: which are possible, and what they make of memory and time.

dp = ranks / (tp x pp x cp). What must divide what, and where it is refused else:

- ranks by tp x pp x cp; dp by dp_shard (torchtitan 0.3, distributed/parallel_dims.py).
- dp_shard x cp by ep. torchtitan has the experts share dp_shard x cp x tp ranks, Megatron-LM
  (core/parallel_state.py) dp x cp, since experts are cut by tp, too. What divides this one divides
  both.
- attention heads and groups of queries by tp, layers by pp, experts by ep (Megatron-LM,
  training/arguments.py; torchtitan, models/common/decoder.py).
- seq_len by 2 x cp, whose halves share causal work evenly, and by tp as well where sequences are
  cut there (both).

Memory: "Reducing Activation Recomputation" (arXiv 2205.05198, section 4): of the 34 parts that a
layer keeps, tp cuts 24, and all with sequence parallelism; the first stage of a pipeline keeps as
much as the whole model would. Time: "Efficient Large-Scale Language Model Training" (Megatron-LM,
arXiv 2104.04473, sections 2.2 and 3.2): the bubble is (pp - 1) / m of the work of m micro-batches;
tp adds up a layer's activations four times in a micro-step (arXiv 1909.08053, section 3).
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
"""Of what a layer keeps, without sequence parallelism."""
_SENT_BY_TP = 4
"""Sums of a layer's activations in a micro-step, forward and backward."""
_SENT_BY_CP = 3
"""Turns of keys and values in a micro-step: one forward; they and their gradients backward."""
_SENT_BY_EP = 4
"""Times that tokens go to experts, or come back."""
_OF_A_NODE = 8
"""GPUs that the fast links of a usual machine join."""
_SLOWER = 8.0
"""Links between machines, in proportion: 50 GB/s, where NVLink has 450."""
_SEQUENCE_PARALLEL = re.compile(r"--sequence-parallel\b|\btorchtitan\.train\b")
_NOT_SEQUENCE_PARALLEL = re.compile(r"no.enable.sequence.parallel")
_SHARDED = re.compile(r"\{dp_(shard|replicate)\}")


@dataclass(frozen=True)
class Impossible:
    """Why a candidate cannot be launched."""

    axes: tuple[str, ...]
    """Those whose values are the cause."""
    reason: str


def description(workload: Workload) -> Description | None:
    """Of a script's model, where the user named its config."""
    found = workload.recipe.get("described")
    return None if found is None else Description(**found)


def impossible(workload: Workload, c: Candidate, model: Description | None) -> Impossible | None:
    """Why `c` cannot be launched, where its model is known to be `model`; None if it may."""
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
    """Whether the ranks of tp cut sequences, too, as far as a command shows it."""
    command = workload.recipe.get("command", "")
    return bool(_SEQUENCE_PARALLEL.search(command)) and not _NOT_SEQUENCE_PARALLEL.search(command)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of what one rank would hold if it held a whole model, and a whole micro-batch."""

    state: float = 1.0
    """Of weights, gradients and optimizer."""
    blocks: float = 1.0
    """Of what the blocks keep for the backward pass."""
    head: float = 1.0
    """Of the logits."""


def shares(workload: Workload, c: Candidate) -> Shares:
    """What the degrees of `c` leave on a rank, of state that no ZeRO stage cuts."""
    if not workload.of_script:
        return Shares()
    state = _of_weights(workload, c) / (c.tp * c.pp)
    if _SHARDED.search(workload.recipe.get("command", "")) and not c.zero_stage:
        state /= workload.shard(c) * c.cp
    cut = 1.0 if _cuts_sequences(workload) else _CUT_BY_TP
    blocks = (cut / c.tp + 1 - cut) / c.cp
    return Shares(state=state, blocks=blocks, head=1 / (c.tp * c.cp))


def _of_weights(workload: Workload, c: Candidate) -> float:
    """Of the weights that tp and pp leave: those that ep leaves."""
    if c.ep == 1 or (model := description(workload)) is None:
        return 1.0
    of_experts = model.expert_parameters(c.depth) / workload.shape(c.depth).parameters
    return 1 - of_experts + of_experts / c.ep


def bubble(c: Candidate, micro_steps: int) -> float:
    """By how much the ranks of a pipeline take longer than their work. A script that does not
    accumulate cuts its micro-batch instead."""
    parts = micro_steps if micro_steps > 1 else c.micro_batch
    return 1 + (c.pp - 1) / parts


def sent_bytes(workload: Workload, c: Candidate) -> float:
    """Bytes that a rank sends for its degrees in a micro-step, those between machines counted as
    so many more as their links are slower."""
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
