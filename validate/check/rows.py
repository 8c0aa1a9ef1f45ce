"""Whole-model rows (CSV) as figures of `roofline validate check`: of static batches, and under a load.

Times are in milliseconds. A static batch is compared by the time of its metric, a load by mean TTFT, mean TPOT and
output tokens/s (mean E2E latency follows from them).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from roofline.core.errors import RooflineError, SpecError
from roofline.validate.check.figure import Figure
from roofline.validate.score import end_to_end
from roofline.validate.score.errors import Predicted
from roofline.validate.tables.loads import is_load
from roofline.validate.tables.published import read_rows
from roofline.validate.tables.text import Line

LOADED = {"ttft": "ttft", "tpot": "tpot", "throughput": "tokens_per_s"}
"""The metrics of `roofline.validate.check.anchor` for the times of a load."""


def row_figures(path: Path) -> list[Figure]:
    """The figures of a CSV file; raises SpecError with the row where one cannot be simulated."""
    times: Counter[str] = Counter()
    found = []
    for figure in (*_static(path), *_loaded(path)):
        times[figure.id] += 1
        again = f"-{times[figure.id]}" if times[figure.id] > 1 else ""
        found.append(replace(figure, id=f"{figure.id}{again}"))
    return found


def _static(path: Path) -> Iterator[Figure]:
    rows = [row for row in read_rows(path) if not is_load(row.cell("batch"))]
    for row in rows:
        try:
            case = end_to_end.to_case(row)
            found = end_to_end.predict(case)
        except RooflineError as error:
            raise SpecError(str(path), f"row {row.line.number}: {error}") from None
        prediction = Predicted(*(1e3 * seconds for seconds in found))
        yield _figure(row.line, str(case.quantity), 1e3 * case.measured, prediction, path)


def _loaded(path: Path) -> Iterator[Figure]:
    from roofline.validate.score.serving import Predictor, estimate_of, read_cases  # needs SciPy

    cases, skipped = read_cases(path)
    for line, reason in skipped:
        if is_load(line.cells["batch"]):
            raise SpecError(str(path), f"row {line.number}: {reason}")
    predictor = Predictor()
    for case in cases:
        try:
            outcome = predictor(case)
        except RooflineError as error:
            raise SpecError(str(path), f"row {case.line.number}: {error}") from None
        for name, metric in LOADED.items():
            if (seconds := getattr(case, name)) is None:
                continue
            low, mid, high = estimate_of(outcome, name)
            if metric == "tokens_per_s":
                rates = Predicted(1 / low, 1 / high, 1 / mid, 1 / low)
                yield _figure(case.line, metric, 1 / seconds, rates, path, load=True)
            else:
                times = Predicted(1e3 * low, 1e3 * low, 1e3 * mid, 1e3 * high)
                yield _figure(case.line, metric, 1e3 * seconds, times, path, load=True)


def _figure(
    line: Line, metric: str, measured: float, prediction: Predicted, path: Path, *, load: bool = False
) -> Figure:
    """A measured figure beside its prediction, in milliseconds or, of a rate, in tokens/s."""
    cells = line.cells
    names = ("model", "hardware", "gpus", "engine", "weights", "kv", "batch", "input_len", "output_len")
    place = cells["hardware"] if cells["gpus"] == "1" else f"{cells['gpus']} x {cells['hardware']}"
    lengths = f"{cells['input_len']} in, {cells['output_len'] or 0} out"
    batch = cells["batch"] if is_load(cells["batch"]) else f"batch {cells['batch']}"
    parts = (f"{cells['model']} on {place}", cells["weights"] or "16-bit", batch, lengths, cells["engine"])
    is_rate = metric == "tokens_per_s"
    return Figure(
        re.sub(r"[^a-z0-9.]+", "-", " ".join((*(cells[name] for name in names), metric)).lower()).strip("-"),
        "tokens/s" if is_rate else "ms",
        measured,
        prediction,
        group=str(path),
        source=cells.get("source", ""),
        metric=metric,
        conditions=", ".join(parts),
        rate=is_rate,
        bounded=not load,
    )
