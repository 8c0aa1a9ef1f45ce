"""Fit the bundled calibrations: by device, engine and version, as a hierarchy.

python -m lab.fit.ship MEASUREMENTS_DIR... --output hwspecs/calibration --repository NAME --commit HASH
--date DATE

fits everything together (`lab.fit.hierarchy`), and the components of its levels. --families fits product
lines and families only, with the bundled pooled calibration as prior: for measurements of another kind, or of an
architecture without a named accelerator. --add adds fits to the existing files: for kernels that the other measurements
lack. --kept fits families from the files of a folder such as `validate/measurements` whose provenance marks them as
fitted: for machines without a datasheet. The residuals of these three are of devices that a fit did not see.
"""

from __future__ import annotations

import argparse
import datetime
import math
import multiprocessing
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from lab.command import run_command
from lab.fit.hierarchy import fit_all, shelved
from lab.fit.rows import Key, Table
from lab.fit.rows import load as load_tables
from lab.fit.shared import fit_shared, widen
from lab.fit.variance import components, crossings
from lab.fit.variance import render as render_levels
from lab.observation.collector import Collector
from lab.score.accuracy import COLLECTOR, Data, load
from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError
from roofline.core.files import save_text
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.calibration import Calibration, Fit, Source
from roofline.timing.calibration_files import parse_calibration, parse_document, render
from roofline.timing.chains import families, load_calibration, product_line
from roofline.timing.intervals.levels import FILE
from roofline.timing.kernels.gated_delta_rule import FUSED
from roofline.validate.check.measured import load_row_files
from roofline.validate.fit.calibrate import MIN_ROWS, constants_of, describe, log_errors
from roofline.validate.tables.rows import Measurements, origin

ARCHITECTURE_SPECIFIC = {("gated_delta_rule", FUSED)}
"""Kernels of one architecture, kept out of the pooled calibration."""

MIN_ROWS_WITH_LINE = 50
"""Least rows of a format for a family's own constants where its product line has constants."""

Member = tuple[Hardware, list[Measurements]]


def hierarchical(folders: Sequence[Path], output: Path, source: Source) -> Iterator[tuple[str, str]]:
    """The files of all calibrations fitted together, by name, and that of the components of their levels.

    Kernels that other measurements added to the existing files of `output`, also to those of engines and of families'
    further members, stay there.
    """
    data = load_tables(folders)
    sys.stderr.writelines(f"left out: {reason}\n" for reason in data.left_out)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        found = fit_all(data, pool.map)
        levels = components(list(crossings(data, found, pool.map)))
    software = {key: _software(table) for key, table in data.tables.items()}
    measured = dict.fromkeys(name for table in data.tables.values() for name, _ in table)
    files, grouped, fitted = shelved(found), _members(measured), set(data.tables)
    for family in grouped:
        files.setdefault((family, ""), {}).setdefault("", {})
    for (place, engine), versions in sorted(files.items()):
        path = output / engine / f"{place}.yaml"
        rows_of = {one for fits in versions.values() for key in fits for one in software[key] if _of(one, engine)}
        own = replace(source, software=tuple(sorted(rows_of)))
        others = of_others(path, fitted)
        merged = {one: {**others.get(one, {}), **versions.get(one, {})} for one in sorted({*others, *versions})}
        calibration = Calibration(place, "calibrated", merged.pop("", {}), own, engine=engine)
        members = () if engine else tuple(sorted({*_listed(path), *grouped.get(place, ())}))
        yield f"{engine}/{place}".lstrip("/"), render(calibration, merged, members)
    yield Path(FILE).stem, render_levels(levels, source.command, output / FILE)


def _software(table: Table) -> set[str]:
    """The software of the rows of one op and format."""
    return {software for part in table.values() for software in describe([part]).software}


def _of(software: str, engine: str) -> bool:
    return not engine or origin(software).engine == engine


def _members(measured: Iterable[str]) -> dict[str, list[str]]:
    """The measured devices of families with one of them, by family: the device's calibrations stand for the family."""
    grouped: dict[str, list[str]] = {}
    for name in measured:
        grouped.setdefault(families(load_hardware(name))[0], []).append(name)
    return grouped


def shared(data: Data, source: Source) -> Iterator[Calibration]:
    """The pooled calibration, and those of families with it as prior."""
    members: list[Member] = [(load_hardware(name), list(parts.values())) for name, parts in data.items()]
    own_source = _with_software(source, members)
    pooled = fit_shared("pooled", members, source=own_source, harness=Collector(together=True))
    yield pooled
    for name, own in _families(members).items():
        found = fit_shared(name, own, pooled, source=_with_software(source, own), harness=COLLECTOR)
        yield found if len(own) > 1 else widen(found, pooled)


def lines_and_families(data: Data, source: Source) -> Iterator[Calibration]:
    """The calibrations of product lines and families.

    The prior of a line with several families is the bundled pooled calibration, that of its families the line. Raises
    RooflineError where there is no pooled calibration.
    """
    members: list[Member] = [(load_hardware(name), list(parts.values())) for name, parts in data.items()]
    links = [link for link in load_calibration(members[0][0]).chain if link.basis == "pooled"]
    if not links:
        raise RooflineError("families require a pooled calibration; fit without families first", options=["families"])
    pooled = replace(links[0], parents=tuple(links[1:]))
    lines: dict[str, list[Member]] = {}
    for member in members:
        lines.setdefault(product_line(member[0]), []).append(member)
    for name, together in lines.items():
        prior, own = pooled, _families(together)
        if len(own) > 1:
            own_source = _with_software(source, together)
            found = fit_shared(name, together, pooled, source=own_source, free=True, harness=COLLECTOR)
            yield (line := _improving(found, pooled, together))
            prior = replace(line, parents=tuple(pooled.chain))
        min_rows = MIN_ROWS_WITH_LINE if prior is not pooled else MIN_ROWS
        for family, part in own.items():
            own_source = _with_software(source, part)
            found = fit_shared(family, part, prior, 0, own_source, min_rows, free=True, harness=COLLECTOR)
            improving = _improving(found, prior, part)
            yield improving if len(part) > 1 else widen(improving, prior)


def kept(folder: Path, source: Source) -> Iterator[Calibration]:
    """Calibrations of families from the files of `folder` that are marked as fitted; see `validate.check.measured`."""
    members: dict[str, list[Member]] = {}
    for file in load_row_files(folder):
        if file.provenance.fitted:
            members.setdefault(file.hardware.family, []).append((file.hardware, list(file.parts)))
    for name, own in members.items():
        yield fit_shared(name, own, source=_with_software(source, own), free=True)


def _improving(found: Calibration, prior: Calibration, members: Sequence[Member]) -> Calibration:
    """`found` without the fits whose held-out errors reach no less far than the prior's errors."""
    return replace(found, fits={key: own for key, own in found.fits.items() if _improves(own, prior, members)})


def _improves(own: Fit, prior: Calibration, members: Sequence[Member]) -> bool:
    match = prior.find(own.op, own.format)
    if match is None:
        return True
    errors = [
        log_errors(rows, hardware, constants_of(match.fit), COLLECTOR)
        for hardware, parts in members
        for part in parts
        if part.op == own.op
        for format, rows in part.formats().items()
        if format == own.format
    ]
    farthest = np.abs(np.percentile(np.concatenate(errors), (10, 90))).max()
    spread = own.residuals["all"]
    return bool(max(math.log(spread.high), -math.log(spread.low)) < farthest)


def _families(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Members by family; GDDR members separately where the family also has HBM members."""
    grouped: dict[str, list[Member]] = {}
    for member in members:
        special, *plain = families(member[0])
        mixed = any(families(other) == (*plain,) for other, _ in members)
        grouped.setdefault(special if mixed or not plain else plain[0], []).append(member)
    return grouped


def _with_software(source: Source, members: Sequence[Member]) -> Source:
    software = describe([part for _, parts in members for part in parts]).software
    return replace(source, software=software)


def of_others(path: Path, fitted: Collection[Key]) -> dict[str, dict[Key, Fit]]:
    """Those fits of a file, by version, that are from other measurements, of kernels (op and format) not `fitted`."""
    if not path.is_file():
        return {}
    there = parse_document(read_mapping(path), str(path))
    return {
        version: others
        for version, fits in {"": there.calibration.fits, **there.versions}.items()
        if (others := {key: fit for key, fit in fits.items() if fit.source and key not in fitted})
    }


def _listed(path: Path) -> tuple[str, ...]:
    """The members that an existing file lists."""
    return parse_document(read_mapping(path), str(path)).members if path.is_file() else ()


def added(data: Data, source: Source, folder: Path) -> Iterator[Calibration]:
    """The pooled and the families' calibrations of a folder with the fits of these measurements added.

    Added fits name their own source. ARCHITECTURE_SPECIFIC kernels stay out of the pooled calibration, which all
    hardware inherits.
    """
    for found in shared(data, source):
        path = folder / f"{found.name}.yaml"
        there = parse_calibration(read_mapping(path), str(path))
        new = {
            key: replace(fit, source=str(found.source))
            for key, fit in found.fits.items()
            if found.name != "pooled" or key not in ARCHITECTURE_SPECIFIC
        }
        yield replace(there, fits={**there.fits, **new})


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit calibrations and write them to `--output`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.fit.ship", description="Fit the bundled calibrations.")
    parser.add_argument("measurements", type=Path, nargs="+", help="folders of measurement files")
    parser.add_argument("--output", type=Path, required=True, help="folder of the calibration files")
    parser.add_argument("--repository", default="", help="where the measurements were published")
    parser.add_argument("--commit", default="", help="their commit")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--families", action="store_true", help="fit product lines and families only")
    modes.add_argument("--add", action="store_true", help="add fits to the existing pooled and family calibrations")
    modes.add_argument("--kept", action="store_true", help="fit families only, from files marked as fitted")
    parser.add_argument("--date", type=datetime.date.fromisoformat, help="date of the fit")

    def work(options: argparse.Namespace) -> str:
        command = "python -m lab.fit.ship MEASUREMENTS_DIR --output hwspecs/calibration"
        mode = next((name for name in ("families", "add", "kept") if getattr(options, name)), "")
        data = load(options.measurements[0]) if mode in ("families", "add") else {}
        command = f"{command} --{mode}" if mode else command
        source = Source(options.repository, options.commit, (), options.date, command)
        match mode:
            case "families":
                found = list(lines_and_families(data, source))
            case "kept":
                found = list(kept(options.measurements[0], source))
            case "add":
                found = list(added(data, source, options.output))
            case _:
                found = []
        texts = {one.name: render(one, members=_listed(options.output / f"{one.name}.yaml")) for one in found}
        if not mode:
            texts = dict(hierarchical(options.measurements, options.output, source))
        for name, text in texts.items():
            save_text(options.output / f"{name}.yaml", text)
        return ""

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
