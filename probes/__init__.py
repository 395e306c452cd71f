"""The worker side: one process per rank, on the device. Imports `autotune.wire` and torch."""
