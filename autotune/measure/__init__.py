"""Who carries probes out: ranks here, agents elsewhere, scripts, recordings."""
