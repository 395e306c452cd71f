"""The display of a study: the terminal, and the page of its report."""
