"""The static figures of a report as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from matplotlib.figure import Figure
from msgspec import Struct

from roofline.reports.figures.measured import residuals
from roofline.reports.figures.scenario import scenario_figure
from roofline.reports.figures.style import as_bytes
from roofline.reports.pages.content import used_fits
from roofline.reports.pages.subjects import Subject

KINDS = {
    "roofline": "Roofline",
    "memory": "Memory over the batch",
    "batch": "Latency and throughput over the batch",
    "prompt": "Latency and throughput over the prompt length",
}
"""Figures of a scenario and their captions, in the order of the page."""


class ReportFigure(Struct, frozen=True):
    """A figure: its section or kind, file name, caption and drawing function."""

    place: str
    name: str
    text: str
    draw: Callable[[], Figure]

    @property
    def svg(self) -> bytes:
        return as_bytes(self.draw(), "svg")


def of_scenarios(subjects: Sequence[Subject]) -> Iterator[ReportFigure]:
    """The figures of every scenario; without expected times there are no curves."""
    for subject, label, end in _numbered(subjects):
        for kind, text in KINDS.items():
            if kind in ("batch", "prompt") and not subject.analysis.times_are_expected:
                continue
            draw = partial(scenario_figure, kind, subject.analysis.scenario)
            yield ReportFigure(kind, f"{kind}{end}", f"{text}: {subject.name}{label}", draw)


def of_accuracy(subjects: Sequence[Subject]) -> Iterator[ReportFigure]:
    """The residuals of the fits behind expected times, one figure per scenario."""
    for subject, label, end in _numbered(subjects):
        if not subject.analysis.times_are_expected:
            continue
        found = [
            (f"{match.fit.op} {match.fit.format} ({match.calibration})", match.basis, left)
            for match, _ in used_fits(subject.analysis)
            if (left := match.fit.residuals.get("all")) is not None
        ]
        if found:
            title = f"Kernels of {subject.name}: measured over predicted time"
            yield ReportFigure("accuracy", f"accuracy{end}", f"{title}{label}", partial(residuals, found, title))


def _numbered(subjects: Sequence[Subject]) -> Iterator[tuple[Subject, str, str]]:
    """Each scenario with its label in captions, and the end of its names of files."""
    for number, subject in enumerate(subjects, 1):
        yield subject, f" ({subject.label})" if subject.label else "", f"-{number}" if len(subjects) > 1 else ""
