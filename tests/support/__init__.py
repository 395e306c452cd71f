"""Common parts of tests."""
