"""Which candidate won, and best.json, which says so."""
