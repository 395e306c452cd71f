"""The charts of a study as files, and a card to share."""

from __future__ import annotations

import base64
import importlib
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from autotune.errors import UsageError
from autotune.installed import VERSION, missing
from autotune.show.report.objective import of_objective, rate
from autotune.show.report.result import configuration
from autotune.show.report.text import si
from autotune.show.view.baseline import compared
from autotune.show.view.charts import CHARTS, drawn
from autotune.show.view.charts.vega import CONFIG, Spec, trials
from autotune.show.view.study import Shown
from autotune.units import gib

WIDTH, HEIGHT, SCALE = 620, 340, 2.0
"""Pixels of the drawing; a PNG has `SCALE` times as many in each direction."""
CARD = "card"
CARD_CHART = (520, 330)


def write(study: Shown, folder: Path) -> list[str]:
    """Write each chart, and the card, as PNG and SVG; returns the names of the files.

    Raises:
        UsageError: the package that draws them is not installed.
        OSError: `folder` cannot be written in.
    """
    converter = _converter()
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, svg in pictures(study, converter).items():
        png = converter.svg_to_png(svg, scale=1.0 if name == CARD else SCALE)
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        (folder / f"{name}.png").write_bytes(png)
        names += [f"{name}.png", f"{name}.svg"]
    return names


def _converter() -> Any:
    if why := missing("vl_convert"):
        raise UsageError(f"--png: {why}")
    return importlib.import_module("vl_convert")


def pictures(study: Shown, converter: Any) -> dict[str, str]:
    """SVG by name."""
    rows = trials(study)
    found = {
        name: converter.vegalite_to_svg(_whole(spec, rows, CHARTS[name].title))
        for name, spec in drawn(study).items()
    }
    if study.best is not None:
        found[CARD] = _card(study, rows, converter)
    return found


def _whole(spec: Spec, rows: list[dict[str, Any]], title: str | None = None,
           size: tuple[int, int] = (WIDTH, HEIGHT)) -> Spec:  # fmt: skip
    return {
        "height": size[1],
        **spec,
        "width": size[0],
        "datasets": {"trials": rows},
        "config": CONFIG | {"background": "#ffffff"},
        **({"title": {"text": title, "anchor": "start", "fontSize": 15}} if title else {}),
    }


def _card(study: Shown, rows: list[dict[str, Any]], converter: Any) -> str:
    """The card, 1200 x 630: the winner, and throughput by micro-batch."""
    assert study.best is not None
    best, measured = study.best, study.best.measured
    value = of_objective(measured, study.objective)
    spec = drawn(study).get("throughput")
    chart = converter.vegalite_to_svg(_whole(spec, rows, None, CARD_CHART)) if spec else ""
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    text = resources.files(__package__).joinpath("card.svg.j2").read_text("utf-8")
    return made.from_string(text).render(
        name=_short(study.name, 44),
        model=_short(f"{study.model} on {study.devices}", 70),
        value=rate(value, study.objective),
        tokens=f"{si(measured.tokens_per_s)} tokens/s",
        memory=f"{measured.share_of_capacity:.0%} of {gib(best.limits.capacity_bytes)} at peak",
        chips=[_short(word, 34) for word in configuration(best.config).split(" (")[0].split(", ")],
        compared=textwrap.wrap(compared(study), 48)[:4],
        confirmed="confirmed" if best.confirmed else "not confirmed",
        chart=base64.b64encode(chart.encode()).decode(),
        version=VERSION,
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
