"""Builds the gallery: the figure, the data and an entry in the index for each study file.

Numbers in data files have ten digits, so that the same specs give the same files on any machine. Run it with
`python -m roofline.reports.gallery.build [--output FOLDER]`.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from roofline.core.errors import RooflineError, SpecError
from roofline.core.files import cannot_write, write_bytes
from roofline.reports.figures.drawing import draw
from roofline.reports.figures.request import FigureSpec, read_figure_spec
from roofline.reports.figures.style import as_bytes
from roofline.reports.gallery.table_1 import table_1
from roofline.reports.output.export import escape
from roofline.validate.main import run_command

FOLDER = Path(__file__).resolve().parent
INDEX = "README.md"
DIGITS = 10

HEAD = """\
# Gallery

Figures of `roofline plot`, each from the study file beside it, with its data as CSV. `make gallery` redraws them; a
test fails if they differ from the current simulator.
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
    yield f"[study]({name}.yaml){data}: `roofline plot reports/gallery/{name}.yaml --output {name}.svg`\n"


def main() -> int:
    """Builds and writes the gallery; exit status 2 on errors."""
    parser = argparse.ArgumentParser(prog="python -m roofline.reports.gallery.build", description="Redraw the gallery.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write to [default: the gallery's own]")

    def work(options: argparse.Namespace) -> str:
        write({}, options.output)  # where it cannot be written, nothing is built
        files = build()
        write(files, options.output)
        return f"wrote {len(files)} files to {options.output}\n"

    return run_command(parser, work)


if __name__ == "__main__":
    sys.exit(main())
