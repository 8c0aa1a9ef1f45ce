"""Operators: their tensors, their roofs, and the kernel that runs them with its constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from roofline.bound.roof import TIMES, Row
from roofline.core.errors import UnknownNameError
from roofline.graph.op import Link
from roofline.graph.parallel import Nodes, over_link, ring_members
from roofline.graph.size import Size
from roofline.scenario.analysis import Analysis
from roofline.scenario.phase import OpFigures, Phase
from roofline.scenario.schedule import Pass
from roofline.specs.hardware import Interconnect
from roofline.timing.corrections import COMPUTE_SHARE, LAUNCH, LINK_SHARE, MEMORY_SHARE, OWN_TRIPS
from roofline.timing.kernels import kernel
from roofline.timing.kernels.common import units
from roofline.timing.kernels.terms import shown, terms
from roofline.timing.launches import Kernel
from roofline.timing.passes import Timing
from roofline.whatif.explain.definitions import METRICS
from roofline.whatif.explain.lines import Line, Margin, line, plain, total


class KernelGround(Struct, frozen=True):
    """The kernel that an operator is part of: its parts, constants, and where they come from."""

    op: str
    format: str
    parts: tuple[str, ...]
    basis: str
    source: str
    rows: int
    inside: bool
    widening: float
    constants: tuple[tuple[str, float, str, str], ...]
    ranges: Mapping[str, tuple[float, float, float | None]]


def operator(analysis: Analysis, phase: Phase, name: str) -> tuple[str, list[Line], Margin, KernelGround | None]:
    """An operator's lines; of several by that name the one that takes longest in the phase."""
    known = [op.name for op in phase.ops]
    if name not in known:
        raise UnknownNameError(f"metric or operator of {phase.name}", name, {*known, *METRICS})
    same = [index for index, op in enumerate(phase.ops) if op.name == name]
    return operator_at(
        analysis, phase, max(same, key=lambda index: phase.ops[index].count * phase.ops[index].bound_time)
    )


def operator_at(analysis: Analysis, phase: Phase, place: int) -> tuple[str, list[Line], Margin, KernelGround | None]:
    """The lines of the operator at a place of `phase.ops`."""
    places = [(run, index) for run in phase.passes for index in range(len(run.placement.ops))]
    op, (run, index) = phase.ops[place], places[place]
    lines = [*_work(op), *_roofs(op, run, index)]
    roofs = {line.name: line.value for line in lines if line.name in ("matrix", "vector", "memory", "link")}
    ranked = sorted(roofs.items(), key=lambda item: -item[1])
    second, time = ranked[1] if len(ranked) > 1 else ("", 0.0)
    ratio = ranked[0][1] / time if time else None
    ground = None
    if analysis.times_are_expected:
        more, ground = _kernel(phase, run, index)
        lines += more
    return f"{op.name} ({op.section}, {phase.name})", lines, Margin(str(op.bound), second, ratio), ground


def namesakes(phase: Phase, name: str) -> tuple[str, ...]:
    """That an operator of this name is in several places of a phase, and which is explained."""
    places = [f"{op.section} ({shown(op.count)} times)" for op in phase.ops if op.name == name]
    return (f"of {', '.join(places)} the one that takes longest is explained",) if len(places) > 1 else ()


def _work(op: OpFigures) -> list[Line]:
    """FLOPs, and the bytes of every tensor."""
    numbers = op.extents
    lines = []
    for name, size in (("matrix FLOP", op.op.matrix_flops), ("vector FLOP", op.op.vector_flops)):
        if size.terms:
            lines.append(_size(name, size, numbers, "FLOP"))
    if op.upcast_flops:
        lines.append(Line("conversion", "2 FLOP an element", shown(op.upcast_flops), float(op.upcast_flops), "FLOP"))
    moved = []
    for tensor in op.op.tensors:
        shape = [dim if isinstance(dim, int) else plain(dim.evaluate(numbers)) for dim in tensor.shape]
        symbols = " x ".join(in_symbols(dim) for dim in tensor.shape)
        text = " * ".join([*(shown(dim) for dim in shape), f"{shown(tensor.format.bits)} / 8"])
        formula = f"[{symbols}] {tensor.role} in {tensor.format.name}"
        moved.append(line(f"{tensor.name}", formula, text, "B"))
    lines += moved
    return [*lines, line("bytes", "sum of the tensors, each moved once", total(line.value for line in moved), "B")]


def in_symbols(dim: int | Size) -> str:
    """A dimension in symbols."""
    if isinstance(dim, int):
        return str(dim)
    return " + ".join(
        " ".join((*([] if names and value == 1 else [shown(value)]), *names)) for names, value in dim.terms.items()
    )


def _size(name: str, size: Size, numbers: Mapping[str, Any], unit: str) -> Line:
    text = " + ".join(
        " * ".join((shown(value), *(shown(plain(numbers[extent])) for extent in names)))
        for names, value in size.terms.items()
    )
    return line(name, in_symbols(size), text, unit)


def _roofs(op: OpFigures, run: Pass, index: int) -> list[Line]:
    """The time under each roof, and the longest."""
    hardware = run.placement.hardware
    rows = [plain(row) for row in run.placement.coefficients[:TIMES, index] @ run.placement.values(run.step)]
    lines = []
    if op.arithmetic is not None:
        flops, peak = plain(op.op.matrix_flops.evaluate(op.extents)), hardware.matrix_peak(op.arithmetic)
        formula = f"matrix FLOP / peak in {op.arithmetic}"
        lines.append(line("matrix", formula, f"{shown(flops)} / {shown(peak)}"))
    if hardware.vector_peak:
        flops = plain(op.op.vector_flops.evaluate(op.extents))
        text = f"({shown(flops)} + {shown(op.upcast_flops)}) / {shown(hardware.vector_peak)}"
        lines.append(line("vector", "(vector FLOP + conversion) / vector peak", text))
    lines.append(line("memory", "bytes / bandwidth", f"{shown(op.bytes)} / {shown(hardware.memory_bandwidth)}"))
    link = rows[Row.LINK_TIME]
    if link:
        lines.append(_link(op, run, link))
    names = ", ".join(line.name for line in lines)
    roofs = ", ".join(shown(line.value) for line in lines)
    bound = line("at the bound", f"max({names})", f"max({roofs}, 0)")
    whole = f"{shown(op.count)} * {shown(bound.value)}"
    return [*lines, bound, line("all at the bound", "instances in a pass x time", whole)]


def _over(nodes: Nodes, sent: Link, link: Interconnect) -> str:
    """What an exchange goes over."""
    members = ring_members(nodes, sent.collective, sent.reach, sent.ranks)
    return f"rings over nodes of {members}, each device with a port of {link.kind}" if members else f"the {link.kind}"


def _link(op: OpFigures, run: Pass, seconds: float) -> Line:
    """The time on the link: what the operator sends to other devices, and what is streamed to it from the host."""
    placement, sent = run.placement, op.op.link
    terms, formulas, own = [], [], 0.0
    if sent is not None:
        link, nodes = placement.hardware.link(placement.nodes.span(sent.reach)), placement.nodes
        moved = shown(plain(sent.bytes.evaluate(op.extents)))
        found = over_link(placement.hardware, nodes, sent.collective, sent.reach, sent.ranks, sent.steps)
        terms.append(f"{moved} / {shown(found[0])} + {shown(found[1])}")
        formulas.append(f"bytes sent / bandwidth of {_over(nodes, sent, link)} + latencies")
        own = line("", "", terms[0]).value
    streamed = seconds - own
    if streamed > 1e-9 * seconds:
        terms.append(shown(streamed))
        formulas.append("offloaded operands / bandwidth from the host")
    return line("link", " + ".join(formulas), " + ".join(terms))


def _kernel(phase: Phase, run: Pass, index: int) -> tuple[list[Line], KernelGround]:
    """The expected time of the kernel that an operator is part of, and the operator's part of it."""
    times = phase.timed(run)
    row, detail = times.kernel_of[index], times.detail(run.step)
    entry = times.kernels[row]
    bounds = [float(detail.bounds[part, 0]) for part in entry.parts]
    lines, ground = _measured(times, row, run, entry)
    floor = sum(bounds)
    if row in times.corrections.reducing:
        sent = sum(_row(run, part, Row.LINK_TIME) for part in entry.parts)
        text = f"min({shown(lines[-1].value)}, {shown(times.corrections.reducing[row])} + {OWN_TRIPS} * {shown(sent)})"
        lines.append(line("kernel of the engine's own", f"min(t, all_reduce + {OWN_TRIPS:g} x link)", text))
    formula = lines[-1].value if lines else 0.0
    compared = f"max({shown(formula)}, {shown(floor)})"
    lines.append(line("kernel, not below its bound", "max(t, bound of its operators)", compared))
    slower = lines[-1].value
    if row in times.corrections.converting:
        vector = sum(_row(run, part, Row.VECTOR_TIME) for part in entry.parts)
        text = f"({shown(slower)}**2 + ({shown(vector)} / {shown(phase.engine['dequantisation'])})**2)**0.5"
        lines.append(line("kernel that converts first", "(t^2 + (conversion / dequantisation)^2)^(1/2)", text))
        slower = lines[-1].value
    if row in times.corrections.scaling:
        lines.append(_scaled(times, run, entry, slower))
        slower = lines[-1].value
    if row in times.corrections.linked:
        sent = sum(_row(run, part, Row.LINK_TIME) for part in entry.parts)
        text = f"max({shown(slower)}, {shown(sent)} / {LINK_SHARE})"
        lines.append(line("kernel that waits for a link", f"max(t, link / {LINK_SHARE})", text))
        slower = lines[-1].value
    own = float(detail.bounds[index, 0])
    share = f"{shown(slower)} * {shown(own)} / {shown(floor)}" if floor else "0"
    lines.append(line("expected", "kernel x the operator's part of its bound", share))
    if phase.engine.slower(phase.name) != 1:
        text = f"{shown(phase.engine.slower(phase.name))} * {shown(lines[-1].value)}"
        lines.append(line("expected on this engine", "prefill x t", text))
    return lines, ground


def _scaled(times: Timing, run: Pass, entry: Kernel, kernel: float) -> Line:
    """A kernel that multiplies integers in blocks, each with a scale."""
    placement, hardware = run.placement, run.placement.hardware
    products = sum(
        _row(run, part, Row.MATRIX_TIME) * (placement.roofs[part] or 0.0) / 2
        for part in entry.parts
        if times.corrections.scaling_factors[part]
    )
    cycles, rate = shown(times.engine["integer_blocks"]), f"{shown(units(hardware))} * {shown(hardware.clock or 0.0)}"
    formula = "(t^2 + (products x integer_blocks / (1024 units clock))^2)^(1/2)"
    text = f"({shown(kernel)}**2 + ({shown(products)} * {cycles} / (1024 * {rate}))**2)**0.5"
    return line("kernel that scales blocks", formula, text)


def _row(run: Pass, index: int, row: Row) -> float:
    return plain(run.placement.coefficients[row, index] @ run.placement.values(run.step))


def _measured(times: Timing, row: int, run: Pass, entry: Kernel) -> tuple[list[Line], KernelGround]:
    """The terms of a measured kernel; for others their bound at typical efficiencies."""
    parts = tuple(times.placement.ops[part][0].name for part in entry.parts)
    found = times.measured(row, run.step)
    if found is None:
        compute = sum(max(_row(run, part, Row.MATRIX_TIME), _row(run, part, Row.VECTOR_TIME)) for part in entry.parts)
        memory = sum(_row(run, part, Row.MEMORY_TIME) for part in entry.parts)
        formula = f"launch + ((compute / {COMPUTE_SHARE})^2 + (memory / {MEMORY_SHARE})^2)^(1/2)"
        text = f"{LAUNCH} + (({shown(compute)}/{COMPUTE_SHARE})**2 + ({shown(memory)}/{MEMORY_SHARE})**2)**0.5"
        grounds = entry.basis(run.step.queries), entry.source(run.step.queries)
        ground = KernelGround("none", "", parts, *grounds, 0, False, 1.0, (), {})
        return [line("kernel", formula, text)], ground
    fit = found.match.fit
    lines = [
        Line(f"kernel: {term.name}", term.formula, term.substituted, term.value, "s")
        for term in terms(found.op, found.columns, found.hardware, fit.parameters)
    ]
    if found.conversion:
        text = f"({shown(lines[-1].value)}**2 + {shown(found.conversion)}**2)**0.5"
        lines.append(line("kernel with conversions", "(t^2 + conversions of the cache in software^2)^(1/2)", text))
    if found.factor != 1:
        text = f"{shown(found.factor)} * {shown(lines[-1].value)}"
        lines.append(line("kernel on this engine", "factor of the engine x t", text))
    meanings = {entry.name: entry for entry in kernel(fit.op).parameters(fit.format)}
    constants = tuple(
        (name, float(value), str(meanings[name].unit), meanings[name].meaning) for name, value in fit.parameters.items()
    )
    ranges = {
        name: (low, high, plain(found.columns[name]) if name in found.columns else None)
        for name, (low, high) in fit.ranges.items()
    }
    inside = all(here is None or low <= here <= high for low, high, here in ranges.values())
    match = found.match
    ground = KernelGround(
        found.op,
        fit.format,
        parts,
        match.basis,
        f"{match.calibration}: {match.source}",
        fit.rows,
        inside,
        match.widening,
        constants,
        ranges,
    )
    return lines, ground
