"""The messages of one launch's processes, put together: steps, batches, memory."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from autotune.measure.runner.channel import Peer
from autotune.measure.script.replicas import Sharing, apart, as_asked, sharing
from autotune.space.candidate import Candidate
from autotune.wire.emulated import emulating
from autotune.wire.hook import Left, Place, Seen, Step
from autotune.wire.reports import Ran

SHIFTED = 1
"""Tokens by which a batch may differ from the request, since models predict the next token."""
SAME_LENGTH = 4
"""So many batches of one shorter length show that the length is not the batch's longest."""
EVEN = 1.05
"""The most by which steps of the same work differ, and samples or tokens of one size."""


@dataclass(kw_only=True)
class Process:
    """One process that dialled."""

    pid: int
    peer: Peer
    gone: bool = False
    latest: Seen | None = None
    left: Left | None = None
    steps: list[Step] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    """Of each step: since the first of them began."""

    def told(self, seen: Seen) -> bool:
        """Take over a message; returns whether anything is new."""
        before = self.latest
        self.latest = seen
        self.steps += seen.steps
        for step in seen.steps:
            self.ends_s.append(step.step_s + (self.ends_s[-1] if self.ends_s else 0.0))
        if before is None or seen.backwards != before.backwards or bool(seen.steps):
            return True
        return (seen.phase, seen.phases) != (before.phase, before.phases)

    def close(self) -> None:
        """Learn that it sends nothing more."""
        self.gone = True
        self.peer.close()

    @property
    def trains(self) -> bool:
        return self.latest is not None and self.latest.backwards > 0


class Batch(NamedTuple):
    """What a model gets in a micro-step."""

    samples: int
    length: int
    """Tokens of a sample; 0 if only samples show."""
    tokens: int


@dataclass(frozen=True)
class Mismatch:
    """A difference between the run and the request."""

    axis: str
    """An axis of a candidate, or "ranks", "grad_accum" or "cut": of batches, in the script."""
    asked: int
    got: int
    says: str


class Ranks:
    """The processes of a launch that train; `candidate` was requested."""

    def __init__(
        self, processes: Sequence[Process], candidate: Candidate, told: Collection[str]
    ) -> None:
        """`told` are the names whose values the script gets."""
        trains = [process for process in processes if process.trains]
        stay = [process for process in trains if not process.gone]
        group = max((p.latest.world_size for p in stay if p.latest is not None), default=0)
        # A process that trained something before, and ended, does not count.
        self.all = stay if 0 < len(stay) == group < len(trains) else trains
        self._candidate = candidate
        self._told = told

    @property
    def world_size(self) -> int:
        """The world size of torch's process group, as the ranks see it."""
        return max((r.latest.world_size for r in self.all if r.latest is not None), default=0)

    @property
    def made(self) -> int:
        """Steps that all ranks made; 0 until all ranks dialled."""
        if len(self.all) < max(1, self.world_size):
            return 0
        return min(len(rank.steps) for rank in self.all)

    @property
    def cycle(self) -> int:
        """Steps from one rollout to the next; 1 without any, 0 while that is not known."""
        each = [rank.latest.cycle for rank in self.all if rank.latest is not None]
        return max(each, default=0) if all(each) else 0

    def step_s(self, first: int, count: int) -> float:
        """Seconds of a step, the mean of `count` from `first` on, between the last ranks' ends.

        The longest of each step would count twice what one rank is late by: others wait for it.
        """
        before_s = max(rank.ends_s[first - 1] for rank in self.all) if first else 0.0
        return (max(rank.ends_s[first + count - 1] for rank in self.all) - before_s) / count

    def evened(self, first: int, step_s: list[float]) -> list[float]:
        """`step_s` of the steps from `first` on, as if each had the mean work. Where work differs,
        the median is then the mean time: that of the short steps counts, too."""
        steps = range(first, self.made)
        known = all(step.size for rank in self.all for step in rank.steps[first : self.made])
        sizes = [
            sum(step.size if known else step.micro_steps for step in each)
            for each in ([rank.steps[number] for rank in self.all] for number in steps)
        ]
        if self.cycle > 1 or max(sizes) <= EVEN * min(sizes):
            return step_s
        paces = [time_s / size for time_s, size in zip(step_s, sizes, strict=False)]
        pace = sum(step_s) / sum(sizes[: len(step_s)])
        whole = pace * statistics.fmean(sizes) / statistics.median(paces)
        return [whole * each for each in paces]

    @cached_property
    def sharing(self) -> Sharing:
        """Which ranks train on the same data: as requested, until there is evidence."""
        by_rank, asked = self._by_rank, self._candidate
        places = {n: seen.place for n, r in by_rank.items() if (seen := r.latest) and seen.place}
        if len(by_rank) == 1:
            return apart(by_rank)
        if len(places) >= max(2, len(self.all)):
            found = sharing(places, self._parts)
            if found.known:
                return found
        return as_asked(by_rank, tp=asked.tp, pp=asked.pp, cp=asked.cp)

    @property
    def alike(self) -> bool:
        """Whether all of several replicas draw the same data, and other data in each step."""
        places = [seen.place for rank in self.all if (seen := rank.latest) and seen.place]
        data = {tuple(place.batches) for place in places if place.batches}
        several = self.sharing.known and len(self.sharing.replicas) > 1
        return several and len(data) == 1 and len(set(*data)) > 1

    @property
    def _by_rank(self) -> dict[int, Process]:
        return {r.latest.rank: r for r in self.all if r.latest is not None}

    @property
    def _feeding(self) -> list[Process]:
        """Ranks that get batches: all but the later stages of pipelines."""
        return [rank for rank in self.all if _feeds(rank)]

    @property
    def _parts(self) -> int:
        """The parts into which ranks seem to cut the requested length; 1 if they cannot."""
        shapes = Counter(length for rank in self.all for _, length, _ in self._shapes(rank.steps))
        asked, length = self._candidate.seq_len, max(shapes, key=shapes.__getitem__, default=0)
        parts = round(asked / length) if length and "seq_len" in self._told else 1
        return parts if parts > 1 and abs(parts * length - asked) <= parts * SHIFTED else 1

    @cached_property
    def _cut(self) -> int:
        """The parts into which sequences are cut. Ranks of one replica may also get the whole."""
        if (parts := self.sharing.context) == 1:
            return 1
        got = [
            {tuple(seen.place.batches) for rank in replica
             if (seen := self._by_rank[rank].latest) and seen.place and seen.place.batches}
            for replica in self.sharing.replicas
        ]  # fmt: skip
        whole = self._parts == 1 and all(len(each) == 1 for each in got)
        return 1 if whole else parts

    def _of_replica(self, replica: Collection[int], first: int) -> tuple[float, float] | None:
        """Samples and tokens of a replica's step; None if none of its ranks showed them."""
        ranks = [self._by_rank[rank] for rank in replica]
        each = [
            self._of_rank(rank, first)
            for rank in ranks
            if _feeds(rank) or any(step.tokens is not None for step in rank.steps)
        ]
        seen = [found for found in each if found is not None]
        if not seen:
            return None
        tokens = self._cut * max(tokens for _, tokens in seen)
        if len(seen) == self._cut:  # parts may be unlike
            tokens = sum(tokens for _, tokens in seen)
        return max(samples for samples, _ in seen), tokens

    @property
    def _said_samples(self) -> float | None:
        """Samples of a step by the script itself; None if it does not tell."""
        said = [[s.samples for s in rank.steps if s.samples is not None] for rank in self.all]
        return sum(map(statistics.fmean, said)) if said and all(said) else None

    def ran(self, first: int, accum: int, rows: int = 1) -> Ran:
        """The steps from `first` on, with `rows` a sample. Unseen values are as requested."""
        steps = [step for rank in self.all for step in rank.steps[first : self.made]]
        micro_steps, shared = self.micro_steps, self.sharing
        replicas, degrees = shared.replicas, shared.degrees
        if (said := self._said_samples) is not None:
            replicas, degrees = apart(self._by_rank).replicas, {}
        each = [self._of_replica(replica, first) for replica in replicas]
        data_parallel = len(replicas)
        samples = float(self._candidate.samples_of(data_parallel) * accum)
        tokens = samples * self._candidate.seq_len
        is_seen = all(found is not None for found in each) and (shared.known or said is not None)
        is_seen = is_seen and not self.alternating
        if is_seen:
            samples = sum(found[0] for found in each if found) / rows
            tokens = sum(found[1] for found in each if found)
        if said is not None:
            says_tokens = any(s.tokens is not None for rank in self.all for s in rank.steps)
            tokens = tokens if says_tokens else tokens * said / samples
            samples = said
            whole = samples / (self._candidate.micro_batch * accum)
            if not self._candidate.vector:
                data_parallel = min(len(self.all), max(1, round(whole)))
        if shared.pipelined and "micro_batch" in self._told:
            whole = samples / (self._candidate.micro_batch * data_parallel)
            micro_steps = round(whole) if whole >= 1 and whole.is_integer() else micro_steps
        lengths = [self._cut * length for _, length in self.shapes() if length]
        waited_s, took_s = sum(s.waited_s for s in steps), sum(s.step_s for s in steps)
        return Ran(
            samples=samples,
            tokens=tokens,
            seq_len=max(1, round(statistics.median(lengths))) if lengths else 1,
            micro_steps=micro_steps,
            seen=is_seen,
            # An emulated device's steps take virtual time, the loader takes the host's.
            waiting_share=min(1.0, waited_s / took_s) if took_s and not emulating() else 0.0,
            trainable=self._over_stages([self._unsplit(r.latest) for r in self.all if r.latest]),
            frozen=self._over_stages([r.latest.frozen for r in self.all if r.latest]),
            dtype=self.dtype,
            rows=rows,
            data_parallel=data_parallel,
            degrees=degrees,
            optimizer=max((r.latest.optimizer for r in self.all if r.latest), default=""),
        )

    def _unsplit(self, seen: Seen) -> int:
        """Trained parameters of a rank's model or stage: if tensors were split by hand, what
        differs from those of its replica's other ranks are parts, too."""
        place = seen.place
        if place is None or "tp" not in self.sharing.degrees:
            return seen.trainable
        stage = place.degrees.get("pp")
        if self.sharing.pipelined and stage is None:
            return seen.trainable
        (replica,) = (each for each in self.sharing.replicas if seen.rank in each)
        others = [other.place for n in replica if (other := self._by_rank[n].latest)]
        sizes = [size for size, _ in place.parts]
        held = [
            other.parts for other in others
            if other and other.degrees.get("pp") == stage and [n for n, _ in other.parts] == sizes
        ]  # fmt: skip
        digests = [{digest for _, digest in each} for each in zip(*held, strict=True)]
        more = (size * (len(each) - 1) for size, each in zip(sizes, digests, strict=True))
        return seen.trainable + sum(more)

    def _over_stages(self, counts: Sequence[int]) -> int:
        """Parameters of a whole model; each rank holds `counts`."""
        if not self.sharing.pipelined:
            return max(counts, default=0)
        return sum(counts) * self.sharing.degrees["pp"] // len(counts)

    @property
    def dtype(self) -> str:
        """The dtype in which the ranks compute; empty without evidence."""
        return max((r.latest.dtype for r in self.all if r.latest), default="")

    @property
    def micro_steps(self) -> int:
        """Backward passes of a step."""
        counts = [step.micro_steps for rank in self._feeding for step in rank.steps]
        return max(1, round(statistics.median(counts))) if counts else 1

    @property
    def alternating(self) -> bool:
        """Whether several optimizers step in turns, each after backward passes of its own, as of
        generator and critic. What is a step is not known, unless the script says it, which it
        first does after some."""
        later = [rank.steps[len(rank.steps) // 2 :] for rank in self.all]
        each = [[set(step.steppers) for step in steps if step.steppers] for steps in later]
        return any(found and not set.intersection(*found) for found in each)

    def shapes(self) -> Iterator[tuple[int, int]]:
        """Samples and their tokens of each micro-step seen; 0 tokens if only samples show."""
        for rank in self._feeding:
            yield from (each[:2] for each in self._shapes(rank.steps))

    def _of_rank(self, rank: Process, first: int = 0) -> tuple[float, float] | None:
        """Samples and tokens of one of a rank's steps from `first` on; None without evidence."""
        timed = steps = rank.steps[first : self.made]
        if not any(step.shapes or step.tokens is not None for step in steps):
            steps = rank.steps  # the hook sees the first steps, then few
        looked = list(self._shapes(steps))
        said = [step.tokens for step in steps if step.tokens is not None]
        if not looked and not said:
            return None
        micro_steps = statistics.fmean(step.micro_steps for step in timed)
        if self.sharing.pipelined:  # a rank with several stages makes more passes than batches
            micro_steps = len(looked) / max(1, sum(bool(step.shapes) for step in steps))

        def mean(of: Callable[[Batch], float]) -> float:
            by_size = None if self.sharing.pipelined else self._by_size(rank.steps, timed, of)
            plain = statistics.fmean(map(of, looked)) if looked else 0.0
            return micro_steps * plain if by_size is None else by_size

        samples, tokens = mean(lambda each: each.samples), mean(lambda each: each.tokens)
        return samples or 1.0, statistics.fmean(said) if said else tokens

    def _by_size(
        self, steps: Sequence[Step], timed: Sequence[Step], of: Callable[[Batch], float]
    ) -> float | None:
        """The mean, over `timed` steps, of what is `of` batches: by the sizes of losses, as these
        go together in the `steps` that were looked at. None if they do not, or are all alike."""
        sizes, counts, ratios = [step.size for step in timed], [], []
        for step in steps:
            if step.size and (shapes := list(self._shapes([step]))):
                counts.append(step.micro_steps * statistics.fmean(map(of, shapes)))
                ratios.append(counts[-1] / step.size)
        if not ratios or not all(sizes) or len({step.size for step in steps}) == 1:
            return None
        even = min(EVEN, max(counts) / min(counts))
        if max(ratios) > even * min(ratios):
            return None
        return statistics.fmean(sizes) * statistics.fmean(ratios)

    def _shapes(self, steps: Sequence[Step]) -> Iterator[Batch]:
        for step in steps:
            if not step.sure and not self._whole:
                continue
            for tensors in step.shapes:
                # A seq2seq model has two, with the same samples.
                largest = max(tensors, key=_values)
                length = largest[1] if len(largest) > 1 else 0
                samples, length = self._unpacked(largest[0], length)
                tokens = samples * max(1, length)
                if 1 < step.calls == len(tensors):
                    tokens = sum(map(_values, tensors)) if length else tokens
                    whole = sum(shape[0] for shape in tensors)
                    if "micro_batch" in self._told and whole == self._candidate.micro_batch:
                        samples, tokens = whole, max(whole, tokens)  # cut in the model
                yield Batch(samples, length, tokens)

    @cached_property
    def _whole(self) -> bool:
        """Whether batches that are not sure to be whole have the requested samples."""
        shapes = Counter(tensors[0][0] for rank in self._feeding for step in rank.steps
                         for tensors in step.shapes if not step.sure)  # fmt: skip
        ((samples, _),) = shapes.most_common(1) or [(0, 0)]
        return "micro_batch" not in self._told or samples == self._candidate.micro_batch

    def _unpacked(self, samples: int, length: int) -> tuple[int, int]:
        """The requested shape, if a batch has its numbers in another layout. It may be in one row,
        have samples in columns, or labels without rows."""
        asked = self._candidate
        if "micro_batch" in self._told and (samples, length) == (1, asked.micro_batch):
            return asked.micro_batch, 0  # a state of a recurrent layer
        if (samples, length) == (asked.seq_len, asked.micro_batch) and "seq_len" in self._told:
            return asked.micro_batch, asked.seq_len
        whole = (asked.tokens, asked.tokens - asked.micro_batch)
        if not {"micro_batch", "seq_len"} <= set(self._told) or (samples > 1 and length):
            return samples, length
        fits = samples * max(1, length) in whole
        return (asked.micro_batch, asked.seq_len) if fits else (samples, length)

    def mismatch(self, accum: int, world_size: int, rows: int = 1) -> Mismatch | None:
        """The first difference between run and request; the model gets `rows` a sample."""
        asked, told = self._candidate, self._told
        if self.world_size != world_size or len(self.all) != world_size:
            return Mismatch("ranks", world_size, self.world_size, self._other_ranks(world_size))
        if self.sharing.pipelined and self._fills_pipeline(accum):
            return None
        said = self._said_samples is not None
        counts = Counter(step.micro_steps for rank in self._feeding for step in rank.steps)
        usual = counts[accum] == max(counts.values(), default=0)  # others were skipped, or short
        if "grad_accum" in told and not usual and not said:
            got = f"a step has {self.micro_steps} backward passes"
            says = f"asked for {accum} micro-steps, {got}"
            return Mismatch("grad_accum", accum, self.micro_steps, says)
        shapes = Counter(self.shapes())
        if not shapes or said:
            return None
        if "tokens_per_batch" in told:
            return _too_many_tokens(shapes, asked)
        (samples, length), _ = shapes.most_common(1)[0]
        length *= self._cut
        lengths = {self._cut * t for _, t in shapes}
        may_be_padded = len(lengths) > 1 or shapes.total() < SAME_LENGTH  # to a batch's longest
        got = f"{samples} x {length}" if length else str(samples)
        for rank, each in enumerate(asked.vector):
            mine = Counter(n for n, *_ in self._shapes(self._by_rank[rank].steps)).most_common(1)
            if mine and mine[0][0] != rows * each:
                says = f"asked for micro_batch {each} of rank {rank}, its model got {mine[0][0]}"
                return Mismatch("micro_batch_per_rank", each, mine[0][0], says)
        if "micro_batch" in told and not asked.vector and samples != rows * asked.micro_batch:
            says = f"asked for micro_batch {asked.micro_batch}, the model got {got}"
            if samples * self.micro_steps == asked.micro_batch:
                sizes = f"{asked.micro_batch},{2 * asked.micro_batch}"
                says += (
                    f" in each of {self.micro_steps} backward passes; if it cuts batches, use"
                    f" {{bs}} and --axis bs={sizes} instead"
                )
                return Mismatch("cut", asked.micro_batch, samples, says)
            return Mismatch("micro_batch", asked.micro_batch, samples, says)
        padded = may_be_padded and max(lengths) <= asked.seq_len + SHIFTED
        shifted = abs(length - asked.seq_len) <= self._cut * SHIFTED
        if "seq_len" in told and length and not shifted and not padded:
            says = f"asked for seq_len {asked.seq_len}, the model got {got}"
            return Mismatch("seq_len", asked.seq_len, length, says)
        return None

    def _other_ranks(self, asked: int) -> str:
        """How many train in the place of those `asked` for, and what to write."""
        count, group = len(self.all), max(1, self.world_size)
        says = f"asked for {asked} rank{'s' * (asked > 1)}, but"
        if group == 1 < count:
            join = "join them in the script, as by torch.distributed.init_process_group()"
            return f"{says} {count} processes train, each alone; {join}"
        says += " one process trains" if group == 1 else f" {group} ranks train"
        start = f"torchrun --nproc-per-node {asked} in the place of python, or " * (asked > 1)
        return f"{says}; write {start}--world-size {group} (of a plan: --gpus)"

    def _fills_pipeline(self, accum: int) -> bool:
        """Whether the first stage gets the requested samples of a step, in whatever parts."""
        each = [self._of_rank(rank) for rank in self._feeding]
        whole = self._candidate.micro_batch * accum
        right = all(found is None or found[0] == whole for found in each)
        lengths = {length for _, length in self.shapes() if length}
        longest = max(lengths, default=0) * self._cut
        fits = not longest or abs(longest - self._candidate.seq_len) <= self._cut * SHIFTED
        return right and "micro_batch" in self._told and (fits or "seq_len" not in self._told)


def _values(shape: Sequence[int]) -> int:
    """Ids of a tensor of that shape, or samples."""
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def _feeds(rank: Process) -> bool:
    place = rank.latest and rank.latest.place
    return not (isinstance(place, Place) and place.fed)


def _too_many_tokens(shapes: Counter[tuple[int, int]], candidate: Candidate) -> Mismatch | None:
    most = max(samples * max(1, length) for samples, length in shapes)
    if most <= candidate.tokens:
        return None
    says = f"asked for batches of {candidate.tokens} tokens, the model got {most}"
    return Mismatch("micro_batch", candidate.tokens, most, says)
