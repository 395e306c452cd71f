"""Messages between study and ranks. Needs msgspec and the standard library alone.

Messages are versioned JSON, never pickle. A `WireError` ends the group: nothing is guessed.
"""
