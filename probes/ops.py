"""Load DeepSpeed's ops, which compiles them once a machine: `python -m probes.ops OP ...`.

Inside a rank the compilation would look like a hang, and ranks that are ended while they compile
leave a lock behind, at which the next ones wait for ever.
"""

from __future__ import annotations

import signal
import sys

from probes.__main__ import die_with_parent


def main() -> None:
    """Load the named ops; one that cannot be had for this accelerator is an error."""
    die_with_parent()
    # Leaving through SystemExit releases torch's lock on the folder of compiled extensions.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    from deepspeed.accelerator import get_accelerator

    for name in sys.argv[1:]:
        get_accelerator().create_op_builder(name).load()


if __name__ == "__main__":
    main()
