"""autotune finds the fastest training configuration that fits, by running real steps."""

__version__ = "0.1.0"
