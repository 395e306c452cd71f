"""Predicted peak bytes of a candidate, fitted to what probes of its build measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.outcome import Record
from autotune.space import Candidate


def predicted_peak_bytes(candidate: Candidate, records: Sequence[Record]) -> int | None:
    """Device bytes at the peak, from a line through the peaks of the same build.

    Within a build memory is close to affine in tokens (arXiv 2205.05198, section 4). None until
    two token counts were measured. It explains; it never rules a candidate out.
    """
    seen = [
        (record.candidate.tokens, record.outcome.measurement.peaks.device_bytes)
        for record in records
        if record.candidate.build == candidate.build and record.outcome.measurement is not None
    ]
    if len({tokens for tokens, _ in seen}) < 2:
        return None
    tokens, peaks = np.array(seen, dtype=float).T
    slope, base = np.polyfit(tokens, peaks, 1)
    return max(0, int(base + slope * candidate.tokens))
