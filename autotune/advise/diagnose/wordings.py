"""How errors are worded: one row for each source that says a thing in its own way.

Only what ends a run, or what is mistaken for it, has a row. Patterns see one line without the
prefixes of launchers and loggers. A pattern without a number insists on the words before it, since
logs also talk about running out of memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.advise.diagnose.amounts import SIZE
from autotune.advise.diagnose.kinds import Kind


@dataclass(frozen=True, kw_only=True)
class Wording:
    """The ways in which one source says one thing."""

    name: str
    kind: Kind
    source: str
    """Files or programs, with versions where the words changed."""
    says: tuple[tuple[str, re.Pattern[str]], ...]
    """What each match contains, which is found fast, and a pattern.

    The groups `asked`, `total`, `free`, `rank`, `device` and `pid` go to the event.
    """
    goes_on: bool = False
    """Whether its message may be broken into several lines."""
    weak: bool = False
    """Whether it counts only where nothing else is said."""

    def match(self, text: str) -> re.Match[str] | None:
        """The first of the patterns that is in `text`."""
        found = (pattern.search(text) for literal, pattern in self.says if literal in text)
        return next(filter(None, found), None)


def _literal(pattern: str) -> str:
    """The longest text that each match of `pattern` contains; empty for alternatives."""
    flat, before = re.sub(r"\[[^]]+\]|\\.", "\0", pattern), ""
    while flat != before:  # groups, the innermost first
        before, flat = flat, re.sub(r"\([^()]*\)[?*]?", "\0", flat)
    if "|" in flat:
        return ""
    return max(re.findall(r"(?:[A-Za-z_ ](?![?*{]))+", flat), key=len, default="")


def _row(
    name: str, kind: Kind, source: str, *says: str, goes_on: bool = False, weak: bool = False
) -> Wording:
    patterns = tuple((_literal(each), re.compile(each)) for each in says)
    return Wording(name=name, kind=kind, source=source, says=patterns, goes_on=goes_on, weak=weak)


RAISED = (
    r"(?:^|what\(\):\s*"
    r"|(?:Error|Exception|ERROR|error|FATAL|WARN|failed)\]?:?\s+(?:.{0,60}:\s)?"
    r"|(?:with|get|got|getting|error):? [\"'`“])"
)
"""The words before a real message: the class of an exception, a quote, or nothing."""
_PRODUCT = (
    r"(?:.*?micro_batch_per_gpu \* gradient_acc_step \* world_size"
    r" ?(?P<global>\d+) != (?P<micro>\d+) \* (?P<accum>\d+) \* (?P<world>\d+))?"
)
_CLASS = r"^(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)"
_NO_MEMORY = (
    r"(?i:out of memory|(?:not enough|insufficient) memory"
    r"|(?:failed|unable) to allocate .{0,30}memory)\b"
)
_EXHAUSTED = r"(?:RESOURCE_EXHAUSTED|Resource exhausted|ResourceExhaustedError)"
_EXITED = r"[Ee]xit(?:ed)?(?: with)?(?: status)?[ _]?(?:[Cc]ode|status)?\"?[: =(]+"

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
    r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Bus error",
    r"unable to write to file </torch_\w+>\s*$"
    r"|(?:unable to (?:write to file|open shared memory object|resize file|allocate shared"
    r" memory\S*).*</torch_.*|/dev/shm/\S*torch_\S*.*)(?:No space left|Cannot allocate)",
    r"\[Errno 28\] No space left on device: '?/(?:dev/shm|torch_|psm_)",
    r"Error while (?:creating|attaching to) shared memory segment /dev/shm/nccl",
    r"posix_fallocate failed : No space left",
)  # fmt: skip
PINNED = _row(
    "pinned", Kind.HOST,
    "torch aten/src/ATen/cuda/CachingHostAllocator.cpp; tensorflow core/framework/op_kernel.cc on"
    " a CPU, stream_executor cuda_driver.cc; llama.cpp ggml-cuda.cu",
    r"cudaHost(?:Alloc|Register)\b.*(?:failed|out of memory)",
    r"(?i:resource.?exhausted).*OOM when allocating tensor.*by allocator (?:mkl)?cpu",
    rf"failed to allocate (?P<asked>{SIZE}) of pinned memory",
    r"failed to alloc(?:ate)? (?P<asked_plain>\d+) bytes on host: ",
)  # fmt: skip
TORCH_PART = _row(
    "torch-part", Kind.DEVICE,
    "torch, whose beginning other ranks' lines have torn off",
    rf"^(?:\S+ ){{0,3}}[Tt]ried to allocate (?P<asked>{SIZE})"
    rf"(?:\. GPU \d+ has a total cap| \(GPU \d+; {SIZE} total cap| on (?:private|shared) p)",
    r"(?:\bGPU (?P<device>\d+) has a )?\btotal capac"
    rf"(?:i?ty of {SIZE} of which {SIZE} (?:is|are) free|ity; {SIZE} already a)",
    goes_on=True,
)  # fmt: skip
TORCH_CLASS = _row(
    "torch-class", Kind.DEVICE,
    "torch torch/csrc/Exceptions.cpp, whatever its message",
    rf"(?:\btorch(?:\.cuda)?\.OutOfMemory(?:Error)?|RayTaskError\(OutOfMemoryError\))(?::\s|:?$)"
    rf"(?:.*\[rank=(?P<rank>\d+)\]|[Tt]ried to allocate (?P<asked>{SIZE}))?"
    r"|^OutOfMemoryError +Traceback \(most",
    goes_on=True,
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
        r"(?:\[Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout",
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
        r"Error: (?:mat1 and mat2 shapes|The size of tensor a|shape '\[|size mismatch"
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
        "triton python/triton/runtime/errors.py",
        r"out of resource: (?:shared memory|tensor memory|registers|threads), Required: \d+",
    ),
    PINNED,
    _row(
        "warning", Kind.WARNING,
        "tensorflow stream_executor cuda_driver.cc, which tries again with less; bfc_allocator.cc",
        r"^I \S+\] failed to alloc(?:ate)? .* from device: ",
        r"ran out of memory trying to allocate .*(?:is not a failure)",
    ),
)  # fmt: skip
_DEVICE = (
    _row(
        "torch", Kind.DEVICE,
        "torch c10/cuda/CUDACachingAllocator.cpp, CUDAMallocAsyncAllocator.cpp;"
        " c10/xpu/XPUCachingAllocator.cpp; aten/src/ATen/mps/MPSAllocator.mm; torch_npu"
        " NPUCachingAllocator.cpp v2.0.1 to v2.10.0, NPUWorkspaceAllocator.cpp v2.1.0 to v2.10.0",
        r"\b(?P<backend>[A-Z][A-Za-z0-9]{1,11}) out of memory\. (?:\w+ t|T)ried"
        rf" to allocate ?(?P<asked>{SIZE})",
        rf"\b(?P<backend>(?i:cuda|hip)) (?i:out of memory[.,:] ?tried to allocate)"
        rf" ?(?P<asked>{SIZE})",
        rf"(?P<backend>MPS) backend out of memory \(MPS allocated: {SIZE}",
        rf"{RAISED}(?P<backend>CUDA|HIP|XPU|NPU|MUSA|MLU|MPS)(?: backend)? out of memory"
        r"(?:[.!,:;)\"']|\s*$)(?! Tried)",
        rf"{RAISED}Invalid buffer size: (?P<asked>{SIZE})",
        r"Allocation on device ?(?P<device>\d*)\s*(?:would exceed allowed memory|$)",
        goes_on=True,
    ),
    TORCH_PART,
    _row(
        "tensorflow", Kind.DEVICE,
        "tensorflow core/framework/op_kernel.cc 1.x and 2.x;"
        " core/common_runtime/bfc_allocator.cc, later tsl/framework/bfc_allocator.cc;"
        " stream_executor cuda_driver.cc, rocm_driver.cc, stream_executor_pimpl.cc",
        rf"^[EF] \S+\] failed to alloc(?:ate)? (?:{SIZE}|[\d.]+\w)"
        r" \((?P<asked_plain>\d+) bytes\) from device: ",
        rf"[Rr]an out of memory trying to allocate (?P<asked>{SIZE})(?!.*is not a failure)",
        r"bfc_allocator\.cc:\d+\] (?:InUse at|Sum Total of in-use chunks)",
        rf"{_EXHAUSTED}: Failed to allocate request for"
        rf" (?P<asked>{SIZE}) .*on device ordinal (?P<device>\d+)",
        rf"{_EXHAUSTED}.*OOM when allocating tensor",
    ),
    _row(
        "xla", Kind.DEVICE,
        "openxla and jaxlib, TPU compiler and runtime, seen of 2021 to 2026",
        rf"Ran out of memory in memory space hbm\. Used (?P<asked>{SIZE}) of (?P<total>{SIZE})",
        rf"Total hbm usage >= (?P<asked>{SIZE})",
        rf"{_EXHAUSTED}: (?:Error [a-z ]+: |From \S+:\s*)?Attempting to (?:allocate|reserve)"
        rf" (?P<asked>{SIZE}).{{0,60}} There are (?P<free>{SIZE}) free",
        rf"{_EXHAUSTED}: .*?(?:[Oo]ut of memory|[Rr]an out of memory|OOM)"
        rf"(?:.*?allocat\w+ (?P<asked>{SIZE}))?",
    ),
    _row(
        "cuda", Kind.DEVICE,
        "torch c10/cuda/CUDAException.h, driver_api.h; aten/src/THC/THCGeneral.cpp; caffe2; vllm"
        " csrc/cumem_allocator.cpp; CUDA driver_types.h, cuda.h; HIP hip_runtime_api.h; oneAPI"
        " ur_api.h; thrust bad_alloc.h; triton driver.c; TensorRT defaultAllocator.cpp; NVML,"
        " asked by torch who holds memory",
        rf"{RAISED}(?P<backend>CUDA|HIP|CUDA driver|MUSA) [Ee]rror: out of memory",
        r"\bcudaErrorMemoryAllocation\b(?!\s*[=)(,])",
        r"\bhipErrorOutOfMemory\b(?!\s*[=)(,])",
        r"CUDA_ERROR_OUT_OF_MEMORY|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_(?:DEVICE_)?MEMORY",
        r"HIP_ERROR_OutOfMemory",
        r"cuda runtime error \(2\) ?: out of memory at"
        r"|THCudaCheck FAIL .*error=2 : out of memory|_gpu\.c[cu]:\d+: out of memory"
        r"|Triton Error \[(?:CUDA|HIP)\]: out of memory"
        r"|Requested amount of GPU memory \((?P<asked_plain>\d+) bytes\) could not be allocated"
        r"|Error Code \d+: Cuda Runtime \(out of memory\)",
        r"thrust::\S*bad_alloc",
        r"(?:NVML_SUCCESS == .{1,60}|\bhandle_\d?) ?INTERNAL ASSERT FAILED",
    ),
    _row(
        "libraries", Kind.DEVICE,
        "torch aten/src/ATen/cuda/Exceptions.h, CuFFTUtils.h; rocBLAS rocblas-types.h; intel/llvm"
        " sycl plugin interface and unified runtime; ROCR hsa.h",
        r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|HIPSOLVER)"
        r"_STATUS_ALLOC(?:ATION)?_FAILED\b",
        r"\bCUFFT_ALLOC_FAILED\b",
        r"\brocblas_status_memory_error\b",
        r"HSA_STATUS_ERROR_OUT_OF_RESOURCES"
        r"|(?:Native API|UR backend|level_zero backend) (?:failed|returns).*(?:PI|UR_RESULT)"
        r"_ERROR_OUT_OF_RESOURCES",
    ),
    _row(
        "nccl", Kind.DEVICE,
        "NCCL src/include/checks.h v2.7 to v2.30, cudawrap.h v2.19 to v2.30, alloc.h v2.14 to"
        " v2.30; RCCL",
        r"(?:\[(?P<device>\d+)\] \S+ NCCL WARN )?(?:Cuda|HIP|CUDA) failure (?:2 )?'out of memory'",
        r"(?:\[(?P<device>\d+)\] \S+ NCCL WARN )?Failed to CUDA"
        r" (?:calloc|malloc)(?: async)?(?: (?P<asked_plain>\d+) bytes)?",
    ),
    _row(
        "ascend", Kind.DEVICE,
        "CANN runtime and graph engine, error codes",
        r"(?:Call rtMalloc fail|\(?EL0004\)?:.{0,60}Failed to allocate memory)"
        r"(?:.*?\bsize: ?(?P<asked_plain>\d+)(?:, ?device_id: ?(?P<device>\d+))?)?",
        goes_on=True,
    ),
    _row(
        "metal", Kind.DEVICE,
        "Metal, through torch MPS and MLX",
        r"Insufficient Memory \(\d+:kIOGPUCommandBufferCallbackErrorOutOfMemory\)",
    ),
    _row(
        "paddle", Kind.DEVICE,
        "paddle fluid/memory/allocation/cuda_allocator.cc, later phi/core/memory/allocation",
        r"Out of memory error on (?:GPU|XPU|NPU) (?P<device>\d+)\."
        rf" Cannot allocate (?P<asked>{SIZE}) memory",
        goes_on=True,
    ),
    _row(
        "vllm", Kind.DEVICE,
        "vllm v1/worker/gpu_worker.py, v1/worker/utils.py, worker/worker.py,"
        " v1/core/kv_cache_utils.py, v1/worker/gpu_model_runner.py",
        r"Free memory on device (?:cuda:(?P<device>\d+) )?\((?P<free_gib>[\d.]+)/"
        r"(?P<total>[\d.]+ GiB)\) on startup is less than desired GPU memory utilization"
        r" \([\d.]+, (?P<asked>[\d.]+ GiB)\)",
        rf"(?P<asked>{SIZE}) KV cache is needed, which is larger than the available"
        rf" KV cache memory \((?P<free>{SIZE})\)",
        r"No available memory for the cache blocks",
        r"CUDA out of memory occurred when warming up",
    ),
    _row(
        "llama.cpp", Kind.DEVICE,
        "llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu",
        r"allocating (?P<asked>[\d.]+ MiB) on device (?P<device>\d+): cudaMalloc failed: out of",
    ),
    _row(
        "no-batch", Kind.DEVICE,
        "accelerate utils/memory.py 0.10 to 1.15: every size ran out of memory",
        r"No executable batch size found, reached zero",
    ),
    _row(
        "device", Kind.DEVICE,
        "intel-extension-for-pytorch CachingDeviceAllocator.cpp; AWS Neuron runtime (TDRV);"
        " nnabla memory/allocator.cpp; cupy cuda/memory.pyx v4 to v13; habana pytorch bridge;"
        " fairseq multiprocessing_trainer.py v0.3.0; torch torch/cuda/memory.py, memory_summary",
        rf"{RAISED}Allocation is out of device memory on current platform",
        r"Failed to alloc DEVICE memory: (?P<asked_plain>\d+)",
        rf"Failed to allocate (?P<asked>{SIZE}) (?:on DEVICE for tensor"
        r"|\(usage: [\w ]+\) on ND (?P<device>\d+))",
        r"\bnrt_\w+ status=4\b",
        r"\bNRT_RESOURCE in nrt_\w+",
        rf"{RAISED}memory error in alloc\b",
        rf"[Oo]ut of memory (?:allocating|to allocate) (?P<asked>{SIZE})"
        r" \((?:alloc|total )",
        r"MODULE:PT_DEVMEM Allocation failed for size::(?P<asked_plain>\d+)",
        r"ran out of memory on GPU #(?P<device>\d+), skipping batch",
        r"\bCUDA OOMs: +[1-9]",
    ),
    TORCH_CLASS,
    _row(
        "exception", Kind.DEVICE, "any program that repeats a driver's words in its exception",
        rf"{_CLASS}: .{{0,80}}\b(?P<backend>CUDA|HIP|XPU|NPU|MPS|ROCm)\b.{{0,40}}"
        r"\b[Oo]ut of memory\b(?! errors)",
    ),
)  # fmt: skip
_HOST = (
    _row(
        "tensor", Kind.HOST,
        "torch c10/core/CPUAllocator.cpp, later c10/core/impl/alloc_cpu.cpp;"
        " torch/lib/TH/THGeneral.c, later aten/src/TH; numpy core/_exceptions.py,"
        " _core/_exceptions.py 2.4",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate"
        r"(?: (?P<asked>\d+ bytes))?",
        r"Torch: not enough memory: you tried to allocate (?P<asked>\d+ ?GB)",
        rf"[Uu]nable to allocate (?:(?P<asked>{SIZE}) for an )?array with shape",
    ),
    _row(
        "host", Kind.HOST,
        "CPython exceptions.c; glibc strerror(ENOMEM); C++ standard library; OpenCV alloc.cpp;"
        " rust std alloc.rs; .NET; Java, as Spark; Windows ERROR_COMMITMENT_LIMIT in any language",
        r"^MemoryError(?:[:(]|\s*$)",
        r"(?:\[Errno 12\] |mmap.*|Error code 12 \(|fork: .*)Cannot allocate memory",
        r"'?std::bad_alloc'?",
        r"error: \(-4:Insufficient memory\) Failed to allocate (?P<asked_plain>\d+)?",
        r"^memory allocation of (?P<asked>\d+ bytes) failed",
        r"\bSystem\.OutOfMemoryException: |\bjava\.lang\.OutOfMemoryError: ",
        r"(?:\[WinError|\bos error) 1455\b",
    ),
    _row(
        "worker-killed", Kind.HOST,
        "torch torch/csrc/DataLoader.cpp, as in v2.13; paddle fluid/imperative/data_loader.cc",
        r"DataLoader (?:worker|process) \(pid +(?P<pid>\d+)\) (?:exited )?is killed by signal:"
        r" Killed",
    ),
    _row(
        "kernel", Kind.HOST,
        "Linux mm/oom_kill.c; earlyoom kill.c 1.3 to 1.8; systemd-oomd oomd-util.c",
        r"(?:Memory cgroup o|O)ut of memory: Kill(?:ed)? process"
        r" (?P<pid>\d+)(?:.*\banon-rss:(?P<asked>\d+ *kB))?",
        r"^Killed process (?P<pid>\d+) .*\btotal-vm(?:.*\banon-rss:(?P<asked>\d+ *kB))?",
        r"sending SIG(?:TERM|KILL) to process (?P<pid>\d+) .*\bVmRSS:? (?P<asked>\d+ MiB)",
        r"Killing process '.*, pid: (?P<pid>\d+).*\bVmRSS:? (?P<asked>\d+ MiB)",
        r"Killed /\S+ due to memory (?:pressure|used)",
        r"oom-kill:constraint=|invoked oom-killer:",
    ),
    _row(
        "slurm-oom", Kind.HOST,
        "slurm task_cgroup_memory.c 17.02 to 25.05, slurm_jobacct_gather.c 15.08 to 20.11,"
        " launch_slurm.c 17.02 to 22.05, src/srun/launch.c to 25.05; seff and sacct",
        r"Detected \d+ oom[_-]kill event(?:\(s\)|s)? in [Ss]tep",
        r"tasks? (?P<tasks>\d[\d,-]*): Out Of Memory",
        r"(?:\b|Job)(?:State|STATE)\S*\s*[:=]?\s*OUT_OF_ME",
        r"Exceeded (?:step|job) memory limit"
        r"|exceeded memory limit \((?P<asked_kib>\d+) > (?P<total_kib>\d+)\)",
    ),
    _row(
        "ray", Kind.HOST,
        "ray src/ray/raylet/node_manager.cc, worker_killing_policy.cc, seen of 2022 to 2025; its"
        " out-of-memory documentation",
        r"[1-9]\d{0,8} Workers .*due to memory pressure",
        r"was killed due to the node running low on memory",
        rf"was running was (?P<asked>{SIZE}) / (?P<total>{SIZE}) \(",
    ),
    _row(
        "limit", Kind.HOST,
        "IBM Spectrum LSF, exit reasons; PBS; Kubernetes, reason of a container's state,"
        " kubelet's eviction manager; docker inspect; Kaggle and Colab, as users quote them",
        r"TERM_MEMLIMIT",
        r"PBS: job killed: (?:v?mem|pmem) \S+ exceeded limit",
        r"(?<!as )(?<!== ['\"])\bOOMKilled\b(?!['\"]?\s*[:=]\s*false)",
        r"The node was low on resource: memory",
        r"notebook tried to allocate more memory than is available",
        r"session crashed after using all available RAM",
    ),
)  # fmt: skip
_KILLED = (
    _row(
        "bus", Kind.BUS,
        "torch torch/distributed/elastic, as in v2.13; deepspeed launcher/launch.py 0.6 to 0.19;"
        " slurm launch_slurm.c 17.02 to 22.05, srun/launch.c 23.02",
        r"exitcode ?: -7\)? (?:local_rank: (?P<rank>\d+) )?\(pid: (?P<pid>\d+)\)",
        r"exits with return code = -7\b",
        r"error: \S+: tasks? (?P<tasks>[\d,-]+): Bus error",
    ),
    _row(
        "killed", Kind.KILLED,
        "torch torch/distributed/elastic, torch/multiprocessing/spawn.py, as in v2.13; CPython"
        " subprocess.py under accelerate and torch; deepspeed launcher/launch.py 0.6 to 0.19;"
        " slurm launch_slurm.c 17.02 to 22.05, src/srun/launch.c 23.02; Open MPI orterun, PRRTE;"
        " bash jobs.c; docker ps, kubectl describe: 128 + SIGKILL",
        r"Signal 9 \(SIGKILL\) received by PID (?P<pid>\d+)",
        r"exitcode ?: -9\)? (?:local_rank: (?P<rank>\d+) )?\(pid: (?P<pid>\d+)\)",
        r"exitcode +: -9 \(pid: (?P<pid>\d+)\)",
        r"process (?P<rank>\d+) terminated with signal SIGKILL|<Signals\.SIGKILL: 9>|^SIGKILL\s*$",
        r"returned non-zero exit status (?:-9|137)\b",
        r"exits with return code (?:= )?(?:-9|137)\b",
        r"Worker process \d+ was killed by (?:unknown signal|signal 9)",
        r"error: \S+: tasks? (?P<tasks>[\d,-]+): Killed"
        r"|^(?:\S*: line \d+: +)?(?P<pid>\d+) Killed\s+\S|^Killed\s*$",
        r"^(?:已杀死|強制終了|Getötet|Убито)\s*$",
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal 9\b",
        rf"{_EXITED}137\b(?!/)",
        r"[Ee]xit(?:ed (?:\w+ ){0,4}with)? ?code(?: ?[:=] ?| )-9\.?$",
    ),
)  # fmt: skip
DISK = _row(
    "disk", Kind.DISK,
    "CPython OSError; torch caffe2/serialize/inline_container.cc; safetensors",
    r"Error: .*(?:\[Errno 28\]|\[Errno 122\]|PytorchStreamWriter failed writing file"
    r"|No space left on device)",
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
        r"Memory access fault by GPU node-\d",
        r"CUDA [Ee]rror: (?:uncorrectable ECC error|misaligned address|unknown error"
        r"|all CUDA-capable devices are busy|invalid device ordinal|driver shutting down)",
        r"[Ee]rror:? no kernel image is available",
        r"cuda runtime error \(\d+\) : ",
        r": unspecified launch failure",
        r"== cudaSuccess \(\d+ vs",
        r"\bCU\w+_STATUS_EXECUTION_FAILED\b",
    ),
    _row(
        "ended", Kind.ENDED,
        "deepspeed launcher/launch.py 0.3.16 to 0.19, with the return code since 0.6; torch"
        " torch/distributed/elastic, as in v2.13; ray _private/worker.py, exceptions.py, raylet;"
        " torch c10d TCPStore, gloo, NCCL; CPython subprocess.py",
        r"^Killing subprocess \d+",
        r"exits with return code = -?[1-9]\d*",
        r"(?:Signal 15 \(SIGTERM\) received by PID"
        r"|Sending process \d+ closing signal SIG(?:TERM|HUP|INT)"
        r"|via (?:Signals\.)?SIGTERM, forcefully exiting via (?:Signals\.)?SIGKILL)",
        r"SignalException: Process \d+ got signal",
        r"(?:^|multiprocessing\.errors\.)ChildFailedError",
        r"failed \(exitcode: -?[1-9]\d*\)|^exitcode +: -?[1-9]\d* \(pid: \d+\)",
        r"Worker unexpectedly exits with a connection error",
        r"The actor died|A worker died or was killed while"
        r"|Error: One of the subprocesses has abruptly died",
        r"Raylet is terminated",
        r"DataLoader worker \(pid.* exited unexp",
        r"(?:background workers are no longer alive|Background workers died)",
        r"ExecuteUserScriptError:",
        r"Connection (?:reset|closed) by (?:remote )?peer",
        r"ncclRemoteError",
        r"Broken pipe",
        r"CalledProcessError: Command\b",
    ),
    _row(
        "python-exception", Kind.OTHER,
        "CPython traceback.py; libstdc++ and libc++abi",
        r"^(?:[A-Za-z_]\w*\.)*(?:(?:nccl)?[A-Z]\w*(?:Error|Exception|Interrupt)"
        r"|Exception)(?:\(\w+\))?(?:: .|$|:$)|^Exception in device=TPU:",
        r"^(?:libc\+\+abi: )?terminat(?:e called after throwing|ing due to uncaught)",
        r"Unhandled exception with message: ",
        r"[Ss]egmentation fault \(core dumped\)",
        r"^Windows fatal exception: ",
    ),
)  # fmt: skip

_ANY = (
    _row(
        "host-exception", Kind.HOST, "any program, in its own exception",
        rf"{_CLASS}: .{{0,80}}\b(?i:host|system|RAM|CPU|main)\b.{{0,40}}{_NO_MEMORY}",
    ),
    _row(
        "any-exception", Kind.DEVICE, "any program that does not say which memory it means",
        rf"{_CLASS}: .{{0,80}}{_NO_MEMORY}",
        weak=True,
    ),
)  # fmt: skip
_WEAK = (
    _row(
        "torch-title", Kind.DEVICE,
        "torch, as people cut its message, e.g. for a title",
        r"(?:^|\b)(?P<backend>CUDA|HIP|XPU|NPU|MUSA|MLU|MPS)(?: backend| error)?:?"
        r" out of memory\b(?! errors)",
        weak=True,
    ),
    _row(
        "ray-remark", Kind.HOST,
        "ray raylet, below a message that is cut",
        r"^(?:\(raylet\) )?Refer to the documentation on how to address the out of memory issue:"
        r" \S+ray",
        weak=True,
    ),
    _row(
        "fault-remark", Kind.ASSERT,
        "torch c10/cuda/CUDAException.cpp, below a cut message",
        r"^(?:CUDA|HIP) kernel errors might be asynchronously reported at some other",
        weak=True,
    ),
)  # fmt: skip

WORDINGS = (*_MISTAKEN, *_DEVICE, *_HOST, SHARED, *_KILLED, *_ANY, *_LAST, *_WEAK)
"""In the order in which they are tried: what is mistaken for something else comes first."""
