"""Carries probes out: with ranks here, agents elsewhere, scripts or recordings."""
