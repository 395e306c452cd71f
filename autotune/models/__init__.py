"""What the study knows of each model family."""
