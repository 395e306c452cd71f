"""What people see of a study: the terminal, and the page of its report."""
