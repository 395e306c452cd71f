"""Posts of people, who show a log with a title, in parts, in a comment, or beside other errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.logs import oom, told

MPS = (
    "MPS backend out of memory (MPS allocated: 7.10 GiB, other allocations: 1.20 GiB, max"
    " allowed: 9.07 GiB). Tried to allocate 800.00 MiB on private pool.\n"
)
HOST = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't"
    " allocate memory: you tried to allocate 132426121216 bytes. Error code 12."
)
CUT = (
    '```\nTraceback (most recent call last):\n  File "/w/torch/optim/adamw.py", line 9, in step\n'
)


def first(tmp_path: Path, log: str) -> tuple[str, str]:
    """The name and the setting of the first advice."""
    advice = told(tmp_path, log)["advice"][0]
    return advice["name"], advice["setting"]


KINDS = {
    "a question behind an error is no message": {
        "Here is an error. Is my memory too little? The GPU has 8G\n"
        "RuntimeError: DataLoader worker (pid 19) is killed by signal: Killed.\n": "host",
    },
    "memory that is used up in chinese is the hosts": {
        "mem 跑满之后进程自动kill\n": "host",
        "32G内存用光了，训练被 kill\n": "host",
        "跑到一半出现 OOM killer 退出\n": "host",
    },
    "a misspelt message and a told code are read": {
        "error occured:\nCUDA out of memeory,\n": "device",
        "It loads the checkpoint, and then gives error code -9.\n": "killed",
    },
    "a script named after a model is not its program": {
        "Running train_ppo_llama_ray.sh fails with OOM of the node's RAM\n": "host",
    },
    "a semaphore below a full disk is shared memory": {
        'OSError: [Errno 28] No space left on device\n  File "a.py", line 1\n'
        "    x = ctx.Lock()\n": "shared",
    },
    "a number of nodes is no node without memory": {
        "I tuned the number of nodes, but the job fails with an OOM\n": "memory",
    },
    "who cannot allocate memory lacks host memory": {
        "# Initialization failed (can't allocate memory)\n\nsome text\n": "host",
    },
    "host memory that is used up is a failure of the host": {
        "My CPU memory was used up and it crashed\n": "host",
        "the ram usage grows until it crashes\n": "host",
    },
    "a line with its own time goes on from none": {
        "[2026-01-02 03:04:05,678] [INFO] [utils.py:8:usage] CPU Memory: used = 28 GB (22%)\n"
        "[2026-01-02 03:04:09,678] [INFO] [launch.py:3:sigkill_handler] Killing subprocess "
        "80\n": "ended",
    },
    "a code of a launcher is read in chinese too": {"训练到一半，返回错误码-9\n": "killed"},
    "a machine or a path named after a device is none": {
        "I see gke-pool-gpu-n1-highmem-8 ran out of memory\n": "host",
        "I see my job in /data/gpu/runs ran out of memory\n": "memory",
        "I see out of memory on our node GPU-A100-03\n": "host",
        "I see out of memory on my A100-40GB\n": "device",
    },
    "other faults and signals are named": {
        "[n1:13:0:16] Caught signal 7 (Bus error: nonexistent physical address)\n": "bus",
        "./run.sh: line 3: 41 Bus error (core dumped) python a.py\n": "bus",
        "CUDA error (C:/x/launch.h:188): invalid argument\n": "assert",
        "*** SIGABRT received at time=1720159248 on cpu 5 ***\n": "other",
        "there is a problem: CUDNN_STATUS_NOT_SUPPORTED with a batch of 128\n": "other",
    },
    "a device is meant where a post names devices and no host": {
        "# OOM in the first step\n\nI train on 4 GPUs\n": "device",
        "# OOM in the first step\n\nI train on 4 GPUs, and RAM is free\n": "memory",
        "# OOM in the first step\n\n- PyTorch version (GPU?): 2.9\n"
        "- Using GPU in script?: no\n": "memory",
        "# OOM in the first step\n\nname: Tesla T4\n"
        "totalMemory: 14.73GiB freeMemory: 310.12MiB\n": "device",
    },
    "a paging file is read in other languages": {
        "OSError: 页面文件太小，无法完成操作。\n": "host",
        "OSError: 페이징 파일이 너무 작아서\n": "host",
        "OSError: Файл подкачки слишком мал\n": "host",
    },
    "memory of a card is a devices in chinese too": {
        "这样会OOM，但是每张卡只占用13G内存\n": "device",
    },
    "a library without memory counts more than an error around it": {
        "RuntimeError: The compiled part has failed.\nRuntimeError: CUDA error: "
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n": "device",
    },
    "a class alone says less than a title": {
        '# cuda out of memory\n\n  File "t.py", line 3, in f\n    y = x * x\n'
        "RuntimeError\n": "device",
    },
    "too few gpus in chinese and surpassed memory": {
        "单机两卡训练都报出GPU不足。\n": "device",
        "it eventually surpasses available RAM.\n": "host",
    },
    "a contrast ends what is only supposed": {
        "It is fine if you have much RAM, but in my case memory allocation error "
        "occurred.\n": "host",
    },
    "more words for memory and for other errors": {
        "the tokenizing keeps blowing up my RAM\n": "host",
        "I run out of memory on 8*a-100\n": "device",
        "OOM with much reserved but unallocated memory\n": "device",
        "x.mm:228:0): error: input types are not compatible\n": "other",
        "It ends with an error of MPS: RuntimeError: Placeholder is not there\n": "other",
    },
    "a compiler without memory words is another error": {
        "LLVM ERROR: pthread_join failed\n": "other",
    },
}
"""What ran out, or what else happened, by what holds of the posts."""


@pytest.mark.parametrize("posts", KINDS.values(), ids=KINDS)
def test_posts_tell_of_an_event(posts: dict[str, str], tmp_path: Path) -> None:
    assert {post: told(tmp_path, post)["event"]["kind"] for post in posts} == posts


CAUSES = {
    "a small request met no limit of one allocation": {
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 272.00 MiB. GPU 0 has a "
        "total capacity of 15.56 GiB of which 1.50 GiB is free.\n": "free by now",
    },
    "torch alone fills a device whose free memory is not said": {
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        "capacity of 12.00 GiB. Of the allocated memory 11.50 GiB is allocated by PyTorch, and 0 "
        "bytes is reserved by PyTorch but unallocated.\n": "too big",
    },
    "steps that fitted are counted in chinese, and made the optimizers state": {
        f'step 7 loss 2\n  File "/x/torch/optim/adam.py", line 1, in step\n{oom()}': (
            "a longer sample"
        ),
        "显卡24G，跑了两千步之后突然 out of memory\n": "a longer sample",
    },
    "checkpoints are loaded at the start and a checkpoint to go on": {
        'The second .to("cuda") fails with torch.OutOfMemoryError on my '
        "card.\n": "loading the model",
        "The job dies while loading checkpoints due to lack of VRAM.\n": "loading the model",
        "The job dies while loading a checkpoint due to lack of VRAM.\n": "resuming",
    },
    "few others, a fraction beside sizes, and less than a segment that is free are no cause": {
        oom(asked="60.00 GiB", process="67.90 GiB", allocated="66.50 GiB"): "too big",
        f"memory_fraction=1.0\n{oom()}": "too big",
        oom(asked="14.00 MiB", free="15.62 MiB"): "too big",
    },
    "a third of a small device is no context": {
        "RuntimeError: CUDA out of memory. Tried to allocate 40.00 MiB (GPU 0; 5.80 GiB total "
        "capacity; 3.60 GiB already allocated; 16.00 MiB free; 80.00 MiB "
        "cached)\n": "another process",
    },
    "other bindings of torch spell it in their own way": {
        "Error: CUDA out of memory. Tried to allocate 2.90 GiB (GPU 0; 23.80 GiB total capacity; "
        "12.00 GiB already allocated; 2.80 GiB free; 19.60 GiB reserved in total by "
        "Pytorch)\n": "fragmentation",
    },
    "what a notebook shows around a line did not fail": {
        "Traceback (most recent call last)\n<ipython-input-3> in train_model(model)\n"
        "---> 53         loss.backward()\n     54         optimizer.step()\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 4\n": "not said",
        "Traceback (most recent call last)\n<ipython-input-3> in train_model(model)\n"
        "     53         loss.backward()\n---> 54         optimizer.step()\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 4\n": "the first optimizer step",
    },
    "frames of ipython without an error are a cut traceback": {
        "# CUDA error: out of memory\n\n"
        "File /x/deepspeed/runtime/engine.py:11, in Engine._configure_zero_optimizer(self)\n"
        "     10 x = 1\n---> 11 optimizer = Stage3(\n"
        "     12     self.module,\n": "before training started",
    },
    "more held than the device has is no fragmentation": {
        "RuntimeError: CUDA out of memory. Tried to allocate 40.00 MiB (GPU 0; 24.00 GiB total "
        "capacity; 50.00 GiB already allocated; 0 bytes free; 53.00 GiB reserved in total by "
        "PyTorch)\n": "too big",
    },
    "evaluation is read in the line of a failure only": {
        "# Out of memory after some steps of validation\n\nvalidation is fine\n": "evaluation",
        "# CUDA OOM when running trainer.validate()\n\nvalidation is fine\n": "evaluation",
        "# CUDA out of memory while testing\n\nvalidation is fine\n": "evaluation",
        "# CUDA OOM after validation\n\nvalidation is fine\n": "left by an evaluation",
        "# CUDA OOM with validation disabled\n\nvalidation is fine\n": "not said",
        "# CUDA OOM while testing the code\n\nvalidation is fine\n": "not said",
    },
    "a failure while megatron is set up is before training": {
        "# OOM on A100\n\n  traceback : Traceback (most recent call last):\n"
        '    File "/a/megatron/optimizer/__init__.py", line 9, in get_megatron_optimizer\n'
        "      return Optimizer(\n": "before training started",
    },
    "set up counts though the memory is not named": {
        "# OOM of a large model\n\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        "    engine = deepspeed.initialize(model=model)\n": "before training started",
    },
    "buckets of ddp are made before training": {
        f"    self.reducer = dist.Reducer(\n{oom()}": "before training started",
    },
    "evaluation and checkpoints are read in titles": {
        "# Eval recipe produces OOM\n\nhelp\n": "evaluation",
        "# 训练过程中进行评估，报OOM\n\nhelp\n": "evaluation",
        "# OOM after it loads a checkpoint\n\nhelp\n": "resuming",
        "# 训练到一半显存一直增加直到OOM\n\nhelp\n": "a leak",
        "# 训练到一半显存突然增加直到OOM\n\nhelp\n": "not said",
    },
    "a small reserve is no fragmentation": {
        oom(
            idle="2.00 GiB", asked="20.00 MiB", free="10.00 MiB", allocated="74.00 GiB"
        ): "too big",
        oom(
            idle="3.50 GiB", asked="20.00 MiB", free="10.00 MiB", allocated="74.00 GiB"
        ): "fragmentation",
        oom(idle="8.00 GiB", asked="10.00 GiB", free="6.00 GiB", process="73.00 GiB"): (
            "fragmentation"
        ),
        oom(idle="4.00 GiB", asked="10.00 GiB", free="6.00 GiB", process="73.00 GiB"): "too big",
    },
    "a model that is loaded by a line without frames is seen": {
        'models.CausalLM.from_preset("x")\n'
        "RESOURCE_EXHAUSTED: Attempting to allocate 4.39G. That was not possible. There are 2.30G "
        "free.; (0x0x0_HBM0)\n": "loading the model",
    },
    "the optimizer and checkpoints are named in prose": {
        "CUDA out of memory occurs in optimizer.step()\n": "the first optimizer step",
        "I get `OSError: [Errno 12] Cannot allocate memory` while checkpointing\n": "saving",
        "I get CUDA OOM when gradient checkpointing is off\n": "not said",
        "I get OOM on the GPU, as there is some accumulation of VRAM\n": "a leak",
    },
    "memory that increases is a leak": {"# The memory increases until the OOM\n\nx\n": "a leak"},
    "memory that gets larger in chinese is a leak": {"显存会逐渐增大，最后显存溢出\n": "a leak"},
    "steps before a validation say nothing of its samples": {
        "epoch 0 (train): 100% 32/32 [00:41<00:00,  2.39s/it, loss=0.9]\n"
        "RuntimeError: CUDA error: out of memory\n": "a longer sample",
        "epoch 0 (train): 100% 32/32 [00:41<00:00,  2.39s/it, loss=0.9]\nepoch 0 "
        "(valid):   3% 1/32 [00:01<00:46,  1.50s/it, loss=1.7]\nRuntimeError: CUDA "
        "error: out of memory\n": "not said",
    },
    "growth may be told with what it comes with": {
        "# CUDA out of memory\n\nI see the GPU memory increasing with training steps.\n": "a leak",
    },
    "a question behind a report does not make it talk": {
        "It crashed due to GPU memory that keeps growing. Did you find your mistake, "
        "too?\n": "a leak",
    },
    "the line of code above a message without frames tells the cause": {
        "`denom = (exp_avg_sq.sqrt() / correction).add_(eps)\n"
        f"{oom()}": "the first optimizer step",
        "    return t.to(device, dtype if t.is_floating_point() else "
        f"None)\n{oom()}": "loading the model",
        f"Some words (of a person) about t.to(device)\n{oom()}": "too big",
    },
    "an increment in each step is a leak": {
        "# OOM\n\nOutOfMemoryError after five steps, as the memory increment in each "
        "step\n": "a leak",
    },
    "a lack of cache is read in older logs of vllm": {
        "INFO 02-26 09:54:05 worker.py:267] memory reserved for KV "
        "Cache is -1.05GiB.\n": "no room for the KV cache",
    },
    "outputs in fp32 are logits": {
        '  File "/x/operations.py", line 9, in _convert_to_fp32\n'
        f"{oom(asked='9.00 GiB')}": "logits",
    },
    "memory that stacks up on one card is of ranks": {
        "# CUDA OOM with ddp\n\nWhy does the memory load happen on "
        "one card? I use eight\n": "contexts of other ranks",
    },
    "a model that is called for logits is its forward pass": {
        f'  File "a.py", line 9, in train\n    logits = model(images)\n{oom()}': "too big",
        f'  File "a.py", line 9, in train\n    loss = f(logits, y)\n{oom()}': "logits",
    },
}
"""Why it ran out."""


@pytest.mark.parametrize("posts", CAUSES.values(), ids=CAUSES)
def test_posts_tell_of_a_cause(posts: dict[str, str], tmp_path: Path) -> None:
    assert {post: told(tmp_path, post)["cause"]["name"] for post in posts} == posts


OOM = {
    "a lesson with an example is no run and a report with its headings is": {
        f"Symptoms\n{oom()}\nCommon Causes\nThe whole data set is kept\n": False,
        f"Symptoms\n{oom()}\nCommon Causes\nThe whole data set is kept\n"
        "So I read about this all day long and my own run still fails in the same way\n": True,
    },
    "a title of a change may begin small or name documents": {
        "# Update the page on OOM\n\n- Say what it means.\n": False,
        "# Document what OOM does\n\n- Say what it means.\n": False,
        "# docs: Cover a failed memory allocation\n\n- Say what it means.\n": False,
        "# add recomputation\n\n"
        "The large model goes from OOM to 44GB on 8 cards of 90 GB.\n": False,
    },
    "a size is no name of an error": {
        "# perf(loss): use chunks\n\n"
        "The failing 3.5 GiB allocation is one tensor of 9000 words.\n": False,
    },
    "a tool that diagnoses it has not met it": {
        "description: Diagnose CUDA out of memory errors by six steps\n": False,
        "CUDA OOM diagnostics\n": False,
        "You are diagnosing a CUDA out-of-memory error.\n": False,
    },
    "another ranks line of code hides no exception": {
        "    return forward_call(*args, **kwargs)RuntimeError: CUDA error: out of memory\n": True,
        '    raise RuntimeError("RuntimeError: CUDA error: out of memory")\n': False,
    },
    "a worker that another signal ended was not killed": {
        "DataLoader worker (pid 7) is killed by signal: Segmentation fault.\n": False,
        "DataLoader worker (pid 7) is killed by signal: Terminated.\n": False,
    },
    "a page of questions has no mark of a heading": {
        "Frequently Asked Questions\n\nMy model says “cuda runtime error(2): out of memory”\n"
        "small mistakes can rapidly use up all of the device\n": False,
    },
    "a list of possible causes is no report": {
        "Job Failed\n\nPossible Causes\n-------\n\n-  GPU memory is insufficient.\n": False,
    },
    "a change that addresses failures is no failure": {
        "# Put chunking back in to address OOM issues\n\nThis is it\n": False,
    },
    "who changed a program tells of no run": {
        "# fix(save): OOM while shards are joined\n\nJoin them one by one.\n": False,
        "# [FIX] OOM on resume\n\n- Fixes the OOM after `load_state_dict()`\n": False,
        "# Saver OOM fix\n\nThe run OOMed without it.\n": False,
        "# Handle OOM in the sampler\n": False,
        "# Shards\n\nThis PR joins shards on the host, preventing OOM errors.\n": False,
        "# Snapshots\n\n### Pitch\n\nTell more about out of memory errors\n": False,
        f"# fix(save): shards\n\nIt failed with\n{oom()}": True,
        "# Reduce batch size, still OOM\n\nSame error on 8 GPUs.\n": True,
        "# Any OOM fix?\n\nI run out of memory.\n": True,
        "# OOM\n\nI run out of memory.\n\nx · comment · 2026-01-02\n"
        "This PR should solve it.\n": True,
    },
    "a container that was not killed for memory was not": {
        '"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 137}\n': False,
        '"State": {"Status": "exited", "OOMKilled": true, "ExitCode": 137}\n': True,
    },
    "a guess a wish and a small device are no failure": {
        "I think it's caused by OOM on some devices\n": False,
        "It may be out of memory\n": False,
        "Memory should not grow, otherwise the app will crash and run out of memory\n": False,
        "Warning: GPU VRAM is less than 8GB\n": False,
        "Free GPU memory is less than desired\n": True,
    },
    "who asks politely and tries a larger batch has seen it": {
        "The pod says `OOMKilled`, may I know why?\n": True,
        'When I double the batch, an "out of memory" error occurs.\n': True,
        "Why does cuda:0 cause a memory explosion?\n": True,
    },
    "programs that live through it have not met it": {
        "# Automatic batch with OOM recovery\n\nIt retries on OOM with half of it\n": False,
        "# Bound what a restart holds\n\nIt was OOM-killed.\n\nThree changes fix that.\n": False,
    },
    "an example of a crash is none": {
        "All kinds of crashes such as `Out Of Memory (OOM)` errors drain my nodes\n": False,
    },
    "who searches for a message has not met it": {
        'kubectl logs web-0 | grep -i "out of memory"\n': False,
    },
    "who wishes a change tells of what it would mend": {
        "# Add ring attention\n\nTraining a 7B model with 9000 tokens has an OOM error. \n": False,
        "# Add ring attention\n\nTraining a 7B model with 9000 tokens has an OOM error. "
        "It would be great to have it.\n": True,
        "# Train on small cards\n\n### Feature request\n\nI run out of memory on my GPU.\n": True,
    },
    "the work on a failure is no failure": {
        "# OOM Handling in training\n\nIt would be useful.\n": False,
        "# Find CUDA OOM batches before training\n\nIt would be useful.\n": False,
    },
    "a page says in its title how to fix it": {
        "Why does my session crash? (and how to fix it)\n\nMostly it is out of RAM by "
        "then\n": False,
    },
    "a sentence that it no longer fails is no failure": {
        "之前eval_steps没设置，现在不会爆显存了\n": False,
    },
    "who guesses at memory has seen no failure": {
        "RuntimeError below\n\nI'm thinking it is a memory error.\n": False,
    },
    "a contrast ends what is only supposed": {
        "zero2 is not enough to save memory on this card, use zero3\n": False,
        "the RAM usage is maxed and the notebook crashes\n": True,
    },
    "more words for memory and for other errors": {
        "Auto batching attempts to catch CUDA Out of Memory errors and takes less.\n": False,
    },
    "who asks whether it was memory has seen no failure": {
        "训练出错，请问是内存不足还是？\n": False,
        "It is hard to tell whether this is a CPU OOM\n": False,
    },
}
"""Whether memory ran out in a run of the writer."""


@pytest.mark.parametrize("posts", OOM.values(), ids=OOM)
def test_posts_tell_of_a_failure_or_none(posts: dict[str, bool], tmp_path: Path) -> None:
    assert {post: told(tmp_path, post)["oom"] for post in posts} == posts


FIRST = {
    "memory that is free by now is not in pieces": {
        oom(
            free="9.00 GiB", idle="1.00 GiB", allocated="60.00 GiB", process="70.00 GiB"
        ): "look who holds it",
    },
    "what does not train gets no advice about data loading": {
        "State: Terminated\n  Reason: OOMKilled\n": "more host memory",
        "Epoch 3 train loss 0.5\nState: Terminated\n  Reason: OOMKilled\n": "fewer workers",
    },
    "memory that gets full after epochs is a leak": {
        "GPU memory gets filled up after 4 epochs\n": "leak",
        "after one epoch my RAM is getting full\n": "leak",
    },
    "of a node that ray fills fewer tasks are the first advice": {
        'Traceback (most recent call last):\n  File "sim.py", line 9, in step\n    ray.get(x)\n'
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
        "memory.\n": "fewer at once",
    },
    "language models are loaded once before workers are blamed": {
        "deepspeed train.py\n"
        "[ERROR] [launch.py:1:sigkill_handler] exits with return code = -9\n": "load less",
        "num_workers: 8\ndeepspeed train.py\n"
        "[ERROR] [launch.py:1:sigkill_handler] exits with return code = -9\n": "fewer workers",
    },
    "a kill on a machine without limits gets advice too": {
        "oom-kill:constraint=CONSTRAINT_NONE,global_oom,task=python3,pid=7,uid=0\n"
        "Out of memory: Killed process 7 (python3) total-vm:900kB, anon-rss:800kB, "
        "UID:0\n": "swap",
    },
    "one request above a limit is made in parts": {
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total "
        "capacity of 15.11 GiB. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 "
        "bytes is reserved by PyTorch but unallocated.\n": "smaller tensor",
    },
    "offload that fills the host is lessened first": {
        "z3 with ds_z3_offload_config单卡\nexits with return code = -9\n": "less offload",
        "zero-3-offload\nexits with return code = -9\n": "less offload",
        "ZeRO 3 with offload\nexits with return code = -9\n": "less offload",
    },
    "saving that fills the host is told": {
        "# It runs out while saving a checkpoint\n\nOOM when saving\nOOM error "
        "during checkpoint saving\nslurmstepd: error: Detected 1 oom_kill "
        "event\n": "save shards",
    },
    "logits are seen where the memory is not named": {
        '# OOM after a step\n\nText\n\n  File "/m/module.py", line 448, in '
        "forward\n    outputs = float16_to_fp32(outputs)\n": "fused loss",
    },
}
"""The advice that comes first."""


@pytest.mark.parametrize("posts", FIRST.values(), ids=FIRST)
def test_posts_tell_of_its_first_advice(posts: dict[str, str], tmp_path: Path) -> None:
    assert {post: first(tmp_path, post)[0] for post in posts} == posts


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


def test_a_warning_of_nccl_is_sure_and_its_file_is_no_word(tmp_path: Path) -> None:
    ran_out = "n7:811:930 [1] enqueue.cc:77 NCCL WARN Cuda failure 'out of memory'\n"
    body = told(tmp_path, ran_out)
    assert body["certain"]
    assert body["event"]["devices"] == [1]
    other = "n7:811:930 [1] include/alloc.h:99 NCCL WARN Cuda failure 1 'invalid argument'\n"
    assert not told(tmp_path, other)["oom"]


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


def test_a_misspelt_word_for_device_memory_and_its_batch_that_fits(tmp_path: Path) -> None:
    body = told(tmp_path, "第一步就gpu现存不足，batch改大会爆显存，所以无法增加\n")
    assert body["event"]["kind"] == "device"
    assert body["cause"]["name"] == "not said"


def test_memory_that_goes_up_is_a_leak_and_a_failed_backward_no_evaluation(tmp_path: Path) -> None:
    post = "The host memory keeps going up with each batch until the job gets killed.\n"
    assert told(tmp_path, post)["cause"]["name"] == "a leak"
    assert told(tmp_path, "机器内存一直涨，最后内存不够被杀\n")["cause"]["name"] == "a leak"
    post = "Metal OOM on my GPU after the first val pass, in the backward pass.\n"
    assert told(tmp_path, post)["cause"]["name"] != "evaluation"


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


def test_a_title_counts_with_its_mark_and_the_cut_traceback_below_it(tmp_path: Path) -> None:
    body = told(tmp_path, f"a/b issue #7\n# CUDA OOM with a large model\n\nIt says\n{CUT}")
    assert body["event"]["kind"] == "device"
    assert not body["certain"]
    assert body["cause"]["name"] == "the first optimizer step"
    assert not told(tmp_path, "#!/bin/sh\n# CUDA OOM with a large model\n\ntrue\n")["oom"]
    assert not told(tmp_path, f"# Loss is wrong\n\n{CUT}")["oom"]


def test_a_title_does_not_go_on_below_it(tmp_path: Path) -> None:
    post = "# CUDA out of memory\n\nGPU 0: an old card, 3.00 GiB free\n"
    assert told(tmp_path, post)["event"]["devices"] == []


def test_a_cluster_in_the_same_sentence_is_not_what_ran_out(tmp_path: Path) -> None:
    for place in ("on our slurm cluster", "of llama"):
        body = told(tmp_path, f"In a training {place} I got CUDA out of memory at once\n")
        assert body["event"]["kind"] == "device"
        assert body["event"]["wording"] == "torch"


def test_growth_that_somebody_tells_is_a_leak(tmp_path: Path) -> None:
    for text in (
        "I see GPU memory that slowly increases until it is an OOM\n",
        "显存单调上涨，直至OOM\n",
        "I train, and RAM usage increases on each epoch until the process is killed by OOM\n",
    ):
        body = told(tmp_path, text)
        assert "a leak" in [body["cause"]["name"], *(each["name"] for each in body["also"])]
        assert "leak" in [each["name"] for each in body["advice"]]


def test_who_only_infers_gets_no_advice_for_training(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.\n"
    run = "python app/demo.py --checkpoint x\n"
    body = told(tmp_path, run + error)
    names = [each["name"] for each in body["advice"]]
    assert "smaller weights" in names
    assert not {"checkpointing", "offload", "smaller micro-batch"} & set(names)
    assert "rocm-smi" in body["advice"][0]["setting"]
    training = told(tmp_path, f"{run}epoch 1: train loss 0.3\n{error}")
    assert "checkpointing" in [each["name"] for each in training["advice"]]


def test_what_is_set_already_is_not_advised(tmp_path: Path) -> None:
    for done, error, name in (
        ("I ran export PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0\n", MPS, "limit"),
        ("#SBATCH --mem=0\n", "srun: error: n1: task 0: Out Of Memory\n", "more host memory"),
    ):
        assert name in [each["name"] for each in told(tmp_path, error)["advice"]]
        assert name not in [each["name"] for each in told(tmp_path, done + error)["advice"]]


def test_a_thread_of_people_is_no_page_though_nobody_says_i(tmp_path: Path) -> None:
    words = "the run is the same as before and nothing else was changed in the whole script\n" * 5
    thread = f"someone commented on Apr 2\n{words}and now it is running out of memory on the GPU\n"
    assert told(tmp_path, thread)["oom"]
    assert not told(tmp_path, thread.partition("\n")[2])["oom"]


def test_a_corrupt_size_is_looked_for(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.\n"
    assert [each["name"] for each in told(tmp_path, error)["advice"]] == ["corrupt size"]


def test_a_title_of_nothing_else_is_a_persons(tmp_path: Path) -> None:
    assert told(tmp_path, "# CUDA out of memory\n\nWhy?\n")["verdict"].startswith("It looks")
    survived = (
        "# out of memory\n\n| epoch 1:  0%|  | 315/72115 [01:24<5:21, 3.7it/s, loss=2]"
        "THCudaCheck FAIL file=/THC/THCStorage.cu line=58 error=2 : out of memory\n"
        "| WARNING: ran out of memory on GPU #2, skipping batch\n"
        "| epoch 1:  0%|  | 318/72115 [01:25<5:21, 3.7it/s, loss=2]\n"
    )
    assert told(tmp_path, survived)["verdict"].endswith("training went on")


def test_a_person_tells_the_phase(tmp_path: Path) -> None:
    error = "RuntimeError: CUDA out of memory. Tried to allocate 8.00 GiB"
    for text in (
        f"It trains, but I get `{error}` at eval stage\n",
        f"It fails during the validation: out of memory on the GPU\n{error}\n",
        "test时12G显存不够用\n",
    ):
        assert told(tmp_path, text)["cause"]["name"] == "evaluation", text
    assert told(tmp_path, f"{error}\n")["cause"]["name"] != "evaluation"


def test_where_a_server_fails_its_own_settings_help(tmp_path: Path) -> None:
    warm = "CUDA out of memory occurred when warming up sampler with 1024 dummy requests"
    body = told(tmp_path, f"I train with deepspeed.\nRuntimeError: {warm}.\n")
    assert body["cause"]["name"] == "no room for the KV cache"
    assert "--max-num-seqs" in body["advice"][1]["setting"]
    frame = '  File "/x/site-packages/vllm/worker/worker.py", line 7, in f\n'
    trace = f"accelerate launch x.py\nTraceback (most recent call last):\n{frame}"
    advice = told(tmp_path, f"{trace}torch.OutOfMemoryError: CUDA out of memory.\n")["advice"]
    assert any("--max-num-seqs" in each["setting"] for each in advice)


def test_images_have_no_tokens(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    for run, setting in (
        ("python train.py --resolution=512\n", "--resolution=256"),
        ("from detectron2 import x\n", "resize or crop to <half of now>"),
    ):
        assert told(tmp_path, run + error)["advice"][-1]["setting"] == setting


def test_a_numbered_step_of_instructions_is_none_of_training(tmp_path: Path) -> None:
    post = "**Step 3. Run it again**\nI get an out of memory error on the GPU\n"
    assert told(tmp_path, post)["event"]["step"] is None


def test_i_o_is_nobody(tmp_path: Path) -> None:
    words = "the storage and the transfer of data are usually what is slow in such a job\n" * 5
    page = (
        f"When it comes to training, the I/O is slow.\n{words}a job may run out of memory then\n"
    )
    assert not told(tmp_path, page)["oom"]


def test_a_person_tells_of_saving_and_of_an_evaluation_in_host_memory(tmp_path: Path) -> None:
    body = told(tmp_path, "# OOM while saving the checkpoints\n\nIt needs too much VRAM.\n")
    assert "saving" in [body["cause"]["name"], *(each["name"] for each in body["also"])]
    assert "save shards" in [each["name"] for each in body["advice"]]
    body = told(tmp_path, f"{HOST}\nWhen it comes to evaluation, it always shows this error.\n")
    assert body["cause"]["name"] == "evaluation"


def test_a_page_in_chinese_is_no_report(tmp_path: Path) -> None:
    page = (
        "在使用深度学习框架进行模型训练时，经常会遇到CUDA报错提示“Out of Memory”，"
        "这意味着显存不足，无法分配额外的内存资源。这种情况通常发生在处理大规模数据集或复杂模型时，我们可以从以下几个"
        "方面入手，减少批量大小是影响显存占用的主要因素之一，可以显著降低单次迭代所需的显存需求，"
        "启用梯度检查点也是一种节省显存的技术，它通过牺牲部分计算速度来换取显存空间\n"
    )
    assert not told(tmp_path, page)["oom"]
    assert told(tmp_path, f"我训练时遇到了这个问题，请问怎么解决\n{page}")["oom"]
    assert not told(tmp_path, "如果显存仍然不足，可以进一步减小批量大小\n")["oom"]


def test_windows_pages_to_a_file(tmp_path: Path) -> None:
    error = "OSError: [WinError 1455] The paging file is too small for this operation\n"
    assert "larger paging file" in [each["name"] for each in told(tmp_path, error)["advice"]]


def test_the_backend_of_libraries_names_its_tool(tmp_path: Path) -> None:
    log = "E rocm_driver.cc:601] failed to allocate 7.35G (7889485824 bytes) from device: hipErr\n"
    assert "rocm-smi" in told(tmp_path, log)["advice"][0]["setting"]


def test_words_of_a_ranked_program_are_no_page(tmp_path: Path) -> None:
    advice = "(Actor pid=7) Refer to the pages on the issue and give it more memory on this node"
    post = "a/b\n# OutOfMemoryError: Task was killed due to the node running low on memory.\n\n"
    assert told(tmp_path, post + f"{advice}\n" * 9)["event"]["kind"] == "host"


def test_the_tool_that_lists_holders_is_that_of_the_device(tmp_path: Path) -> None:
    for log, tool in (
        ("# mps (of a laptop) is OOM with a small net\n\nI train on a laptop\n", "top -o mem"),
        (
            "tpu_op.cc:1] RESOURCE_EXHAUSTED: Attempting to reserve 9G at the bottom of memory.\n",
            "tpu-info",
        ),
        ("ggml_vulkan: Device memory allocation of size 73400320 failed.\n", "nvtop"),
    ):
        assert tool in first(tmp_path, log)[1]


def test_a_suspicion_is_no_leak_and_numbers_count_more_than_a_tale(tmp_path: Path) -> None:
    full = oom(idle="3.00 GiB", allocated="73.00 GiB")
    assert "a leak" not in str(told(tmp_path, f"I think it may be a memory leak: {full}"))
    body = told(tmp_path, f"There is a memory leak:\n{full}I call it a memory leak: OOM\n")
    assert body["cause"]["name"] == "fragmentation"
    assert "a leak" in [each["name"] for each in body["also"]]


def test_a_batch_of_one_in_a_title_is_not_halved(tmp_path: Path) -> None:
    names = [
        each["name"] for each in told(tmp_path, f"# batch_size调到了1还是爆\n\n{oom()}")["advice"]
    ]
    assert "smaller micro-batch" not in names


def test_a_flag_says_a_setting_better_than_a_sentence_and_advice_sets_none(tmp_path: Path) -> None:
    log = (
        f"# OOM\n\nmax_length改为16也CUDA out of memory\n\ntorchrun a.py --max_length 640\n{oom()}"
    )
    assert told(tmp_path, log)["context"]["settings"]["seq_len"] == 640
    killed = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"
    assert first(tmp_path, f"{killed}\nset workers 0\n\nit helps\n")[0] == "fewer workers"
    log = f"max_seq_length: int = 512\nthe batch size from 64 to 8\n{oom()}"
    assert told(tmp_path, log)["context"]["settings"] == {"seq_len": 512, "micro_batch": 8}


def test_lora_by_a_bare_flag_is_on_and_no_offload_is_off(tmp_path: Path) -> None:
    log = f"deepspeed a.py --use_lora --ds ds_zero2_no_offload.json\n{oom()}"
    assert told(tmp_path, log)["context"]["on"] == ["lora"]


def test_a_request_that_no_device_can_hold_is_too_big(tmp_path: Path) -> None:
    log = (
        "E1 gpu_allocator.cc:9] failed to allocate 1099511627776 bytes: RESOURCE_EXHAUSTED: out of"
        " memory\n Reported by CUDA: Free memory/Total memory: 21474836480/85899345920\n"
    )
    body = told(tmp_path, log)
    assert body["cause"]["name"] == "too big"
    assert body["event"]["free_bytes"] == 20 * 2**30
    assert body["event"]["total_bytes"] == 80 * 2**30
    line = "W bfc_allocator.cc:1] ran out of memory trying to allocate 1.25TiB requested by op\n"
    assert told(tmp_path, line)["cause"]["name"] == "too big"


def test_evaluation_in_the_sentence_of_a_failure_is_the_phase(tmp_path: Path) -> None:
    for text in (
        "一进入eval阶段就报OOM",
        "Why does eval run out of memory?",
        "OOM in eval, I think",
    ):
        assert told(tmp_path, f"# {text}\n\nTraining is fine.\n")["cause"]["name"] == "evaluation"
        assert first(tmp_path, f"# {text}\n\nTraining is fine.\n")[0] == "evaluate less at a time"


def test_whose_memory_it_was_is_read_from_a_card_or_nccl(tmp_path: Path) -> None:
    body = told(tmp_path, "# FSDP of a 7B: OOM on 4*RTX3090\n\nsome text\n")
    assert body["event"]["kind"] == "device"
    assert body["context"]["world_size"] == 4
    assert (
        told(tmp_path, "# NCCL CUDA out of memory\n\ntext\n")["cause"]["name"] == "outside torch"
    )


def test_a_kill_while_shards_are_loaded_is_for_the_model(tmp_path: Path) -> None:
    bar = "Loading checkpoint shards:  {}%|###   | 2/7 [00:05<00:09]\n"
    killed = f"{bar.format(28)}[ERROR] [launch.py:1:sigkill_handler] exits with return code = -9\n"
    assert first(tmp_path, f"deepspeed train.py\n{killed}")[0] == "load less"
    done = f"{bar.format(28)}{bar.format(100)}step 4 loss 2.0\nstep 5 loss 2.0\nKilled\n"
    assert first(tmp_path, f"deepspeed train.py\n{done}")[0] == "fewer workers"


def test_windows_is_seen_anywhere_in_a_log(tmp_path: Path) -> None:
    error = "DefaultCPUAllocator: not enough memory: you tried to allocate 26214401 bytes."
    path = r"RuntimeError: [enforce fail at ..\c10\core\alloc_cpu.cpp:72] data. "
    assert first(tmp_path, f"# {error}\n\n{path}{error}\n")[0] == "larger paging file"
    assert "swap" in first(tmp_path, f"{error}\n")[1]


def test_the_only_backend_that_a_log_names_is_that_of_the_failure(tmp_path: Path) -> None:
    error = "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Trainer.run() (pid=98)\n"
    assert "npu-smi" in first(tmp_path, f"Using an Ascend card\n{error}")[1]
    assert "nvidia-smi" in first(tmp_path, f"Ascend or NVIDIA\n{error}")[1]


def test_a_batch_and_devices_are_read_however_they_are_written(tmp_path: Path) -> None:
    for text in ("batch size=1也OOM", "I decreased the batch-size to 1"):
        log = f"{text}\nyolo train device=0,1,2,3\n--eval-batch-size=8\n{oom()}"
        context = told(tmp_path, log)["context"]
        assert context["settings"] == {"micro_batch": 1}
        assert context["world_size"] == 4


def test_the_bytes_of_a_tensor_follow_from_its_shape(tmp_path: Path) -> None:
    line = "ResourceExhaustedError: OOM when allocating tensor with shape[1024,1024,3]\n"
    assert told(tmp_path, line)["event"]["asked_bytes"] == 12 * 2**20


def test_one_process_that_loads_a_model_gets_no_advice_to_shard(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    model.to(0)\n'
    assert first(tmp_path, trace + oom())[0] == "smaller weights"
    assert first(tmp_path, trace + oom(device="1"))[0] == "load sharded"


def test_a_failed_allocation_that_torch_tries_again_is_a_warning(tmp_path: Path) -> None:
    warning = (
        "[W906 15:02:06.2 CUDACachingAllocator.cpp:3934] memory allocation failed with OOM on"
        " device 0 while trying to allocate 73400320 bytes (free: 16777216, total: 85899345920).\n"
    )
    assert not told(tmp_path, f"step 1 loss 2\n{warning}step 2 loss 2\n")["oom"]
    body = told(tmp_path, f"{warning}{oom()}")
    assert body["oom"]
    assert body["event"]["asked_bytes"] == 2 * 2**30


def test_an_array_of_petabytes_has_a_wrong_shape(tmp_path: Path) -> None:
    for size in ("48.9 PiB", "58.2 TiB"):
        error = f"MemoryError: Unable to allocate {size} for an array with shape (9, 9)\n"
        assert told(tmp_path, error)["cause"]["name"] == "a corrupt size"
        assert [each["name"] for each in told(tmp_path, error)["advice"]] == ["smaller tensor"]


def test_small_words_do_not_hide_a_batch_and_do_not_make_logits(tmp_path: Path) -> None:
    names = [
        each["name"] for each in told(tmp_path, f"The batch size is only 1\n{oom()}")["advice"]
    ]
    assert "smaller micro-batch" not in names
    trace = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in predict_return_logits\n'
        "    x = f(data)\n"
    )
    assert told(tmp_path, trace + oom())["cause"]["name"] == "too big"


def test_offload_by_a_bare_flag_is_on(tmp_path: Path) -> None:
    log = f"python -m openrlhf.train --adam_offload --zero_stage 3\n{oom()}"
    assert "offload" not in [each["name"] for each in told(tmp_path, log)["advice"]]


def test_a_run_that_is_resumed_loads_its_checkpoint_to_the_host(tmp_path: Path) -> None:
    post = "# CUDA out of memory when resuming training\n\nThe first run goes well.\n"
    assert first(tmp_path, post) == ("load to the host", 'torch.load(path, map_location="cpu")')
    assert told(tmp_path, "# CUDA out of memory\n\nI resume.\n")["cause"]["name"] == "not said"


def test_a_leak_of_another_issue_is_no_leak(tmp_path: Path) -> None:
    text = "Issue #2954 described a memory leak. I get an OOM error, too.\n"
    assert "a leak" not in str(told(tmp_path, text))


def test_a_maximum_elsewhere_in_a_line_does_not_hide_a_batch(tmp_path: Path) -> None:
    log = f"with batch size set to 1 and max-length of audio 2.5 seconds\n{oom()}"
    assert told(tmp_path, log)["context"]["settings"] == {"micro_batch": 1}
    for line in ("evaluation with batch size of 4", "max batch size: 64", "eval_batch_size 4"):
        assert told(tmp_path, f"{line}\n{oom()}")["context"]["settings"] == {}


def test_checkpointing_by_a_call_is_on(tmp_path: Path) -> None:
    log = f"model.gradient_checkpointing_enable()\n{oom()}"
    assert told(tmp_path, log)["context"]["on"] == ["checkpointing"]


def test_parameters_that_are_restored_are_a_run_that_is_resumed(tmp_path: Path) -> None:
    post = "# Restoring parameters: CUDA OOM\n\nFrom scratch it runs.\n"
    assert told(tmp_path, post)["cause"]["name"] == "resuming"
    assert not told(tmp_path, "# Remove OOM recovery\n\nAs told.\n")["oom"]


def test_what_a_device_had_free_as_a_run_started_tells_who_holds_it(tmp_path: Path) -> None:
    start = "name: Card\ntotalMemory: 10.00GiB freeMemory: {}\nfraction: {}\n"
    error = "E driver.cc:9] failed to allocate 200.00M from device: CUDA_ERROR_OUT_OF_MEMORY\n"
    for free, share, cause, name in (
        ("300.00MiB", "none", "another process", "stop others"),
        ("9.80GiB", "none", "not said", "look who holds it"),
        ("9.80GiB", "gpu_memory_fraction = 1.0", "a share that is not free", "smaller share"),
        ("9.80GiB", "GPU_MEMORY_FRACTION = 0.05", "a limit of the program", "limit"),
    ):
        log = start.format(free, share) + error
        assert told(tmp_path, log)["cause"]["name"] == cause
        assert first(tmp_path, log)[0] == name


def test_processes_are_named_without_the_table_of_devices(tmp_path: Path) -> None:
    table = "|    0   N/A  N/A     811      C   python3                          20300MiB |\n"
    post = f"# CUDA error: out of memory\n\nBut it is free\n{table}"
    assert "process 811 (python3) holds 19.82 GiB" in told(tmp_path, post)["cause"]["sentence"]


def test_settings_are_read_from_prose(tmp_path: Path) -> None:
    text = f"8xH100, batch size of 4, seq len 2k, zero 3 with offload\n{oom()}"
    body = told(tmp_path, text)["context"]
    assert body["settings"] == {"micro_batch": 4, "seq_len": 2000, "zero_stage": 3}
    assert body["on"] == ["offload"]
    assert told(tmp_path, f"zero 3 times\n{oom()}")["context"]["settings"] == {}
    chinese = f"用的是deepspeed zero stage2示例配置\n{oom()}"
    assert told(tmp_path, chinese)["context"]["settings"] == {"zero_stage": 2}


def test_what_a_run_did_as_it_ran_out_is_told_in_many_words(tmp_path: Path) -> None:
    for text, cause in (
        ("I run out of memory when trying to save a trained model", "saving"),
        ("FSDP SHARDED_STATE_DICT runs out of memory", "saving"),
        ("CUDA OOM while it loads the base model", "loading the model"),
        ("加载70B模型时CUDA OOM", "loading the model"),
    ):
        assert told(tmp_path, f"# Help\n\n{text}\n")["cause"]["name"] == cause, text
    for text, cause in (
        ("the job was killed when it was loading the weights", "loading the model"),
        ("it was killed when resuming", "resuming"),
        ("system memory is filling up until the job is killed", "a leak"),
    ):
        body = told(tmp_path, f"{text}\n")
        assert cause in [each["name"] for each in [body["cause"], *body["also"]]], text


def test_a_batch_of_one_in_prose_is_not_halved(tmp_path: Path) -> None:
    log = f"`local_batch_size` is already 1, so that is no lever\n{oom()}"
    assert "smaller micro-batch" not in [each["name"] for each in told(tmp_path, log)["advice"]]


def test_an_essay_about_an_error_is_no_run_in_any_language(tmp_path: Path) -> None:
    english = (
        "CUDA out of memory is one of those errors that lies to you, as you will see. "
        'Your first instinct, "I need more", is often wrong here. '
    ) + 6 * "The allocator keeps pieces of memory that it never gives back to the driver. "
    russian = 12 * "Когда память кончается, процессы падают без следа. " + "Нехватка памяти (OOM)."
    for text in (english, russian):
        assert not told(tmp_path, f"{text}\n")["oom"]


def test_a_title_tells_of_a_kill_or_of_a_spike(tmp_path: Path) -> None:
    assert told(tmp_path, '# Training "Killed" in a container\n\nhelp\n')["oom"]
    body = told(tmp_path, "# It crashes or quits itself after RAM spike\n\nhelp\n")
    assert body["event"]["kind"] == "host"


def test_what_others_did_to_make_it_work_was_not_set(tmp_path: Path) -> None:
    log = f"{oom()}\nLowering batch size to 1 allows it to run.\n"
    assert told(tmp_path, log)["context"]["settings"] == {}
    log = f"{oom()}\nLowering batch size to 1 didn't help.\n"
    assert told(tmp_path, log)["context"]["settings"] == {"micro_batch": 1}


def test_torch_on_a_tpu_gets_no_advice_for_jax(tmp_path: Path) -> None:
    log = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 29.80G of 7.98G hbm.\n"
    for text, setting in (("import torch_xla\n", "DataLoader"), ("", "optax")):
        micro = next(
            each for each in told(tmp_path, text + log)["advice"] if "batch" in each["name"]
        )
        assert setting in micro["setting"]


def test_frames_and_words_of_phases_in_other_frameworks(tmp_path: Path) -> None:
    frame = '  File "/x/{}.py", line 4, in {}\n    run()\n'
    for file, name, cause in (
        ("trainer", "_eval_loop", "evaluation"),
        ("lazy_init", "_materialize_data", "loading the model"),
    ):
        trace = f"Traceback (most recent call last):\n{frame.format(file, name)}"
        assert told(tmp_path, f"{trace}{oom()}")["cause"]["name"] == cause
    post = "# OOM\n\nAnd it quickly grows until OOM, without any eval batches\n"
    assert told(tmp_path, post)["cause"]["name"] == "a leak"
    log = f"Namespace(grad_checkpoint=True)\n{oom()}"
    assert told(tmp_path, log)["context"]["on"] == ["checkpointing"]


def test_a_phase_that_is_told_counts_beside_frames_that_name_none(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 2, in {}\n    x = run(b)\n'
    for title, name, cause in (
        ("in validation step", "main", "evaluation"),
        ("in validation step", "training_step", "too big"),
        ("while it loads the model", "training_step", "too big"),
    ):
        log = f"# Out of memory {title}\n\nIt is sharp\n{trace.format(name)}{oom()}"
        assert told(tmp_path, log)["cause"]["name"] == cause
    shards = f"NPU显存不够\nLoading checkpoint shards:  22%|###  | 8/37\n{trace.format('main')}"
    assert told(tmp_path, shards)["cause"]["name"] == "loading the model"


def test_lengths_in_thousands_and_what_if_is_no_setting(tmp_path: Path) -> None:
    log = f"OOM when seq-length=700k\n{oom()}\nIf you still fail with batch_size=1, cut it.\n"
    assert told(tmp_path, log)["context"]["settings"] == {"seq_len": 700_000}


def test_a_limit_that_a_person_tells_of_is_raised_first(tmp_path: Path) -> None:
    post = "my training job keeps being evicted since the node was low on resource: memory\n"
    names = [each["name"] for each in told(tmp_path, post)["advice"]]
    assert names == ["more host memory", "fewer workers", "load less"]
    assert first(tmp_path, f"num_workers: 8\n{post}")[0] == "fewer workers"


def test_a_title_counts_less_than_the_error_below_it(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 2, in main\n    x = run(b)\n'
    title = "# torch.OutOfMemoryError on one card\n\n"
    assert told(tmp_path, f"{title}{trace}KeyError: 'lr'\n")["event"]["kind"] == "other"
    body = told(tmp_path, f"{title}{trace}{oom()}")
    assert (body["event"]["kind"], body["event"]["asked_bytes"]) == ("device", 2 * 2**30)


def test_memory_that_ran_out_in_the_past_is_no_failure(tmp_path: Path) -> None:
    for text in (
        "I used to get OOM with batch size 8, now the loss becomes NaN",
        "Previously it ran out of GPU memory, so I lowered the batch",
        "I solved the OOM by offload, and now it hangs",
        "It hangs instead of an OOM",
        "At first I was getting an OOM error. Then I halved the batch. After that it is nan",
        "Without that setting I had an OOM, which does not come back with it",
    ):
        assert not told(tmp_path, f"# The loss is wrong\n\n{text}\n")["oom"], text
    assert told(tmp_path, "It used to work, and now I get OOM on the GPU\n")["oom"]


def test_what_does_not_train_gets_its_own_advice(tmp_path: Path) -> None:
    frame = 'Traceback (most recent call last):\n  File "{}", line 2, in {}\n    x = run(b)\n'
    killed = "Loading\nKilled\n"
    for log, name, setting in (
        (frame.format("/x/gptqmodel/looper.py", "quantize") + oom(), "smaller weights", "cpu"),
        ("python quantize.py --bits 4\n" + killed, "smaller weights", "one layer"),
        ("python convert_hf.py --to m\n" + killed, "smaller weights", "one shard"),
        ("python preprocess_data.py --workers 32\n" + killed, "fewer workers", "--workers 16"),
        (frame.format("/x/pipe.py", "generate") + oom(), "smaller weights", "quantised"),
    ):
        advice = told(tmp_path, log)["advice"]
        assert advice[0]["name"] == name, log
        assert setting in advice[0]["setting"]
        assert not {"checkpointing", "offload", "smaller micro-batch", "load less"} & {
            each["name"] for each in advice
        }
    trained = 'Traceback (most recent call last):\n  File "a.py", line 9, in train\n    x = f(b)\n'
    quantizes = '  File "/x/gptqmodel/nn.py", line 2, in forward\n    x = run(b)\n'
    assert first(tmp_path, trained + quantizes + oom())[0] == "smaller micro-batch"


def test_host_memory_that_grows_over_epochs_is_a_leak(tmp_path: Path) -> None:
    log = "".join(f"epoch {i}: RSS {4 + 2 * i}.5 GB, gpu mem 9.0 GB\n" for i in range(7))
    body = told(tmp_path, f"{log}Killed\n")
    assert body["cause"]["name"] == "a leak"
    assert body["cause"]["arithmetic"][0].endswith("2.00 GiB more each epoch")
    assert "tracemalloc" in body["advice"][0]["setting"]
    assert told(tmp_path, log + oom())["cause"]["name"] == "too big"
    steps = "".join(f"step {i}00 | cpu mem {20 + i}.5 GB\n" for i in range(7))
    assert told(tmp_path, f"{steps}Killed\n")["cause"]["name"] == "a leak"
    assert told(tmp_path, steps + oom())["cause"]["name"] != "a leak"


def test_what_an_evaluation_left_fills_the_next_steps(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 9, in train\n    x = f(b)\n'
    steps, evaluated = "step 8 loss 2\nstep 9 loss 2\n", "eval loss 1.8\n"
    log = f"{steps}{evaluated}step 10 loss 2\n{trace}{oom()}"
    assert told(tmp_path, log)["cause"]["name"] == "left by an evaluation"
    assert first(tmp_path, log)[0] == "free after evaluation"
    late = "".join(f"step {i} loss 2\n" for i in range(10, 14))
    for other in (
        f"{steps}{evaluated}{late}{trace}{oom()}",
        f"{evaluated}step 1 loss 2\nstep 2 loss 2\n{trace}{oom()}",
    ):
        assert told(tmp_path, other)["cause"]["name"] == "a longer sample"
    post = f"The memory is not released after generation, and then\n{trace}{oom()}"
    assert told(tmp_path, post)["cause"]["name"] == "left by an evaluation"


def test_the_last_run_that_failed_decides(tmp_path: Path) -> None:
    error = "TypeError: f() takes no arguments\n"
    runs = f"$ python train.py --batch-size 32\n{oom()}$ python train.py --batch-size 8\n"
    assert told(tmp_path, runs + error)["event"]["kind"] == "other"
    body = told(tmp_path, runs + oom(asked="3.00 GiB"))
    assert body["event"]["asked_bytes"] == 3 * 2**30
    assert body["advice"][0]["setting"].startswith("--batch-size 4")
    for end in ("loss 0.3\n", "KeyboardInterrupt\n"):
        assert told(tmp_path, runs + end)["event"]["asked_bytes"] == 2 * 2**30
    assert told(tmp_path, f"{oom()}{error}")["oom"]


def test_an_interrupted_run_and_a_wrong_flag_are_errors(tmp_path: Path) -> None:
    stopped = '  File "train.py", line 9, in <module>\n    step()\nKeyboardInterrupt\n'
    assert told(tmp_path, stopped)["event"]["kind"] == "ended"
    usage = "usage: train.py [-h] [--lr LR]\ntrain.py: error: "
    for why in ("argument --lr: invalid float value: 'x'", "unrecognized arguments: --rate"):
        assert told(tmp_path, f"{usage}{why}\n")["event"]["kind"] == "other"
        assert "--" in told(tmp_path, f"{usage}{why}\n{stopped}")["event"]["text"]


def test_a_forward_pass_loads_no_model(tmp_path: Path) -> None:
    within = '  File "a/modeling_utils.py", line 7, in apply_chunking_to_forward\n    f(x)\n'
    frames = f'  File "a/bert.py", line 5, in forward\n    g(x)\n{within}'
    body = told(tmp_path, f"Traceback (most recent call last):\n{frames}{oom()}")
    assert body["cause"]["name"] != "loading the model"


def test_what_others_remember_in_a_thread_says_less_than_the_post(tmp_path: Path) -> None:
    post = "# Crash\n\nann · description · 2026-01-02\nIt crashes in epoch 3.\n\n"
    other, again = "bob · comment · 2026-01-03\n", "ann · comment · 2026-01-04\n"
    said = "I ran out of memory on the GPU.\n"
    assert not told(tmp_path, post + other + said)["oom"]
    assert told(tmp_path, post + other + "Log?\n\n" + again + said)["oom"]
    assert told(tmp_path, post + other + oom())["oom"]
    assert told(tmp_path, other + said)["oom"]


def test_a_page_with_an_example_of_an_error_is_no_report(tmp_path: Path) -> None:
    error = "slurmstepd: error: Detected 1 oom-kill event(s) in step 3706.batch cgroup\n"
    words = "If you see such a line then your job took more than you asked for in your script.\n"
    assert not told(tmp_path, f"What does it mean?\n\n{error}{words * 6}")["oom"]
    assert told(
        tmp_path,
        f"What does it mean?\n\n{error}{words}And so I see it in my own job, too.\n{words * 6}",
    )["oom"]
    assert told(tmp_path, "step 1 loss 2\n" * 90 + error + words * 6)["oom"]


def test_a_phase_counts_more_than_a_suspected_leak(tmp_path: Path) -> None:
    post = "# Memory leak with metrics\n\nI reach the validation, and get an OOM in validation.\n"
    assert told(tmp_path, post)["cause"]["name"] == "evaluation"
    assert first(tmp_path, post)[0] == "evaluate less at a time"
    steps = "# OOM\n\nThe step time grows, eventually leading to out of memory on the GPU.\n"
    assert told(tmp_path, steps)["cause"]["name"] == "a leak"


def test_what_a_log_was_preparing_or_a_title_names_is_no_training(tmp_path: Path) -> None:
    bar = "Running tokenizer on dataset:  {}%|#  | 1/2\n"
    killed = "exits with return code = -9\n"
    assert first(tmp_path, f"import deepspeed\n{bar.format(7)}{killed}") == (
        "fewer workers", "num_proc=<half of now>"
    )  # fmt: skip
    done = f"import deepspeed\n{bar.format(7)}{bar.format(100)}train loss 2\n{killed}"
    assert first(tmp_path, done)[0] == "load less"
    for title, setting in (
        ("OOM while merging the 70B model", "one shard"),
        ("CUDA OOM during initial HF→Megatron checkpoint conversion", "one shard"),
        ("CUDA OOM when quantizing", "one layer"),
    ):
        advice = told(tmp_path, f"# {title}\n\nI train it, too.\n")["advice"]
        assert setting in advice[1]["setting"], title
        assert "checkpointing" not in [each["name"] for each in advice]
    for title in ("CUDA OOM without quantization", "CUDA OOM after merging #63"):
        names = [a["name"] for a in told(tmp_path, f"# {title}\n\nI train it\n")["advice"]]
        assert "smaller micro-batch" in names, title


def test_long_samples_that_a_person_tells_of_are_cut_first(tmp_path: Path) -> None:
    post = "# OOM\n\nI get an OOM on the GPU with a larger context size.\n"
    assert told(tmp_path, post)["cause"]["name"] == "a longer sample"
    assert first(tmp_path, post)[0] == "shorter sequences"


def test_a_title_has_the_step_of_the_cut_log_below_it(tmp_path: Path) -> None:
    log = (
        "# RuntimeError: CUDA out of memory\n\n```\nINFO: 1epoch:train:1901-2000batch: loss=2.7\n"
        'Traceback (most recent call last):\n  File "a.py", line 2, in train\n    x.backward()\n'
        '  File "/t/torch/autograd/__init__.py", line 14, in backward\n'
    )
    body = told(tmp_path, log)
    assert body["event"]["step"] == 2000
    assert body["cause"]["name"] == "a longer sample"


def test_a_mapping_that_failed_has_its_sizes(tmp_path: Path) -> None:
    log = (
        "expandable_segments: memory mapping failed with OOM on device 0 while trying to map"
        " 20971520 bytes (free: 15728640, total: 33671348224).\n"
    )
    event = told(tmp_path, log)["event"]
    assert (event["asked_bytes"], event["missing_bytes"]) == (20 * 2**20, 5 * 2**20)


def test_paddle_on_a_cpu_lacks_host_memory(tmp_path: Path) -> None:
    log = (
        "MemoryError: (ResourceExhausted) Fail to alloc memory of 4131529007104 size, error 12.\n"
    )
    body = told(tmp_path, log)
    assert body["event"]["asked_bytes"] == 4131529007104
    assert body["cause"]["name"] == "one large tensor"


def test_a_leak_that_a_person_tells_of_is_the_cause_in_host_memory_too(tmp_path: Path) -> None:
    body = told(tmp_path, "my RAM keeps growing until the process is killed\n")
    assert (body["cause"]["name"], body["also"][0]["name"]) == ("a leak", "host RAM")


def test_more_words_for_growth_devices_offload_and_changes(tmp_path: Path) -> None:
    for text in ("单卡LORA 显存一直暴涨直到OOM", "its RAM grows steadily until it is `OOMKilled`"):
        assert told(tmp_path, f"# {text}\n\nhelp\n")["cause"]["name"] == "a leak"
    assert told(tmp_path, "加载模型后在训练时报了显存不足\n")["cause"]["name"] == "not said"
    launch = "Non-OK-status: GpuLaunchKernel(Fill) status: Internal: out of memory\n"
    assert told(tmp_path, launch)["event"]["kind"] == "device"
    timed = "  what():  CUDA error: the launch timed out and was terminated\n"
    assert told(tmp_path, timed)["event"]["kind"] == "assert"
    log = f"deepspeed a.py --deepspeed ./default_offload_opt_param.json\n{oom()}"
    assert told(tmp_path, log)["context"]["on"] == ["offload"]
    change = (
        "# fix: tell more\n\n| `RuntimeError: mat1 and mat2 shapes cannot be multiplied` | x |\n"
    )
    assert told(tmp_path, change)["event"] is None


def test_a_process_that_ended_well_is_no_failure(tmp_path: Path) -> None:
    for text, found in (("process 8 exited with status 0 at 2026-01-02", False),
                        ("process 8 exited with status 3 at 2026-01-02", True)):  # fmt: skip
        assert (told(tmp_path, f"{text}\n")["event"] is not None) is found


def test_a_tool_is_named_by_the_sentence_before_a_message(tmp_path: Path) -> None:
    post = "I train on an Intel ARC GPU. It says **Allocation is out of device memory**.\n"
    assert "xpu-smi" in told(tmp_path, post)["advice"][0]["setting"]


def test_who_runs_ollama_does_not_train(tmp_path: Path) -> None:
    post = "ollama says `llama runner exited, you may not have enough available memory`\n"
    assert told(tmp_path, post)["context"]["framework"] == "inference"


def test_kills_are_told_in_more_words(tmp_path: Path) -> None:
    for text in (
        "the script get kill",
        "训练中途自动被kill了",
        'I run "python a.py --n 8" killed',
    ):
        assert told(tmp_path, f"# {text}\n\nhelp\n")["event"]["kind"] == "killed", text
    assert told(tmp_path, "it never gets killed\n")["event"] is None


def test_ranks_that_fill_the_first_device_choose_their_own(tmp_path: Path) -> None:
    post = "Each rank loads its weights onto `cuda:0`, so CUDA runs out of memory\n"
    body = told(tmp_path, post)
    assert body["cause"]["name"] == "contexts of other ranks"
    assert told(tmp_path, f"{post.strip()}: {oom()}")["cause"]["name"] == "too big"
    assert "set_device" in body["advice"][0]["setting"]


def test_a_size_that_wrapped_around_is_corrupt(tmp_path: Path) -> None:
    for size in ("17592186044399.00 MB", "18446744073709551000 bytes"):
        log = f"cpu_buffer: insufficient memory (attempted to allocate {size})\n"
        assert told(tmp_path, log)["cause"]["name"] == "a corrupt size"


def test_work_that_is_no_training_is_told_in_more_words(tmp_path: Path) -> None:
    for text, framework in (
        ("合并LoRA权重时进程被killed", "fewer workers"),
        (
            "I am training the tokenizer, and it gets killed\nmain.cc(7) LOG(INFO)\nKilled",
            "load less",
        ),
        ("llama.cpp: unable to allocate CPU buffer", "fewer workers"),
    ):
        names = [each["name"] for each in told(tmp_path, f"{text}\n")["advice"]]
        assert names, text
        assert framework not in names, text


def test_many_steps_that_fitted_point_to_a_sample(tmp_path: Path) -> None:
    for text in ("after 4100 steps", "after the first few thousand iterations", "训练了几百步后"):
        body = told(tmp_path, f"{text} it stops: CUDA out of memory\n")
        assert body["cause"]["name"] == "a longer sample", text
    assert told(tmp_path, "after step 2 CUDA OOM\n")["cause"]["name"] == "not said"


def test_little_use_of_memory_is_no_lack_of_it(tmp_path: Path) -> None:
    for text in ("insufficient utilization of GPU memory", "low, insufficient GPU memory usage"):
        assert told(tmp_path, f"I see {text}\n")["event"] is None, text
    assert told(tmp_path, "I see insufficient GPU memory\n")["oom"]
