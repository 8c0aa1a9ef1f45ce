"""The figures of a report that do not move, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from matplotlib.figure import Figure
from msgspec import Struct

from roofline.reports.figures import drawn
from roofline.reports.figures.residuals import residuals
from roofline.reports.figures.style import as_bytes
from roofline.reports.pages.content import used
from roofline.reports.pages.subjects import Subject

KINDS = {
    "roofline": "Operators under their roofs",
    "memory": "Memory against the batch",
    "batch": "Times and throughput against the batch",
    "prompt": "Times and throughput against the prompt",
}
"""Figures of a scenario, in the order of the page, and what they show."""


class Drawn(Struct, frozen=True):
    """A figure: the section or kind that it belongs to, the name of its file, what it shows, and how it is drawn."""

    place: str
    name: str
    text: str
    draw: Callable[[], Figure]

    @property
    def svg(self) -> bytes:
        """The picture, drawn now."""
        return as_bytes(self.draw(), "svg")


def of_scenarios(subjects: Sequence[Subject]) -> Iterator[Drawn]:
    """The figures of every scenario; times at the bound alone have no curves."""
    for number, subject in enumerate(subjects, 1):
        label = f" ({subject.label})" if subject.label else ""
        end = f"-{number}" if len(subjects) > 1 else ""
        for kind, text in KINDS.items():
            if kind in ("batch", "prompt") and not subject.analysis.times_are_expected:
                continue
            draw = partial(drawn, kind, subject.analysis.scenario)
            yield Drawn(kind, f"{kind}{end}", f"{text}: {subject.name}{label}", draw)


def of_accuracy(subjects: Sequence[Subject]) -> Iterator[Drawn]:
    """What the fits behind expected times left over."""
    for number, subject in enumerate(subjects, 1):
        if not subject.analysis.times_are_expected:
            continue
        found = [
            (f"{entry.fit.op} {entry.fit.format} ({entry.match.calibration})", entry.match.basis, left)
            for entry in used(subject.analysis)
            if (left := entry.fit.residuals.get("all")) is not None
        ]
        if not found:
            continue
        label = f" ({subject.label})" if subject.label else ""
        end = f"-{number}" if len(subjects) > 1 else ""
        title = f"Kernels of {subject.name}: measured over predicted time"
        yield Drawn("accuracy", f"accuracy{end}", f"{title}{label}", partial(residuals, found, title))
