"""How libraries say that device memory ran out."""

from __future__ import annotations

from autotune.advise.diagnose.kinds import RAISED, SIZE, Kind, row

DEVICE = (
    row(
        "torch", Kind.DEVICE, "ut of memory",
        rf"\b(?P<backend>[A-Z][A-Za-z0-9]{{1,11}}) out of memory\. (?:\w+ t|T)ried to allocate"
        rf" ?(?P<asked>{SIZE})",
        "torch c10/cuda/CUDACachingAllocator.cpp; c10/xpu/XPUCachingAllocator.cpp; torch_npu"
        " NPUCachingAllocator.cpp v2.0.1 to v2.10.0, NPUWorkspaceAllocator.cpp v2.1.0 to v2.10.0",
    ),
    row(
        "torch-short", Kind.DEVICE, "ut of memory",
        rf"{RAISED}(?P<backend>CUDA|HIP|XPU|NPU|MUSA|MLU|MPS)(?: backend)? out of memory"
        r"(?:[.!,:;)\"']|\s*$)(?! Tried)",
        "the same, cut or repeated by a caller",
    ),
    row(
        "torch-mps", Kind.DEVICE, "ut of memory",
        rf"(?P<backend>MPS) backend out of memory \(MPS allocated: {SIZE}",
        "torch aten/src/ATen/mps/MPSAllocator.mm: GB in 2023, GiB since 2025",
    ),
    row(
        "torch-mps-buffer", Kind.DEVICE, "nvalid buffer size",
        rf"{RAISED}Invalid buffer size: (?P<asked>{SIZE})",
        "torch aten/src/ATen/mps/MPSAllocator.mm, seen of v2.0 and v2.6",
    ),
    row(
        "torch-part", Kind.DEVICE, ("ried to allocate", "total capac"),
        rf"^(?:\S+ ){{0,3}}[Tt]ried to allocate (?P<asked>{SIZE})"
        rf"(?:\. GPU \d+ has a total cap| \(GPU \d+; {SIZE} total cap| on (?:private|shared) p)"
        rf"|(?:\bGPU (?P<device>\d+) has a )?\btotal capac"
        rf"(?:i?ty of {SIZE} of which {SIZE} (?:is|are) free|ity; {SIZE} already a)",
        "the same, whose beginning other ranks' lines have torn off",
    ),
    row(
        "torch-async", Kind.DEVICE, "exceed allowed memory",
        r"Allocation on device (?P<device>\d*)\s*would exceed allowed memory",
        "torch c10/cuda/CUDAMallocAsyncAllocator.cpp",
    ),
    row(
        "torch-thc", Kind.DEVICE, "ut of memory",
        r"cuda runtime error \(2\) ?: out of memory at|THCudaCheck FAIL .*error=2 : out of memory"
        r"|context_gpu\.cu:\d+: out of memory",
        "torch torch/lib/THC/THCGeneral.c v0.3, aten/src/THC/THCGeneral.cpp; caffe2",
    ),
    row(
        "fairseq", Kind.DEVICE, "memory on GPU #",
        r"ran out of memory on GPU #(?P<device>\d+), skipping batch",
        "fairseq fairseq/multiprocessing_trainer.py v0.3.0",
    ),
    row(
        "cuda-error", Kind.DEVICE, "ut of memory",
        rf"{RAISED}(?P<backend>CUDA|HIP|CUDA driver|MUSA) [Ee]rror: out of memory",
        "torch c10/cuda/CUDAException.h, CUDAException.cpp, driver_api.h; vllm csrc"
        "/cumem_allocator.cpp",
    ),
    row(
        "stream-executor", Kind.DEVICE, "from device: ",
        rf"^[EF] \S+\] failed to alloc(?:ate)? (?:{SIZE}|[\d.]+\w) \((?P<asked_plain>\d+) bytes\)"
        r" from device: ",
        "tensorflow stream_executor cuda_driver.cc, rocm_driver.cc",
    ),
    row(
        "cuda-code", Kind.DEVICE, ("cudaErrorMemoryAllocation", "hipErrorOutOfMemory"),
        r"(?:\bcudaErrorMemoryAllocation\b|\bhipErrorOutOfMemory\b)(?!\s*[=)(,])",
        "CUDA runtime API, driver_types.h; HIP hip_runtime_api.h",
    ),
    row(
        "cuda-driver", Kind.DEVICE, ("OUT_OF_", "HIP_ERROR_OutOfMemory"),
        r"(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory"
        r"|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_(?:DEVICE_)?MEMORY)",
        "CUDA driver API, cuda.h; oneAPI unified runtime ur_api.h",
    ),
    row(
        "xpu-platform", Kind.DEVICE, "out of device memory",
        rf"{RAISED}Allocation is out of device memory on current platform",
        "intel-extension-for-pytorch csrc/gpu/runtime/CachingDeviceAllocator.cpp, seen of 2023",
    ),
    row(
        "xpu-resources", Kind.DEVICE, "OUT_OF_RESOURCES",
        r"(?:Native API|UR backend|level_zero backend) (?:failed|returns).*(?:PI|UR_RESULT)"
        r"_ERROR_OUT_OF_RESOURCES"
        r"|HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        "intel/llvm sycl plugin interface and unified runtime; ROCR hsa.h",
    ),
    row(
        "blas", Kind.DEVICE, ("_STATUS_ALLOC_FAILED", "_STATUS_ALLOCATION_FAILED"),
        r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|HIPSOLVER)_STATUS_ALLOC(?:ATION)?_FAILED\b",
        "torch aten/src/ATen/cuda/Exceptions.h",
    ),
    row(
        "fft", Kind.DEVICE, "CUFFT_ALLOC_FAILED", r"\bCUFFT_ALLOC_FAILED\b",
        "torch aten/src/ATen/native/cuda/CuFFTUtils.h",
    ),
    row(
        "rocblas", Kind.DEVICE, "rocblas_status_memory_error", r"\brocblas_status_memory_error\b",
        "rocBLAS rocblas-types.h; hipBLAS says HIPBLAS_STATUS_ALLOC_FAILED for it",
    ),
    row(
        "nccl", Kind.DEVICE, "out of memory",
        r"(?:\[(?P<device>\d+)\] \S+ NCCL WARN )?(?:Cuda|HIP|CUDA) failure (?:2 )?'out of memory'",
        "NCCL src/include/checks.h v2.7 to v2.30; with a number cudawrap.h v2.19 to v2.30; RCCL",
    ),
    row(
        "nccl-calloc", Kind.DEVICE, "Failed to CUDA",
        r"(?:\[(?P<device>\d+)\] \S+ NCCL WARN )?Failed to CUDA (?:calloc|malloc)"
        r"(?: async)?(?: (?P<asked_plain>\d+) bytes)?",
        "NCCL src/include/alloc.h v2.14 to v2.30",
    ),
    row(
        "nvml",
        Kind.DEVICE,
        "INTERNAL ASSERT FAILED",
        r"(?:NVML_SUCCESS == .{1,60}|\bhandle_\d?) ?INTERNAL ASSERT FAILED",
        "torch c10/cuda/CUDACachingAllocator.cpp and driver_api.cpp: it asks NVML who holds"
        " memory, and NVML is not there",
    ),
    row(
        "thrust", Kind.DEVICE, "thrust::", r"thrust::\S*bad_alloc",
        "thrust system/detail/bad_alloc.h",
    ),
    row(
        "triton", Kind.DEVICE, "Triton Error",
        r"Triton Error \[(?:CUDA|HIP)\]: out of memory",
        "triton third_party/nvidia/backend/driver.c",
    ),
    row(
        "tensorrt", Kind.DEVICE, "Cuda Runtime (out of memory)",
        r"Error Code \d+: Cuda Runtime \(out of memory\)", "TensorRT defaultAllocator.cpp",
    ),
    row(
        "ascend", Kind.DEVICE, ("Call rtMalloc fail", "EL0004"),
        r"(?:Call rtMalloc fail|\(?EL0004\)?:.{0,60}Failed to allocate memory)"
        r"(?:.*?\bsize: ?(?P<asked_plain>\d+)(?:, ?device_id: ?(?P<device>\d+))?)?",
        "CANN runtime and graph engine, error codes",
    ),
    row(
        "xla-hbm", Kind.DEVICE, "memory space hbm",
        rf"Ran out of memory in memory space hbm\. Used (?P<asked>{SIZE}) of (?P<total>{SIZE})",
        "openxla, TPU compiler",
    ),
    row(
        "xla-usage", Kind.DEVICE, "Total hbm usage", rf"Total hbm usage >= (?P<asked>{SIZE})",
        "openxla, TPU compiler: of a program that does not fit, seen of 2021",
    ),
    row(
        "neuron", Kind.DEVICE, ("DEVICE", "nrt_tensor_allocate", "usage: "),
        rf"Failed to alloc DEVICE memory: (?P<asked_plain>\d+)"
        rf"|Failed to allocate (?P<asked>{SIZE}) (?:on DEVICE for tensor"
        rf"|\(usage: [\w ]+\) on ND (?P<device>\d+))"
        r"|nrt_tensor_allocate status=4\b",
        "AWS Neuron runtime (TDRV), seen of 2024 and 2025",
    ),
    row(
        "nnabla", Kind.DEVICE, "memory error in alloc", rf"{RAISED}memory error in alloc\b",
        "nnabla src/nbla/memory/allocator.cpp, after its cache was given back in vain",
    ),
    row(
        "xla-reserve", Kind.DEVICE, ("RESOURCE_EXHAUSTED", "Resource exhausted"),
        rf"(?:RESOURCE_EXHAUSTED|Resource exhausted): (?:Error [a-z ]+: )?"
        rf"Attempting to (?:allocate|reserve) (?P<asked>{SIZE}).{{0,60}} There are"
        rf" (?P<free>{SIZE}) free",
        "openxla, TPU runtime, seen of 2022 and 2025",
    ),
    row(
        "xla", Kind.DEVICE, ("RESOURCE_EXHAUSTED", "Resource exhausted"),
        rf"(?:RESOURCE_EXHAUSTED|Resource exhausted): .*?(?:[Oo]ut of memory|[Rr]an out"
        rf" of memory|OOM)"
        rf"(?:.*?allocat\w+ (?P<asked>{SIZE}))?",
        "openxla and jaxlib, seen of 2022 to 2026",
    ),
    row(
        "tensorflow-bfc", Kind.DEVICE, "an out of memory trying",
        rf"[Rr]an out of memory trying to allocate (?P<asked>{SIZE})(?!.*is not a failure)",
        "tensorflow core/common_runtime/bfc_allocator.cc, later tsl/framework/bfc_allocator.cc",
    ),
    row(
        "tensorflow-dump", Kind.DEVICE, "bfc_allocator.cc",
        r"bfc_allocator\.cc:\d+\] (?:InUse at|Sum Total of in-use chunks)",
        "tensorflow bfc_allocator.cc: what it holds, after it found no memory",
    ),
    row(
        "torch-summary", Kind.DEVICE, " OOMs:", r"\bCUDA OOMs: +[1-9]",
        "torch torch/cuda/memory.py, memory_summary v1.4 to v2.10",
    ),
    row(
        "metal", Kind.DEVICE, "Insufficient Memory",
        r"Insufficient Memory \(\d+:kIOGPUCommandBufferCallbackErrorOutOfMemory\)",
        "Metal, through torch MPS and MLX",
    ),
    row(
        "tensorflow-request", Kind.DEVICE, "Failed to allocate request",
        rf"ResourceExhaustedError: Failed to allocate request for (?P<asked>{SIZE}) .*on device"
        r" ordinal (?P<device>\d+)",
        "tensorflow StreamExecutorMemoryAllocator, stream_executor_pimpl.cc",
    ),
    row(
        "tensorflow", Kind.DEVICE, "OOM when allocating",
        r"(?:ResourceExhaustedError|RESOURCE_EXHAUSTED).*OOM when allocating tensor",
        "tensorflow core/framework/op_kernel.cc, 1.x and 2.x",
    ),
    row(
        "cupy", Kind.DEVICE, ("ut of memory allocating", "ut of memory to allocate"),
        rf"[Oo]ut of memory (?:allocating|to allocate) (?P<asked>{SIZE}) \((?:alloc|total )",
        "cupy cupy/cuda/memory.pyx v4 to v13",
    ),
    row(
        "paddle", Kind.DEVICE, "ut of memory error on",
        rf"Out of memory error on (?:GPU|XPU|NPU) (?P<device>\d+)\. Cannot allocate"
        rf" (?P<asked>{SIZE}) memory",
        "paddle fluid/memory/allocation/cuda_allocator.cc, later phi/core/memory/allocation",
    ),
    row(
        "gaudi", Kind.DEVICE, "PT_DEVMEM",
        r"MODULE:PT_DEVMEM Allocation failed for size::(?P<asked_plain>\d+)",
        "habana pytorch bridge; accelerate utils/memory.py 1.5 to 1.15",
    ),
    row(
        "vllm-startup", Kind.DEVICE, "Free memory on device",
        r"Free memory on device (?:cuda:(?P<device>\d+) )?\((?P<free_gib>[\d.]+)/"
        r"(?P<total_gib>[\d.]+) GiB\) on startup is less than desired GPU memory utilization"
        r" \([\d.]+, (?P<asked_gib>[\d.]+) GiB\)",
        "vllm v1/worker/gpu_worker.py, later v1/worker/utils.py",
    ),
    row(
        "vllm-cache", Kind.DEVICE, "No available memory for the cache",
        r"No available memory for the cache blocks",
        "vllm worker/worker.py, v1/core/kv_cache_utils.py",
    ),
    row(
        "vllm-warmup", Kind.DEVICE, "CUDA out of memory occurred when warming up",
        r"CUDA out of memory occurred when warming up", "vllm v1/worker/gpu_model_runner.py",
    ),
    row(
        "ggml", Kind.DEVICE, "cudaMalloc failed",
        r"allocating (?P<asked>[\d.]+ MiB) on device (?P<device>\d+): cudaMalloc failed: out of",
        "llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu",
    ),
    row(
        "no-batch", Kind.DEVICE, "No executable batch size",
        r"No executable batch size found, reached zero",
        "accelerate utils/memory.py 0.10 to 1.15: every size ran out of memory",
    ),
    row(
        "torch-class", Kind.DEVICE, "OutOfMemoryError",
        rf"(?:\btorch(?:\.cuda)?\.OutOfMemoryError|RayTaskError\(OutOfMemoryError\))(?::\s|:?$)"
        rf"(?:.*\[rank=(?P<rank>\d+)\]|[Tt]ried to allocate (?P<asked>{SIZE}))?"
        r"|^OutOfMemoryError +Traceback \(most",
        "torch torch/csrc/Exceptions.cpp, whatever its message",
    ),
)  # fmt: skip
