"""The share of a rank in a script with micro-batches by rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autotune
from tests.support.programs import python

SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import autotune

dist.init_process_group("gloo")
mine, factor = autotune.share(sys.argv[1])
before = sum(int(size) for size in sys.argv[1].split(",")[: dist.get_rank()])
torch.manual_seed(0)
data = torch.randn(5, 6, 8)  # steps, samples of all ranks, features
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
losses = []
for batch in data:
    loss = factor * model(batch[before : before + mine]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss := loss.detach())
    losses.append(loss.item() / dist.get_world_size())
if dist.get_rank() == 0:
    print(json.dumps(losses), flush=True)
os._exit(0)  # a thread of gloo may drop the last loss, and abort, once the interpreter is gone
"""


def losses(folder: Path, vector: str) -> list[float]:
    (folder / "train.py").write_text(SCRIPT)
    ranks = str(vector.count(",") + 1)
    ran = python(
        "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", ranks, "train.py",
        vector, cwd=folder, timeout=200,
    )  # fmt: skip
    found: list[float] = json.loads(ran.stdout)
    return found


@pytest.mark.slow
def test_a_script_that_weighs_its_loss_trains_as_one_process(tmp_path: Path) -> None:
    whole = losses(tmp_path, "6")
    assert whole[0] != pytest.approx(whole[-1], rel=0.1)
    assert losses(tmp_path, "2,4") == pytest.approx(whole, rel=1e-5)


def test_without_a_process_group_the_launcher_s_variables_tell_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert autotune.share("2+4") == (4, 4 * 2 / 6)
    with pytest.raises(ValueError, match="1,2,3: 3 micro-batches for 2 ranks"):
        autotune.share("1,2,3")
