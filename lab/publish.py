"""Turn the folder of a visit into files of the repository.

    python -m lab.publish FOLDER --name NAME --revision COMMIT

    validate/measurements/NAME.csv and .yaml    rows of PyTorch's kernels, and where they come from
    lab/data/visits/NAME/                       other rows, steps, correctness, the network, the library's kernels
    validate/measurements/specs/calibration/    the calibration: an overlay for ROOFLINE_SPECS
    docs/gpu.md                                 the page, of all visits that are published

The shipped constants stay as they are; `roofline validate check --accept` then takes the predictions of the new rows.
"""

from __future__ import annotations

import argparse
import gzip
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from lab.command import run_command
from lab.library_kernels import KERNELS, choices
from roofline.core.documents import parse_mapping
from roofline.core.errors import RooflineError, quote
from roofline.core.files import save_text, write_bytes
from roofline.core.inputs import read_text
from roofline.validate.check.measured import FOLDER, MeasurementFile, load_row_files, predict_rows
from roofline.validate.gpu.summary import body, escaped, rows_in, table
from roofline.validate.gpu.visit import (
    CALIBRATION,
    LOG,
    NETWORK,
    ROWS,
    VERDICTS,
    machine_from,
    read_results,
)
from roofline.validate.loop.whole_model import overlay
from roofline.validate.tables.rowfile import COLUMNS
from roofline.validate.tables.text import MAX_BYTES, csv_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gpu.md"
VISITS = Path(__file__).resolve().parent / "data" / "visits"

ORIGIN = ("hardware", "software")
"""Columns of the library's kernels that are one value for a visit, and stand in its log."""

NAME = r"[a-z0-9][a-z0-9.+-]{0,71}"
"""Names of files: those of visits and of hardware."""

LIBRARY = "torch"
"""The kernels whose predictions are guarded: this project's own ones run in no engine."""

DROPPED = ("device", "driver", "threads", "clock_mhz", "memory_clock_mhz", "temperature_c", "revision", "date")
"""Columns of rows that the provenance file states once."""

INTRODUCTION = """# Kernels on a GPU

What `roofline validate gpu` found on GPUs: this project's Triton kernels beside the vendor's libraries and the roof,
a network beside its prediction, and which kernels those libraries choose (`lab/library_kernels.py`). The page is made
from the files in `validate/measurements` and `lab/data/visits` by `python -m docs.build`. How to measure a GPU of your
own: [Calibrate your GPU](howto/calibrate.md).
"""


def publish(
    folder: Path, name: str, revision: str, load: str, root: Path = FOLDER, visits: Path = VISITS, page: Path = PAGE
) -> list[Path]:
    """Write the files of a visit below `root` and `visits`, and the page; returns their paths.

    Raises RooflineError for a folder without the rows of a visit, and for a name that is no file name.
    """
    if not re.fullmatch(NAME, name):
        raise RooflineError(f"a name has lower-case letters, digits, dots and hyphens, got {quote(name)}")
    results, rows = read_results(folder), rows_in(folder / ROWS)
    found = next((result for result in results if result.step == "machine" and result.status == "done"), None)
    if found is None or not any(row["kernel"] == LIBRARY for row in rows):
        raise RooflineError(f"{quote(str(folder), 200)} is no folder of a visit: it has no machine or no rows")
    if (root / f"{name}.csv").exists() and not (visits / name).is_dir():
        raise RooflineError(f"there are measurements {quote(name)} of another kind: give the visit another name")
    facts, visit = found.facts, visits / name
    hardware = str(facts.get("hardware"))
    if not re.fullmatch(NAME, hardware):
        raise RooflineError(f"the log names a machine that is no file name: {quote(hardware)}")
    named = hardware
    if not facts["bundled"]:
        named = f"hardware/{hardware}.yaml"
        save_text(root / named, str(facts["spec"]))
    kept = [column for column in COLUMNS if column not in DROPPED]
    others = [row for row in rows if row["kernel"] != LIBRARY]
    save_text(root / f"{name}.csv", _csv([row for row in rows if row["kernel"] == LIBRARY], kept))
    save_text(root / f"{name}.yaml", _provenance(facts, rows, revision, load, named))
    if others:
        save_text(visit / ROWS, _csv(others, kept))
    for file in (VERDICTS, NETWORK, LOG):
        if (folder / file).is_file():
            save_text(visit / file, read_text(folder / file, MAX_BYTES))
    if chosen := rows_in(folder / KERNELS):
        text = _csv(chosen, [column for column in chosen[0] if column not in ORIGIN])
        write_bytes(visit / f"{KERNELS}.gz", gzip.compress(text.encode(), mtime=0))
    calibration = root / "specs" / "calibration" / f"{hardware}.yaml"
    if (folder / CALIBRATION).is_file():
        save_text(calibration, read_text(folder / CALIBRATION, MAX_BYTES))
    save_text(page, pages(root, visits))
    return [root / f"{name}.csv", root / f"{name}.yaml", visit, calibration, page]


def pages(root: Path = FOLDER, visits: Path = VISITS) -> str:
    """The page of all published visits; the introduction alone where there is none."""
    parts = [INTRODUCTION]
    for visit in sorted(path for path in visits.glob("*") if path.is_dir()):
        results = read_results(visit)
        machine = next(result for result in results if result.step == "machine")
        (published,) = (file for file in load_row_files(root) if file.name == visit.name)
        about = published.provenance
        origin = f"{about.date}, revision {about.revision}; {about.load}."
        parts += [f"## {escaped(about.title)}\n", f"{escaped(origin)}\n"]
        sections = body(
            visit, machine_from(machine.facts).hardware, machine, results, rows_in(root / f"{visit.name}.csv")
        )
        sections += choices(rows_in(visit / KERNELS))
        parts.append("\n".join(sections).replace("## ", "### "))
        parts.append("\n".join([*_predicted(published), "", *_carried(published, root)]))
    return "\n".join(parts).rstrip() + "\n"


def _predicted(published: MeasurementFile) -> list[str]:
    """The shipped predictions of the rows, by kernel: their errors, and how many lie in the interval."""
    note = (
        "PyTorch's kernels by the shipped constants, which were fitted to engines': 16-bit GEMMs are cuBLAS's in both,"
        " attention and FP8 GEMMs are others. Kernels that stream rows have no shipped constants: what is predicted is"
        " the bound, and engines' profiles hold the time between kernels."
    )
    return ["### Beside the shipped predictions", "", note, "", *_errors(published)]


def _carried(published: MeasurementFile, root: Path) -> list[str]:
    """The errors of the constants that a visit to another GPU of the same family fitted, by kernel."""
    lines = []
    calibrations = root / "specs" / "calibration"
    others = {visit.hardware.name: visit.hardware for visit in load_row_files(root)}
    for path in sorted(calibrations.glob("*.yaml")):
        other, name = path.stem, published.hardware.name
        if other == name or other not in others or others[other].family != published.hardware.family:
            continue
        content = {**parse_mapping(read_text(path, MAX_BYTES), path), "name": name}
        with tempfile.TemporaryDirectory() as folder, overlay(Path(folder)):
            save_text(Path(folder) / "calibration" / f"{name}.yaml", yaml.safe_dump(content))
            errors = _errors(published)
        note = f"PyTorch's kernels by the constants that the visit to `{other}` fitted, which had none of these rows."
        lines += [f"### With the constants of {other}", "", note, "", *errors, ""]
    return lines


def _errors(published: MeasurementFile) -> list[str]:
    """A table of the errors of predictions by kernel, and of how many rows lie in the interval."""
    lines = [
        (
            f"{group.op} {group.format}",
            len(group.measured),
            f"{100 * group.errors.median_ape:.0f}%",
            f"{100 * group.errors.bias:+.0f}%",
            f"{100 * group.errors.interval_coverage:.0f}%",
        )
        for group in predict_rows(published)
    ]
    return list(table(("kernel", "rows", "median error", "bias", "inside the interval"), sorted(lines)))


def _csv(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    """Rows as CSV with those of the columns that have any value."""
    used = [column for column in columns if any(row.get(column) for row in rows)]
    return csv_text(rows, used)


def _provenance(
    facts: Mapping[str, object], rows: Sequence[Mapping[str, str]], revision: str, load: str, hardware: str
) -> str:
    """The provenance file of rows that no shipped constant was fitted to."""
    state = facts["state"]
    assert isinstance(state, Mapping)
    content = {
        "title": f"PyTorch and this project's Triton kernels on {facts['title']}",
        "hardware": hardware,
        "machine": f"one {facts['title']}, " + ", ".join(f"{key} {value}" for key, value in state.items()),
        "software": str(facts["software"]),
        "command": "roofline validate gpu",
        "date": max(row["date"] for row in rows),
        "revision": revision,
        "load": load,
        "fitted": False,
        "constants": "the shipped constants of this hardware, fitted to other rows",
    }
    return yaml.safe_dump(content, sort_keys=False, width=110, allow_unicode=True).replace(
        f"'{content['date']}'", str(content["date"])
    )


def main() -> None:
    """Publish a visit from the command line."""
    parser = argparse.ArgumentParser(description=publish.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", required=True, help="of the files, such as h200-pytorch")
    parser.add_argument("--revision", required=True, help="the commit that measured")
    parser.add_argument("--load", default="nothing else ran on the GPU", help="what else ran on the machine")

    def work(given: argparse.Namespace) -> str:
        return "".join(f"{path}\n" for path in publish(given.folder, given.name, given.revision, given.load))

    raise SystemExit(run_command(parser, work))


if __name__ == "__main__":
    main()
