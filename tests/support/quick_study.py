"""`python -m autotune` with quick ranks in the place of real ones: no torch, made-up times."""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.runner import local

WORKER = [sys.executable, "-P", str(Path(__file__).with_name("quick_rank.py"))]

if __name__ == "__main__":
    from autotune.__main__ import main

    local.WORKER = WORKER
    main()
