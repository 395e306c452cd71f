"""Plans for models and machines that people ask about: results/plans.md.

    .venv/bin/python scripts/bench/plans.py > results/plans.md

No device is needed: models are counted and traced on tensors without data.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

PLANS = (
    "--model t5-small --gpus 3x20GiB --seq-len 512 --micro-batch 1:64",
    "--model gemma-3-27b --gpus 4x80GiB --seq-len 1024,2048,4096 --zero 3"
    " --offload none,optimizer,all --host-ram 512GiB",
    "--model mamba-7b --gpus 1,2,4,6,8x32GiB --seq-len 1024 --zero 3 --offload optimizer,all"
    " --global-batch 384",
    "--depth 12:24:4 --gpus 32GiB --seq-len 2048",
    "--model llama-3-8b --gpus 8xH100 --seq-len 8192 --engine fsdp --solve micro_batch",
)


def main() -> int:
    print(
        "# Plans\n\nWhat `scripts/bench/plans.py` printed. Nothing was measured for it on a GPU.\n"
    )
    for arguments in PLANS:
        command = [sys.executable, "-m", "autotune", "plan", *arguments.split(), "--formulas"]
        began = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "140"},
        )  # fmt: skip
        if done.returncode not in (0, 3):
            print(done.stderr, file=sys.stderr)
            return 1
        lines = [line.rstrip() for line in (done.stderr + done.stdout).splitlines()]
        print(f"```\n$ python -m autotune plan {arguments} --formulas")
        print("\n".join(lines) + "\n```\n")
        print(f"{arguments}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
