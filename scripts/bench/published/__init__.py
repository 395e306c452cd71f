"""Training runs that others published (results/public), as what a plan is asked for."""
