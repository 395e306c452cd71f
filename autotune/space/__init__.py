"""What can be measured: candidates, and what they share.

An axis of `ASKED_AXES` is in `Space.axes` only if the user asked for more than its plain value:
Optuna sees no parameter that never changes.
"""
