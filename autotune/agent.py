"""One machine of a study that runs elsewhere: `python -m autotune.agent`, once on each node."""

import sys

from autotune.measure.agent.command import main

if __name__ == "__main__":
    sys.exit(main())
