"""Other trainers, as they are: what is counted of a step is what their own logs count.

scripts/test installs them; what could not be installed is skipped. These also run on real cards.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from autotune.device import open_device
from autotune.errors import UsageError
from autotune.space.outcome import Verdict
from autotune.wire.reports import Ran
from tests.support import defaults
from tests.support.choice import campaign
from tests.support.launches import Lab, seen
from tests.support.programs import ROOT, TESTS

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]

RULE = replace(defaults.FIVE_STEPS, timed_steps=1)
BATCH, LENGTH = 2, 128
TP, PP, DP = {"tp": 2}, {"pp": 2}, {"dp": 2}


def asked(degrees: dict[str, int]) -> dict[str, str]:
    return {name: str(degrees.get(name, 1)) for name in ("tp", "pp")}


def installed(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool is on the path of scripts, which compile nothing: that takes minutes."""
    folder = ROOT / ".parsers" / tool
    if not folder.is_dir():
        pytest.skip(f"no {tool} in {folder}: scripts/test installs it where it can be had")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


def ran(folder: Path, script: str, degrees: dict[str, int], **more: str) -> tuple[Ran, str]:
    """What was seen of a launch on two cards, and what the script printed."""
    try:
        cards = open_device("cuda:0,1")
    except UsageError as error:
        pytest.skip(str(error))
    given = {"device": "cuda", "micro_batch": str(BATCH), "seq_len": str(LENGTH)} | more
    one = Lab(folder, script, cards, **given, world_size="2")
    result = one.probe(rule=RULE, limit_s=500.0)
    assert result.verdict is Verdict.OK, result.reason
    assert one.notes == []
    (log,) = folder.glob("launch*.log")
    found = seen(result)
    assert (found.seen, found.degrees) == (True, degrees)
    assert found.data_parallel == degrees.get("dp", 1)
    return found, log.read_text()


@pytest.mark.parametrize("degrees", [TP, *campaign(PP, DP)])
def test_torchtitan(
    degrees: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its debug model; its own tokenizer and texts are not installed with it."""
    pytest.importorskip("datasets")
    pytest.importorskip("tensorboard")
    installed("torchtitan", monkeypatch)
    assets = tmp_path / "tests" / "assets"
    (assets / "tokenizer").mkdir(parents=True)
    letters = {letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.save(str(assets / "tokenizer" / "tokenizer.json"))
    (assets / "c4_test").mkdir()
    lines = (json.dumps({"text": "word " * n}) for n in range(100, 1000))
    (assets / "c4_test" / "data.json").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    words = "--training.disable_cuda_graphs --dump_folder own"
    found, _ = ran(tmp_path, f"torchtitan:llama3_debugmodel {words}", degrees, **asked(degrees))
    (own,) = (tmp_path / "own" / "structured_logs").glob("*rank_0.*.jsonl")
    logged = [json.loads(line) for line in own.read_text().splitlines()]
    counted = [e["value"] for e in logged if e["event_name"] == "global_valid_tokens"]
    assert counted == pytest.approx([found.tokens] * len(counted), rel=0.01)
    assert counted


MEGATRON = """megatron {script} --num-layers 2 --hidden-size 64 --num-attention-heads 4
    --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion
    --no-masked-softmax-fusion --tokenizer-type NullTokenizer --vocab-size 512 --lr 1e-4
    --mock-data --log-interval 1 --eval-interval 1000000 --eval-iters 0"""


@pytest.mark.parametrize("degrees", [TP, PP, *campaign(DP)])
def test_megatron(
    degrees: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("megatron", monkeypatch)
    script = MEGATRON.format(script=TESTS / "support" / "pretrain_gpt.py")
    words = " ".join(script.split())
    found, log = ran(tmp_path, words, degrees, global_batch="8", **asked(degrees))
    counted = [int(each) for each in re.findall(r"consumed samples: +(\d+)", log)]
    assert counted[-1] == pytest.approx(len(counted) * found.samples, rel=0.01)
    assert found.tokens == pytest.approx(counted[0] * LENGTH, rel=0.01)


DEEPSPEED = """{
    "train_micro_batch_size_per_gpu": {micro_batch}, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": true}},
    "csv_monitor": {"enabled": true, "output_path": ".", "job_name": "own"},
    "steps_per_print": 1
}"""


def test_a_pipeline_of_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monitor has the samples so far of each step."""
    pytest.importorskip("deepspeed")
    (tmp_path / "ds.json").write_text(DEEPSPEED)
    monkeypatch.chdir(tmp_path)
    script = f"{TESTS / 'support' / 'deepspeed_pipeline.py'} {{file:ds.json}}"
    words = f"torchrun --standalone --nproc-per-node 2 {script}"
    found, _ = ran(tmp_path, words, {"pp": 2}, seq_len="")
    rows = (tmp_path / "own" / "Train_Samples_train_loss.csv").read_text().splitlines()[1:]
    counted = [int(row.partition(",")[0]) for row in rows]
    assert counted[-1] == pytest.approx(len(counted) * found.samples, rel=0.01)
    assert found.tokens == found.samples * found.seq_len
