"""What is valid in a space, and the order by memory of its candidates."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autotune.device.device import Device
from autotune.errors import UsageError
from autotune.measure.testbed.candidates import MAX_POINTS
from autotune.measure.testbed.ranks import chosen_slots
from autotune.measure.testbed.resolve import resolve
from autotune.space.candidate import Candidate
from autotune.space.engines import engine_of
from autotune.space.options import Options
from autotune.space.space import LEFT_OUT, Space
from autotune.space.workload import GlobalBatch
from tests.support.records import workload

HOST_BYTES = 16 * 2**30
CORES = 2


def on(device: Device, options: Options | None = None) -> Space:
    return resolve(options or Options(), device, HOST_BYTES, CORES)


def why(space: Space, name: str) -> str:
    (reason,) = [fixed.why for fixed in space.fixed if fixed.name == name]
    return reason


def test_the_cpu_has_small_defaults(cpu: Device) -> None:
    space = on(cpu)
    assert space.axes["depth"] == (2, 4)
    assert space.axes["seq_len"] == (64, 128)
    assert space.axes["micro_batch"] == tuple(range(1, 17))
    assert (space.workload.vocab_size, space.workload.dtype, space.workload.world_size) == (
        4096, "fp32", 1,
    )  # fmt: skip


def test_gpus_have_large_defaults_and_a_rank_each(gpus: Device) -> None:
    space = on(gpus)
    assert space.axes["depth"] == (12, 16, 20, 24)
    assert space.axes["seq_len"] == (1024, 2048)
    assert (space.workload.vocab_size, space.workload.dtype, space.workload.world_size) == (
        32768, "bf16", 2,
    )  # fmt: skip


def test_gpus_without_bf16_train_in_fp16(gpus: Device) -> None:
    gpus.infos = tuple(replace(info, bf16=False) for info in gpus.infos)
    assert on(gpus).workload.dtype == "fp16"


def test_what_is_asked_for_replaces_the_defaults(cpu: Device) -> None:
    space = on(
        cpu, Options.of(depth=(3,), seq_len=(32,), micro_batch=(1, 5), gpt="vocab_size=100")
    )
    assert {(c.depth, c.seq_len, c.micro_batch) for c in space.candidates} == {
        (3, 32, 1), (3, 32, 5),
    }  # fmt: skip
    assert space.workload.vocab_size == 100


def test_candidates_ascend_and_are_all_different(cpu: Device) -> None:
    found = on(cpu).candidates
    assert list(found) == sorted(set(found))
    assert len(found) == len({c.key for c in found}) == 2 * 2 * 16 * 2


def test_a_build_is_shared_by_all_lengths_and_micro_batches(cpu: Device) -> None:
    assert len(on(cpu).builds) == 2 * 2


def test_every_fixed_value_says_where_it_comes_from(cpu: Device) -> None:
    space = on(cpu, Options.of(gpt="vocab_size=100", checkpointing=("full",)))
    assert why(space, "vocab_size") == "--gpt"
    assert why(space, "world_size") == "default on cpu"
    assert why(space, "checkpointing") == "the only value"


def test_the_capacity_of_gpus_is_that_of_the_smallest(gpus: Device) -> None:
    assert on(gpus).limits.capacity_bytes == 40 * 2**30


def test_memory_of_others_is_taken_off(gpus: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [0, 3 * 2**30]
    whole = [info.capacity_bytes for info in gpus.infos]
    monkeypatch.setattr(gpus, "in_use_bytes", lambda: tuple(held))
    space = on(gpus)
    left = min(total - used for total, used in zip(whole, held, strict=True))
    assert space.limits.capacity_bytes == left < min(whole)
    assert why(space, "capacity") == "the smallest device, less 3.00 GiB that others hold"


def test_the_capacity_of_the_cpu_is_divided_by_the_ranks(cpu: Device) -> None:
    assert on(cpu, Options.of(world_size=4)).limits.capacity_bytes == 4 * 2**30


def test_a_pretended_capacity_is_taken_as_it_is(gpus: Device) -> None:
    space = on(gpus, Options.of(capacity_bytes=24 * 2**30, ceiling=0.5))
    assert space.limits.limit_bytes == 12 * 2**30
    assert why(space, "capacity") == "--capacity"


def test_a_capacity_below_a_gib_is_shown_in_mib(gpus: Device) -> None:
    space = on(gpus, Options.of(capacity_bytes=300 * 2**20))
    (capacity,) = (each.value for each in space.fixed if each.name == "capacity")
    assert capacity == "300 MiB a rank"


REFUSED = [
    ("gpus", {"capacity_bytes": 48 * 2**30},
     r"^--capacity 48\.00 GiB: .* 40\.00 GiB .*--capacity 40960MiB or less$"),
    ("gpus", {"world_size": 3}, r"^--world-size 3: .*use --world-size 2$"),
    ("cpu", {"world_size": 5}, r"^--world-size 5: .*use --world-size 4$"),  # two a core
    ("cpu", {"seq_len": tuple(range(1, MAX_POINTS // 50))}, r"^--seq-len: .*--seq-len 1:64:8$"),
    ("gpus", {"parallel": 3, "world_size": 1},
     r"^--parallel 3: 2 devices hold at most 2 of 1 rank each; use --parallel 2$"),
    ("gpus", {"parallel": 2, "world_size": 2},
     r"^--parallel 2: 2 devices hold at most 1 of 2 ranks each; use --parallel 1, or --world"
     "-size 1$"),
    ("cpu", {"parallel": 3}, "2 cores hold at most 2 of 1 rank each"),
    ("cpu", {"parallel": 2, "objective": "tokens_per_joule"},
     "^--parallel 2: the counters of the processors"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "asked", "why"), REFUSED)
def test_more_than_there_is_is_refused_with_what_is_possible(
    request: pytest.FixtureRequest, kind: str, asked: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        on(request.getfixturevalue(kind), Options.of(**asked))


def test_the_cpu_takes_two_ranks_a_core(cpu: Device) -> None:
    assert on(cpu, Options.of(world_size=4)).workload.world_size == 4


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_candidate_divides_the_global_batch(cpu: Device, world_size: int) -> None:
    space = on(cpu, Options.of(global_batch=GlobalBatch(12, "samples"), world_size=world_size))
    assert {c.micro_batch for c in space.candidates} == {
        b for b in range(1, 17) if 12 % (b * world_size) == 0
    }


def test_tokens_of_a_global_batch_are_divided_by_every_candidate(cpu: Device) -> None:
    space = on(cpu, Options.of(global_batch=GlobalBatch(384, "tokens")))
    assert {(c.seq_len, c.micro_batch) for c in space.candidates} == {
        (64, 1), (64, 2), (64, 3), (64, 6), (128, 1), (128, 3),
    }  # fmt: skip


def test_grad_accum_makes_up_the_global_batch() -> None:
    in_tokens = workload(GlobalBatch(4096, "tokens"), world_size=2)
    candidate = Candidate(depth=2, seq_len=128, micro_batch=4)
    assert in_tokens.grad_accum(candidate) == 4
    assert in_tokens.global_batch_samples(candidate) == 32


def test_without_a_global_batch_a_step_is_one_micro_step_per_rank() -> None:
    assert (
        workload(None, world_size=2).grad_accum(Candidate(depth=2, seq_len=64, micro_batch=3)) == 1
    )
    assert (
        workload(None, world_size=2).global_batch_samples(
            Candidate(depth=2, seq_len=64, micro_batch=3)
        )
        == 6
    )


@pytest.mark.parametrize(
    ("asked", "nearest"), [("1000", "1002"), ("1003", "1002"), ("1", "6"), ("1005", "1002")]
)
def test_the_nearest_global_batch_is_proposed(cpu: Device, asked: str, nearest: str) -> None:
    options = Options.of(micro_batch=(6, 12), global_batch=GlobalBatch(int(asked), "samples"))
    with pytest.raises(UsageError, match=rf"^--global-batch {asked}: .*--global-batch {nearest}$"):
        on(cpu, options)


@pytest.mark.parametrize(
    ("batch", "sizes", "said"),
    [
        (GlobalBatch(16, "samples"), (2, 4, 5, 12), "micro_batch 5,12"),
        (GlobalBatch(16, "samples"), (2, 4), None),
        (GlobalBatch(512, "tokens"), (2, 3, 8), "micro_batch 3 at seq_len 64; 3,8 at seq_len 128"),
        (GlobalBatch(512, "tokens"), (2, 3), "micro_batch 3"),
        (None, (3,), None),
        (GlobalBatch(1, "samples"), tuple(range(1, 65)),
         "micro_batch 2,3,4,5,6,7,8,9,... (63 values)"),
    ],
)  # fmt: skip
def test_micro_batches_that_do_not_divide_the_global_batch_are_named(
    batch: GlobalBatch | None, sizes: tuple[int, ...], said: str | None, cpu: Device
) -> None:
    space = on(cpu, Options.of(micro_batch=sizes, global_batch=batch))
    found = [(each.value, each.why) for each in space.fixed if each.name == LEFT_OUT]
    assert [value for value, _ in found] == ([] if said is None else [said])
    assert all(f"--global-batch {batch} is no multiple" in reason for _, reason in found)


def test_stages_and_offloads_that_do_not_go_together_are_named(gpus: Device) -> None:
    asked = Options.of(zero=(0, 2, 3), offload=("none", "optimizer", "all"), world_size=2)
    (said,) = [each for each in on(gpus, asked).fixed if each.name == LEFT_OUT]
    assert said.value == "--offload optimizer at --zero 0, --offload all at --zero 0,2"
    assert "parameters need stage 3" in said.why


def test_the_manifest_is_json(cpu: Device) -> None:
    manifest = on(cpu, Options.of(global_batch=GlobalBatch(384, "tokens"))).manifest()
    assert json.loads(json.dumps(manifest)) == manifest
    assert manifest["workload"]["global_batch"] == "384tok"


def test_mig_instances_train_alone(gpus: Device) -> None:
    gpus.infos = tuple(replace(info, uuid=f"MIG-{info.index}") for info in gpus.infos)
    assert on(gpus).workload.world_size == 1
    with pytest.raises(UsageError, match="use --world-size 1"):
        on(gpus, Options.of(world_size=2))


def test_a_plan_says_why_it_runs_where_it_does(cpu: Device) -> None:
    cpu.why = "auto: NVML is not available"
    assert why(on(cpu), "device") == "auto: NVML is not available"


# Stages and offloads.


def stages(space: Space) -> set[tuple[int, str]]:
    return {(c.zero_stage, c.offload) for c in space.candidates}


DEEP = {"world_size": 1, "depth": (48,)}
"""Stage 0 cannot hold it."""


@pytest.mark.parametrize(
    ("kind", "asked", "searched"),
    [
        ("cpu", {}, {(0, "none")}),
        ("gpus", {}, {(stage, "none") for stage in range(4)}),
        ("gpus", DEEP, {(0, "none"), (2, "none"), (3, "none"), (2, "optimizer"),
                        (3, "optimizer"), (3, "all")}),
        ("gpus", DEEP | {"offload": ("none",)}, {(0, "none")}),
        ("cpu", {"zero": (0, 1, 3), "offload": ("none", "all")},
         {(0, "none"), (1, "none"), (3, "none"), (3, "all")}),
    ],
    ids=["one rank", "several ranks", "too deep for stage 0", "no offload", "what goes together"],
)  # fmt: skip
def test_stages_and_offloads_are_those_that_may_help(
    request: pytest.FixtureRequest, kind: str, asked: Any, searched: set[tuple[int, str]]
) -> None:
    assert stages(on(request.getfixturevalue(kind), Options.of(**asked))) == searched


def test_chosen_stages_need_deepspeed(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"--zero 2: .*scripts/tune, .* --zero 0"):
        on(cpu, Options.of(zero=(2,)))


def test_without_deepspeed_the_default_space_leaves_its_stages_out_and_says_so(
    gpus: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    space = on(gpus)
    assert stages(space) == {(0, "none")}
    assert "deepspeed is not installed" in why(space, "zero_stage")


def test_fsdp_needs_no_deepspeed(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert stages(on(cpu, Options.of(engine="fsdp"))) == {(2, "none"), (3, "none")}


@pytest.mark.parametrize(
    ("engine", "stage", "runs"),
    [("auto", 0, "ddp"), ("auto", 1, "deepspeed"), ("deepspeed", 0, "deepspeed"),
     ("fsdp", 3, "fsdp")],
)  # fmt: skip
def test_auto_is_ddp_for_stage_0_and_else_deepspeed(engine: str, stage: int, runs: str) -> None:
    among = replace(workload(None), engine=engine)
    candidate = Candidate(depth=2, seq_len=64, micro_batch=1, zero_stage=stage)
    assert engine_of(among, candidate).name == runs


def test_groups_at_once_divide_the_memory_of_a_host(cpu: Device) -> None:
    alone, two = on(cpu), on(cpu, Options.of(parallel=2))
    assert two.limits.capacity_bytes == alone.limits.capacity_bytes // 2
    assert two.limits.host_capacity_bytes == alone.limits.host_capacity_bytes // 2
    assert why(two, "capacity") == "the host's memory over its ranks of 2 groups"
    assert why(two, "parallel") == "--parallel"


def test_groups_at_once_have_gpus_of_their_own(gpus: Device) -> None:
    space = on(gpus, Options.of(parallel=2, world_size=1))
    assert space.limits.capacity_bytes == on(gpus).limits.capacity_bytes


@pytest.mark.parametrize(("world_size", "slots"), [(1, 2), (2, 1)])
def test_auto_fills_the_devices(cpu: Device, gpus: Device, world_size: int, slots: int) -> None:
    for device in (cpu, gpus):
        assert chosen_slots(device, CORES, world_size, "auto") == slots
