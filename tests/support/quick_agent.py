"""An agent whose ranks are quick ones: no torch, made-up times."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from autotune.measure.agent.command import main
from autotune.measure.runner import forks, local
from tests.support.programs import QUICK_RANK

if __name__ == "__main__":
    local.WORKER = forks.SERVER = QUICK_RANK
    sys.exit(main())
