"""A driver of Ray that looks at a cluster or holds agents: `python -m` this module.

Without an argument it prints the nodes. With a `Held` as JSON it reads a key from stdin and starts
agents. It prints how each one ended, and ends all with its stdin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_LOOK_S = 0.2
END_S = 2.0
"""Seconds for agents to end, before Ray ends them."""
_CPUS = 0.01
"""Ray places an agent by some resource; it needs hardly any."""


@dataclass(frozen=True)
class RayNode:
    name: str
    address: str
    gpus: int
    cpus: int


@dataclass(frozen=True, kw_only=True)
class Held:
    nodes: int
    free_s: float
    """Seconds for nodes to become free."""
    arguments: list[str]
    """Arguments of the interpreter in Ray's worker."""
    folder: str
    variables: dict[str, str]


def main(argv: list[str]) -> int:
    """Look or hold; returns the exit code."""
    import ray

    try:
        # Without an address, Ray would start a cluster of this machine alone.
        address = os.environ.get("RAY_ADDRESS", "auto")
        ray.init(address, logging_level="error", log_to_driver=bool(argv))
    except (ConnectionError, RuntimeError, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    if not argv:
        print(json.dumps([asdict(node) for node in _nodes(ray.nodes())]))
        return 0
    held, key = Held(**json.loads(argv[0])), sys.stdin.readline()
    hung_up = threading.Event()
    threading.Thread(target=_until_it_ends, args=(hung_up,), daemon=True).start()
    return _hold(ray, held, key, hung_up)


def _nodes(listed: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """Nodes with the most GPUs come first. If any has one, nodes without are left out."""
    found = [
        RayNode(
            each["NodeManagerHostname"], each["NodeManagerAddress"],
            int(each["Resources"].get("GPU", 0)), int(each["Resources"].get("CPU", 0)),
        )
        for each in listed if each["Alive"]
    ]  # fmt: skip
    with_gpus = [node for node in found if node.gpus]
    return sorted(with_gpus or [node for node in found if node.cpus], key=lambda node: -node.gpus)


def _until_it_ends(hung_up: threading.Event) -> None:
    sys.stdin.read()
    hung_up.set()


def _hold(ray: Any, held: Held, key: str, hung_up: threading.Event) -> int:
    from ray.util.placement_group import placement_group, placement_group_table

    nodes = _nodes(ray.nodes())
    bundles = [_bundle(nodes[: place + 1]) for place in range(held.nodes)]
    group = placement_group(bundles, strategy="STRICT_SPREAD")
    deadline = time.monotonic() + held.free_s
    while not group.wait(_LOOK_S):
        if hung_up.is_set():
            return 0
        if time.monotonic() > deadline:
            _say(_lacking(held, nodes, ray.available_resources()))
            return 1
    names = {each["NodeID"]: each["NodeManagerHostname"] for each in ray.nodes()}
    placed = placement_group_table(group)["bundles_to_node_id"]
    actors = {
        _actor(ray, group, place, bundle): names[placed[place]]
        for place, bundle in enumerate(bundles)
    }
    missing = () if "OMP_NUM_THREADS" in os.environ else ("OMP_NUM_THREADS",)
    told = {
        each.hold.remote(held.arguments, key, held.folder, held.variables, missing): name
        for each, name in actors.items()
    }
    _watch(ray, told, hung_up)
    for each in actors:
        each.end.remote()
    ray.wait(list(told), num_returns=len(told), timeout=END_S)
    return 0


def _bundle(nodes: Sequence[RayNode]) -> dict[str, float]:
    """The resources that reserve the last of `nodes`: all its GPUs."""
    gpus = nodes[-1].gpus if nodes else 0
    return {"GPU": gpus} if gpus else {"CPU": _CPUS}


def _lacking(held: Held, nodes: Sequence[RayNode], free: Mapping[str, float]) -> str:
    has = ", ".join(f"{node.name} ({node.gpus} GPUs, {node.cpus} CPUs)" for node in nodes)
    return (
        f"no {held.nodes} nodes were free within {held.free_s:.0f} s: the Ray cluster has"
        f" {has or 'none'}, of which {free.get('GPU', 0):.0f} GPUs and {free.get('CPU', 0):.0f}"
        " CPUs are free"
    )


def _say(line: str) -> None:
    print(f"autotune: {line}", flush=True)


def _watch(ray: Any, told: Mapping[Any, str], hung_up: threading.Event) -> None:
    """Print the ends of agents, with their nodes, until all have ended or nobody listens."""
    running = list(told)
    while running and not hung_up.is_set():
        done, running = ray.wait(running, timeout=_LOOK_S)
        for each in done:
            try:
                how = ray.get(each)
            except ray.exceptions.RayError as error:
                how = " ".join(str(getattr(error, "cause", None) or error).split())[:300]
            _say(f"{told[each]}: {how}")


def _actor(ray: Any, group: Any, place: int, bundle: Mapping[str, float]) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return (
        ray.remote(AgentHolder)
        .options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, place),
        )
        .remote()
    )


class AgentHolder:
    """An actor that holds one agent. Ray sends it to a node, so it stands alone."""

    _process: subprocess.Popen[str] | None = None

    def hold(
        self, arguments: list[str], key: str, folder: str, variables: dict[str, str],
        missing: tuple[str, ...],
    ) -> str:  # fmt: skip
        """Wait for the agent's end; returns how it ended. Only Ray set the `missing` variables."""
        own = {name: value for name, value in os.environ.items() if name not in missing}
        self._process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=folder, env=own | variables, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(key)
        self._process.stdin.close()
        last = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:  # Ray shows it in the driver's output
            print(line, end="", flush=True)
            last = line.strip() or last
        how = f"agent left with exit code {self._process.wait()}"
        return f"{how}: {last}" if last else how

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
