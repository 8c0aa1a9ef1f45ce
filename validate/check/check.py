"""`roofline validate check`: compare predictions with published figures, and with the committed predictions.

A change of the simulator that moves a prediction fails the check, is judged by the errors before and after, and is
accepted with `--accept`. By default the figures are those of this project: published ones of whole models (anchors),
and kernels that it measured (geometric means by shape class). Their committed predictions are part of the repository,
not of the installed package.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from roofline.core.documents import finite_number, parse_yaml, read_mapping
from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.files import write_text
from roofline.timing.intervals.estimate import READINGS
from roofline.validate.check.anchor import FOLDER, METRICS, TIMED, Figure, figure_of, load_anchors
from roofline.validate.check.measured import FOLDER as MEASUREMENTS
from roofline.validate.check.measured import MeasurementFile, geometric_mean, load_row_files, predict_rows
from roofline.validate.score import end_to_end
from roofline.validate.score.errors import Predicted
from roofline.validate.score.kernels import Scored
from roofline.validate.tables.published import read_rows
from roofline.validate.tables.serving import is_load
from roofline.validate.tables.text import Line, is_plausible

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
        yield _figure(row.line, case.quantity, 1e3 * case.measured, prediction, path)


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


PREDICTIONS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "predictions.yaml"
"""The committed predictions of a checkout."""

TOLERANCE = 0.005
"""Relative change of a prediction that is ignored: rounding, and other versions of the libraries."""

DIGITS = 5
"""Significant digits of a committed prediction: more than `TOLERANCE` tells apart."""

HEAD = """\
# The predictions of every anchor, in the unit of its figure, and of every class of measured kernels (geometric means
# in microseconds); five digits. A single number is exact. Written by `roofline validate check --accept`, never by hand.
"""
MOVED_HEAD = "# By the last acceptance: predictions before and after, and their errors against the published figures.\n"


def check(
    anchors: Path | None = None,
    predictions: Path | None = None,
    accept: bool = False,
    tolerance: float = TOLERANCE,
    measurements: Path | None = None,
) -> dict[str, Any]:
    """Predict every anchor and measured kernel; compare with the measurements and with the committed predictions.

    `anchors` is a YAML file, a folder of them or a CSV file of whole-model rows (default: the bundled ones),
    `measurements` a folder of kernels with their provenance (default: the bundled ones, or none with `anchors`),
    `predictions` the committed file (default: the project's). With `accept`, predictions that moved by more than
    `tolerance` are written to that file; those of anchors that a single file of `anchors` lacks stay. The document has
    `passed` and the `verdict`, and lists `anchors`, `summary`, `kernels` and `moved`. Raises RooflineError for files
    that cannot be read or written.
    """
    path = _committed_path(anchors, predictions, accept)
    csv = anchors is not None and anchors.suffix.lower() == ".csv"
    if csv and anchors is not None:
        figures = row_figures(anchors)
    else:
        figures = [figure_of(anchor) for anchor in load_anchors(FOLDER if anchors is None else anchors)]
    folder = MEASUREMENTS if measurements is None and anchors is None else measurements
    kernels = [] if folder is None else [(file, predict_rows(file)) for file in load_row_files(folder)]
    everything = {figure.id: figure for figure in (*figures, *_classes(kernels))}
    committed = {} if accept and not path.exists() else read_predictions(path)
    # The anchors of one file may share the file of predictions with those of others, which stay.
    alone = anchors is not None and anchors.is_file()
    others = {id: kept for id, kept in committed.items() if alone and id not in everything}
    compared = {id: old for id, old in committed.items() if id not in others}
    moved = list(_moved(everything.values(), compared, tolerance))
    if accept and moved:
        new = {row["id"] for row in moved}
        kept = {id: figure.prediction if id in new else committed[id] for id, figure in everything.items()}
        write_text(path, render_predictions(others | kept, moved if committed else ()))
    rows = [figure.row for figure in figures]
    document = {
        "anchors": rows,
        "kernels": [_kernel_document(file, groups) for file, groups in kernels],
        "summary": list(_summary(rows)),
        "moved": moved,
        "metrics": {name: METRICS[name].meaning for name in dict.fromkeys(row["metric"] for row in rows)},
        "predictions": str(path),
        "tolerance": tolerance,
        "accepted": accept and bool(moved),
        "passed": accept or not moved,
    }
    return {"verdict": _verdict(document), **document}


def _verdict(document: Mapping[str, Any]) -> str:
    count, moved = len(document["anchors"]), document["moved"]
    rows = sum(file["rows"] for file in document["kernels"])
    of_kernels = f" and those of {rows} measured kernels" if rows else ""
    if not moved:
        return f"all {count} predictions{of_kernels} match the committed ones within {document['tolerance']:.1%}"
    kinds = [row["status"] for row in moved]
    parts = [f"{kinds.count(kind)} {kind}" for kind in ("moved", "added", "removed") if kind in kinds]
    listed = ", ".join(parts)
    number = sum(len(group["classes"]) for file in document["kernels"] for group in file["groups"])
    classes = f" and {number} classes of kernels" if number else ""
    if document["accepted"]:
        return f"accepted: {listed} of {count} anchors{classes}, written to {document['predictions']}"
    return f"{listed} of {count} anchors{classes}; if intended, run the same command with --accept"


def _committed_path(anchors: Path | None, given: Path | None, accept: bool) -> Path:
    if anchors is not None and given is None:
        raise RooflineError(
            "anchors of your own need their predictions: the committed ones are of the bundled anchors",
            options=["predictions"],
        )
    path = PREDICTIONS if given is None else given
    if given is None and not path.parent.exists():
        raise RooflineError(
            "an installation has no committed predictions of the bundled anchors; to check figures of your own, give"
            " anchors and predictions",
            options=["anchors", "predictions"],
        )
    if not accept and not path.exists():
        raise RooflineError(
            f"{quote(str(path), 200)} does not exist; accepting the predictions writes it", options=["accept"]
        )
    return path


# --- what moved -------------------------------------------------------------------------------------------------------


def _moved(
    figures: Collection[Figure], committed: Mapping[str, Predicted], tolerance: float
) -> Iterator[dict[str, Any]]:
    """The predictions that were added, removed, or differ from the committed ones by more than the tolerance."""
    for figure in figures:
        new, old = figure.prediction, committed.get(figure.id)
        if old is None:
            yield _moved_row(figure.id, "mid", None, new.mid, figure)
            continue
        changes = {name: abs(getattr(new, name) / getattr(old, name) - 1) for name in ("mid", "bound", "low", "high")}
        most = max(changes, key=lambda name: changes[name])
        if not changes[most] <= tolerance:
            most = "mid" if changes["mid"] > tolerance else most
            yield _moved_row(figure.id, most, getattr(old, most), getattr(new, most), figure)
    for id in committed.keys() - {figure.id for figure in figures}:
        yield _moved_row(id, "mid", committed[id].mid, None)


def _moved_row(
    id: str, moved: str, old: float | None, new: float | None, figure: Figure | None = None
) -> dict[str, Any]:
    return {
        "id": id,
        "status": "added" if old is None else "removed" if new is None else "moved",
        "figure": moved,
        "unit": None if figure is None else figure.unit,
        "published": None if figure is None else figure.published,
        "old": old,
        "new": new,
        "change": None if old is None or new is None else new / old - 1,
        "error_before": None if old is None or figure is None else figure.error(old),
        "error_after": None if new is None or figure is None else figure.error(new),
    }


# --- measured kernels -------------------------------------------------------------------------------------------------


def _classes(kernels: Iterable[tuple[MeasurementFile, Sequence[Scored]]]) -> Iterator[Figure]:
    """The figure of each shape class of each file: geometric means in microseconds."""
    for file, groups in kernels:
        for rows in (rows for group in groups for rows in group.by_regime):
            id = "/".join((file.name, rows.op, rows.format, rows.kernel, rows.cache, rows.labels["regime"]))
            bound, low, mid, high, measured = (
                1e6 * geometric_mean(values) for values in (rows.bound, rows.low, rows.mid, rows.high, rows.measured)
            )
            yield Figure(id, "us", measured, Predicted(bound, low, mid, high))


def _kernel_document(file: MeasurementFile, groups: Sequence[Scored]) -> dict[str, Any]:
    """A file of rows in the document: its provenance, and errors by op, format, kernel and cache state."""
    errors = [abs(group.mid / group.measured - 1) for group in groups]
    inside = [(group.low <= group.measured) & (group.measured <= group.high) for group in groups]
    return {
        "name": file.name,
        **to_builtins(file.provenance),
        "hardware": file.hardware.name,
        "rows": sum(len(group.measured) for group in groups),
        "median_absolute_error": float(np.median(np.concatenate(errors))),
        "inside": float(np.mean(np.concatenate(inside))),
        "groups": [_group_row(group) for group in groups],
    }


def _group_row(group: Scored) -> dict[str, Any]:
    errors = group.errors
    return {
        **{name: getattr(group, name) for name in ("op", "format", "kernel", "cache", "basis")},
        "rows": len(group.measured),
        "median_absolute_error": errors.median_ape,
        "mean_absolute_error": errors.mape,
        "bias": errors.bias,
        "bound_mean_absolute_error": errors.bound_mape,
        "inside": errors.interval_coverage,
        "classes": [rows.labels["regime"] for rows in group.by_regime],
    }


# --- the committed file -----------------------------------------------------------------------------------------------


def read_predictions(path: Path) -> dict[str, Predicted]:
    """The committed predictions; raises SpecError for a file of another structure."""
    where = str(path)
    content = read_mapping(path)
    unknown = sorted(content.keys() - {"moved", "kernels", "predictions"})
    if unknown or not isinstance(content.get("predictions"), dict):
        raise SpecError(where, "is not a file of committed predictions, which has the keys 'moved' and 'predictions'")
    sections = {name: content.get(name) or {} for name in ("predictions", "kernels")}
    if not isinstance(sections["kernels"], dict):
        raise SpecError(where, "'kernels' must be a mapping of classes to predictions")
    return {
        str(name): _prediction(where, f"{section}.{name}", entry)
        for section, entries in sections.items()
        for name, entry in entries.items()
    }


def _prediction(where: str, name: str, entry: object) -> Predicted:
    figures: dict[Any, Any] = entry if isinstance(entry, dict) else dict.fromkeys(READINGS, entry)
    if set(figures) == set(READINGS):
        values = [figures[figure] for figure in READINGS]
        numbers = [number for value in values if is_plausible(number := finite_number(value) or 0.0)]
        if len(numbers) == len(values):
            return Predicted(*numbers)
    raise SpecError(where, f"{quote(name, 120)}: must be a positive number, or one for each of {', '.join(READINGS)}")


def render_predictions(predictions: Mapping[str, Predicted], moved: Iterable[Mapping[str, Any]]) -> str:
    """The text of the committed file: accepted changes, then one line per shape class, then one line per anchor."""
    lines = [f"  {_key(row['id'])}: {_moved_text(row)}\n" for row in moved]
    head = f"moved:\n{''.join(lines)}" if lines else "moved: {}\n"
    body = {name: f"  {_key(name)}: {_text(prediction)}\n" for name, prediction in predictions.items()}
    kernels = "".join(line for name, line in body.items() if _of_kernels(name))
    anchors = "".join(line for name, line in body.items() if not _of_kernels(name))
    return f"{HEAD}{MOVED_HEAD}{head}{f'kernels:{chr(10)}{kernels}' if kernels else ''}predictions:\n{anchors}"


def _of_kernels(id: str) -> bool:
    """Whether an id is of a shape class of kernels, whose parts are separated by slashes."""
    return "/" in id


def _key(id: str) -> str:
    """An id as a YAML key: quoted where it would be read as a number, a date or a truth value (12, 2026-01-01, no)."""
    return f"'{id}'" if _of_kernels(id) or parse_yaml(id, "an id") != id else id


def _text(prediction: Predicted) -> str:
    figures = [number(value) for value in prediction]
    if len(set(figures)) == 1:
        return figures[0]
    return f"{{{', '.join(f'{name}: {value}' for name, value in zip(READINGS, figures, strict=True))}}}"


def _moved_text(row: Mapping[str, Any]) -> str:
    values = [f"{side}: {'null' if row[side] is None else number(row[side])}" for side in ("old", "new")]
    values += [
        f"{side}: {'null' if row[side] is None else format(row[side], '+.4f')}"
        for side in ("error_before", "error_after")
    ]
    return f"{{figure: {row['figure']}, {', '.join(values)}}}"


def number(value: float) -> str:
    """Five significant digits, without an exponent."""
    return format(Decimal(f"{value:.{DIGITS - 1}e}"), "f")


def _summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Errors by source and metric, then over all sources by metric, of all times and rates, and of all sizes."""
    keys = dict.fromkeys((row["group"], row["metric"]) for row in rows)
    for group, metric in keys:
        yield _statistics(group, metric, [row for row in rows if (row["group"], row["metric"]) == (group, metric)])
    kinds = {metric: [row for row in rows if row["metric"] == metric] for metric in METRICS}
    kinds["times and rates"] = [row for row in rows if METRICS[row["metric"]].kind in TIMED]
    kinds["bytes and tokens"] = [row for row in rows if METRICS[row["metric"]].kind not in TIMED]
    for name, chosen in kinds.items():
        if chosen:
            yield _statistics("all sources", name, chosen)


def _statistics(group: str, metric: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    bound = [row["bound_error"] for row in rows if row["bound_error"] is not None]
    inside = [row["inside"] for row in rows if row["inside"] is not None]
    errors = [row["error"] for row in rows]
    return {
        "group": group,
        "metric": metric,
        "anchors": len(rows),
        "median_error": median(errors),
        "median_absolute_error": median(map(abs, errors)),
        "mean_absolute_error": fmean(map(abs, errors)),
        "bound_mean_absolute_error": fmean(map(abs, bound)) if bound else None,
        "inside": fmean(inside) if inside else None,
    }
