"""The torch that ranks of this machine import, found without importing it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

_WHEELS = (12060, 12080, 13000)
"""The CUDA versions of torch's wheels, in NVML's form. Source: pytorch.org."""
_WHERE = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class TorchBuild:
    """An installed torch and its CUDA version."""

    version: str
    cuda: str
    """E.g. "13.0"; empty if it is built without CUDA."""
    hip: bool
    site: Path
    """Its folder of packages."""


def torch_build() -> TorchBuild | None:
    """This interpreter's torch; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    text = (package / "version.py").read_text()
    values = dict(re.findall(r"^(\w+)[^=\n]*= ['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    return TorchBuild(
        values.get("__version__", "?"), values.get("cuda", ""), bool(values.get("hip")),
        package.parent,
    )  # fmt: skip


def unfit(build: TorchBuild | None, driver: str, driver_cuda: int) -> str:
    """Why this torch cannot use the GPUs of a driver, and what to install; empty if it can.

    `driver_cuda` is the newest CUDA that the driver runs: 12080 is 12.8. A driver runs any CUDA of
    its major version. Source: NVIDIA, "CUDA Compatibility".
    """
    if build is None or build.hip:
        return ""
    # The newest that the driver knows; any driver of CUDA 12 runs the oldest.
    oldest = _WHEELS[0] if driver_cuda >= 12000 else 0
    wheel = max((each for each in _WHEELS if each <= driver_cuda), default=oldest)
    line = f"pip install torch --index-url {_WHERE}/cu{wheel // 1000}{wheel % 1000 // 10}"
    newer = "a driver of 2023 or later (525) is needed"
    if not build.cuda:
        return f"torch {build.version} is built without CUDA; " + (line if wheel else newer)
    if int(build.cuda.split(".")[0]) <= driver_cuda // 1000:
        return ""
    has = f"{driver_cuda // 1000}.{driver_cuda % 1000 // 10}"
    return (
        f"torch {build.version} is built for CUDA {build.cuda}, and driver {driver} runs {has} at"
        f" most; {f'update the driver, or {line}' if wheel else newer}"
    )
