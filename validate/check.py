"""Published figures beside predictions, and today's predictions beside the committed ones: `roofline validate check`.

The committed predictions live in the repository, not in the installed package: a change of the simulator that moves
one is seen, judged by the errors before and after, and accepted on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from reports.files import write_text
from roofline.errors import RooflineError, SpecError
from roofline.library import read_mapping
from validate.anchor import (
    FOLDER,
    METRICS,
    TIMED,
    Anchor,
    Prediction,
    error,
    load_anchors,
    precision_text,
    predict,
    scenario_of,
)

PREDICTIONS = Path(__file__).parents[1] / "tests" / "golden" / "predictions.yaml"
"""The committed predictions of a checkout."""

TOLERANCE = 0.005
"""Relative change of a prediction that is taken for none: rounding, and other versions of the libraries."""

FIGURES = ("bound", "low", "mid", "high")
DIGITS = 5

HEAD = """\
# What is predicted for every anchor of validate/anchors, in the unit of the published figure, five digits.
# Renewed by `roofline validate check --accept`, never by hand. A single number is exact.
"""
MOVED_HEAD = "# By the last acceptance: predictions before and after, and their errors against the published figures.\n"


class Move(NamedTuple):
    """A prediction that is not the committed one; None on the side where there is none."""

    anchor: Anchor | None
    id: str
    figure: str
    old: Prediction | None
    new: Prediction | None


def check(
    anchors: Path | None = None, predictions: Path | None = None, accept: bool = False, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """Predict every anchor and compare with the published figures and with the committed predictions.

    `anchors` is a folder (default: the bundled ones), `predictions` the committed file (default: the project's). With
    `accept`, what moved is written to that file; predictions within `tolerance` of the committed ones keep those. The
    document says whether it `passed` and the `verdict`, and lists `anchors`, `summary` and `moved`. Raises
    RooflineError for files that cannot be read or written.
    """
    path = _committed_path(anchors, predictions, accept)
    found = load_anchors(FOLDER if anchors is None else anchors)
    today = {anchor.id: predict(anchor) for anchor in found}
    committed = {} if accept and not path.exists() else read_predictions(path)
    moved = list(_moves(found, today, committed, tolerance))
    if accept and moved:
        kept = {name: committed[name] for name in today if name in committed}
        kept |= {move.id: move.new for move in moved if move.new is not None}
        write_text(path, render_predictions({name: kept[name] for name in today}, moved if committed else ()))
    rows = [_row(anchor, today[anchor.id]) for anchor in found]
    document = {
        "anchors": rows,
        "summary": list(_summary(rows)),
        "moved": [_moved_row(move) for move in moved],
        "metrics": {name: METRICS[name].meaning for name in dict.fromkeys(row["metric"] for row in rows)},
        "predictions": str(path),
        "tolerance": tolerance,
        "accepted": accept and bool(moved),
        "passed": accept or not moved,
    }
    return {"verdict": _verdict(document), **document}


def _verdict(document: Mapping[str, Any]) -> str:
    """The outcome of a check in one sentence."""
    count, moved = len(document["anchors"]), document["moved"]
    if not moved:
        return f"all {count} predictions are as committed, within {document['tolerance']:.1%}"
    kinds = [row["status"] for row in moved]
    parts = [f"{kinds.count(kind)} {kind}" for kind in ("moved", "added", "removed") if kind in kinds]
    listed = ", ".join(parts)
    if document["accepted"]:
        return f"accepted: {listed} of {count} anchors, written to {document['predictions']}"
    return f"{listed} of {count} anchors; if that is meant, accept it with `roofline validate check --accept`"


def _committed_path(anchors: Path | None, given: Path | None, accept: bool) -> Path:
    if anchors is not None and given is None:
        raise RooflineError("anchors of your own have predictions of their own; name their file with --predictions")
    path = PREDICTIONS if given is None else given
    if given is None and not (path if not accept else path.parent).exists():
        raise RooflineError(
            "there are no committed predictions here: tests/golden/predictions.yaml is part of a checkout of the"
            " project, not of an installation; name another file with --predictions"
        )
    return path


# --- what moved -------------------------------------------------------------------------------------------------------


def _moves(
    anchors: Sequence[Anchor], today: Mapping[str, Prediction], committed: Mapping[str, Prediction], tolerance: float
) -> Iterator[Move]:
    for anchor in anchors:
        new, old = today[anchor.id], committed.get(anchor.id)
        if old is None:
            yield Move(anchor, anchor.id, "mid", None, new)
            continue
        changes = {name: abs(getattr(new, name) / getattr(old, name) - 1) for name in ("mid", "bound", "low", "high")}
        figure = max(changes, key=lambda name: changes[name])
        if not changes[figure] <= tolerance:
            yield Move(anchor, anchor.id, "mid" if changes["mid"] > tolerance else figure, old, new)
    for name in committed.keys() - today.keys():
        yield Move(None, name, "mid", committed[name], None)


def _moved_row(move: Move) -> dict[str, Any]:
    old, new = (None if side is None else float(getattr(side, move.figure)) for side in (move.old, move.new))
    published = None if move.anchor is None else move.anchor.value.number
    return {
        "id": move.id,
        "status": "added" if old is None else "removed" if new is None else "moved",
        "figure": move.figure,
        "unit": None if move.anchor is None else move.anchor.value.unit,
        "published": published,
        "old": old,
        "new": new,
        "change": None if old is None or new is None else new / old - 1,
        "error_before": None if old is None or move.anchor is None else error(move.anchor, old),
        "error_after": None if new is None or move.anchor is None else error(move.anchor, new),
    }


# --- the committed file -----------------------------------------------------------------------------------------------


def read_predictions(path: Path) -> dict[str, Prediction]:
    """The committed predictions; raises SpecError where the file is not one of them."""
    where = str(path)
    content = read_mapping(path)
    unknown = sorted(content.keys() - {"moved", "predictions"})
    if unknown or not isinstance(content.get("predictions"), dict):
        raise SpecError(where, "is not a file of committed predictions (the keys 'moved' and 'predictions')")
    return {name: _prediction(where, name, entry) for name, entry in content["predictions"].items()}


def _prediction(where: str, name: str, entry: object) -> Prediction:
    figures: dict[Any, Any] = entry if isinstance(entry, dict) else dict.fromkeys(FIGURES, entry)
    if set(figures) == set(FIGURES):
        values = [figures[figure] for figure in FIGURES]
        if all(type(value) in (int, float) and 0 < value < math.inf for value in values):
            return Prediction(*(float(value) for value in values))
    raise SpecError(
        where, f"'predictions.{name}': must be a number above zero, or one for each of {', '.join(FIGURES)}"
    )


def render_predictions(predictions: Mapping[str, Prediction], moved: Iterable[Move]) -> str:
    """The committed file: what the acceptance moved, then a line an anchor."""
    lines = [f"  {move.id}: {_moved_text(_moved_row(move))}\n" for move in moved]
    body = [f"  {name}: {_text(prediction)}\n" for name, prediction in predictions.items()]
    head = f"moved:\n{''.join(lines)}" if lines else "moved: {}\n"
    return f"{HEAD}{MOVED_HEAD}{head}predictions:\n{''.join(body)}"


def _text(prediction: Prediction) -> str:
    figures = [number(value) for value in prediction]
    if len(set(figures)) == 1:
        return figures[0]
    return f"{{{', '.join(f'{name}: {value}' for name, value in zip(FIGURES, figures, strict=True))}}}"


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


# --- published beside predicted ---------------------------------------------------------------------------------------


def _row(anchor: Anchor, prediction: Prediction) -> dict[str, Any]:
    """An anchor as a line of the answer, figures in its unit."""
    published = anchor.value.number
    timed = METRICS[anchor.metric].kind in TIMED
    interval = timed and prediction.low < prediction.high
    return {
        "id": anchor.id,
        "group": anchor.group,
        "source": anchor.source,
        "metric": anchor.metric,
        "conditions": conditions_text(anchor),
        "unit": anchor.value.unit,
        "published": published,
        **{name: float(getattr(prediction, name)) for name in FIGURES},
        "error": error(anchor, prediction.mid),
        "bound_error": error(anchor, prediction.bound) if timed else None,
        "inside": prediction.low <= published <= prediction.high if interval else None,
        "note": anchor.note,
        "faster_than_bound": anchor.faster_than_bound,
    }


def conditions_text(anchor: Anchor) -> str:
    """The conditions of an anchor in one line."""
    given, scenario = anchor.conditions, scenario_of(anchor)
    devices = scenario.settings.parallel.devices
    names = ("tp", "pp", "ep", "dp", "sp")
    degrees = " ".join(f"{name.upper()}{getattr(given, name)}" for name in names if getattr(given, name) > 1)
    place = f"{devices} x {given.hw} ({degrees})" if devices > 1 else given.hw
    assert scenario.precision is not None
    parts = [f"{given.model} on {place}", precision_text(scenario.precision)]
    if METRICS[anchor.metric].kind in TIMED:
        parts += [f"batch {given.batch}", f"{given.prompt} in" if given.context is None else f"context {given.context}"]
        parts += [f"{given.prefix} cached"] if given.prefix else []
        parts += [f"{given.generate} out"] if given.generate > 1 and given.context is None else []
        parts += [given.engine] if given.engine else []
    return ", ".join([*parts, *given.techniques])


def _summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Errors by source and metric, then over all sources: by metric, of everything timed and of everything stored."""
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
