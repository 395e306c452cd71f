"""What study and ranks say to each other. Standard library alone; probes import nothing else."""
