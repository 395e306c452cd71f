"""Recorded measurements, and studies on them."""
