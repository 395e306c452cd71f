"""`python -m autotune`, and the console script."""

import sys
import time

from autotune.installed import missing


def main() -> None:
    started = time.monotonic()  # imports count against the budget
    try:
        from autotune.commands.app import entry

        entry(started)
    except ModuleNotFoundError as error:
        package = (error.name or "autotune").partition(".")[0]
        if package in ("autotune", "probes") or not (why := missing(package)):
            raise
        print(f"autotune: {why}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
