"""Wordings of other errors than of memory: a row for each source with its own words.

Only errors that end a run, or look like memory that ran out, have a row. Patterns see one line
without the prefixes of launchers and loggers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.advise.diagnose.kinds import Kind


@dataclass(frozen=True, kw_only=True)
class Wording:
    """The texts of one source for one error."""

    name: str
    kind: Kind
    source: str
    """Files or programs, with versions if the words changed."""
    says: tuple[re.Pattern[str], ...]
    """Their groups go to the event."""
    goes_on: bool = False
    """Whether its message may span several lines."""
    weak: bool = False
    """Whether it counts only without other events."""

    def match(self, text: str) -> re.Match[str] | None:
        return next(filter(None, (pattern.search(text) for pattern in self.says)), None)


def _row(
    name: str, kind: Kind, source: str, *says: str, goes_on: bool = False, weak: bool = False
) -> Wording:
    patterns = tuple(map(re.compile, says))
    return Wording(name=name, kind=kind, source=source, says=patterns, goes_on=goes_on, weak=weak)


_PRODUCT = (
    r"(?:.*?micro_batch_per_gpu \* gradient_acc_step \* world_size"
    r" ?(?P<global>\d+) != (?P<micro>\d+) \* (?P<accum>\d+) \* (?P<world>\d+))?"
)
_EXITED = (
    r"(?:\b(?:[Ee]xit\w*|return(?:ed|s)? (?:non-zero )?(?:code|exit))\b"
    r"(?i:[a-z ]{0,30})[\"'`)(:= ]{1,6}"
    r"|(?:错误|返回|退出)(?:码|值|代码)[\"'`)(:：= 是为]{0,4})"
)
"""Words before the status of a process."""

BATCH = _row(
    "batch-deepspeed", Kind.BATCH,
    "deepspeed runtime/config.py 0.3 to 0.19, before 0.6 without the blank",
    rf"(?<!f\")Check batch related parameters\.(?:\s*$| train_batch_size is not{_PRODUCT})",
    goes_on=True,
)  # fmt: skip
BATCH_PART = _row(
    "batch-part", Kind.BATCH,
    "the same, whose beginning other ranks' lines have torn off",
    rf"^.{{0,60}}equal to{_PRODUCT}",
)  # fmt: skip
SHARED = _row(
    "shared-memory", Kind.SHARED,
    "torch torch/csrc/DataLoader.cpp, aten/src/ATen/MapAllocator.cpp, as in v2.13; paddle"
    " fluid/imperative/data_loader.cc; CPython OSError, multiprocessing/shared_memory.py; NCCL"
    " src/include/shm.h v2.7 to v2.11, src/misc/shmutils.cc v2.12 to v2.19",
    r"(?i:unexpected bus) error encountered in (?:DataLoader )?worker[.,] This might",
    r"DataLoader worker \(pid \d+\) is killed by signal: Bus error",
    r"unable to write to file </torch_\w+>\s*$"
    r"|(?:unable to (?:write to file|open shared memory object|resize file|allocate shared"
    r" memory\S*).*</torch_.*|/dev/shm/\S*torch_\S*.*)(?:No space left|Cannot allocate)",
    r"\[Errno 28\] No space left on device: '?/(?:dev/shm|torch_|psm_)",
    r"(?:[Ff]ail\w*|[Uu]nable|Error|annot)\b.{0,20} (?:creat|attach|extend|writ|resiz)\w* .{0,9}"
    r"shared memory",
    r"posix_fallocate failed : No space left",
)  # fmt: skip
_MISTAKEN = (
    BATCH,
    BATCH_PART,
    _row(
        "batch", Kind.BATCH,
        "megatron-lm megatron/microbatches.py v2.0 to core_v0.5, training/microbatches.py to"
        " v0.7, core/num_microbatches_calculator.py core_v0.8 to core_v0.12; torchtitan"
        " torchtitan/train.py v0.1.0 to v0.2.2; transformers integrations/deepspeed.py 5.23",
        r"global batch size \((?P<global>\d+)\) is not divisible by micro batch size"
        r" \((?P<micro>\d+)\) times data parallel size \((?P<world>\d+)\)",
        r"global batch size must be multiple of local batch size times data-parallel degree"
        r"(?: \((?P<global>\d+) % \((?P<micro>\d+) \* (?P<world>\d+)\))?",
        r"DeepSpeed config values that mismatch TrainingArguments values",
    ),
    _row(
        "timeout", Kind.TIMEOUT,
        "torch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; gloo"
        " transport/tcp/unbound_buffer.cc; torch c10d store",
        r"(?:\[Rank \d+\] )?Watchdog caught collective operation timeout",
        r"Some NCCL operations have failed or timed out",
        r"(?:ProcessGroupNCCL'|^)s watchdog got stuck for",
        r"Timed out (?:waiting \d+ms for (?:recv|send)|initializing process group)",
        r"Socket Timeout\b",
    ),
    _row(
        "library", Kind.LIBRARY,
        "torch aten/src/ATen/cuda/Exceptions.h",
        r"\b(?:CUBLAS|CUDNN|HIPBLAS|CUSOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)\b",
    ),
    _row(
        "shape", Kind.SHAPE,
        "torch aten/src/ATen/native/LinearAlgebra.cpp, ExpandUtils.cpp",
        r"mat1 and mat2 shapes cannot be multiplied",
        r"Error: (?:The size of tensor a|shape '\[|size mismatch"
        r"|Error\(s\) in loading state_dict|Sizes of tensors must match|stack expects each"
        r"|Expected input batch_size|The expanded size of the tensor|shape mismatch)",
    ),
    _row(
        "files", Kind.FILES,
        "CPython multiprocessing/reduction.py; torch aten/src/ATen/MapAllocator.cpp",
        r"Error: (?:received \d+ items of ancdata|.*Too many open files"
        r"|unable to open shared memory object </torch_\S+> in read-write mode(?!: \w))",
    ),
    _row(
        "triton-resources", Kind.KERNEL,
        "triton python/triton/runtime/errors.py; openxla, of a TPU's cores",
        r"memory space [sv]mem\b",
        r"out of resource: (?:shared memory|tensor memory|registers|threads), Required: \d+",
    ),
    _row(
        "warning", Kind.WARNING,
        "tensorflow stream_executor cuda_driver.cc, which tries again with less; bfc_allocator.cc;"
        " llama.cpp src/llama-mmap.cpp; torch 2.14 CUDACachingAllocator.cpp, which then frees its"
        " cache",
        r"^I \S+\] failed to alloc(?:ate)? .* from device: ",
        r"The caller indicates that this is not a failure",
        r"failed to mlock ",
        r"memory allocation failed with OOM on device \d+ while trying",
    ),
)  # fmt: skip
_KILLED = (
    _row(
        "bus", Kind.BUS, "torch torch/distributed/elastic; deepspeed launcher/launch.py; slurm",
        rf"{_EXITED}(?:-7|135)\b",
        r"tasks? [\d,-]+: Bus error|^Bus error\b|\bBus error \(core dumped|[Cc]aught signal 7\b",
    ),
    _row(
        "killed", Kind.KILLED,
        "torch elastic and multiprocessing; CPython subprocess.py; deepspeed launch.py; slurm;"
        " Open MPI; bash jobs.c; docker, kubectl: 128 + SIGKILL",
        rf"(?:{_EXITED}|[Ee]rror code )(?:-9|137)\b(?!/)",
        r"\bsignal 9\b|Signal 9 |signal SIGKILL|<Signals\.SIGKILL: 9>|^SIGKILL\s*$",
        r"Worker process \d+ was killed by unknown signal",
        r"tasks? [\d,-]+: Killed|^(?:\S*: line \d+: +)?\d+ Killed\s+\S|^Killed\s*$",
        r"^(?:已杀死|強制終了|Getötet|Убито)\s*$",
    ),
)  # fmt: skip
DISK = _row(
    "disk", Kind.DISK,
    "CPython OSError; torch caffe2/serialize/inline_container.cc; safetensors",
    r"\[(?:Errno|Error) (?:28|122)\]|Error: .*PytorchStreamWriter failed writing file"
    r"|\bNo space left on device|\bDisk quota exceeded",
)  # fmt: skip
_LAST = (
    _row(
        "slurm-ended", Kind.SCHEDULED,
        "slurm slurmstepd, as jobs' error files have it",
        r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>[A-Z][A-Z ,]*[A-Z]))?",
    ),
    DISK,
    _row(
        "fault", Kind.ASSERT,
        "CUDA runtime error strings, torch c10/cuda/CUDAException.h; CUDA device runtime,"
        " __assert_fail; ROCR runtime.cpp: an address that is not mapped",
        r"(?:CUDA|HIP) error: device-side assert triggered",
        r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion `.{1,200}` failed",
        r"an illegal (?:memory access|instruction) was encountered",
        r"Memory access fault by GPU \W*node-\d",
        r"(?:CUDA|HIP) [Ee]rror(?: \(\S{1,200}\))?: invalid (?:configuration )?argument",
        r"CUDA [Ee]rror: (?:uncorrectable ECC error|misaligned address|unknown error"
        r"|all CUDA-capable devices are busy|invalid device ordinal|driver shutting down)",
        r"[Ee]rror:? no kernel image is available",
        r"cuda runtime error \(\d+\) : ",
        r": unspecified launch failure|the launch timed out and was terminated",
        r"== cudaSuccess \(\d+ vs",
        r"\bCU\w+_STATUS_EXECUTION_FAILED\b",
    ),
    _row(
        "ended", Kind.ENDED,
        "deepspeed launcher/launch.py 0.3.16 to 0.19, with the return code since 0.6; torch"
        " torch/distributed/elastic, as in v2.13; ray _private/worker.py, exceptions.py, raylet;"
        " torch c10d TCPStore, gloo, NCCL",
        rf"{_EXITED}-?[1-9]\d*\b",
        r"Worker unexpectedly exits with a connection error",
        r"The actor died|A worker died or was killed while"
        r"|Error: One of the subprocesses has abruptly died",
        r"Raylet is terminated",
        r"DataLoader worker \(pid.* exited unexp",
        r"(?:background workers are no longer alive|Background workers died)",
        r"Connection (?:reset|closed) by (?:remote )?peer",
        r"ncclRemoteError",
        r"Broken pipe",
    ),
    _row(
        "stopped", Kind.ENDED,
        "deepspeed launcher/launch.py; torch torch/distributed/elastic: signals that a launcher"
        " sends to the others, or gets itself; CPython: Ctrl-C",
        r"^KeyboardInterrupt:?\s*$",
        r"^Killing subprocess \d+",
        r"(?:Signal 15 \(SIGTERM\) received by PID"
        r"|Sending process \d+ closing signal SIG(?:TERM|HUP|INT)"
        r"|via (?:Signals\.)?SIGTERM, forcefully exiting via (?:Signals\.)?SIGKILL)",
        r"SignalException: Process \d+ got signal",
    ),
    _row(
        "launcher-ended", Kind.ENDED,
        "torch torch/distributed/elastic, as in v2.13; CPython subprocess.py: what a launcher"
        " raises after all",
        r"(?:^|multiprocessing\.errors\.)ChildFailedError",
        r"ExecuteUserScriptError:",
        r"CalledProcessError: Command\b",
    ),
    _row(
        "python-exception", Kind.OTHER,
        "CPython traceback.py, argparse.py; libstdc++ and libc++abi",
        r"^\"?(?:[A-Za-z_]\w*\.)*(?:(?:nccl)?[A-Z]\w*(?:Error|Exception|Interrupt)"
        r"|Exception)(?:\(\w+\))?(?:: .|$|:$)|^Exception in device=TPU:",
        r"^\S{1,200}: error: (?:argument |ambiguous option|unrecognized arg|the following arg)",
        r"^(?:libc\+\+abi: )?terminat(?:e called after throwing|ing due to uncaught)",
        r"Unhandled exception with message: |^LLVM ERROR: ",
        r"[Ss]egmentation fault \(core dumped\)|\*\*\* SIG(?:ABRT|SEGV|FPE|ILL) received",
        r"^Windows fatal exception: ",
    ),
)  # fmt: skip

_WEAK = (
    _row(
        "killed-report", Kind.KILLED, "people, of their processes",
        r"\b(?:gets?|got|was|were|been|is|being|just|says?|displays?|message|with"
        r"|worker|process|[Tt]raining|job)\W{1,4}[Kk]illed\b(?! by signal: (?!K))"
        r"|\b(?:die[sd]?|dying|crash\w*|ends?|killed) (?:\w+ )?(?:with|by|from) (?:\w+\.)?SIGKILL"
        r"|\bgets? (?:kill\b|SIGKILLed)|被 ?[Kk]ill|[\"'`”] [Kk]illed$",
        weak=True,
    ),
    _row(
        "told-error", Kind.OTHER, "people and loggers, of an exception that they name or show",
        r"(?:(?<!\S)[`\"'(]|(?<=: ))(?:\w+\.)*[A-Z]\w*(?:Error|Exception): \S|\bnccl\w+Error: \S",
        r"\b[Ee]rror (?:during|while|in) [\w ]{1,30}: \w|\): error: [a-z]",
        r"\bCU[A-Z]{3,6}_STATUS_(?!SUCC|ALLOC)[A-Z]",
        weak=True,
    ),
    _row(
        "fault-remark", Kind.ASSERT,
        "torch c10/cuda/CUDAException.cpp, below a cut message",
        r"^(?:CUDA|HIP) kernel errors might be asynchronously reported at some other",
        weak=True,
    ),
)  # fmt: skip

_IMPLIED = (
    _row(
        "worker-killed", Kind.HOST,
        "torch torch/csrc/DataLoader.cpp, as in v2.13; paddle fluid/imperative/data_loader.cc",
        r"Data[Ll]oader (?:worker|process) ?\(pid +\w+\) (?:exited )?is killed by signal:"
        r" ?[Kk]illed",
        r"how to address the out of memory issue: \S+ray",
    ),
    _row(
        "nvml", Kind.DEVICE, "torch, which asks NVML who holds memory",
        r"(?:NVML_SUCCESS == .{1,60}|\bhandle_\d?) ?INTERNAL ASSERT FAILED",
    ),
    _row(
        "tensorflow-hint", Kind.DEVICE, "tensorflow, below what it could not allocate",
        r"Hint: If you want to see a list of allocated tensors when OOM happens",
    ),
    _row(
        "no-batch", Kind.DEVICE,
        "accelerate utils/memory.py 0.10 to 1.15: every size ran out of memory",
        r"No executable batch size found, reached zero",
    ),
)  # fmt: skip
"""Texts that only occur if memory ran out, though they do not name it."""
FIRST, LAST = (*_MISTAKEN, SHARED, *_IMPLIED), (*_KILLED, *_LAST, *_WEAK)
"""Wordings that are tried before and after those of memory."""
