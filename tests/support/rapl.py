"""Folders as Linux's powercap has them, of processors that do not exist."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WATTS = 80


def powercap(root: Path, packages: int = 1, *, range_uj: int = 2**36) -> Path:
    """A folder with so many packages, a part of each, and the whole machine."""
    names = {"intel-rapl:9": "psys", "intel-rapl-mmio:0": "package-0"}
    for number in range(packages):
        names |= {f"intel-rapl:{number}": f"package-{number}", f"intel-rapl:{number}:0": "core"}
    for folder, name in names.items():
        (root / folder).mkdir(parents=True)
        (root / folder / "name").write_text(f"{name}\n")
        (root / folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
        (root / folder / "energy_uj").write_text("0\n")
    return root


def count(folder: Path, energy_uj: int, package: int = 0) -> None:
    """Set a package's counter; whoever reads it sees a whole number."""
    counter = folder / f"intel-rapl:{package}" / "energy_uj"
    (folder / "next").write_text(f"{energy_uj}\n")
    (folder / "next").replace(counter)


@contextmanager
def burning(folder: Path) -> Iterator[None]:
    """Meanwhile the first package uses `WATTS`."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.0005):
            count(folder, int(WATTS * 1e6 * time.monotonic()) % 2**36)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
