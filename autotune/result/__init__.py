"""The choice of the winner, and best.json, which has it."""
