"""Remedies if other memory than a device's ran out: rows of `advice`."""

from __future__ import annotations

from autotune.advise.diagnose.case import Advice, Case, Measure, of, to
from autotune.advise.diagnose.causes import OF_ONE
from autotune.advise.diagnose.kinds import Kind
from autotune.advise.diagnose.loads import ROOMY
from autotune.advise.diagnose.settings import LOADING, MICRO, SERVING


def leak(case: Case) -> Advice | None:
    """For a leak of device or host memory."""
    if not case.has("a leak"):
        return None
    if case.event.kind in (Kind.HOST, Kind.KILLED):
        return to(
            "leak", "find what grows: lists of outputs, caches, lists of Python objects in a data"
            " set that workers copy", "tracemalloc.start(); print(tracemalloc.take_snapshot()"
            ".statistics('lineno')[:9])", "the growth", "nothing",
        )  # fmt: skip
    return to(
        "leak", "find what keeps tensors: losses summed up without .item(), lists of outputs,"
        " graphs that are kept", "total += loss.item()  # not loss", "the growth", "nothing",
    )  # fmt: skip


def smaller(case: Case) -> Advice:
    """For what does not train: most of it is weights."""
    setting = of(LOADING | {"torch": LOADING["inference"]}, case)
    return to("smaller weights", "hold the weights in fewer bytes, or fewer of them", setting,
              "as many bytes a parameter as are left out", "some accuracy, or speed")  # fmt: skip


def _keep_up(case: Case) -> Advice | None:
    """For devices that wait."""
    now = case.context.settings.get("workers")
    many = 2 * now if now else 4
    return to(
        "more workers", "load data with more processes, if the devices wait for it; measure first",
        f"python -m autotune loader; DataLoader(num_workers={many}, pin_memory=True,"
        " persistent_workers=True, prefetch_factor=4)", "the time that devices wait",
        "host memory: each worker's copy of the data set and its batches",
    )  # fmt: skip


def _larger_batch(case: Case) -> Advice | None:
    """For devices that are half empty."""
    if not any(load.share < ROOMY for load in case.context.listing.devices.values()):
        return None
    now, form = case.context.settings.get("micro_batch"), "micro-batch {}"
    if written := case.context.batch_flag:
        form = written.form
    return to(
        "larger micro-batch", "use what is free on the device: twice the micro-batch, half the"
        " accumulation", form.format(2 * now if now else "<twice now>"),
        "nothing: it makes steps more efficient", "device memory, which is free",
    )  # fmt: skip


def _more_on_device(case: Case) -> Advice | None:
    """For a full host beside devices with room."""
    if not any(load.share < ROOMY for load in case.context.listing.devices.values()):
        return None
    return to(
        "more on the device", "if the optimizer or the weights are offloaded, keep them on the"
        " device, which has room", '"offload_optimizer": {"device": "none"}; CPUOffload off',
        "12 bytes a parameter of host RAM (Adam; a rule of thumb)", "nothing: it is faster",
    )  # fmt: skip


def _evaluation(case: Case) -> Advice | None:
    if not case.has("evaluation"):
        return None
    setting = "keep less of each batch: predictions.append(output.argmax(-1).cpu())"
    if case.framework == "transformers":
        setting = "preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)"
    return to("keep less", "keep less of what is predicted", setting, "all logits", "nothing")


def tensor(case: Case) -> Advice | None:
    """For one request that is too large."""
    corrupt = case.event.kind is not Kind.DEVICE and case.has("a corrupt size")
    if not corrupt and not case.has("one large tensor", OF_ONE):
        return None
    return to("smaller tensor", "make that tensor in parts, or in a smaller dtype",
              "where the traceback ends: its shape, and whether all of it is needed at once",
              "most of the request", "little")  # fmt: skip


def _loads(case: Case) -> bool:
    """Whether anything shows that data or a model is loaded, as for training."""
    context, name = case.context, case.event.wording.name
    if name == "ray":
        return False  # the node is full of its tasks
    return bool(
        context.trains or context.seen or context.settings or "torch" in str(case.event.trace)
        or case.framework == "preprocessing" or case.event.step
        or name in ("worker-killed", "shared-memory")
    )  # fmt: skip


def _workers(case: Case) -> Advice | None:
    now = case.context.settings.get("workers")
    if case.has("loading the model", "resuming") or not _loads(case):
        return None
    if now == 0 or (case.framework in SERVING and case.framework != "preprocessing"):
        return None
    table = {"transformers": "dataloader_num_workers={}, dataloader_pin_memory=False",
             "axolotl": "dataloader_num_workers: {}", "preprocessing": "num_proc={}",
             "llamafactory": "dataloader_num_workers: {}"}  # fmt: skip
    written = case.context.last("workers", written=True)
    text = written.form if written else table.get(case.framework, "DataLoader(num_workers={})")
    return to(
        "fewer workers", "fewer processes that load or prepare data, and fetch less ahead",
        text.format(now // 2 if now else "<half of now>"),
        "each one's copy of the data set and its batches", "nothing while data keeps up",
    )  # fmt: skip


def _host_request(case: Case) -> Advice | None:
    if case.context.windows:
        return to("larger paging file", "let Windows page more: it refuses what memory and file"
                  " cannot hold together", "System > Advanced > Performance > Advanced > Virtual"
                  " memory", "the size of the file", "time, where it is used")  # fmt: skip
    if case.has("a corrupt size"):
        return None
    if "CONSTRAINT_NONE" in case.event.text:  # no limit can be raised
        return to("swap", "have less beside it on the machine, or add swap",
                  "top -o %MEM; swapon /swapfile", "what others hold, or the swap",
                  "swapping, where it is used")  # fmt: skip
    if case.event.wording.name == "ray":
        return to("fewer at once", "have fewer tasks and actors on a node at once",
                  "@ray.remote(num_cpus=2, memory=8 * 2**30)", "what the others hold",
                  "as many fewer run side by side")  # fmt: skip
    slurm = case.event.wording.name == "slurm-oom"
    if slurm and case.on("all of the node"):
        return None
    setting = (
        "#SBATCH --mem=0  (all of the node)"
        if slurm
        else "sbatch --mem, docker run --memory, Kubernetes resources.limits.memory, or swap"
    )
    return to("more host memory", "ask for more host memory, where a limit ended it",
                  setting, "the machine's memory above the limit", "nothing")  # fmt: skip


def _request_first(case: Case) -> Advice | None:
    """For a limit that a person tells of, without data-loading settings."""
    told = case.context.prose and case.event.wording.name in ("machine", "host", "slurm-oom")
    return _host_request(case) if told and "workers" not in case.context.settings else None


def _less_offload(case: Case) -> Advice | None:
    if not case.on("offload") or case.has("loading the model") or case.event.kind is Kind.MEMORY:
        return None
    setting = '"offload_optimizer": {"device": "none"}, or "nvme"'
    return to("less offload", "keep the optimizer on the devices, or on a disk", setting,
              "12 bytes a parameter of host RAM", "nothing: it is faster, if it fits")  # fmt: skip


def _load_once(case: Case) -> Advice | None:
    if case.framework == "preprocessing":
        return None
    if case.framework in SERVING:
        return smaller(case)
    if case.event.step or case.context.ranks_said == 1 or not _loads(case):
        return None
    return to("load less", "do not load the model once a rank into host memory",
                  of(LOADING, case), "weights x (ranks - 1) while it loads",
                  "nothing")  # fmt: skip


def _load_first(case: Case) -> Advice | None:
    """For language models, which mostly run out of host memory as they are loaded."""
    models = {"deepspeed", "axolotl", "llamafactory"} & case.context.seen
    known = "workers" in case.context.settings or case.event.wording.name == "worker-killed"
    return None if known or not models else _load_once(case)


def _shm(case: Case) -> Advice | None:
    return to("larger /dev/shm", "give the container more shared memory",
                  "docker run --shm-size=16g, or --ipc=host; Kubernetes: emptyDir {medium: Memory}"
                  " at /dev/shm", "all that was missing", "nothing")  # fmt: skip


def _sharing(case: Case) -> Advice | None:
    return to("share by files", "hand tensors over in files",
                  'torch.multiprocessing.set_sharing_strategy("file_system")',
                  "file descriptors; not space in /dev/shm", "little")  # fmt: skip


def _multiply(case: Case) -> Advice | None:
    said = dict(case.event.groups)
    table = MICRO.get(
        "deepspeed" if "deepspeed" in case.event.wording.name else case.framework, MICRO["torch"]
    )
    values = {"micro": said.get("micro", "m"), "accum": "a"}
    if {"global", "micro", "world"} <= said.keys():
        unit = int(said["micro"]) * int(said["world"])
        values["accum"] = str(max(1, int(said["global"]) // unit)) if unit else "a"
    return to("batch sizes", "make them multiply", "; ".join(table).format(**values),
                  "none is needed", "nothing")  # fmt: skip


_OF_HOST = (
    _evaluation, tensor, leak, _less_offload, _request_first, _load_first, _workers, _load_once,
    _host_request,
)  # fmt: skip
HOST: dict[Kind, tuple[Measure, ...]] = {
    Kind.HOST: _OF_HOST,
    Kind.KILLED: _OF_HOST,
    Kind.SHARED: (_shm, _workers, _sharing),
    Kind.BUS: (_shm, _workers),
    Kind.BATCH: (_multiply,),
}
LISTED: dict[str, tuple[Measure, ...]] = {
    "host memory": (_more_on_device, _workers, _load_once),
    "/dev/shm": HOST[Kind.SHARED],
    "not memory": (_keep_up, _larger_batch),
}
"""Remedies by the bottleneck in a listing."""
