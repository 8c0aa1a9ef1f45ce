"""Fit all calibrations together: by kind of kernel and format, device, engine and version, with partial pooling.

Each kind of kernel has one formula; the fits of its constants form a tree, from the root down. Every node is fitted to
the rows below it (`lab.fit.rows`), with a prior around the constants of its parent
(`roofline.validate.fit.calibrate`):

    all                     every engine on every device
      engine                its newest versions on every device (collectives: the devices with a kind of link)
        engine, family      one version on the devices of a family, where several were measured
          engine, device    one version on one device

So a node with few rows stays near its parent, and one with many follows its rows; the devices of a family share the
choices of a version, such as its tiles. Kernels that engines share (`SHARED`: the rows of all engines agree within
noise) have one node for each device, below one for all; each version counts the same, and the residuals are those of
versions that a fit did not see. A constant of a kernel means the same in every table, though some tables cannot
determine it, and then the fit starts from where it is known:

    tables without CUDA graphs     host time hides the launch: that of the device's tables with graphs
    differences of two times       the launch cancels: that of another engine on the device (`DIFFERENCED`)
    quantizing in PyTorch          the bandwidth of the quantizing kernel is the median of other engines' on the device

A `local` parameter, such as the slowdown of a shape that a library lacks a kernel for, holds within its family only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isclose
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from lab.fit.rows import (
    GRAPHED,
    HOSTED,
    LEAF_ROWS,
    LEAST_ROWS,
    Data,
    Key,
    Place,
    Table,
    by_family,
    is_enough,
    newest,
    tables_left_out,
    top_of,
)
from lab.observation.collector import DIFFERENCED, Collector, are_differences, host_of
from lab.tables.kernel_benchmarks import is_ungraphed
from roofline.core.parameters import Unit
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.calibration import SHARED, Fit
from roofline.timing.calibration_files import of_version
from roofline.timing.chains import families, link_of
from roofline.timing.intervals.kernels import Residuals
from roofline.timing.kernels import kernel, kernel_regimes
from roofline.timing.kernels.formats import TRITON
from roofline.timing.kernels.moe import MARLIN
from roofline.validate.fit.calibrate import (
    PRIOR_WIDTH,
    constants_of,
    default_start,
    fit_rows,
    log_errors,
    ranges,
    sample,
    summarise,
)
from roofline.validate.fit.search import Start, every_parameter, search
from roofline.validate.tables.rows import NONE, Measurements, Origin, by_origin

POOLED_ROWS = 1000
"""Most rows of a node with nodes below it, an equal share from each of these."""

UNSEEN = 3
"""Rows of a version on a device, over those of its fit, from which its residuals are those of all rows."""

FREE_CHOICE = 200
"""Rows from which a version on the only measured device of a family has choices of its own, such as its tiles."""

WIDTH = 0.5
"""Width of the prior around the constants of the parent, in factors of e."""

BLOCK_SCALED = ("gemm", "fp8_block"), ("gemm", TRITON["fp8_block"])
"""Block-scaled GEMMs, with the engine's kernel that quantizes activations and with that of Triton."""


class Node(NamedTuple):
    """A fit with its place: a device, a family or `pooled`, and an engine's version ("" for all of them)."""

    place: str
    origin: Origin
    fit: Fit


def fit_table(key: Key, table: Table, seed: int = 0) -> list[Node]:
    """The nodes of one op and format, each after its parent: the root, then each engine's with those below it.

    Engines whose rows are differences of two times come last, since they start from the constants of the others.
    """
    op, format = key
    rows = {place: sample(part, LEAF_ROWS, seed) for place, part in table.items() if is_enough(place, table)}
    if not rows:
        return []
    marlin = op == "moe" and format in MARLIN
    alike = [place for place, part in rows.items() if marlin and part.frame["experts"].nunique() == 1]
    rows = dict(sorted(rows.items(), key=lambda row: row[0] in alike))
    hardware = {name: load_hardware(name) for name, _ in rows}
    hosted = {place: is_ungraphed(part) for place, part in rows.items()}
    graphed = [place for place in rows if not hosted[place]]
    fitted = partial(_fitted, op, format, rows, hardware, seed, table=table)
    root = _general(fitted(graphed or list(rows), default_start(op, format, GRAPHED), not graphed, together=True))
    nodes = [Node("pooled", NONE, root)]
    leaves: dict[Place, Fit] = {}
    less = {place: are_differences(part, hardware[place[0]]) for place, part in rows.items()}
    eager = {
        place: "eager" in part.frame and bool(np.all(part.numbers("eager", 0.0) > 0)) for place, part in rows.items()
    }
    tops = dict.fromkeys(top_of(op, place) for place in sorted(rows, key=lambda place: hosted[place]))
    dependent = {top_of(op, place) for place in rows if less[place]}  # which start from other engines' constants
    for name, engine in sorted(tops, key=lambda top: top in dependent):
        own = [place for place in rows if top_of(op, place) == (name, engine)]
        top = root
        if name != "pooled" or engine:
            host = hosted[own[0]]
            top = _general(fitted(newest(own), Start(_begun(root), WIDTH, informed=True), host, together=True))
            nodes.append(Node(name, Origin(engine, ""), top))
        for places in by_family(own, hardware):
            parent = top
            if len(places) > 1:
                family = families(hardware[places[0][0]])[0]
                begun = _of_others(_begun(top), family, nodes) if all(less[place] for place in places) else _begun(top)
                begun = _of_other_layers(begun, leaves, alike) if set(places) <= set(alike) else begun
                parent = fitted(places, Start(begun, WIDTH, informed=True), hosted=hosted[places[0]])
                nodes.append(Node(family, places[0][1], parent))
            for place in places:
                begun = _with_graphs(place, parent, leaves, hosted)
                if less[place]:
                    begun = _of_others(begun, place[0], nodes)
                if eager[place]:
                    begun = _of_device(begun, place, nodes)
                if place in alike:
                    begun = _of_other_layers(begun, leaves, alike)
                start = Start(begun, WIDTH, informed=True)
                free = len(places) == 1 and len(rows[place]) >= FREE_CHOICE
                leaves[place] = fitted([place], start, hosted=hosted[place], leaf=True, free=free)
                nodes.append(Node(*place, leaves[place]))
    return nodes


def _fitted(
    op: str,
    format: str,
    rows: Table,
    hardware: Mapping[str, Hardware],
    seed: int,
    places: Sequence[Place],
    start: Start,
    hosted: bool,
    leaf: bool = False,
    free: bool | None = None,
    together: bool = False,
    table: Table = MappingProxyType({}),
) -> Fit:
    """The fit to a sample of the `rows` of some places; `together` where these are of several families.

    `hosted` fits have constants of host time. The residuals of a single place (`leaf`) are those of all its rows in
    `table`, or cross-validated where the fit saw most of them.
    """
    harness, every_harness = Collector(hosted, together), Collector(hosted=True, together=together)
    if hosted:
        start = Start(_with_host(op, format, start.parameters), start.width, start.informed)
    if leaf:
        ((name, origin),) = places
        every, device = table[name, origin], hardware[name]
        unseen = len(every) >= UNSEEN * len(rows[name, origin])
        part = rows[name, origin], device
        found = _evident(fit_rows(op, format, [part], start, seed, free, harness, folds=not unseen, least=LEAST_ROWS))
        if (op, format) in SHARED and len(by_origin(every)) > 1:
            found = replace(found, residuals=_between_versions(every, device, found, seed), ranges=ranges(op, [every]))
        elif unseen:
            errors = -log_errors(every, device, constants_of(found), HOSTED)
            residuals = summarise(op, errors, kernel_regimes(op, every.columns))
            found = replace(found, residuals=residuals, ranges=ranges(op, [every]))
        return replace(found, version=origin.version)
    share = max(24, POOLED_ROWS // len(places))
    parts = [(sample(rows[place], share, seed), hardware[place[0]]) for place in places]
    found = _evident(fit_rows(op, format, parts, start, seed, free, harness, folds=False, least=LEAST_ROWS))
    errors = np.concatenate([-log_errors(part, device, constants_of(found), every_harness) for part, device in parts])
    regimes = np.concatenate([kernel_regimes(op, part.columns) for part, _ in parts])
    versions = {origin.version for _, origin in places}
    return replace(
        found, residuals=summarise(op, errors, regimes), version=versions.pop() if len(versions) == 1 else ""
    )


def _between_versions(every: Measurements, device: Hardware, fit: Fit, seed: int) -> Mapping[str, Residuals]:
    """The residuals of each version's rows of a shared kernel, with constants fitted to the others."""
    errors, regimes = [], []
    for _, part, rest in tables_left_out(every):
        start = Start(constants_of(fit), WIDTH, informed=True)
        rows = [(sample(rest, LEAF_ROWS, seed), device)]
        constants = search(fit.op, fit.format, rows, start, free=False, harness=GRAPHED)
        errors.append(-log_errors(part, device, constants, GRAPHED))
        regimes.append(kernel_regimes(fit.op, part.columns))
    return summarise(fit.op, np.concatenate(errors), np.concatenate(regimes))


def fit_shared_kernel(key: Key, rows: Measurements, device: Hardware, nodes: Sequence[Node], seed: int = 0) -> Fit:
    """The constants of a kernel that engines share on one device, with those above it among the `nodes` as prior."""
    place, found = (device.name, NONE), sample(rows, LEAF_ROWS, seed)
    above = {node.place: node.fit for node in nodes if node.place != device.name}
    start = next(above[name] for name in (*families(device), link_of(device), "pooled") if name in above)
    prior = Start(_begun(start), WIDTH, informed=True)
    one = {place: found}, {device.name: device}
    return _fitted(*key, *one, seed, [place], prior, hosted=False, leaf=True, free=False, table={place: rows})


def _with_host(op: str, format: str, parameters: Mapping[str, float]) -> Mapping[str, float]:
    """The start of a fit to rows without CUDA graphs: host time from its own start where there is none yet."""
    unknown = {
        one.name: one.start for one in host_of(op, format) if parameters.get(one.name, one.default) == one.default
    }
    return {**parameters, **{name: start for name, start in unknown.items() if start is not None}}


def _evident(fit: Fit) -> Fit:
    """The fit without local constants where one stayed at its start: they are of shapes that no row has."""
    found, every = fit.parameters, kernel(fit.op).parameters(fit.format)
    local = [one for one in every if one.local]
    stayed = any(
        one.unit is not Unit.CHOICE and isclose(found[one.name], one.start or 0.0, rel_tol=1e-3) for one in local
    )
    return replace(fit, parameters={**found, **{one.name: one.default for one in local}}) if stayed else fit


def _general(fit: Fit) -> Fit:
    """The constants of all families without those that are local to one."""
    local = {one.name: one.default for one in kernel(fit.op).parameters(fit.format) if one.local}
    return replace(fit, parameters={**fit.parameters, **local}) if local else fit


def _begun(parent: Fit) -> Mapping[str, float]:
    """The start of a fit below `parent`: its constants, and those of no prior where it has no local ones."""
    every = kernel(parent.op).parameters(parent.format)
    unknown = {one.name: one.start for one in every if one.local and parent.parameters[one.name] == one.default}
    beside = {one.name: one.default for one in GRAPHED.parameters(parent.op, parent.format)}
    return {**beside, **constants_of(parent), **{name: start for name, start in unknown.items() if start is not None}}


def _with_graphs(
    place: Place, parent: Fit, leaves: Mapping[Place, Fit], hosted: Mapping[Place, bool]
) -> Mapping[str, float]:
    """The start of a leaf: its parent's constants; without CUDA graphs those of the device's tables with graphs.

    Choices are the parent's: other engines run other kernels.
    """
    name, _ = place
    begun = _begun(parent)
    if not hosted[place]:
        return begun
    others = [fit for (device, _), fit in leaves.items() if device == name and not hosted[device, _]]
    if not others:
        return begun
    every = every_parameter(parent.op, parent.format, GRAPHED)
    known = {one.name for one in every if one.unit is not Unit.CHOICE} & constants_of(others[-1]).keys()
    return {**begun, **{key: constants_of(others[-1])[key] for key in known}}


def _of_others(begun: Mapping[str, float], name: str, nodes: Sequence[Node]) -> Mapping[str, float]:
    """The start of a fit to differences: what these do not tell is that of another engine on the same devices.

    Of several the shortest: others may time conversions of the cache beside the kernel.
    """
    others = [node.fit.parameters for node in nodes if node.place == name]
    known = min(others, key=lambda one: sum(one[key] for key in DIFFERENCED), default=begun)
    return {**begun, **{key: known[key] for key in DIFFERENCED}}


def _of_device(begun: Mapping[str, float], place: Place, nodes: Sequence[Node]) -> Mapping[str, float]:
    """The start of a fit to rows whose activations PyTorch quantizes, which a served model does in one kernel.

    The bandwidth of that kernel is the device's.
    """
    others = (node for node in nodes if node.place == place[0] and node.origin.engine != place[1].engine)
    known = [node.fit.parameters["quantize_bandwidth"] for node in others]
    return {**begun, "quantize_bandwidth": float(np.median(known))} if known else begun


def _of_other_layers(
    begun: Mapping[str, float], leaves: Mapping[Place, Fit], alike: Sequence[Place]
) -> Mapping[str, float]:
    """The start of a fit to layers of one number of experts, `alike`, which do not tell the launch from sorting.

    It is the shortest of the devices with several numbers. With that of all together, 30 us, gpt-oss was 11 and 8% too
    slow on H100 and H200 (TPOT of vLLM 0.11 to 0.13), now 6 and 3%; these rows took part in the choice.
    """
    others = [fit.parameters for place, fit in leaves.items() if place not in alike]
    if not others:
        return begun
    shortest = min(others, key=lambda one: one["launch"])
    return {**begun, "launch": shortest["launch"], "few_tokens": shortest["few_tokens"]}


def fit_all(data: Data, run: Callable[..., Iterable[list[Node]]] = map) -> dict[Key, list[Node]]:
    """The nodes of every op and format; `run` is a map, such as that of a pool of processes."""
    keys = sorted(data.tables, key=lambda key: -len(data.tables[key]))
    found = run(fit_table, keys, [data.tables[key] for key in keys])
    return {key: nodes for key, nodes in sorted(zip(keys, found, strict=True)) if nodes}


def shelved(found: Mapping[Key, Sequence[Node]]) -> dict[tuple[str, str], dict[str, dict[Key, Fit]]]:
    """The fits by file (place and engine), then by version."""
    files: dict[tuple[str, str], dict[str, dict[Key, Fit]]] = {}
    for key, nodes in found.items():
        for node in nodes:
            if node.place == "pooled" and not node.origin.engine and key not in SHARED and len(nodes) > 1:
                continue  # the root is a prior only: the engines' own are nearer to any kernel
            file = files.setdefault((node.place, node.origin.engine), {})
            file.setdefault(node.origin.version, {})[key] = node.fit
    for versions in files.values():
        _split_gaps(versions)
    return files


def _split_gaps(versions: dict[str, dict[Key, Fit]]) -> None:
    """Take the gaps between kernels out of the launch of block-scaled GEMMs.

    A benchmark that replays one GEMM at a time times its quantizing kernels and the gaps between them: on Blackwell the
    launch seems to be 12 to 17 us, where models take 5. Within a step the launch is that of the engine's GEMMs in plain
    FP8, which have a quantizing kernel, too; the rest is a gap of the benchmark.
    """
    for version, fits in versions.items():
        plain = of_version(versions, version).get(("gemm", "fp8"))
        if plain is None:
            plain = of_version(versions, version, other=True).get(("gemm", "fp8"))
        for key in BLOCK_SCALED:
            if plain is None or key not in fits:
                continue
            fit = fits[key]
            gap = fit.parameters["launch"] - plain.parameters["launch"]
            if gap > 0:
                gaps = fit.observed.get("host_gap", 0.0) + gap
                fits[key] = replace(
                    fit,
                    parameters={**fit.parameters, "launch": fit.parameters["launch"] - gap},
                    observed={**fit.observed, "host_gap": gaps},
                )


def fit_elsewhere(
    key: Key, table: Table, engine: str, start: Fit, kept: Callable[[Place], bool], seed: int = 0
) -> Fit | None:
    """The constants of an engine from the places that are `kept`, its newest version on each; None without any.

    `start`, the engine's fit on all, sets the choices and the initial constants, with a prior too wide to hold them.
    """
    places = [
        place for place, part in table.items() if place[1].engine == engine and len(part) >= LEAST_ROWS and kept(place)
    ]
    if not places:
        return None
    if engine:
        places = newest(places)
    hardware = {name: load_hardware(name) for name, _ in places}
    rows = {place: sample(table[place], LEAF_ROWS, seed) for place in places}
    hosted = is_ungraphed(rows[places[0]])
    wide = Start(_begun(start), PRIOR_WIDTH["none"], informed=True)
    return _general(_fitted(*key, rows, hardware, seed, places, wide, hosted, free=False, together=True))


def outside(op: str, device: str) -> Callable[[Place], bool]:
    """Whether a place is a device of another family; in collectives one with such links."""
    family, (top, _) = families(load_hardware(device))[0], top_of(op, (device, NONE))
    return lambda place: families(load_hardware(place[0]))[0] != family and top_of(op, place)[0] == top
