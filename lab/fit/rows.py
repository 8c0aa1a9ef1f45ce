"""The rows that calibrations are fitted to: by kind of kernel and format, device, engine and version.

A fit (`lab.fit.hierarchy`) has a node for each device, family and engine; this module says which rows are believed, how
many are taken, and which of them belong to a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.fit.shared import drawn
from lab.observation.collector import Collector
from lab.tables.public import read
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.version import Version
from roofline.timing.calibration import SHARED
from roofline.timing.chains import families, link_of
from roofline.validate.tables.implausible import as_computed, believable
from roofline.validate.tables.rows import NONE, Measurements, Origin, by_origin, joined

GRAPHED, HOSTED = Collector(), Collector(hosted=True)
"""The harnesses of tables with CUDA graphs, and of those that a fit gives host time, too."""

LEAF_ROWS = 400
"""Most rows of one version on one device; more do not improve a dozen constants."""

SHARED_ROWS = 1500
"""Most rows of each version of a kernel that engines share, so that none outweighs the others."""

LEAST_ROWS = 12
"""Rows from which a version on a device may have constants of its own."""

SPARSE = 0.05
"""Share of the rows of the engine's largest table on the device that a version needs for constants of its own.

It holds for versions with fewer than LEAF_ROWS rows that no other device of the family ran: constants of the few rows
of vLLM 0.22's decode on L40S would err by 39% on the rows of 0.24.
"""

Key = tuple[str, str]
"""Op and format."""

Place = tuple[str, Origin]
"""Device, and the engine and version."""

Table = Mapping[Place, Measurements]
"""The rows of one op and format."""


class Data(NamedTuple):
    """The rows of a fit by op and format, and in words which were left out."""

    tables: Mapping[Key, Table]
    left_out: tuple[str, ...]


def load(folders: Iterable[Path]) -> Data:
    """The believable rows of folders of measurement files, by op, format, device and origin."""
    return arranged(part for folder in folders for part in read(folder))


def arranged(measured: Iterable[Measurements]) -> Data:
    """The believable rows of measurements, by op, format, device and origin."""
    gathered: dict[Key, dict[Place, list[Measurements]]] = {}
    left_out: list[str] = []
    for kernels in measured:
        if (fallback := np.asarray(kernels.columns.get("ungrouped", 0.0)) > 0).any():
            kernels = kernels.rows(~fallback)
            left_out.append(
                f"{kernels.where}: {fallback.sum():,} rows of {kernels.op} of a kernel that serving does not run"
            )
            if not len(kernels):
                continue
        believed = believable([kernels], harness=GRAPHED)
        left_out += believed.left_out
        for name, own in (item for kept in believed.parts for item in kept.by_hardware().items()):
            for origin, rows in by_origin(own).items():
                for format, table in rows.formats().items():
                    if as_computed(table, load_hardware(name)) is not table:  # constants are of a format's arithmetic
                        left_out.append(f"{kernels.where}: {len(table):,} rows of {format} computed in another format")
                        continue
                    if shared := (kernels.op, format) in SHARED:
                        table = drawn(table, SHARED_ROWS, 0)
                    where = name, NONE if shared else origin
                    gathered.setdefault((kernels.op, format), {}).setdefault(where, []).append(table)
    tables = {
        key: {place: joined(parts) for place, parts in sorted(places.items())}
        for key, places in sorted(gathered.items())
    }
    return Data(tables, tuple(left_out))


def is_enough(place: Place, table: Table) -> bool:
    """Whether a version on a device has enough rows for constants of its own (`LEAST_ROWS`, `SPARSE`)."""
    name, origin = place
    count, family = len(table[place]), families(load_hardware(name))[0]
    if count < LEAST_ROWS or count >= LEAF_ROWS:
        return count >= LEAST_ROWS
    siblings = (other for other, one in table if one == origin and other != name)
    if any(families(load_hardware(other))[0] == family for other in siblings):
        return True
    return count >= SPARSE * max(
        len(part) for (at, one), part in table.items() if (at, one.engine) == (name, origin.engine)
    )


def newest(places: Iterable[Place]) -> list[Place]:
    """The newest version of an engine on each device, which is nearest to what an unseen device will run."""
    found: dict[str, Origin] = {}
    for name, origin in places:
        if name not in found or Version(found[name].version) < Version(origin.version):
            found[name] = origin
    return list(found.items())


def top_of(op: str, place: Place) -> tuple[str, str]:
    """The node below the root that a place belongs to: `pooled`, or of collectives the kind of link; and the engine."""
    name, origin = place
    link = link_of(load_hardware(name)) if op == "collective" else ""
    return link or "pooled", origin.engine


def by_family(places: Sequence[Place], hardware: Mapping[str, Hardware]) -> Iterator[list[Place]]:
    """The places of one version on the devices of a family, together."""
    grouped: dict[tuple[str, Origin], list[Place]] = {}
    for name, origin in places:
        grouped.setdefault((families(hardware[name])[0], origin), []).append((name, origin))
    yield from grouped.values()


def tables_left_out(rows: Measurements) -> Iterator[tuple[Origin, Measurements, Measurements]]:
    """Each table of a kernel that engines share, with the others together; none where there is a single table."""
    parts = by_origin(rows)
    for one, part in parts.items():
        if others := [other for name, other in parts.items() if name != one]:
            yield one, part, joined(others)
