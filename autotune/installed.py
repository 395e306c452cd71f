"""The version of this package, packages that a flag needs, and the line that installs one."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

VERSION = "0.1.0"
DISTRIBUTION = "autotune-training"
"""What pip calls this package: PyPI has another one named `autotune`."""
EXTRAS = {
    "bitsandbytes": "qlora",
    "cryptography": "cluster",
    "peft": "lora",
    "psycopg": "postgres",
    "ray": "ray",
    "scipy": "gp",
    "tensorboardX": "tensorboard",
    "torchao": "torchao",
    "vl_convert": "pictures",
    "wandb": "wandb",
}
"""Extras of pyproject.toml that install a package, by the name of its import."""
OTHERS = {"flash_attn": "flash-attn --no-build-isolation", "triton": "triton"}
"""Arguments of pip for packages without an extra."""
CHECKOUT = Path(__file__).resolve().parents[1]
"""The folder of both packages: a checkout, or the environment's site-packages."""


def missing(package: str) -> str:
    """Says that `package` (its import's name) is not installed, and what installs it; or ""."""
    found = importlib.util.find_spec(package)
    # A mere folder of that name, such as `wandb`, is found, too, but has no origin.
    if found is not None and found.origin is not None:
        return ""
    return f"{package} is not installed; run {_install(package)}"


def _install(package: str) -> str:
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if package in OTHERS:
        return f"{pip} {OTHERS[package]}"
    extra = f"[{EXTRAS[package]}]" if package in EXTRAS else ""
    if not (CHECKOUT / "scripts" / "tune").is_file():
        return f'{pip} "{DISTRIBUTION}{extra}"'
    if extra:
        return f'{pip} -e "{CHECKOUT}{extra}"'
    # The script makes the environment, and brings it up to date.
    return f"{shlex.quote(str(CHECKOUT / 'scripts' / 'tune'))}, which takes the same arguments"
