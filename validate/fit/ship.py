"""Fit the calibrations that the package ships: each accelerator's, each family's, and the pooled one.

python -m roofline.validate.fit.ship MEASUREMENTS_DIR --output hwspecs/calibration --repository NAME --commit HASH
--date DATE

With --families only those of lines and families, upon the pooled one that the package has: for measurements of another
sort, or such as name an architecture and no accelerator. With --add the fits join those of the files that are there:
for kernels that the other measurements lack. With --kept the families of machines without a datasheet, from those files
of such a folder as `validate/measurements` whose provenance says that constants were fitted to them.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError
from roofline.core.files import save_text
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.calibration import (
    Calibration,
    Fit,
    Source,
    families,
    line,
    load_calibration,
    parse_calibration,
    render,
)
from roofline.timing.kernels.gated_delta_rule import FUSED
from roofline.validate.check.measured import load_kept
from roofline.validate.fit.calibrate import FEWEST, describe, fit, fit_shared, log_errors, widen
from roofline.validate.main import answer
from roofline.validate.score.accuracy import Data, load
from roofline.validate.tables.rows import Measurements, read_measurements

FOR_ITS_OWN = {("delta_rule", FUSED)}
"""Kernels that somebody wrote for one architecture: no other can expect to have them."""

FEW_BESIDE_A_LINE = 50
"""Rows of a format that a family needs for constants of its own where those of its line stand for it."""

Member = tuple[Hardware, list[Measurements]]


def calibrations(data: Data, source: Source) -> Iterator[Calibration]:
    """All calibrations that measurements allow: the pooled one and the families', then each accelerator's own."""
    yield from shared(data, source)
    for name, parts in data.items():
        hardware, rows = load_hardware(name), list(parts.values())
        yield fit(rows, hardware, source=_of(source, [(hardware, rows)]))


def shared(data: Data, source: Source) -> Iterator[Calibration]:
    """The pooled calibration, and those of families, which start from it."""
    members: list[Member] = [(load_hardware(name), list(parts.values())) for name, parts in data.items()]
    pooled = fit_shared("pooled", members, source=_of(source, members))
    yield pooled
    for name, own in _families(members).items():
        found = fit_shared(name, own, pooled, source=_of(source, own))
        yield found if len(own) > 1 else widen(found, pooled)


def families_upon(data: Data, source: Source) -> Iterator[Calibration]:
    """The calibrations of lines and families that measurements allow; no accelerator's own, nor the pooled one.

    A line with several families starts from the shipped pooled calibration, which stays as it is, and its families
    start from the line. Raises RooflineError where none is shipped.
    """
    members: list[Member] = [(load_hardware(name), list(parts.values())) for name, parts in data.items()]
    pooled = next((link for link in load_calibration(members[0][0]).chain if link.basis == "pooled"), None)
    if pooled is None:
        raise RooflineError("there is no pooled calibration to start from; fit without --families first")
    lines: dict[str, list[Member]] = {}
    for member in members:
        lines.setdefault(line(member[0]), []).append(member)
    for name, together in lines.items():
        prior, own = pooled, _families(together)
        if len(own) > 1:
            found = fit_shared(name, together, pooled, source=_of(source, together), free=True)
            yield (across := _paying(found, pooled, together))
            prior = replace(across, parents=(pooled,))
        fewest = FEW_BESIDE_A_LINE if prior is not pooled else FEWEST
        for family, part in own.items():
            found = fit_shared(family, part, prior, source=_of(source, part), fewest=fewest, free=True)
            paying = _paying(found, prior, part)
            yield paying if len(part) > 1 else widen(paying, prior)


def kept(folder: Path, source: Source) -> Iterator[Calibration]:
    """Calibrations of families from the files of `folder` that are to be fitted; see `validate.check.measured`."""
    members: dict[str, list[Member]] = {}
    for file in load_kept(folder):
        if file.provenance.fitted:
            members.setdefault(file.hardware.family, []).append((file.hardware, read_measurements(Path(file.where))))
    for name, own in members.items():
        yield fit_shared(name, own, source=_of(source, own), free=True)


def _paying(found: Calibration, prior: Calibration, members: Sequence[Member]) -> Calibration:
    """`found` without the fits whose errors on rows that they did not see spread no less than the prior's."""
    return replace(found, fits={key: own for key, own in found.fits.items() if _pays(own, prior, members)})


def _pays(own: Fit, prior: Calibration, members: Sequence[Member]) -> bool:
    match = prior.find(own.op, own.format)
    if match is None:
        return True
    errors = [
        log_errors(rows, hardware, match.fit.parameters)
        for hardware, parts in members
        for part in parts
        if part.op == own.op
        for format, rows in part.formats().items()
        if format == own.format
    ]
    low, high = np.percentile(np.concatenate(errors), (10, 90))
    spread = own.residuals["all"]
    return bool(math.log(spread.high / spread.low) < high - low)


def _families(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Members by family; those with GDDR apart where the family has members with HBM, too."""
    grouped: dict[str, list[Member]] = {}
    for member in members:
        special, *plain = families(member[0])
        mixed = any(families(other) == (*plain,) for other, _ in members)
        grouped.setdefault(special if mixed or not plain else plain[0], []).append(member)
    return grouped


def _of(source: Source, members: Sequence[Member]) -> Source:
    software = describe([part for _, parts in members for part in parts]).software
    return replace(source, software=software)


def with_others(found: Calibration, folder: Path) -> Calibration:
    """`found` with the fits of its file that came from other measurements and that it has none of."""
    path = folder / f"{found.name}.yaml"
    if not path.is_file():
        return found
    there = parse_calibration(read_mapping(path), str(path)).fits
    others = {key: fit for key, fit in there.items() if fit.source and key not in found.fits}
    return replace(found, fits={**found.fits, **others})


def added(data: Data, source: Source, folder: Path) -> Iterator[Calibration]:
    """The pooled and the families' calibrations of a folder, with what these measurements allow beside what they hold.

    A fit that comes to others says where its own measurements came from. Kernels written for one architecture
    (`FOR_ITS_OWN`) stay out of the pooled calibration, which all hardware inherits.
    """
    for found in shared(data, source):
        path = folder / f"{found.name}.yaml"
        there = parse_calibration(read_mapping(path), str(path))
        kept = {key: fit for key, fit in found.fits.items() if found.name != "pooled" or key not in FOR_ITS_OWN}
        origin = str(found.source)
        yield replace(there, fits={**there.fits, **{key: replace(fit, source=origin) for key, fit in kept.items()}})


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m roofline.validate.fit.ship", description="Fit the shipped calibrations."
    )
    parser.add_argument("measurements", type=Path, help="folder of measurement files")
    parser.add_argument("--output", type=Path, required=True, help="folder of the calibration files")
    parser.add_argument("--repository", default="", help="where the measurements were published")
    parser.add_argument("--commit", default="", help="their commit")
    sort = parser.add_mutually_exclusive_group()
    sort.add_argument("--families", action="store_true", help="lines and families alone, upon the pooled one there is")
    sort.add_argument("--add", action="store_true", help="add fits to those of the pool and the families")
    sort.add_argument("--kept", action="store_true", help="families alone, from files with a provenance beside them")
    parser.add_argument("--date", type=datetime.date.fromisoformat, help="date of the fit")

    def work(options: argparse.Namespace) -> str:
        command = "python -m roofline.validate.fit.ship MEASUREMENTS_DIR --output hwspecs/calibration"
        sort = next((name for name in ("families", "add", "kept") if getattr(options, name)), "")
        data = load(options.measurements) if sort != "kept" else {}
        source = Source(
            options.repository, options.commit, (), options.date, f"{command} --{sort}" if sort else command
        )
        match sort:
            case "families":
                found = list(families_upon(data, source))
            case "kept":
                found = list(kept(options.measurements, source))
            case "add":
                found = list(added(data, source, options.output))
            case _:
                found = [with_others(calibration, options.output) for calibration in calibrations(data, source)]
        texts = {calibration.name: render(calibration) for calibration in found}
        for name, text in texts.items():
            save_text(options.output / f"{name}.yaml", text)
        return ""

    return answer(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
