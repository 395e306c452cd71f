"""What all candidates of a study share."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec

from autotune.errors import UsageError
from autotune.space.candidate import Build, Candidate
from autotune.space.mix import Batches, LengthMix
from autotune.space.models import FAMILIES, family_name, gpt
from autotune.space.models.checkpointed import checkpointed_every
from autotune.space.models.counted import CountedShape
from autotune.space.models.family import ModelShape
from autotune.wire.ranks import ModelSpec
from autotune.wire.settings import Settings

Dtype = Literal["auto", "fp32", "bf16", "fp16"]
RECORDED = "table:"
SCRIPTS = ("script:", RECORDED)
"""Prefixes of the models of scripts: launched ones, or runs that others recorded."""
NO_PHASES = "none"
"""In place of arguments that reach a script's phases: they do not matter."""
OWN = "own"
"""Routing that is not forced: a router's, as initialised, or a script's."""
Natural = Annotated[int, msgspec.Meta(ge=1, lt=10**9)]


@dataclass(frozen=True)
class GlobalBatch:
    """Samples or tokens that one optimizer step must see, over all ranks."""

    amount: int
    unit: Literal["samples", "tokens"]

    def __str__(self) -> str:
        return f"{self.amount}tok" if self.unit == "tokens" else str(self.amount)


def parse_global_batch(text: str, flag: str) -> GlobalBatch:
    """A global batch in tokens ("65536tok") or samples ("256"). Raises UsageError if the text is
    neither, or below 1."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*(tok|tokens|samples)?\s*", text)
    if match is None or int(match[1]) < 1:
        raise UsageError(f"{flag} {text}: write tokens as 65536tok or samples as 256")
    unit: Literal["samples", "tokens"] = (
        "tokens" if (match[2] or "").startswith("tok") else "samples"
    )
    return GlobalBatch(int(match[1]), unit)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What all candidates of a study share."""

    model: str
    width: Natural | None
    """Channels; None for the width that the family gives the depth."""
    vocab_size: Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
    """0 for a script, whose model is unknown."""
    dtype: str
    engine: str
    """As requested: "auto" is ddp for stage 0 and deepspeed for the others."""
    world_size: Natural
    global_batch: GlobalBatch | None
    recipe: dict[str, Any] = field(default_factory=dict)
    """All else from which the family builds the model."""
    shapes: list[CountedShape] = field(default_factory=list)
    """Shapes of all searched depths, if the family has no closed form."""
    length_mix: LengthMix | None = None
    """Lengths of the samples; None if all have a candidate's seq_len."""
    nodes: int = 1
    """Number of machines."""
    routing: list[str] = field(default_factory=list)
    """How tokens spread over experts: `ROUTINGS`, or `OWN`. Empty without experts."""
    eval_batch: int = 0
    """Samples of a rank's evaluation batch; 0 for none."""
    save: str = ""
    """How a model's checkpoint is made, of `SAVES`; empty for none."""

    @property
    def ranks_on_a_node(self) -> int:
        """The most ranks on one machine."""
        return -(-self.world_size // self.nodes)

    def __hash__(self) -> int:
        return hash((self.model, self.width, self.vocab_size, self.dtype, self.world_size))

    @property
    def family(self) -> str:
        return family_name(self.model)

    @property
    def of_script(self) -> bool:
        """Whether it is a user's script, whose model is unknown."""
        return self.model.startswith(SCRIPTS)

    @property
    def routed(self) -> str:
        """Its routing, for people and best.json; empty for a model without experts."""
        own = "the script's own" if self.of_script else "as initialised"
        return own if self.routing == [OWN] else ",".join(self.routing)

    @property
    def has_phases(self) -> bool:
        """Whether the user said how the winner evaluates or saves: it is launched for that."""
        said = self.recipe.get("phase_args", NO_PHASES) != NO_PHASES
        return bool(said or self.eval_batch or self.save)

    @property
    def may_have_phases(self) -> bool:
        """Whether it is a script that may evaluate and save by itself, which is waited for."""
        return self.of_script and not (self.recorded or self.recipe.get("phase_args"))

    @property
    def recorded(self) -> bool:
        """Whether others recorded its runs. Nothing else is known of it."""
        return self.model.startswith(RECORDED)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Workload:
        """The workload that `Space.manifest` wrote.

        Raises:
            UsageError: its global batch is bad.
            LookupError, TypeError, ValueError: it lacks a field, or one has another type.
        """
        batch = body["global_batch"]
        parsed = None if batch is None else asdict(parse_global_batch(batch, "global_batch"))
        return msgspec.convert(body | {"global_batch": parsed}, cls)

    def shape(self, depth: int) -> ModelShape:
        """The model's dimensions and counts at `depth`."""
        if self.shapes:
            return next(shape for shape in self.shapes if shape.depth == depth)
        return gpt.FAMILY.shape(depth, self.width, self.vocab_size, self.recipe)

    def shallow(self, of: Build | None = None) -> list[ModelSpec]:
        """Shallow models that stand for every depth: one has each part once; for each part,
        another one has it twice. They are as wide as `of`."""
        family, parts = FAMILIES[self.family], FAMILIES[self.family].parts(self.recipe)
        wide_as = of.depth if of else None
        if of and (depths := self._repeating(of.depth, of.checkpointing)):
            return [self.spec(depth, of, wide_as) for depth in depths]
        once = [place for part in parts for place in part]
        return [
            replace(
                self.spec(len(places), of, wide_as),
                recipe=family.of_blocks(self.recipe, places),
            )
            for more in [(), *parts]
            for places in [sorted([*once, *more])]
        ]

    def shares(self, depth: int, checkpointing: str = "none") -> list[float]:
        """Weights of the `shallow` models, whose weighted sum gives a model of `depth`. They are
        for quantities that are linear in the blocks of each kind."""
        if depths := self._repeating(depth, checkpointing):
            least, *longer = depths
            more = [(depth - least) / (each - least) for each in longer]
        else:
            family = FAMILIES[self.family]
            kinds = family.kinds(self.recipe, depth)
            more = [
                sum(kind in part for kind in kinds) / len(part) - 1
                for part in family.parts(self.recipe)
            ]
        return [1 - sum(more), *more]

    def _repeating(self, depth: int, checkpointing: str) -> list[int]:
        """Shallow depths to trace, if only every n-th block is checkpointed; else empty.

        They end at the same place of a period of blocks as `depth`. The second one is a period
        longer. If they are no shallower, `depth` stands alone.
        """
        every = checkpointed_every(checkpointing)
        if every == 1:
            return []
        kinds = FAMILIES[self.family].kinds(self.recipe, depth)
        period = every
        while period < depth and any(kinds[i] != kinds[i % period] for i in range(depth)):
            period += every
        least = period + depth % period
        return [depth] if depth <= least + period else [least, least + period]

    def spec(self, depth: int, of: Build | None = None, wide_as: int | None = None) -> ModelSpec:
        """The model that ranks build for `of`, with `depth` blocks; plain without `of`. It is as
        wide as a model of the depth `wide_as`, if given."""
        of = of or Build(depth=depth)
        width = vocab_size = 0  # unknown until the recipe is counted
        if self.shapes:
            width, vocab_size = self.shapes[0].width, self.shapes[0].vocab_size
        elif not FAMILIES[self.family].counted:
            shape = self.shape(wide_as or depth)
            width, vocab_size = shape.width, shape.vocab_size
        return ModelSpec(
            **asdict(of) | {"depth": depth},
            name=self.family,
            width=width,
            vocab_size=vocab_size,
            recipe=FAMILIES[self.family].at_depth(self.recipe, depth),
        )

    def grad_accum(self, candidate: Candidate) -> int | None:
        """Micro-steps per optimizer step; None if they cannot make the global batch."""
        if self.global_batch is None:
            return 1
        accum, rest = divmod(self.global_batch.amount, self._unit(candidate))
        return accum if accum and not rest else None

    def replicas(self, of: Settings) -> int:
        """Requested number of ranks, or groups of ranks, with data of their own."""
        return max(1, self.world_size // of.ranks_a_replica)

    def shard(self, of: Settings) -> int:
        """Number of replicas that share one copy of the weights, if a script is told to."""
        return self.replicas(of) if of.dp_shard == "auto" else int(of.dp_shard)

    def over(self, replicas: int | None, of: Settings) -> Workload:
        """The workload if `replicas` share its batches; None for the requested number."""
        return replace(self, world_size=replicas * of.ranks_a_replica) if replicas else self

    def micro_steps(self, candidate: Candidate) -> int:
        """`grad_accum` of a candidate that divides the global batch. Raises ValueError if it does
        not divide it."""
        accum = self.grad_accum(candidate)
        if accum is None:
            raise ValueError(f"{candidate.key} does not divide the global batch")
        return accum

    def global_batch_samples(self, candidate: Candidate) -> int:
        """Samples of one optimizer step. Raises ValueError as `micro_steps` does."""
        samples = candidate.samples_of(self.replicas(candidate))
        return samples * self.micro_steps(candidate)

    def batches(self, candidate: Candidate) -> Batches | None:
        """The batches, if lengths differ; None without a mix."""
        mix = self.length_mix
        return None if mix is None else mix.batches(candidate, self.world_size)

    def step_samples(self, candidate: Candidate) -> float:
        """Mean samples of one optimizer step. Raises ValueError as `micro_steps` does."""
        rows, batches = self.global_batch_samples(candidate), self.batches(candidate)
        return rows if batches is None else rows * batches.samples / candidate.micro_batch

    def step_tokens(self, candidate: Candidate) -> float:
        """Mean tokens of one optimizer step, without padding. Raises as `micro_steps` does."""
        rows, batches = self.global_batch_samples(candidate), self.batches(candidate)
        if batches is None:
            return float(rows * candidate.seq_len)
        return rows * batches.tokens / candidate.micro_batch

    def expected_shapes(self, candidate: Candidate) -> float:
        """Expected number of shapes that the run compiles."""
        mix, batches = self.length_mix, self.batches(candidate)
        if mix is None or batches is None:
            return 1.0
        if candidate.compile == "off" or candidate.dynamic == "on":  # one for all lengths
            return 1.0
        ranks = self.world_size
        return batches.shapes(mix.run_steps * self.micro_steps(candidate) * ranks)

    def flops_per_token(self, candidate: Candidate) -> float:
        """Mean model FLOPs of a token without padding."""
        mix, shape = self.length_mix, self.shape(candidate.depth)
        if mix is not None and "images" in self.recipe:  # whose share differs by length
            tokens = [n * count for n, count in zip(mix.lengths, mix.counts, strict=True)]
            flops = [of * shape.flops_per_token(n)
                     for n, of in zip(mix.lengths, tokens, strict=True)]  # fmt: skip
            return sum(flops) / sum(tokens)
        length = candidate.seq_len if mix is None else mix.weighted_mean(candidate.seq_len)
        return shape.flops_per_token(length)

    def padded_share(self, candidate: Candidate) -> float:
        """The expected padded length of the slowest rank's batches, as a share of seq_len."""
        batches = self.batches(candidate)
        return 1.0 if batches is None else batches.padded_share

    def real_share(self, candidate: Candidate) -> float | None:
        """The expected share of a batch's tokens without padding; None without a mix."""
        batches = self.batches(candidate)
        return None if batches is None else batches.real_share

    def cycle_steps(self, candidate: Candidate, micro_steps: int) -> int:
        """Number of steps after which drawn batches repeat."""
        batches = self.batches(candidate)
        return 1 if batches is None else batches.cycle_steps(micro_steps)

    def nearest_global_batch(self, candidates: list[Candidate]) -> GlobalBatch:
        """The possible global batch that is nearest to the requested one."""
        if self.global_batch is None:
            raise ValueError("no global batch was asked for")
        asked = self.global_batch.amount
        units = {self._unit(c) for c in candidates}
        amounts = {max(1, asked // u + up) * u for u in units for up in (0, 1)}
        return GlobalBatch(min(amounts, key=lambda a: (abs(a - asked), a)), self.global_batch.unit)

    def _unit(self, candidate: Candidate) -> int:
        """Samples or tokens of one micro-step over all ranks."""
        samples = candidate.samples_of(self.replicas(candidate))
        in_tokens = self.global_batch is not None and self.global_batch.unit == "tokens"
        return samples * candidate.seq_len if in_tokens else samples
