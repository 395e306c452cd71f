"""What candidates are measured on."""
