"""What commands refuse: one line that says why, before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shown import change_json, folder

OF_SCRIPT = ["plan", "--gpus", "T4", "--script", "python x.py {micro_batch}"]
WRONG: list[tuple[list[str], str]] = [
    (["--device", "emulated:8xH100", "--launch", "wait", "--nodes", "2"], "needs no node"),
    (["plan"], "gpus"),
    (["plan", "--gpus", "elephants"], "unknown card"),
    (["plan", "--gpus", "8GiB", "--length-mix", "a.csv", "--solve", "seq_len"], "leave one"),
    (["plan", "--gpus", "8GiB", "--length-mix", "a.csv"], "No such file"),
    (["plan", "--gpus", "8GiB", "--tokens-per-batch", "512", "--solve", "micro_batch"],
     "leave one"),
    (["plan", "--gpus", "4x80GiB", "--model", "gpt9"], "unknown model"),
    (["plan", "--gpus", "4x80GiB", "--model", "hf:nowhere"], "no such file or folder"),
    (["plan", "--gpus", "4x80GiB", "--zero", "7"], "no such stage"),
    (["plan", "--gpus", "1,2x80GiB", "--solve", "gpus"], "one number of GPUs"),
    (["plan", "--gpus", "8x80GiB", "--solve", "gpus"], "name the GPU alone, e.g. 80GiB"),
    (["plan", "--gpus", "80GiB", "--solve", "seq_len", "--seq-len", "64"], "leave one of"),
    (["plan", "--gpus", "80GiB", "--solve", "seq_len", "--model", "vit-base"],
     "--solve seq_len: vit-base: a token is a patch, 196 of an image of 224x224"),
    (["plan", "--gpus", "80GiB", "--solve", "micro_batch", "--micro-batch", "4"], "leave one of"),
    (["plan", "--gpus", "4x80GiB", "--solve", "money"], "money"),
    ([*OF_SCRIPT, "--solve", "gpus"], "--solve: not with --script"),
    ([*OF_SCRIPT, "--formulas"], "--formulas: not with --script"),
    ([*OF_SCRIPT, "--model", "llama-3-8b"], "--script has its own model"),
    (["plan", "--gpus", "4x80GiB", "--json", "--csv"], "--csv: not with --json"),
    (["plan", "--gpus", "4x80GiB", "--host-ram", "lots"], "not a size"),
    (["plan", "--gpus", "4x80GiB", "--ceiling", "180%"], "at most 100%"),
    (["plan", "--gpus", "4x80GiB", "--learn-from", "nowhere"], "there is no such folder"),
    (["plan", "--gpus", "4x80GiB", "--rows", "0"], "at least 1"),
    (["plan", "--gpus", "3x80GiB", "--micro-batch", "1", "--global-batch", "64"], "nearest"),
    (["loader"], "loader"),
    (["loader", "mine"], "write module:function, importable from this folder"),
    (["loader", "factory:mine:make"], "write module:function"),
    (["loader", "m:f", "--data-workers", "many"], "not integers"),
    (["loader", "m:f", "--data-workers", "-1"], "values must be at least 0"),
    (["loader", "m:f", "--prefetch", "0"], "values must be at least 1"),
    (["loader", "m:f", "--pin-memory", "maybe"], "unknown; known: off, on"),
    (["loader", "m:f", "--pin-memory", "on"], "needs a GPU, and "),
    (["loader", "m:f", "--micro-batch", "1,2"], "takes one value, e.g. 1"),
    (["loader", "m:f", "--ranks", "0"], "values must be at least 1"),
    (["loader", "m:f", "--budget", "soon"], "not a duration"),
    (["loader", "m:f", "--host-ceiling", "120%"], "at most 100%"),
    (["loader", "m:f", "--needs", "lots"], "write it as 12000"),
    (["loader", "m:f", "--needs", "nan"], "write it as 12000"),
    (["loader", "m:f", "--needs", "5", "--best", "x"], "--best sets it too"),
    (["loader", "m:f", "--best", "nowhere.json"], "No such file"),
    (["report", "nowhere"], "nowhere: not a study folder: it has no manifest.json"),
    (["report", "file"], "file: not a study folder: it has no manifest.json"),
    (["report", "old"], "old: manifest.json is not of version 1: Invalid enum value 0 - at"),
    (["report", "study", "--serve", "--markdown"], "--serve: not with other outputs;"),
    (["report", "study", "--log", "paper"], "--log paper: unknown; known: tensorboard"),
    (["report", "study", "--log", "tensorboard"], "study/optuna.log: No such file"),
    (["report", "study", "--port", "80"], "--port 80: only with --serve"),
    (["report", "study", "--out", "/proc/page.html"], "/proc/page.html: No such file"),
    (["report", "study", "--out", "nowhere/page.html"], "nowhere/page.html: No such file"),
    (["report", "study", "--png", "file"], "--png file: File exists"),
    (["report"], "report: FOLDER is missing; see autotune report --help"),
    (["train.py"], 'for a script write --script "python train.py --batch {micro_batch}"'),
    (["resume", "study"], "write --resume"),
    (["run"], "commands are tune, plan,"),
    (["plan", "--gpus", "H100x8"], "write 8xH100"),
    (["--model", "hf:./nowhere.json"], "nowhere.json: no such file or folder\n"),
    (["compare", "study"], "compare: needs two folders or more"),
    (["compare", "study", "nowhere"], "nowhere: not a study folder"),
    (["compare", "study", "study", "--html", "/proc/a.html"], "--html /proc/a.html: No such"),
    (["export", "study", "--format", "hf,pytorch"],
     "--format pytorch: unknown; known: deepspeed, accelerate, hf"),
    (["export", "study", "--out", "file"], "--out file: "),
    (["check"], "check: no file given"),
    (["--device", "tpu"], "--device tpu: "),
    (["--model", "factory:mine"], "write factory:package.module:function"),
    (["--model", "factory:mine:"], "write factory:package.module:function"),
    (["--device", "replay:none.csv", "--log", "tensorboard,mlflow"],
     "--log mlflow: unknown; known: tensorboard, wandb-offline"),
    (["--model", "t5-small", "--image-size", "224x224"],
     "--image-size 224x224: t5-small: its samples have no images; leave it out"),
    (["--model", "gpt", "--image-size", "224x224"],
     "--image-size 224x224: gpt has none; leave it out"),
    (["--model", "vit-base", "--image-size", "224"],
     "--image-size 224: write WIDTHxHEIGHT in pixels"),
    (["--model", "vit-base", "--image-size", "230x224"],
     "which do not fill 230x224; use 224x224"),
    (["--model", "vit-base", "--image-size", "224x224,384x384"],
     "its images have one size; name one"),
    (["--model", "vit-base", "--seq-len", "64"],
     "--seq-len 64: vit-base: a token is a patch, 196 of an image of 224x224"),
    (["--model", "qwen2.5-vl-3b", "--image-size", "450x448"],
     "squares of 28 pixels, which do not fill 450x448; use 448x448"),
    (["--model", "qwen2.5-vl-3b", "--seq-len", "256"],
     "an image of 448x448 takes 256 tokens, and 2 mark it; use --seq-len 259 or more"),
    (["--model", "qwen2.5-vl-3b", "--image-size", "448x448,448x896", "--seq-len", "700,800"],
     "--seq-len 700,800: with several sizes of images, name one"),
    (["--model", "whisper-small", "--seq-len", "449"],
     "has positions for 448 tokens; use --seq-len 448"),
    (["--model", "wav2vec2-base", "--seq-len", "8"], "use --seq-len 11 or more"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "why"), WRONG, ids=[" ".join(argv)[:60] for argv, _ in WRONG])
def test_what_is_wrong_is_one_line_and_exit_code_2(
    argv: list[str], why: str, run: Callable[..., tuple[str, str]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    folder(tmp_path)
    change_json(folder(tmp_path, "old") / "manifest.json", schema_version=0)
    _, err = run(*argv, code=2)
    if "is not installed" in err:
        pytest.skip(err)
    assert err.count("\n") == 1
    assert why in err
