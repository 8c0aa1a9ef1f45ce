"""Errors of predictions for versions, engines and devices that no constants were fitted to.

    python -m lab.score.held_out MEASUREMENTS_DIR... [--shipped] [--output held-out.md]

Every version of an engine, every engine on a device and every device is held out as a whole, never single rows: its
constants, and those fitted to its rows together with others, are taken away, and its rows are predicted with what is
left, by the same search for the nearest constants that a prediction makes; an engine's constants for all devices are
fitted anew to the rest where no nearer ones are left, and without the whole family of a device. The remaining constants
keep the prior that they were fitted with, which had seen the held-out rows; its weight is that of a few rows. The
components of the levels are those of the shipped file. The forms of the kernel models were chosen with half of the
shapes of vLLM 0.24 in view. `--shipped` scores the bundled constants; without it all constants are fitted first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from lab.command import run_written
from lab.fit.hierarchy import Node, fit_all, fit_elsewhere, fit_shared_kernel, outside, shelved
from lab.fit.rows import HOSTED, LEAF_ROWS, Data, Key, Place, load
from lab.fit.shared import drawn
from roofline.core.documents import bundled_path, read_mapping
from roofline.specs.hardware import SERVER_DEVICES, Hardware, load_hardware
from roofline.specs.library import files_below
from roofline.specs.version import Version
from roofline.timing.calibration import SHARED, Calibration, Fit, Fits, Match, chained
from roofline.timing.calibration_files import of_version, parse_document
from roofline.timing.chains import ENGINES, FOLDER, LINKS, calibration_links, families, link_of
from roofline.timing.collectives import on_host
from roofline.timing.intervals.levels import FILE as LEVELS
from roofline.timing.kernels import kernel
from roofline.validate.score.errors import group_of
from roofline.validate.score.kernels import Scored, predict
from roofline.validate.tables.rows import NONE, Measurements, Origin, by_origin, joined


class Split(NamedTuple):
    """The places that are held out: those of a device, an engine and a version, each "" where it may be any."""

    kind: str
    device: str = ""
    origin: Origin = NONE

    def held(self, place: Place) -> bool:
        """Whether the rows of a place are held out."""
        name, origin = place
        asked = zip((self.device, *self.origin), (name, *origin), strict=True)
        return all(wanted in ("", own) for wanted, own in asked)


class NodeShelf:
    """Fitted nodes as calibrations to look up by name; see `roofline.timing.chains.Shelf`."""

    def __init__(self, found: Mapping[Key, Sequence[Node]], members: Mapping[str, Sequence[str]]) -> None:
        self._members = members
        self._versions: dict[str, dict[str, dict[Key, Fit]]] = {
            f"{engine}/{place}".lstrip("/"): versions for (place, engine), versions in shelved(found).items()
        }

    def members(self, family: str) -> tuple[str, ...] | None:
        """The members of a family; None for a name without fits."""
        found = family in self._versions or family in self._members
        return tuple(self._members.get(family, ())) if found else None

    def fits(self, name: str, version: str = "", other: bool = False) -> Fits | None:
        """The fits of a version."""
        return of_version(self._versions[name], version, other) if name in self._versions else None


def bundled(data: Data) -> dict[Key, list[Node]]:
    """The nodes of the bundled calibrations, of the kernels that are measured in `data`."""
    found: dict[Key, list[Node]] = {key: [] for key in data.tables}
    for file in files_below(bundled_path("hwspecs") / FOLDER).values():
        if file.path.stem == Path(LEVELS).stem:
            continue
        document = parse_document(read_mapping(file.path), str(file.path))
        one = document.calibration
        for version, fits in document.versions.items():
            for key, fit in fits.items():
                if key in found and (one.engine in ENGINES or key in SHARED):
                    plain = {
                        name: dict(getattr(fit, name)) for name in ("parameters", "residuals", "ranges", "observed")
                    }
                    found[key].append(Node(one.name, Origin(one.engine, version), replace(fit, **plain)))
    return {key: nodes for key, nodes in found.items() if nodes}


def splits(data: Data) -> Iterator[Split]:
    """Every version with another one, every engine on a device, every device."""
    places = dict.fromkeys(place for table in data.tables.values() for place in table)
    origins = {origin for _, origin in places if origin.engine}
    for origin in sorted(origins):
        if any(other.engine == origin.engine and other != origin for other in origins):
            yield Split("version", origin=origin)
    for engine, name in sorted({(origin.engine, name) for name, origin in places if origin.engine}):
        yield Split("engine", name, Origin(engine, ""))
    for name in sorted({name for name, _ in places}):
        yield Split("device", name)


class HeldOut(NamedTuple):
    """The predictions for one place of a split."""

    split: Split
    place: Place
    scored: Scored


def score(data: Data, found: Mapping[Key, Sequence[Node]], only: Iterable[Split]) -> Iterator[HeldOut]:
    """The predictions for the held-out rows of every split."""
    names = dict.fromkeys(name for table in data.tables.values() for name, _ in table)
    hardware = {name: load_hardware(name) for name in names}
    for split in only:
        left = {key: list(_left(key, data, nodes, split)) for key, nodes in found.items()}
        members: dict[str, list[str]] = {}
        for name in names:
            if split.kind != "device" or name != split.device:
                members.setdefault(families(hardware[name])[0], []).append(name)
        shelf = NodeShelf(left, members)
        for place, rows in (item for table in data.tables.values() for item in table.items()):
            if split.held(place):
                yield from _predicted(split, place, rows, shelf)


def _predicted(split: Split, place: Place, rows: Measurements, shelf: NodeShelf) -> Iterator[HeldOut]:
    name, (engine, version) = place
    device = load_hardware(name)
    links = list(calibration_links(device, engine, version, True, shelf))
    if rows.op == "collective" and device.over_host(SERVER_DEVICES):
        links = [_on_host(link, device) for link in links]
    for scored in predict(rows, device, chained(links, name), harness=HOSTED):
        if (scored.high > scored.low).any():  # a bound, where no constants are left, is no prediction
            yield HeldOut(split, place, scored)


def _on_host(link: Calibration, device: Hardware) -> Calibration:
    """The collectives of other devices over PCIe, as a prediction has them: on the host that stands for any."""
    match = {key: on_host(Match(fit, link.basis, link.name, ""), device) for key, fit in link.fits.items()}
    return replace(link, fits={key: one.fit for key, one in match.items() if key[0] == "collective"})


def _left(key: Key, data: Data, nodes: Sequence[Node], split: Split) -> Iterator[Node]:
    """The nodes that saw no held-out row; an engine's on all devices, where it is needed, fitted without any."""
    table = data.tables[key]
    held = [place for place in table if split.held(place)]
    for node in nodes:
        seen, engine = _seen(node, table), node.origin.engine
        if not any(place in seen for place in held):
            yield node
        elif node.place in ("pooled", *LINKS) and (engine or key in SHARED) and _is_needed(table, held, engine):
            kept = outside(key[0], split.device) if split.kind == "device" else _but(held)
            if (fit := fit_elsewhere(key, table, engine, node.fit, kept)) is not None:
                yield node._replace(fit=fit)


def _but(held: Sequence[Place]) -> Callable[[Place], bool]:
    return lambda place: place not in held


def _is_needed(table: Iterable[Place], held: Sequence[Place], engine: str) -> bool:
    """Whether some held-out place of an engine has no other of its family left, whose constants are nearer."""
    own = [place for place in table if place[1].engine == engine]
    left = {families(load_hardware(place[0]))[0] for place in own if place not in held}
    return any(families(load_hardware(place[0]))[0] not in left for place in own if place in held)


def _seen(node: Node, table: Iterable[Place]) -> set[Place]:
    """The places whose rows a node was fitted to."""
    place, origin = node.place, node.origin
    return {
        (name, one)
        for name, one in table
        if place in (name, "pooled", families(load_hardware(name))[0], link_of(load_hardware(name)))
        and (one == origin or (not origin.version and one.engine == origin.engine) or not origin.engine)
    }


def shared_kernels(key: Key, name: str, rows: Measurements, nodes: Sequence[Node]) -> list[HeldOut]:
    """The predictions for each version and engine in the rows of a kernel that engines share on one device.

    The device's constants are fitted to the rows of the others, which over PCIe are of the same machine. Two of L40S's
    tables were published under two versions: neither counts.
    """
    device, parts = load_hardware(name), by_origin(rows)
    found: list[HeldOut] = []
    for split in (
        *(Split("version", name, one) for one in parts),
        *(Split("engine", name, Origin(engine, "")) for engine in dict.fromkeys(one.engine for one in parts)),
    ):
        held = {one: part for one, part in parts.items() if split.held((name, one))}
        rest = [part for one, part in parts.items() if one not in held]
        copied = any(sorted(one.seconds) == sorted(other.seconds) for one in held.values() for other in rest)
        if not rest or copied or not split.origin.engine:
            continue
        fit = fit_shared_kernel(key, joined(rest), device, nodes)
        calibration = Calibration(name, "calibrated", {key: fit}, crossed=("table",))
        for one, part in held.items():
            scored = predict(drawn(part, LEAF_ROWS, 0), device, calibration, harness=HOSTED)
            found += (HeldOut(split, (name, one), each) for each in scored)
    return found


def newest(data: Data, held: Iterable[HeldOut]) -> Iterator[HeldOut]:
    """Of the versions held out (`known_engine`), an engine's newest with the kernel: what a release is after these."""
    every = [place for table in data.tables.values() for place in table]
    for one in held:
        engine, version = one.place[1]
        known = [
            [other.version for _, other in at if other.engine == engine] for at in (_tables_of(data, one.scored), every)
        ]
        if one.split.kind == "version" and version == max(known[0] or known[1], key=Version):
            yield one._replace(split=one.split._replace(kind="newest"))


def siblings(data: Data, held: Iterable[HeldOut]) -> Iterator[HeldOut]:
    """Of the GPUs held out those of a family in which the engine's kernel was measured on another GPU."""
    for one in held:
        name, origin = one.place
        near = (at for at, other in _tables_of(data, one.scored) if at != name and other.engine == origin.engine)
        family = families(load_hardware(name))[0]
        if one.split.kind == "device" and any(families(load_hardware(at))[0] == family for at in near):
            yield one._replace(split=one.split._replace(kind="sibling"))


def known_engine(data: Data, held: Iterable[HeldOut]) -> Iterator[HeldOut]:
    """The rows without versions held out that are the only one of their engine on the device.

    To these the engine is as unknown as in the split by engine.
    """
    for one in held:
        if one.split.kind == "version":
            (name, (engine, _)), table = one.place, _tables_of(data, one.scored)
            if not any((at, other.engine) == (name, engine) for at, other in table if (at, other) != one.place):
                continue
        yield one


def _tables_of(data: Data, scored: Scored) -> Iterable[Place]:
    """The places of a kernel's format, or of all its formats where these are no data types."""
    own = data.tables.get((scored.op, kernel(scored.op).format(scored.part.columns)))
    if own is not None:
        return own
    return [place for (op, _), table in data.tables.items() if op == scored.op for place in table]


KINDS: Mapping[str, Callable[[Scored], bool]] = {
    "GEMM bf16": lambda one: (one.op, one.format) == ("gemm", "bf16"),
    "GEMM fp8": lambda one: (one.op, one.format) == ("gemm", "fp8"),
    "GEMM nvfp4": lambda one: (one.op, one.format) == ("gemm", "nvfp4"),
    "GEMM fp8_block": lambda one: (one.op, one.format) == ("gemm", "fp8_block"),
    "attention prefill": lambda one: one.op == "attention_prefill",
    "attention decode": lambda one: one.op == "attention_decode",
    "MLA prefill and decode": lambda one: one.op in ("mla_prefill", "mla_decode"),
    "MoE": lambda one: one.op == "moe",
    "all-reduce and other collectives": lambda one: one.op == "collective",
}
"""The rows of the report."""

TITLES = {
    "version": "A version held out, another one known on the GPU",
    "newest": "The newest version held out, an older one known on the GPU",
    "engine": "An engine held out on a GPU",
    "device": "A GPU held out, engine known",
    "sibling": "A GPU held out, engine known on its family",
}


def markdown(held: Sequence[HeldOut], kinds: Mapping[str, Callable[[Scored], bool]] = KINDS) -> str:
    """The report: for each split MAPE, median error and coverage by kind of kernel; every place counts the same."""
    lines = [
        "| held out | kernel | places | MAPE, % | median, % | in the 80% interval, % |",
        "|---|---|---|---|---|---|",
    ]
    for kind, title in TITLES.items():
        own = [one for one in held if one.split.kind == kind]
        for name, test in (*kinds.items(), ("all kinds", lambda _: True)):
            chosen = [one.scored for one in own if test(one.scored)]
            if chosen:
                lines.append(f"| {title} | {name} | {len(chosen)} | {_figures(chosen)} |")
    return "\n".join(lines) + "\n"


def _figures(chosen: Sequence[Scored]) -> str:
    found = [group_of({}, one.measured, one.low, one.mid, one.high, one.bound) for one in chosen]
    names = ("mape", "median_ape", "interval_coverage")
    means = [100 * float(np.mean([getattr(one, name) for one in found])) for name in names]
    return " | ".join(f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in means)


def sampled(data: Data) -> Data:
    """At most LEAF_ROWS rows of each place, drawn uniformly: those that are scored."""
    tables = {
        key: {place: drawn(part, LEAF_ROWS, 0) for place, part in table.items()} for key, table in data.tables.items()
    }
    return Data(tables, data.left_out)


def _listed(data: Data, found: Mapping[Key, Sequence[Node]], only: Sequence[Split]) -> list[HeldOut]:
    return list(score(data, found, only))


def report(folders: Sequence[Path], shipped: bool = False) -> str:
    """The report of folders of measurement files, with the bundled constants (`shipped`) or newly fitted ones."""
    data, fork = load(folders), multiprocessing.get_context("fork")
    if shipped:
        found: Mapping[Key, Sequence[Node]] = bundled(data)
    else:
        with ProcessPoolExecutor(mp_context=fork) as pool:
            found = fit_all(data, pool.map)
    shared = [
        (key, name, rows, found[key])
        for key in SHARED
        for (name, _), rows in data.tables.get(key, {}).items()
        if len(by_origin(rows)) > 1
    ]
    every, workers, data = list(splits(data)), os.cpu_count() or 1, sampled(data)
    with ProcessPoolExecutor(workers, mp_context=fork) as pool:
        common = [one for share in pool.map(shared_kernels, *zip(*shared, strict=True)) for one in share]
        shares = pool.map(partial(_listed, data, found), [every[first::workers] for first in range(workers)])
        held = [*known_engine(data, (one for share in shares for one in share)), *common]
    return markdown([*held, *newest(data, held)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of folders of measurements; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.held_out", description="Held-out errors.")
    parser.add_argument("measurements", type=Path, nargs="+", help="folders of measurement files")
    parser.add_argument("--shipped", action="store_true", help="score the bundled constants, without a fit")
    return run_written(parser, lambda options: report(options.measurements, options.shipped), arguments)


if __name__ == "__main__":
    sys.exit(main())
