"""Whole logs: which event explains the others, why it came about, and what is advised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.commands.app import main, parsed
from autotune.commands.exits import ExitCode
from autotune.space.options import FLAGS
from tests.support.logs import oom, told, torchrun

TRACE = "Traceback (most recent call last):\n{frames}"


def frame(file: str, name: str, source: str = "pass") -> str:
    return f'  File "/venv/lib/{file}", line 12, in {name}\n    {source}\n'


STEPS = "".join(f"step {n} loss 2.0\n" for n in range(1, 41))
LEAK = "".join(f"step {n} memory_allocated: {20 + n} GiB\n" for n in range(1, 41))
CASES = {
    "too big": oom(),
    "fragmentation": oom(idle="3.00 GiB", allocated="73.00 GiB"),
    "another process": oom(process="30.00 GiB", allocated="29.00 GiB"),
    "loading the model": TRACE.format(
        frames=frame("transformers/modeling_utils.py", "from_pretrained")) + oom(),
    "the first optimizer step": TRACE.format(
        frames=frame("torch/optim/adam.py", "_init_group", 'state["exp_avg"] = zeros()')) + oom(),
    "logits": "vocab_size: 151936\n" + TRACE.format(
        frames=frame("transformers/loss/loss_utils.py", "ForCausalLMLoss")) + oom(),
    "a longer sample": STEPS + TRACE.format(frames=frame("torch/nn/linear.py", "forward")) + oom(),
    "a leak": LEAK + TRACE.format(frames=frame("torch/nn/linear.py", "forward")) + oom(),
    "host RAM": "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. \n",
    "shared memory": "ERROR: Unexpected bus error encountered in worker. This might be caused by"
    " insufficient shared memory (shm).\n",
    "evaluation": TRACE.format(frames=frame("transformers/trainer_pt_utils.py", "nested_concat"))
    + oom(),
    "saving": TRACE.format(frames=frame("fsdp/_state_dict_utils.py", "_pre_state_dict_hook"))
    + oom(),
    "contexts of other ranks": oom(process="70.00 GiB").replace("Including", "".join(
        f"Process {pid} has 398.00 MiB memory in use. " for pid in range(4, 25)) + "Including"),
    "outside torch": oom(allocated="50.00 GiB"),
    "no room for the KV cache": "ValueError: No available memory for the cache blocks.\n",
    "a corrupt size": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more"
    " than 1EB memory.\n",
    "not said": "RuntimeError: CUDA error: out of memory\n",
    "a share that is not free": "ValueError: Free memory on device (31.44/47.38 GiB) on startup is"
    " less than desired GPU memory utilization (0.95, 45.01 GiB). Decrease it.\n",
    "one large tensor": "RuntimeError: [enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator:"
    " can't allocate memory: you tried to allocate 116813856768 bytes. Error code 12\n",
    "batch sizes": "AssertionError: Check batch related parameters. train_batch_size is not equal"
    " to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 4 * 8 * 1\n",
}  # fmt: skip


PHASES = [
    ("evaluation", frame("transformers/trainer.py", "evaluation_loop")),
    ("evaluation", frame("transformers/trainer.py", "prediction_step")),
    ("evaluation", frame("transformers/trainer.py", "predict")),
    ("evaluation", frame("lightning/loops/prediction_loop.py", "predict_step")),
    ("evaluation", frame("megatron/training/training.py", "evaluate")),
    ("evaluation", frame("train.py", "_run_eval", "out = model(x)")),
    ("evaluation", frame("lightning/strategies/strategy.py", "validation_step")),
    ("evaluation", frame("train.py", "on_validation_epoch_end", "torch.cat(self.outputs)")),
    ("evaluation", frame("train.py", "estimate_loss", "logits, loss = model(X, Y)")),
    ("evaluation", frame("train.py", "validate", "output = model(images)")),
    ("saving", frame("torch/serialization.py", "save", "_save(obj, opened_zipfile)")),
    ("saving", frame("torch/distributed/checkpoint/state_dict.py", "get_model_state_dict")),
    ("saving", frame("deepspeed/runtime/engine.py", "save_checkpoint")),
    ("saving", frame("torch/distributed/fsdp/_optim_utils.py", "_optim_state_dict")),
    ("saving", frame("safetensors/torch.py", "save_file", "serialize_file(_flatten(tensors))")),
    ("a copy of the model", frame("torch/nn/parameter.py", "__deepcopy__", "self.data.clone()")),
    (
        "generation",
        frame("transformers/trainer.py", "training_step")
        + frame("transformers/generation/utils.py", "generate"),
    ),
    ("the first optimizer step", frame("torch/optim/adamw.py", "step", "self._init_group(group)")),
]
TRAINING = [
    frame("transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs)"),
    frame(
        "transformers/trainer.py", "_maybe_log_save_evaluate", "tr_loss_scalar = gather(tr_loss)"
    ),
    frame("torch/autograd/function.py", "apply", "ctx.save_for_backward(x)"),
    frame("torch/autograd/graph.py", "pack_to_cpu", "packed = torch.empty(tensor.size())"),
    frame("train.py", "validate_arguments", "loss.backward()"),
    frame("diffusion/unet.py", "predict_noise", "return self.unet(latents, t)"),
    frame("sb3/policies.py", "evaluate_actions", "values = self.value_net(latent)"),
    frame("torch/utils/checkpoint.py", "checkpoint", "saved = save_on_cpu()"),
]


@pytest.mark.parametrize(("cause", "frames"), PHASES)
def test_a_phase_is_known_by_its_frames(cause: str, frames: str, tmp_path: Path) -> None:
    outer = frame("train.py", "train", "trainer.train()")
    found = told(tmp_path, TRACE.format(frames=outer + frames) + oom())
    assert found["cause"]["name"] == cause
    assert "smaller micro-batch" not in [each["name"] for each in found["advice"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "prediction_loss_only=True; eval_accumulation_steps=1; per_device_eval_batch_size=1"),
        ("$ python run_clm.py --per_device_train_batch_size 8\n", "--prediction_loss_only True;"
         " --eval_accumulation_steps 1; --per_device_eval_batch_size 1"),
    ],
)  # fmt: skip
def test_the_trainer_is_told_how_to_evaluate_less_at_a_time(
    words: str, said: str, tmp_path: Path
) -> None:
    loop = frame("transformers/trainer.py", "evaluation_loop")
    found = told(tmp_path, words + TRACE.format(frames=loop) + oom())
    settings = {each["name"]: each["setting"] for each in found["advice"]}
    assert settings["evaluate less at a time"] == said


EVALUATES = frame("train.py", "evaluate", "logits = net(x)")
LOSS = frame("me/train.py", "<module>", "print(step, cross_entropy(net(x), y))")


def test_evaluation_that_gathers_nothing_needs_a_smaller_batch(tmp_path: Path) -> None:
    found = told(tmp_path, "step 200\n" + TRACE.format(frames=EVALUATES) + oom())
    assert found["cause"]["sentence"] == "memory ran out in evaluation"
    assert "a longer sample" not in {each["name"] for each in found["also"]}
    settings = {each["name"]: each["setting"] for each in found["advice"]}
    assert settings["evaluate less at a time"].startswith("DataLoader(batch_size=<half of now>)")
    assert "--phase-args '<flags with which it does so soon>'" in found["command"]


@pytest.mark.parametrize(("step", "says"), [(1, 0), (200, 1)])
def test_a_line_of_the_user_s_own_may_evaluate_after_steps(
    step: int, says: int, tmp_path: Path
) -> None:
    found = told(tmp_path, f"step {step}\n" + TRACE.format(frames=LOSS) + oom())
    said = [each["what"] for each in found["advice"] if each["name"] == "evaluate less at a time"]
    assert said == says * ["if line 12 of train.py is evaluation: lower its batch"]


def test_a_step_of_a_trainer_does_not_evaluate(tmp_path: Path) -> None:
    inside = frame("transformers/trainer.py", "training_step", "loss = self.compute_loss()")
    frames = frame("me/sft.py", "<module>", "trainer.train()") + inside
    loss = frame("transformers/loss.py", "loss", "return cross_entropy(logits, labels)")
    found = told(tmp_path, "step 200\n" + TRACE.format(frames=frames + loss) + oom())
    assert found["cause"]["name"] == "logits"
    assert "evaluate less at a time" not in {each["name"] for each in found["advice"]}


@pytest.mark.parametrize("frames", TRAINING)
def test_training_is_no_other_phase(frames: str, tmp_path: Path) -> None:
    found = told(tmp_path, TRACE.format(frames=frames) + oom())
    assert found["cause"]["name"] == "too big"


@pytest.mark.parametrize("cause", CASES)
def test_a_cause_is_found(cause: str, tmp_path: Path) -> None:
    found = told(tmp_path, CASES[cause])
    assert found["cause"]["name"] == cause
    assert found["advice"], "something can be done about each"
    assert all(each["setting"] and each["saving"] for each in found["advice"])


CONTEXTS = {
    "as NCCL makes them": "1.19 GiB", "of a size that is not known": "0 bytes",
}  # fmt: skip


def test_of_a_message_that_is_said_twice_the_one_with_its_traceback_counts(tmp_path: Path) -> None:
    frames = frame("transformers/modeling_utils.py", "from_pretrained")
    post = f"It stops with\n{oom()}Here is all of it:\n{TRACE.format(frames=frames)}{oom()}"
    found = told(tmp_path, post)
    assert found["cause"]["name"] == "loading the model"
    assert (found["event"]["line"], found["event"]["times"]) == (7, 2)


def test_the_words_of_a_launcher_prove_nothing(tmp_path: Path) -> None:
    found = told(tmp_path, "ray.exceptions.ActorDiedError: The actor died unexpectedly\n")
    assert (found["oom"], found["certain"]) == (False, False)


@pytest.mark.parametrize("size", CONTEXTS.values(), ids=CONTEXTS.keys())
def test_many_processes_alike_are_ranks_of_the_same_run(size: str, tmp_path: Path) -> None:
    text = "".join(f"Process {pid} has {size} memory in use. " for pid in range(4, 19))
    held = {"process": "60.00 GiB", "allocated": "59.00 GiB"} if size != "0 bytes" else {}
    found = told(tmp_path, oom(**held).replace("Including", f"{text}Including"))
    assert found["cause"]["name"] == "contexts of other ranks"
    assert found["advice"][0]["name"] == "own device"


def test_the_only_process_that_a_cut_message_names_is_itself(tmp_path: Path) -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.47 GiB. GPU 0 has a total"
        " capacity of 14.75 GiB of which 3.78 GiB is free. Process 2116 has 10.95 GiB memory in"
    )
    found = told(tmp_path, f"{text} use.\n")
    assert found["event"]["process_bytes"] == pytest.approx(10.95 * 2**30)
    assert "stop others" not in {each["name"] for each in found["advice"]}


OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 1.52 GiB (GPU 0; 15.75 GiB total"
    " capacity; 12.18 GiB already allocated; 585.56 MiB free; {rest}\n"
)


@pytest.mark.parametrize(
    ("rest", "setting"),
    [
        ("1.91 GiB cached)", None),
        ("14.30 GiB reserved in total by PyTorch)", None),
        (
            "14.30 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try"
            " setting max_split_size_mb to avoid fragmentation.",
            "max_split_size_mb:128",
        ),
    ],
)
def test_torch_of_before_2_1_is_not_told_of_what_it_lacks(
    rest: str, setting: str | None, tmp_path: Path
) -> None:
    found = told(tmp_path, OLD.format(rest=rest))
    assert found["cause"]["name"] == "fragmentation"
    said = {each["name"]: each["setting"] for each in found["advice"]}
    assert said.get("allocator") == (setting and f"export PYTORCH_CUDA_ALLOC_CONF={setting}")
    newer = "pip install 'torch>=2.1'; export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert said.get("newer torch") == (None if setting else newer)


def test_what_stands_after_a_message_is_no_part_of_it(tmp_path: Path) -> None:
    log = "RuntimeError: CUDA error: out of memory\n"
    log += "INFO cuda:5 trying to allocate 3.0 GiB of shm\n"
    event = told(tmp_path, log)["event"]
    assert (event["devices"], event["asked_bytes"]) == ([], None)


@pytest.mark.parametrize("why", ["", " DUE TO TIME LIMIT", " DUE TO PREEMPTION"])
def test_a_kill_by_the_scheduler_is_not_put_down_to_memory(why: str, tmp_path: Path) -> None:
    log = (
        f"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-10-23T14:31:08{why} ***\n"
        "srun: error: n1: task 0: Killed\n"
    )
    found = told(tmp_path, log)
    assert not found["oom"]
    assert why.removeprefix(" DUE TO ").lower() in found["verdict"]


def test_a_step_that_ends_for_memory_is_cancelled_for_that(tmp_path: Path) -> None:
    log = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"
        "srun: error: n1: tasks 1-3: Out Of Memory\n"
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-10-23T14:31:08 ***\n"
    )
    found = told(tmp_path, log)
    assert (found["event"]["wording"], found["event"]["ranks"]) == ("slurm-oom", [1, 2, 3])
    assert [each["kind"] for each in found["later"]] == ["scheduled"]


@pytest.mark.parametrize(
    ("tasks", "ranks"),
    [
        ("0", [0]),
        ("1-3,5", [1, 2, 3, 5]),
        ("1-2-3", [1, 2, 3]),
        ("0-999999999", [0, 999999999]),
        ("-,", []),
    ],
)
def test_tasks_in_a_log_are_ranks(tasks: str, ranks: list[int], tmp_path: Path) -> None:
    log = f"srun: error: n1: tasks {tasks}: Killed\n"
    assert told(tmp_path, log)["event"]["ranks"] == ranks


@pytest.mark.parametrize("shape", ["1024, ,2", "9" * 5000, ","])
def test_a_shape_that_is_none_is_no_error(shape: str, tmp_path: Path) -> None:
    log = (
        f"ResourceExhaustedError: OOM when allocating tensor with shape[{shape}] and type float\n"
    )
    assert told(tmp_path, log)["event"]["kind"] == "device"


@pytest.mark.parametrize(
    ("before", "ranks"), [("[train.py:83]: ", []), ("[gpu187:1]:", [1]), ("1077:[rank4]: ", [4])]
)
def test_a_line_of_a_file_is_no_rank(before: str, ranks: list[int], tmp_path: Path) -> None:
    assert told(tmp_path, before + oom())["event"]["ranks"] == ranks


def test_what_fails_beside_much_free_memory_on_an_xpu_met_a_limit(tmp_path: Path) -> None:
    log = (
        "RuntimeError: XPU out of memory. Tried to allocate 5.00 GiB (XPU 0; 15.56 GiB total"
        " capacity; 1.00 GiB already allocated; 14.00 GiB free; 1.10 GiB reserved in total by"
        " PyTorch)\n"
    )
    assert told(tmp_path, log)["cause"]["name"] == "a limit of one allocation"


def test_a_semaphore_that_cannot_be_made_is_of_shared_memory(tmp_path: Path) -> None:
    frames = frame("multiprocessing/synchronize.py", "__init__", "sl = SemLock(kind, value)")
    log = TRACE.format(frames=frames) + "OSError: [Errno 28] No space left on device\n"
    assert told(tmp_path, log)["event"]["kind"] == "shared"


def test_a_log_that_ends_within_a_traceback_says_so(tmp_path: Path) -> None:
    log = TRACE.format(frames=frame("torch/nn/linear.py", "forward"))
    assert "ends within a traceback" in told(tmp_path, log)["verdict"]
    went_on = f"{log}MyOwn: no word of an error\n" + "step 3 loss 2.0\n" * 5
    assert told(tmp_path, went_on)["verdict"] == "No error found"


def test_a_library_that_got_no_memory_proves_nothing(tmp_path: Path) -> None:
    log = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`\n"
    found = told(tmp_path, log)
    assert not found["certain"]
    assert "probably" in found["verdict"]


@pytest.mark.parametrize("backend", ["XPU", "NPU"])
def test_a_device_that_is_no_gpu_is_called_what_it_is(backend: str, tmp_path: Path) -> None:
    log = OLD.format(rest="14.30 GiB reserved in total by PyTorch)").replace("CUDA", backend)
    found = told(tmp_path, log.replace("GPU 0;", f"{backend} 0;"))
    assert found["verdict"].startswith(f"{backend} 0 ran out of memory")
    assert found["command"] is None


def test_deepspeed_before_training(tmp_path: Path) -> None:
    frames = frame("deepspeed/runtime/engine.py", "_configure_optimizer")
    found = told(tmp_path, TRACE.format(frames=frames) + oom())
    assert "DeepSpeed was set up" in found["cause"]["sentence"]


def test_the_arithmetic_is_the_messages(tmp_path: Path) -> None:
    found = told(tmp_path, oom(process="30.00 GiB", allocated="29.00 GiB"))
    event = found["event"]
    assert event["others_bytes"] == event["total_bytes"] - event["free_bytes"] - 30 * 2**30
    assert "2.00 GiB asked - 1.15 GiB free = 870 MiB missing" in event["arithmetic"]
    [line] = found["cause"]["arithmetic"]
    assert line == "without them 49.15 GiB would be free for 2.00 GiB"


def test_ranks_with_the_same_error_are_one(tmp_path: Path) -> None:
    log = "".join(f"[rank{r}]: " + oom(device=str(r)) for r in range(8))
    found = told(tmp_path, log)
    assert found["event"]["ranks"] == list(range(8))
    assert found["verdict"].startswith("Ranks 0-7 on GPUs 0-7 ran out of memory")
    assert found["later"] == []


def test_interleaved_ranks_keep_their_own_numbers(tmp_path: Path) -> None:
    log = (
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB.\n"
        "[rank0]: GPU 0 has a total capacity of 10.00 GiB of which 0.50 GiB is free.\n"
        "[rank1]: GPU 1 has a total capacity of 20.00 GiB of which 0.50 GiB is free.\n"
    )
    event = told(tmp_path, log)["event"]
    assert (event["asked_bytes"], event["total_bytes"]) == (2**30, 10 * 2**30)


def test_what_follows_an_oom_is_a_consequence(tmp_path: Path) -> None:
    log = [
        "[rank3]: " + oom(),
        "[rank0]:[E1 x.cpp:6] [Rank 0] Watchdog caught collective operation timeout",
        "W1 torch/distributed/elastic/api.py:9] Sending process 7 closing signal SIGTERM",
        "traceback : Signal 9 (SIGKILL) received by PID 208585",
    ]
    found = told(tmp_path, "\n".join(log))
    assert (found["event"]["kind"], found["event"]["ranks"]) == ("device", [3])
    assert [each["kind"] for each in found["later"]] == ["timeout", "ended", "killed"]


def test_a_timeout_that_came_first_is_not_called_an_oom(tmp_path: Path) -> None:
    log = (
        "[rank0]:[E1 x.cpp:6] [Rank 0] Watchdog caught collective operation timeout\n"
        "traceback : Signal 9 (SIGKILL) received by PID 208585\n"
    )
    found = told(tmp_path, log)
    assert not found["oom"]
    assert found["advice"] == []


def test_a_kill_after_an_exception_is_the_launchers(tmp_path: Path) -> None:
    log = "KeyError: 'labels'\ntraceback : Signal 9 (SIGKILL) received by PID 208585\n"
    found = told(tmp_path, log)
    assert not found["oom"]
    assert found["event"]["text"] == "KeyError: 'labels'"


def test_who_says_why_explains_a_kill(tmp_path: Path) -> None:
    log = (
        "failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have\n"
    )
    assert told(tmp_path, log)["event"]["wording"] == "slurm-oom"


def test_an_oom_that_was_survived_is_said_to_be(tmp_path: Path) -> None:
    message = "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB; skipping batch\n"
    found = told(
        tmp_path, STEPS + message + "step 41 loss 2.0\nstep 42 loss 2.0\nstep 43 loss 1\n"
    )
    assert not found["oom"]
    assert found["event"]["recovered"]
    assert found["verdict"].endswith("training went on")


def test_logs_of_ranks_are_put_in_the_order_of_their_clocks(tmp_path: Path) -> None:
    later = "2026-11-22 02:00:05,000 ERROR Watchdog caught collective operation timeout\n"
    first = "2026-11-22 01:30:00,000 ERROR " + oom()
    found = told(tmp_path, later, first)
    assert found["event"]["kind"] == "device"
    assert found["event"]["log"].endswith("rank1.log")


SETTINGS = {
    "transformers": ("[INFO|trainer.py:1519] >>   Instantaneous batch size per device = 8\n"
                     "[INFO|trainer.py:1521] >>   Gradient Accumulation steps = 4\n",
                     "per_device_train_batch_size=4; gradient_accumulation_steps=8"),
    "axolotl": ("axolotl.cli.train\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n",
                "micro_batch_size: 1; gradient_accumulation_steps: 8"),
    "llamafactory": ("src/llamafactory/launcher.py\nper_device_train_batch_size: 4\n",
                     "per_device_train_batch_size: 2; gradient_accumulation_steps: 2"),
    "deepspeed": ("[deepspeed] train_micro_batch_size_per_gpu ............ 16\n"
                  "gradient_accumulation_steps .. 1\n",
                  '"train_micro_batch_size_per_gpu": 8; "gradient_accumulation_steps": 2'),
    "lightning": ("/lightning/pytorch/trainer.py\n",
                  "DataLoader(batch_size=<half of now>);"
                  " Trainer(accumulate_grad_batches=<twice now>)"),
}  # fmt: skip


@pytest.mark.parametrize("framework", SETTINGS)
def test_settings_are_those_of_the_framework(framework: str, tmp_path: Path) -> None:
    log, setting = SETTINGS[framework]
    found = told(tmp_path, log + oom())
    assert found["context"]["framework"] == framework
    by_name = {each["name"]: each["setting"] for each in found["advice"]}
    assert by_name["smaller micro-batch"] == setting


ALREADY = {
    "allocator": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
    "smaller micro-batch": "['main.py', '--per_device_train_batch_size', '1']",
    "checkpointing": "--gradient_checkpointing True",
    "stage": '"zero_optimization": {"stage": 3}',
    "offload": "offload_optimizer_device: cpu",
}


@pytest.mark.parametrize("name", ALREADY)
def test_what_is_on_already_is_not_advised(name: str, tmp_path: Path) -> None:
    message = "world_size: 4\n" + oom(idle="3.00 GiB", allocated="73.00 GiB")
    assert name in {each["name"] for each in told(tmp_path, message)["advice"]}
    found = told(tmp_path, f"{ALREADY[name]}\n{message}")
    assert name not in {each["name"] for each in found["advice"]}


def test_what_a_comment_or_a_message_says_is_not_on(tmp_path: Path) -> None:
    hint = "#--gradient_checkpointing true\ntry setting PYTORCH_CUDA_ALLOC_CONF="
    assert told(tmp_path, hint + "expandable_segments:True\n" + oom())["context"]["on"] == []


def test_an_adapter_has_no_state_to_offload(tmp_path: Path) -> None:
    found = told(tmp_path, "world_size: 4\nfinetuning_type: lora\n" + oom())
    advice = {each["name"]: each for each in found["advice"]}
    assert "offload" not in advice
    assert advice["stage"]["saving"] == "75% of 2 bytes a parameter (bf16)"


@pytest.mark.parametrize(("share", "adapter"), [("100.0", False), ("100", False), ("0.6", True)])
def test_a_model_that_is_trained_whole_is_no_adapter(
    share: str, adapter: bool, tmp_path: Path
) -> None:
    log = f"trainable params: 8,030 || all params: 8,030 || trainable%: {share}\n{oom()}"
    assert ("lora" in told(tmp_path, log)["context"]["on"]) == adapter


def test_ranks_are_those_of_all_nodes(tmp_path: Path) -> None:
    log = "torchrun --nproc_per_node 8 --nnodes 2 train.py --zero_stage 1\n"
    found = told(tmp_path, log + oom())
    assert found["context"]["world_size"] == 16


def test_a_number_in_the_error_is_no_setting(tmp_path: Path) -> None:
    assert "world_size" not in told(tmp_path, CASES["batch sizes"])["context"]["settings"]


@pytest.mark.parametrize("log", [
    frame("torch/optim/adam.py", "_init_group") + oom(),
    "│ C:\\torch\\optim\\adam.py:385 in step │\n"
    + oom(idle="1.00 GiB", free="4.00 MiB", asked="10.00 MiB"),
    "[/lib/torch/optim/adam.py](https://localhost:8080/#) in step(self, closure)\n" + oom(),
], ids=["cut", "rich", "notebook"])  # fmt: skip
def test_a_traceback_without_its_first_line_is_read(log: str, tmp_path: Path) -> None:
    assert told(tmp_path, log)["cause"]["name"] == "the first optimizer step"


def test_a_batch_that_was_skipped_before_a_failure_was_not_survived(tmp_path: Path) -> None:
    log = "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB; skipping batch\n"
    found = told(tmp_path, log + "Exception: Unable to unpickle data from other workers\n")
    assert found["oom"]


def test_the_rank_stands_in_the_table_of_torchrun(tmp_path: Path) -> None:
    log = "  rank      : 7 (local_rank: 3)\n  exitcode  : -9 (pid: 3309)\n"
    assert told(tmp_path, log)["event"]["ranks"] == [7]


@pytest.mark.parametrize(
    ("ranks", "local_rank", "node"), [(2, 1, 0), (4, 2, 0), (4, 0, 0), (2, 1, 3)]
)
def test_what_a_launcher_stopped_is_told_from_the_rank_that_failed(
    ranks: int, local_rank: int, node: int, tmp_path: Path
) -> None:
    rank = ranks * node + local_rank
    found = told(tmp_path, torchrun(ranks, local_rank, node=node))
    assert (found["event"]["kind"], found["event"]["ranks"]) == ("device", [rank])
    later = {each["wording"]: (each["ranks"], each["times"]) for each in found["later"]}
    assert later == {
        "stopped": ([], ranks - 1), "ended": ([rank], 1), "launcher-ended": ([], 1),
    }  # fmt: skip


def test_a_kill_in_the_middle_is_not_put_down_to_loading(tmp_path: Path) -> None:
    found = told(tmp_path, "Epoch: [0][511/1736]\tLoss 0.5\nKilled\n")
    assert found["event"]["step"] == 511
    assert "load less" not in {each["name"] for each in found["advice"]}


def test_a_log_of_another_library_is_not_told_to_use_torch(tmp_path: Path) -> None:
    log = (
        "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7 GiB"
    )
    found = told(tmp_path, log)
    assert found["command"] is None
    assert not any("torch" in each["setting"] for each in found["advice"])


def test_advice_is_in_the_order_of_its_cost(tmp_path: Path) -> None:
    log = "world_size=4\n" + oom(process="30.00 GiB", allocated="26.00 GiB", idle="3.00 GiB")
    assert [each["name"] for each in told(tmp_path, log)["advice"]] == [
        "stop others", "allocator", "smaller micro-batch", "checkpointing", "stage", "offload",
        "shorter sequences",
    ]  # fmt: skip


def test_memory_that_torch_did_not_reserve_is_others(tmp_path: Path) -> None:
    text = (
        "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB (GPU 0; 64.00 GiB total"
        " capacity; 30.00 GiB already allocated; 1.00 GiB free; 31.00 GiB reserved in total by"
        " PyTorch)\n"
    )
    cause = told(tmp_path, text)["cause"]
    assert cause["name"] == "another process"
    assert cause["sentence"].startswith("32.00 GiB are in use that torch did not reserve")


def test_the_traceback_in_a_line_of_json_is_read(tmp_path: Path) -> None:
    trace = TRACE.format(frames=frame("torch/optim/adam.py", "_init_group")) + oom()
    log = json.dumps({"rank": 5, "message": "training failed", "exc_info": trace}) + "\n"
    found = told(tmp_path, log + "slurmstepd: error: *** STEP 1234.0 ON n CANCELLED ***\n")
    assert found["event"]["ranks"] == [5]
    assert found["oom"]
    assert found["cause"]["name"] == "the first optimizer step"


def test_pinned_memory_is_the_hosts(tmp_path: Path) -> None:
    frames = frame("torch/utils/data/_utils/pin_memory.py", "pin_memory")
    log = TRACE.format(frames=frames) + "RuntimeError: CUDA error: out of memory\n"
    event = told(tmp_path, log)["event"]
    assert (event["kind"], event["text"]) == ("host", "RuntimeError: CUDA error: out of memory")


def test_the_process_to_stop_is_named(tmp_path: Path) -> None:
    text = oom(process="30.00 GiB").replace("Including", "Process 4711 has 48.00 GiB memory in"
                                            " use. Including")  # fmt: skip
    first = told(tmp_path, text)["advice"][0]
    assert first["setting"] == "ps -o pid,user,etime,args -p 4711 && kill 4711"
    held = "".join(f"Process {n} has {n}.00 GiB memory in use. " for n in (9, 8, 7, 6, 5))
    text = oom(process="40.00 GiB", allocated="39.00 GiB").replace("Including", f"{held}Including")
    assert told(tmp_path, text)["cause"]["sentence"].endswith("process 7 (7.00 GiB) and 2 more")


def test_the_command_is_one_of_this_program(tmp_path: Path) -> None:
    log = (
        "--model_name_or_path org/name\nworld_size: 4\nmax_seq_length: 2048\n"
        "per_device_train_batch_size: 8\ngradient_accumulation_steps: 4\n"
    )
    command = told(tmp_path, log + oom())["command"]
    assert command == (
        "python -m autotune --budget 30m --model hf:org/name --micro-batch 1:8 --seq-len 2048"
        " --global-batch 128 --checkpointing none,full --zero 0,1,2,3 --offload none,optimizer"
        " --capacity 79.15GiB"
    )
    assert {word for word in command.split() if word.startswith("--")} <= {
        flag.name for flag in FLAGS.values()
    }
    assert parsed(command.split()[3:]) is not None


def test_control_characters_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_bytes(
        b"[bold]x[/bold] \x07\x9b31m RuntimeError: CUDA error: out of memory \x00\xc2\x9b2J\n"
    )
    assert main(["diagnose", str(tmp_path / "log")]) == ExitCode.FOUND
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)


def test_json_has_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("nothing\n")
    assert main(["diagnose", str(tmp_path / "log"), "--json"]) == ExitCode.FOUND
    body = json.loads(capsys.readouterr().out)
    assert (body["version"], body["event"], body["oom"]) == (1, None, False)


def test_the_fields_of_json_that_readers_rely_on_stay(tmp_path: Path) -> None:
    found = told(tmp_path, "world_size: 4\n" + oom())
    assert {
        "version", "logs", "bytes_read", "interrupted", "verdict", "oom", "certain", "event",
        "cause", "also", "advice", "command", "later", "context",
    } <= found.keys()  # fmt: skip
    assert {
        "kind", "oom", "wording", "log", "line", "text", "time", "ranks", "devices", "pid", "step",
        "times", "recovered", "asked_bytes", "total_bytes", "free_bytes", "allocated_bytes",
        "reserved_unallocated_bytes", "process_bytes", "others_bytes", "missing_bytes",
    } <= found["event"].keys()  # fmt: skip
    assert found["advice"][0].keys() == {"name", "what", "setting", "saving", "costs"}
    assert {"framework", "settings", "on", "model", "world_size", "last_step"} <= (
        found["context"].keys()
    )


SHORT = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"


@pytest.mark.parametrize(("log", "cause"), [
    (SHORT + " (GPU 0; 11.17 GiB total\n", "not said"),
    (SHORT + ".\n", "not said"),
    (SHORT + ". GPU 0 has a total capacity of 11.17 GiB of which 5.00 MiB is free.\n", "not said"),
    ("torch.OutOfMemoryError: CUDA out of memory.\n", "not said"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling\n", "not said"),
    (oom(asked="4.50 GiB", free="5.15 GiB"), "free by now"),
    (oom(free="5.15 GiB", idle="3.00 GiB"), "free by now"),
])  # fmt: skip
def test_an_open_cause_is_not_certain(log: str, cause: str, tmp_path: Path) -> None:
    found = told(tmp_path, log)
    assert found["oom"]
    assert (found["cause"]["name"], found["certain"]) == (cause, False)


def test_a_limit_on_main_memory_is_no_size_of_a_device(tmp_path: Path) -> None:
    found = told(tmp_path, "RuntimeError: MPS backend out of memory (MPS allocated: 5.50 GB, other"
                 " allocations: 14.76 GB, max allowed: 20.40 GB). Tried to allocate 147.24 MB on"
                 " private pool.\n")  # fmt: skip
    assert found["event"]["total_bytes"] is None
    assert found["event"]["allowed_bytes"] == round(20.40 * 2**30)


def test_the_allocator_that_says_sizes_explains_a_library_that_got_none(tmp_path: Path) -> None:
    blas = "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate`\n"
    assert told(tmp_path, blas + oom())["event"]["wording"] == "torch"


def test_messages_of_ranks_in_one_line_name_all_their_devices(tmp_path: Path) -> None:
    glued = "".join(f"{SHORT} (GPU {gpu}; 11.17 GiB total capacity;" for gpu in (3, 1))
    assert told(tmp_path, glued)["event"]["devices"] == [1, 3]


def test_the_source_of_the_last_frame_counts_where_the_error_itself_is_cut(tmp_path: Path) -> None:
    cut = frame("vllm/core.py", "check", 'raise ValueError("No available memory for the cache "')
    cut = cut.replace("cache ", "cache blocks. ")
    found = told(tmp_path, TRACE.format(frames=cut))
    assert (found["oom"], found["certain"]) == (True, False)
    whole = told(tmp_path, TRACE.format(frames=cut) + "KeyError: 'labels'\n")
    assert not whole["oom"]


@pytest.mark.parametrize(
    ("line", "oom"),
    [
        ("MPS backend out of memory in Mac", True),
        ("After training several epochs, CUDA out of memory", True),
        ("CUDA out of memory errors are common", False),
        ("CUDA kernel errors might be asynchronously reported at some other API call", False),
    ],
)
def test_a_title_counts_where_nothing_else_is_said(line: str, oom: bool, tmp_path: Path) -> None:
    assert told(tmp_path, f"# {line}\n\nany help?\n")["oom"] == oom
    assert not told(tmp_path, f"# {line}\n\nKeyError: 'labels'\n")["oom"]


def test_sizes_are_taken_from_the_line_of_a_chain_that_says_them(tmp_path: Path) -> None:
    log = (
        "[Wed Sep 29 07:12:20 2021] python3 invoked oom-killer: gfp_mask=0xcc0, order=0\n"
        "[Wed Sep 29 07:12:20 2021] Out of memory: Killed process 7 (python3) total-vm:9kB,"
        " anon-rss:2097152kB, file-rss:0kB\n"
    )
    assert told(tmp_path, log)["event"]["asked_bytes"] == 2**31


def test_an_array_that_says_its_size_counts_more_than_the_name_of_the_error(
    tmp_path: Path,
) -> None:
    array = "MemoryError: Unable to allocate 7.91 GiB for an array with shape (9, 9)"
    found = told(tmp_path, f"# numpy MemoryError\n\n{array} and data type float64\n")
    assert found["event"]["asked_bytes"] == pytest.approx(7.91 * 2**30, abs=1)


def test_a_date_behind_gpu_is_no_device(tmp_path: Path) -> None:
    found = told(tmp_path, "CUDA out of memory on my GPU 2025-05-17\n")
    assert found["event"]["devices"] == []


def test_what_a_title_quotes_was_said(tmp_path: Path) -> None:
    log = '"Error: runner has terminated: CUDA error: out of memory" with idle GPUs\n\nany help?\n'
    assert told(tmp_path, log)["oom"]


@pytest.mark.parametrize("word", ["已杀死", "**Killed**", "Getötet"])
def test_a_shell_s_word_for_a_kill_is_read(word: str, tmp_path: Path) -> None:
    assert told(tmp_path, f"step 1 loss 2.0\n{word}\n")["event"]["kind"] == "killed"


def test_the_lines_of_one_message_by_several_devices_stay_apart(tmp_path: Path) -> None:
    line = "[2025-09-24 16:15:28] dfw-h100-001-132-026:{0}:30 [{0}] include/alloc.h:228 NCCL WARN"
    log = "".join(f"{line.format(gpu)} Cuda failure 2 'out of memory'\n\n" for gpu in (4, 3))
    assert told(tmp_path, log)["event"]["devices"] == [3, 4]


def test_a_batch_that_was_skipped_before_a_cut_traceback_was_not_survived(tmp_path: Path) -> None:
    log = "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB; attempting to recover\n"
    assert told(tmp_path, log + TRACE.format(frames=frame("fairseq/trainer.py", "step")))["oom"]
