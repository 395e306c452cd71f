"""Answers before the GPUs are there: what fits, what to set, and the fewest GPUs for it.

Nothing here runs on a device. A helper process counts and traces models, on tensors without data.
The rest is the arithmetic from which a study starts.
"""
