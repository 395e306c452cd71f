"""Finds out-of-memory errors in texts: a small grammar instead of a list of messages.

A phrase of `_PHRASES` joins a word of failure and a word of memory in one sentence. A row of
`SPEAKERS` then tells the program and the kind of memory.
"""

from __future__ import annotations

import re

from autotune.advise.diagnose.amounts import SIZE
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.wordings import Wording

_STORE = r"(?:[pv]?mem(?:ory)?|[gv]?ram|hbm|heap|swap|paging file|[显现]存|内存)\b"
_LACK = (
    r"(?:(?:\bnot|n['’]t|unlikely to) (?:have |has )?(?:enough|sufficient)"
    r"|insufficient|too little|lack(?:s|ing|ed)?(?: of)?|low on(?: resource:)?|short of"
    r"|\bno (?:more|free|available)"
    r"|\b(?:(?:us|consum)(?:e[sd]?|ing)|eat(?:s|ing)|blow(?:s|ing)) (?:up |through )?all"
    r"|exhaust(?:s|ed|ing)?)"
)
_GET = (
    r"(?:allocat(?:e|ion|ing)s?|alloc|(?<!socket, )\w*[cm]alloc\w*|mmap(?! =)|reserve)\b(?!\.\w)"
)
_FAIL = r"(?:fail(?:ed|s|ure|ing)?|unable|cannot|can['’]?t|can not|could ?n['o’]t|couldn['’]t)"
_THING = rf"(?:\b{_STORE}|{SIZE}|\bbytes\b|\btensor|\bbuffer|\barray|::?\d)"
_GROWS = r"(?:until|grow\w*|increas\w*|climb\w*|fill\w*|leak\w*|ris(?:es?|ing)|maxed)"
_ENDS = r"(?:crash|kill(?:ed|s)?\b|shuts?\b|die[sd]\b|freez|deplet)"
_STOPS = r"(?:kill(?:ed|ing|s)|crash(?:e[sd]|ing)|died|aborted|evicted)"
_OTHER = r" (?:access|address|corrupt|fault|map|referenc|viol)"
"""After a word of memory, this makes it another error."""
_GAP = r"(?:[^.;]|\.(?=\S))"
"""A character within a sentence."""
_PHRASES = (
    # Nothing is left: out of GPU memory, OUT_OF_DEVICE_MEMORY, OutOfMemoryError.
    r"out[ _-]?of[ _-]?(?:[\w/(]{1,12}[ _)-]){0,3}?"
    r"(?:mem\w{0,2}ry|mem?(?![a-ln-z])|[gv]?ram\b|hbm\b)",
    r"(?-i:\bOOM(?:s|ed|ing)?\b(?![\w ]{0,20}[:=] *0\b)|\boom\b(?![\"'=:-]| +[\d|])|\boom[-_]kill"
    r"|\bOOM-?Kill\w*+(?!\W{1,4}[Ff]alse))",
    # Too little: not enough memory, more system memory than is available.
    rf"{_LACK} (?!to (?:save|reduce|lower|free) |use |utili)(?:[\w'()/-]{{1,15}} ){{0,4}}?{_STORE}"
    r"(?! (?:and \w+ )?(?:usage|utili))",
    rf"\b{_STORE}{_GAP}{{0,60}}?\b(?:exhaust(?:ed|ion)|insufficient"
    r"|not (?:enough|sufficient|available)|used up|less than (?!\d)"
    r"|(?:is|gets?|getting) (?:full|filled)(?!,? (?:but|and|while)\b)|(?<=memory )full(?=[.!]|$)"
    r"|too (?:small|little|low)|exceed\w*|overflow\w*|pressure.{0,40}kill\w*)",
    rf"\b(?:(?:exceed|surpass)\w*(?! \d+% of)|(?:larger|more|bigger|greater) than) {_GAP}{{0,60}}?"
    rf"\b(?:{_STORE}|KV cache)",
    rf"\b{_STORE} (?:to )?explo(?:d|sion)",
    rf"\bbl(?:owing|ows?|ew) up (?:\w+ ){{0,2}}{_STORE}|\b{_STORE} bl(?:owing|ows|ew) up\b",
    rf"\bmore (?:\w+ ){{0,3}}{_STORE}{_GAP}{{0,30}}\bthan (?:is |are )?(?:available|free|left)",
    r"\bno available memory|\bKV cache is -\d|memlimit|low on memory|memory pressure \(oom\)",
    rf"\bbuffer\b{_GAP}{{0,60}}?\b(?:larger than|exceeds?)\b|must not exceed {SIZE}",
    # A request failed: failed to allocate 2 GB, cudaMalloc failed.
    rf"\b(?:{_FAIL}|error)\b{_GAP}{{0,50}}?\b{_GET}.{{0,50}}?{_THING}",
    rf"\b{_GET}.{{0,60}}?\b(?:{_FAIL}|not possible|error)\b",
    rf"(?:tr(?:ied|ying)|attempt(?:ed|ing)?) to (?:allocate|reserve) (?:{SIZE}|more)",
    rf"\b(?:amount|size) of {_GAP}{{0,60}}could not be allocated|invalid buffer size: {SIZE}",
    # A process is killed for it.
    rf"\b{_STOPS}\b{_GAP}{{0,80}}?\b(?:due|because|for|by|using)\b{_GAP}{{0,40}}?{_STORE}(?!{_OTHER})",
    r"(?:\b(?:by|from|hit|met)(?: the| an)?|出现|触发|被) ?oom[ -]?killer",
    rf"\b{_STORE}{_GAP}{{0,40}}? kill(?:ed|ing)?\b",
    rf"\b(?:{_STOPS}|crash)(?: \w+){{0,3}}? (?:when|once|after|as) {_GAP}{{0,40}}?\b{_STORE}"
    rf"{_GAP}{{0,40}}?\b(?:reach|full|max|limit|spike)",
    r"\bkilled /\S+ due to memory|\bkilled process \d+ .{0,60}total-vm"
    r"|sig(?:term|kill) to process \d+ .*vmrss",
    r"killing process '.*vmrss",
    rf"\b{_STORE}.{{0,60}}?\b{_GROWS}\b.{{0,120}}?\b{_ENDS}",
    rf"\b{_GROWS} .{{0,40}}?\b{_STORE}.{{0,60}}?\b{_ENDS}",
    # Names of the error.
    r"bad[_ ]alloc(?:ation)?\b|posix_memalign\(.{0,60} 12 vs\.? 0"
    r"|memoryerror|_alloc(?:ation)?_failed|errormemoryallocation"
    r"|\bmemory[_ ]error\b|\benomem\b|\berrno 12\b|(?:winerror|os error) 1455"
    r"|resource_?exhausted(?:error)?\b(?!:?\s*$|.*(?:quota|429|message larger))"
    r"|nrt_resource\b|nrt_\w+ status=4\b"
    r"|\ballocation on device\b|error_out_of_resources|bfc_allocator\S+ (?:inuse at|sum total)"
    rf"|hbm usage >=|total ?capac\w+(?:;| of {SIZE} of which)",
    r"(?:[显现]存|内存|\bmem)[^，。]{0,16}?(?:不[足够]|[占用跑吃][满完光]|耗尽|溢出|爆|被.{0,8}kill)|(?<!不[会再])爆(?:[显现]存|内存)|[GN]PU不[足够]"
    r"|メモリー?不足|메모리 부족|недостаточно памяти"
    r"|页面文件太小|ページング ?ファイルが小さ|페이징 파일이 너무 작|айл подкачки слишком",
)
_PLACE = re.compile(
    r"(?<![\w/.~-])(?:[~.]{0,2}/[\w.-]+|[\w.-]+/[\w.-]+/)[\w./-]*"
    r"|\b(?P<node>(?:[a-z][a-z0-9]*[-.])*(?:gpu|a100|h100|v100)(?=[\w.-]*\d|[-.]?(?:node|host|serv|box|machine|cluster))"
    r"[a-z]*[-.](?!\d\b|\d+ ?gb?\b)\w[\w.-]*)"
    r"|\b(?<!of )(?<!all )(?<!than )\d+ ?gi?b? (?:(?:of|in) )?(?:system )?ram\b",
    re.IGNORECASE,
)
"""A path, or the name or memory of a machine, which may have the name of a device in it."""
DENIED = r"(?:\b(?:no|not|never|without)|n['’]t) (?:\w+ ){0,3}$"
"""Before a failure, this says that it did not occur."""
_RAN_OUT = re.compile("|".join(f"(?:{each})" for each in _PHRASES), re.IGNORECASE | re.ASCII)
BACKEND = re.compile(
    r"\b(CUDA|cuda|HIP|hip|XPU|NPU|MUSA|MLU|MPS)(?=(?: backend| driver)?(?: [Ee]rror)?:? out of)"
)

_BACKENDS = {
    "CUDA": ("CUDA", "cuda", "nvidia", "NVIDIA"),
    "HIP": ("hipErr", "HIP_ERR", "MIOpen", "/rocm", "rocblas", "ROCm", "Radeon", " XTX", "gfx"),
    "MPS": ("MPS", " mps ", "mps:", "device mps", "kIOGPU"),
    "XPU": ("XPU", "xpu:", "Intel Arc", "Intel ARC", "Intel(R) Arc"),
    "NPU": ("NPU", " npu ", "npu:", "Ascend", " ascend ", "rtMalloc"),
    "TPU": ("TPU", "tpu_", "memory space hbm", "at the bottom of memory"),
    "VULKAN": ("ulkan", "VK_"),
}
"""Words of a backend, if none is named before the phrase."""


def ran_out(text: str) -> re.Match[str] | None:
    """The first phrase of `text` about memory that ran out, except for denied ones."""
    phrases = _RAN_OUT.finditer(text)
    return next((each for each in phrases if not re.search(DENIED, text[: each.start()])), None)


def speaker(text: str, phrase: re.Match[str]) -> Wording:
    """The wording of `text` with that phrase. If several programs fit, the nearest mark counts."""
    first = next(each for each in SPEAKERS if each.match(text))
    if first.name not in _ANYBODY:
        return first
    start, end = phrase.span()
    text = _PLACE.sub(lambda p: ("node" if p["node"] else "_").ljust(len(p[0])), text)
    first = next(each for each in SPEAKERS if each.match(text))
    begin, stop = text.rfind(". ", 0, start) + 1, f"{text}. ".find(". ", end)
    near, sentence = text[max(begin, start - _NEAR) : min(stop, end + _NEAR)], text[begin:stop]
    parts = (next(each for each in SPEAKERS if each.match(part)) for part in (near, sentence))
    return next((each for each in parts if each.kind is not Kind.MEMORY), first)


def backend_in(text: str) -> str | None:
    """The backend that the message names, before its phrase if it does there."""
    if found := BACKEND.search(text):
        return found[1].upper()
    named = backends_in(text)
    return None if len(named) != 1 or named == {"CUDA"} else next(iter(named))


def backends_in(text: str) -> set[str]:
    """All backends that `text` names."""
    words = f" {text} "
    return {name for name, marks in _BACKENDS.items() if any(mark in words for mark in marks)}


_SPEAKERS = (
    ("shm", Kind.SHARED, "any program that names /dev/shm",
     r"/dev/shm\b|(?<!GPU )\b(?i:shared memory|shm)\b(?! pool|\.)"),
    ("tensor", Kind.HOST, "torch c10/core/impl/alloc_cpu.cpp, torch/lib/TH; numpy exceptions.py",
     r"CPUAllocator|alloc memory of \d+ size|\$ Torch: not enough"
     r"|(?i:unable to allocate).* array with shape"),
    ("pinned", Kind.HOST, "torch CachingHostAllocator.cpp; tensorflow on a CPU; ggml-cuda.cu",
     r"cudaHost|hipHost|host_malloc|(?i:cpu[ _]buffer)|\b[Pp]inned|\bon host\b"
     r"|allocator (?:mkl)?cpu|device:CPU"),
    ("kernel", Kind.HOST, "Linux mm/oom_kill.c; earlyoom kill.c; systemd-oomd oomd-util.c",
     r"oom-kill:|invoked oom|[Kk]ill(?:ed|ing)? process|to process \d+ .*VmRSS|Killed /"),
    ("slurm-oom", Kind.HOST, "slurm task_cgroup_memory.c, slurm_jobacct_gather.c; seff and sacct",
     r"slurm|srun|StepId=|\bStep \d+\.|oom[-_]kill event|tasks? \d[\d,-]*: |(?<!_)OUT_OF_ME"
     r"|Exceeded (?:step|job)|^Job \d|\bState\b"),
    ("ray", Kind.HOST, "ray src/ray/raylet/node_manager.cc, worker_killing_policy.cc",
     r"due to memory pressure|the node running low on memory|memory usage threshold"
     r"|\w/ray-\w|[Rr]ay killed"),
    ("nccl", Kind.DEVICE, "NCCL src/include/checks.h, cudawrap.h, alloc.h; RCCL",
     r"NCCL (?:WARN|CUDA out)|(?:Cuda|HIP|CUDA) failure|Failed to CUDA"),
    ("vllm", Kind.DEVICE, "vllm v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py, worker.py",
     r"GPU memory utilization|KV [Cc]ache|cache blocks|when warming up"),
    ("xla", Kind.DEVICE, "openxla and jaxlib, TPU compiler and runtime",
     r"memory space hbm|at the bottom of memory|hbm (?:usage|capacity)|Aborting compilation early"
     r"|(?i:resource.?exhausted): (?!OOM when)(?!Failed)"),
    ("tensorflow", Kind.DEVICE, "tensorflow op_kernel.cc, bfc_allocator.cc, cuda_driver.cc",
     r"bfc_allocator|OOM when allocating|(?i:resource_?exhausted)|ensorflow|stream_executor"
     r"|(?:from|on) device(?:: | ordinal)"),
    ("paddle", Kind.DEVICE, "paddle phi/core/memory/allocation/cuda_allocator.cc",
     r"[Oo]ut of memory error on (?:GPU|XPU|NPU)"),
    ("llama.cpp", Kind.DEVICE, "llama.cpp ggml/src/ggml-cuda/ggml-cuda.cu",
     r"ggml|\bllama(?:\.|_(?:model|init|load|kv|context|new))|on device \d+: cudaMalloc"),
    ("ascend", Kind.DEVICE, "CANN runtime and graph engine, error codes; mindspore",
     r"rtMalloc|EL0004|mem_dynamic_allocator"),
    ("metal", Kind.DEVICE, "Metal, through torch MPS and MLX", r"kIOGPU|METAL"),
    ("libraries", Kind.DEVICE, "statuses of cuBLAS, cuDNN, rocBLAS, SYCL and ROCR",
     r"_ALLOC(?:ATION)?_FAILED|rocblas_status|OUT_OF_RESOURCES"),
    ("torch", Kind.DEVICE, "torch CUDACachingAllocator.cpp and those for XPU, MPS and NPU",
     rf"[Tt]ried to allocate (?:{SIZE}|more than)|torch\S*OutOfMemory|RayTaskError\(OutOf"
     r"|\b(?:CUDA|HIP|XPU|NPU|MUSA|MLU|MPS)(?: backend)? (?i:out of memory)"
     r"|Allocation on device|Invalid buffer size|^OutOfMemoryError"),
    ("cuda", Kind.DEVICE, "CUDA driver_types.h; HIP; oneAPI; thrust; triton; TensorRT",
     r"(?i:cuda|hip|musa|triton) ?(?:driver |runtime )?\[?(?i:error)|cudaError|CUDA_ERROR"
     r"|hipErr|HIP_ERROR|THCudaCheck|_RESULT_ERROR|PI_ERROR|thrust|Cuda Runtime|\.cu:\d|_gpu\.cc"),
    ("host", Kind.HOST, "any program that names main memory; CPython, C++, .NET, Java, Windows",
     r"(?i:\b(?:host|system|main|cpu|physical|virtual)(?:'s)?[ )-](?:memory|ram|mem|oom)\b)"
     r"|(?<!GPU )(?<!gpu )\b(?:R(?:AM|am)\b|ram (?:usage|spikes?|is|gets|goes)\b)|\bPBS\b|MEMLIMIT"
     r"|YARN|memory budget|OOM-?Kill|\boom[-_]|(?i:oom[ -]?killer)"
     r"|(?i:paging file|swap|java|bad[_ ]alloc|\bfork\b|cv::|\(-4:|mmap|low on resource)"
     r"|(?<![A-Za-z])MemoryError|ArrayMemoryError|System\.OutOf|memory allocation of"
     r"|[Ee]rrno 12|ENOMEM|(?:WinError|os error) 1455|页面文件|ページング|페이징|подкачки"
     r"|Error code 12|an(?:not|'t) allocate memory"),
    ("device", Kind.DEVICE, "any program that names a device",
     r"(?<!step )\b(?:[2-5]0[6-9]0|10[678]0|1660)(?i:s|ti| ti| super)?\b"
     r"|(?i:(?:\b|(?<=\dx))(?:gpus?|vram|npu|xpu|tpu|hbm|rocm|hip|mps|vulkan|sycl|metal|device|cupy|card"
     r"|accelerator|(?:rtx|gtx) ?\d*|geforce|[ahvlb]-?\d00s?|nvidia|nvml|trt|tensorrt"
     r"|ascend|neuron|miopen)\b)|GPU|Gpu[A-Z]|CUDA|[Cc]uda|(?i:opencl)|TDRV|NRT_|nrt_|DEVMEM|VK_"
     r"|in alloc$|\bvllm\b|\brollout|reserved but un|\d banks|显[存卡]|现存|卡[^，。]{0,8}内存"),
    ("machine", Kind.HOST, "any program that names who was killed",
     r"(?i:\b(?:container|node|pod|your notebook|session|killed)\b|kill$)|内存"),
    ("memory", Kind.MEMORY, "any program that does not say which memory it means", r""),
)  # fmt: skip
_ANYBODY, _NEAR = ("slurm-oom", "host", "device", "machine"), 20
_GO_ON = ("torch", "paddle", "ascend", "tensor", "kernel", "xla")
"""Speakers whose messages may span several lines."""
SPEAKERS = tuple(
    Wording(name=name, kind=kind, source=source, says=(re.compile(mark),), goes_on=name in _GO_ON)
    for name, kind, source, mark in _SPEAKERS
)
"""The first row with a mark in the text is its source."""
DEVICE = next(each for each in SPEAKERS if each.name == "device")
PINNED = next(each for each in SPEAKERS if each.name == "pinned")
