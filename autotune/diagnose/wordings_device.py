"""How libraries say that device memory ran out."""

from __future__ import annotations

from autotune.diagnose.kinds import RAISED, SIZE, Kind, row

DEVICE = (
    row(
        "torch", Kind.DEVICE, "ut of memory",
        rf"\b(?P<backend>[A-Z][A-Za-z0-9]{{1,11}}) out of memory\. (?:\w+ t|T)ried to allocate"
        rf" ?(?P<asked>{SIZE})",
        "torch c10/cuda/CUDACachingAllocator.cpp v0.4.1 to v2.11; c10/xpu/XPUCachingAllocator.cpp"
        " v2.3+; torch_npu NPUCachingAllocator.cpp v2.1, NPUWorkspaceAllocator.cpp",
    ),
    row(
        "torch-short", Kind.DEVICE, "ut of memory",
        rf"{RAISED}(?P<backend>CUDA|HIP|XPU|NPU|MUSA|MLU) out of memory"
        r"(?:[.!,:;)\"']|\s*$)(?! Tried)",
        "the same, cut or repeated by a caller",
    ),
    row(
        "torch-mps", Kind.DEVICE, "ut of memory",
        rf"(?P<backend>MPS) backend out of memory \(MPS allocated: {SIZE}",
        "torch aten/src/ATen/mps/MPSAllocator.mm v1.13 to v2.11",
    ),
    row(
        "torch-mps-buffer", Kind.DEVICE, "nvalid buffer size",
        rf"{RAISED}Invalid buffer size: (?P<asked>{SIZE})",
        "torch aten/src/ATen/mps/MPSAllocator.mm v1.13+",
    ),
    row(
        "torch-async", Kind.DEVICE, "exceed allowed memory",
        r"Allocation on device (?P<device>\d*)\s*would exceed allowed memory",
        "torch c10/cuda/CUDAMallocAsyncAllocator.cpp v1.11+",
    ),
    row(
        "torch-thc", Kind.DEVICE, "ut of memory",
        r"cuda runtime error \(2\) ?: out of memory at|THCudaCheck FAIL .*error=2 : out of memory",
        "torch aten/src/THC/THCGeneral.cpp v0.3 to v1.6",
    ),
    row(
        "fairseq", Kind.DEVICE, "memory on GPU #",
        r"ran out of memory on GPU #(?P<device>\d+), skipping batch",
        "fairseq trainer.py 0.4 to 0.6",
    ),
    row(
        "cuda-error", Kind.DEVICE, "ut of memory",
        rf"{RAISED}(?P<backend>CUDA|HIP|CUDA driver|MUSA) error: out of memory",
        "torch c10/cuda/CUDAException.h v1.0 to v2.11 (cudaErrorMemoryAllocation)",
    ),
    row(
        "cuda-code", Kind.DEVICE, ("cudaErrorMemoryAllocation", "hipErrorOutOfMemory"),
        r"(?:\bcudaErrorMemoryAllocation\b|\bhipErrorOutOfMemory\b)(?!\s*[=)(,])",
        "CUDA runtime API, driver_types.h; HIP hip_runtime_api.h",
    ),
    row(
        "cuda-driver", Kind.DEVICE, "OUT_OF_",
        r"(?:CUDA_ERROR_OUT_OF_MEMORY|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_(?:DEVICE_)?MEMORY)",
        "CUDA driver API, cuda.h; oneAPI unified runtime ur_api.h",
    ),
    row(
        "xpu-resources", Kind.DEVICE, "OUT_OF_RESOURCES",
        r"Native API (?:failed|returns).*(?:PI|UR_RESULT)_ERROR_OUT_OF_RESOURCES"
        r"|HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        "intel/llvm sycl plugin interface 2023 to 2024; ROCR hsa.h",
    ),
    row(
        "blas", Kind.DEVICE, "_STATUS_ALLOC_FAILED",
        r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS|HIPSOLVER)_STATUS_ALLOC_FAILED\b",
        "torch aten/src/ATen/cuda/CUDABlas.cpp, Exceptions.h and cudnn/Exceptions.h v1.0+",
    ),
    row(
        "fft", Kind.DEVICE, "CUFFT_ALLOC_FAILED", r"\bCUFFT_ALLOC_FAILED\b",
        "torch aten/src/ATen/native/cuda/CuFFTUtils.h v1.7+",
    ),
    row(
        "rocblas", Kind.DEVICE, "rocblas_status_memory_error", r"\brocblas_status_memory_error\b",
        "rocBLAS rocblas-types.h",
    ),
    row(
        "nccl", Kind.DEVICE, "out of memory",
        r"(?:Cuda|HIP|CUDA) failure (?:2 )?'out of memory'",
        "NCCL src/include/checks.h v2.7 to v2.27; RCCL",
    ),
    row(
        "nccl-calloc", Kind.DEVICE, "Failed to CUDA", r"Failed to CUDA (?:calloc|malloc)",
        "NCCL src/include/alloc.h v2.8+",
    ),
    row(
        "nvml",
        Kind.DEVICE,
        "INTERNAL ASSERT FAILED",
        r"(?:NVML_SUCCESS == .{1,60}|\bhandle_\d?) ?INTERNAL ASSERT FAILED",
        "torch c10/cuda/CUDACachingAllocator.cpp and driver_api.cpp v2.0+: it asks NVML who holds"
        " memory, and NVML is not there",
    ),
    row(
        "triton", Kind.DEVICE, "Triton Error",
        r"Triton Error \[(?:CUDA|HIP)\]: out of memory",
        "triton third_party/nvidia/backend/driver.c v2.0+",
    ),
    row(
        "xla-hbm", Kind.DEVICE, "memory space hbm",
        rf"Ran out of memory in memory space hbm\. Used (?P<asked>{SIZE}) of (?P<total>{SIZE})",
        "openxla, TPU compiler",
    ),
    row(
        "xla-reserve", Kind.DEVICE, "RESOURCE_EXHAUSTED",
        rf"RESOURCE_EXHAUSTED: Attempting to (?:allocate|reserve) (?P<asked>{SIZE}).{{0,60}}"
        rf" There are (?P<free>{SIZE}) free",
        "openxla, TPU runtime 2020 to 2025",
    ),
    row(
        "xla", Kind.DEVICE, "RESOURCE_EXHAUSTED",
        rf"RESOURCE_EXHAUSTED: .*?(?:[Oo]ut of memory|[Rr]an out of memory|OOM)"
        rf"(?:.*?allocat\w+ (?P<asked>{SIZE}))?",
        "openxla xla/pjrt and tsl/framework/bfc_allocator.cc 2022 to 2025",
    ),
    row(
        "tensorflow-bfc", Kind.DEVICE, "ran out of memory trying",
        rf"ran out of memory trying to allocate (?P<asked>{SIZE})(?!.*is not a failure)",
        "tensorflow core/common_runtime/bfc_allocator.cc v1.0+",
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
        "tensorflow 2.x, xla client",
    ),
    row(
        "tensorflow", Kind.DEVICE, "OOM when allocating",
        r"(?:ResourceExhaustedError|RESOURCE_EXHAUSTED).*OOM when allocating tensor",
        "tensorflow core/framework/op_kernel.cc v1.0+",
    ),
    row(
        "cupy", Kind.DEVICE, "ut of memory allocating",
        rf"Out of memory allocating (?P<asked>{SIZE}) \(allocated so far",
        "cupy cupy/cuda/memory.pyx v8+",
    ),
    row(
        "paddle", Kind.DEVICE, "ut of memory error on",
        rf"Out of memory error on (?:GPU|XPU|NPU) (?P<device>\d+)\. Cannot allocate"
        rf" (?P<asked>{SIZE}) memory",
        "paddle fluid/memory/allocation/cuda_allocator.cc v2.0+",
    ),
    row(
        "gaudi", Kind.DEVICE, "PT_DEVMEM",
        r"MODULE:PT_DEVMEM Allocation failed for size::(?P<asked_plain>\d+)",
        "habana pytorch bridge 1.10+; accelerate utils/memory.py 1.15",
    ),
    row(
        "vllm-startup", Kind.DEVICE, "Free memory on device",
        r"Free memory on device (?:cuda:(?P<device>\d+) )?\((?P<free_gib>[\d.]+)/"
        r"(?P<total_gib>[\d.]+) GiB\) on startup is less than desired GPU memory utilization"
        r" \([\d.]+, (?P<asked_gib>[\d.]+) GiB\)",
        "vllm v1/worker/gpu_worker.py v0.9+",
    ),
    row(
        "vllm-cache", Kind.DEVICE, "No available memory for the cache",
        r"No available memory for the cache blocks",
        "vllm worker/worker.py v0.2+, v1/core/kv_cache_utils.py",
    ),
    row(
        "vllm-warmup", Kind.DEVICE, "CUDA out of memory occurred when warming up",
        r"CUDA out of memory occurred when warming up", "vllm v1/worker/gpu_model_runner.py v0.8+",
    ),
    row(
        "ggml", Kind.DEVICE, "cudaMalloc failed",
        r"allocating (?P<asked>[\d.]+ MiB) on device (?P<device>\d+): cudaMalloc failed: out of",
        "llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu 2024+",
    ),
    row(
        "no-batch", Kind.DEVICE, "No executable batch size",
        r"No executable batch size found, reached zero",
        "accelerate utils/memory.py 0.10 to 1.15: every size ran out of memory",
    ),
    row(
        "torch-class", Kind.DEVICE, "OutOfMemoryError",
        rf"\btorch(?:\.cuda)?\.OutOfMemoryError: (?:[Tt]ried to allocate (?P<asked>{SIZE}))?",
        "torch torch/csrc/Exceptions.cpp v1.13 to v2.11, whatever its message",
    ),
)  # fmt: skip
