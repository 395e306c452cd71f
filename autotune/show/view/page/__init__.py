"""The page of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.result.best import Best, Tie
from autotune.result.best import Cell as BestCell
from autotune.show.report.cells import joules
from autotune.show.report.objective import SCALES, interval, of_objective, rate
from autotune.show.report.result import cautions, configuration, sentences
from autotune.show.report.text import counts_text, minutes, si
from autotune.show.view.baseline import compared
from autotune.show.view.charts import CHARTS, drawn
from autotune.show.view.charts.vega import trials
from autotune.show.view.page.rendering import rendered
from autotune.show.view.page.rows import columns, log_tails, trial
from autotune.show.view.study import Shown, flat
from autotune.units import gib


@dataclass(frozen=True)
class PageTable:
    caption: str
    columns: list[str]
    rows: list[list[str]]


def page(study: Shown, *, live: bool = False, state: str = "") -> str:
    """The whole page; a `live` one reloads if there is another `state`."""
    logs = log_tails(study)
    specs = drawn(study)
    return rendered(
        "page.html.j2",
        {"charts": specs, "trials": trials(study), "logs": logs},
        live=live,
        title=study.title,
        facts=_facts(study),
        remarks=_remarks(study),
        winner=None if study.best is None else _winner(study, study.best),
        tables=_tables(study),
        charts=[{"name": name, "title": CHARTS[name].title, "caption": CHARTS[name].caption}
                for name in specs],
        columns=columns(study),
        trials=[trial(study, row, logs) for row in study.trials.to_dict("records")],
        verdicts=[verdict.value for verdict, count in study.counts.items() if count],
        fingerprint=[_named(*each) for each in flat(study.manifest.fingerprint)],
        state=state,
    )  # fmt: skip


def _facts(study: Shown) -> list[str]:
    finals = int((study.ran["kind"] == "final").sum())
    lost = study.past is not None and study.past.ended is None
    return [
        study.name,
        f"{minutes(study.elapsed_s)} of {minutes(study.budget_s)}",
        f"trials: {counts_text(study.counts)}; final rounds: {finals}",
        "running" if study.running else "interrupted" if lost else "ended",
    ]


def _remarks(study: Shown) -> list[str]:
    lost = [
        f"After {minutes(each.elapsed_s)}, {each.why}."
        for each in (study.past.lost if study.past is not None else ())
    ]
    if study.best is not None:
        known = cautions(study.best, study.manifest.space["axes"]["micro_batch"])
        return [*(each.value for each in known), *lost]
    return [f"There is no result: {study.lack}.", *lost]


def _winner(study: Shown, best: Best) -> dict[str, Any]:
    measured, limits = best.measured, best.limits
    low, value, high = interval(measured, study.objective)
    step, share = measured.step_s, measured.share_of_capacity
    sure = best.sure
    shown_low, shown_value, shown_high = (
        rate(each, study.objective).removesuffix(f" {study.unit}") for each in (low, value, high)
    )
    numbers = [
        {"value": shown_value, "name": study.unit,
         "more": f"95 % interval {shown_low} to {shown_high}"},
        *({"value": si(of_objective(measured, name)), "name": SCALES[name][1],
           "more": f"{step.median * 1e3:.4g} ms a step, {step.steps} steps"}
          for name in study.rates[1:]),
        {"value": f"{share:.0%}", "name": "of the memory at the peak",
         "more": f"{gib(measured.peak_bytes.device)} of {gib(limits.capacity_bytes)}"},
    ]  # fmt: skip
    if sure is not None and not (best.repeats and best.repeats.noisy):
        numbers.append({"value": f"{sure.best:.0%}", "name": "sure to be the fastest measured",
                        "more": f"{sure.within_1_percent:.0%} within 1 % of it"})  # fmt: skip
    headroom = limits.limit_bytes - measured.peak_bytes.device
    return {
        "title": "Best configuration" + ("" if best.confirmed else ", not confirmed"),
        "chips": configuration(best.config).replace(" (", ", ").rstrip(")").split(", "),
        "numbers": numbers,
        "memory": f"Peak {gib(measured.peak_bytes.device)}, ceiling {gib(limits.limit_bytes)}"
        f" ({limits.ceiling:.0%} of {gib(limits.capacity_bytes)}), headroom {gib(headroom)}.",
        "used": round(100 * min(1.0, share), 2),
        "ceiling": round(100 * limits.ceiling, 2),
        "baseline": compared(study),
        "lines": sentences(best),
    }


def _tables(study: Shown) -> list[PageTable]:
    """Configurations beside the winner."""
    if study.best is None:
        return []
    best = study.best
    kinds: dict[str, Sequence[BestCell | Tie]] = {
        f"The same batch of {best.config.global_batch_samples} samples": best.same_batch,
        "As fast within the noise, with no less memory": best.ties,
        "Best trade-offs of speed and energy": best.pareto,
    }
    return [
        _beside(study, best, caption, found)
        for caption, found in kinds.items()
        if len(found) > (found is best.pareto)
    ]


def _beside(study: Shown, best: Best, caption: str, found: Sequence[BestCell | Tie]) -> PageTable:
    """`found` beside the winner, which is marked among them."""
    most = max(of_objective(each.measured, study.objective) for each in found)
    cells: dict[str, Callable[[BestCell | Tie], str]] = {
        "configuration": lambda each: configuration(each.config),
        **{SCALES[name][1]: partial(_rate, objective=name) for name in study.rates},
        "of the fastest": lambda each: (
            f"{of_objective(each.measured, study.objective) / most:.1%}"
        ),
        "peak": lambda each: gib(each.measured.peak_bytes.device),
        "of capacity": lambda each: f"{each.measured.share_of_capacity:.0%}",
        "J/token": lambda each: joules(each.measured),
        "": lambda each: "the best" if each.config == best.config else "",
    }
    texts = {name: [text(each) for each in found] for name, text in cells.items()}
    shown = {name: words for name, words in texts.items() if any(words)}
    return PageTable(
        caption, list(shown), [list(row) for row in zip(*shown.values(), strict=True)]
    )


def _rate(each: BestCell | Tie, objective: str) -> str:
    return si(of_objective(each.measured, objective))


def _named(name: str, value: Any) -> tuple[str, str]:
    """A field of the fingerprint, in words."""
    sized = name.endswith("_bytes") and isinstance(value, int)
    shown = name.removesuffix("_bytes").replace("_", " ").replace(".", " ")
    return shown, gib(value) if sized else str(value)
