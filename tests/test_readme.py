"""The README's example of a model of one's own is run as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT


@pytest.mark.slow
def test_the_vision_transformer_is_tuned(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(import torch\n.*?class ViT.*?)```", text, re.DOTALL)
    (tmp_path / "vit.py").write_text(code)
    command = [
        sys.executable, "-m", "autotune", "--device", "cpu", "--model", "factory:vit:make",
        "--depth", "1,2", "--seq-len", "4,9", "--micro-batch", "1,2", "--budget", "45s",
        "--trials", "3", "--finals", "1", "--out", "study",
    ]  # fmt: skip
    ran = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "without a trace" not in ran.stdout
    best = json.loads((tmp_path / "study" / "best.json").read_text())
    assert best["config"]["model"] == "factory:vit:make"
    assert best["measured"]["model_flops_per_s"] > 0
