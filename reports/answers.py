"""What the results of the verbs show, by the name of their class: the document, the blocks, a summary and rows.

The document is the JSON that the command prints, and all else is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from roofline.core.errors import needs_extra
from roofline.reports.output.blocks import Block, Face, as_html, summary
from roofline.reports.output.export import printable
from roofline.scenario.analysis import Analysis
from roofline.whatif.comparison import Comparison

if TYPE_CHECKING:
    import pandas

FACES: Mapping[str, str] = {
    "Analysis": "analysis.ANALYSIS",
    "Grid": "grid.GRID",
    "Curve": "serving.CURVE",
    "SessionCurve": "sessions.SESSIONS",
    "FleetRun": "fleet.FLEET",
    "SessionsAnswer": "sessions.MOST",
    "Waterfall": "compare.WATERFALL",
    "Sweep": "grid.SWEEP",
    "Answer": "solve.ANSWER",
    "LoadAnswer": "solve.LOAD_ANSWER",
    "Crossovers": "solve.CROSSOVERS",
    "Advice": "advice.ADVICE",
    "Sizing": "sizing.SIZING",
    "Decision": "choose.DECISION",
    "Explanation": "explain.EXPLANATION",
    "Sensitivities": "sensitivity.SENSITIVITIES",
    "Verdict": "answer.VERDICT",
}
"""Where the face of a result is, by the name of its class: imported when needed, since that of a curve needs SciPy."""


def face(answer: object) -> Face:
    """The face of a result."""
    name = type(answer).__name__
    if isinstance(answer, Analysis) and answer.scenario.shape:
        name = "Grid"
    if isinstance(answer, Comparison):
        from roofline.reports.documents.compare import comparison

        return comparison(answer.metric)
    module, _, own = FACES[name].partition(".")
    found: Face = getattr(import_module(f"roofline.reports.documents.{module}"), own)
    return found


def page(answer: object) -> tuple[dict[str, Any], list[Block]]:
    """The document of a result, and its blocks."""
    shown = face(answer)
    found = shown.document(answer)
    return found, list(shown.blocks(found))


def html(answer: object) -> str:
    """The HTML of a result: its blocks as headings, lists and tables."""
    return as_html(page(answer)[1])


def document(answer: object) -> dict[str, Any]:
    """The document of a result."""
    return face(answer).document(answer)


def text(answer: object) -> str:
    """A result in at most MOST_LINES lines."""
    shown, found = face(answer), document(answer)
    lines = summary(shown.blocks(found)) if shown.lines is None else shown.lines(found)
    return "\n".join(printable(line.strip()) for line in list(lines)[: shown.most])


def frame(answer: object) -> pandas.DataFrame:
    """The rows of a result; nested figures are columns such as expected_time_s.mid."""
    with needs_extra("report"):
        import pandas

    return pandas.json_normalize([dict(row) for row in face(answer).rows(document(answer))])
