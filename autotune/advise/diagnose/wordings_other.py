"""What is no lack of memory, but mistaken for it, or follows from it."""

from __future__ import annotations

from autotune.advise.diagnose.kinds import Kind, row

_PRODUCT = (
    r"(?:.*?micro_batch_per_gpu \* gradient_acc_step \* world_size"
    r" ?(?P<global>\d+) != (?P<micro>\d+) \* (?P<accum>\d+) \* (?P<world>\d+))?"
)

MISTAKEN = (
    row(
        "batch-deepspeed", Kind.BATCH, "Check batch related",
        rf"(?<!f\")Check batch related parameters\.(?:\s*$| train_batch_size is not{_PRODUCT})",
        "deepspeed runtime/config.py 0.3 to 0.19, before 0.6 without the blank",
    ),
    row(
        "batch-part", Kind.BATCH, "o_batch_per_gpu", rf"^.{{0,60}}equal to{_PRODUCT}",
        "the same, whose beginning other ranks' lines have torn off",
    ),
    row(
        "batch-megatron", Kind.BATCH, "is not divisible by micro batch",
        r"global batch size \((?P<global>\d+)\) is not divisible by micro batch size"
        r" \((?P<micro>\d+)\) times data parallel size \((?P<world>\d+)\)",
        "megatron-lm megatron/microbatches.py v2.0 to core_v0.5, training/microbatches.py to v0.7,"
        " core/num_microbatches_calculator.py core_v0.8 to core_v0.12",
    ),
    row(
        "batch-torchtitan", Kind.BATCH, "global batch size must be",
        r"global batch size must be multiple of local batch size times data-parallel degree"
        r"(?: \((?P<global>\d+) % \((?P<micro>\d+) \* (?P<world>\d+)\))?",
        "torchtitan torchtitan/train.py v0.1.0 to v0.2.2",
    ),
    row(
        "batch-transformers", Kind.BATCH, "mismatch TrainingArguments",
        r"DeepSpeed config values that mismatch TrainingArguments values",
        "transformers integrations/deepspeed.py, as in 5.23",
    ),
    row(
        "nccl-timeout", Kind.TIMEOUT, ("atchdog caught", "NCCL operations"),
        r"(?:\[Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout"
        r"|Some NCCL operations have failed or timed out",
        "torch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    row(
        "nccl-heartbeat", Kind.TIMEOUT, "atchdog",
        r"(?:ProcessGroupNCCL'|^)s watchdog got stuck for", "the same",
    ),
    row(
        "gloo-timeout", Kind.TIMEOUT, ("imed out", "Timed out", "Socket Timeout"),
        r"(?:Timed out (?:waiting \d+ms for (?:recv|send)|initializing process group)"
        r"|Socket Timeout\b)",
        "gloo transport/tcp/unbound_buffer.cc; torch c10d store",
    ),
    row(
        "device-assert", Kind.ASSERT, "device-side assert",
        r"(?:CUDA|HIP) error: device-side assert triggered",
        "torch c10/cuda/CUDAException.h (cudaErrorAssert)",
    ),
    row(
        "kernel-assert", Kind.ASSERT, "Assertion `",
        r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion `.{1,200}` failed",
        "CUDA device runtime, __assert_fail",
    ),
    row(
        "library", Kind.LIBRARY, ("NOT_INITIALIZED", "_STATUS_INTERNAL_ERROR"),
        r"\b(?:CUBLAS|CUDNN|HIPBLAS|CUSOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)\b",
        "torch aten/src/ATen/cuda/Exceptions.h",
    ),
    row(
        "shape", Kind.SHAPE, "Error: ",
        r"Error: (?:mat1 and mat2 shapes|The size of tensor a|shape '\[|size mismatch"
        r"|Error\(s\) in loading state_dict|Sizes of tensors must match|stack expects each"
        r"|Expected input batch_size|The expanded size of the tensor|shape mismatch)",
        "torch aten/src/ATen/native/LinearAlgebra.cpp, ExpandUtils.cpp and others",
    ),
    row(
        "files", Kind.FILES, ("of ancdata", "shared memory object", "Too many open files"),
        r"Error: (?:received \d+ items of ancdata|.*Too many open files"
        r"|unable to open shared memory object </torch_\S+> in read-write mode(?!: \w))",
        "CPython multiprocessing/reduction.py; torch aten/src/ATen/MapAllocator.cpp",
    ),
    row(
        "triton-resources", Kind.KERNEL, "ut of resource",
        r"out of resource: (?:shared memory|tensor memory|registers|threads), Required: \d+",
        "triton python/triton/runtime/errors.py",
    ),
    row(
        "tensorflow-host", Kind.HOST, "OOM when allocating",
        r"(?i:resource.?exhausted).*OOM when allocating tensor.*by allocator (?:mkl)?cpu",
        "tensorflow core/framework/op_kernel.cc, on a CPU",
    ),
    row(
        "stream-executor-host", Kind.HOST, "bytes on host",
        r"failed to alloc(?:ate)? (?P<asked_plain>\d+) bytes on host: ",
        "tensorflow stream_executor cuda_driver.cc: pinned memory",
    ),
    row(
        "stream-executor-info", Kind.WARNING, "from device: ",
        r"^I \S+\] failed to alloc(?:ate)? .* from device: ",
        "tensorflow stream_executor cuda_driver.cc: it tries again with less",
    ),
    row(
        "bfc-warning", Kind.WARNING, "ran out of memory",
        r"ran out of memory trying to allocate .*(?:is not a failure)",
        "tensorflow core/common_runtime/bfc_allocator.cc, later tsl/framework/bfc_allocator.cc",
    ),
)  # fmt: skip

LAST = (
    row(
        "slurm-ended", Kind.SCHEDULED, "CANCELLED AT",
        r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+"
        r"(?: DUE TO (?P<why>[A-Z][A-Z ,]*[A-Z]))?",
        "slurm slurmstepd, as jobs' error files have it",
    ),
    row(
        "disk", Kind.DISK, ("No space left", "Disk quota exceeded", "PytorchStreamWriter failed"),
        r"Error: .*(?:\[Errno 28\]|\[Errno 122\]|PytorchStreamWriter failed writing file"
        r"|No space left on device)",
        "CPython OSError; torch caffe2/serialize/inline_container.cc; safetensors",
    ),
    row(
        "illegal-access", Kind.ASSERT, "an illegal",
        r"an illegal (?:memory access|instruction) was encountered", "CUDA runtime error strings",
    ),
    row(
        "page-fault", Kind.ASSERT, "Memory access fault", r"Memory access fault by GPU node-\d",
        "ROCR runtime.cpp: an address that is not mapped",
    ),
    row(
        "device-lost", Kind.ASSERT,
        ("CUDA error:", "CUDA Error:", "runtime error (", "no kernel image", "_EXECUTION_FAILED",
         "launch failure", "cudaSuccess ("),
        r"CUDA [Ee]rror: (?:uncorrectable ECC error|misaligned address|unknown error"
        r"|all CUDA-capable devices are busy|invalid device ordinal|driver shutting down)"
        r"|: unspecified launch failure|cuda runtime error \(\d+\) : |== cudaSuccess \(\d+ vs"
        r"|[Ee]rror:? no kernel image is available|\bCU\w+_STATUS_EXECUTION_FAILED\b",
        "CUDA runtime error strings",
    ),
    row(
        "deepspeed-ended", Kind.ENDED, ("Killing subprocess", "return code ="),
        r"^Killing subprocess \d+|exits with return code = -?[1-9]\d*",
        "deepspeed launcher/launch.py 0.3.16 to 0.19, with the return code since 0.6",
    ),
    row(
        "ended", Kind.ENDED, ("SIGTERM", "SignalException"),
        r"(?:Signal 15 \(SIGTERM\) received by PID|Sending process \d+ closing signal SIGTERM"
        r"|via (?:Signals\.)?SIGTERM, forcefully exiting via (?:Signals\.)?SIGKILL"
        r"|SignalException: Process \d+ got signal)",
        "torch torch/distributed/elastic, as in v2.13",
    ),
    row(
        "launcher", Kind.ENDED,
        ("ChildFailedError", "exitcode", "Worker unexpectedly exits", "died", "Raylet",
         "exited unexpectedly", "longer alive", "ExecuteUserScript"),
        r"(?:^|multiprocessing\.errors\.)ChildFailedError|failed \(exitcode: -?[1-9]\d*\)"
        r"|^exitcode +: -?[1-9]\d* \(pid: \d+\)|Worker unexpectedly exits with a connection error"
        r"|The actor died|A worker died or was killed while|Raylet is terminated"
        r"|Error: One of the subprocesses has abruptly died|DataLoader worker \(pid.* exited unexp"
        r"|background workers are no longer alive|ExecuteUserScriptError:",
        "torch torch/distributed/elastic/multiprocessing/errors/__init__.py, as in v2.13; ray"
        " python/ray/_private/worker.py, exceptions.py; raylet",
    ),
    row(
        "peer", Kind.ENDED, (" peer", "ncclRemoteError", "Broken pipe", "CalledProcessError"),
        r"(?:Connection (?:reset|closed) by (?:remote )?peer|ncclRemoteError|Broken pipe)"
        r"|CalledProcessError: Command\b",
        "torch c10d TCPStore, gloo, NCCL; CPython subprocess.py",
    ),
    row(
        "python-exception", Kind.OTHER,
        ("Error", "xception", "Interrupt", "terminat", "egmentation fault"),
        r"^(?:[A-Za-z_]\w*\.)*(?:(?:nccl)?[A-Z]\w*(?:Error|Exception|Interrupt)|Exception)(?:\(\w+\))?"
        r"(?:: .|$|:$)|^(?:libc\+\+abi: )?terminat(?:e called after throwing|ing due to uncaught)"
        r"|Unhandled exception with message: |^Exception in device=TPU:"
        r"|[Ss]egmentation fault \(core dumped\)|^Windows fatal exception: ",
        "CPython traceback.py; libstdc++ and libc++abi",
    ),
)  # fmt: skip
