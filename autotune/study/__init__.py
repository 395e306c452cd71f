"""One study: search, finals, and what is known so far."""
