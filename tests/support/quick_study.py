"""`python -m autotune` with quick ranks in the place of real ones: no torch, made-up times.

QUICK_BEAT_S     seconds between two signs of life of a process; as usual if unset
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from autotune.measure.runner import forks, local
from autotune.result.folder import processes
from tests.support.programs import QUICK_RANK

if __name__ == "__main__":
    from autotune.__main__ import main

    local.WORKER = forks.SERVER = QUICK_RANK
    processes.BEAT_S = float(os.environ.get("QUICK_BEAT_S", processes.BEAT_S))
    main()
