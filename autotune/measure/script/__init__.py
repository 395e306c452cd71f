"""A training script of the user's own, launched as it is, once for each probe."""
