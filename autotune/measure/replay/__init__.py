"""Recorded measurements, and how a study is run on them."""
