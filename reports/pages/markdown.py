"""The report as Markdown that a code host renders, its figures in files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote as in_link

from roofline.reports.output.blocks import block_markdown
from roofline.reports.output.export import escape
from roofline.reports.pages.content import Content, Section
from roofline.reports.pages.figures import KINDS, Drawn


def markdown_page(content: Content, figures: Sequence[Drawn], folder: str, date: str | None) -> str:
    """The page; `folder` is where its figures lie, as seen from it."""
    lines = [f"# {escape(content.title)}", ""]
    for sentence in content.lead:
        lines += [f"**{escape(sentence)}**", ""]
    if date is not None:
        lines += [f"Of {escape(date)}.", ""]
    lines += _section(content.answer, figures, folder)
    for kind in KINDS:
        lines += _pictures(figures, kind, folder)
    lines += _section(content.operators, figures, folder)
    for section in content.rest:
        lines += _section(section, figures, folder)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section, figures: Sequence[Drawn], folder: str) -> Iterator[str]:
    yield from (f"## {escape(section.title)}", "")
    for block in section.blocks:
        yield from block_markdown(block, "###")
    yield from _pictures(figures, section.anchor, folder)


def _pictures(figures: Sequence[Drawn], place: str, folder: str) -> Iterator[str]:
    for figure in figures:
        if figure.place == place:
            yield from (f"![{escape(figure.text)}]({in_link(folder)}/{figure.name}.svg)", "")
