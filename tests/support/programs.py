"""Where things are, and the ranks that stand in for the product's own."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
SCRIPTS = ROOT / "scripts"
QUICK_RANK = [sys.executable, "-P", str(TESTS / "support" / "quick_rank.py")]
FAULTY_RANK = [sys.executable, "-P", str(TESTS / "support" / "faulty_rank.py")]
