"""Published training runs (results/public) as requests for plans."""
