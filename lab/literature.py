"""`python -m lab.literature`: compare published speed-ups with simulations of the stated conditions.

Simulated are expected times, on the frameworks' kernels in Table 4 and on Hugging Face Transformers in Table 5.
Conditions that a paper does not state are assumed and documented here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.specs.engine import Engine, load_engine
from roofline.techniques import apply_techniques

TABLE_4 = Path(__file__).parent / "data" / "zhou_table_4.csv"


class Row(Struct, frozen=True):
    """One figure, or one range of figures, as measured and as simulated."""

    case: str
    quantity: str
    measured: tuple[float, float]
    simulated: tuple[float, float]


class Cell(Struct, frozen=True):
    """One cell of Table 4: a speed-up of W4A16 over FP16; `defect` is the reason why it is not used, or empty."""

    framework: str
    model: str
    batch: int
    context: int
    phase: str
    speedup: float | None
    defect: str


# --- Table 5: speculative decoding ------------------------------------------------------------------------------------

# Method, its technique, and the ranges of tokens per step and of the speed-up in the table.
SPECULATION = (
    ("SSD", "self-speculative:{}", (1.64, 1.74), (1.01, 1.23)),
    ("SpD", "speculative-decoding:draft=llama-68m,length=2,{}", (1.77, 2.02), (1.05, 1.77)),
    ("SpD", "speculative-decoding:draft=llama-160m,length=2,{}", (1.77, 2.02), (1.05, 1.77)),
    ("LADE", "lookahead:{}", (1.92, 2.14), (1.12, 1.30)),
    ("REST", "rest:{}", (2.18, 2.31), (1.72, 2.27)),
    ("Medusa-1", "medusa:{}", (2.52, 2.62), (2.04, 2.86)),
    ("Eagle", "eagle:tree=25,topk=10,length=5,{}", (3.47, 3.72), (2.77, 3.74)),
)
TARGETS = ("llama-7b", "llama-13b", "llama-30b", "llama-2-7b", "llama-2-13b")
"""Vicuna-V1.3 7B, 13B and 33B are fine-tuned LLaMA 7B, 13B and 30B; LLaMA-2 7B and 13B."""


def table_5() -> list[Row]:
    """Speed-ups of six speculative methods over plain decoding (Zhou et al. 2024, Table 5), the range over five models.

    The paper states the models, the dataset (Vicuna-80) and the range of tokens accepted per step, but not which model
    has which: each model is simulated with the middle of the range. (With both ends for each model SpD spans 1.04 to
    1.89, REST 1.67 to 2.31.) The paper does not state the hardware, the batch, the precision, the software or the size
    of the drafts. Assumed here: one A100 80GB, which the rest of the paper uses, batch 1, FP16, 128 tokens in and 256
    out, Hugging Face Transformers, on which the released code of all six runs, and the techniques' defaults, with
    EAGLE's released tree. The launches of a token (`hf-eager`) are from the paper's Table 6. LADE's slowdown is fitted
    to this table. The published upper speed-ups of Medusa-1 and Eagle exceed their tokens per step: no schedule reaches
    them.

    SpD drafts 2 tokens. Transformers adds 2 when all are accepted and takes 1 away otherwise (`heuristic` schedule of
    `num_assistant_tokens`, the default), so that the length k stays where a^k = 1/3 for the acceptance rate a. Of k = 2
    tokens 1 + a + a^2 = 1.91 are then accepted per step, the middle of the published 1.77 to 2.02.
    """
    found: dict[str, list[float]] = {}
    published: dict[str, tuple[float, float]] = {}
    for target in TARGETS:
        plain = Scenario(
            load_model(target),
            load_hardware("a100-sxm-80gb"),
            prompt=128,
            generate=256,
            precision=parse_precision("fp16"),
            engine="hf-eager",
        )
        base = _tpot(plain)
        for method, technique, accepted, measured in SPECULATION:
            published[method] = measured
            drafted = apply_techniques(plain, [technique.format(f"accept={sum(accepted) / 2}")])
            found.setdefault(method, []).append(base / _tpot(drafted))
    return [Row(method, "decode", published[method], (min(gains), max(gains))) for method, gains in found.items()]


def _tpot(scenario: Scenario) -> float:
    """The middle of the expected TPOT in seconds."""
    tpot = analyze(scenario).expected.tpot
    assert tpot is not None
    return float(tpot.mid)


# --- Table 4: W4A16 ---------------------------------------------------------------------------------------------------


def table_4_cells(path: Path = TABLE_4) -> list[Cell]:
    """The cells of Table 4 for prefill and decode, defective ones with the reason."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return [cell for line in lines for cell in _cells(line)]


def _cells(line: dict[str, str]) -> Iterator[Cell]:
    for phase in ("prefill", "decode"):
        yield Cell(
            line["framework"],
            line["model"],
            int(line["batch"]),
            int(line["context"]),
            phase,
            float(line[phase]) if line[phase] else None,
            line["defect"] if phase in line["unusable"].split() else "",
        )


def table_4() -> list[Row]:
    """Speed-ups of W4A16 (AWQ) over FP16 on an A100 (Zhou et al. 2024, Table 4): the usable cells of both phases.

    The paper states models, batch and input length. It does not state the output length, which its own end-to-end
    figures put near the input's, nor whether the A100 has 40 or 80 GB. Assumed here: as many tokens out as in, 80 GB.
    Simulated are expected times, since at the bound prefill is never slower. The kernels' constants are fitted to the
    cells of LLaMA-2-7B, so that those of LLaMA-2-13B are held out.
    """
    simulated: dict[tuple[Any, ...], float] = {}
    rows = []
    for cell in table_4_cells():
        if cell.speedup is None or cell.defect:
            continue
        key = (cell.framework, cell.model, cell.batch, cell.context, cell.phase)
        if key not in simulated:
            simulated |= _simulated(*key[:4])
        gain = simulated[key]
        case = f"{cell.framework} {cell.model} batch {cell.batch} context {cell.context}"
        rows.append(Row(case, cell.phase, (cell.speedup, cell.speedup), (gain, gain)))
    return rows


def _framework(name: str) -> Engine:
    """The profile of a framework of Table 4; LMDeploy has TensorRT-LLM's, which both are C++, with its own kernel."""
    engine = load_engine("tensorrt-llm")
    if name == "LMDeploy":
        return replace(engine, name="lmdeploy", weight_only={"awq": "turbomind"})
    return engine


def _simulated(framework: str, model: str, batch: int, context: int) -> dict[tuple[Any, ...], float]:
    """The speed-up of AWQ in prefill and decode, from the middles of the expected times."""
    plain = Scenario(
        load_model(model),
        load_hardware("a100-sxm-80gb"),
        batch=batch,
        prompt=context,
        generate=context,
        precision=parse_precision("fp16"),
        engine=_framework(framework),
    )
    before = analyze(plain).expected
    after = analyze(plain.changed(precision=parse_precision("fp16", "awq"))).expected
    gains = {"prefill": before.ttft.mid / after.ttft.mid}
    if before.tpot is not None and after.tpot is not None:
        gains["decode"] = before.tpot.mid / after.tpot.mid
    return {(framework, model, batch, context, phase): gain for phase, gain in gains.items()}


def summary_of_table_4(rows: list[Row]) -> str:
    """A text table of the means, errors and signs by framework, model and phase; LLaMA-2-13B is held out."""
    lines = [f"{'':34}{'cells':>6}{'measured':>10}{'simulated':>10}{'error':>8}{'same side of 1':>16}"]
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in rows:
        framework, model, *_ = row.case.split()
        groups.setdefault((framework, model, row.quantity), []).append((row.measured[0], row.simulated[0]))
    for names, pairs in groups.items():
        count = len(pairs)
        measured, simulated = (sum(side) / count for side in zip(*pairs, strict=True))
        error = sum(abs(ours / theirs - 1) for theirs, ours in pairs) / count
        same = sum((ours < 1) == (theirs < 1) for theirs, ours in pairs)
        lines.append(f"{' '.join(names):34}{count:6}{measured:10.3f}{simulated:10.3f}{error:8.1%}{same:16}")
    return "\n".join(lines)


# --- printing ---------------------------------------------------------------------------------------------------------


def _range(values: tuple[float, float]) -> str:
    low, high = values
    return f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"


def report(title: str, rows: list[Row]) -> str:
    """A text table of measured and simulated speed-ups."""
    width = max(len(row.case) for row in rows)
    lines = [
        f"{row.case:{width}}  {row.quantity:8} {_range(row.measured):>11} {_range(row.simulated):>11}" for row in rows
    ]
    head = f"{'':{width}}  {'':8} {'measured':>11} {'simulated':>11}"
    return "\n".join([title, head, *lines])


def main() -> None:
    """Print both tables, and the cells that are not used."""
    rows = table_4()
    typer.echo(report("Speed-up of W4A16 over FP16, Zhou et al. 2024, Table 4", rows))
    typer.echo(f"\n{summary_of_table_4(rows)}")
    left_out = [cell for cell in table_4_cells() if cell.defect]
    typer.echo(f"\nNot used: {len(left_out)} cells")
    for cell in left_out:
        place = f"{cell.framework} {cell.model} batch {cell.batch} context {cell.context} {cell.phase}"
        typer.echo(f"  {place}: {cell.defect}")
    typer.echo("")
    typer.echo(report("Speed-up of speculative decoding, Zhou et al. 2024, Table 5", table_5()))


if __name__ == "__main__":
    main()
