"""Make the script that draws the charts of a page: Vega, Vega-Lite and Vega-Embed in one file.

It comes from vl-convert-python (the extra `pictures`), which draws pictures with the same
versions. Run it after an update of that, look at a report, and bring vega.LICENSE.txt up to date.
"""

from __future__ import annotations

from pathlib import Path

import vl_convert

PLACE = Path(__file__).parent.parent / "autotune" / "show" / "view" / "page" / "vega.js"


def versions() -> str:
    """Versions of its libraries, as in its first line."""
    newest = vl_convert.get_vegalite_versions()[-1]
    return (
        f"/* Vega {vl_convert.get_vega_version()}, Vega-Lite {newest},"
        f" Vega-Embed {vl_convert.get_vega_embed_version()}; see vega.LICENSE.txt */"
    )


def main() -> None:
    body = vl_convert.javascript_bundle("window.embedChart = vegaEmbed;")
    PLACE.write_text(f"{versions()}\n{body}\n", encoding="utf-8")
    print(f"{PLACE}: {PLACE.stat().st_size} bytes; {versions()}")


if __name__ == "__main__":
    main()
