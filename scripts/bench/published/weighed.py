"""Published peaks, beside those of the same code on emulated GPUs.

    scripts/bench/published/weighed.py SOURCES INTERPRETERS [--only golf] [--again]

prints results/weighed.md from results/public/weighed.csv, after it weighed the missing rows, and
planned some of them, which takes minutes.
SOURCES has clones named as owner+name, INTERPRETERS a Python with torch VERSION as
VERSION/bin/python. On PYTHONPATH they need numpy, sentencepiece, PyYAML, pandas and transformers
4.57 (without torchao). torchtitan also needs torchdata, datasets 4.0, tiktoken, blobfile and
tensorboard; litgpt needs lightning 2.5, jsonargparse and bitsandbytes. fms has INTERPRETERS of
its own, with transformers 4.48.1, peft 0.13.2 and accelerate 1.0.1; 4.45.2, 0.12.0 and 0.34.2 for
PowerLM.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pandas import read_csv
from plan import in_this_process, score, shown
from shared import ROOT, machine, rows_in, run, say, table

from published import calculators
from published.configs import NotComparableError
from published.tokens import fill, prepare

ROWS = ROOT / "results/public/weighed.csv"
TIME = ROOT / "results/public/weighing_time.json"
DEADLINE_S = 3600
PATHS: dict[str, tuple[str, ...]] = {
    "golf": (),
    "speedrun": (),
    "titan": ("torchtitan", "train.py", "train_configs", "tests/assets/test_tiktoken.model"),
    "megatron": ("megatron", "pretrain_gpt.py", "gpt_builders.py", "hybrid_builders.py",
                 "model_provider.py", "examples/t5", "tests/functional_tests/test_cases"),
    "liger": ("src", "benchmark", ":(glob)test/**/*.py"),
    "litgpt": ("litgpt", "config_hub"),
    "lit_gpt": ("lit_gpt", "finetune", "generate", "scripts"),
    "fms": ("scripts/benchmarks/defaults.yaml",),
}  # fmt: skip
KINDS = ("allocated", "reserved")
RAN_OUT = "OOM"
"""In the place of the peak of a run that ran out of memory."""
ABOUT = """# Published peaks, beside those of emulated GPUs

`scripts/bench/published/weighed.py` runs what others published, by their own code at the commit,
on emulated cards: with the nearest torch that these can run. An error is the weighed peak over
the published one. Each is that of the first run that ended; nothing was fitted to a row.
`public/weighed.csv` has the rows, with the source's own words.

What is not theirs:

- Data is random, or all ones, and training takes two to seven steps. Evaluations are left out
  where they come after the peak was printed.
- Of several ranks one runs, in torch's fake process group. Records of modded-nanogpt run in that
  of NCCL, which copies lists of tensors, and so do those of fms-acceleration, whose steps are
  timed. One row of torchtitan also ran with eight real ranks, and held the same.
- Megatron-LM runs without Transformer Engine and Apex. Its tests ask for the local
  implementation. Apex's softmax kernels are replaced by functions that allocate the same.
- The logs of modded-nanogpt begin with the script. Three of its numbers are smaller: iterations,
  steps of warm-up, tokens of validation. Inductor does not search for the best tiles, which would
  compile each kernel dozens of times.
- LitGPT's own `finetune` trains new weights, and each sample has the greatest length. Torch's own
  convolutions stand for those of cuDNN.
- Lit-GPT of 2023 does not evaluate before it trains. The first batch is as long as its longest
  sample, and the others are short.
- fms-acceleration's runs are those of transformers' Trainer in the versions that it names, with
  its settings, new weights and full samples. Torch's flash attention stands for the package.
  PowerLM ran first with the versions of the other models, up to 6.8 % too high.
- torchtitan's tokenizer has the vocabulary of its tests; the model has Llama 3's.
"""
LOSSES = """## Losses

- torchtitan is weighed 3.5 to 4.8 % too low, all rows by 1.0 to 3.4 GB. They ran torch 2.6, and
  emulated cards begin with 2.9.
- Values are not computed. What they steer cannot be weighed, and does not count: see the second
  table.
- Convolutions need cuDNN, which is not emulated.
- `sparsemax, liger` is 256 MiB higher. At the commit that has the figure it allocates a result
  of that size before it sorts. Whether other code was measured is not known.
- `fused_moe, liger` is 64 MiB lower, and `tiled_... forward` on an A100 8.1 MiB. These are
  cuBLAS workspaces of the rows before, which the authors' process still held. Here each row
  starts without.
- `kto_loss, liger` is 38 % lower. Inductor compiles it, and with which torch is not known.
- Where their H100 held 0.5 to 1 MiB more or less than their A100 in the same test, Megatron-LM's
  two figures are one here.
- Mistral's LoRA on two cards is 1.3 and 1.7 % too high. Torch's attention there copies keys and
  values for each head, and the package does not. Whether this is why was not tried.
- Lit-GPT of 2023 on several cards is up to 4.5 % too low, and Llama 2 on one card 2.8 to 4.7 %.
  phi and StableLM on one card agree to 0.2 %. Torch there was 2.1. The cause is not known.
- Its quantized rows ran with bitsandbytes 0.50, and are 14 to 19 % too low. Two of them ran out
  there, and fit here, at 91 and 96 % of the card: above a ceiling of 80 %, as all of those. With
  0.41.1, as there, and lightning 2.1.0, phi and Llama 2 7B agree to 1.8 %. StableLM and Llama 2
  13B are 16 to 33 % too high then: that version loads the whole model before it quantizes. The
  authors had a release candidate of it.
- LitGPT's figures of whole training of Llama 3.2 and Phi-3 are left out. They are below what
  weights, gradients and Adam's states take. Those of StableLM and Falcon are, too: table and
  configuration have other micro-batches.
- modded-nanogpt ran nightly versions of torch 2.8 to 2.10. Here ran 2.9.1 and 2.10.0. Its
  optimizers start collectives, and wait for their futures alone. Torch then holds the tensors
  until its watchdog thread has seen the end of each. Emulated cards have that since these rows
  were 2.9 % too low in the median. Seven of ten agree to 2 MiB allocated now. The other three
  have the shortest steps, and are 0.7 to 3.3 GiB too low: times decide how many steps torch
  holds. Another run of row 03 held 33278 MiB.
"""
_GPT_2 = 50257


def main(sources: Path, interpreters: Path, only: str = "", again: bool = False) -> None:
    """Weigh the missing rows, and print the tables."""
    rows = rows_in(ROWS)
    with tempfile.TemporaryDirectory() as name:
        for row in rows:
            if row["id"].startswith(only) and (again or not row["torch_here"]):
                say(row["id"])
                row.update(weighed(row, sources, interpreters, Path(name)))
                write(rows)
    print(report([row for row in rows if row["torch_here"]]))
    left = ", ".join(row["id"] for row in rows if not row["torch_here"])
    print("", *textwrap.wrap(f"Not run so far: {left or 'none'}.", 99), sep="\n")


def write(rows: list[dict[str, str]]) -> None:
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def weighed(
    row: dict[str, str], sources: Path, interpreters: Path, scratch: Path
) -> dict[str, str]:
    """The peaks of a row's run here, and the time of a step if that was taken."""
    repository = "+".join(row["source"].split("/")[-2:])
    how = json.loads(row["how"])
    task: dict[str, Any] = {
        "case": row["case"], "card": row["card"], "gpus": int(row["gpus"]), "how": how,
        "source": str(checkout(sources / repository, row["commit"], row["case"], scratch,
                               how.get("script", ""))),
        "environment": how.get("environment", {}),
    }  # fmt: skip
    if row["case"] in ("golf", "speedrun"):
        how["data"] = tokens_of(scratch, row["case"], how.get("vocab", _GPT_2))
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            [interpreters / row["torch"] / "bin/python", Path(__file__).with_name("weigh_one.py"),
             json.dumps(task)],
            text=True, capture_output=True, check=False, cwd=scratch, timeout=DEADLINE_S,
            env=os.environ | {"PYTHONPATH": ":".join(filter(None, path))},
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        found = {"ended": f"not done after {DEADLINE_S} s"}
    except (IndexError, ValueError):
        found = {"ended": (done.stderr.strip().splitlines() or ["?"])[-1][:150]}
    given = {f"weighed_{kind}": f"{found[kind]:.2f}" if kind in found else "" for kind in KINDS}
    here = {"torch_here": found.get("torch", row["torch"]), "ended": found["ended"]}
    return given | here | {"step_ms": f"{found.get('step_ms') or '':.6}"}


def checkout(repository: Path, commit: str, case: str, scratch: Path, script: str) -> Path:
    """The files of a commit that a case needs."""
    folder = scratch / f"{repository.name}-{commit}"
    folder.mkdir(exist_ok=True)
    paths = PATHS[case] or (script,)
    packed = subprocess.run(
        ["git", "-C", repository, "archive", commit, *paths], capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", folder], input=packed.stdout, check=True)
    if case == "titan":
        texts = folder / "tests/assets/c4_test/data.json"
        texts.parent.mkdir(parents=True, exist_ok=True)
        texts.write_text("\n".join(json.dumps({"text": text}) for text in words(500)))
    return folder


def words(samples: int) -> Iterator[str]:
    letters = random.Random(0)
    for _ in range(samples):
        yield " ".join("".join(letters.choices("abcdefghijklmnop", k=5)) for _ in range(400))


@cache
def tokens_of(scratch: Path, case: str, vocab: int) -> dict[str, str]:
    folder = scratch / f"data-{case}-{vocab}"
    folder.mkdir()
    if case == "golf":
        return prepare(folder, "", vocab, 8_000_000)
    for data in ("data", "run/data"):  # scripts run in `run`, and read data/ or ../data/
        (folder / data).mkdir(parents=True)
        (folder / data / "fineweb10B").symlink_to(folder)
    (folder / "run/logs/final").mkdir(parents=True)  # one script takes it as given
    return fill(folder, vocab, 12_000_000)


def figures(rows: list[dict[str, str]]) -> list[tuple[dict[str, str], str, float]]:
    """Each published figure that could be weighed, with its error."""
    return [
        (row, kind, float(row[f"weighed_{kind}"]) / float(row[kind]) - 1)
        for row in rows
        for kind in KINDS
        if row[kind] not in ("", RAN_OUT)
        and row[f"weighed_{kind}"]
        and not row["ended"]
        and not row["left_out"]
    ]


def spread(errors: list[float]) -> list[str]:
    if not errors:
        return ["-"] * 3
    sizes = sorted(map(abs, errors))
    ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return [f"{statistics.median(sizes):.2%}", f"{ninth:.1%}", f"{statistics.median(errors):+.2%}"]


def release(version: str) -> str:
    return version.partition("+")[0]


def report(rows: list[dict[str, str]]) -> str:
    found = figures(rows)
    sources = dict.fromkeys(row["source"] for row in rows)
    groups = [
        ("all", found),
        ("whole training runs", [f for f in found if f[0]["case"] != "liger"]),
        ("torch as there", [f for f in found if release(f[0]["torch_there"]) == f[0]["torch"]]),
    ]
    for source in sources:
        name = source.removeprefix("https://github.com/")
        groups.append((name, [f for f in found if f[0]["source"] == source]))
    summary = table(
        "figures | runs | figures | median error | 90th percentile | median with its sign",
        ([name, len({f[0]["id"] for f in some}), len(some), *spread([f[2] for f in some])]
         for name, some in groups),
    )  # fmt: skip
    out = [row for row in rows if row["allocated"] == RAN_OUT]
    causes = Counter(
        row["left_out"] or row["ended"] for row in rows if row["allocated"] != RAN_OUT
    )
    del causes[""]
    lost = table("why it does not count | rows", causes.most_common())
    lines = table(
        "row | what | torch there | here | card | published MiB | weighed MiB | error",
        ([row["id"], row["name"], row["torch_there"] or "?", row["torch_here"],
          f"{row['gpus']}x{row['card']}", f"{float(row[kind]):.0f} {kind}",
          f"{float(row[f'weighed_{kind}']):.0f}", f"{error:+.2%}"]
         for row, kind, error in found),
    )  # fmt: skip
    notes = [f"- `{row['id']}`: {row['note']}" for row in rows if row["note"]]
    made = f"{machine()}. Errors are sizes without a sign, but for the last column."
    parts = [
        ABOUT,
        made,
        summary,
        lost,
        "\n".join(notes),
        beside(found),
        beside_formulas(rows),
        took(),
        LOSSES,
    ]
    parts += ["## Runs that ran out of memory", ran_out(out), "## Rows", lines]
    return "\n\n".join(part.strip() for part in parts if part)


def ran_out(rows: list[dict[str, str]]) -> str:
    """Where published runs ran out of memory, the ends of the same runs here."""
    out = sum(row["ended"].startswith("OutOfMemoryError") for row in rows)
    about = textwrap.fill(
        f"{out} of {len(rows)} run out here, too. Rows of fms-acceleration without figures, whose"
        " cards were full, count as such runs.", 99,
    )  # fmt: skip
    return f"{about}\n\n" + table(
        "row | what | card | here",
        ([row["id"], row["name"], f"{row['gpus']}x{row['card']}",
          row["ended"].partition(". GPU")[0] or f"fits: {row['weighed_reserved']} MiB reserved"]
         for row in rows),
    )  # fmt: skip


def beside(found: list[tuple[dict[str, str], str, float]]) -> str:
    """Other calculators on the same figures."""
    told = calculators.errors(found)
    lines = table(
        "calculator | counts | median error | 90th percentile | median with its sign"
        " | Llama 3 8B: median with its sign",
        ([name, scope, *spread([error for _, error in errors]),
          spread([error for of_llama, error in errors if of_llama])[2]]
         for name, scope, errors in told),
    )  # fmt: skip
    return f"{calculators.ABOUT.format(rows=len(told[0][2]))}\n\n{lines}"


def beside_formulas(rows: list[dict[str, str]]) -> str:
    """`plan --formulas` on the runs that memory.csv describes, of any micro-batch."""
    known: dict[tuple[str, int, bool], dict[Any, Any]] = {
        (run["model"].split("/")[1], int(run["gpus"]), run["lora_rank"] > 0): run
        for run in read_csv(ROWS.with_name("memory.csv")).to_dict("records")
        if run["id"].startswith(("fms", "litgpt"))
    }  # fmt: skip
    told, out, helpers = [], [], in_this_process()
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            how = json.loads(row["how"])
            is_out = row["allocated"] == RAN_OUT
            if row["case"] not in ("fms", "lit_gpt") or how.get("quantize"):
                continue
            model = how["model"] if row["case"] == "lit_gpt" else row["name"].split(",")[0]
            run = known.get((model, int(row["gpus"]), how.get("lora", True)))
            if run is None:
                continue
            peak = math.nan if is_out else float(row["allocated"]) / 1024
            run = run | {"micro_batch": how["batch"], "peak_gib": peak, "outcome": ""}
            try:
                made = score(run | {"peak_kind": "max_allocated"}, Path(folder), helpers)
            except NotComparableError as error:
                say(f"{row['id']}: {error}")
                continue
            say(f"{row['id']}: {' | '.join(shown(made))}")
            if is_out:
                out.append(made.expected.fits)
            else:
                told.append((float(row["weighed_allocated"]) / 1024 / peak - 1, made.error))
    weighed_here, formulas = zip(*told, strict=True)
    lines = table(
        f"on {len(told)} figures | median error | 90th percentile | median with its sign",
        [["weighed here", *spread([*weighed_here])], ["`plan --formulas`", *spread([*formulas])]],
    )
    nearer = sum(abs(ours) < abs(theirs) for ours, theirs in told)
    said = textwrap.fill(
        f"Runs of fms-acceleration and of Lit-GPT of 2023 that formulas can describe. Weighing is"
        f" nearer on {nearer}. Of {len(out)} that ran out of memory, formulas expect {sum(out)} to"
        f" fit at 80 % of the card.", 99,
    )  # fmt: skip
    return f"## Beside formulas\n\n{said}\n\n{lines}"


def took() -> str:
    """The time of weighing, by `weighing_time.py`."""
    if not TIME.exists():
        return ""
    found = json.loads(TIME.read_text())
    seconds = found["seconds"]
    return (
        f"## Time\n\n`autotune plan {found['plan']}` weighed {found['weighed']} of {found['rows']}"
        f" candidates in {seconds['weighed']} s, the trace of formulas included:"
        f" {seconds['weighed, processor']} s of the processor. `--formulas` took"
        f" {seconds['formulas']} s. {found['machine']}; {found['versions']}. Load of the machine,"
        f" this program included: {found['beside']}."
    )


if __name__ == "__main__":
    run(main)
