"""The time of weighing 20 candidates of llama-3-8b on eight cards, by the command line.

    .venv-cuda/bin/python scripts/bench/weighing_time.py results/public/weighing_time.json

Needs torch's CUDA build, and no GPU. It measures processor time beside wall time, which says
little on a busy machine. `published/weighed.py` prints it into results/weighed.md.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from shared import machine, run, versions

PLAN = (
    "--model llama-3-8b --gpus 8xH100 --engine fsdp --zero 3 --micro-batch 1"
    " --seq-len 1024,2048,4096,6144,8192 --checkpointing none,selective,1/2,full --rows 20 --json"
)


def main(result: Path) -> None:
    seconds = {}
    for how, more in (("formulas", ["--formulas"]), ("weighed", [])):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "plan", *PLAN.split(), *more],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds[how] = time.monotonic() - began
        seconds[f"{how}, processor"] = used.ru_utime + used.ru_stime
    seconds["weighed, processor"] -= seconds["formulas, processor"]
    rows = json.loads(done.stdout)["rows"]
    body = {
        "plan": PLAN, "rows": len(rows), "weighed": sum(row["weighed"] for row in rows),
        "seconds": {name: round(value) for name, value in seconds.items()},
        "beside": round(os.getloadavg()[2], 1), "machine": machine(),
        "versions": versions("torch", "transformers"),
    }  # fmt: skip
    result.write_text(json.dumps(body, indent=2) + "\n")
    print(result.read_text())


if __name__ == "__main__":
    run(main)
