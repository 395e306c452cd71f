"""The errors of plans: beside published training runs and recorded peaks.

    .venv/bin/python scripts/bench/plan.py [--rows results/public/memory.csv] [--only TEXT] [--all]

Each published run with all needed facts is planned as it ran. Prints tables in Markdown: the error
of the peak by family and by engine. Another one shows whether runs that ran out of memory were
expected to fit at 80 % of their card. Models are counted and traced in this process.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from published.configs import NotComparableError
from published.on_grids import grid_errors
from published.rows import CEILING, asked_of
from shared import ROOT, run, say, table

from autotune.advise.plan.expected import Expected, Helpers, PlanRequest, plan
from autotune.errors import ModelError, UsageError
from autotune.wire.helpers import Described

ROWS = ROOT / "results" / "public" / "memory.csv"
GOAL = 0.1
"""Median error."""


@dataclass(frozen=True)
class Scored:
    """A row beside its plan."""

    id: str
    family: str
    engine: str
    kind: str
    measured_gib: float | None
    """None if it ran out of memory, or the source does not say it."""
    oom: bool
    expected: Expected

    @property
    def left_out_gib(self) -> float:
        """Memory that the source's figure leaves out. torch's figures only cover its allocator;
        "allocated" leaves out merely reserved memory."""
        parts, of_torch = self.expected.parts, self.kind in ("max_allocated", "max_reserved")
        left_out = parts.outside if of_torch else 0.0
        left_out += parts.unused if self.kind == "max_allocated" else 0.0
        return left_out / 2**30

    @property
    def interval_gib(self) -> tuple[float, float, float]:
        """The expected figure: low, median, high."""
        peak = self.expected.peak
        sizes = (peak.low_bytes, peak.bytes, peak.high_bytes)
        low, median, high = (size / 2**30 - self.left_out_gib for size in sizes)
        return low, median, high

    @property
    def error(self) -> float:
        assert self.measured_gib is not None
        return self.interval_gib[1] / self.measured_gib - 1


def main(*, rows: Path = ROWS, only: str = "", all: bool = False) -> None:
    """`only` takes rows with this text in their id; `all` prints the rows, too."""
    runs = pd.read_csv(rows)
    runs = runs[runs["id"].str.contains(only, regex=False)]
    helpers = in_this_process()
    scored, left_out = [], Counter[str]()
    with tempfile.TemporaryDirectory(prefix="autotune-plan-") as folder:
        for row in [{str(k): v for k, v in r.items()} for r in runs.to_dict("records")]:
            try:
                scored.append(score(row, Path(folder), helpers))
            except NotComparableError as error:
                left_out[str(error)] += 1
            except (UsageError, ModelError) as error:
                left_out["cannot be planned"] += 1
                say(f"{row['id']}: {error}")
            else:
                say(" | ".join(shown(scored[-1])))
    print("\n\n".join(report(scored, left_out, rows=all)))
    if not only:
        print(f"\n## Recorded peaks\n\n{grid_errors()}")


def in_this_process() -> Helpers:
    from probes.count import count
    from probes.describe import describe

    def described(asked: Any) -> Described | str:
        return describe(asked)

    return Helpers(count, described)


def score(row: dict[str, Any], folder: Path, helpers: Helpers) -> Scored:
    """Plan the run of `row` as it was.

    Raises:
        NotComparableError: facts are missing.
    """
    options, gpus, card = asked_of(row, folder)
    made = plan(PlanRequest(options=options, card=card, host_bytes=None), gpus, helpers)
    if made.untraced:
        raise NotComparableError("not traced")
    (expected,) = made.expected
    oom = row["outcome"] == "oom"
    peak = row["peak_gib"]
    return Scored(
        id=row["id"], family=row["family"], engine=row["engine"], kind=str(row["peak_kind"]),
        measured_gib=None if math.isnan(peak) else peak, oom=oom, expected=expected,
    )  # fmt: skip


def report(scored: Sequence[Scored], left_out: Counter[str], *, rows: bool) -> Iterator[str]:
    """Paragraphs in Markdown."""
    with_peak = [each for each in scored if each.measured_gib is not None and not each.oom]
    yield f"{len(scored)} published runs were planned as they ran, {len(with_peak)} with a peak."
    yield errors(with_peak, "all", lambda each: "all")
    yield errors(with_peak, "family", lambda each: each.family)
    yield errors(with_peak, "engine", lambda each: each.engine)
    yield errors(with_peak, "figure", lambda each: each.kind)
    inside = [
        each for each in with_peak
        if each.interval_gib[0] <= (each.measured_gib or 0) <= each.interval_gib[2]
    ]  # fmt: skip
    share = len(inside) / max(1, len(with_peak))
    yield f"Within the interval of 90 %: {len(inside)} of {len(with_peak)} ({share:.0%})."
    yield confusion(scored)
    if left_out:
        yield "Left out: " + "; ".join(f"{why} {n}" for why, n in sorted(left_out.items())) + "."
    if rows:
        head = "run | engine | measured GiB | expected GiB (90 %) | error"
        yield table(head, map(shown, sorted(scored, key=lambda each: each.id)))


def last(found: pd.Series[float]) -> float:
    """The 90th percentile of absolute values, which is one of them."""
    return float(np.quantile(found.abs(), 0.9, method="inverted_cdf"))


def errors(scored: Sequence[Scored], name: str, group: Callable[[Scored], str]) -> str:
    frame = pd.DataFrame({"of": [group(s) for s in scored], "error": [s.error for s in scored]})
    groups = sorted(frame.groupby("of", sort=False)["error"], key=lambda item: -len(item[1]))
    rows = (
        (
            key, len(found), f"{found.abs().median():.1%}",
            f"{last(found):.1%}",
            f"{found.median():+.1%}",
        )
        for key, found in groups
    )  # fmt: skip
    return table(f"{name} | runs | median error | 90th percentile | median with its sign", rows)


def confusion(scored: Sequence[Scored]) -> str:
    """A table: expected to fit at 80 % of the card or not, beside the outcome."""
    counts = Counter((each.expected.fits, each.oom) for each in scored)
    said = {True: "said to fit", False: "said not to fit"}
    rows = ((words, counts[fits, False], counts[fits, True]) for fits, words in said.items())
    shown = table(f"at a ceiling of {CEILING:.0%} | ran | ran out of memory", rows)
    wrong = [each.id for each in scored if each.expected.fits and each.oom]
    return f"{shown}\n\nSaid to fit, and ran out: {', '.join(wrong)}." if wrong else shown


def shown(each: Scored) -> Sequence[str]:
    low, median, high = each.interval_gib
    expected = f"{median:.2f} ({low:.2f}-{high:.2f})"
    if each.oom or each.measured_gib is None:
        return each.id, each.engine, "oom" if each.oom else "", expected, ""
    return each.id, each.engine, f"{each.measured_gib:.2f}", expected, f"{each.error:+.1%}"


if __name__ == "__main__":
    run(main)
