"""Stands for causal-conv1d's compiled kernels: they allocate nothing."""


def causal_conv1d_fwd(*_: object) -> None: ...


def causal_conv1d_bwd(*_: object) -> None: ...


def causal_conv1d_update(*_: object) -> None: ...
