"""Models that can be probed. Each takes token ids and returns the mean loss of its batch."""
