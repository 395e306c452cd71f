"""Builds the stand-ins for the libraries that torch's CUDA build links, once for each torch.

`csrc/` has handwritten functions. All others of the real libraries get a stub. cuBLAS's stubs
succeed and do nothing; those of the runtime and of NCCL refuse with a message. Declarations come
from the headers of torch's own wheels, so no CUDA toolkit is needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.device.torch_build import TorchBuild, torch_build
from autotune.errors import UsageError

SOURCES = Path(__file__).parent / "csrc"
_COMPILE = ("-O1", "-fPIC", "-w")


@dataclass(frozen=True)
class _Library:
    stem: str
    """Its name before ".so."."""
    sources: tuple[str, ...]
    stub: str = ""
    """Body of each stub; empty without a real library here."""


_CORE = ("state.c", "memory.c", "clock.c", "costs.c", "modules.c")
"""Files in all libraries."""
_REFUSE = 'say_missing("{name}"); return {error};'
_LIBRARIES = (
    _Library("libcuda", ("cuda.c",)),
    _Library("libcudart", ("cudart.c", "silent.c"), _REFUSE.replace("{error}", "801")),
    _Library("libcublas", ("cublas.c",), "return 0;"),
    _Library("libcublasLt", ("cublaslt.c",), "return 0;"),
    _Library("libnccl", ("nccl.c",), _REFUSE.replace("{error}", "5")),
    _Library("libnvidia-ml", ("nvml.c",)),
)
OLD_DRIVER = "before_r510"
"""The folder with NVML of drivers before R510."""


def cuda_torch() -> TorchBuild:
    """This interpreter's torch. Raises UsageError if there is no torch, or it is built without
    CUDA."""
    build = torch_build()
    if build is None:
        raise UsageError("emulated GPUs need torch: pip install torch")
    if not build.cuda:
        raise UsageError(
            f"emulated GPUs need a torch built for CUDA; {build.version} is not: install one from"
            " https://pytorch.org/get-started/locally"
        )
    return build


def libraries(torch: TorchBuild | None = None) -> Path:
    """The folder of the stand-ins for a torch, this interpreter's by default.

    Builds them at the first call (10 s), in $XDG_CACHE_HOME/autotune/emulated.

    Raises:
        UsageError: a file or program for the build is missing; the message names it.
    """
    torch = torch or cuda_torch()
    text = "".join(path.read_text() for path in sorted(SOURCES.rglob("*.[ch]")))
    key = hashlib.sha256(f"{torch}{text}{Path(__file__).read_text()}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "autotune" / "emulated" / f"torch-{torch.version}-{key}"
    try:
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            made = Path(name) / "made"
            made.mkdir()
            _build(torch, made, Path(name))
            try:
                made.rename(folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise UsageError(
            f"emulated GPUs: {folder.parent}: {error.strerror}; set XDG_CACHE_HOME to another"
            " folder"
        ) from error
    finally:
        for made in (folder.parent, folder.parent.parent):
            with suppress(OSError):  # it is not empty
                made.rmdir()
    return folder


def preloads(folder: Path, *, before_r510: bool = False) -> list[Path]:
    """The stand-ins in the order of their dependencies."""
    found = [next(folder.glob(f"{library.stem}.so.*")) for library in _LIBRARIES]
    return [*found[:-1], folder / OLD_DRIVER / found[-1].name] if before_r510 else found


def _build(torch: TorchBuild, folder: Path, scratch: Path) -> None:
    compiler = shlex.split(os.environ.get("CC", "cc"))  # with flags, as make reads it
    if not compiler or shutil.which(compiler[0]) is None:
        raise UsageError("emulated GPUs need a C compiler: install gcc, or set CC")
    if shutil.which("nm") is None:
        raise UsageError("emulated GPUs need nm: install binutils")
    include = [SOURCES / "shim", *sorted(torch.site.glob("nvidia/*/include"))]
    for header, package in (("cuda_runtime_api.h", "cuda-runtime"), ("nccl.h", "nccl")):
        if not any((path / header).is_file() for path in include):
            raise UsageError(
                f"emulated GPUs need {header}, which torch's package nvidia-{package} has:"
                " install torch again with its dependencies"
            )
    flags = [*_COMPILE, *(f"-I{path}" for path in include), f"-DCUBLAS_VERSION={_cublas(include)}"]
    core = folder / "libautotune_emulated.so"
    _run(*compiler, "-shared", *flags, "-o", core, *(SOURCES / name for name in _CORE),
         "-lpthread", "-ldl")  # fmt: skip
    for library in _LIBRARIES:
        _make(library, torch, folder, scratch, [*compiler, *flags])
    (folder / "libcuda.so").symlink_to("libcuda.so.1")  # torch 2.9's Triton links this name
    (folder / OLD_DRIVER).mkdir()
    _run(*compiler, "-shared", *flags, "-DBEFORE_R510", "-Wl,-soname,libnvidia-ml.so.1", "-o",
         folder / OLD_DRIVER / "libnvidia-ml.so.1", SOURCES / "nvml.c",
         *_linked(folder, ".."))  # fmt: skip


def _make(
    library: _Library, torch: TorchBuild, folder: Path, scratch: Path, compile_: list[str]
) -> None:
    known = sorted(torch.site.glob(f"nvidia/*/lib/{library.stem}.so.*"))  # among torch's wheels
    real = known[0] if known and library.stub else None
    if library.stub and real is None:
        raise UsageError(f"emulated GPUs need torch's own {library.stem}; it is not installed")
    soname = real.name if real else f"{library.stem}.so.1"
    objects: list[Path] = []
    written: set[str] = set()
    for source in library.sources:
        objects.append(scratch / f"{source}.o")
        _run(*compile_, "-c", "-o", objects[-1], SOURCES / source)
        written |= set(_symbols(objects[-1]))
    extra: list[str | Path] = []
    if real:
        exported = _symbols(real)
        stubs = scratch / f"{library.stem}.stubs.c"
        body = "\n".join(
            f"int {name}(void) {{ {library.stub.format_map({'name': name})} }}"
            for name in exported
            if name not in written
        )
        stubs.write_text(f'#include "state.h"\n{body}\n')
        extra += [f"-I{SOURCES}", stubs]
        versions = {version for version in exported.values() if version}
        if versions:
            script = scratch / f"{library.stem}.map"
            script.write_text("".join(f"{each} {{ global: *; }};\n" for each in versions))
            extra.append(f"-Wl,--version-script={script}")
    _run(*compile_, "-shared", f"-Wl,-soname,{soname}", *extra, "-o", folder / soname,
         *objects, *_linked(folder))  # fmt: skip


def _linked(folder: Path, up: str = ".") -> list[str]:
    return [f"-L{folder}", "-lautotune_emulated", f"-Wl,-rpath,$ORIGIN/{up}", "-lpthread", "-ldl"]


def _symbols(library: Path) -> dict[str, str]:
    """The functions that a library or object offers, and the version of each."""
    dynamic = [] if library.suffix == ".o" else ["-D"]
    text = _run("nm", *dynamic, "--defined-only", library)
    found = re.findall(r"^\w* ([TWi]) (\w+)(?:@@?(\S+))?$", text, re.MULTILINE)
    return {name: version for _, name, version in found}


def _cublas(include: list[Path]) -> int:
    """cuBLAS's version as its own functions tell it: 130101 is 13.1.1."""
    for path in include:
        header = path / "cublas_api.h"
        if header.is_file():
            parts = dict(re.findall(r"#define CUBLAS_VER_(\w+) (\d+)", header.read_text()))
            return int(parts["MAJOR"]) * 10000 + int(parts["MINOR"]) * 100 + int(parts["PATCH"])
    return 120000


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        told = (line for line in lines if re.search("error|failed|No space", line))
        raise UsageError(
            f"the stand-ins for CUDA's libraries do not compile: {command[0]}:"
            f" {next(told, lines[-1])}"
        )
    return done.stdout
