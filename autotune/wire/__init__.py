"""Messages between study and ranks. Needs only msgspec and the standard library.

Messages are versioned JSON, never pickle. A `WireError` ends the group: nothing is guessed.
"""
