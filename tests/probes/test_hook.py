"""What the hook in a user's own script says of it, program by program."""

from __future__ import annotations

import ast
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from autotune.measure.script.launches import HOOK
from autotune.wire import messages
from autotune.wire.hook import Left
from autotune.wire.ranks import Hello
from tests.support.watched import Told, Watched, watched

SOURCE = HOOK / "sitecustomize.py"
MODEL = """
import os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from torch import nn

torch.manual_seed(0)
ids = torch.randint(64, (3, 16))
def loss_of(model, ids=ids):
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
def net():
    return nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 64))
"""
"""What most programs begin with."""


def of_model(folder: Path, program: str, code: int = 0, **environment: str) -> Told:
    """What the process of `program` says, which has the model and ends with that code."""
    (told,), ended, out = watched(folder, MODEL + textwrap.dedent(program), **environment)
    assert ended == code, out
    return told


@pytest.mark.parametrize(
    ("source", "later"),
    [
        (SOURCE, {"torch.utils.data"}),
        (HOOK / "_autotune_ranks.py", set()),
        (HOOK / "_autotune_phases.py", set()),
    ],
)
def test_it_needs_the_standard_library_alone(source: Path, later: set[str]) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names}  # fmt: skip
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others == later  # once the script has imported torch


def test_it_speaks_the_version_of_the_study() -> None:
    line = next(s for s in SOURCE.read_text().splitlines() if s.startswith("VERSION ="))
    assert line.split()[2] == str(messages.VERSION)


def test_without_torch_nothing_dials_and_a_hidden_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("HIDDEN = 'ran'")
    program = """
        import sys, sitecustomize
        print(sitecustomize.HIDDEN, sitecustomize.__file__, "multiprocessing" in sys.modules,
              "torch" in sys.modules, "socket" in sys.modules)
    """
    told, code, out = watched(tmp_path, program, MORE_PATH=str(tmp_path))
    assert (told, code) == ([], 0)
    assert out.split() == ["ran", str(tmp_path / "sitecustomize.py"), "False", "False", "False"]


@pytest.mark.slow
def test_who_only_asks_for_torch_hides_nothing(tmp_path: Path) -> None:
    program = """
        import importlib.util
        assert importlib.util.find_spec("torch")  # as datasets and transformers do
        assert importlib.util.find_spec("torch")
    """
    train = """
        model = net()
        stepper = torch.optim.SGD(model.parameters())
        for _ in range(3):
            loss_of(model).backward()
            stepper.step()
    """
    (told,), _, _ = watched(tmp_path, textwrap.dedent(program) + MODEL + textwrap.dedent(train))
    assert told.seen[-1].ended == 3


def test_a_process_dials_before_torch_is_imported(tmp_path: Path) -> None:
    """Which may take a minute."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('of a made up torch')")
    (told,), code, _ = watched(tmp_path, "import torch", MORE_PATH=str(tmp_path))
    assert code == 1
    assert [type(each) for each in told.messages] == [Hello]


LOOKLESS = """
import _autotune_hook
_autotune_hook.LOOK_SHARE = 0.0  # no looks but the first ones
"""
STEPS = f"""{LOOKLESS}
import autotune
from torch.utils.checkpoint import checkpoint

def frozen():
    model = net()
    model[0].requires_grad_(False)
    return model
image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
images, classes = torch.rand(5, 3, 8, 8), torch.zeros(5, dtype=torch.long)
types = nn.Embedding(2, 8)
typed = net()
kinds = [
    (net(), loss_of),
    (typed, lambda m: loss_of(lambda i: m[1](m[0](i) + types(torch.zeros(1, 16).long())))),
    (frozen(), loss_of),
    (image, lambda m: nn.functional.cross_entropy(m(images), classes)),
]
for _ in range(3):
    loss_of(kinds[0][0]).backward()
for model, loss in kinds[:1] + kinds:
    loss(model).backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.block = nn.Embedding(64, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 64)
    def forward(self, ids):
        return self.head(checkpoint(self.block, self.embedding(ids), use_reentrant=True))
model = Net()
held = list(model.parameters())
optimizers = [torch.optim.AdamW(held[:2]), torch.optim.SGD(held[2:], lr=1e-3)]
for _ in range(6):
    for _ in range(4):
        loss_of(model).backward()
    for optimizer in optimizers:
        optimizer.step()

for number in range(4):
    for _ in range(2):
        loss_of(model).backward()
        optimizers[0].step()
    if number >= 1:
        autotune.step(tokens=100 + number)

class OwnError(KeyError):
    pass
def fails():
    try:
        raise MemoryError("first")
    except MemoryError as error:
        raise OwnError("of two\\nlines") from error
fails()
"""
SHAPED, ACCUMULATED, SEEN, SAID = 4, 6, 4, 2
"""Steps of the parts of that program, as they are told."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return of_model(tmp_path_factory.mktemp("steps"), STEPS, 1, RANK="5")


def test_batches_show_in_the_graph_of_many_kinds_of_model(steps: Told) -> None:
    # The first step, which is not told, made four backward passes.
    kinds, again = steps.shapes[:SHAPED], steps.shapes[SHAPED:]
    assert kinds == [[[3, 16]], [[3, 16]], [[3, 16]], [[5]]]
    assert again == [[[3, 16]]] * 2  # the first step of two passes has the next one looked at


def test_a_step_is_one_whatever_steps_and_recomputes_inside(steps: Told) -> None:
    assert steps.micro_steps[SHAPED:][:ACCUMULATED] == [4] * ACCUMULATED


SEVERAL = f"""{LOOKLESS}
def train(model, losses):
    for _ in range(6):
        for _ in range(4):
            found = losses(model(ids))
            for loss in found:
                loss.backward(retain_graph=loss is not found[-1])
        torch.optim.SGD(model.parameters(), lr=1e-3).step()
def three(logits):
    return logits.exp().mean(), logits.square().mean(), logits.mean()
def two(logits):
    first = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    second = nn.functional.cross_entropy(logits.flatten(0, 1) / 2, ids.flatten())
    return first, second
train(net(), three)
frozen = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 8), nn.Linear(8, 64))
frozen[0].requires_grad_(False)
_autotune_hook.LOOK_SHARE = 1.0
train(frozen, two)
"""


@pytest.mark.slow
def test_several_losses_of_one_batch_are_one_micro_step(tmp_path: Path) -> None:
    process = of_model(tmp_path, SEVERAL)
    # The first step of all is not told.
    assert process.micro_steps == [4] * 5 + [4] * 6
    assert process.shapes == [[[3, 16]]] * len(process.shapes)


@pytest.mark.parametrize(("lengths", "looks"), [((16, 16), 4), ((16, 12), 20)])
def test_batches_that_vary_are_looked_at_more_often(
    tmp_path: Path, lengths: tuple[int, int], looks: int
) -> None:
    program = f"""
        import _autotune_hook
        _autotune_hook.LOOK_SHARE, _autotune_hook.VARIED = 1e-9, 1e12
        model = net()
        for i in range(21):
            loss_of(model, ids[:, :{lengths}[i % 2]]).backward()
            torch.optim.SGD(model.parameters(), lr=1e-3).step()
    """
    assert len(of_model(tmp_path, program).shapes) == looks


@pytest.mark.parametrize(
    ("loss", "sizes"),
    [("loss / 2", [3072, 3072, 1024]), ("loss / 2 if i % 2 else loss", [0, 0, 0])],
)
def test_the_size_of_a_step_goes_with_its_batch(
    tmp_path: Path, loss: str, sizes: list[int]
) -> None:
    """In steps without a look, too. None is told if losses are not of one kind."""
    program = f"""
        import _autotune_hook
        _autotune_hook.LOOK_SHARE = 1e-9
        model = net()
        for i in range(13):
            loss = loss_of(model, ids[:3 if i % 3 else 1])
            ({loss}).backward()
            torch.optim.SGD(model.parameters(), lr=1e-3).step()
    """
    process = of_model(tmp_path, program)
    assert [step.size for seen in process.seen for step in seen.steps] == sizes * 4


def test_steps_that_are_only_counted_notice_other_ones(tmp_path: Path) -> None:
    """Other numbers of passes at once, other sizes after a few passes."""
    program = """
        import _autotune_hook
        _autotune_hook.LOOK_SHARE, _autotune_hook.SIZED_S = 1e-9, 1e-9
        [watch] = _autotune_hook._watches
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        def train(steps, passes, rows):
            for _ in range(steps):
                for _ in range(passes):
                    loss_of(model, ids[:rows]).backward()
                optimizer.step()
        train(40, 2, 3)
        assert watch._quiet
        train(5, 3, 3)
        train(12, 2, 1)
        assert not watch._quiet
    """
    steps = [step for seen in of_model(tmp_path, program).seen for step in seen.steps]
    assert [step.micro_steps for step in steps] == [2] * 39 + [3] * 5 + [2] * 12
    assert {step.size for step in steps[:39]} == {2 * 3072}
    assert {step.size for step in steps[39:44]} == {3 * 3072}
    assert {step.size for step in steps[-8:]} == {2 * 1024}


AGAIN = """
import _autotune_hook
_autotune_hook.LOOK_SHARE = 1.0
def train(model, loss, optimizer=torch.optim.SGD, clear=True, passes=2, steps=3):
    stepper = optimizer(model.parameters(), lr=1e-3)
    def closure():
        stepper.zero_grad(set_to_none=clear) if clear else None
        found = loss()
        found.backward()
        return found
    for _ in range(steps):
        stepper.zero_grad()
        for number in range(passes):
            closure()
            if number < passes - 1:
                with torch.no_grad():
                    for each in model.parameters() if clear else ():
                        each.add_(each.grad)
        stepper.step()

model, more = net(), torch.randint(64, (3, 8))
stepper = torch.optim.LBFGS(model.parameters(), max_iter=3)
def closure():
    stepper.zero_grad()
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(3):
    stepper.step(closure)
floats, line = torch.rand(5, 4), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
cell, table = nn.GRUCell(8, 8), nn.Embedding(64, 8)
def columns():
    state = torch.zeros(3, 8)
    for number in range(16):
        state = cell(table(ids[:, number]), state)
    return state.sum()
train(model, lambda: loss_of(model))
train(model, lambda: loss_of(model), passes=3)
_autotune_hook.LOOK_SHARE = 0.0
train(model, lambda: loss_of(model), passes=5)
_autotune_hook.LOOK_SHARE = 1.0
train(model, lambda: loss_of(model, ids.clone()))
train(model, lambda: loss_of(model), clear=False)
parts = [ids, more]
def accumulated():
    losses = [loss_of(model, part) for part in parts]
    losses[0].backward()
    return losses[1]
train(model, accumulated)
train(model, lambda: loss_of(model) + loss_of(model, more), passes=1)
train(nn.ModuleList([cell, table]), columns, passes=1)
train(line, lambda: nn.functional.mse_loss(line(floats), floats[:, :1]), passes=1)
train(line, lambda: line(floats).abs().mean(), passes=1)
"""


def test_a_batch_is_what_the_passes_of_a_step_learn_from(tmp_path: Path) -> None:
    """One that goes back again from other parameters, as in SAM and in closures, is one. So is a
    model's call on another batch, but both are told. Values without ids count by targets."""
    told = of_model(tmp_path, AGAIN)
    steps = [step for seen in told.seen for step in seen.steps]
    assert [step.micro_steps for step in steps if not step.shapes] == [1] * 2
    found = [(step.micro_steps, step.calls, step.sure, step.shapes[0][:2])
             for step in steps if step.shapes]  # fmt: skip
    once = (1, 1, True, [[3, 16]])
    each = (2, 1, True, [[3, 16]])
    both, rows = (1, 2, True, [[3, 8], [3, 16]]), (1, 1, False, [[5]])
    kinds = (once, each, each, each, both, once, rows, rows)
    assert found == [once] * 9 + [kind for kind in kinds[1:] for _ in range(3)]
    assert all(len(step.steppers) <= 1 for step in steps)


WAYS = """
model = net()
held = list(model.parameters())
stepper = torch.optim.SGD(held)
for number in range(6):
    for _ in range(2):
        of = torch.autograd.grad(loss_of(model), held)
        for each, gradient in zip(held, of):
            each.grad = gradient
    if number >= 3:  # as for a penalty
        loss_of(model).backward()
    stepper.step()

embedding, head = nn.Embedding(64, 8), nn.Linear(8, 64)
optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=1e-3)
for _ in range(4):
    for _ in range(2):
        hidden = embedding(ids)
        gradients = []
        for part, labels in zip(hidden.chunk(4, 1), ids.chunk(4, 1), strict=True):
            part = part.detach().requires_grad_()
            nn.functional.cross_entropy(head(part).flatten(0, 1), labels.flatten()).backward()
            gradients.append(part.grad)
        hidden.backward(torch.cat(gradients, 1))
    optimizer.step()

for _ in range(4):
    for _ in range(2):
        loss = loss_of(model)
        torch.autograd.Variable._execution_engine.run_backward(
            tensors=(loss,), grad_tensors=(torch.ones_like(loss),), keep_graph=False,
            create_graph=False, inputs=tuple(), allow_unreachable=True, accumulate_grad=True)
    stepper.step()
"""
ASKED, CHUNKED, ENGINE = [2, 2, 2, 1, 1, 1], [2] * 4, [2] * 4
"""Micro-steps: of gradients that are asked for, which count where nothing else did; of chunks as
torchtitan has them, whose own passes go through the head alone; and as Megatron-LM calls the
engine, whose outputs are freed by then."""


@pytest.mark.parametrize("look", ["", LOOKLESS], ids=["often", "first"])
def test_ways_of_going_back_are_micro_steps(look: str, tmp_path: Path) -> None:
    """As they are looked at, and with no look but the first ones."""
    process = of_model(tmp_path, look + WAYS)
    assert process.micro_steps == [*ASKED, *CHUNKED, *ENGINE][1:]
    assert all(shapes == [[3, 16]] for shapes in process.shapes)
    assert process.seen[-1].trainable == 64 * 8 + 8 * 64 + 64


def test_what_the_script_says_counts_alone_from_its_first_call(steps: Told) -> None:
    before = SHAPED + ACCUMULATED + SEEN
    assert steps.tokens == [None] * before + [102, 103]
    assert steps.micro_steps[-SEEN - SAID :] == [1] * SEEN + [2] * SAID


def test_totals_and_peaks_are_of_the_process(steps: Told) -> None:
    last = steps.seen[-1]
    assert steps.hello.rank == 5
    assert last.ended == 1 + SHAPED + ACCUMULATED + SEEN + SAID
    assert last.backwards == 3 + 5 + 4 * 6 + 2 * 4
    assert last.trainable == 64 * 8 + 8 * 64 + 64 + 2 * 8  # of the largest that was looked at
    assert last.peaks is not None
    assert last.peaks.host_bytes > 0


@pytest.mark.slow
def test_a_batch_whose_embedding_is_frozen_shows_between_the_layers(tmp_path: Path) -> None:
    """By labels of all tokens, and of all but the first; a sample that has one alone is one."""
    program = """
        model = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 8), nn.Linear(8, 64))
        model[0].weight.requires_grad_(False)
        stepper = torch.optim.SGD(model[1:].parameters())
        for said, most in ((model(ids), 16), (model(ids), 16), (model(ids)[:, 1:], 15),
                           (model(ids)[:, 0], 1)):
            labels = ids[:, -most:].reshape(-1)
            nn.functional.cross_entropy(said.reshape(-1, 64), labels).backward()
            stepper.zero_grad()
            stepper.step()
    """
    told = of_model(tmp_path, program)
    assert told.shapes == [[[3, 16]], [[3, 16]], [[3]]]


@pytest.mark.slow
def test_other_views_between_layers_are_no_batches(tmp_path: Path) -> None:
    """Attention and recurrent layers have the samples second."""
    program = """
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 64)
            def forward(self, x):
                _, (state, _) = self.layer(x)
                return self.head(state.view(-1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        embedding = nn.Embedding(64, 8).requires_grad_(False)
        tokens = nn.Sequential(embedding, nn.TransformerEncoder(layer, 2), nn.Linear(8, 64))
        classes = nn.Sequential(embedding, Recurrent())
        for model, labels in ((tokens, ids), (tokens, ids), (classes, ids[:, :1])):
            said = model(ids)
            nn.functional.cross_entropy(said.view(-1, 64), labels.flatten()).backward()
            torch.optim.SGD(model.parameters()).step()
    """
    told = of_model(tmp_path, program)
    assert told.shapes in ([[[3, 16]], [[3]]], [[[3, 16]], [[1, 3]]])


@pytest.mark.slow
def test_a_model_that_will_not_be_looked_at_is_timed_all_the_same(tmp_path: Path) -> None:
    program = """
        class Own(nn.Linear):
            def parameters(self, recurse=True):
                return [{"params": list(super().parameters()), "lr": 1.0}]
        class Bare(nn.Module):
            def __init__(self):
                pass
        model, bare = nn.Sequential(nn.Embedding(64, 8), Own(8, 64)), Bare()
        model.children = []
        own = Own(8, 8)
        stepper = torch.optim.SGD(list(nn.Module.parameters(model)))
        for _ in range(3):
            loss_of(model).backward()
            stepper.step()
    """
    told = of_model(tmp_path, program)
    assert told.seen[-1].ended == 3


@pytest.mark.slow
def test_what_is_frozen_beside_what_is_trained_is_counted(tmp_path: Path) -> None:
    """But no model that is only asked, and what two modules share only once."""
    program = """
        model, teacher = net(), net()
        model[0].weight.requires_grad_(False)
        tied = nn.ModuleList([model, nn.Embedding(64, 8)])
        tied[1].weight = model[0].weight
        teacher.requires_grad_(False)
        stepper = torch.optim.SGD(model[1].parameters())
        for _ in range(3):
            (loss_of(model) - loss_of(teacher)).backward()
            stepper.step()
    """
    told = of_model(tmp_path, program)
    assert told.seen[-1].frozen == 64 * 8
    assert told.seen[-1].trainable == 8 * 64 + 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "dtype"),
    [("torch.autocast('cpu', torch.bfloat16)", "bf16"), ("contextlib.nullcontext()", "fp32")],
)
def test_the_compute_dtype_is_told_without_cost(how: str, dtype: str, tmp_path: Path) -> None:
    program = f"""
        import contextlib
        from torch.utils.checkpoint import checkpoint
        calls = 0
        class Block(nn.Linear):
            def forward(self, x):
                global calls
                calls += 1
                return super().forward(x)
        tokens, block, head = nn.Embedding(64, 8), Block(8, 8), nn.Linear(8, 64)
        stepper = torch.optim.SGD(nn.ModuleList([tokens, block, head]).parameters())
        def model(ids):
            return head(checkpoint(block, tokens(ids), use_reentrant=False))
        for _ in range(3):
            with {how}:
                loss = loss_of(model)
            loss.backward()
            stepper.step()
        print(calls)
    """
    (told,), _, out = watched(tmp_path, MODEL + textwrap.dedent(program))
    assert told.seen[-1].dtype == dtype
    assert out.split() == ["6"]  # forward, and again in the backward pass


@pytest.mark.slow
@pytest.mark.parametrize("as_written", [False, True])
def test_what_fsdp_has_cut_up_counts_whole(as_written: bool, tmp_path: Path) -> None:
    program = f"""
        from torch.distributed.fsdp import FullyShardedDataParallel
        def wrapped(module):
            cpu = torch.device("cpu")
            return FullyShardedDataParallel(module, device_id=cpu, use_orig_params={as_written})
        rank = 0 if os.fork() else 1
        torch.distributed.init_process_group(
            "gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2
        )
        model = net()
        model[0].weight.requires_grad_(False)
        model[0] = wrapped(model[0])
        model = wrapped(model)
        stepper = torch.optim.SGD([each for each in model.parameters() if each.requires_grad])
        for _ in range(3):
            loss_of(model).backward()
            stepper.step()
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    """
    told, _, _ = watched(tmp_path, MODEL + textwrap.dedent(program))
    assert [each.seen[-1].ended for each in told] == [3, 3]
    assert [each.seen[-1].frozen for each in told] == [64 * 8] * 2
    assert [each.seen[-1].trainable for each in told] == [8 * 64 + 64] * 2


def test_an_error_that_nobody_caught_is_told_with_its_classes(steps: Told) -> None:
    assert steps.left.error == r"OwnError: 'of two\nlines'"
    assert steps.left.kinds[:2] == ["__main__.OwnError", "builtins.KeyError"]
    assert "builtins.MemoryError" in steps.left.kinds
    assert "in fails" in steps.left.traceback


@pytest.mark.slow
def test_nothing_is_told_after_a_process_said_that_it_ends(tmp_path: Path) -> None:
    program = (
        "import torch, _autotune_hook\n"
        "(watch,) = _autotune_hook._watches\n"
        "watch.ended()\nwatch.tell()\n"
    )
    told, code, _ = watched(tmp_path, program)
    assert code == 0
    assert [isinstance(each, Left) for each in told[0].messages].count(True) == 1
    assert isinstance(told[0].messages[-1], Left)


@pytest.mark.slow
def test_ranks_dial_and_workers_do_not_and_an_exit_is_no_error(tmp_path: Path) -> None:
    program = (
        MODEL
        + """
from torch.utils.data import DataLoader

def train(rank):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        loss_of(model).backward()
        optimizer.step()
if __name__ == "__main__":
    for context in ("fork", "spawn"):
        list(DataLoader(ids, num_workers=1, multiprocessing_context=context))
    torch.multiprocessing.spawn(train, nprocs=1)
    sys.exit(3)
"""
    )
    told, code, _ = watched(tmp_path, program)
    assert code == 3
    left = told[0].left
    assert (left.error, left.kinds, left.traceback) == ("", [], "")
    assert [each.seen[-1].backwards for each in told] == [0, 3]
    assert told[1].micro_steps == [1, 1]


def test_the_end_of_the_channel_ends_a_process_that_sleeps(tmp_path: Path) -> None:
    run = Watched(tmp_path, "import torch, time\ntime.sleep(600)")
    try:
        while not (run.told and run.told[0].messages):
            run.pump(1.0)
        run.hang_up()
        assert run.process.wait(60) == -signal.SIGKILL
    finally:
        run.ended()


@pytest.mark.slow
def test_a_look_computes_no_checkpoint_again(tmp_path: Path) -> None:
    (told,), code, out = watched(tmp_path, """
        import torch
        from torch.utils.checkpoint import checkpoint
        ran = []
        class CompiledFunction(torch.autograd.Function):  # as torch.compile's is called
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x, torch.zeros(7, 7, dtype=torch.long))
                return 2 * x
            @staticmethod
            def backward(ctx, grad):
                return 2 * grad
        table = torch.nn.Embedding(50, 4)
        def whole(tokens):
            ran.append(1)
            return CompiledFunction.apply(table(tokens))
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(4):
            tokens = torch.zeros(2, 5, dtype=torch.long)
            checkpoint(whole, tokens, use_reentrant=False).sum().backward()
            optimizer.step()
        print(len(ran))
    """)  # fmt: skip
    assert (code, out) == (0, "8\n")
    assert told.shapes == [[[2, 5]]] * 3


def test_compiled_models_are_seen(tmp_path: Path) -> None:
    program = """
        model = torch.compile(net(), backend="aot_eager")
        compiled = torch.compile(loss_of, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(3):
            compiled(model).backward()
            optimizer.step()
    """
    process = of_model(tmp_path, program)
    assert process.micro_steps == [1, 1]
    assert [3, 16] in process.shapes[0]


@pytest.mark.slow
def test_what_fails_in_it_fails_nothing_of_the_script(tmp_path: Path) -> None:
    program = """
        import _autotune_hook
        def fails(*_):
            raise TypeError("of the hook's own")
        _autotune_hook._look = fails
        model = net()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            loss_of(model).backward()
            optimizer.step()
    """
    process = of_model(tmp_path, program)
    assert process.seen[-1].ended == 3
    assert process.left.error == ""


TRAINER = """
from autotune.callbacks import transformers_callback
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments

config = T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=1, d_kv=8, vocab_size=64)
config.decoder_start_token_id = 0
data = [{"input_ids": ids[0], "labels": ids[0]}] * 100
arguments = TrainingArguments(
    sys.argv[0] + ".out", per_device_train_batch_size=3, max_steps=6, use_cpu=True, report_to=[],
    gradient_accumulation_steps=2, save_strategy="no", disable_tqdm=True,
)
Trainer(
    T5ForConditionalGeneration(config), arguments, train_dataset=data,
    callbacks=[transformers_callback()],
).train()
"""
LIGHTNING = """
import lightning
from autotune.callbacks import lightning_callback

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, number):
        return loss_of(self.net, batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
lightning.Trainer(
    accelerator="cpu", devices=1, max_steps=6, logger=False, enable_checkpointing=False,
    accumulate_grad_batches=2, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[lightning_callback()],
).fit(Module(), torch.utils.data.DataLoader(ids.repeat(40, 1), batch_size=3))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "shape"),
    [(TRAINER, [[3, 16], [3, 16]]), (LIGHTNING, [[3, 16]])],
    ids=["transformers", "lightning"],
)
def test_a_trainer_step_is_said_once(tmp_path: Path, program: str, shape: list[list[int]]) -> None:
    process = of_model(tmp_path, program)
    assert process.micro_steps == [2] * 5
    assert process.shapes[:2] == [shape] * 2
