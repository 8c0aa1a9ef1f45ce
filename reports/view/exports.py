"""Files that the live page saves: reports of its set-ups, and the operators of one as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roofline import analyze
from roofline.core.errors import needs_extra
from roofline.reports.documents.analysis import analysis_document, as_csv
from roofline.reports.view.questions import Question, first
from roofline.reports.view.setups import Specs


def _report(question: Question, specs: Specs, ending: str) -> dict[str, str]:
    with needs_extra("report"):
        from roofline.reports.pages.content import content
        from roofline.reports.pages.figures import of_accuracy
        from roofline.reports.pages.subjects import Subject
        from roofline.reports.pages.web import web_page
        from roofline.reports.pages.write import markdown_page
    setups = question.setups or [{}]
    requests = [specs.read(setup).scenario for setup in setups]
    labels = [chr(ord("A") + place) for place in range(len(requests))] if len(requests) > 1 else [""]
    found = list(map(Subject, requests, labels))
    sections = content(found, None, True, lambda _: None)
    if ending == ".html":
        return {"name": "report.html", "text": web_page(setups, specs, sections, list(of_accuracy(found)), None)}
    return {"name": "report.md", "text": markdown_page(sections, (), "", None)}


def _csv(question: Question, specs: Specs) -> dict[str, str]:
    read = first(question, specs)
    return {"name": "operators.csv", "text": as_csv(analysis_document(analyze(read.scenario)))}


EXPORTS: Mapping[str, Callable[[Question, Specs], dict[str, str]]] = {
    "html": lambda question, specs: _report(question, specs, ".html"),
    "markdown": lambda question, specs: _report(question, specs, ".md"),
    "csv": _csv,
}
"""Files that the page offers: name and text."""
