"""The candidates of a space that may still be proposed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from autotune.space.arrays import Codes
from autotune.space.candidate import Build, Candidate
from autotune.space.space import Space


class OpenCandidates:
    """All candidates are open at first. Avoided ones come only when no other is open."""

    def __init__(self, space: Space) -> None:
        self._candidates = space.candidates
        self._place = {candidate: i for i, candidate in enumerate(space.candidates)}
        self._open = np.ones(len(space.candidates), dtype=bool)
        self._avoided = np.zeros(len(space.candidates), dtype=bool)
        self._builds = {build: i for i, build in enumerate(space.builds)}
        self._build_of = np.array([self._builds[c.build] for c in space.candidates])

    def __iter__(self) -> Iterator[Candidate]:
        """The open candidates, ascending."""
        return (self._candidates[i] for i in np.flatnonzero(self._open))

    def __contains__(self, candidate: Candidate) -> bool:
        return bool(self._open[self._place[candidate]])

    def close(self, candidate: Candidate) -> None:
        """Never propose `candidate` again."""
        self._open[self._place[candidate]] = False

    def reopen(self, candidate: Candidate) -> None:
        """Allow a candidate again that was closed and then not tried."""
        self._open[self._place[candidate]] = True

    def avoid(self, candidates: Iterable[Candidate]) -> None:
        """Propose these only when nothing else is open."""
        self._avoided[[self._place[candidate] for candidate in candidates]] = True

    def avoids(self, candidate: Candidate) -> bool:
        avoided = bool(self._avoided[self._place[candidate]])
        return avoided and bool((self._open & ~self._avoided).any())

    def has(self, build: Build | None = None) -> bool:
        """Whether a candidate is open, of `build` if one is given."""
        if build is None:
            return bool(self._open.any())
        return bool((self._open & (self._build_of == self._builds[build])).any())

    def places(self, build: Build | None = None) -> Codes:
        """Indices in the space of the candidates that may be proposed now. Only those of `build`,
        while one of them is open. Never empty while a candidate is open."""
        if build is not None and self.has(build):
            return np.flatnonzero(self._open & (self._build_of == self._builds[build]))
        others = self._open & ~self._avoided
        return np.flatnonzero(others if others.any() else self._open)
