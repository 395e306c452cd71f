"""Answers before the GPUs are there: what fits, what to set, what is the least that does.

Nothing here runs on a device. Models are counted and traced by a helper process, on tensors
without data; the rest is the arithmetic that a study starts from.
"""
