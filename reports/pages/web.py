"""The report as one self-contained HTML file, with a content security policy that forbids requests."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from roofline.reports.output.export import printable
from roofline.reports.pages.content import Content
from roofline.reports.pages.figures import ReportFigure
from roofline.reports.pages.grid import embedded
from roofline.reports.pages.subjects import Subject

STYLES = ("drawing.css", "report.css")
SCRIPTS = ("drawing.js", "network.js", "report.js")


def web_page(subjects: Sequence[Subject], content: Content, figures: Sequence[ReportFigure], date: str | None) -> str:
    """The HTML page. All text is escaped, and the output is deterministic."""
    style, script = ("".join(map(_source, names)) for names in (STYLES, SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    pictures = [
        {
            "place": figure.place,
            "text": figure.text,
            "data": f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}",
        }
        for figure in figures
    ]
    template = _environment().get_template("report.html")
    return template.render(
        content=content,
        date=date,
        pictures=pictures,
        policy=policy,
        style=Markup(style),  # noqa: S704 - both are files of this package
        script=Markup(script),  # noqa: S704
        data=Markup(embedded(subjects)),  # noqa: S704 - JSON without <, > and &
    )


def _source(name: str) -> str:
    return (files("roofline.reports.pages") / "templates" / name).read_text(encoding="utf-8")


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("roofline.reports.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: object) -> object:
    """Text with unprintable and bidirectional characters replaced."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
