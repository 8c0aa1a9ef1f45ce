"""Builds the gallery: for each study file the figure, its data and a place in the index.

Numbers in data files have ten digits, so that the same specs give the same files on any machine.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from roofline.core.errors import RooflineError, SpecError
from roofline.core.files import cannot_write, write_bytes
from roofline.reports.figures.drawing import draw
from roofline.reports.figures.request import Wish, read_wish
from roofline.reports.figures.style import as_bytes
from roofline.reports.gallery.table_1 import table_1
from roofline.reports.output.export import escape

FOLDER = Path(__file__).resolve().parent
INDEX = "README.md"
DIGITS = 10

HEAD = """\
# Gallery

Figures of `roofline plot`, each drawn from the study file beside it, with what is in it as CSV. `make gallery` draws
them anew, and a test fails where they are not what today's simulator gives.
"""
PAPER = """\
## The LLM-Viewer paper

Table 1 and Figures 4 to 8 of Yuan et al. 2024, *LLM Inference Unveiled: Survey and Roofline Model Insights*
(arXiv 2402.16363), counted by that paper's own convention (`--convention llm-viewer`) where it differs from ours.
"""
MORE = "## Models and accelerators\n"


class Piece(Struct, frozen=True):
    """A study file of the gallery and how it is drawn."""

    path: Path
    wish: Wish

    @property
    def name(self) -> str:
        """The name of its files, without endings."""
        return self.path.stem


def pieces(folder: Path = FOLDER) -> list[Piece]:
    """The study files of a folder by name; raises RooflineError where there are none or one lacks a figure."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        wish, _ = read_wish(path)
        if wish is None or not wish.title or not wish.caption:
            raise SpecError(str(path), "a piece of the gallery needs a section 'figure' with kind, title and caption")
        found.append(Piece(path, wish))
    if not found:
        raise RooflineError("there is no gallery here: its study files are part of a checkout of the project")
    return found


def build(folder: Path = FOLDER) -> dict[str, bytes]:
    """Every file of the gallery by name: an SVG and a CSV for each piece, and the index. Raises RooflineError."""
    files: dict[str, bytes] = {}
    found = pieces(folder)
    for piece in found:
        picture = draw(piece.wish, str(piece.path))
        files[f"{piece.name}.svg"] = as_bytes(picture.figure, "svg")
        if picture.data:
            files[f"{piece.name}.csv"] = rounded(picture.data).encode()
    files[INDEX] = _index(found, files).encode()
    return files


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes the files of the gallery into a folder; raises RooflineError where it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    for name, content in files.items():
        write_bytes(folder / name, content)


def rounded(data: str) -> str:
    """CSV with its fractions to ten digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_rounded(cell) for cell in row] for row in csv.reader(io.StringIO(data)))
    return out.getvalue()


def _rounded(cell: str) -> str:
    if not ("." in cell or "e" in cell):
        return cell
    try:
        return f"{float(cell):.{DIGITS}g}"
    except ValueError:
        return cell


def _index(found: Iterable[Piece], files: Mapping[str, bytes]) -> str:
    found = list(found)
    lines = [HEAD, PAPER, *table_1(), ""]
    lines += [line for piece in found if piece.wish.source for line in _section(piece, files)]
    lines += [MORE, *(line for piece in found if not piece.wish.source for line in _section(piece, files))]
    return "\n".join(lines).rstrip() + "\n"


def _section(piece: Piece, files: Mapping[str, bytes]) -> Iterator[str]:
    name, title = piece.name, escape(piece.wish.title or "")
    yield f"### {title}\n"
    yield f"![{title}]({name}.svg)\n"
    yield f"{escape(piece.wish.caption)}\n"
    if piece.wish.source:
        yield f"{escape(piece.wish.source)}\n"
    data = f", [data]({name}.csv)" if f"{name}.csv" in files else ""
    yield f"[study]({name}.yaml){data}: `roofline plot reports/gallery/{name}.yaml --output {name}.svg`\n"
