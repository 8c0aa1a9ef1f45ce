"""Writing a report: everything is worked out before the first file is touched."""

from __future__ import annotations

import datetime
import errno
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from roofline.core.errors import RooflineError, quote
from roofline.core.files import cannot_write, write_bytes, write_text
from roofline.reports.pages.content import content
from roofline.reports.pages.figures import of_accuracy, of_scenarios
from roofline.reports.pages.markdown import markdown_page
from roofline.reports.pages.subjects import subjects
from roofline.reports.pages.web import web_page

ENDINGS = (".html", ".htm", ".md", ".markdown")


def write_report(
    source: str | None,
    over: Iterable[str],
    options: Mapping[str, Any],
    output: Path,
    title: str | None = None,
    date: str | None = None,
    advice: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Writes the report to `output`, whose ending says how, and returns all files written.

    Figures of Markdown lie in a folder beside it. Raises RooflineError, and leaves nothing half-written then.
    """
    kind = output.suffix.lower()
    if kind not in ENDINGS:
        raise RooflineError(f"a report is written as .html or .md, and {quote(output.name)} ends in neither")
    if not output.parent.is_dir():
        raise cannot_write(output, FileNotFoundError(errno.ENOENT, ""))
    day = None if date is None else _day(date)
    found = subjects(source, over, options)
    said = content(found, title, advice, progress)
    progress("figures")
    if kind.startswith(".htm"):
        page = web_page(found, said, list(of_accuracy(found)), day)
        write_text(output, page)
        return [output]
    folder = output.with_name(f"{output.stem}-figures")
    figures = [*of_scenarios(found), *of_accuracy(found)]
    page, pictures = markdown_page(said, figures, folder.name, day), [figure.svg for figure in figures]
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from None
    paths = [folder / f"{figure.name}.svg" for figure in figures]
    for path, picture in zip(paths, pictures, strict=True):
        write_bytes(path, picture)
    write_text(output, page)
    return [output, *paths]


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise RooflineError(f"a date is written like 2026-11-22, got {quote(text)}") from None
