"""What the results of the verbs show, by the name of their class: the document, the blocks, a summary and rows.

The document is the JSON that the command prints, and all else is made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from roofline.core.errors import needs_extra
from roofline.reports.documents import advice, analysis, compare, explain, sensitivity, solve
from roofline.reports.output import export
from roofline.reports.output.blocks import Block
from roofline.scenario.analysis import Analysis
from roofline.whatif import comparison, sensitivities

if TYPE_CHECKING:
    import pandas

Document = Mapping[str, Any]

MOST_LINES = 6
"""Lines of a summary."""


class Face(Struct, frozen=True):
    """How a result becomes a document, and the document blocks, a summary (by default the first block) and rows."""

    document: Callable[[Any], dict[str, Any]]
    blocks: Callable[[Document], Iterable[Block]]
    rows: Callable[[Document], Sequence[Document]]
    lines: Callable[[Document], Iterable[str]] | None = None


def html(answer: object) -> str:
    """The HTML of a result: its blocks as headings, lists and tables."""
    from roofline.reports import notebook

    shown = face(answer)
    return notebook.html(shown.blocks(shown.document(answer)))


def face(answer: object) -> Face:
    """The face of a result."""
    name = type(answer).__name__
    if isinstance(answer, Analysis) and answer.scenario.shape:
        name = "Grid"
    if isinstance(answer, comparison.Comparison):
        return _comparison(answer)
    return FACES[name]()


def document(answer: object) -> dict[str, Any]:
    """The document of a result."""
    return face(answer).document(answer)


def text(answer: object) -> str:
    """A result in at most MOST_LINES lines."""
    shown = face(answer)
    found = shown.document(answer)
    if shown.lines is not None:
        lines = list(shown.lines(found))
    else:
        first = next(iter(shown.blocks(found)))
        lines = [first.title, *first.lines]
    return "\n".join(export.printable(line.strip()) for line in lines[:MOST_LINES])


def frame(answer: object) -> pandas.DataFrame:
    """The rows of a result; nested figures are columns such as expected_time_s.mid."""
    with needs_extra("report"):
        import pandas

    shown = face(answer)
    return pandas.json_normalize([dict(row) for row in shown.rows(shown.document(answer))])


def _analysis() -> Face:
    def drawn(found: Document) -> Iterator[Block]:
        yield Block(f"{found['model']} on {found['hardware']}", export.summary_lines(found))
        for name, phase in found["phases"].items():
            header, rows = export.op_rows(phase)
            yield Block(name.capitalize(), export.phase_line(phase).split("\n"), header, rows)

    def rows(found: Document) -> list[Document]:
        return [
            {"phase": name, **{key: value for key, value in op.items() if key != "tensors"}}
            for name, phase in found["phases"].items()
            for op in phase["ops"]
        ]

    def lines(found: Document) -> Iterator[str]:
        devices = found["parallelism"]["devices"]
        where = found["hardware"] if devices == 1 else f"{devices} {found['hardware']}"
        yield f"{found['model']} on {where}, {found['scenario']['engine']}"
        yield export.workload_line(found)
        yield export.memory_line(found["memory"])
        yield export.times_lines(found)[:2][-1]  # expected, or else at the bound
        yield "; ".join(f"{name}: {_limit(phase)}" for name, phase in found["phases"].items())
        yield from export.fitting_lines(found["memory"])
        yield from (f"note: {note}" for note in found["notes"])

    return Face(analysis.analysis_document, drawn, rows, lines)


def _limit(phase: Document) -> str:
    """What limits a phase, and its longest operator."""
    longest = max(phase["ops"], key=lambda op: op["share"])
    return f"mostly {phase['bound']}-bound, {longest['name']} takes {longest['share']:.0%}"


def _grid() -> Face:
    from roofline.reports.documents import grid

    return Face(grid.grid_document, grid.grid_blocks, lambda found: found["rows"], grid.grid_lines)


def _sweep() -> Face:
    from roofline.reports.documents import grid

    return Face(grid.sweep_document, grid.grid_blocks, lambda found: found["rows"], grid.grid_lines)


def _curve() -> Face:
    from roofline.reports.documents import serving  # needs SciPy, as its curve does

    return Face(
        lambda curve: serving.serving_document(curve, curve.targets),
        serving.serving_blocks,
        lambda found: found["points"],
        serving.serving_lines,
    )


def _comparison(answer: comparison.Comparison) -> Face:
    return Face(
        lambda found: compare.compare_document(found.analyses, found.labels),
        lambda found: compare.compare_blocks(found, answer.metric),
        lambda found: found["scenarios"],
        lambda found: compare.compare_lines(found, answer.metric),
    )


def _waterfall() -> Face:
    def made(found: comparison.Waterfall) -> dict[str, Any]:
        parts = [
            {"name": entry.name, "before": entry.before, "after": entry.after, "change": entry.change}
            for entry in found.differences
        ]
        ends = {"before": found.before, "after": found.after, "change": found.change}
        return {"metric": found.metric, "reading": found.reading, **ends, "parts": parts}

    return Face(made, compare.waterfall_blocks, lambda found: found["parts"], compare.waterfall_lines)


def _answer() -> Face:
    return Face(
        lambda found: solve.answer_document(found, found.scenario, found.targets, found.other),
        solve.answer_blocks,
        lambda found: [row for row in (found["answer"], found["neighbour"], *found["candidates"]) if row is not None],
        solve.answer_lines,
    )


def _load_answer() -> Face:
    return Face(
        lambda found: solve.load_document(found, found.scenario, found.targets),
        solve.load_blocks,
        lambda found: [row for row in (found["answer"], found["neighbour"]) if row is not None],
        solve.load_lines,
    )


def _crossovers() -> Face:
    def rows(found: Document) -> list[Document]:
        return [
            {**{key: entry[key] for key in ("phase", "name", "axis")}, **change}
            for entry in found["crossovers"]
            for change in entry["changes"]
        ]

    return Face(
        lambda found: solve.crossover_document(found.found, found.scenario),
        solve.crossover_blocks,
        rows,
        solve.crossover_lines,
    )


def _advice() -> Face:
    return Face(
        lambda found: advice.advice_document(found, found.top),
        advice.advice_blocks,
        lambda found: found["recommendations"],
    )


def _sizing() -> Face:
    from roofline.reports.documents import sizing

    return Face(
        sizing.sizing_document,
        sizing.sizing_blocks,
        lambda found: [{"objective": choice["objective"], **choice["best"]} for choice in found["choices"]],
    )


def _explanation() -> Face:
    return Face(
        lambda found: explain.explain_document(found, found), explain.explain_blocks, lambda found: found["lines"]
    )


def _sensitivities() -> Face:
    def made(found: sensitivities.Sensitivities) -> dict[str, Any]:
        readings = {str(found.at): found}
        if found.at != "bound":
            readings["bound"] = sensitivities.sensitivity(found.scenario, "bound", found.step)
        return sensitivity.sensitivity_document(readings, found.scenario, found.step)

    def rows(found: Document) -> list[Document]:
        return [{"at": at, **entry} for at, entries in found["readings"].items() for entry in entries]

    return Face(made, sensitivity.sensitivity_blocks, rows)


FACES: Mapping[str, Callable[[], Face]] = {
    "Analysis": _analysis,
    "Grid": _grid,
    "Curve": _curve,
    "Waterfall": _waterfall,
    "Sweep": _sweep,
    "Answer": _answer,
    "LoadAnswer": _load_answer,
    "Crossovers": _crossovers,
    "Advice": _advice,
    "Sizing": _sizing,
    "Explanation": _explanation,
    "Sensitivities": _sensitivities,
}
"""The face of a result by the name of its class."""
