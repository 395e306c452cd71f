"""Load DeepSpeed's ops, which compiles them once a machine: `python -m probes.ops OP ...`.

Inside a rank the compilation would look like a hang. A rank that is killed while it compiles
leaves a lock behind, at which the next ones wait for ever.
"""

from __future__ import annotations

import signal
import sys

from probes.__main__ import die_with_parent


def main() -> None:
    """Load the named ops; one that this accelerator lacks is an error."""
    die_with_parent()
    # SystemExit releases torch's lock on the folder of compiled extensions.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    from deepspeed.accelerator import get_accelerator

    for name in sys.argv[1:]:
        get_accelerator().create_op_builder(name).load()


if __name__ == "__main__":
    main()
