"""What can be measured: candidates, and what they share."""
