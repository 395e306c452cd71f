"""How host memory and shared memory run out, and who says that a process was killed."""

from __future__ import annotations

from autotune.advise.diagnose.kinds import SIZE, Kind, row

HOST = (
    row(
        "cpu-allocator", Kind.HOST, "DefaultCPUAllocator",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate"
        r"(?: (?P<asked>\d+ bytes))?",
        "torch c10/core/CPUAllocator.cpp, later c10/core/impl/alloc_cpu.cpp, as in v2.13",
    ),
    row(
        "cpu-th", Kind.HOST, "Torch: not enough memory",
        r"Torch: not enough memory: you tried to allocate (?P<asked>\d+ ?GB)",
        "torch torch/lib/TH/THGeneral.c, later aten/src/TH/THGeneral.cpp",
    ),
    row(
        "pinned", Kind.HOST, "cudaHostAlloc",
        r"cudaHost(?:Alloc|Register)\b.*(?:failed|out of memory)",
        "torch aten/src/ATen/cuda/CachingHostAllocator.cpp",
    ),
    row(
        "numpy", Kind.HOST, "nable to allocate",
        rf"(?i:memory ?error): Unable to allocate (?P<asked>{SIZE}) for an array",
        "numpy core/_exceptions.py, _core/_exceptions.py 2.4",
    ),
    row("python", Kind.HOST, "MemoryError", r"^MemoryError(?:[:(]|\s*$)", "CPython, exceptions.c"),
    row(
        "errno", Kind.HOST, "Cannot allocate memory",
        r"(?:\[Errno 12\] |mmap.*|Error code 12 \(|fork: .*)Cannot allocate memory",
        "glibc strerror(ENOMEM); torch aten/src/ATen/MapAllocator.cpp",
    ),
    row(
        "managed", Kind.HOST, ("System.OutOfMemory", "java.lang.OutOfMemory"),
        r"\bSystem\.OutOfMemoryException: |\bjava\.lang\.OutOfMemoryError: ",
        ".NET; Java, as Spark",
    ),
    row(
        "page-file", Kind.HOST, "1455", r"(?:\[WinError|\bos error) 1455\b",
        "Windows ERROR_COMMITMENT_LIMIT, as CPython and Rust say it in the user's language",
    ),
    row(
        "rust", Kind.HOST, "memory allocation of",
        r"^memory allocation of (?P<asked>\d+ bytes) failed",
        "rust library/std/src/alloc.rs: tokenizers, safetensors",
    ),
    row("bad-alloc", Kind.HOST, "bad_alloc", r"'?std::bad_alloc'?", "C++ standard library"),
    row(
        "worker-killed", Kind.HOST, "is killed by signal: Killed",
        r"DataLoader (?:worker|process) \(pid +(?P<pid>\d+)\) (?:exited )?is killed by signal:"
        r" Killed",
        "torch torch/csrc/DataLoader.cpp, as in v2.13; paddle fluid/imperative/data_loader.cc",
    ),
    row(
        "kernel-killed", Kind.HOST, ("ut of memory: Kill", "Killed process"),
        r"(?:(?:Memory cgroup o|O)ut of memory: Kill(?:ed)? process (?P<pid>\d+)"
        r"|^Killed process (?P<pid2>\d+) .*\btotal-vm)(?:.*\banon-rss:(?P<asked_kib>\d+) *kB)?",
        "Linux mm/oom_kill.c",
    ),
    row(
        "killed-early", Kind.HOST, ("sending SIG", "Killing process", "due to memory"),
        r"(?:sending SIG(?:TERM|KILL) to process (?P<pid>\d+) .*"
        r"|Killing process '.*, pid: (?P<pid2>\d+).*)\bVmRSS:? (?P<asked>\d+ MiB)"
        r"|Killed /\S+ due to memory (?:pressure|used)",
        "earlyoom kill.c 1.3 to 1.8; systemd-oomd oomd-util.c",
    ),
    row(
        "kernel-oom", Kind.HOST, "oom-kill", r"oom-kill:constraint=|invoked oom-killer:",
        "Linux mm/oom_kill.c",
    ),
    row(
        "slurm-oom", Kind.HOST, "oom",
        r"Detected \d+ oom[_-]kill event(?:\(s\)|s)? in [Ss]tep",
        "slurm src/plugins/task/cgroup/task_cgroup_memory.c 18.08 to 25.05",
    ),
    row(
        "slurm-out", Kind.HOST, "Out Of Memory", r"tasks? (?P<tasks>\d[\d,-]*): Out Of Memory",
        "slurm src/plugins/launch/slurm/launch_slurm.c 17.02 to 22.05, src/srun/launch.c to 25.05",
    ),
    row(
        "slurm-state", Kind.HOST, "OUT_OF_MEMORY",
        r"(?:\b|Job)(?:State|STATE)\S*\s*[:=]?\s*OUT_OF_ME",
        "slurm seff and sacct",
    ),
    row(
        "slurm-limit", Kind.HOST, "emory limit",
        r"(?:Exceeded (?:step|job) memory limit"
        r"|exceeded memory limit \((?P<asked_kib>\d+) > (?P<total_kib>\d+)\))",
        "slurm task_cgroup_memory.c 17.02 to 17.11, slurm_jobacct_gather.c 15.08 to 20.11",
    ),
    row(
        "raylet", Kind.HOST, "memory pressure", r"[1-9]\d{0,8} Workers .*due to memory pressure",
        "ray src/ray/raylet/node_manager.cc, seen of 2022 to 2025",
    ),
    row("lsf", Kind.HOST, "TERM_MEMLIMIT", r"TERM_MEMLIMIT", "IBM Spectrum LSF, exit reasons"),
    row(
        "pbs", Kind.HOST, "job killed", r"PBS: job killed: (?:v?mem|pmem) \S+ exceeded limit",
        "PBS, as a job's error file has it",
    ),
    row(
        "kubernetes", Kind.HOST, "OOMKilled",
        r"(?<!as )(?<!== ['\"])\bOOMKilled\b(?!['\"]?\s*[:=]\s*false)",
        "Kubernetes, reason of a container's state; docker inspect",
    ),
    row(
        "evicted", Kind.HOST, "low on resource: memory",
        r"The node was low on resource: memory", "Kubernetes, kubelet's eviction manager",
    ),
    row(
        "notebook", Kind.HOST, ("more memory than is available", "all available RAM"),
        r"notebook tried to allocate more memory than is available"
        r"|session crashed after using all available RAM",
        "Kaggle and Colab, as users quote them",
    ),
    row(
        "ray", Kind.HOST, "running low on memory",
        r"was killed due to the node running low on memory",
        "ray, as its out-of-memory documentation shows it",
    ),
    row(
        "ray-threshold", Kind.HOST, "exceeds the memory usage threshold",
        rf"was running was (?P<asked>{SIZE}) / (?P<total>{SIZE}) \(",
        "ray src/ray/raylet/worker_killing_policy.cc, seen of 2025",
    ),
)  # fmt: skip

SHARED = (
    row(
        "worker-bus", Kind.SHARED, "error encountered",
        r"(?i:unexpected bus) error encountered in (?:DataLoader )?worker[.,] This might",
        "torch torch/csrc/DataLoader.cpp, as in v2.13; paddle fluid/imperative/data_loader.cc",
    ),
    row(
        "worker-bus-signal", Kind.SHARED, "killed by signal: Bus error",
        r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Bus error",
        "torch torch/csrc/DataLoader.cpp, as in v2.13",
    ),
    row(
        "shared-full", Kind.SHARED, "/torch_",
        r"(?:unable to (?:write to file|open shared memory object|resize file|allocate shared"
        r" memory\S*).*</torch_.*|/dev/shm/\S*torch_\S*.*)(?:No space left|Cannot allocate)"
        r"|unable to write to file </torch_\w+>\s*$",
        "torch aten/src/ATen/MapAllocator.cpp, as in v2.13",
    ),
    row(
        "shared-errno", Kind.SHARED, "No space left on device",
        r"\[Errno 28\] No space left on device: '?/(?:dev/shm|torch_|psm_)",
        "CPython OSError of a full /dev/shm; multiprocessing/shared_memory.py names parts psm_",
    ),
    row(
        "nccl-shm", Kind.SHARED, "shared memory segment",
        r"Error while (?:creating|attaching to) shared memory segment /dev/shm/nccl",
        "NCCL src/include/shm.h v2.7 to v2.11, src/misc/shmutils.cc v2.12 to v2.19",
    ),
    row(
        "nccl-shm-space", Kind.SHARED, "posix_fallocate",
        r"posix_fallocate failed : No space left", "NCCL src/include/shm.h v2.7 to v2.11",
    ),
)  # fmt: skip

KILLED = (
    row(
        "torchrun-bus", Kind.BUS, ": -7",
        r"exitcode ?: -7\)? (?:local_rank: (?P<rank>\d+) )?\(pid: (?P<pid>\d+)\)",
        "torch torch/distributed/elastic, as in v2.13",
    ),
    row(
        "deepspeed-bus", Kind.BUS, "return code = -7", r"exits with return code = -7\b",
        "deepspeed launcher/launch.py 0.6 to 0.19",
    ),
    row(
        "srun-bus", Kind.BUS, ": Bus error", r"error: \S+: tasks? (?P<tasks>[\d,-]+): Bus error",
        "slurm src/plugins/launch/slurm/launch_slurm.c 17.02 to 22.05, src/srun/launch.c 23.02",
    ),
    row(
        "torchrun", Kind.KILLED, "Signal 9", r"Signal 9 \(SIGKILL\) received by PID (?P<pid>\d+)",
        "torch torch/distributed/elastic/multiprocessing/errors/__init__.py, as in v2.13",
    ),
    row(
        "torchrun-code", Kind.KILLED, "exitcode",
        r"exitcode ?: -9\)? (?:local_rank: (?P<rank>\d+) )?\(pid: (?P<pid>\d+)\)"
        r"|exitcode +: -9 \(pid: (?P<pid2>\d+)\)",
        "torch torch/distributed/elastic/multiprocessing/api.py, as in v2.13",
    ),
    row(
        "spawn", Kind.KILLED, "terminated with signal SIGKILL",
        r"process (?P<rank>\d+) terminated with signal SIGKILL",
        "torch torch/multiprocessing/spawn.py, as in v2.13",
    ),
    row(
        "launcher-status", Kind.KILLED, "SIGKILL", r"<Signals\.SIGKILL: 9>",
        "CPython subprocess.py; accelerate commands/launch.py, torch/distributed/launch.py",
    ),
    row(
        "launcher-code", Kind.KILLED, "returned non-zero exit status",
        r"returned non-zero exit status (?:-9|137)\b", "CPython subprocess.py",
    ),
    row(
        "deepspeed", Kind.KILLED, "return code", r"exits with return code = (?:-9|137)\b",
        "deepspeed launcher/launch.py 0.6 to 0.19",
    ),
    row(
        "srun", Kind.KILLED, ": Killed", r"error: \S+: tasks? (?P<tasks>[\d,-]+): Killed",
        "slurm src/plugins/launch/slurm/launch_slurm.c 17.02 to 22.05, src/srun/launch.c 23.02",
    ),
    row(
        "mpirun", Kind.KILLED, "exited on signal 9",
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal 9\b",
        "Open MPI orte/tools/orterun, prte of PRRTE",
    ),
    row(
        "shell", Kind.KILLED, ("Killed", "SIGKILL"),
        r"^(?:\S*: line \d+: +)?(?P<pid>\d+) Killed\s+\S|^(?:Killed|SIGKILL)\s*$", "bash jobs.c",
    ),
    row(
        "container", Kind.KILLED, "137",
        r"[Ee]xit(?:ed)?(?: with)?(?: status)?[ _]?(?:[Cc]ode|status)?\"?[: =(]+137\b(?!/)",
        "docker ps; kubectl describe: 128 + SIGKILL",
    ),
)  # fmt: skip
