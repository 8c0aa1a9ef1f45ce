"""Writing of a report as HTML or Markdown; everything is computed before the first file is written."""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote as in_link

from roofline.core.errors import RooflineError, quote
from roofline.core.files import cannot_write, check_output, write_output, write_together
from roofline.reports.output.blocks import block_markdown
from roofline.reports.output.export import escape
from roofline.reports.pages.content import Content, Section, content
from roofline.reports.pages.figures import KINDS, ReportFigure, of_accuracy, of_scenarios
from roofline.reports.pages.subjects import subjects
from roofline.reports.pages.web import web_page
from roofline.reports.view.setups import Specs, setup_of

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
    """Writes the report to `output` in the format of its ending, and returns all files written.

    The figures of Markdown go to a folder beside it. Raises RooflineError, and then leaves no partial files.
    """
    kind = output.suffix.lower()
    if kind not in ENDINGS:
        raise RooflineError(f"a report is written as .html or .md, and {quote(output.name)} ends in neither")
    if not output.parent.is_dir():
        raise cannot_write(output, FileNotFoundError(errno.ENOENT, ""))
    try:
        day = None if date is None else datetime.date.fromisoformat(date).isoformat()
    except ValueError:
        raise RooflineError(f"a date is written like 2026-11-22, got {quote(date)}") from None
    found = subjects(source, over, options)
    sections = content(found, title, advice, progress)
    progress("figures")
    if kind.startswith(".htm"):
        specs = Specs()
        try:
            setups = [setup_of(subject.scenario) for subject in found]
            write_output(output, web_page(setups, specs, sections, list(of_accuracy(found)), day, advice))
        finally:
            specs.close()
        return [output]
    check_output(output)
    folder = output.with_name(f"{output.stem}-figures")
    figures = [*of_scenarios(found), *of_accuracy(found)]
    page, pictures = markdown_page(sections, figures, folder.name, day), [figure.svg for figure in figures]
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from None
    paths = [folder / f"{figure.name}.svg" for figure in figures]
    try:
        write_together({**dict(zip(paths, pictures, strict=True)), output: page.encode()})
    except RooflineError:
        with suppress(OSError):  # it holds the figures of an earlier report
            folder.rmdir()
        raise
    return [output, *paths]


def markdown_page(content: Content, figures: Sequence[ReportFigure], folder: str, date: str | None) -> str:
    """The Markdown page; `folder` is the relative path of its figures."""
    lines = [f"# {escape(content.title)}", ""]
    for sentence in content.lead:
        lines += [f"**{escape(sentence)}**", ""]
    if date is not None:
        lines += [f"Date: {escape(date)}", ""]
    lines += _section(content.answer, figures, folder)
    for kind in KINDS:
        lines += _pictures(figures, kind, folder)
    for section in (content.operators, *content.rest):
        lines += _section(section, figures, folder)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section, figures: Sequence[ReportFigure], folder: str) -> Iterator[str]:
    yield from (f"## {escape(section.title)}", "")
    for block in section.blocks:
        yield from block_markdown(block, "###")
    yield from _pictures(figures, section.anchor, folder)


def _pictures(figures: Sequence[ReportFigure], place: str, folder: str) -> Iterator[str]:
    for figure in figures:
        if figure.place == place:
            yield from (f"![{escape(figure.text)}]({in_link(os.fsencode(folder))}/{figure.name}.svg)", "")
