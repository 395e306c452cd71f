"""One machine of a study that runs elsewhere: `python -m autotune.agent`, once on each node."""
