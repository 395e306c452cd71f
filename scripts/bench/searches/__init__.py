"""Searches on recorded grids, many at a time: one process a core, each with one thread."""

import os

# Before numpy's import: threads of its algebra would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
