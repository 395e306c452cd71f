"""What the hook says of evaluation and saving, between the steps of a script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

from tests.support.watched import Told, watched

MIB = 2**20
KEPT = 15 * MIB
"""Numbers of a checkpoint, of 60 MiB."""
ROWS = 1000
"""Of the large batch, whose activations take some 200 MiB."""
SCRIPT = """
import torch
from torch import nn

layers = nn.Dropout(0.1), nn.Linear(128, 128), nn.Linear(128, 64)
model = nn.Sequential(nn.Embedding(64, 128), *layers)
teacher = nn.Sequential(nn.Embedding(64, 128), nn.Linear(128, 64)).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
def ids(rows): return torch.randint(64, (rows, 64))
def loss(rows=4):
    batch = ids(rows)
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
def evaluate():
    with torch.no_grad(): loss(ROWS)
def copied():
    return [each.repeat(800, 1) for each in model.state_dict().values() if each.dim() > 1]
for number in range(1, 11):
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    BETWEEN
""".replace("ROWS", str(ROWS))


def told_of(folder: Path, between: str, before: str = "", script: str = SCRIPT) -> Told:
    program = script.replace("BETWEEN", between).replace("for number", f"{before}\nfor number")
    # Else the C library may keep what an evaluation has freed, which training's peak then has.
    (told, *_), code, out = watched(folder, program, MALLOC_MMAP_THRESHOLD_="65536")
    assert code == 0, out
    return told


def counts(told: Told) -> dict[str, int]:
    """How often each phase was seen."""
    return {name: found.count for name, found in told.seen[-1].phases.items() if found.count}


def each_in_its_step(*statements: str) -> str:
    """One every other step, from the second on."""
    steps = enumerate(statements, 1)
    return "\n    ".join(f"if number == {2 * n}:\n        {each}" for n, each in steps)


def test_a_phase_between_steps_has_its_own_peak(tmp_path: Path) -> None:
    between = each_in_its_step(
        "model.eval(), evaluate(), model.train(), torch.save(copied(), 'kept.pt')",
        "torch.save(copied(), 'kept.pt')",
        f"model.eval(), loss({ROWS}), model.train()",
        f"with torch.no_grad(): teacher(ids(4)), loss({ROWS})",
        "evaluate(), evaluate()",  # once, and no step after it
    )
    told = told_of(tmp_path, between)
    assert counts(told) == {"evaluate": 4, "save": 2}
    found = told.seen[-1].phases
    of = {name: each.peaks.device_bytes for name, each in found.items()}
    assert of["train"] < min(of["evaluate"], of["save"]) - 30 * MIB
    assert min(found["evaluate"].seconds, found["save"].seconds) > 0
    peaks = told.seen[-1].peaks
    assert peaks is not None
    assert peaks.device_bytes == max(of.values())


def test_what_is_no_phase_is_none(tmp_path: Path) -> None:
    between = each_in_its_step(
        "teacher.eval()(ids(8)), model.eval(), model.train()",
        "with torch.no_grad(): teacher(ids(8))",
        "torch.save({'losses': torch.zeros(9)}, 'kept.pt')",
        "average = model.state_dict()",
        "with torch.no_grad(): torch._foreach_mul(list(model.parameters()), 0.9)",
    )
    told = told_of(tmp_path, between)
    assert (counts(told), told.seen[-1].phases) == ({}, {})


def test_what_happens_in_every_step_is_part_of_it(tmp_path: Path) -> None:
    """As a reference model that shares the trained one's weights does, or generation."""
    told = told_of(tmp_path, "evaluate()")
    assert counts(told) == {}
    steps = [step for seen in told.seen for step in seen.steps]
    assert len(steps) == 9  # none is lost


@pytest.mark.parametrize(
    ("before", "between"),
    [
        # As the steps of a GAN's discriminator, which need a batch of the generator's.
        ("", "if number % 2 == 0: evaluate()"),
        ("", "loss().backward(); evaluate(); loss().backward(); optimizer.step()"),
        ("model.eval(); evaluate(); model.train()", "pass"),  # of one sample
    ],
    ids=["every other step", "between micro-steps", "before the first step"],
)
def test_what_comes_with_steps_or_before_them_is_no_evaluation(
    tmp_path: Path, before: str, between: str
) -> None:
    assert told_of(tmp_path, between, before).seen[-1].phases == {}


def test_a_copy_that_is_frozen_after_it_was_asked_hides_no_evaluation(tmp_path: Path) -> None:
    between = """with torch.no_grad(): copy(ids(4))
    if number % 4 == 0: model.eval(), evaluate(), model.train()"""
    before = "copy = __import__('copy').deepcopy(model).eval().requires_grad_(False)"
    assert counts(told_of(tmp_path, between, before)) == {"evaluate": 2}


AVERAGE = """with torch.no_grad():
        for mine, its in zip(copy.parameters(), model.parameters()): mine.lerp_(its, 0.1)
        if number % EVERY == 0: copy(ids(ROWS))
    if number in (5, 8): model.train(False), loss(ROWS), model.train()
    """.replace("ROWS", str(ROWS))


@pytest.mark.parametrize(("every", "count"), [(4, 3), (1, 2)], ids=["evaluated", "teacher"])
def test_an_average_of_the_model_is_evaluated_unless_each_step_learns_from_it(
    tmp_path: Path, every: int, count: int
) -> None:
    """The trained model is evaluated, too, in the fifth step and the eighth."""
    before = "copy = __import__('copy').deepcopy(model).eval().requires_grad_(False)"
    told = told_of(tmp_path, AVERAGE.replace("EVERY", str(every)), before)
    assert counts(told) == {"evaluate": count}
    most = {n: each.peaks.device_bytes for n, each in told.seen[-1].phases.items()}
    assert most["train"] < most["evaluate"] - 30 * MIB or every == 1


def test_evaluation_with_gradients_at_the_end_is_one(tmp_path: Path) -> None:
    between = f"if number == 10: model.eval(), loss({ROWS})"
    found = told_of(tmp_path, between).seen[-1].phases
    assert found["train"].peaks.device_bytes < found["evaluate"].peaks.device_bytes - 30 * MIB


def test_a_library_that_imports_torch_itself_is_seen_to_save(tmp_path: Path) -> None:
    program = SCRIPT.replace("BETWEEN", "if number == 4: save_file(model.state_dict(), 'kept')")
    (told, *_), code, out = watched(
        tmp_path, f"from safetensors.torch import save_file\n{program}"
    )
    assert (code, counts(told)) == (0, {"save": 1}), out


GENERATED = """if number % 4 == 0:
        model.eval()
        with torch.no_grad(): [model(input=ids(4)[:1, :2]) for _ in range(3)]
        model.train()
    """


@pytest.mark.parametrize(
    ("more", "count"),
    [("", 0), ("if number == 10: model.eval(), evaluate(), model.train()", 1),
     ("if number == 8: model.eval(), evaluate(), model.train()", 1)],
    ids=["alone", "and evaluation", "and evaluation after it"],
)  # fmt: skip
def test_samples_for_a_log_are_no_evaluation_that_could_be_waited_for(
    tmp_path: Path, more: str, count: int
) -> None:
    """But their peak is told, and is not training's."""
    told = told_of(tmp_path, GENERATED + more)
    assert {n: found.count for n, found in told.seen[-1].phases.items()} == {
        "train": 0, "evaluate": count,
    }  # fmt: skip
    assert bool(told.seen[-1].phases["evaluate"].seconds) == bool(count)


@pytest.mark.parametrize(
    ("train", "ask"),
    [("model(batch)", "model(ids(1)[:, :2])"),
     ("net({'of': [batch]})", "net({'of': [ids(1)[:, :2]]})")],
    ids=["without eval", "in a dictionary"],
)  # fmt: skip
def test_samples_are_told_by_their_inputs_in_any_mode(
    tmp_path: Path, train: str, ask: str
) -> None:
    before = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, batch): return self.model(batch["of"][0])
net = Net()"""
    program = SCRIPT.replace("model(batch)", train)
    sampled = f"if number % 4 == 0:\n        with torch.no_grad(): {ask}"
    for more, count in ("", 0), ("\n    if number == 10: evaluate()", 1):
        told = told_of(tmp_path, sampled + more, before, program)
        assert told.seen[-1].phases["evaluate"].count == count


@pytest.mark.parametrize(("ask", "count"), [("loss()", 0), ("loss(), loss()", 2), ("loss(8)", 2)])
def test_one_pass_of_a_training_batch_is_no_evaluation_without_eval(
    tmp_path: Path, ask: str, count: int
) -> None:
    """As a teacher's now and then, or the accuracy in training."""
    told = told_of(tmp_path, f"if number % 4 == 0:\n        with torch.no_grad(): {ask}")
    assert counts(told).get("evaluate", 0) == count


def test_an_evaluation_of_single_samples_is_one(tmp_path: Path) -> None:
    one = "if number % 4 == 0:\n        model.eval()\n        with torch.no_grad(): model(ids(1))"
    assert counts(told_of(tmp_path, f"{one}\n        model.train()")) == {"evaluate": 2}


@pytest.mark.parametrize(
    ("save", "count"),
    [
        ("pickle.dumps([each + 0 for each in model.parameters()])", 1),
        ("torch.save(state, 'kept')", 0),
        ("state.of = model.state_dict(); torch.save(state, 'kept')", 1),
        ("[torch.save(each, 'kept') for each in model.parameters()]", 1),
        ("safetensors.torch.save(dict(model.named_parameters()))", 1),
        ("[safetensors.torch.save({'w': each}) for each in model.parameters()]", 1),
        ("pickle.dumps(torch.zeros(99))", 0),
        ("model.eval(), evaluate(), pickle.dumps(list(model.parameters()))", 1),
        ("gather([None], list(model.parameters()))", 0),
    ],
    ids=[
        "pickled",
        "small object",
        "object",
        "one by one",
        "bytes",
        "in shards",
        "small",
        "after evaluation",
        "gathered",
    ],
)
def test_parameters_that_are_pickled_are_saved(tmp_path: Path, save: str, count: int) -> None:
    """By whatever library, but not if ranks exchange them."""
    before = """import pickle, safetensors.torch, torch.distributed as dist
def gather(*given):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_gather_object(*given)
class State: pass
state = State()"""
    told = told_of(tmp_path, f"if number == 4: {save}", before)
    assert counts(told).get("save", 0) == count


TRACED = "torch.jit.trace(model, ids(4), check_trace=False)"


@pytest.mark.parametrize(
    ("between", "saved"),
    [
        (f"model.eval(), torch.jit.save({TRACED}, 'kept'), model.train()", True),
        (f"model.eval(), {TRACED}.save('kept'), model.train()", True),
        ("model.eval(), torch.jit.script(model).save('kept'), model.train()", True),
        (f"model.eval(), {TRACED}, model.train()", False),
        (
            "c = copy.deepcopy(model); block = torch.ones(KEPT); del block; torch.save(c, 'x')",
            True,
        ),
        ("c = copy.deepcopy(model); block = torch.ones(KEPT); del block", False),
        ("c = optimizer.state_dict(), torch.ones(KEPT); torch.save(c, 'x'); del c", True),
    ],
    ids=[
        "exported",
        "by its method",
        "scripted",
        "traced",
        "copied and saved",
        "copied",
        "of the optimizer",
    ],
)
def test_what_precedes_a_save_is_part_of_it_and_of_training_without_one(
    tmp_path: Path, between: str, saved: bool
) -> None:
    """Nothing of it is an evaluation."""
    told = told_of(
        tmp_path, f"if number == 4: {between}".replace("KEPT", str(KEPT)), "import copy"
    )
    assert counts(told) == ({"save": 1} if saved else {})
    if "KEPT" in between and saved:
        most = {n: each.peaks.device_bytes for n, each in told.seen[-1].phases.items()}
        assert most["train"] < most["save"] - 30 * MIB


@pytest.mark.parametrize(
    ("before", "between", "cycle"),
    [
        ("evaluate()", "if number % 4 == 0: evaluate()", 4),
        ("evaluate()", "evaluate()", 1),
        ("pass", "if number % 4 == 0: evaluate()", 1),
        ("evaluate()", "if number in (3, 9): evaluate()", 1),
        ("model.eval(), evaluate(), model.train()", "if number % 4 == 0: evaluate()", 1),
    ],
)
def test_a_rollout_every_so_many_steps_is_part_of_them(
    tmp_path: Path, before: str, between: str, cycle: int
) -> None:
    told = told_of(tmp_path, between, before)
    assert told.seen[-1].cycle == cycle
    assert ("evaluate" in counts(told)) == (cycle == 1 and between != "evaluate()")


def test_a_rollout_that_takes_long_has_its_own_peak(tmp_path: Path) -> None:
    wait = "evaluate(), __import__('time').sleep(0.2)"
    told = told_of(tmp_path, f"if number % 2 == 0: {wait}", before=wait)
    assert counts(told) == {"rollout": 5}
    found = told.seen[-1].phases
    of = {name: each.peaks.device_bytes for name, each in found.items()}
    assert of["train"] < of["rollout"] - 30 * MIB
    assert found["rollout"].seconds > 1.0


def test_what_takes_long_in_each_step_is_part_of_it(tmp_path: Path) -> None:
    """As a teacher with trained parameters, which is asked under `no_grad`."""
    wait = "evaluate(), __import__('time').sleep(0.2)"
    assert told_of(tmp_path, wait, before=wait).seen[-1].phases == {}


def test_a_phase_counts_once_a_step_has_followed_it(tmp_path: Path) -> None:
    """A launch for phases ends when they were counted. The rest of an evaluation may not follow,
    nor a step with what it left. A compiled script's has an end after each batch."""
    parts = "model.eval(), torch.save(copied(), 'kept.pt'), evaluate(), tell(), evaluate()"
    before = """torch.compile(model); import _autotune_hook
tell = _autotune_hook._watches[0].tell
optimizer.register_step_pre_hook(lambda *_: tell())"""
    told = told_of(tmp_path, f"if number == 4: {parts}, model.train()", before)
    assert counts(told) == {"evaluate": 1, "save": 1}
    next_step = next(seen for seen in told.seen if seen.backwards == 5)
    until = [seen for seen in told.seen if seen.backwards == 4] + [next_step]
    meanwhile = [each for seen in until for each in seen.phases.items()]
    assert {name for name, _ in meanwhile} == {"train", "evaluate", "save"}
    assert {found.count for _, found in meanwhile} == {0}


DECORATED = "torch.no_grad()(lambda: (model.eval(), loss(), loss(), model.train()))()"
SWITCHED = "off(False), model.eval(), loss(), loss(), off(True), model.train()"


@pytest.mark.parametrize("before", ["pass", "torch.compile(model)"], ids=["plain", "compiled"])
@pytest.mark.parametrize("more", ["pass", "loss().backward()"], ids=["steps", "micro-steps"])
@pytest.mark.parametrize("evaluation", [DECORATED, SWITCHED], ids=["decorated", "switched"])
def test_evaluation_is_seen_where_gradients_stop_before_eval(
    tmp_path: Path, evaluation: str, more: str, before: str
) -> None:
    """Between steps, and between micro-steps, as where an epoch ends with some."""
    between = f"{more}\n    if number % 4 == 0: {evaluation}, torch.save(copied(), 'kept.pt')"
    told = told_of(tmp_path, between, f"off = torch.set_grad_enabled; {before}")
    assert counts(told) == {"evaluate": 2, "save": 2}


@pytest.mark.parametrize(
    "main",
    [
        "with torch.set_grad_enabled(True): train()",
        "import threading; run = threading.Thread(target=train); run.start(); run.join()",
    ],
)
def test_evaluation_is_seen_wherever_the_training_runs(tmp_path: Path, main: str) -> None:
    head, loop = SCRIPT.replace("BETWEEN", "if number % 4 == 0: evaluate()").split("for number")
    loop = f"for number{loop}".strip().replace("\n", "\n    ")
    (told, *_), code, out = watched(tmp_path, f"{head}def train():\n    {loop}\n{main}\n")
    assert (code, counts(told)) == (0, {"evaluate": 2}), out


def test_what_comes_after_saving_ends_it_with_the_next_forward_pass(tmp_path: Path) -> None:
    saved = "torch.save(model.state_dict(), 'kept.pt'); torch.no_grad()(lambda: 0)()"
    between = f"if number == 4: {saved}; loss({ROWS}).backward(); optimizer.step()"
    found = told_of(tmp_path, between).seen[-1].phases
    assert found["save"].peaks.device_bytes < found["train"].peaks.device_bytes - 30 * MIB


LOADS: dict[str, tuple[Callable[[Any, Path], Any], str]] = {
    "torch": (torch.save, "kept = torch.load('kept')"),
    "safetensors": (save_file, "kept = __import__('safetensors.torch').torch.load_file('kept')"),
    "DCP": (
        lambda kept, path: save_sharded(kept, checkpoint_id=path),
        "import torch.distributed.checkpoint as dcp; kept = {'w': torch.zeros(KEPT)};"
        " dcp.load(kept, checkpoint_id='kept')",
    ),
}
"""How a checkpoint is written, and read."""


@pytest.mark.parametrize("how", LOADS)
def test_loading_has_its_own_peak_until_the_next_forward_pass(tmp_path: Path, how: str) -> None:
    """What was read is copied meanwhile. It may be held in training, too."""
    save, load = LOADS[how]
    save({"w": torch.ones(KEPT)}, tmp_path / "kept")
    copied = f"{load}; more = kept['w'] + 1; del kept, more".replace("KEPT", str(KEPT))
    again = f"if number == 6: {copied}"
    told = told_of(tmp_path, again, copied)
    assert counts(told) == {"load": 2}
    found = told.seen[-1].phases
    grown = found["load"].peaks.device_bytes - found["train"].peaks.device_bytes
    assert grown > 3 * KEPT
    assert found["load"].seconds > 0


def test_what_is_no_loading_of_a_checkpoint_is_none(tmp_path: Path) -> None:
    """A small file, a copy within the process, and a file that every step reads."""
    torch.save({"w": torch.ones(9)}, tmp_path / "small")
    torch.save({"w": torch.ones(KEPT // 10)}, tmp_path / "large")
    small, copy = "torch.load('small')", "model.load_state_dict(model.state_dict())"
    between = f"torch.load('large')\n    if number % 4 == 0: {copy}"
    assert counts(told_of(tmp_path, between, f"{small}; {copy}")) == {}
    assert counts(told_of(tmp_path, small, copy)) == {}


RAISED = """
    if number == 3:
        with torch.no_grad():
            model(ids(4))
            raise MemoryError
    """
RAISED_BY_TEACHER = """
    with torch.no_grad():
        model(ids(4))
        if number == RAISES: raise MemoryError
    """
RAISED_AT_FIRST = """
    model.eval()
    with torch.no_grad():
        model(ids(4))
        raise MemoryError
    """
RAISED_LATER = """
    evaluate() if number == 2 else None
    if number == 3: raise MemoryError
    """


RAISED_LOADING = """
    def fail(*_): raise MemoryError
    if number == 3: torch.load(type("File", (), {"read": fail, "seek": fail, "tell": fail})())
    """
RAISED_LOADED = """
    if number == 3:
        try: torch.load("of no file")
        except OSError: pass
        with torch.no_grad(): raise MemoryError
    """


@pytest.mark.parametrize(
    ("between", "phase"),
    [
        (RAISED, "evaluate"),
        (RAISED_BY_TEACHER.replace("RAISES", "1"), ""),
        (RAISED_BY_TEACHER.replace("RAISES", "3"), ""),
        (RAISED_AT_FIRST, "evaluate"),
        (RAISED_LATER, ""),
        (RAISED_LOADING, "load"),
        (RAISED_LOADED, ""),
    ],
)
def test_an_error_names_the_phase_that_it_is_in(tmp_path: Path, between: str, phase: str) -> None:
    (told,), code, _ = watched(tmp_path, SCRIPT.replace("BETWEEN", between))
    assert code == 1
    assert told.left.phase == phase


COMPILED = """if number == 4:
        model.eval()
        for _ in range(2): evaluate()
        block = torch.ones(KEPT); del block
        model.train()
        block = torch.ones(MORE); del block
    """.replace("KEPT", str(KEPT)).replace("MORE", str(KEPT // 2))


def test_a_compiled_evaluation_lasts_until_the_model_trains(tmp_path: Path) -> None:
    """Its metrics are computed of all batches, after `no_grad`."""
    before = "torch.compile(model); evaluate = torch.no_grad()(loss)"
    told = told_of(tmp_path, COMPILED, before)
    assert counts(told) == {"evaluate": 1}
    most = {n: each.peaks.device_bytes for n, each in told.seen[-1].phases.items()}
    assert most["train"] < most["evaluate"] - 20 * MIB


@pytest.mark.parametrize("compiled", ["", "torch.compile(lambda x: x, backend=str)\n"])
def test_what_vllm_generates_is_a_rollout(tmp_path: Path, compiled: str) -> None:
    """It compiles its own copy of the model, so calls of modules are not seen."""
    engine = tmp_path / "vllm" / "entrypoints" / "llm.py"
    engine.parent.mkdir(parents=True)
    engine.write_text(f"""
import time, torch
class LLM:
    @torch.inference_mode()
    def generate(self):
        torch.ones(60 * {MIB} // 4)
        time.sleep(0.2)
""")
    before = f"from vllm.entrypoints.llm import LLM\n{compiled}LLM().generate()"
    told = told_of(tmp_path, "if number % 2 == 0: LLM().generate()", before)
    assert counts(told) == {"rollout": 5}
    assert told.seen[-1].cycle == 2
    of = {name: each.peaks.device_bytes for name, each in told.seen[-1].phases.items()}
    assert of["train"] < of["rollout"] - 30 * MIB


def test_what_a_library_compiles_hides_no_evaluation(tmp_path: Path) -> None:
    """As the losses of TRL."""
    compiled = "@torch.compile\\ndef f(x): return x"
    before = f"exec(compile('{compiled}', 'site-packages/f.py', 'exec'))"
    told = told_of(tmp_path, "if number % 4 == 0: evaluate()", before)
    assert counts(told) == {"evaluate": 2}


def test_a_compiled_model_is_not_compiled_again_for_the_look(tmp_path: Path) -> None:
    program = SCRIPT.replace("optimizer =", """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 8), nn.Linear(8, 64)
    def forward(self, tokens): return self.head(self.embed(tokens))
model, compiles = Net(), []
def backend(graph, example_inputs):
    compiles.append(1)
    return graph.forward
model.compile(backend=backend)
optimizer =""").replace("BETWEEN", """
    if number % 4 == 0:
        model.eval()
        with torch.no_grad(): model(ids(4))
        model.train()
print(len(compiles))
    """)  # fmt: skip
    (told, *_), code, out = watched(tmp_path, program)
    assert (code, out) == (0, "2\n")  # to train, and to evaluate
    assert counts(told) == {"evaluate": 2}


@pytest.mark.parametrize(
    ("more", "count"),
    [("", 0), ("if number == 10:\n        model.eval(), evaluate(), model.train()", 1)],
    ids=["alone", "and evaluation"],
)
def test_samples_of_a_compiled_model_are_no_evaluation(
    tmp_path: Path, more: str, count: int
) -> None:
    """No module is compiled again to see them."""
    before = """compiles = []
def backend(graph, example_inputs):
    compiles.append(1)
    return graph.forward
plain, model = model, torch.compile(model, backend=backend)"""
    sampled = GENERATED.replace("model(input", "plain(input")
    program = SCRIPT + "\nprint(len(compiles))"
    program = program.replace("BETWEEN", sampled + more).replace(
        "for number", f"{before}\nfor number"
    )
    (told, *_), code, out = watched(tmp_path, program)
    assert (code, out) == (0, f"{1 + count}\n")
    assert told.seen[-1].phases["evaluate"].count == count
