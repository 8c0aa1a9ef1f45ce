"""Errors of whole attention layers, which no constants were fitted to: the sum of their kernels against public tables.

    python -m lab.score.attention_layers FOLDER [--rows N] [--output FILE]

The tables (ai-dynamo/aiconfigurator, collector/) time the attention layer of DeepSeek-V3.2 and GLM-5 (DSA), DeepSeek-V4
(CSA, HCA) and MiniMax-M3 (MSA): from the normalised input to the output projection, without norms around it and
without the all-reduce, on one rank's heads. A layer here is the same operators of the model's graph as the engine
launches them. Rows whose heads are not those of a rank are left out, and N of the others are drawn of each table.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lab.command import run_written
from roofline.core.errors import RooflineError
from roofline.graph.extents import Step
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import load_hardware
from roofline.specs.modelspec import load_model
from roofline.timing.kernels import Array
from roofline.validate.tables.origin import origin

if TYPE_CHECKING:
    import pandas as pd

MODELS: Mapping[str, tuple[str, int]] = {
    "DeepSeek-V3.2": ("deepseek-v3.2", 128),
    "GLM-5": ("glm-5", 64),
    "DeepSeek-V4-Flash": ("deepseek-v4-flash", 64),
    "DeepSeek-V4-Pro": ("deepseek-v4-pro", 128),
    "MiniMax-M3": ("minimax-m3", 64),
}
"""The bundled model and its attention heads, by the beginning of a repository's name."""

SECTIONS: Mapping[str, str] = {"csa": "csa_routed", "hca": "hca_routed", "dsa": "moe", "msa": "sparse_moe"}
"""The group of layers whose attention a table times."""

AROUND = ("attn_norm", "attn_all_reduce", "attn_add", "attn_hc_pre", "attn_hc_post")
"""Operators of the attention sub-layer outside of what is timed; the feed-forward block has other prefixes."""

AFTER = re.compile(r"mlp|router|expert|shared|dispatch|combine")

FORMATS: Mapping[str, str] = {"bfloat16": "bf16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


class Scored(NamedTuple):
    """The rows of one table: predicted over measured times, and the fraction in the interval."""

    table: str
    rows: int
    mape: float
    median: float
    bias: float
    inside: float


def score(folder: Path, rows: int = 400) -> Iterator[Scored]:
    """The errors of every table of attention layers in a folder."""
    import pandas as pd

    for path in sorted(folder.glob("*_module.*.parquet")):
        name = re.match(r"([^.]+)\.(?:dsv4_)?(csa|hca|dsa|msa)_(context|generation)_module\.(.+)\.parquet", path.name)
        if name is None:
            continue
        frame = pd.read_parquet(path)
        sizes = frame.select_dtypes("number").columns
        frame = frame.astype(dict.fromkeys(sizes, float))
        frame = frame.sample(min(rows, len(frame)), random_state=0)
        found = [one for one in _predicted(frame, name[2], name[3] == "generation") if one is not None]
        if found:
            low, mid, high, seconds = (np.concatenate(part) for part in zip(*found, strict=True))
            ratio = mid / seconds
            errors = np.abs(ratio - 1)
            inside = float(np.mean((low <= seconds) & (seconds <= high)))
            label = f"{name[2].upper()} {name[3]}, {name[1]}, {name[4]}"
            yield Scored(
                label, len(mid), float(errors.mean()), float(np.median(errors)), float(np.median(ratio)), inside
            )


def _predicted(frame: pd.DataFrame, kind: str, decode: bool) -> Iterator[tuple[Array, Array, Array, Array] | None]:
    keys = ["hardware", "model", "gemm_type", "kv_cache_dtype", "engine", "table_version", "num_heads"]
    skipped = frame["op_name"].str.contains("skip")
    for values, part in frame.groupby([*keys, skipped]):
        hardware, repository, gemm, cache, engine, version = map(str, values[:6])
        heads, skips = float(str(values[6])), bool(values[7])
        base = repository.rpartition("/")[2]
        known = next((one for name, one in sorted(MODELS.items(), reverse=True) if base.startswith(name)), None)
        if known is None or gemm not in FORMATS or known[1] % heads or skips:
            yield None
            continue
        model, every = known
        found = origin(f"{engine} {version}")
        try:
            yield _layer(part, model, hardware, int(every // heads), str(found.engine), gemm, cache, kind, decode)
        except RooflineError:
            yield None


def _layer(
    part: pd.DataFrame,
    model: str,
    hardware: str,
    ranks: int,
    engine: str,
    gemm: str,
    cache: str,
    kind: str,
    decode: bool,
) -> tuple[Array, Array, Array, Array]:
    """The interval and the expected seconds of the rows of one layer, and their measured ones."""
    options: dict[str, Any] = {} if model.startswith("deepseek-v4") else {"quant": FORMATS[gemm]}
    if cache.startswith("fp8") and options:
        options["kv"] = "fp8"
    scenario = Scenario(
        load_model(model), load_hardware(hardware), tp=ranks, prompt=64, generate=2, engine=engine, **options
    )
    answer = analyze(scenario)
    phase = answer.decode if decode and answer.decode is not None else answer.prefill
    timing = phase.timed(phase.passes[-1])
    step = Step(*(part[name].to_numpy() for name in ("batch_size", "isl", "step")))
    detail = timing.detail(step)
    chosen = []
    for row, entry in enumerate(timing.kernels):
        names = [timing.placement.ops[index][0].name for index in entry.parts]
        if entry.section == SECTIONS[kind] and not AFTER.match(names[0]) and names[0] not in AROUND:
            chosen.append(row)
    low, mid, high = (times[chosen].sum(axis=0) for times in (detail.low, detail.mid, detail.high))
    return low, mid, high, part["latency_us"].to_numpy() * 1e-6


def report(folder: Path, rows: int) -> str:
    """The errors in a table of Markdown."""
    lines = [
        "| layer | rows | MAPE, % | median, % | predicted / measured | in the interval, % |",
        "|---|---|---|---|---|---|",
    ]
    for one in score(folder, rows):
        lines.append(
            f"| {one.table} | {one.rows} | {100 * one.mape:.1f} | {100 * one.median:.1f} | {one.bias:.2f}"
            f" | {100 * one.inside:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.attention_layers", description="Attention layers.")
    parser.add_argument("measurements", type=Path, help="folder of public tables")
    parser.add_argument("--rows", type=int, default=400, help="rows of each table")
    return run_written(parser, lambda options: report(options.measurements, options.rows), arguments)


if __name__ == "__main__":
    sys.exit(main())
