"""What can be measured: candidates, and what they share.

A later axis is in `Space.axes` only if the user asked for it. So manifests of older studies
compare, and Optuna sees no parameter that never changes. Older journals and grids have plain
values there.
"""
