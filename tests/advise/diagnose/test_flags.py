"""What a log says was set: the last of it counts, and advice is in the user's own words."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Any

import pytest

from autotune.advise.diagnose.flags import launch_of, settings_of
from autotune.commands.app import main, parsed
from tests.support.logs import oom, told

FRAGMENTED = oom(idle="3.00 GiB", allocated="73.00 GiB")
ON = "expandable_segments:True"
OTHER = "garbage_collection_threshold:0.8"


def advised(tmp_path: Path, log: str) -> dict[str, str]:
    found = told(tmp_path, log + FRAGMENTED)
    return {each["name"]: each["setting"] for each in found["advice"]}


ALLOCATOR = {
    f"export PYTORCH_CUDA_ALLOC_CONF={ON}": None,
    f"export PYTORCH_CUDA_ALLOC_CONF={ON}\nexport PYTORCH_CUDA_ALLOC_CONF={OTHER}":
        f"export PYTORCH_CUDA_ALLOC_CONF={OTHER},{ON}",
    f"export PYTORCH_CUDA_ALLOC_CONF={OTHER}\nexport PYTORCH_CUDA_ALLOC_CONF={ON}": None,
    f"PYTORCH_CUDA_ALLOC_CONF={ON},expandable_segments:False":
        f"export PYTORCH_CUDA_ALLOC_CONF={ON}",
    f"os.environ['PYTORCH_CUDA_ALLOC_CONF'] = '{ON}'\nPYTORCH_CUDA_ALLOC_CONF= python x.py":
        f"export PYTORCH_CUDA_ALLOC_CONF={ON}",
    f"export PYTORCH_CUDA_ALLOC_CONF={ON}\nunset PYTORCH_CUDA_ALLOC_CONF":
        f"export PYTORCH_CUDA_ALLOC_CONF={ON}",
    f"PYTORCH_ALLOC_CONF={OTHER} PYTORCH_CUDA_ALLOC_CONF={ON}":
        f"export PYTORCH_ALLOC_CONF={OTHER},{ON}",
    f'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "{ON}")': None,
}  # fmt: skip


@pytest.mark.parametrize("log", ALLOCATOR)
def test_the_last_setting_of_the_allocator_counts(log: str, tmp_path: Path) -> None:
    assert advised(tmp_path, f"{log}\n").get("allocator") == ALLOCATOR[log]


REPEATED = {
    "train.py --batch_size 64 --batch_size 32": ("smaller micro-batch", "--batch_size 16"),
    "--gradient_checkpointing True\n--gradient_checkpointing False":
        ("checkpointing", "torch.utils.checkpoint"),
    '"offload_optimizer": {"device": "cpu"}\n"offload_optimizer": {"device": "none"}':
        ("offload", "offload_policy"),
    "--num_processes 4 --zero_stage 3\n--num_processes 4 --zero_stage 0": ("stage", "fully_shard"),
}  # fmt: skip


@pytest.mark.parametrize("log", REPEATED)
def test_the_last_of_a_repeated_flag_counts(log: str, tmp_path: Path) -> None:
    name, setting = REPEATED[log]
    assert setting in advised(tmp_path, f"{log}\n")[name]


def test_what_is_set_after_the_failure_had_no_part_in_it(tmp_path: Path) -> None:
    found = told(tmp_path, f"batch_size=32\n{FRAGMENTED}batch_size=4\n")
    assert found["context"]["settings"]["micro_batch"] == 32


BATCHES = {
    "batch_size_per_gpu=32": "batch_size_per_gpu=16",
    "Namespace(lr=0.1, batch_size=32, eval_batch_size=4)": "batch_size=16",
    "python train.py --batch-size 32": "--batch-size 16",
    "python train.py --bs=32": "--bs=16",
    "torchrun train.py -b 32": "-b 16",
    "yolo train data=coco.yaml batch=32 imgsz=640": "batch=16",
    "+ python main.py train.dataloader.batch_size=32 val.batch_size=8":
        "train.dataloader.batch_size=16",
    "train:\n  batch_size: 32\nval:\n  batch_size: 8": "batch_size: 16",
    '{\n  "train": {\n    "batchSize": 32\n  },\n  "eval": {\n    "batchSize": 2\n  }\n}':
        '"batchSize": 16',
    '"train_micro_batch_size_per_gpu": 32,': '"train_micro_batch_size_per_gpu": 16',
    '[deepspeed] world_size: 4\n"train_batch_size": 256,\n"gradient_accumulation_steps": 2':
        '"train_micro_batch_size_per_gpu": 16',
    "micro_batch_size: 32": "micro_batch_size: 16",
    "│ device_train_microbatch_size │ 32 │": "device_train_microbatch_size=16",
    "  micro_batch_size ................................ 32": "--micro-batch-size 16",
    "data = dict(samples_per_gpu=32, workers_per_gpu=2)": "samples_per_gpu=16",
    "batch_size=128, micro_batch_size=32": "micro_batch_size=16",
    "Using a batch size of 32": "DataLoader(batch_size=16)",
    "  Instantaneous batch size per device = 32": "per_device_train_batch_size=16",
}  # fmt: skip


@pytest.mark.parametrize("log", BATCHES)
def test_advice_names_the_batch_as_the_user_does(log: str, tmp_path: Path) -> None:
    setting = advised(tmp_path, f"{log}\n")["smaller micro-batch"]
    assert setting.split("; ")[0] == BATCHES[log]


@pytest.mark.parametrize(("log", "follows"), [
    ("pretrain.py --micro-batch-size 2 --global-batch-size 512",
     "leave --global-batch-size 512: accumulation follows from it"),
    ("micro_batch_size: 2\nglobal_batch_size: 512",
     "leave global_batch_size: 512: accumulation follows from it"),
    ("--micro-batch-size 2 --global-batch-size 512 --accum 4", "--accum 8"),
    ("--micro-batch-size 2\ntotal batch size: 512",
     "step the optimizer every 2 micro-batches, loss / 2"),
])  # fmt: skip
def test_accumulation_follows_where_the_global_batch_is_asked_for(
    log: str, follows: str, tmp_path: Path
) -> None:
    setting = advised(tmp_path, f"{log}\n")["smaller micro-batch"]
    assert setting.split("; ")[1] == follows


@pytest.mark.parametrize("said", [
    "seq_len: 0", "--seq-len 1", "micro_batch_size: 999999999", "--batch-size 999999999",
    "--micro-batch 0", "hidden_size: 999999999, num_layers: 999999999", "--num_workers 999999999",
])  # fmt: skip
def test_values_that_no_training_has_are_dropped(said: str, tmp_path: Path) -> None:
    assert told(tmp_path, f"{said}\n{oom()}")["context"]["settings"] == {}


def test_a_command_behind_a_message_is_no_part_of_it(tmp_path: Path) -> None:
    for end in (" (may cause system failure).", ""):
        found = told(
            tmp_path,
            "RuntimeError: MPS backend out of memory (MPS allocated: 16.92 GiB, other allocations:"
            " 1.22 GiB, max allowed: 18.13 GiB). Tried to allocate 256.00 MiB on private pool. Use"
            f" PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit{end}\n"
            "python train.py --batch-size 32\n",
        )
        assert "train.py" not in found["event"]["text"]


@pytest.mark.parametrize("line", [
    "***** Running Evaluation *****  Batch size = 8", "per_device_eval_batch_size: 8",
    "epoch 1, batch 32, loss 2.0", "batch=32/1000", "batch_size: auto", "batch_time: 32",
    "max_num_batched_tokens=8192", "batch_size=0.5", "log_batch_size=3",
])  # fmt: skip
def test_what_is_no_batch_size_is_not_read_as_one(line: str) -> None:
    assert not [each for each in settings_of(line) if "batch" in each.name]


DEVICES = {
    "CUDA_VISIBLE_DEVICES=0,1,2,3": 4,
    "deepspeed --include localhost:0,1 train.py": 2,
    "#SBATCH --nodes=2 --gpus-per-node=8": 16,
    "#SBATCH --gres=gpu:a100:4": 4,
    "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8": 8,
    "local_rank=5": 6,
    "model on cuda:2": 3,
    "[INFO] [launch.py:162:main] dist_world_size=8": 8,
    "a node with 8 x H100": 8,
    "mpirun -np 16 python train.py": 16,
    "Trainer(devices=4, num_nodes=2)": 8,
    "train.py --gpus 0,1,2": 3,
}


@pytest.mark.parametrize("line", DEVICES)
def test_the_least_number_of_devices_follows_from_every_sign(line: str, tmp_path: Path) -> None:
    assert told(tmp_path, f"{line}\n{oom()}")["context"]["world_size"] == DEVICES[line]


def test_the_sixth_device_means_six_of_them(tmp_path: Path) -> None:
    found = told(tmp_path, oom(device="5"))
    stage = next(each for each in found["advice"] if each["name"] == "stage")
    assert "at least 6 devices" in stage["what"]
    assert stage["saving"].startswith("at least 83%")


LAUNCHES = {
    "+ torchrun --nproc-per-node 4 train.py --batch_size {} --lr 1e-4 2>&1 | tee log":
        "torchrun --nproc-per-node 4 train.py --batch_size {} --lr 1e-4",
    "$ accelerate launch --num_processes 4 --config_file a.yaml run.py --bsz={} > out":
        "accelerate launch --num_processes 4 --config_file a.yaml run.py --bsz={}",
    "deepspeed --num_gpus 4 train.py \\\n  --train_batch_size {} \\\n  --lr 1":
        "deepspeed --num_gpus 4 train.py   --train_batch_size {}   --lr 1",
    "srun -n 8 --gres=gpu:4 python -u main.py trainer.batch_size={} &":
        "srun -n 8 --gres=gpu:4 python -u main.py trainer.batch_size={}",
    "CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.run --nproc_per_node 2 t.py -b {}":
        "CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.run --nproc_per_node 2 t.py -b {}",
    "root@host:/w# python train.py --batch-size {}": "python train.py --batch-size {}",
}  # fmt: skip


@pytest.mark.parametrize("line", LAUNCHES)
def test_a_launcher_is_kept(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: program)  # all launchers are installed
    found, command = told(tmp_path, f"{line.format(32)}\n{FRAGMENTED}"), LAUNCHES[line]
    assert found["context"]["launch"] == command.format(32)
    again = f"PYTORCH_CUDA_ALLOC_CONF={ON} {command.format(16)}"
    assert found["again"] == again
    words = shlex.split(found["command"])
    assert words[words.index("--script") + 1] == command.format("{micro_batch}")
    assert parsed(words[3:]) is not None


def runner(hosts: str, options: str = "") -> str:
    """DeepSpeed's own line about what it starts."""
    world = base64.urlsafe_b64encode(hosts.encode()).decode()
    return (
        f"[INFO] [runner.py:610:main] cmd = /opt/bin/python -u -m deepspeed.launcher.launch"
        f" --world_info={world} --master_addr=127.0.0.1 --master_port=29500 {options}"
        "--enable_each_rank_log=None tune.py --deepspeed z2.json --batch_size 4"
    )


def test_what_deepspeed_starts_is_told_as_it_is_typed() -> None:
    typed = "deepspeed --include localhost:0,3 tune.py --deepspeed z2.json --batch_size 4"
    assert launch_of(runner('{"localhost": [0, 3]}')) == (True, typed)


@pytest.mark.parametrize("line", [
    runner('{"a": [0], "b": [0]}'), runner("no json"), runner("[0]"),
    runner('{"localhost": [0]}', "--module "),
    '  File "/opt/conda/bin/torchrun", line 8, in <module>', "usage: torchrun [-h] train.py",
    "srun: error: node1: task 0: Out Of Memory", "deepspeed: a library", "see python.py for more",
])  # fmt: skip
def test_what_starts_nothing_is_no_launch(line: str) -> None:
    assert launch_of(line) is None


SHAPES: dict[str, dict[str, Any]] = {
    "model: 14 x 3072, optimizer Muon": {"layers": 14, "hidden": 3072, "optimizer": "muon"},
    "GPT 24L-2048d with fused AdamW optimizer": {"layers": 24, "hidden": 2048,
                                                  "optimizer": "adam"},
    "n_layer=12, n_embd=768, --optim adamw_bnb_8bit": {"layers": 12, "hidden": 768,
                                                        "optimizer": "adam8bit"},
    "depth 14, width 3072\noptim: adamw_torch\noptim: lion_32bit": {
        "layers": 14, "hidden": 3072, "optimizer": "lion"},
    "24 layers, hidden size of 1024": {"layers": 24, "hidden": 1024},
    "number of parameters: 124.44M": {"parameters": 124_440_000},
    "trainable params: 4,194,304 || all params: 6,742,609,920": {"parameters": 6_742_609_920},
    "batch 8 x 1024 tokens, image 64 x 512": {},
}  # fmt: skip


@pytest.mark.parametrize("log", SHAPES)
def test_a_model_and_its_optimizer_are_read(log: str, tmp_path: Path) -> None:
    context = told(tmp_path, f"{log}\n{oom()}")["context"]
    known = ("layers", "hidden", "parameters")
    found = {name: value for name, value in context["settings"].items() if name in known}
    found |= {"optimizer": context["optimizer"]} if context["optimizer"] else {}
    assert found == SHAPES[log]


def test_what_sharding_saves_follows_from_the_shape_and_the_optimizer(tmp_path: Path) -> None:
    found = told(tmp_path, f"world_size: 4\n14 x 3072, Muon optimizer\n{oom()}")
    saving = next(each["saving"] for each in found["advice"] if each["name"] == "stage")
    parameters = 12 * 14 * 3072**2
    assert saving.startswith(
        "75% of the optimizer's 8 bytes a parameter:"
        f" {0.75 * 8 * parameters / 2**30:.2f} GiB with 1.6e9 parameters; training takes 12 in all"
    )


def test_what_stage_2_has_sharded_is_not_saved_twice(tmp_path: Path) -> None:
    found = told(tmp_path, f"world_size: 4\nzero_stage: 2\n{oom()}")
    saving = {each["name"]: each["saving"] for each in found["advice"]}
    assert saving["stage"].startswith("75% of the weights' 2 bytes a parameter; training takes 16")
    assert saving["offload"].startswith("a rank's 1/4 of the optimizer's 12 bytes a parameter;")


TRAINER = (
    "+ torchrun --nproc-per-node 2 train.py --per_device_train_batch_size{gap}8 --max_steps 100"
    " --deepspeed{gap}conf/ds_z2.json\n"
)


@pytest.mark.parametrize("gap", [" ", "="])
def test_settings_of_a_trainer_are_flags_where_its_command_line_has_flags(
    gap: str, tmp_path: Path
) -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/loss_utils.py", line 3, in loss\n'
    found = told(tmp_path, TRAINER.format(gap=gap) + trace + oom())
    settings = {each["name"]: each["setting"] for each in found["advice"]}
    assert settings["fused loss"] == f"--use_liger_kernel{gap}True"
    assert settings["checkpointing"] == f"--gradient_checkpointing{gap}True"
    assert settings["smaller micro-batch"] == (
        f"--per_device_train_batch_size{gap}4; --gradient_accumulation_steps{gap}2"
    )
    assert settings["stage"] == 'in conf/ds_z2.json, "zero_optimization": {"stage": 3}'
    assert settings["offload"].startswith("in conf/ds_z2.json, ")


def test_a_trainer_without_deepspeed_is_told_where_its_settings_go(tmp_path: Path) -> None:
    log = f"--per_device_train_batch_size 8\n{oom()}"
    settings = {each["name"]: each["setting"] for each in told(tmp_path, log)["advice"]}
    assert settings["offload"].startswith('--deepspeed ds.json with "zero_optimization": {')


def test_settings_in_accelerates_file_are_told_in_its_words(tmp_path: Path) -> None:
    launch = "accelerate launch --num_processes 4 --config_file {} x.py --batch-size 8"
    by_file = {
        name: {each["name"]: each["setting"] for each in found["advice"]}["offload"]
        for name in ("zero3.yaml", "fsdp.yaml")
        for found in [told(tmp_path, f"+ {launch.format(name)}\n{oom()}")]
    }
    assert by_file["zero3.yaml"] == (
        "in zero3.yaml, deepspeed_config: {offload_optimizer_device: cpu}"
    )
    assert "fsdp.yaml" not in by_file["fsdp.yaml"]


@pytest.mark.parametrize(
    "flag", ["--output_dir ", "--out-dir=", "--save_dir ", "--logging_dir=", "--default_root_dir "]
)
def test_what_a_measured_command_writes_goes_to_the_scratch_folder(
    flag: str, tmp_path: Path
) -> None:
    log = f"+ torchrun train.py {flag}/my/out --data_dir /my/data --batch-size 8\n{oom()}"
    command = told(tmp_path, log)["command"]
    assert f"train.py {flag}{{out}} --data_dir /my/data --batch-size {{micro_batch}}" in command


@pytest.mark.parametrize(("idle", "numbers"), [("3.00 GiB", [1, 2]), ("1.00 MiB", [2])])
def test_the_advice_in_the_line_to_start_again_is_named(
    idle: str, numbers: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = oom(idle=idle)
    if numbers == [2]:
        error = oom(process="30.00 GiB", allocated="29.00 GiB", idle=idle)
    (tmp_path / "log").write_text(f"+ torchrun train.py --batch-size 8\n{error}")
    assert told(tmp_path, (tmp_path / "log").read_text())["again_with"] == numbers
    main(["diagnose", str(tmp_path / "log")])
    said = " and ".join(map(str, numbers))
    assert f"To start it again with {said}, the first that this line can say:" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("free", "says"),
    [
        ("1.15 GiB", "becomes 1.00 GiB, and 1.15 GiB were free"),
        ("924.00 MiB", "becomes 1.00 GiB, 100 MiB more than was free: the activations have to"),
    ],
)
def test_whether_half_a_request_fits_is_said(free: str, says: str, tmp_path: Path) -> None:
    found = told(tmp_path, oom(asked="2.00 GiB", free=free))
    [saving] = [e["saving"] for e in found["advice"] if e["name"] == "smaller micro-batch"]
    assert says in saving


@pytest.mark.parametrize(
    ("log", "script"),
    [
        (
            "/site-packages/transformers/trainer.py\n",
            "<your command> --per_device_train_batch_size {micro_batch}",
        ),
        (
            "+ accelerate launch train.py --max_steps 9\n/transformers/trainer.py\n",
            "accelerate launch train.py --max_steps 9 --per_device_train_batch_size {micro_batch}",
        ),
        ("", "<your command> <flag of its batch size> {micro_batch}"),
    ],
)
def test_without_a_model_or_a_batch_the_users_script_is_measured(
    log: str, script: str, tmp_path: Path
) -> None:
    words = shlex.split(told(tmp_path, log + oom())["command"])
    assert words[words.index("--script") + 1] == script
    assert "--model" not in words


SAID = {
    "- train batch size = 1": ("micro_batch", 1),
    "cfg.SOLVER.IMS_PER_BATCH = 1": ("micro_batch", 1),
    '<img width="449" src="x">': ("hidden", None),
    "以batch=2进行训练": ("micro_batch", 2),
    "现在batchsize为2，还是不行": ("micro_batch", 2),
    "even with a batchsize of 8 it fails": ("micro_batch", 8),
    "per_device_train_batch_size改为1": ("micro_batch", 1),
    "I use 4 gpus, 8 samples per gpu": ("micro_batch", 8),
    "it has 4 gpus, 8 of them": ("ranks_per_node", None),
    "although the batch size was set to 3": ("micro_batch", 3),
    "| epoch 1, bsz=195, gnorm=1.8": ("micro_batch", None),
    "I set batch_size==1": ("micro_batch", 1),
    'with a batch size as "4"': ("micro_batch", 4),
    "the batch_size which is already set as 1": ("micro_batch", 1),
    "train_batch = 1": ("micro_batch", 1),
    "x_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8": ("micro_batch", 8),
    "x_ref.rollout.log_prob_micro_batch_size_per_gpu=8": ("micro_batch", None),
    "if the max sequence length is set to 2048": ("seq_len", 2048),
    "accelerate launch --config_file zero3_offload.yaml x.py": ("zero_stage", 3),
    "I use Zero (Stage-3 + offload)": ("zero_stage", 3),
    "swift sft --deepspeed zero3_offload": ("zero_stage", 3),
}


def test_the_most_telling_flag_counts_where_all_stand_below_the_failure(tmp_path: Path) -> None:
    post = f"{oom()}--train_batch_size=512\n--micro_batch_size_per_gpu=8\n"
    [advice] = [a for a in told(tmp_path, post)["advice"] if a["name"] == "smaller micro-batch"]
    assert advice["setting"].startswith("--micro_batch_size_per_gpu=4;")


def test_what_is_on_is_read_in_other_words(tmp_path: Path) -> None:
    for line, on in (
        ("x.enable_activation_checkpointing=True", "checkpointing"),
        ("--lora-rank 8", "lora"),
        ("zero3_offload.yaml", "offload"),
        ("ZeRO-3 offload", "offload"),
        ('File "/x/torch/utils/checkpoint.py", line 2, in checkpoint', "checkpointing"),
    ):
        assert on in told(tmp_path, f"{line}\n{oom()}")["context"]["on"], line


@pytest.mark.parametrize("line", SAID)
def test_settings_are_read_in_a_list_and_in_code_and_not_in_html(
    line: str, tmp_path: Path
) -> None:
    name, value = SAID[line]
    body = told(tmp_path, f"{line}\n{oom()}")
    assert body["context"]["settings"].get(name) == value


def test_cards_are_counted_in_chinese(tmp_path: Path) -> None:
    for text, count in (
        ("8卡V100 全量微调", 8),
        ("在4张 L20 上,用zero3跑 卡", 4),
        ("第3张卡和3卡号", None),
    ):
        log = f"{text}\n{oom(device='0')}"
        assert told(tmp_path, log)["context"]["world_size"] == (count or 1), text
