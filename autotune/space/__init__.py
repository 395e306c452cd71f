"""Candidates, and the settings that they share.

An axis of `ASKED_AXES` is in `Space.axes` only if the user asked for more than its plain value: so
no parameter of Optuna is constant.
"""
