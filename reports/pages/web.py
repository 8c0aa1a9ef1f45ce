"""The report as one self-contained HTML file: the live page with its answers recorded, and the sections below it.

A content security policy forbids requests.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from roofline.reports.output.export import printable
from roofline.reports.pages.content import Content
from roofline.reports.pages.figures import ReportFigure
from roofline.reports.view.page import SCRIPTS, STYLES, source
from roofline.reports.view.recorded import recorded
from roofline.reports.view.setups import Setup, Specs

LOADER = PackageLoader("roofline.reports.pages", "templates")

_LOADED = re.compile(r'<(?:link rel="stylesheet"|script src=)[^\n]*\n|<title>.*</title>\n')


def web_page(
    setups: Sequence[Setup],
    specs: Specs,
    content: Content,
    figures: Sequence[ReportFigure],
    date: str | None,
    advice: bool = True,
) -> str:
    """The HTML page. All text is escaped, and the output is deterministic."""
    script = "".join(source(f"{name}.js") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    style = "".join(source(f"{name}.css") for name in STYLES) + LOADER.get_source(environment, "report.css")[0]
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        f"<title>{escape(printable(content.title))}</title>\n<style>\n{style}</style>\n"
    )
    pictures = [
        {
            "place": figure.place,
            "text": figure.text,
            "data": f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}",
        }
        for figure in figures
    ]
    parts: Any = environment.get_template("report.html").module  # its macros
    data = recorded(setups, specs, advice)
    page = _LOADED.sub("", source("view.html"))
    for before, after in {
        "</head>": f"{head}</head>",
        '<body class="empty">': '<body class="empty recorded">',
        '<main tabindex="-1">\n': f'<main tabindex="-1">\n{parts.beginning(content, date)}',
        '<h1 id="title">&nbsp;</h1>': '<h2 id="title">&nbsp;</h2>',
        "This page needs JavaScript.": "The drawings need JavaScript; all tables are below.",
        "</main>": f"{parts.sections(content, pictures)}</main>",
        "</body>": f'<script type="application/json" id="recorded">{data}</script>\n<script>{script}</script>\n</body>',
    }.items():
        page = page.replace(before, after, 1)
    return page


def _shown(value: object) -> object:
    """Text with unprintable and bidirectional characters replaced."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
