"""The quality of the search: samplers and other tools' rules on recorded grids.

    .venv/bin/python scripts/bench/search.py results/grids/cpu*.csv [--seeds 50] [--png FILE]

Every search replays real measurements on a virtual clock that charges their time. Each candidate
was measured several times, and one measurement is drawn. Their median is the truth of a candidate,
and it fits if all of them are under the ceiling. Regret is the share by which
the best found candidate is below the best that fits. It is 0 for a faster one that is over the
ceiling in another measurement. The capacity is the largest of the median peaks, so that the
ceiling binds.

"result" is the best of a whole study of the default sampler, finals included.

Samplers run in the study's own loop; `searches/rules.py` has the rules, and says what they know.
The noise floor is the regret of an oracle that sees one measurement of every candidate and takes
the best. The measurements that searches and oracle see also judge them. A line below the table has
both with separate judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from searches.grids import cores, fitting_ceilings, repeats, truth
from searches.rules import RULES, rule_course
from searches.samplers import ask_seconds, sampler_course, study_result
from searches.tables import (
    BUDGETS,
    METHODS,
    MINUTES,
    PROBES,
    Search,
    Whole,
    judged_apart,
    plot,
    promises,
    regret_table,
    results,
)
from shared import run

from autotune.space.choices import SAMPLER

CEILINGS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Task:
    """One search to run."""

    path: Path
    ceiling: float
    method: str
    seed: int
    minutes: float | None = None
    """The budget of a whole study, finals included; None for a search of some probes."""
    repeat: int | None = None
    """The repeat that it draws, if others judge."""


def main(
    *grids: Path,
    seeds: int = 50,
    gp_seeds: int = 5,
    methods: str = ",".join(METHODS),
    png: Path | None = None,
) -> None:
    """A search by gp takes a second, so it has fewer seeds, `gp_seeds`; `png` gets a picture."""
    searches: dict[str, list[Search]] = {}
    floors: dict[str, list[float]] = {}
    of_method = {name: gp_seeds if name == "gp" else seeds for name in methods.split(",")}
    with cores() as pool:
        for path in grids:
            ceilings = fitting_ceilings(path, CEILINGS)
            ran = pool.map(carried_out, tasks(path, ceilings, of_method, seeds), chunksize=8)
            found = [each for each in ran if isinstance(each, Search)]
            whole = [each for each in ran if isinstance(each, Whole)]
            floor = [truth(path, c).oracle(seed) for c in ceilings for seed in range(seeds)]
            searches[path.stem], floors[path.stem] = found, floor
            print(f"{header(path, ceilings)}\n")
            print(regret_table(found, floor))
            if repeats(path) > 1:
                blind = [truth(path, c, repeat=n) for c in ceilings for n in range(repeats(path))]
                again = pool.map(carried_out, tasks_apart(path, ceilings, seeds), chunksize=8)
                apart = [each for each in again if isinstance(each, Search)]
                print(judged_apart(apart, [each.oracle(seed=0) for each in blind]))
            print()
            print(results(whole), "\n")
            print(promises(found, whole, floor), "\n", flush=True)
    print(
        f"One ask over 100 000 candidates takes {1e3 * ask_seconds(100_000):.0f} ms (promised:"
        " at most 50)."
    )
    if png is not None:
        plot(searches, floors, png)


def tasks(
    path: Path, ceilings: Sequence[float], of_method: Mapping[str, int], seeds: int
) -> list[Task]:
    """Every method under every ceiling, from every seed; and whole studies."""
    searches = [
        Task(path, ceiling, method, seed)
        for method, count in of_method.items() for ceiling in ceilings for seed in range(count)
    ]  # fmt: skip
    studies = [
        Task(path, ceiling, SAMPLER, seed, minutes)
        for minutes in BUDGETS for ceiling in ceilings for seed in range(seeds)
    ]  # fmt: skip
    return searches + studies


def tasks_apart(path: Path, ceilings: Sequence[float], seeds: int) -> list[Task]:
    """Searches of the default sampler that draw one repeat; the others judge them."""
    return [
        Task(path, ceiling, SAMPLER, seed, repeat=repeat)
        for ceiling in ceilings for repeat in range(repeats(path)) for seed in range(seeds)
    ]  # fmt: skip


def carried_out(task: Task) -> Search | Whole:
    """Carry `task` out."""
    known = truth(task.path, task.ceiling, repeat=task.repeat)
    if task.minutes is not None:
        found, lost = study_result(known, task.method, task.seed, task.minutes)
        over = found is not None and found not in known.fitting
        return Whole(task.minutes, known.regret(found), lost, over)
    make = rule_course if task.method in RULES else sampler_course
    course = make(known, task.method, task.seed, max(PROBES))

    def after(count: int) -> float:
        return known.regret(course[min(count, len(course)) - 1].found if course else None)

    def within(seconds: float) -> float:
        done = [point for point in course if point.elapsed_s <= seconds]
        return known.regret(done[-1].found if done else None)

    return Search(
        method=task.method,
        regrets={n: after(n) for n in PROBES},
        by_minute={m: within(60 * m) for m in MINUTES},
        lost=sum(point.lost for point in course) / max(1, len(course)),
        probes=len(course),
        errors=tuple(point.error for point in course[4:] if point.error is not None),
    )


def header(path: Path, ceilings: Sequence[float]) -> str:
    """The searched grid, in words."""
    known = truth(path, 0.8)
    left_out = len(CEILINGS) - len(ceilings)
    return (
        f"### {path.stem}\n\n"
        f"{len(known.space.candidates)} candidates, {len(known.grid.rows)} measurements,"
        f" {known.grid.device}; ceilings {', '.join(f'{c:.0%}' for c in ceilings)}"
        + (f" ({left_out} more left nothing that fits)" if left_out else "")
        + "."
    )


if __name__ == "__main__":
    run(main)
