"""The worker side: one process per rank, on the device. It imports `autotune.wire` and torch."""
