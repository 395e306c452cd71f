"""`python -m autotune`, and the console script."""

import time


def main() -> None:
    started = time.monotonic()  # the budget pays for the imports too
    from autotune.commands.app import entry

    entry(started)


if __name__ == "__main__":
    main()
