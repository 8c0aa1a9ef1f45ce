"""The kernels of a pass in groups of one kind and format, whose formulas are evaluated together.

A group has everything that its formula needs but the workload: the constants with the engine's factors, the texts of
the columns, and their numbers as coefficients of the workload's monomials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from roofline.bound.roof import Placement, coefficient_rows
from roofline.core.registry import cached
from roofline.graph.parallel import ONE_NODE
from roofline.graph.size import Monomial
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Match
from roofline.timing.constants import ATTENTION
from roofline.timing.evaluation import KernelGroup
from roofline.timing.kernels import Array, kernel
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.kernels.formats import numbers
from roofline.timing.kernels.shapes import KernelShape
from roofline.timing.launches import Kernel
from roofline.timing.network_collectives import over_network
from roofline.timing.variants import columns_of


def kernel_groups(
    kernels: Sequence[Kernel], monomials: Sequence[Monomial], placement: Placement, engine: Engine
) -> list[KernelGroup]:
    """The kernels of a pass in groups of one kind and format; GEMMs of one m besides."""
    hardware = placement.hardware
    if engine["memory"] != 1:
        hardware = replace(hardware, memory_bandwidth=hardware.memory_bandwidth * engine["memory"])
    alone = placement.nodes == ONE_NODE
    grouped: dict[Any, list[int]] = {}
    for index, entry in enumerate(kernels):
        if entry.shape is not None:
            across = 0 if alone else _across_nodes(entry, placement)
            key = (tuple(entry.shape.texts.items()), across, entry.shape.sizes.get("m"), entry.shape.by_token)
            for op, match in entry.matches.items():
                op = "copy" if match.fit.rows == 0 and op in PASSES else op  # unmeasured: all have the same defaults
                grouped.setdefault((op, *key), []).append(index)
    return [
        _group(op, [(index, kernels[index]) for index in members], hardware, across, monomials, engine)
        for (op, _, across, *_), members in grouped.items()
    ]


def _across_nodes(entry: Kernel, placement: Placement) -> int:
    """The ranks a node holds of a collective that spans nodes; 0 for others."""
    links = (link for index in entry.parts if (link := placement.ops[index][0].link) is not None)
    far = (link for link in links if placement.nodes.span(link.reach).across_nodes)
    return next((placement.nodes.members(link.reach, link.ranks) for link in far), 0)


def _group(
    op: str,
    members: Sequence[tuple[int, Kernel]],
    hardware: Hardware,
    across: int,
    monomials: Sequence[Monomial],
    engine: Engine,
) -> KernelGroup:
    shapes = [entry.shape for _, entry in members if entry.shape is not None]
    match = next(match for name, match in members[0][1].matches.items() if name == op or op == "copy")
    other = members[0][1].others.get(op)
    if across:
        match, other = over_network(match, hardware), None
    texts = {**shapes[0].texts, **({"across_nodes": 1.0, "members": float(across)} if across else {})}
    fixed, varying = _columns(tuple(shapes), tuple(monomials))
    if op == "attention_decode" and engine["kv_reread"]:
        group = float(np.mean(fixed["heads"] / fixed["kv_heads"]))
        stored = numbers(str(texts.get("kv_dtype", texts["dtype"]))).bytes
        texts["kv_bytes"] = float(texts.get("kv_bytes", stored)) * (1 + (group - 1) * engine["kv_reread"])
    if op == "attention_decode" and engine["split_kv"] != 1:
        texts["split_kv"] = engine["split_kv"]
    if shapes[0].by_token:
        texts |= {"by_token": 1.0} if op == "mla_decode" else {}
    else:
        measured = engine.measured_as(hardware)
        texts |= columns_of(op, kernel(op).format(texts), *measured, hardware)
    factor = engine["collective"] if op == "collective" else 1.0
    indices = np.array([index for index, _ in members])
    conversion = engine["kv_conversion"] if op in ATTENTION and members[0][1].upcasts_cache else 0.0
    match, other = _with_launch(match, engine), None if other is None else _with_launch(other, engine)
    form = _form(op, match, other, hardware, factor, conversion, *texts.items(), *fixed, *varying)
    return KernelGroup(op, match, other, hardware, texts, indices, fixed, varying, factor, conversion, form)


@cached(maxsize=4096)
def _form(*_kernel: object) -> object:
    """An object that identifies a formula with everything but its columns' values: one identity check compares all."""
    return object()


@lru_cache(maxsize=4096)
def _columns(
    shapes: tuple[KernelShape, ...], monomials: tuple[Monomial, ...]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """The numeric columns of kernels: values of constant ones, coefficients of those that vary with the workload."""
    fixed: dict[str, Array] = {}
    varying: dict[str, Array] = {}
    for name in shapes[0].sizes:
        sizes = [shape.sizes[name] for shape in shapes]
        if all(set(size.terms) <= {()} for size in sizes):
            fixed[name] = np.array([[float(size.terms.get((), 0.0))] for size in sizes])
        else:
            varying[name] = coefficient_rows(sizes, monomials)
    return fixed, varying


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
