"""How errors are worded: one row a wording, with the source file and the versions it is from.

Only what ends a run, or what is mistaken for it, has a row. Patterns see one line without what
launchers and loggers write before it; where a message says no number, they insist on what stands
before it, since logs also talk about running out of memory.
"""

from __future__ import annotations

from autotune.advise.diagnose.wordings_device import DEVICE
from autotune.advise.diagnose.wordings_host import HOST, KILLED, SHARED
from autotune.advise.diagnose.wordings_other import LAST, MISTAKEN

WORDINGS = (*MISTAKEN, *DEVICE, *HOST, *SHARED, *KILLED, *LAST)
"""In the order in which they are tried: what is mistaken for something else stands before it."""

NEEDLES = tuple(sorted({needle.encode() for row in WORDINGS for needle in row.needles}))
