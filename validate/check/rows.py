"""Whole-model rows (CSV) as figures of `roofline validate check`: of static batches, and under a load.

Times are in milliseconds. A static batch is compared by the time of its metric, a load by mean TTFT, mean TPOT and
output tokens/s (mean E2E latency follows from them). A load has no bound: in the committed file the end of the interval
on its side stands for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from roofline.core.errors import RooflineError, SpecError
from roofline.timing.intervals import Estimate
from roofline.validate.score import end_to_end
from roofline.validate.score.errors import Predicted
from roofline.validate.tables.loads import is_load
from roofline.validate.tables.published import read_rows
from roofline.validate.tables.text import Line

LOADED = {"ttft": "ttft", "tpot": "tpot", "throughput": "tokens_per_s"}
"""The metrics of `roofline.validate.check.anchor` for the times of a load."""


class RowFigure(NamedTuple):
    """A measured figure with its prediction, both in `unit`; `bound` is None under a load."""

    line: Line
    metric: str
    unit: str
    measured: float
    prediction: Predicted
    bound: float | None

    def error(self, predicted: float) -> float:
        """The relative error of a prediction; of a rate, that of the corresponding time."""
        return (predicted / self.measured if self.unit == "ms" else self.measured / predicted) - 1


def row_figures(path: Path) -> dict[str, RowFigure]:
    """The figures of a CSV file by id; raises SpecError with the row where one cannot be simulated."""
    found: dict[str, RowFigure] = {}
    times: Counter[str] = Counter()
    for figure in (*_static(path), *_loaded(path)):
        cells = figure.line.cells
        names = ("model", "hardware", "gpus", "engine", "weights", "kv", "batch", "input_len", "output_len")
        text = " ".join((*(cells[name] for name in names), figure.metric))
        id = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
        times[id] += 1
        found[id if times[id] == 1 else f"{id}-{times[id]}"] = figure
    return found


def _static(path: Path) -> Iterator[RowFigure]:
    rows = [row for row in read_rows(path) if not is_load(row.cell("batch"))]
    for row in rows:
        try:
            case = end_to_end.to_case(row)
            found = end_to_end.predict(case)
        except RooflineError as error:
            raise SpecError(str(path), f"row {row.line.number}: {error}") from None
        prediction = Predicted(*(1e3 * seconds for seconds in found))
        yield RowFigure(row.line, str(case.quantity), "ms", 1e3 * case.measured, prediction, prediction.bound)


def _loaded(path: Path) -> Iterator[RowFigure]:
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
            seconds = getattr(case, name)
            if seconds is not None:
                yield _of_load(case.line, metric, seconds, estimate_of(outcome, name))


def _of_load(line: Line, metric: str, seconds: float, predicted: Estimate) -> RowFigure:
    low, mid, high = predicted
    if metric == "tokens_per_s":
        return RowFigure(line, metric, "tokens/s", 1 / seconds, Predicted(1 / low, 1 / high, 1 / mid, 1 / low), None)
    times = Predicted(1e3 * low, 1e3 * low, 1e3 * mid, 1e3 * high)
    return RowFigure(line, metric, "ms", 1e3 * seconds, times, None)


def row_document(id: str, figure: RowFigure, file: str) -> Mapping[str, Any]:
    """A figure in the document of a check, with the keys of an anchor."""
    cells, (_, low, mid, high) = figure.line.cells, figure.prediction
    place = cells["hardware"] if cells["gpus"] == "1" else f"{cells['gpus']} x {cells['hardware']}"
    lengths = f"{cells['input_len']} in, {cells['output_len'] or 0} out"
    formats = cells["weights"] or "16-bit"
    load = cells["batch"] if is_load(cells["batch"]) else f"batch {cells['batch']}"
    return {
        "id": id,
        "group": file,
        "source": cells.get("source", ""),
        "metric": figure.metric,
        "conditions": ", ".join((f"{cells['model']} on {place}", formats, load, lengths, cells["engine"])),
        "unit": figure.unit,
        "published": figure.measured,
        "bound": figure.bound,
        "low": low,
        "mid": mid,
        "high": high,
        "error": figure.error(mid),
        "bound_error": None if figure.bound is None else figure.error(figure.bound),
        "inside": low <= figure.measured <= high,
        "note": None,
        "faster_than_bound": None,
    }
