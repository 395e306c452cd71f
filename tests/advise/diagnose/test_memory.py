"""The grammar of memory that ran out, in words that no program says, and talk about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.logs import told


@pytest.mark.parametrize(
    ("text", "kind", "certain"),
    [
        ("PoolError: could not allocate the 3 GiB scratch buffer on the accelerator", "device", 0),
        ("fatal: arena exhausted its share, the graphics card has not enough memory", "device", 0),
        ("shard 7: mymalloc(4096 MiB) failed", "memory", 0),
        ("KilnError: 12 GB needed, which is more than the host memory left", "host", 0),
        ("My run dies on the second epoch because it ran out of host memory.", "host", 0),
        ("we don't have enough VRAM for it", "device", 0),
        ("It has 24 GB of GPU memory. It is killed for lack of memory.", "host", 0),
        (
            "My RAM usage grows with each epoch, and after the fifth the machine shuts down",
            "host",
            0,
        ),
        ("the kernel crashed because of the small RAM of this plan", "host", 0),
        ("failed to allocate CPU buffer of size 4096", "host", 1),
        ("opencl_alloc_buffer: failed to allocate 3 MiB", "device", 0),
        ("it was killed when the RAM in use reached its maximum", "host", 0),
        ("it will crash, because of out of (cpu)memory", "host", 0),
        ("The main problem seems that you are out of memory.", "memory", 0),
        ("The cell consumed all available RAM", "host", 0),
        ("it ends with a `RESOURCE_EXHAUSTED` error after one epoch", "device", 0),
        ("Out of Memory: no place for a 2048 B DRAM buffer across 8 banks", "device", 0),
        ("内存占满后被系统 kill 了", "host", 0),
        ("训练刚启动就会OOM，显存不够", "device", 0),
        ("The job goes OOM as soon as evaluation begins", "memory", 0),
        ("ValueError: 8192 tokens are more than what can be stored in KV cache", "device", 1),
        ("Error: fail at CPUAllocator.cpp:9 posix_memalign(&p, 64, n) == 0. 12 vs 0", "host", 1),
        ("Error allocate memory in the second epoch", "memory", 0),
        ("it always has a loader worker killed after a while", "killed", 0),
        ("System OOM while the last checkpoint is written", "host", 0),
        ("显卡内存一直涨，最后内存溢出", "device", 0),
        (
            "Hint: If you want to see a list of allocated tensors when OOM happens, add this",
            "device",
            0,
        ),
        ("worker: cannot reserve 2 GiB in /dev/shm: too little shared memory", "shared", 1),
    ],
)
def test_a_failure_and_a_memory_in_a_sentence_are_enough(
    text: str, kind: str, certain: int, tmp_path: Path
) -> None:
    found = told(tmp_path, f"{text}\n")
    assert (found["oom"], found["event"]["kind"]) == (True, kind)
    assert found["certain"] == bool(certain)


@pytest.mark.parametrize(
    "text",
    [
        "Use a smaller batch to avoid running out of memory.",
        "You may run out of GPU memory with longer sequences.",
        "Out of memory errors can be reduced by checkpointing.",
        "srun: error: Unable to allocate resources: Invalid partition",
        "Failed to allocate port 29500",
        "allocated 12 GiB of 24 GiB of device memory",
        "The memory of the device did not grow in this run",
        "host memory: 12 GiB used, none was swapped",
        "if not enough_memory: raise OutOfMemoryError",
        "Our model uses more device memory than yours, but it trains faster",
        "There may be several reasons:\n1) a slow disk\n2) Not enough RAM.",
        "gathering the whole model will either CPU OOM or time out",
        "The “CUDA out of memory” error has become a rite of passage",
        "Why “CUDA out of memory” occurs with free memory",
        "MAINT: better MemoryError message",
        "MemoryErrors caused by large arrays are more descriptive",
        "GPU memory is full, but the training is slow",
        "warning: failed to mlock 4096-byte buffer: Cannot allocate memory",
        "Kill the old process to free its device memory",
        "When an OOM kill fires, the largest process ends",
        "Possible causes: (1) The worker is killed by the OOM killer for its memory",
        "Running into a “CUDA out of memory” error with your model?",
        "Then it throws the dreaded CUDA out of memory error.",
        "feat: Only restart pods that were OOMKilled",
        "google.api_core: 429 RESOURCE_EXHAUSTED: Quota exceeded for requests",
        "The run crashed due to an invalid memory access",
        "I forced it to crash, to be sure that it wasn't an OOM.",
        "trying to allocate 2 GiB. The caller indicates that this is not a failure, but may mean",
        "CompileError: Ran out of memory in memory space vmem. Please file a bug.",
    ],
)
def test_talk_of_memory_is_no_failure(text: str, tmp_path: Path) -> None:
    assert not told(tmp_path, f"step 1 loss 2.0\n{text}\n")["oom"]


def test_who_says_which_memory_counts_more(tmp_path: Path) -> None:
    found = told(tmp_path, "ServerError: out of memory\nRuntimeError: CUDA error: out of memory\n")
    assert found["event"]["kind"] == "device"


def test_a_title_says_which_memory_a_bare_message_means(tmp_path: Path) -> None:
    post = "# GPU OOM in my training\n\nIt says: ran out of memory trying to allocate 4.42GiB\n"
    event = told(tmp_path, post)["event"]
    assert (event["kind"], event["asked_bytes"]) == ("device", int(4.42 * 2**30))


_PAGE = (
    "Pages such as this one explain what a failure means and how it is best handled by readers.\n"
    "The container is stopped as soon as it goes over the limit that was set for its memory.\n"
    "{}\n"
    "Smaller batches make it less likely, and so does another number of workers for the data.\n"
    "Most people look at the settings first and only then at the model and the data.\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "OOMKilled",
        "Large batches exceed the GPU memory, and the run crashes.",
        "RuntimeError: CUDA out of memory. Tried to allocate X GiB (GPU 0; total capacity Y GiB)",
        "The torch.cuda.OutOfMemoryError is the most common roadblock with Llama 3.1 models.",
        "The status OOMKilled, flagged by exit code 137, says that the kernel ended it.",
    ],
)
def test_a_page_of_nobody_tells_of_no_failure(line: str, tmp_path: Path) -> None:
    assert told(tmp_path, f"{line}\n\nI see it after a while.\n")["oom"]
    assert not told(tmp_path, _PAGE.format(line))["oom"]


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 4211.batch cgroup.",
        "Killed",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_what_one_run_said_counts_among_prose_too(line: str, tmp_path: Path) -> None:
    assert told(tmp_path, _PAGE.format(line))["oom"]


def test_what_a_person_reports_is_not_certain(tmp_path: Path) -> None:
    found = told(tmp_path, "After three epochs I run out of memory on my card\n")
    assert found["verdict"].startswith("It looks as if")
    assert found["advice"]


def test_the_last_line_of_a_notebooks_traceback_is_read(tmp_path: Path) -> None:
    cell = '"traceback": [\n "KeyError        Traceback (most recent call last)",\n'
    cell += ' "KeyError: 5"\n]\n'
    assert told(tmp_path, cell)["event"]["kind"] == "other"
