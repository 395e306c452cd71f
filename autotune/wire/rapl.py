"""What the processor's packages used, by Linux's powercap: RAPL of Intel and of AMD.

Source: the kernel's Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """One processor: its cores, caches and memory controller, whoever uses them."""

    counter: Path
    range_uj: int
    """Where the counter begins anew."""

    def energy_uj(self) -> int:
        """Raises OSError where it may not be read, ValueError where that is no number."""
        return int(self.counter.read_text())


def packages(powercap: Path) -> list[Package]:
    """Of all domains in `powercap` those of whole packages: what lies in one is counted there.

    Raises as `Package.energy_uj` does.
    """
    found = []
    for domain in sorted(powercap.glob("intel-rapl:*")):
        if (domain / "name").read_text().startswith("package"):
            range_uj = int((domain / "max_energy_range_uj").read_text())
            found.append(Package(domain / "energy_uj", range_uj))
            found[-1].energy_uj()
    return found
