"""`python -m autotune`."""

from autotune.cli import entry

if __name__ == "__main__":
    entry()
