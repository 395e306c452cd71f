"""First on the path of a user's script."""
