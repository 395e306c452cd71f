"""Several machines: a launcher starts an agent on each, and groups may span them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from autotune.device.device import BusyProcess, DeviceInfo, EnergyCounters
from autotune.errors import UsageError
from autotune.measure.agent.scratch import Scratch
from autotune.measure.launch.launcher import Launcher
from autotune.measure.runner import Runner
from autotune.measure.runner.channel import Channel
from autotune.measure.runner.counting import count
from autotune.measure.runner.gather import gather
from autotune.measure.runner.identity import check_installed, identity
from autotune.measure.runner.pool import pools
from autotune.measure.runner.remote import Remote
from autotune.measure.runner.seating import Seating
from autotune.measure.runner.wiring import Wiring
from autotune.measure.testbed.machine import Machine
from autotune.measure.testbed.ranks import Layout
from autotune.measure.testbed.resolve import resolve
from autotune.space.options import Options, Parallel
from autotune.space.space import Space
from autotune.space.workload import Workload
from autotune.wire.agents import Facts

DIAL_S = 60.0
"""An agent that has not dialled after so many seconds will not come."""
DIAL_BY_HAND_S = 600.0
HEAR_S = 1.0


class Cluster(Machine):
    """The `Testbed` of nodes."""

    def __init__(
        self, launcher: Launcher, spec: str, *, allow_mixed: bool, allow_busy: bool, dial_s: float
    ) -> None:
        """Start agents, and wait for `dial_s` until they have dialled.

        Raises:
            UsageError: nodes differ, or cannot serve.
            NoNodesError: there is none.
        """
        for line in launcher.notes:
            _say(line)
        check_installed()
        self.spec = spec
        self._say: Callable[[str], None] = _say
        self._on_lost: Callable[[str], None] = _say
        self._launcher = launcher
        self._scratch = Scratch("autotune-launch-")
        self._nodes: list[Remote] = []
        self._closed = threading.Event()
        self._hears: threading.Thread | None = None
        self._logs: Path | None = None
        """The study's folder for logs; those of the launcher go there, too."""
        self._identity = identity(self._scratch.folder)
        atexit.register(self.close)
        try:
            self._address = launcher.address()
            self._nodes = self._gathered(dial_s)
            check_alike(self._nodes, allow_mixed=allow_mixed)
            if not allow_busy:
                check_idle(self._nodes)
            self.device = ClusterDevice(self._nodes)
        except BaseException:
            self.close()
            raise

    def space(self, options: Options, known: Workload | None = None) -> Space:
        if options.search.objective == "tokens_per_joule" and len(self._nodes) > 1:
            _check_energy(self._nodes)

        return resolve(
            options,
            self.device,
            min(facts.host_memory_bytes for facts in self._facts),
            min(facts.cores for facts in self._facts),
            count=partial(count, model=options.model.name),
            known=known,
            lay_out=self._layout,
        )

    def slots(self, options: Options, space: Space) -> int:
        return self._layout(space.workload.world_size, options.devices.parallel).slots

    def beside(self, space: Space, slots: int) -> int:
        return self._seating(space.workload.world_size, slots).beside

    def variables(self, space: Space, slots: int) -> dict[str, str]:
        return self.device.rank_environment(space.workload.world_size)

    def runners(self, space: Space, wirings: Sequence[Wiring]) -> list[Runner]:
        self._say = wirings[0].note
        self._on_lost = wirings[0].on_lost or self._say
        for node in self._nodes:
            if node.lost:  # it was lost before the study began
                self._on_lost(node.lost)
        self._logs = wirings[0].logs
        self._hears = threading.Thread(target=self._hear, daemon=True)
        self._hears.start()
        return [
            *pools(
                self.device.kind,
                self._seating(space.workload.world_size, len(wirings)),
                space.workload,
                space.limits,
                wirings,
                close=self.close,
                channel=partial(Channel, self._address, self._identity),
            )
        ]

    def close(self) -> None:
        """End all agents; may be called again."""
        atexit.unregister(self.close)
        self._closed.set()
        for node in self._nodes:
            node.close()
        self._launcher.close()
        if self._hears is not None:
            self._hears.join(HEAR_S)
        if self._logs is not None:
            for log in self._scratch.folder.glob("*.log"):
                with suppress(OSError), (self._logs / log.name).open("ab") as kept:
                    kept.write(log.read_bytes())  # append to the log of an earlier run
            self._logs = None
        self._scratch.close()

    def _note(self, text: str) -> None:
        self._say(text)

    def _lose(self, why: str) -> None:
        self._on_lost(why)

    def _hear(self) -> None:
        """Note what the launcher knows of agents that end during the study."""
        while not self._closed.wait(HEAR_S):
            for line in dict.fromkeys(self._launcher.poll()):
                if not self._closed.is_set():
                    self._say(line)

    @property
    def _facts(self) -> list[Facts]:
        return [node.facts for node in self._nodes if node.facts is not None]

    def _gathered(self, dial_s: float) -> list[Remote]:
        channel = Channel(self._address, self._identity)
        try:
            line = channel.credentials
            folder = self._scratch.folder
            key_file = folder / "key"
            with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(line + "\n")
            host, port = channel.address
            _say(f"agents dial {host}:{port}")
            for told in self._launcher.start(f"{host}:{port}", line, key_file, folder):
                _say(told)
            return gather(
                channel,
                self._launcher.nodes,
                device=self.spec,
                limit_s=dial_s,
                names=self._launcher.names,
                ended=self._launcher.poll,
                last_line=self._launcher.last_line,
                note=self._note,
                on_lost=self._lose,
            )
        finally:
            channel.close()

    def _places(self, world_size: int) -> list[tuple[Remote, int]]:
        """Ranks for each node: by the launcher, or one a GPU; on CPUs an even part of a group."""
        known = self._launcher.slots
        on_cpu = self.device.kind == "cpu"
        even = -(-world_size // len(self._nodes))
        for node in self._nodes:
            if not on_cpu and known.get(node.name, 0) > len(node.uuids):
                raise UsageError(
                    f"--launch: node {node.name} has {len(node.uuids)} GPUs; write"
                    f" slots={len(node.uuids)} for it"
                )
        return [
            (node, known.get(node.name, even if on_cpu else len(node.uuids)))
            for node in self._nodes
        ]

    def _seating(self, world_size: int, slots: int | None = None) -> Seating:
        return Seating(self._places(world_size), world_size, slots)

    def _layout(self, world_size: int, parallel: Parallel) -> Layout:
        seating = self._seating(world_size)
        if not seating.groups:
            there = sum(places for _, places in self._places(world_size))
            raise UsageError(
                f"--world-size {world_size}: {len(self._nodes)} nodes have {there} places for"
                f" ranks; use --world-size {there}"
            )
        if parallel != "auto" and parallel > seating.groups:
            raise UsageError(
                f"--parallel {parallel}: {len(self._nodes)} nodes hold {seating.groups} groups of"
                f" {world_size} ranks; use --parallel {seating.groups}"
            )
        slots = seating.groups if parallel == "auto" else parallel
        seating = self._seating(world_size, slots)
        return Layout(
            slots=slots,
            nodes=seating.nodes,
            beside=seating.beside,
            ranks=seating.ranks_on_a_node,
        )


class ClusterDevice:
    """The devices of all nodes, one after the other; a node without GPUs is one device."""

    def __init__(self, nodes: Sequence[Remote]) -> None:
        self._nodes = nodes
        self._facts = [node.facts for node in nodes if node.facts is not None]
        self.kind: Literal["cpu", "cuda"] = self._facts[0].kind
        self.why = f"nodes {', '.join(node.name for node in nodes)}"
        self.remark = ""
        devices = [device for facts in self._facts for device in facts.devices]
        self.infos = tuple(
            DeviceInfo(
                index=index,
                uuid=device.uuid,
                name=device.name,
                capacity_bytes=device.capacity_bytes,
                bf16=device.bf16,
            )
            for index, device in enumerate(devices)
        )

    def in_use_bytes(self) -> tuple[int, ...]:
        return tuple(used for node in self._nodes for used in node.in_use_bytes())

    def other_processes(self) -> tuple[BusyProcess, ...]:
        """None: nodes look for them."""
        return ()

    def rank_environment(self, world_size: int) -> dict[str, str]:
        """Empty: nodes make the environments of their ranks."""
        return {"DS_ACCELERATOR": self.kind}

    def shares(self, groups: int, ranks: int) -> list[ClusterDevice]:
        """All nodes for each group: `Seating` shares them out."""
        return [self] * groups

    def energy(self) -> EnergyCounters:
        lack = next((facts.energy_lack for facts in self._facts if facts.energy_lack), "")
        return EnergyCounters("" if lack else self._facts[0].energy_at, lack)

    def fingerprint(self) -> dict[str, Any]:
        """The fingerprint of the first node, their number, and fingerprints that differ."""
        first, *others = self._facts
        said = [_said(each, first) for each in others]
        unlike = [each for each in said if each != _said(first, first)]
        kinds = [
            {name: value for name, value in device.items() if name != "uuid"}
            for device in first.fingerprint.get("devices", [])
        ]
        return {
            **first.fingerprint,
            **({"devices": kinds} if kinds else {}),
            "nodes": len(self._nodes),
            **({"unlike": unlike} if unlike else {}),
        }


def check_alike(nodes: Sequence[Remote], *, allow_mixed: bool) -> None:
    """Raises UsageError if a node differs from the first one, unless `allow_mixed`."""
    first = nodes[0]
    assert first.facts is not None, "a node that serves has said what it has"
    owners: dict[str, str] = {}
    for node in nodes if first.facts.kind == "cuda" else ():
        for uuid in node.uuids:
            if (other := owners.setdefault(uuid, node.name)) != node.name:
                raise UsageError(
                    f"--launch: {other} and {node.name} have the same device {uuid}; start one"
                    " agent on each node"
                )
    for node in nodes[1:]:
        assert node.facts is not None
        if node.facts.kind != first.facts.kind:
            raise UsageError(
                f"--device: {first.name} has {first.facts.kind}, {node.name} has"
                f" {node.facts.kind}; choose with --device cpu or --device cuda"
            )
        pairs = zip(_said(first.facts, first.facts), _said(node.facts, first.facts), strict=True)
        for one, other in pairs if not allow_mixed else ():
            if one != other:
                raise UsageError(
                    f"--launch: nodes differ: {first.name} has {one}, {node.name} has {other};"
                    " leave one out, or pass --allow-mixed to use the smallest"
                )


def check_idle(nodes: Sequence[Remote]) -> None:
    """Raises UsageError if others use a device of a node."""
    for node in nodes:
        for device in node.facts.devices if node.facts else ():
            if device.busy:
                raise UsageError(f"--device: node {node.name}: {device.busy}")


def _said(facts: Facts, first: Facts) -> tuple[str, ...]:
    """Facts in which nodes may differ from the `first` one, in words."""
    names = sorted(facts.software.keys() - {"platform"})
    versions = [f"{name} {facts.software[name]}" for name in names]
    driver = f"driver {facts.fingerprint.get('driver')}"
    return _devices(facts, first), driver, f"{facts.cores} cores", ", ".join(versions)


def _devices(facts: Facts, like: Facts) -> str:
    """Devices in words, sizes to 1 %: firmware and kernels of equal machines differ in memory."""
    usual = like.devices[0].capacity_bytes
    sizes = set()
    for device in facts.devices:
        near = abs(device.capacity_bytes - usual) <= 0.01 * usual
        sizes.add(f"{device.name} of {(usual if near else device.capacity_bytes) >> 20} MiB")
    return f"{len(facts.devices)} x {', '.join(sorted(sizes))}"


def _check_energy(nodes: Sequence[Remote]) -> None:
    for node in nodes:
        if node.facts is not None and node.facts.energy_lack:
            raise UsageError(
                f"--objective tokens_per_joule: node {node.name}: {node.facts.energy_lack};"
                " use --objective tokens_per_s"
            )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
