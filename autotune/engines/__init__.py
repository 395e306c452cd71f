"""What the study knows of each training engine."""
