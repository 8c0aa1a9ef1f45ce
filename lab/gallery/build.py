"""Builds the gallery: the figure, the data and an entry in the index for each study file.

Numbers in data files have ten digits, so that the same specs give the same files on any machine. The documentation
builds it anew (`docs.build`); `python -m lab.gallery.build [--output FOLDER]` writes it, and the picture that the
README shows.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from lab.command import run_command
from lab.gallery.table_1 import table_1
from roofline.core.errors import RooflineError, SpecError
from roofline.core.files import cannot_write, write_bytes
from roofline.reports.figures.drawing import draw
from roofline.reports.figures.request import FigureSpec, read_figure_spec
from roofline.reports.figures.style import as_bytes
from roofline.reports.output.export import escape

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SHOWN = {"llama-3.1-70b-on-eight-accelerators.svg": ROOT / "docs" / "eight-accelerators.svg"}
"""Figures that the README shows, which is read where nothing is built."""

OUTPUT = ROOT / "build" / "gallery"
INDEX = "README.md"
DIGITS = 10

HEAD = """\
# Gallery

Figures of `roofline plot`, each drawn from its study file when this page is built, with its data as CSV.
"""
PAPER = """\
## The LLM-Viewer paper

Table 1 and Figures 4 to 8 of Yuan et al. 2024, *LLM Inference Unveiled: Survey and Roofline Model Insights*
(arXiv 2402.16363), with FLOPs and bytes counted as in that paper (`--convention llm-viewer`).
"""
MORE = "## Models and accelerators\n"


class Entry(Struct, frozen=True):
    """A study file of the gallery and its figure specification."""

    path: Path
    spec: FigureSpec

    @property
    def name(self) -> str:
        """The name of its files without endings."""
        return self.path.stem


def entries(folder: Path = FOLDER) -> list[Entry]:
    """The study files of a folder by name. Raises RooflineError if there are none or one lacks a figure."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        spec, _ = read_figure_spec(path)
        if spec is None or not spec.title or not spec.caption:
            raise SpecError(str(path), "a study of the gallery needs a section 'figure' with kind, title and caption")
        found.append(Entry(path, spec))
    if not found:
        raise RooflineError("there is no gallery here: its study files are part of a checkout of the project")
    return found


def build(folder: Path = FOLDER) -> dict[str, bytes]:
    """Every file of the gallery by name: an SVG and a CSV per study, and the index. Raises RooflineError."""
    files: dict[str, bytes] = {}
    found = entries(folder)
    for entry in found:
        picture = draw(entry.spec, str(entry.path))
        files[f"{entry.name}.svg"] = as_bytes(picture.figure, "svg")
        if picture.data:
            files[f"{entry.name}.csv"] = rounded(picture.data).encode()
    files[INDEX] = _index(found, files).encode()
    return files


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes the files of the gallery to a folder. Raises RooflineError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    for name, content in files.items():
        write_bytes(folder / name, content)


def rounded(data: str) -> str:
    """CSV data with fractions rounded to `DIGITS`."""
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


def _index(found: Sequence[Entry], files: Mapping[str, bytes]) -> str:
    lines = [HEAD, PAPER, *table_1(), ""]
    lines += [line for entry in found if entry.spec.source for line in _section(entry, files)]
    lines += [MORE, *(line for entry in found if not entry.spec.source for line in _section(entry, files))]
    return "\n".join(lines).rstrip() + "\n"


def _section(entry: Entry, files: Mapping[str, bytes]) -> Iterator[str]:
    name, title = entry.name, escape(entry.spec.title or "")
    yield f"### {title}\n"
    yield f"![{title}]({name}.svg)\n"
    yield f"{escape(entry.spec.caption)}\n"
    if entry.spec.source:
        yield f"{escape(entry.spec.source)}\n"
    data = f", [data]({name}.csv)" if f"{name}.csv" in files else ""
    yield f"[study]({name}.yaml){data}: `roofline plot lab/gallery/{name}.yaml --output {name}.svg`\n"


def main() -> int:
    """Builds and writes the gallery; exit status 2 on errors."""
    parser = argparse.ArgumentParser(prog="python -m lab.gallery.build", description="Redraw the gallery.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write to [build/gallery]")

    def work(options: argparse.Namespace) -> str:
        write({}, options.output)  # where it cannot be written, nothing is built
        files = build()
        write(files, options.output)
        for name, path in SHOWN.items():
            write_bytes(path, files[name])
        return f"wrote {len(files)} files to {options.output}\n"

    return run_command(parser, work)


if __name__ == "__main__":
    sys.exit(main())
