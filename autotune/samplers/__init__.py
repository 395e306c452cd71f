"""Who proposes the next candidate."""
