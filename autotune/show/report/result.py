"""The result on a terminal: every cell, the winner, ties, and cautions."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune.result.best import FINALS, Best, Config, Measured, PhaseTook, Routed, Tie
from autotune.result.choice import PROBABLY
from autotune.show.report.cells import cells_table, joules, product, same_batch_table
from autotune.show.report.objective import has_no_tokens, of_objective, rate
from autotune.show.report.text import counts_text, paragraph, print_lines, printable, si, visible
from autotune.space.axes import AXES
from autotune.space.outcome import DISTURBED_SHARE, Verdict
from autotune.space.workload import NO_PHASES, SCRIPTS
from autotune.units import gib
from autotune.wire.reports import DURING, EVALUATE, SAVE

SHOWN_TIES = 4
WAITS = 0.1
"""From this share of a step on, the report mentions the wait for data."""
FEW_PEAKS = 5
"""The median error of fewer peaks is not shown."""
UNSEEN = {EVALUATE: "evaluation", SAVE: "saving"}
DOES = {EVALUATE: "evaluates", SAVE: "saves"}
FLAG = {EVALUATE: "--eval-batch 8", SAVE: "--save full"}
ROUTED: dict[Routed, str] = {
    "balanced": "Routing: balanced. A trained router is less even, and may need more memory.",
    "hot": "Routing: speed and peak are those with a hot expert.",
    "balanced,hot": "Routing: the speed is balanced experts'; the ceiling holds with a hot one,"
    " too. A trained router is in between.",
    "as initialised": "Routing: as initialised. A trained router is less even, and may need more"
    " memory.",
    "the script's own": "Routing: the script's own. Later in training it may be less even, and"
    " need more memory.",
}
HOST_FULL = 0.8
"""Above this used share of the host's memory, more processes may not have room."""


class Caution(Enum):
    """A warning for readers of the result, with a remedy."""

    EMULATED = (
        "Nothing was timed: memory was weighed on emulated GPUs, and speed is modelled. Run a"
        " study on the real ones for their speed."
    )
    NO_FINALS = (
        "Not confirmed: this configuration had no final. Use --resume with a --budget that"
        " leaves time for finals."
    )
    FINALS_FAILED = (
        "Not confirmed: a final of this configuration failed; trials.csv has the reason."
    )
    MEASUREMENTS_DIFFER = (
        "Not confirmed: the finals of this configuration differ too much from each other or from"
        " the search. Measure it again on a quiet machine: use --resume with --budget."
    )
    FINALS_SLOWER = (
        "Not confirmed: finals of others were over 10% slower than the search measurement of"
        " this configuration. Measure it again on a quiet machine: use --resume with --budget."
    )
    STOPPED_IN_SEARCH = (
        "You stopped the search early: a faster configuration may be untried. Go on with --resume."
    )
    STOPPED_IN_FINALS = (
        "You stopped the finals early: another of the best candidates may be faster. Go on with"
        " --resume."
    )
    DISTURBED = (
        "Other processes used much of the processor during timing. On a quiet machine speeds may"
        " be higher."
    )
    BROKEN_TRIALS = (
        "Some trials crashed or hung. See trials.csv and logs/ beside best.json for the reasons."
    )
    LARGEST_MICRO_BATCH = (
        "The winner has the largest micro_batch of the search. A larger one may be faster: raise"
        " the end of --micro-batch."
    )


def cautions(best: Best, micro_batches: Sequence[int]) -> tuple[Caution, ...]:
    """The cautions that apply to `best`, of a study that searched these `micro_batches`."""
    trials = best.trials
    applies = {
        Caution.EMULATED: best.device == "emulated",
        Caution.NO_FINALS: best.unconfirmed == "no finals",
        Caution.FINALS_FAILED: best.unconfirmed == "its finals failed",
        Caution.MEASUREMENTS_DIFFER: best.unconfirmed == "its measurements differ",
        Caution.FINALS_SLOWER: best.unconfirmed == "other finals were slower",
        Caution.STOPPED_IN_SEARCH: best.stopped_in == "search",
        Caution.STOPPED_IN_FINALS: best.stopped_in == "finals",
        Caution.DISTURBED: (best.measured.disturbed_share or 0.0)
        > DISTURBED_SHARE[best.device_kind],
        Caution.BROKEN_TRIALS: trials["crashed"] + trials["hung"] > 0,
        Caution.LARGEST_MICRO_BATCH: len(micro_batches) > 1
        and not best.config.candidate.vector
        and best.config.micro_batch == max(micro_batches)
        and not (best.asked.get("global_batch") and best.config.grad_accum == 1),
    }
    return tuple(caution for caution, does in applies.items() if does)


def print_result(console: Console, best: Best, path: Path, warn: tuple[Caution, ...]) -> None:
    """Print every cell, the winner, ties, and cautions."""
    width = console.width
    finals = best.trials.get(FINALS, 0)
    trials = {Verdict(name): n for name, n in best.trials.items() if name != FINALS}
    found = "(not confirmed) " * (not best.confirmed) + visible(configuration(best.config))
    winner = Text("\n").join(paragraph(found, width, "Best: "))
    winner.stylize("bold")
    console.print()
    console.print(cells_table(best, width))
    print_lines(console, Text(), winner)
    for text in (*sentences(best), *_ties(best), *_pareto(best)):
        print_lines(console, *paragraph(visible(text), width, "      "))
    if best.same_batch:
        console.print()
        console.print(same_batch_table(best))
        for text in _of_same_batch(best):
            print_lines(console, *paragraph(text, width))
    for caution in warn:
        print_lines(console, *paragraph(caution.value, width, "Warning: ", "yellow"))
    counts = f"{counts_text(trials)}; final rounds: {finals}"
    print_lines(console, Text(), *paragraph(counts, width, "Trials: "))
    known = best.prediction
    if known is not None and known.peak_median_error is not None and known.trials >= FEW_PEAKS:
        off = f"{known.peak_median_error:.1%}"
        text = f"Memory: predicted peaks were off by {off} (median; probes: {known.trials})"
        print_lines(console, Text(text))
    if best.command is not None:
        print_lines(console, Text("Run:     " + printable(shlex.join(best.command), console)))
    print_lines(console, Text("Written: " + printable(str(path), console)))


def sentences(best: Best) -> list[str]:
    """The winner in sentences: speed, memory, certainty."""
    routed = [ROUTED[best.routing]] if best.routing else []
    return [_speed(best), *_waiting(best), _memory(best), *_phases(best), *routed, *_sure(best)]


def _of_same_batch(best: Best) -> list[str]:
    """The best micro_batch, and the effect of another effective batch."""
    fastest = max(best.same_batch, key=lambda cell: cell.measured.tokens_per_s).config
    text = f"Fastest here: {product(fastest)}"
    if fastest != best.config:
        text += f"; over all measurements the best is {product(best.config)}"
    gain = best.update_share and 1 / (1 - best.update_share / 2) - 1
    more = f"; twice the batch would train {gain:.1%} more tokens/s" if gain else ""
    return [
        f"{text}.",
        "Another effective batch changes the number of optimizer steps and the learning-rate"
        f" schedule, but not the memory{more}.",
    ]


def configuration(config: Config) -> str:
    """A configuration by its flags, without those that are off."""
    of_script = config.model.startswith(SCRIPTS)
    always = ("depth", "seq_len", "micro_batch", "checkpointing")[
        of_script : 3 if of_script else 4
    ]
    after = ("optimizer", *(("depth",) if of_script and config.depth == 1 else ()))
    names = [
        name for name, axis in AXES.items()
        if (name in always or (getattr(config, name) != axis.plain and name not in after))
        and not (name == "seq_len" and config.seq_len == 1)
    ]  # fmt: skip
    searched = ", ".join(_named(name, config) for name in names)
    if of_script:
        return f"{searched} (optimizer {config.optimizer}, {config.ranks})"
    return f"{searched} ({config.dtype}, {config.optimizer}, {config.engine}, {config.ranks})"


def _named(axis: str, config: Config) -> str:
    """A value with the name of its axis; values of the user's own axes have it already."""
    value = getattr(config, axis)
    return str(value) if axis == "own" else f"{axis} {value}"


def _speed(best: Best) -> str:
    config, measured, step = best.config, best.measured, best.measured.step_s
    unit, scale = ("s", 1.0) if step.median >= 1 else ("ms", 1e3)
    median, low, high = (f"{value * scale:.4g}" for value in (step.median, step.low, step.high))
    alone = has_no_tokens(measured)
    samples = alone or best.objective == "samples_per_s" or best.config.token is not None
    return (
        (f"{si(measured.samples_per_s)} samples/s, " if samples else "")
        + ("" if alone else f"{si(measured.tokens_per_s)} tokens/s, ")
        + f"{si(measured.model_flops_per_s, 'FLOP/s')}:"
        f" {median} {unit} a step ({low} to {high} in {step.steps} steps) of"
        f" {_samples(best)},"
        + ("" if alone else f" {best.tokens_per_step:.0f} tokens,")
        + f" grad_accum {config.grad_accum}."
        + (f" {joules(measured)} J a token." if measured.joules_per_token else "")
        + _batches(best)
        + (
            f" Compiling took {measured.compile_s:.0f} s before that."
            if measured.compile_s
            else ""
        )
        + _spread(best)
    )


def _samples(best: Best) -> str:
    measured, mix = best.measured, best.length_mix
    if mix is None or not (mix.by_tokens or best.config.pack == "on"):
        return f"{best.config.global_batch_samples} samples"
    step_s = measured.step_s.median + (measured.spread_s or 0.0)
    return f"{measured.samples_per_s * step_s:.0f} samples in the mean"


def _batches(best: Best) -> str:
    """The batches of samples of different lengths."""
    config, measured = best.config, best.measured
    if measured.real_share is None:
        return ""
    made = "Batches are padded to their longest sample"
    if config.pack == "on":
        made = "Samples are packed into rows"
    elif measured.bucket_lengths:
        lengths = ", ".join(map(str, measured.bucket_lengths))
        made = f"Batches are padded to the next of {lengths} tokens"
    elif config.pad_to_multiple > 1:
        made += f", to a multiple of {config.pad_to_multiple}"
    share = f"{measured.real_share:.0%} of the computed tokens are real"
    return f" {made}: {share}, and only those count."


def _spread(best: Best) -> str:
    """The part of a step for compiling the shapes of a mix."""
    spread_s, mix = best.measured.spread_s, best.length_mix
    if not spread_s or mix is None:
        return ""
    return (
        f" Compiling all shapes takes {spread_s * mix.run_steps:.0f} s in {mix.run_steps} steps,"
        f" {spread_s * 1e3:.3g} ms a step, which the rates include."
    )


def _waiting(best: Best) -> list[str]:
    """The share of a script's step that waits for data, and the source of its tokens."""
    measured = best.measured
    lines = []
    if measured.waiting_share is not None and measured.waiting_share >= WAITS:
        lines.append(
            f"{measured.waiting_share:.0%} of the step waits for data. More loader processes"
            " (--data-workers), pinned memory or prefetching may help most. `autotune loader`"
            " measures a loader alone."
        )
        host_bytes = best.limits.host_capacity_bytes
        held = measured.peak_bytes.host / host_bytes if host_bytes else 0.0
        if held >= HOST_FULL:
            lines.append(
                f"But the run already uses {held:.0%} of the host's memory, and each loader"
                " process needs more: load less data at once, or memory-map the files."
            )
    if measured.tokens == "claimed":
        unseen = "batches, or which ranks share them" if best.config.world_size > 1 else "a batch"
        lines.append(
            f"autotune could not see {unseen}, so samples and tokens are those of the command."
            " Call autotune.step(tokens=..., samples=...) in the script to count them."
        )
    return lines


def _memory(best: Best) -> str:
    limits = best.limits
    if not best.measured.peak_bytes.device:
        return "Its peak was not recorded, so no ceiling was checked: it ran."
    headroom_bytes = limits.limit_bytes - best.measured.peak_bytes.device
    if (peaks := best.measured.rank_peak_bytes) and limits.rank_capacities:
        each = " + ".join(
            f"{gib(peak)} ({peak / size:.0%} of {gib(size)})"
            for peak, size in zip(peaks, limits.rank_capacities, strict=False)
        )
        return f"Uses {each} by rank; the ceiling is {limits.ceiling:.0%}."
    return (
        f"Uses {best.measured.share_of_capacity:.0%} of {gib(limits.capacity_bytes)};"
        f" {gib(headroom_bytes)} under the ceiling of {limits.ceiling:.0%}."
    )


def _phases(best: Best) -> list[str]:
    """The peak of each phase of a script, and its unseen phases."""
    said = []
    if best.measured.phases:
        each = (
            f"{gib(found.peak_bytes.device)} {DURING[name]}"
            + (f" ({_times(found)}{_on_disk(best, name, found)})" if found.count else "")
            + " (of small inputs only)" * (name == EVALUATE and not found.count)
            for name, found in best.measured.phases.items()
        )
        said.append(f"Peaks: {', '.join(each)}.")
    asked = best.asked.get("phase_args")
    return said + not_seen(best.unseen, asked=asked, of_script=best.command is not None)


def _times(found: PhaseTook) -> str:
    count = found.count or 1
    each = f"{(found.seconds or 0.0) / count:.2g} s"
    return f"once, {each}" if count == 1 else f"{count} times, {each} each"


def _on_disk(best: Best, name: str, found: PhaseTook) -> str:
    """What a model's checkpoint took of the disk."""
    if name != SAVE or best.command is not None:
        return ""
    size = found.written_bytes
    return f" to write {gib(size)}" if size else ", not written to a disk"


def not_seen(unseen: Sequence[str] | None, *, asked: str | None, of_script: bool) -> list[str]:
    """The unseen phases of a run, and a remedy; a script was `asked` by these --phase-args."""
    if not unseen:
        return []
    names = " and ".join(UNSEEN[name] for name in unseen)
    if not of_script:
        flags = " and ".join(FLAG[name] for name in unseen)
        return [f"Not tried: {names}, which may need more memory; add {flags}."]
    does = " or ".join(DOES[name] for name in unseen)
    if asked == NO_PHASES:
        return [f"Not seen: {names}, as --phase-args {NO_PHASES} asked."]
    if asked:
        return [
            f"Not seen: {names}. With --phase-args the script did not come to it, or does it"
            " unseen, as by pickle or in a thread: see trials.csv. If it never"
            f" {does}, ignore this."
        ]
    return [
        f"Not seen: {names}, which may need more memory. If the script {does}, add"
        ' --phase-args "..." to the autotune command: flags of the script with which it does so'
        " after 5 steps."
    ]


def _sure(best: Best) -> list[str]:
    """The probability that no other configuration that fits is faster."""
    sure, repeats = best.sure, best.repeats
    if repeats is not None and repeats.noisy:
        return [
            f"Noise: finals of one configuration differ by {repeats.differ:.0%} here (median of"
            f" {repeats.pairs} pairs). Smaller differences do not count"
            + (": among equals, the one with the least memory wins." if best.ties else ".")
        ]
    if sure is None:
        alone = best.trials["ok"] + best.trials["pruned"] == 1
        return ["No other configuration that fits was measured, so another may be faster."] * alone
    what = (
        "has the most tokens per joule" if best.objective == "tokens_per_joule" else "is fastest"
    )
    among = "all that fit"
    if best.untried != 0:
        among = f"the {best.trials['ok'] + best.trials['pruned']} that were measured and fit"
    text = f"Of {among}, this one {what} with a probability of {sure.best:.0%}."
    if sure.best < 0.995:
        text += f" It is within 1% of the best of them with {sure.within_1_percent:.0%}."
    text += f" Next: {_differs(sure.next, best)}." if sure.next else ""
    if best.untried:
        text += f" {best.untried} of the {best.candidates} candidates were not tried."
    return [text, *_undecided(best)]


def _undecided(best: Best) -> list[str]:
    """A note if another configuration is likelier to be the best."""
    sure = best.sure
    if sure is None or sure.next is None or (sure.next_best or 0.0) <= PROBABLY:
        return []
    return [f"Undecided: {_differs(sure.next, best)} is probably better."]


def _differs(config: Config, best: Best) -> str:
    one, winner = config.candidate, best.config.candidate
    return ", ".join(
        _named(axis, config) for axis in AXES if getattr(one, axis) != getattr(winner, axis)
    )


def _ties(best: Best) -> list[str]:
    if not best.ties:
        return []
    head = "As fast within the noise, but with no less memory:"
    return [head, *_few(best, best.ties, lambda m: f"{m.share_of_capacity:.0%} of capacity")]


def _pareto(best: Best) -> list[str]:
    if len(best.pareto) < 2:
        return []
    head = "Best trade-offs of speed and energy:"
    return [head, *_few(best, best.pareto, lambda m: f"{joules(m)} J a token")]


def _few(best: Best, ties: Sequence[Tie], more: Callable[[Measured], str]) -> list[str]:
    """As many of `ties` as fit in a few lines; best.json has all."""
    lines = []
    for tie in ties[:SHOWN_TIES]:
        what, shown = _differs(tie.config, best) or "the best", "tokens_per_s"
        if best.objective == "samples_per_s":
            shown = best.objective
        value = rate(of_objective(tie.measured, shown), shown)
        lines.append(f"  {what}: {value}, {more(tie.measured)}")
    if len(ties) > SHOWN_TIES:
        lines.append(f"  and {len(ties) - SHOWN_TIES} more, see best.json")
    return lines
