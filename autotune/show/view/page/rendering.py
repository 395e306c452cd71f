"""Templates of pages: one file of HTML each, which needs nothing else.

Jinja escapes all text from outside, and the page's policy forbids all requests.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from autotune.installed import VERSION
from autotune.show.view.charts.vega import CONFIG

SCRIPTS = {"library": "vega.js", "script": "page.js"}
"""Scripts on a page. `scripts/bundle_charts` makes the first."""


def rendered(template: str, data: dict[str, Any], *, live: bool = False, **context: Any) -> str:
    """The page of a `template`, with `data` for its script."""
    scripts = {name: asset(file) for name, file in SCRIPTS.items()}
    return _template(template).render(
        version=VERSION,
        policy=_policy(*scripts.values(), live=live),
        style=Markup(asset("style.css")),
        data={"config": CONFIG, "live": live, **data},
        **{name: Markup(text) for name, text in scripts.items()},
        **context,
    )


@cache
def asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


@cache
def _template(name: str) -> jinja2.Template:
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return made.get_template(name)


def _policy(*scripts: str, live: bool) -> str:
    """A policy that only runs `scripts`, and only requests the page itself if it is `live`."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:;"
        f" connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
