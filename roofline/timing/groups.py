"""The kernels of a pass in groups of one kind and format, whose formulas are evaluated together.

A group has everything that its formula needs but the workload: the constants with the engine's factors, the texts of
the columns, and their numbers as coefficients of the workload's monomials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from roofline.bound.roof import Placement, coefficient_rows
from roofline.core.registry import cached
from roofline.graph.parallel import ONE_NODE
from roofline.graph.size import Monomial
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware, list_hardware, load_hardware
from roofline.specs.reserve import ECC_CARDS, ECC_SHARE
from roofline.timing.calibration import Match
from roofline.timing.collectives import over_network
from roofline.timing.constants import ATTENTION
from roofline.timing.evaluation import KernelGroup
from roofline.timing.kernels import Array, kernel, vectors
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.kernels.formats import numbers
from roofline.timing.kernels.shapes import KernelShape
from roofline.timing.launches import LaunchedKernel
from roofline.timing.variants import columns_of


def kernel_groups(
    kernels: Sequence[LaunchedKernel], monomials: Sequence[Monomial], placement: Placement, engine: Engine
) -> list[KernelGroup]:
    """The kernels of a pass in groups of one kind and format; GEMMs of one m besides."""
    hardware = placement.hardware
    if engine["memory"] != 1:
        hardware = _with_bandwidth(hardware, engine["memory"])
    one_node = placement.nodes == ONE_NODE
    grouped: dict[Any, list[int]] = {}
    for index, entry in enumerate(kernels):
        if entry.shape is not None:
            across = None if one_node else _across_nodes(entry, placement)
            key = (tuple(entry.shape.texts.items()), across, entry.shape.sizes.get("m"), entry.shape.by_token)
            for op, match in entry.matches.items():
                op = "copy" if match.fit.rows == 0 and op in PASSES else op  # unmeasured: all have the same defaults
                grouped.setdefault((op, *key), []).append(index)
    return [
        _group(op, [(index, kernels[index]) for index in members], hardware, across, monomials, engine)
        for (op, _, across, *_), members in grouped.items()
    ]


class AcrossNodes(NamedTuple):
    """A collective that spans nodes: the ranks in each, and whether it waits for routed tokens."""

    members: int
    routed: bool


def _across_nodes(entry: LaunchedKernel, placement: Placement) -> AcrossNodes | None:
    """The nodes that a kernel's collective spans; None for one within a node, and for all other kernels.

    Of two batches one is computed while the other waits.
    """
    links = (link for index in entry.parts if (link := placement.ops[index][0].link) is not None)
    far = next((link for link in links if placement.nodes.span(link.reach).across_nodes), None)
    if far is None:
        return None
    waits = far.routed is not None and placement.network.overlap_batches == 1
    return AcrossNodes(placement.nodes.members(far.reach, far.ranks), waits)


def _group(
    op: str,
    members: Sequence[tuple[int, LaunchedKernel]],
    hardware: Hardware,
    across: AcrossNodes | None,
    monomials: Sequence[Monomial],
    engine: Engine,
) -> KernelGroup:
    """The group of some kernels with one `op`, by their index among those of the pass."""
    shapes = [entry.shape for _, entry in members if entry.shape is not None]
    match = next(match for name, match in members[0][1].matches.items() if name == op or op == "copy")
    other = members[0][1].others.get(op)
    texts = dict(shapes[0].texts)
    if across is not None:
        match, other = over_network(match, hardware, across.routed), None
        texts |= {"across_nodes": 1.0, "members": float(across.members)}
    fixed, varying, coefficients = _columns(tuple(shapes), tuple(monomials))
    if op == "attention_decode":
        texts |= _decode_columns(texts, fixed, engine)
    if not shapes[0].by_token:
        texts |= columns_of(op, kernel(op).format(texts), *engine.measured_as(hardware), hardware)
    factor = engine["collective"] if op == "collective" else 1.0
    if op == "attention_prefill":
        factor = engine["attention"] / (engine["half_sums"] if hardware.half_accumulation else 1.0)
    factor *= match.cost[1]
    if op == "gemm" and engine["vector_latency"] and _bytes(texts) < 2:
        match = _with_vectors(match, engine, hardware)
    indices = np.array([index for index, _ in members])
    conversion = engine["kv_conversion"] if op in ATTENTION and members[0][1].upcasts_cache else 0.0
    hardware = _as_measured(hardware, match)
    match, other = _with_launch(match, engine), None if other is None else _with_launch(other, engine)
    form = _form(op, match, other, hardware, factor, conversion, *texts.items(), *fixed, *varying)
    return KernelGroup(
        op, match, other, hardware, texts, indices, fixed, varying, coefficients, factor, conversion, form
    )


def _decode_columns(
    texts: Mapping[str, str | float], fixed: Mapping[str, Any], engine: Engine
) -> dict[str, str | float]:
    """The columns of decode attention that an engine sets: bytes of a cache element as it reads them, and its split.

    A kernel that reads the cache again for other query heads of a group reads so many times the stored bytes.
    """
    found: dict[str, str | float] = {}
    if engine["kv_reread"]:
        group = float(np.mean(fixed["heads"] / fixed["kv_heads"]))
        stored = numbers(str(texts.get("kv_dtype", texts["dtype"]))).bytes
        reread = 1 + (group - 1) * float(engine["kv_reread"])
        found["kv_bytes"] = float(texts.get("kv_bytes", stored)) * reread
    if engine["split_kv"] != 1:
        found["split_kv"] = float(engine["split_kv"])
    return found


@cached(maxsize=4096)
def _form(*_kernel: object) -> object:
    """An object that identifies a formula with everything but its columns' values: one identity check compares all."""
    return object()


@lru_cache(maxsize=4096)
def _columns(
    shapes: tuple[KernelShape, ...], monomials: tuple[Monomial, ...]
) -> tuple[Mapping[str, Array | float], tuple[str, ...], Array]:
    """The numeric columns of kernels: values of constant ones, names and coefficients of those that vary."""
    fixed: dict[str, Array | float] = {}
    varying: dict[str, Array] = {}
    for name in shapes[0].sizes:
        sizes = [shape.sizes[name] for shape in shapes]
        if all(set(size.terms) <= {()} for size in sizes):
            given = [float(size.terms.get((), 0.0)) for size in sizes]
            fixed[name] = given[0] if len(given) == 1 else np.array(given)[:, np.newaxis]
        else:
            varying[name] = coefficient_rows(sizes, monomials)
    coefficients = np.array(list(varying.values())).reshape(len(varying), len(shapes), len(monomials))
    return fixed, tuple(varying), coefficients


def _as_measured(hardware: Hardware, match: Match) -> Hardware:
    """The device with the bandwidth and the peaks that constants of another card of its family are relative to.

    Error correction in the same GDDR6 takes its share of the traffic as it does of the capacity: constants of a card
    that has it on contain that (decode of 13 Ada cards in llama.cpp with those of an L40S: 3.8% too slow, 1.0% too fast
    with it). Where power limits the clock, dynamic power goes with its cube: by the power of a unit.
    """
    there, here = match.calibration in ECC_CARDS, hardware.name in ECC_CARDS
    if there != here and not hardware.bandwidth_is_achieved:
        hardware = _with_bandwidth(hardware, ECC_SHARE if here else 1 / ECC_SHARE)
    if hardware.memory_class == "hbm":
        return hardware
    faster = _clock_ratio(hardware.name, hardware.family, hardware.tdp, hardware.units, match.calibration)
    if faster == 1:
        return hardware
    return _with_peaks(hardware, faster)


# One object for each device: caches of constants compare devices field by field otherwise.
@lru_cache(maxsize=1024)
def _with_bandwidth(hardware: Hardware, share: float) -> Hardware:
    return replace(hardware, memory_bandwidth=hardware.memory_bandwidth * share)


@lru_cache(maxsize=1024)
def _with_peaks(hardware: Hardware, share: float) -> Hardware:
    return replace(hardware, tensor={name: peak * share for name, peak in hardware.tensor.items()})


CLOCKS = (0.85, 1.25)
"""The least and the largest ratio of clocks: no card runs much above its published boost, and decode draws less power.

The law alone, not fitted: prefill in llama.cpp goes from 18.1 to 15.4% off on 13 Ada cards, and from 12.8 to 11.7% on
19 of Ampere. Cards with HBM are left out: their published peaks go with their power (GB200 and B200).
"""


@lru_cache(maxsize=1024)
def _clock_ratio(name: str, family: str, tdp: float | None, units: int | None, calibration: str) -> float:
    """How much faster a card runs matrix units than that of a calibration, by the cube root of the power of a unit."""
    if name == calibration or calibration not in list_hardware() or not tdp or not units:
        return 1.0
    other = load_hardware(calibration)
    if other.family != family or not other.tdp or not other.units:
        return 1.0
    ratio = float(np.cbrt(tdp / units / (other.tdp / other.units)))
    return min(max(ratio, CLOCKS[0]), CLOCKS[1])


def _bytes(texts: Mapping[str, str | float]) -> float:
    """Bytes of a weight of GEMMs."""
    return float(texts["weight_bytes"]) if "weight_bytes" in texts else numbers(str(texts["dtype"])).bytes


LPDDR_SHARE = 0.88
"""Bandwidth that streaming reaches on LPDDR relative to GDDR and HBM: Llama 2 7B on a DGX Spark (llama.cpp, discussion
15013), 222 of 273 GB/s; held out, models of 3 to 70 billion parameters there from 5.1 to 3.9% off (mean of five)."""


def _with_vectors(match: Match, engine: Engine, hardware: Hardware) -> Match:
    """The constants with those of the engine's products of matrices and few vectors, on GPUs that run its kernel."""
    reached = engine["vector_memory"] * (ECC_SHARE if hardware.name in ECC_CARDS else 1.0)
    reached *= LPDDR_SHARE if hardware.memory_class == "lpddr" and not hardware.bandwidth_is_achieved else 1.0
    reached = min(reached, hardware.achieved or 1.0)
    own = vectors.constants(hardware, engine["vector_launch"], engine["vector_latency"], reached)
    if not own:
        return match
    fit = replace(match.fit, parameters={**match.fit.parameters, **own})
    return replace(match, fit=fit, source=f"{match.source}; up to {vectors.MOST_ROWS} rows: {engine.name}'s profile")


def _with_launch(match: Match, engine: Engine) -> Match:
    """The constants, with the launch time scaled by the engine's factor.

    Engines' factors were fitted to launches that included the graph of a benchmark, which is no part of a step.
    """
    fit, factor = match.fit, engine["launch"]
    if "launch" not in fit.parameters or factor == 1:
        return match
    graph = fit.observed.get("graph", 0.0)
    scaled = factor * (fit.parameters["launch"] + graph)
    launch = max(scaled - graph, scaled / 4) if graph else scaled
    return replace(match, fit=replace(fit, parameters={**fit.parameters, "launch": launch}))
