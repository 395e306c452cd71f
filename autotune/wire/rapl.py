"""Energy of processor packages, by Linux's powercap: RAPL of Intel and of AMD.

Source: the kernel's Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A processor with its cores, caches and memory controller, for all its users."""

    counter: Path
    range_uj: int
    """The value at which the counter begins anew."""

    def energy_uj(self) -> int:
        """The counter. Raises OSError if it is not readable, ValueError if it is no number."""
        return int(self.counter.read_text())


def packages(powercap: Path) -> list[Package]:
    """The domains of whole packages in `powercap`; they include the domains within them.

    Raises as `Package.energy_uj` does.
    """
    found = []
    for domain in sorted(powercap.glob("intel-rapl:*")):
        if (domain / "name").read_text().startswith("package"):
            range_uj = int((domain / "max_energy_range_uj").read_text())
            found.append(Package(domain / "energy_uj", range_uj))
            found[-1].energy_uj()
    return found
