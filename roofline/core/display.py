"""Answers in notebooks: classes of earlier rooms take their HTML from the room of reports, which they do not import."""

from __future__ import annotations

from importlib import import_module


def repr_html(answer: object) -> str | None:
    """The HTML that Jupyter shows for an answer, as the method `_repr_html_` of its class; None for its plain text."""
    html: str | None = import_module("roofline.reports.notebook").html(answer)
    return html
