"""Posts of people, who show a log with a title, in parts, in a comment, or beside other errors."""

from __future__ import annotations

from pathlib import Path

from tests.support.logs import oom, told

MPS = (
    "MPS backend out of memory (MPS allocated: 7.10 GiB, other allocations: 1.20 GiB, max"
    " allowed: 9.07 GiB). Tried to allocate 800.00 MiB on private pool.\n"
)
HOST = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't"
    " allocate memory: you tried to allocate 132426121216 bytes. Error code 12."
)


def test_a_title_does_not_swallow_the_message_below_it(tmp_path: Path) -> None:
    event = told(tmp_path, f"MPS backend out of memory on a laptop\n\nIt says\n{MPS}")["event"]
    assert event["line"] == 4
    assert event["text"].startswith("MPS backend out of memory (MPS allocated")


def test_the_whole_message_counts_more_than_a_part_of_it_above(tmp_path: Path) -> None:
    post = f"# Tried to allocate 800.00 MiB on private pool.\n\n{MPS}"
    assert told(tmp_path, post)["event"]["allowed_bytes"] == round(9.07 * 2**30)


def test_the_rest_of_a_message_is_no_other_event(tmp_path: Path) -> None:
    log = (
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 272.00 MiB.\n"
        "GPU 0 has a total capacity of 15.56 GiB of which 171.00 MiB is free.\n"
        "Of the allocated memory 13.00 GiB is allocated by PyTorch.\n"
    )
    body = told(tmp_path, log)
    assert body["later"] == []
    assert body["event"]["free_bytes"] == 171 * 2**20


def test_a_rank_is_read_behind_words(tmp_path: Path) -> None:
    assert told(tmp_path, f"- **7B, full**: [rank3]: {oom(device='3')}")["event"]["ranks"] == [3]


def test_a_library_without_memory_counts_more_than_an_error_around_it(tmp_path: Path) -> None:
    library = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    log = f"RuntimeError: The compiled part has failed.\nRuntimeError: {library}\n"
    assert told(tmp_path, log)["event"]["kind"] == "device"


def test_a_warning_of_nccl_is_sure_and_its_file_is_no_word(tmp_path: Path) -> None:
    ran_out = "n7:811:930 [1] enqueue.cc:77 NCCL WARN Cuda failure 'out of memory'\n"
    body = told(tmp_path, ran_out)
    assert body["certain"]
    assert body["event"]["devices"] == [1]
    other = "n7:811:930 [1] include/alloc.h:99 NCCL WARN Cuda failure 1 'invalid argument'\n"
    assert not told(tmp_path, other)["oom"]


def test_a_question_behind_an_error_is_no_message(tmp_path: Path) -> None:
    post = (
        "Here is an error. Is my memory too little? The GPU has 8G\n"
        "RuntimeError: DataLoader worker (pid 19) is killed by signal: Killed.\n"
    )
    assert told(tmp_path, post)["event"]["kind"] == "host"


def test_who_searches_for_a_message_has_not_met_it(tmp_path: Path) -> None:
    assert not told(tmp_path, 'kubectl logs web-0 | grep -i "out of memory"\n')["oom"]


def test_a_small_request_met_no_limit_of_one_allocation(tmp_path: Path) -> None:
    log = (
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 272.00 MiB. GPU 0 has a"
        " total capacity of 15.56 GiB of which 1.50 GiB is free.\n"
    )
    assert told(tmp_path, log)["cause"]["name"] == "free by now"


def test_torch_alone_fills_a_device_whose_free_memory_is_not_said(tmp_path: Path) -> None:
    log = (
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total"
        " capacity of 12.00 GiB. Of the allocated memory 11.50 GiB is allocated by PyTorch, and"
        " 0 bytes is reserved by PyTorch but unallocated.\n"
    )
    assert told(tmp_path, log)["cause"]["name"] == "too big"


def test_a_device_keeps_its_capitals_where_it_is_not_sure(tmp_path: Path) -> None:
    said = told(tmp_path, "I always run out of memory on GPU 1\n")["verdict"]
    assert said.startswith("It looks as if GPU 1 ran out of memory")


def test_an_exception_that_a_post_or_a_logger_names_is_told(tmp_path: Path) -> None:
    for text in (
        "the run stops with `RuntimeError: [io] descriptor limit exceeded` at step 40\n",
        "train - ERROR - Error during training: Expected all tensors to be on one device\n",
    ):
        assert told(tmp_path, text)["event"]["kind"] == "other"
        assert told(tmp_path, text + oom())["event"]["kind"] == "device"


def test_raylet_says_when_it_killed_workers(tmp_path: Path) -> None:
    log = (
        "(raylet) [2026-01-02 03:04:05,678 E 41 41] (raylet) node_manager.cc:77: 2 Workers (tasks"
        " / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons.\n"
    ) + 4 * "(raylet) Consider provisioning more memory on this node or asking for more cores.\n"
    event = told(tmp_path, log)["event"]
    assert event["kind"] == "host"
    assert event["time"] == "2026-01-02T03:04:05"


def test_a_class_without_sizes_is_a_message_and_on_a_page_no_run(tmp_path: Path) -> None:
    said = "```\ntorch.cuda.OutOfMemoryError: CUDA out of memory.\n```\n"
    assert told(tmp_path, said)["verdict"].startswith("A device ran out of memory")
    contents = "- [**CUDA out of memory**](#cuda-out-of-memory)\n"
    assert not told(tmp_path, contents)["oom"]
    page = (
        f"# FAQ\n\n{contents}\n## CUDA out of memory\n\n{said}Set BATCH_SIZE = 10 in the file.\n"
    )
    assert not told(tmp_path, page)["oom"]


def test_a_tool_that_diagnoses_it_has_not_met_it(tmp_path: Path) -> None:
    for text in (
        "description: Diagnose CUDA out of memory errors by six steps\n",
        "CUDA OOM diagnostics\n",
        "You are diagnosing a CUDA out-of-memory error.\n",
    ):
        assert not told(tmp_path, text)["oom"]


def test_a_third_of_a_small_device_is_no_context(tmp_path: Path) -> None:
    log = (
        "RuntimeError: CUDA out of memory. Tried to allocate 40.00 MiB (GPU 0; 5.80 GiB total"
        " capacity; 3.60 GiB already allocated; 16.00 MiB free; 80.00 MiB cached)\n"
    )
    assert told(tmp_path, log)["cause"]["name"] == "another process"


def test_other_bindings_of_torch_spell_it_in_their_own_way(tmp_path: Path) -> None:
    log = (
        "Error: CUDA out of memory. Tried to allocate 2.90 GiB (GPU 0; 23.80 GiB total capacity;"
        " 12.00 GiB already allocated; 2.80 GiB free; 19.60 GiB reserved in total by Pytorch)\n"
    )
    assert told(tmp_path, log)["cause"]["name"] == "fragmentation"


def test_a_message_is_whole_wherever_a_terminal_breaks_it(tmp_path: Path) -> None:
    texts, place = (oom(device="3").strip(), MPS.strip(), HOST), {"text": "", "line": 0}
    for text in texts:
        whole = told(tmp_path, text + "\n")["event"]
        for width in range(70, 140, 6):
            lines = [text[at : at + width] for at in range(0, len(text), width)]
            broken = told(tmp_path, "\n".join(lines) + "\n")["event"]
            assert broken | place == whole | place, width


def test_what_a_notebook_keeps_of_outputs_counts_and_its_code_does_not(tmp_path: Path) -> None:
    def cell(key: str) -> str:
        lines = ["step 7\\n", "RuntimeError: CUDA error: out of memory\\n", "(see above)\\n"]
        return f'   "{key}": [\n' + "".join(f'    "{line}",\n' for line in lines) + "   ]\n"

    assert told(tmp_path, cell("source") + cell("text"))["event"]["kind"] == "device"
    assert not told(tmp_path, '   "text": [\n    "step 7\\n"\n   ]\n' + cell("source"))["oom"]


def test_a_listing_is_read_in_a_notebook_and_in_a_quote(tmp_path: Path) -> None:
    listing = ["        total   used   free", "Mem:     31Gi   30Gi   1.0Gi"]
    quote = "".join(f"> {line}\n" for line in listing)
    notebook = "".join(f'    "{line}\\n",\n' for line in listing)
    plain = told(tmp_path, "\n".join(listing) + "\n")["cause"]
    assert plain["name"] == "host memory"
    assert plain == told(tmp_path, quote)["cause"] == told(tmp_path, notebook)["cause"]


def test_a_message_without_sizes_ends_with_its_line(tmp_path: Path) -> None:
    said = "CUDA out of memory\n1. Take a smaller batch\n2. Accumulate gradients\n"
    assert told(tmp_path, said)["event"]["text"] == "CUDA out of memory"


def test_another_ranks_line_of_code_hides_no_exception(tmp_path: Path) -> None:
    code = "    return forward_call(*args, **kwargs)"
    assert told(tmp_path, f"{code}RuntimeError: CUDA error: out of memory\n")["oom"]
    assert not told(
        tmp_path, '    raise RuntimeError("RuntimeError: CUDA error: out of memory")\n'
    )["oom"]


def test_a_line_that_a_terminal_broke_is_joined_within_its_rank(tmp_path: Path) -> None:
    start = (
        "E external/xla/python/client.cc:6] Execution of replica 0 failed: Resource exhausted: Out"
    )
    rest = "of memory while trying to allocate 5520758552 bytes."
    whole = told(tmp_path, f"{start} {rest}\n")["event"]["kind"]
    assert (
        told(tmp_path, f"[rank1]: {start}\n[rank1]: {rest}\n")["event"]["kind"]
        == whole
        == "device"
    )


def test_a_worker_that_another_signal_ended_was_not_killed(tmp_path: Path) -> None:
    for signal in ("Segmentation fault", "Terminated"):
        assert not told(tmp_path, f"DataLoader worker (pid 7) is killed by signal: {signal}.\n")[
            "oom"
        ]


def test_steps_before_a_validation_say_nothing_of_its_samples(tmp_path: Path) -> None:
    train = "epoch 0 (train): 100% 32/32 [00:41<00:00,  2.39s/it, loss=0.9]\n"
    valid = "epoch 0 (valid):   3% 1/32 [00:01<00:46,  1.50s/it, loss=1.7]\n"
    error = "RuntimeError: CUDA error: out of memory\n"
    assert told(tmp_path, train + error)["cause"]["name"] == "a longer sample"
    assert told(tmp_path, train + valid + error)["cause"]["name"] == "not said"
