"""Load DeepSpeed's ops, which compiles them once a machine: `python -m probes.ops OP ...`.

Inside a rank the compilation would look like a hang, and ranks that are ended while they compile
leave a lock behind, at which the next ones wait for ever.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Load the named ops as far as they can be had for this accelerator."""
    # Leaving through SystemExit releases torch's lock on the folder of compiled extensions.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops import __compatible_ops__ as compatible

    for name in sys.argv[1:]:
        builder = get_accelerator().create_op_builder(name)
        if builder is not None and compatible.get(builder.NAME, False):
            builder.load()


if __name__ == "__main__":
    main()
