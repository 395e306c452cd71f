"""A script that starts a training run as its probes were started: ranks and environment."""

from __future__ import annotations

from pathlib import Path

from autotune.export.format import Exported, remark, unexpressed
from autotune.result.best import Best

_SCRIPT = """\
#!/usr/bin/env bash
{remark}# Usage: launch.sh train.py [ARGUMENTS...]; LAUNCHER=torchrun, deepspeed or accelerate.
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{exports}case "${{LAUNCHER:-torchrun}}" in
  torchrun) exec torchrun --standalone --nproc-per-node={ranks} "$@" ;;
  deepspeed) exec deepspeed {deepspeed} "$@" ;;
  accelerate) exec accelerate launch --config_file "$here/accelerate.yaml" "$@" ;;
  *) echo "LAUNCHER is torchrun, deepspeed or accelerate" >&2; exit 2 ;;
esac
"""


def export(best: Best, folder: Path) -> Exported:
    """`launch.sh`. The script it starts reads its settings from another of the exports."""
    ranks, on_cpu = best.config.world_size, best.device_kind == "cpu"
    variables = dict(best.exports.get("env", {}))
    if on_cpu:
        variables |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    lines = [f'export {name}="{value}"' for name, value in variables.items()]
    if not on_cpu:
        devices = ",".join(map(str, range(ranks)))
        lines.append(f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-{devices}}}"')
    missing = unexpressed(best, ("world_size", "allocator"))
    text = _SCRIPT.format(
        remark=remark(best, missing),
        exports="".join(f"{line}\n" for line in lines),
        ranks=ranks,
        deepspeed=f"--num_accelerators={ranks}" if on_cpu else f"--num_gpus={ranks}",
    )
    return Exported(files={"launch.sh": text}, unexpressed=missing)
