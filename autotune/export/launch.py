"""A script that starts a training run as its probes were started: ranks and environment."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from shlex import quote

from autotune.export.format import Exported, remark, unexpressed
from autotune.result.best import Best

_OWN = """\
#!/usr/bin/env bash
{remark}# Usage: launch.sh [MORE ARGUMENTS...]
set -euo pipefail
{folder}{exports}exec {command} "$@"
"""
_SCRIPT = """\
#!/usr/bin/env bash
{remark}# Usage: launch.sh train.py [ARGUMENTS...]; LAUNCHER=torchrun, deepspeed or accelerate.
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{exports}case "${{LAUNCHER:-torchrun}}" in
  torchrun) exec torchrun --standalone --nproc-per-node={ranks} "$@" ;;
  deepspeed) exec deepspeed {deepspeed} "$@" ;;
  accelerate)
    if [ ! -f "$here/accelerate.yaml" ]; then
      echo "$here/accelerate.yaml is not there: autotune export --format accelerate" >&2; exit 2
    fi
    exec accelerate launch --config_file "$here/accelerate.yaml" "$@" ;;
  *) echo "LAUNCHER is torchrun, deepspeed or accelerate" >&2; exit 2 ;;
esac
"""


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
    ranks, on_cpu = best.config.world_size, best.device_kind == "cpu"
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
    missing = unexpressed(best, ("world_size", "allocator"))
    text = _SCRIPT.format(
        remark=remark(best, missing),
        exports="".join(f"{line}\n" for line in lines),
        ranks=ranks,
        # --num_gpus would pass over CUDA_VISIBLE_DEVICES.
        deepspeed=f"--num_accelerators={ranks}"
        if on_cpu
        else '--include "localhost:$CUDA_VISIBLE_DEVICES"',
    )
    return Exported(files={"launch.sh": text}, unexpressed=missing)
