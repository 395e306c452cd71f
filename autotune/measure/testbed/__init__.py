"""The place of measurement: this machine's devices, several machines, or a recording.

Options become a space in three steps: `resolve`, `script_space` or `recording` make a `Basis`.
`Basis.space` makes the space. `candidates` refuses points that cannot run.
"""

from __future__ import annotations

from pathlib import Path

from autotune.measure import launch
from autotune.measure.testbed.testbed import Testbed
from autotune.space.options import Options
from autotune.space.options.devices import pairs

REPLAY = "replay:"


def open_testbed(options: Options) -> Testbed:
    """The testbed that `--device` names. This enters the emulation of an emulated one.

    Names are "auto", "cpu", "cuda", "cuda:0,2", "emulated:8xH100", "replay:FILE.csv". Raises
    UsageError if the name is none of these, or there is no such device or recording.
    """
    spec = options.devices.device
    if spec.startswith(REPLAY):
        from autotune.measure.testbed.recording import Recording

        columns = pairs(options.devices.column or "", "--column")
        rows = pairs(options.devices.row or "", "--row")
        return Recording(Path(spec.removeprefix(REPLAY)), columns, rows)
    cluster, scripted = options.cluster, options.script.template is not None
    here = scripted or options.devices.emulated
    if not here and (launcher := launch.checked(
        cluster.launch, cluster.nodes, world_size=options.devices.world_size,
        interface=cluster.interface,
    )):  # fmt: skip
        from autotune.measure.testbed.cluster import DIAL_BY_HAND_S, DIAL_S, Cluster

        by_hand = cluster.launch == "wait"
        return Cluster(
            launcher, spec, allow_mixed=cluster.allow_mixed,
            allow_busy=options.devices.allow_busy, dial_s=DIAL_BY_HAND_S if by_hand else DIAL_S,
        )  # fmt: skip
    from autotune.device import open_device
    from autotune.measure.testbed.machine import Machine

    mixed = "micro_batch_per_rank" in options.space.axes
    if scripted:
        from autotune.measure.testbed.scripted import Scripted

        return Scripted(open_device(spec, mixed=mixed), spec)
    device = open_device(spec, for_torch=True, mixed=mixed)
    if options.devices.emulated:
        from autotune.device.emulated.emulation import nodes_of
        from autotune.measure.testbed.emulated import Emulated

        return Emulated(device, spec, nodes_of(options.devices.emulated))
    return Machine(device, spec)
