"""A script that starts a training run as its probes were started: ranks and environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from textwrap import indent

from autotune.result.best import Best, Config
from autotune.result.export.format import Exported, machines, remark, unexpressed
from autotune.result.export.nodes import checked, torchrun

_OWN = """\
#!/usr/bin/env bash
{remark}# Usage: launch.sh [MORE ARGUMENTS...]
set -euo pipefail
{folder}{exports}exec {command} "$@"
"""
_SCRIPT = """\
#!/usr/bin/env bash
{remark}# Usage: launch.sh train.py [ARGUMENTS...]; LAUNCHER=torchrun, deepspeed or accelerate.
{usage}set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{exports}{checks}case "${{LAUNCHER:-torchrun}}" in
  torchrun) exec {torchrun} "$@" ;;
  deepspeed) exec deepspeed {deepspeed} "$@" ;;
  accelerate)
    if [ ! -f "$here/accelerate.yaml" ]; then
      echo "$here/accelerate.yaml is not there: autotune export --format accelerate" >&2; exit 2
    fi
    exec accelerate launch --config_file "$here/accelerate.yaml"{accelerate} "$@" ;;
  *) echo "LAUNCHER is torchrun, deepspeed or accelerate" >&2; exit 2 ;;
esac
"""
_USAGE = """\
# On each of {nodes} nodes, with NODE_RANK (Slurm says it) and MASTER_ADDR; with deepspeed on one
# of them, with HOSTFILE.
"""
_CHECKS = """\
if [ "${{LAUNCHER:-torchrun}}" = deepspeed ]; then
  if [ ! -f "${{HOSTFILE:-}}" ]; then
    echo "HOSTFILE names no file: write a line such as 'node1 slots={ranks}' for each node" >&2
    exit 2
  fi
{deepspeed}else
{on_node}{accelerate}fi
"""
_OF_DEEPSPEED = "launch-deepspeed.env"
"""What its launcher sets on each node, of which it takes over little else."""
_UNEVEN = """\
  if [ "${{LAUNCHER:-torchrun}}" = accelerate ]; then
    echo "accelerate cannot share {ranks} ranks among {nodes} nodes: LAUNCHER=torchrun" >&2; exit 2
  fi
"""
_ON_THIS_NODE = """ \\
      --machine_rank "$node" --main_process_ip "$MASTER_ADDR" \\
      --main_process_port "${MASTER_PORT:-29500}\""""


def _positions(best: Best, ranks: int) -> str:
    """The devices that were measured on: of "cuda:2,3" these, else the first."""
    options = best.provenance.get("options")
    asked = str(options.get("device", "")) if isinstance(options, dict) else ""
    named = re.fullmatch(r"cuda:(\d+(?:,\d+)*)", asked)
    positions = named[1].split(",") if named else [str(i) for i in range(ranks)]
    return ",".join(positions[:ranks])


def export(best: Best, folder: Path) -> Exported:
    """`launch.sh`. The script it starts reads its settings from another of the exports, or is the
    one that was tuned."""
    config = best.config
    ranks, on_cpu = config.ranks_on_a_node, best.device_kind == "cpu"
    variables = dict(best.exports.get("env", {}))
    if on_cpu:
        variables |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    lines = [f"export {name}={quote(value)}" for name, value in variables.items()]
    if not on_cpu:
        devices = _positions(best, ranks)
        lines.append(f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-{devices}}}"')
    if best.command is not None:
        text = _OWN.format(
            remark=remark(best, ()),
            folder=f"cd {quote(best.started_in)}\n" if best.started_in else "",
            exports="".join(f"{line}\n" for line in lines),
            command=shlex.join(best.command),
        )
        return Exported(files={"launch.sh": text}, unexpressed=())
    missing = unexpressed(best, ("world_size", "nodes", "allocator"))
    several = config.nodes > 1
    text = _SCRIPT.format(
        remark=remark(best, missing),
        exports="".join(f"{line}\n" for line in lines),
        usage=_USAGE.format(nodes=config.nodes) if several else "",
        checks=_checks(config, variables) if several else "",
        torchrun=torchrun(config)
        if several
        else f"torchrun --standalone --nproc-per-node={ranks}",
        deepspeed=_deepspeed(config, on_cpu=on_cpu),
        accelerate=_ON_THIS_NODE if several else "",
    )
    files = {"launch.sh": text}
    if several and variables:
        files[_OF_DEEPSPEED] = "".join(f"{name}={value}\n" for name, value in variables.items())
    return Exported(files=files, unexpressed=missing)


def _checks(config: Config, variables: Mapping[str, str]) -> str:
    """What has to be known on a node, or for DeepSpeed's launcher of all."""
    uneven = _UNEVEN.format(ranks=config.world_size, nodes=config.nodes)
    return _CHECKS.format(
        ranks=config.ranks_on_a_node,
        deepspeed=f'  export DS_ENV_FILE="$here/{_OF_DEEPSPEED}"\n' if variables else "",
        on_node=indent(checked(config), "  "),
        accelerate="" if machines(config) else uneven,
    )


def _deepspeed(config: Config, *, on_cpu: bool) -> str:
    ranks = config.ranks_on_a_node
    if config.nodes > 1:
        each = f" --num_gpus={ranks}" if machines(config) else ""  # else the file's slots
        return f'--hostfile "$HOSTFILE" --num_nodes={config.nodes}{each}'
    # --num_gpus would pass over CUDA_VISIBLE_DEVICES.
    return (
        f"--num_accelerators={ranks}" if on_cpu else '--include "localhost:$CUDA_VISIBLE_DEVICES"'
    )
