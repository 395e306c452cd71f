"""Messages survive the wire unchanged, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.wire import agents, forks, helpers, hook, ranks, reports
from autotune.wire import messages as wire
from autotune.wire.dial import Dial
from autotune.wire.stopping import Interval, Phase, Rule, interval

PEAKS = reports.Peaks(
    device_bytes=5,
    reserved_bytes=4,
    allocated_bytes=3,
    active_bytes=2,
    host_bytes=6,
    alloc_retries=0,
)
CONDITIONS = reports.Conditions(
    interval_cpu_s=2.0,
    busy_cpu_s=1.5,
    steal_cpu_s=0.25,
    own_cpu_s=1.25,
    sm_clock_mhz=1980,
    power_w=650.5,
    temperature_c=61,
    throttle_reasons=4,
    thermally_throttled=False,
)
ON_CPU = reports.Conditions(
    interval_cpu_s=2.0,
    busy_cpu_s=1.5,
    steal_cpu_s=0.25,
    own_cpu_s=1.25,
)
RULE = Rule(
    warmup_steps=3,
    warmup_tolerance=0.02,
    warmup_limit_s=5.0,
    timed_steps=5,
    half_width=0.01,
    timed_limit_s=15.0,
)
REPORT = reports.Report(
    number=7,
    step_s=[0.25, 0.5],
    warmup_step_s=[1.0],
    warmup_s=1.5,
    timed_s=0.75,
    stopped_early=False,
    loss=4.5,
    peaks=PEAKS,
    state_bytes=3,
    conditions=CONDITIONS,
)
PROBE = ranks.Probe(
    number=7,
    micro_batch=4,
    seq_len=128,
    grad_accum=2,
    micro_steps=1,
    rule=RULE,
    needed_step_s=None,
)
DESCRIBED = helpers.Described(
    base_bytes=2**28,
    models=[
        helpers.Traced(
            parameters=10,
            held_bytes=40,
            update_bytes=50,
            early_bytes=[[60, 70, 80], [70, 80, 90]],
            late_bytes=[[60, 70, 80], [70, 80, 90]],
        )
    ],
)
MODEL = ranks.ModelSpec(name="gpt", depth=2, width=64, vocab_size=256, checkpointing="none")
MESSAGES: list[wire.Message] = [
    ranks.Start(
        world_size=2,
        device_kind="cpu",
        device_uuid="cpu",
        capacity_bytes=2**30,
        store_host="127.0.0.1",
        store_port=40000,
        model=replace(MODEL, checkpointing="full", zero_stage=2),
        engine="deepspeed",
        dtype="fp32",
        engine_config={"zero_optimization": {"stage": 2}, "betas": [0.9, 0.95]},
        seed=1,
    ),
    PROBE,
    replace(PROBE, needed_step_s=0.125),
    replace(PROBE, lengths=[[[9, 8], [7, 7]]], longest=[9, 8], pad_to_multiple=8),
    helpers.Describe(
        models=[replace(MODEL, depth=1), MODEL],
        seq_lens=[64, 128],
        micro_batches=[1, 2, 4],
        dtype="fp32",
        optimizer="adamw",
        device_kind="cuda",
        gradients_stay=False,
    ),
    DESCRIBED,
    helpers.Count(
        models=[replace(MODEL, name="hf", recipe={"config": {"model_type": "t5", "n": [1]}})],
        shallow=[MODEL],
        seq_lens=[64],
    ),
    helpers.Counted(
        parameters=[
            helpers.Parameters(
                width=64,
                vocab_size=256,
                parameters=10,
                trainable=2,
                block_matrices=8,
                largest_block=4,
            )
        ],
        flops_per_sample=[[1.5]],
        uncounted="RuntimeError: it has no fake kernel",
    ),
    helpers.Load(
        folder="/home/user",
        module="data.text",
        function="make",
        workers=4,
        prefetch=2,
        pin_memory=True,
        micro_batch=8,
        seq_len=None,
        timed_s=2.5,
    ),
    helpers.Begin(),
    helpers.Loaded(
        slices=[helpers.Slice(0.5, 4, 32, 0)],
        first_batch_s=0.25,
        shape=[8],
        loader_bytes=2**28,
        worker_bytes=[2**26, 2**27],
        shm_bytes=4096,
        epochs=[3, 3],
        left=False,
        failed="",
    ),
    forks.Fork(
        dial=Dial(host="127.0.0.1", port=40000, key="00ff", rank=0, child=True),
        log="group001-rank0.log",
        environment={"OMP_NUM_THREADS": "1"},
    ),
    agents.Joined(name="n1", version="0.1.0", pid=4711),
    agents.Serve(device="cuda:0,2", lease_s=6.0),
    agents.Facts(
        kind="cuda",
        devices=[
            agents.NodeDevice(
                uuid="GPU-0",
                name="a GPU",
                capacity_bytes=2**36,
                in_use_bytes=2**28,
                bf16=True,
                busy="",
            )
        ],
        fingerprint={"driver": "570", "devices": [{"ecc": None}]},
        software={"torch": "2.11.0"},
        host_memory_bytes=2**38,
        cores=64,
        energy_at="nvml",
        energy_lack="",
        address="10.0.0.2",
    ),
    agents.Refused("--device cuda: NVML sees no device"),
    agents.Prepare(engine="ddp", family="gpt"),
    agents.Prepared(engine="ddp"),
    agents.Run(
        token="00ff",
        task=agents.Task(
            program="rank",
            family="gpt",
            engine="ddp",
            local_rank=1,
            ranks=2,
            share=1,
            shares=4,
            spans=True,
            environment={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
        ),
        dial=Dial(host="10.0.0.1", port=40000, key="00ff", rank=3, child=True, token="00ff"),
        log="group001-rank3.log",
    ),
    agents.Run(
        token="00ff", task=agents.Task(program="ops", ops=["cpu_adam"]), dial=None, log="ops.log"
    ),
    agents.Signal(token="00ff", number=9),
    agents.Collect(token="00ff"),
    agents.Started(token="00ff", pid=4711),
    agents.Ended(token="00ff", code=-9),
    agents.Collected(token="00ff", log="a line\n"),
    agents.Unforkable("they did not come up"),
    agents.Proven(),
    agents.Said("a log passed 16 MiB"),
    agents.Leaving("its agent was ended, with exit code 143"),
    agents.Beat([2**28], 3),
    agents.Beat(),
    forks.Forkable("what was imported started 1 threads"),
    forks.Forked(4242),
    ranks.Stop(),
    ranks.Hello(1, 4242, "localhost"),
    ranks.Store("127.0.0.1", 40000),
    ranks.Entered(Phase.WARMUP),
    ranks.Ready(3_000_000, {"torch": "2.13.0"}),
    ranks.Progress(7, []),
    REPORT,
    replace(REPORT, conditions=ON_CPU, stopped_early=True),
    replace(REPORT, energy=reports.Energy(1.5, "GPU-0")),
    hook.Seen(
        backwards=4,
        ended=2,
        world_size=2,
        rank=1,
        trainable=100,
        frozen=10,
        dtype="bf16",
        steps=[
            hook.Step(step_s=0.25, micro_steps=2, waited_s=0.125, tokens=None, shapes=[[[4, 64]]])
        ],
        cpu_s=1.5,
        peaks=PEAKS,
        used_bytes=7,
        ooms=0,
    ),
    hook.Left(error="ValueError: no", kinds=["builtins.ValueError"], traceback="Traceback"),
    ranks.Fault(
        cause="oom",
        phase=Phase.TIMED,
        error="OutOfMemoryError: ½ GiB",
        traceback="line 1\nline 2",
        requested_bytes=2**29,
        peaks=PEAKS,
    ),
    ranks.Fault(
        cause="crashed",
        phase=Phase.BUILD,
        error="",
        traceback="",
        requested_bytes=None,
        peaks=None,
    ),
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["v", "type", "body", "rank"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def outer(message: wire.Message) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(wire.encode(message))
    return decoded


def changed(message: wire.Message, **body: Any) -> bytes:
    whole = outer(message)
    return json.dumps(whole | {"body": whole["body"] | body}).encode()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: wire.Message) -> None:
    assert wire.decode(wire.encode(message)) == message


def test_every_type_of_message_is_tested_here() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(wire.Message))


def test_a_dial_arrives_as_it_was_sent() -> None:
    dial = Dial(host="127.0.0.1", port=40000, key="00ff", rank=3, child=True)
    assert wire.decode_dial(wire.encode(dial)) == dial


def test_a_dial_is_no_message_of_the_channel() -> None:
    with pytest.raises(wire.WireError, match="unknown message type 'Dial'"):
        wire.decode(
            wire.encode(Dial(host="127.0.0.1", port=40000, key="00ff", rank=3, child=True))
        )


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
def test_a_loss_that_is_no_number_arrives(loss: float) -> None:
    arrived = wire.decode(wire.encode(replace(REPORT, loss=loss)))
    assert isinstance(arrived, reports.Report)
    assert str(arrived.loss) == str(loss)


def test_a_whole_number_stands_for_a_float() -> None:
    arrived = wire.decode(changed(REPORT, loss=4))
    assert isinstance(arrived, reports.Report)
    assert type(arrived.loss) is float


@pytest.mark.parametrize("version", [0, wire.VERSION + 1])
def test_another_version_is_refused_with_both_versions_named(version: object) -> None:
    with pytest.raises(wire.WireError, match=f"version {version!r}, .* speaks {wire.VERSION}"):
        wire.decode(json.dumps(outer(ranks.Stop()) | {"v": version}).encode())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_missing_field_is_refused_by_name(message: wire.Message) -> None:
    for field in fields(message):
        whole = outer(message)
        del whole["body"][field.name]
        with pytest.raises(wire.WireError, match=field.name):
            wire.decode(json.dumps(whole).encode())


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(wire.WireError, match="colour"):
        wire.decode(changed(ranks.Stop(), colour="red"))


def test_an_unknown_or_missing_field_of_a_value_in_a_message_is_refused() -> None:
    peaks = outer(REPORT)["body"]["peaks"]
    conditions = outer(REPORT)["body"]["conditions"]
    del conditions["foreign_bytes"]
    for odd in ({"peaks": peaks | {"more": 1}}, {"conditions": conditions}):
        with pytest.raises(wire.WireError, match="missing or unknown"):
            wire.decode(changed(REPORT, **odd))


def test_a_refusal_is_one_line_of_ascii_whatever_the_names() -> None:
    with pytest.raises(wire.WireError) as refused:
        wire.decode(changed(ranks.Stop(), **{"a\nb\x1b[31m\u00fc": 1}))
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


def test_text_that_is_no_utf_8_arrives() -> None:
    told = hook.Left(error="no file '\udcff'", kinds=[], traceback="")
    assert wire.decode(wire.encode(told)) == told


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (ranks.Hello(1, 2, "h"), "rank", "1"),
        (ranks.Hello(1, 2, "h"), "rank", 1.0),
        (ranks.Hello(1, 2, "h"), "rank", True),
        (ranks.Hello(1, 2, "h"), "rank", None),
        (ranks.Hello(1, 2, "h"), "host", 3),
        (ranks.Entered(Phase.DONE), "phase", "lunch"),
        (REPORT, "stopped_early", 0),
        (REPORT, "loss", "nan"),
        (REPORT, "loss", False),
        (REPORT, "loss", 10**400),
        (REPORT, "step_s", 0.5),
        (REPORT, "step_s", [0.5, None]),
        (REPORT, "peaks", None),
        (REPORT, "peaks", []),
        (MESSAGES[0], "device_kind", "tpu"),
        (ranks.Ready(1, {}), "versions", {"torch": 2.13}),
        (PROBE, "needed_step_s", "soon"),
        (DESCRIBED, "models", [[80]]),
        (DESCRIBED, "models", [asdict(DESCRIBED.models[0]) | {"early_bytes": [[80, 0.5]]}]),
    ],
)
def test_a_field_of_another_type_is_refused(
    message: wire.Message, field: str, value: object
) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(changed(message, **{field: value}))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe\x00", b"{", b"null", b"[]", b'{"v": 1}', b"[" * 100_000, b"9" * 5000,
     b'{"v": 1, "type": ["Stop"], "body": {}}', b'{"v": 1, "type": "Stop", "body": []}',
     b'{"v": 1, "type": "Peaks", "body": {}}', b'{"v": "1", "type": "Stop", "body": {}}',
     b'{"v": true, "type": "Stop", "body": {}}', b'{"v": 1, "type": "Stop", "body": {}, "w": 1}',
     b'{"v": 1, "type": "Stop", "body": {"\\ud800": 1}}'],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_bytes_that_are_no_message_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


@settings(max_examples=300)
@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


@settings(max_examples=300)
@given(st.data())
def test_a_field_with_any_json_is_decoded_faithfully_or_refused(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from([m for m in MESSAGES if fields(m)]))
    field = data.draw(st.sampled_from([field.name for field in fields(message)]))
    encoded = changed(message, **{field: data.draw(json_values)})
    try:
        arrived = wire.decode(encoded)
    except wire.WireError:
        return
    assert outer(arrived)["body"].keys() == json.loads(encoded)["body"].keys()
    assert type(arrived) is type(message)


@settings(max_examples=200)
@given(json_values)
def test_no_json_raises_anything_but_a_wire_error(value: object) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(json.dumps(value).encode())


def covered(n: int, low: int, high: int) -> float:
    """Chance that the median lies between the low-th and the high-th of n values, from 1."""
    cases = sum(math.comb(n, below) for below in range(low, high))
    return float(cases / 2**n)


def bounds(n: int) -> tuple[int, int]:
    """Which of n values, from 1, bound the interval."""
    found = interval([float(value) for value in range(1, n + 1)])
    return int(found.low), int(found.high)


@pytest.mark.parametrize("n", range(6, 41))
def test_the_interval_covers_the_median_in_95_of_100_cases(n: int) -> None:
    assert covered(n, *bounds(n)) >= 0.95


@pytest.mark.parametrize("n", range(6, 41))
def test_no_narrower_interval_covers_the_median_in_95_of_100_cases(n: int) -> None:
    low, high = bounds(n)
    assert covered(n, low + 1, high - 1) < 0.95


@pytest.mark.parametrize("n", range(1, 6))
def test_below_six_values_the_interval_is_the_whole_range(n: int) -> None:
    assert bounds(n) == (1, n)


def test_thousands_of_values_have_an_interval_as_the_normal_law_has_it() -> None:
    n = 5000
    low, high = bounds(n)
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(n) / 2, rel=0.02)


@pytest.mark.parametrize(
    ("values", "median"), [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5)]
)
def test_the_median_is_the_middle_or_a_mean_of_two(values: list[float], median: float) -> None:
    assert interval(values).median == median


def test_the_largest_of_peaks_is_that_of_each_field_alone() -> None:
    first, second = (
        reports.Peaks(
            device_bytes=5,
            reserved_bytes=4,
            allocated_bytes=3,
            active_bytes=2,
            host_bytes=6,
            alloc_retries=0,
        ),
        reports.Peaks(
            device_bytes=1,
            reserved_bytes=8,
            allocated_bytes=3,
            active_bytes=9,
            host_bytes=2,
            alloc_retries=7,
        ),
    )
    assert reports.Peaks.largest([first, second]) == reports.Peaks(
        device_bytes=5,
        reserved_bytes=8,
        allocated_bytes=3,
        active_bytes=9,
        host_bytes=6,
        alloc_retries=7,
    )


def test_the_half_width_is_a_share_of_the_median() -> None:
    assert Interval(2.0, 1.75, 2.25, 9).half_width == 0.125


def test_no_step_times_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no step times"):
        interval([])
