"""What is expected of candidates that were not measured."""
