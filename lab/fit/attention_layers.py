"""Fit the kernels of the attention and state layers of 2026, beside the other constants of the bundled calibrations.

    python -m lab.fit.attention_layers FOLDER --output hwspecs/calibration --repository NAME --commit HASH --date DATE
    python -m lab.fit.attention_layers FOLDER --score [--shipped]

The tables (`lab.tables.attention_layers`) are fitted as a hierarchy (`lab.fit.hierarchy`), with the components of its
levels (`lab.fit.variance`, those over all kinds as shipped); the files of `--output` keep what they have of other
kernels. `--score` prints the errors for versions, engines and devices that were held out (`lab.score.held_out`), with
`--shipped` those of the bundled constants, without a fit.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from lab.command import run_command
from lab.fit.hierarchy import Node, fit_all, shelved
from lab.fit.rows import Data, Key, arranged
from lab.fit.variance import components, crossings
from lab.fit.variance import render as render_levels
from lab.score.held_out import bundled, known_engine, markdown, newest, sampled, score, siblings, splits
from lab.tables import attention_layers, sparse_layers
from roofline.core.documents import read_mapping
from roofline.core.files import save_text
from roofline.timing.calibration import SPARSE, Calibration, Fit, Source
from roofline.timing.calibration_files import Document, parse_document, render
from roofline.timing.intervals.levels import FILE, parse_levels
from roofline.validate.score.kernels import Scored


def _is_layer(op: str, kind: str, one: Scored) -> bool:
    return one.op == op and str(one.part.frame["variant"].iloc[0]) == kind


KINDS: Mapping[str, Callable[[Scored], bool]] = {
    "Kimi delta attention": lambda one: one.op == "kimi_delta",
    "gated delta rule": lambda one: one.op == "gated_delta_rule",
    "Mamba-2": lambda one: one.op == "mamba2",
    "states in decode": lambda one: one.op == "state_update",
    "convolutions": lambda one: one.op.startswith("convolution"),
    **{
        f"{kind.upper()} layers, {phase}": partial(_is_layer, op, kind)
        for kind in SPARSE
        for op, phase in (("sparse_decode", "decode"), ("sparse_prefill", "prompts"))
    },
    "hyper-connections": lambda one: one.op == "hyper_connection",
    "encoder attention": lambda one: one.op == "encoder_attention",
}
"""The rows of the report."""


def files(found: Mapping[Key, Sequence[Node]], output: Path, source: Source) -> Iterator[tuple[Path, str]]:
    """The files of a folder of calibrations with the fits of these kernels in place of earlier ones.

    A device without a file of its engine gets one where it is listed as a member of its family.
    """
    ops, new = {op for op, _ in found}, shelved(found)
    engines = {engine for _, engine in new if engine}
    kept: dict[tuple[str, str], dict[str, dict[Key, Fit]]] = {
        (path.stem, engine): {} for engine in engines for path in (output / engine).glob("*.yaml")
    }
    for (place, engine), versions in sorted({**kept, **new}.items()):
        path = output / engine / f"{place}.yaml"
        if path.exists():
            known = parse_document(read_mapping(path), str(path))
            if not versions and not any(op in ops for fits in known.versions.values() for op, _ in fits):
                continue
        elif place in _members(output):
            known = Document(Calibration(place, "calibrated", engine=engine, source=source), {}, ())
        else:
            continue
        merged: dict[str, dict[Key, Fit]] = {
            version: {key: fit for key, fit in fits.items() if key[0] not in ops or not engine}
            for version, fits in known.versions.items()
        }
        for version, fits in versions.items():
            merged.setdefault(version, {}).update(
                {key: replace(fit, source=f"{source.repository}, commit {source.commit}") for key, fit in fits.items()}
            )
        own = merged.pop("", {})
        calibration: Calibration = replace(known.calibration, fits={**known.calibration.fits, **own})
        filled = {version: merged[version] for version in sorted(merged) if merged[version]}
        yield path, render(calibration, filled, known.members)


def _members(output: Path) -> set[str]:
    """The devices that the files of families list."""
    listed = (
        parse_document(read_mapping(path), str(path)).members
        for path in sorted(output.glob("*.yaml"))
        if path.name != FILE
    )
    return {member for members in listed for member in members}


def levels(data: Data, found: Mapping[Key, Sequence[Node]], path: Path) -> str:
    """The text of the file of components with those of these kernels in place of earlier ones."""
    own = components(list(crossings(data, found)), parse_levels(path)["other"])
    return render_levels(own, "python -m lab.fit.ship, then python -m lab.fit.attention_layers", path)


def report(data: Data, found: Mapping[Key, Sequence[Node]]) -> str:
    """The errors for what was held out."""
    few = sampled(data)
    held = list(known_engine(few, score(few, found, list(splits(few)))))
    return markdown([*held, *newest(few, held), *siblings(few, held)], KINDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit or score; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.fit.attention_layers", description="Kernels of 2026.")
    parser.add_argument("measurements", type=Path, help="folder of public tables")
    parser.add_argument("--output", type=Path, help="folder of the calibration files")
    parser.add_argument("--score", action="store_true", help="print held-out errors")
    parser.add_argument("--shipped", action="store_true", help="with the bundled constants, without a fit")
    parser.add_argument("--repository", default="", help="where the measurements were published")
    parser.add_argument("--commit", default="", help="their commit")
    parser.add_argument("--date", type=datetime.date.fromisoformat, help="date of the fit")

    def work(options: argparse.Namespace) -> str:
        data = arranged([*attention_layers.read(options.measurements), *sparse_layers.read(options.measurements)])
        sys.stderr.writelines(f"left out: {reason}\n" for reason in data.left_out)
        found: Mapping[Key, Sequence[Node]] = bundled(data) if options.shipped else fit_all(data)
        if options.output is not None:
            source = Source(options.repository, options.commit, (), options.date, parser.prog)
            for path, text in files(found, options.output, source):
                save_text(path, text)
            save_text(path := options.output / FILE, levels(data, found, path))
        return report(data, found) if options.score else ""

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
