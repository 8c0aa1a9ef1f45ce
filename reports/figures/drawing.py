"""From what is asked for to a figure with its data: a wish, a source, axes and options."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from msgspec import Struct
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware
from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, quote
from roofline.reports.figures.curves import bars, curves
from roofline.reports.figures.footprint import footprint, footprint_rows
from roofline.reports.figures.heatmap import bound_of, heatmap
from roofline.reports.figures.measured import kernels, kernels_rows, measured, measured_rows, of_models
from roofline.reports.figures.operators import operator_rows, rooflines, roofs, roofs_rows
from roofline.reports.figures.pareto import pareto
from roofline.reports.figures.request import OF_SCENARIO, Wish, is_yaml, read_wish, scenario_options
from roofline.reports.figures.scenario import drawn
from roofline.reports.figures.style import titled
from roofline.reports.figures.table import Table
from roofline.reports.output.export import inert
from roofline.reports.tables.rows import CsvEncoding
from roofline.timing.calibration import load_calibration
from roofline.whatif.options import scenario_from
from roofline.whatif.selection import Selection
from roofline.whatif.study import Study, assemble

if TYPE_CHECKING:
    from roofline.validate.score.kernels import Scored

FRONT = ("tokens_per_s_per_user", "tokens_per_s_per_gpu")
"""What a Pareto front is of where nothing is named: what users feel, and what the operator pays for."""

METRIC = "tpot"
"""What is drawn of a sweep where nothing is named."""


class Picture(Struct, frozen=True):
    """A figure, and what is drawn in it as CSV in base units; empty where the figure has no table."""

    figure: Figure
    data: str = ""


def draw(
    wish: Wish,
    source: str | None,
    over: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
) -> Picture:
    """The figure that is wished for.

    `source` is a model's name or a study file (of measurements: a file of them), `over` are axes as text, `options`
    those of a scenario, `asked` the study's `at`, `where` and `pareto`; None says that an option is not given.
    Raises RooflineError.
    """
    over, options, asked = list(over), options or {}, asked or {}
    if wish.kind in OF_SCENARIO or wish.kind in ("roofs", "measured"):
        stray = next((name for name, value in {"--over": over, **_flags(asked)}.items() if value), None)
        if stray is not None:
            raise RooflineError(f"the figure {wish.kind} is of no sweep and takes no {stray}")
    if wish.kind in OF_SCENARIO:
        return _of_scenario(wish, scenario_from(scenario_options(source, options)))
    if wish.kind in ("roofs", "measured"):
        unused = next((name for name, value in options.items() if name != "hw" and value is not None), None)
        if unused is not None:
            raise RooflineError(f"the figure {wish.kind} is of no scenario and takes no --{unused.replace('_', '-')}")
        return _roofs(wish, source, options) if wish.kind == "roofs" else _measured(wish, source, options.get("hw"))
    return _swept(wish, source, over, options, asked)


def _flags(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {f"--{name}": value for name, value in asked.items()}


def _of_scenario(wish: Wish, scenario: Scenario) -> Picture:
    if wish.kind != "roofline":
        return Picture(titled(drawn(wish.kind, scenario), wish.title))
    analysis = analyze(scenario)
    return Picture(rooflines(analysis, wish.title), _csv(*operator_rows(analysis)))


def _swept(
    wish: Wish, source: str | None, over: list[str], options: Mapping[str, Any], asked: Mapping[str, Any]
) -> Picture:
    asked = {**asked, "metrics": _needed(wish)}
    if wish.kind == "pareto":
        study = assemble(source, over, options, asked)
        if not study.question.selection.pareto or wish.metric:
            study = assemble(
                source, over, options, {**asked, "pareto": asked.get("pareto") or ",".join(wish.metric or FRONT)}
            )
        columns = study.question.selection.pareto
        table = Table.of(_whole(study))
        return Picture(pareto(table, columns, wish.title), _rows(table))
    if asked.get("pareto") is not None:
        raise RooflineError(f"the figure {wish.kind} has no front: --pareto is for roofline plot pareto")
    study = _whole(assemble(source, over, options, asked))
    metrics = wish.metric or (METRIC,)
    if wish.kind == "footprint":
        table = Table.of(study)
        return Picture(footprint(table, wish.title), _csv(*footprint_rows(table)))
    if wish.kind == "heatmap":
        if len(metrics) != 1:
            raise RooflineError(f"a heat map shows one metric, not {len(metrics)}")
        table = Table.of(study)
        return Picture(heatmap(table, metrics[0], wish.x, wish.y, wish.title), _rows(table))
    table = Table.of(_banded(study, metrics))
    figure = curves(table, metrics, wish.x, wish.title) if wish.kind == "curves" else bars(table, metrics, wish.title)
    return Picture(figure, _rows(table))


def _needed(wish: Wish) -> list[str]:
    """The metrics that a figure is drawn from."""
    if wish.kind == "pareto":
        return ["fits"]
    if wish.kind == "footprint":
        return ["memory.weights", "memory.kv", "fits"]
    metrics = list(wish.metric or (METRIC,))
    bounds = [bound_of(name) for name in metrics] if wish.kind == "heatmap" else []
    return [*metrics, *(name for name in bounds if name), "fits"]


def _whole(study: Study) -> Study:
    """The study without a choice among its rows: a figure shows them all."""
    return replace(study, question=replace(study.question, selection=Selection()))


def _banded(study: Study, metrics: Sequence[str]) -> Study:
    """The study with the ends of the intervals of its expected times and rates."""
    table, question = Table(study, None), study.question  # type: ignore[arg-type]
    ends = [table.reading(name, end) for name in metrics for end in ("low", "high")]
    outputs = tuple(dict.fromkeys((*question.outputs, *(end for end in ends if end))))
    figures = tuple(dict.fromkeys((*outputs, *question.figures)))
    return replace(study, question=replace(question, outputs=outputs, figures=figures))


def _rows(table: Table) -> str:
    encoding = CsvEncoding(table.study.question.columns)
    return (encoding.head + encoding.encode(table.rows)).decode()


def _roofs(wish: Wish, source: str | None, options: Mapping[str, Any]) -> Picture:
    values = scenario_options(source, options)
    if "hw" not in values:
        raise RooflineError("the roofs are those of hardware: name it with --hw")
    hardware = load_hardware(values["hw"])
    return Picture(roofs(hardware, wish.formats, wish.title), _csv(*roofs_rows(hardware, wish.formats)))


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([inert(cell) for cell in row] for row in rows)
    return out.getvalue()


def _measured(wish: Wish, source: str | None, hardware: str | None) -> Picture:
    """Published figures of whole models, or measured kernels, beside predictions."""
    if source is None or (is_yaml(source) and read_wish(Path(source))[0] == wish):
        from roofline.validate.check.check import check

        return _beside(check(), wish)
    path = Path(source)
    if path.suffix.lower() == ".json":
        return _beside(_checked(path), wish)
    _needs_fit()
    if _is_of_models(path):
        from roofline.validate.score.end_to_end import end_to_end

        if hardware is not None:
            raise RooflineError("figures of whole models name their hardware: --hw has no place beside")
        return _beside(of_models(end_to_end(path)), wish)
    scored = _scored(path, hardware)
    return Picture(titled(kernels(scored), wish.title), _csv(*kernels_rows(scored)))


def _beside(document: Mapping[str, Any], wish: Wish) -> Picture:
    return Picture(measured(document, wish.title), _csv(*measured_rows(document)))


def _checked(path: Path) -> Mapping[str, Any]:
    """A document of `roofline validate check`; raises RooflineError for any other."""
    document = read_mapping(path)
    rows = document.get("anchors")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and _is_anchor(row) for row in rows):
        raise RooflineError(f"{quote(str(path), 200)} is not a document of roofline validate check --format json")
    return document


def _is_anchor(row: Mapping[str, Any]) -> bool:
    def positive(value: object) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")

    numbers = all(positive(row.get(name)) for name in ("published", "low", "mid", "high"))
    return numbers and "inside" in row and (row["inside"] is None or isinstance(row["inside"], bool))


def _needs_fit() -> None:
    try:
        import pandas  # noqa: F401
    except ModuleNotFoundError as error:
        raise RooflineError(f"this needs {error.name}: pip install 'llm-roofline[fit]'") from None


def _is_of_models(path: Path) -> bool:
    """Whether a file, or the first of a folder, holds figures of whole models: their columns name a metric."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    try:
        with files[0].open(encoding="utf-8", errors="replace") as file:
            head = file.readline(4096).strip().split(",")
    except (OSError, ValueError, IndexError):
        return False
    return {"metric", "value", "unit"} <= set(head)


def _scored(path: Path, hardware: str | None) -> list[Scored]:
    """Every measured kernel of a file or folder with what is predicted for it."""
    from roofline.validate.score.kernels import predict
    from roofline.validate.tables.rows import read_measurements

    found: list[Scored] = []
    for part in read_measurements(path):
        for name, rows in part.by_hardware().items():
            device = load_hardware(hardware or name)
            found += predict(rows, device, load_calibration(device))
    if not found:
        raise RooflineError("nothing to draw: no row is of a kind and format that the hardware and the models have")
    return found
