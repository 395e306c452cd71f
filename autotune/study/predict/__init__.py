"""Expected memory and speed of candidates that were not measured."""
