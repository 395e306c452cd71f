"""What study and ranks say to each other. Standard library alone; probes import nothing else.

Messages are versioned JSON, never pickle. A `WireError` ends the group: nothing is guessed.
"""
