"""What a study writes, and how it is read back."""
