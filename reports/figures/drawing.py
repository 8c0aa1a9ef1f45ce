"""Drawing of a `FigureSpec`: the figure with its data as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from msgspec import Struct
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware
from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, needs_extra, quote
from roofline.core.inputs import read_bytes
from roofline.reports.figures.curves import bars, curves
from roofline.reports.figures.footprint import footprint, footprint_rows
from roofline.reports.figures.heatmap import bound_of, heatmap
from roofline.reports.figures.measured import kernels, measured, measured_rows, of_models
from roofline.reports.figures.operators import rooflines, roofs, roofs_rows
from roofline.reports.figures.pareto import COST, frontier_figure, frontier_rows, pareto
from roofline.reports.figures.request import OF_SCENARIO, FigureSpec, is_yaml, read_figure_spec, scenario_options
from roofline.reports.figures.scenario import scenario_figure
from roofline.reports.figures.style import with_title
from roofline.reports.figures.table import Table
from roofline.reports.output.export import csv_text
from roofline.reports.tables.rows import CsvEncoding
from roofline.scenario.options import missing
from roofline.timing.chains import load_calibration
from roofline.validate.tables.frames import MAX_BYTES
from roofline.whatif.frontiers import frontier
from roofline.whatif.selection import Selection
from roofline.whatif.study import Study, assemble, is_study

if TYPE_CHECKING:
    from roofline.validate.score.kernels import Scored

FRONT = ("tokens_per_s_per_user", "tokens_per_s_per_gpu")
"""Default metrics of a Pareto front: interactivity, and throughput per device."""

DEPLOYMENTS = "tp=1,2,4,8"
"""Default axis of a frontier: the tensor-parallel degrees of a node."""

METRIC = "tpot"
"""Default metric of a sweep."""


class Picture(Struct, frozen=True):
    """A figure and its data as CSV in base units; empty where the gallery shows none."""

    figure: Figure
    data: str = ""


def draw(
    spec: FigureSpec,
    source: str | None,
    over: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Picture:
    """The figure of a specification.

    `source` is a model's name, a study file or a file of measurements, `over` are axes as text, `options` those of a
    scenario, `settings` the study's `at`, `where` and `pareto`; None means not given. Raises RooflineError.
    """
    over, options, settings = list(over), options or {}, settings or {}
    if spec.kind in OF_SCENARIO or spec.kind in ("roofs", "measured"):
        _refuse(spec, "sweep", {"over": over or None, **settings})
    if spec.kind in OF_SCENARIO:
        scenario = Scenario(**scenario_options(source, options))
        if spec.kind == "roofline":
            return Picture(rooflines(analyze(scenario), spec.title))
        return Picture(with_title(scenario_figure(spec.kind, scenario), spec.title))
    if spec.kind in ("roofs", "measured"):
        _refuse(spec, "scenario", {name: value for name, value in options.items() if name != "hw"})
        return _roofs(spec, source, options) if spec.kind == "roofs" else _measured(spec, source, options.get("hw"))
    return _swept(spec, source, over, options, settings)


def _refuse(spec: FigureSpec, what: str, given: Mapping[str, Any]) -> None:
    """Raise RooflineError for an option that is given of what a figure does not show."""
    for name, value in given.items():
        if value is not None:
            raise RooflineError(f"the figure {spec.kind} shows no {what} and takes no --{name.replace('_', '-')}")


def _swept(
    spec: FigureSpec, source: str | None, over: list[str], options: Mapping[str, Any], settings: Mapping[str, Any]
) -> Picture:
    settings = {**settings, "metrics": _needed(spec)}
    if spec.kind == "frontier":
        if not over and source is not None and options.get("tp") is None and not is_study(Path(source)):
            over = [DEPLOYMENTS]
        return _frontier(spec, assemble(source, over, options, settings), settings)
    if spec.kind == "pareto":
        study = assemble(source, over, options, settings)
        if not study.question.selection.pareto or spec.metric:
            front = settings.get("pareto") or ",".join(spec.metric or FRONT)
            study = assemble(source, over, options, {**settings, "pareto": front})
        columns = study.question.selection.pareto
        table = Table.of(_whole(study))
        return Picture(pareto(table, columns, spec.title), _rows(table))
    if settings.get("pareto") is not None:
        raise RooflineError(f"the figure {spec.kind} has no Pareto front: the figure pareto has", options=["pareto"])
    study = _whole(assemble(source, over, options, settings))
    metrics = spec.metric or (METRIC,)
    if spec.kind == "footprint":
        table = Table.of(study)
        return Picture(footprint(table, spec.title), csv_text(*footprint_rows(table)))
    if spec.kind == "heatmap":
        if len(metrics) != 1:
            raise RooflineError(f"a heat map shows one metric, not {len(metrics)}")
        table = Table.of(study)
        return Picture(heatmap(table, metrics[0], spec.x, spec.y, spec.title), _rows(table))
    table = Table.of(_banded(study, metrics))
    figure = curves(table, metrics, spec.x, spec.title) if spec.kind == "curves" else bars(table, metrics, spec.title)
    return Picture(figure, _rows(table))


def _frontier(spec: FigureSpec, study: Study, settings: Mapping[str, Any]) -> Picture:
    unused = next((name for name in ("at", "where", "pareto") if settings.get(name) is not None), None)
    if unused is not None or spec.metric not in ((), (COST,)):
        given = f"--{unused}" if unused else f"metric {quote(','.join(spec.metric))}"
        raise RooflineError(
            f"the figure frontier shows tokens/s, or with the metric {COST} costs, and takes no {given}",
            options=["metric"],
        )
    found = frontier(study)
    return Picture(frontier_figure(found, spec.metric == (COST,), spec.title), csv_text(*frontier_rows(found)))


def _needed(spec: FigureSpec) -> list[str]:
    if spec.kind == "pareto":
        return ["fits"]
    if spec.kind == "footprint":
        return ["memory.weights", "memory.kv", "fits"]
    metrics = list(spec.metric or (METRIC,))
    bounds = [bound_of(name) for name in metrics] if spec.kind == "heatmap" else []
    return [*metrics, *(name for name in bounds if name), "fits"]


def _whole(study: Study) -> Study:
    """The study without a selection of rows: a figure shows all rows."""
    return replace(study, question=replace(study.question, selection=Selection()))


def _banded(study: Study, metrics: Sequence[str]) -> Study:
    """The study with the ends of the 80% intervals as further outputs."""
    table, question = Table(study, None), study.question  # type: ignore[arg-type]
    ends = [table.reading(name, end) for name in metrics for end in ("low", "high")]
    outputs = tuple(dict.fromkeys((*question.outputs, *(end for end in ends if end))))
    figures = tuple(dict.fromkeys((*outputs, *question.figures)))
    return replace(study, question=replace(question, outputs=outputs, figures=figures))


def _rows(table: Table) -> str:
    encoding = CsvEncoding(table.study.question.columns)
    return (encoding.head + encoding.encode(table.rows)).decode()


def _roofs(spec: FigureSpec, source: str | None, options: Mapping[str, Any]) -> Picture:
    values = scenario_options(source, options)
    if "hw" not in values:
        raise RooflineError(missing("hw"), options=["hw"])
    hardware = load_hardware(values["hw"])
    return Picture(roofs(hardware, spec.formats, spec.title), csv_text(*roofs_rows(hardware, spec.formats)))


def _measured(spec: FigureSpec, source: str | None, hardware: str | None) -> Picture:
    """Predictions against published figures of whole models, or against measured kernels."""
    if source is None or (is_yaml(source) and read_figure_spec(Path(source))[0] == spec):
        from roofline.validate.check.check import check

        return _beside(check(), spec)
    path = Path(source)
    if path.suffix.lower() == ".json":
        return _beside(_checked(path), spec)
    with needs_extra("fit"):
        import pandas  # noqa: F401
    if _is_of_models(path):
        from roofline.validate.score.end_to_end import end_to_end

        if hardware is not None:
            raise RooflineError("figures of whole models name their hardware themselves", options=["hw"])
        return _beside(of_models(end_to_end(path)), spec)
    return Picture(with_title(kernels(_scored(path, hardware)), spec.title))


def _beside(document: Mapping[str, Any], spec: FigureSpec) -> Picture:
    return Picture(measured(document, spec.title), csv_text(*measured_rows(document)))


def _checked(path: Path) -> Mapping[str, Any]:
    """The document of `roofline validate check` in a file; raises RooflineError for any other."""
    document = read_mapping(path)
    rows = document.get("anchors")
    if not isinstance(rows, list) or not all(map(_is_anchor, rows)):
        raise RooflineError(f"{quote(str(path), 200)} is not a document of validate check in JSON")
    return document


def _is_anchor(row: object) -> bool:
    def positive(value: object) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")

    if not isinstance(row, dict) or "inside" not in row:
        return False
    numbers = all(positive(row.get(name)) for name in ("published", "low", "mid", "high"))
    texts = all(isinstance(row.get(name), str) for name in ("id", "group", "unit"))
    return numbers and texts and (row["inside"] is None or isinstance(row["inside"], bool))


def _is_of_models(path: Path) -> bool:
    """Whether a file, or the first file of a folder, has the columns of whole-model figures."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    try:
        head = read_bytes(files[0], MAX_BYTES).partition(b"\n")[0].decode(errors="replace").strip().split(",")
    except (RooflineError, IndexError):
        return False
    return {"metric", "value", "unit"} <= set(head)


def _scored(path: Path, hardware: str | None) -> list[Scored]:
    """All measured kernels of a file or folder with their predictions."""
    from roofline.validate.score.kernels import predict
    from roofline.validate.tables.rows import read_measurements

    found: list[Scored] = []
    for name, rows in (entry for part in read_measurements(path) for entry in part.by_hardware().items()):
        device = load_hardware(hardware or name)
        found += predict(rows, device, load_calibration(device))
    if not found:
        raise RooflineError("nothing to draw: no row has an op and format that the hardware and the models support")
    return found
