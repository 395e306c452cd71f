"""What the hook sees of a script on emulated cards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from textwrap import dedent

import pytest

from autotune.device.emulated.emulation import Emulation
from tests.emulated.conftest import Emulate
from tests.support.watched import Told, watched

pytestmark = [pytest.mark.emulated, pytest.mark.slow]


def on(cards: Emulation, folder: Path, program: str) -> tuple[Told, str]:
    """What the last process of a watched program on these cards told, and what it printed."""
    added = {name: at for name, at in cards.environment.items() if os.environ.get(name) != at}
    told, code, out = watched(folder, program, AUTOTUNE_DEVICE_KIND="cuda", **added)
    assert code == 0
    return told[-1], out


def test_a_script_has_a_context_where_its_model_is_and_nowhere_else(
    emulate: Emulate, tmp_path: Path
) -> None:
    told, out = on(emulate("2xA100-80GB"), tmp_path, """
        import json, pynvml, torch
        pynvml.nvmlInit()
        model = torch.nn.Linear(8, 8, device="cuda:1")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 8, device="cuda:1")).sum().backward()
            optimizer.step()
        cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        print(json.dumps([len(pynvml.nvmlDeviceGetComputeRunningProcesses(c)) for c in cards]))
    """)  # fmt: skip
    assert json.loads(out) == [0, 1]
    assert len(told.micro_steps) == 3


@pytest.mark.parametrize("of", ["cuda", "accelerator"])
def test_a_peak_counts_though_the_script_starts_it_anew(
    emulate: Emulate, tmp_path: Path, of: str
) -> None:
    told, out = on(emulate("1x24GiB"), tmp_path, f"""
        import torch
        model = torch.nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            block = torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            optimizer.step()
            del block
            torch.cuda.empty_cache()
            torch.{of}.reset_peak_memory_stats()
        print(torch.cuda.max_memory_reserved() >> 30)
    """)  # fmt: skip
    assert out == "0\n"
    peaks = told.seen[-1].peaks
    assert peaks is not None
    assert min(peaks.reserved_bytes, peaks.allocated_bytes, peaks.active_bytes) > 5 << 30


def test_training_has_not_the_peak_of_what_an_evaluation_left_reserved(
    emulate: Emulate, tmp_path: Path
) -> None:
    told, _ = on(emulate("1x24GiB"), tmp_path, """
        import torch
        model = torch.nn.Linear(1024, 1024, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            if step == 2:
                model.eval()
                with torch.no_grad():
                    model(torch.empty(1 << 20, 1024, device="cuda"))  # 8 GiB, in two blocks
                model.train()
            loss = model(torch.ones(2, 1024, device="cuda")).sum()
            most = 5 << 30 if step > 1 else 1  # fits in neither
            block = torch.empty(most, dtype=torch.uint8, device="cuda")
            loss.backward()
            optimizer.step()
            del block
    """)  # fmt: skip
    peaks = told.seen[-1].peaks
    assert peaks is not None
    assert peaks.reserved_bytes > 13 << 30
    assert 5 << 30 < told.seen[-1].phases["train"].peaks.reserved_bytes < 6 << 30


def test_attention_has_a_mask_only_where_a_real_card_has_one(
    emulate: Emulate, tmp_path: Path
) -> None:
    _, out = on(emulate("1x24GiB"), tmp_path, """
        import json, torch
        from transformers import LlamaConfig, LlamaForCausalLM
        wide = dict(hidden_size=64, intermediate_size=128, num_attention_heads=4)
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, vocab_size=128, **wide)).cuda()
        masks, attend = [], torch.nn.functional.scaled_dot_product_attention
        def seen(*args, attn_mask=None, **more):
            masks.append(attn_mask is not None)
            return attend(*args, attn_mask=attn_mask, **more)
        torch.nn.functional.scaled_dot_product_attention = seen
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in (1, 2):
            tokens = torch.ones(batch, 64, dtype=torch.long, device="cuda")
            model(tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss.backward()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
        print(json.dumps(masks))
    """)  # fmt: skip
    assert json.loads(out) == [False] * 4


@pytest.mark.parametrize("graphs", ["passes", "whole", "apart"])
def test_steps_that_a_cuda_graph_replays_are_steps(
    emulate: Emulate, tmp_path: Path, graphs: str
) -> None:
    told, _ = on(emulate("1xA100-80GB"), tmp_path, f"""
        import torch
        model = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        batches = [torch.zeros(2, 5, dtype=torch.long, device="cuda") for _ in range(2)]
        def passes():
            for batch in batches:
                model(batch).sum().backward()
        def step():
            passes()
            optimizer.step()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        works = dict(passes=[passes], whole=[step], apart=[passes, optimizer.step])
        replayed = []
        for work in works[{graphs!r}]:
            replayed.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(replayed[-1]):
                work()
        for _ in range(3):
            for graph in replayed:
                graph.replay()
            if {graphs!r} == "passes":
                optimizer.step()
        torch.cuda.synchronize()
    """)  # fmt: skip
    assert told.micro_steps == [2] * 4
    assert told.shapes == [[[2, 5]]] * 8
    assert told.seen[-1].backwards == 10


def test_ranks_on_emulated_cards_send_objects(emulate: Emulate, tmp_path: Path) -> None:
    cards = emulate("2xA100-80GB")
    (tmp_path / "rank.py").write_text(dedent("""
        import torch, torch.distributed as dist
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        others, sent, shown = [None, None], [None], ["a" * rank, rank]
        large = [list(range(100_000)) if rank == 0 else None]
        dist.all_gather_object(others, {"a" * 50 * rank: rank})
        dist.broadcast_object_list(shown, src=0)
        dist.broadcast_object_list(large, src=0)
        if rank:
            dist.recv_object_list(sent, src=0, use_batch=True)
            print([others == [{"": 0}, {"a" * 50: 1}], sent, shown, len(large[0])])
        else:
            dist.send_object_list([{"a": 1}], dst=1, use_batch=True)
        dist.destroy_process_group()
    """))  # fmt: skip
    out = on(cards, tmp_path, """
        import subprocess, sys
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                        "--standalone", "rank.py"], check=True)
    """)[-1]  # fmt: skip
    assert out == "[True, [{'a': 1}], ['', 0], 100000]\n"


def test_fused_adam_of_deepspeed_steps_without_nvcc(emulate: Emulate, tmp_path: Path) -> None:
    told, out = on(emulate("1x24GiB"), tmp_path, """
        import torch
        from deepspeed.ops.adam import FusedAdam
        model = torch.nn.Linear(8, 8, device="cuda")
        optimizer = FusedAdam(model.parameters())
        for _ in range(3):
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            optimizer.step()
        print("exp_avg" in optimizer.state[model.weight])
    """)  # fmt: skip
    assert out.endswith("True\n")
    assert len(told.micro_steps) == 2


def test_vllm_gets_a_token_of_each_request_whose_prompt_is_read(
    emulate: Emulate, tmp_path: Path
) -> None:
    worker = tmp_path / "vllm" / "v1" / "worker" / "gpu"
    (worker / "sample").mkdir(parents=True)
    (worker / "sample" / "sampler.py").write_text(dedent("""
        import torch
        from types import SimpleNamespace
        class Sampler:  # its end, as in vLLM 0.33
            def __call__(self, logits, input_batch):
                ids = torch.full((3, 1), -1, device="cuda")
                return SimpleNamespace(num_sampled=input_batch.seq_lens.new_ones(3), ids=ids)
    """))  # fmt: skip
    (worker / "async_utils.py").write_text(dedent("""
        from types import SimpleNamespace
        class AsyncOutput:
            def __init__(self, sampler_output):
                self.sampler_output = sampler_output
                self.num_sampled_tokens_np = sampler_output.num_sampled.cpu().numpy()
                self.sampled_token_ids = sampler_output.ids.cpu().numpy()
                ids = sampler_output.ids.repeat(1, 2).cpu()
                self.logprobs_tensors = SimpleNamespace(logprob_token_ids=ids)
    """))  # fmt: skip
    _, out = on(emulate("1x24GiB"), tmp_path, """
        import json, numpy, torch
        from types import SimpleNamespace
        from vllm.v1.worker.gpu.async_utils import AsyncOutput
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        batch = SimpleNamespace(
            seq_lens=torch.ones(3, dtype=torch.int32, device="cuda"),
            prefill_len_np=numpy.array([100, 100, 100]),
            num_computed_tokens_np=numpy.array([0, 0, 150]),
            num_scheduled_tokens=numpy.array([64, 100, 1]),
        )
        found = AsyncOutput(sampler_output=Sampler()(None, batch))
        print(json.dumps([found.num_sampled_tokens_np.tolist(), found.sampled_token_ids.tolist(),
                          found.logprobs_tensors.logprob_token_ids.tolist()]))
    """)  # fmt: skip
    assert json.loads(out) == [[0, 1, 1], [[100]] * 3, [[100, 100]] * 3]


def test_metrics_of_trl_leave_out_no_number(emulate: Emulate, tmp_path: Path) -> None:
    module = tmp_path / "trl" / "trainer" / "utils.py"
    module.parent.mkdir(parents=True)
    module.write_text(dedent("""
        import torch
        def nanmin(tensor):  # as in TRL 1.16
            if torch.isnan(tensor).all():
                return torch.tensor(float("nan"), dtype=tensor.dtype, device=tensor.device)
            return torch.min(tensor[~torch.isnan(tensor)])
        nanmax = nanmin
    """))  # fmt: skip
    _, out = on(emulate("1x24GiB"), tmp_path, """
        import torch
        from trl.trainer.utils import nanmax, nanmin
        one = torch.ones((), device="cuda")
        print(nanmin(one).item(), nanmax(one).item())
    """)  # fmt: skip
    assert out == "0.0 0.0\n"
