"""Operators: their tensors, their roofs, and the kernel that runs them with its constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from roofline.bound.roof import TIMES, Row
from roofline.core.errors import UnknownNameError
from roofline.graph.parallel import over_link, ring_members
from roofline.graph.size import Size
from roofline.scenario.analysis import Analysis
from roofline.scenario.passes import Pass
from roofline.scenario.phase import OpFigures, Phase
from roofline.specs.power import stretched
from roofline.timing.constants import LAUNCH
from roofline.timing.corrections import COMPUTE_SHARE, LINK_SHARE, MEMORY_SHARE
from roofline.timing.kernels import at_clock, kernel, shape_of
from roofline.timing.kernels.common import unit_clocks
from roofline.timing.kernels.model import Terms
from roofline.timing.launches import LaunchedKernel
from roofline.timing.passes import Timing
from roofline.whatif.explanation.lines import Line, Margin, last, line, plain, shown, total
from roofline.whatif.explanation.metrics import METRICS
from roofline.whatif.metrics import listed


class KernelCalibration(Struct, frozen=True):
    """The calibration of an operator's kernel: its operators (`parts`), constants, and their source.

    Constants are (name, value, unit, meaning); ranges are the smallest and largest fitted value of a column, and the
    present one.
    """

    op: str
    format: str
    parts: tuple[str, ...]
    basis: str
    source: str
    rows: int = 0
    inside: bool = False
    widening: float = 1.0
    constants: tuple[tuple[str, float, str, str], ...] = ()
    ranges: Mapping[str, tuple[float, float, float | None]] = {}


Found = tuple[str, list[Line], Margin, KernelCalibration | None]
"""The title, lines, margin and kernel of an operator."""


def operator(analysis: Analysis, phase: Phase, name: str) -> Found:
    """An operator's lines; of several operators of that name, those of the longest in the phase."""
    known = [op.name for op in phase.ops]
    if name not in known:
        every = {*known, *METRICS}
        raise UnknownNameError(f"metric or operator of {phase.name}", name, every, hint=listed(name, every))
    same = [index for index, op in enumerate(phase.ops) if op.name == name]
    longest = max(same, key=lambda index: phase.ops[index].count * phase.ops[index].bound_time)
    return operator_at(analysis, phase, longest)


def operator_at(analysis: Analysis, phase: Phase, place: int) -> Found:
    """The title, lines, margin and kernel of the operator at index `place` of `phase.ops`."""
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
    """A note that several operators of a phase have this name; empty for one."""
    places = [f"{op.section} ({shown(op.count)} times)" for op in phase.ops if op.name == name]
    return (f"explained is the longest of: {', '.join(places)}",) if len(places) > 1 else ()


def _work(op: OpFigures) -> list[Line]:
    """The lines of FLOPs, and of the bytes of every tensor."""
    numbers = op.extents
    lines = []
    for name, size in (("matrix FLOP", op.op.matrix_flops), ("vector FLOP", op.op.vector_flops)):
        if size.terms:
            lines.append(_size(name, size, numbers, "FLOP"))
    if op.upcast_flops:
        lines.append(Line("conversion", "2 FLOP per element", shown(op.upcast_flops), float(op.upcast_flops), "FLOP"))
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
    """A dimension as a formula of extents."""
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
    """The lines of each roof, and of the longest."""
    hardware = run.placement.hardware
    rows = [plain(row) for row in run.placement.coefficients[:TIMES, index] @ run.placement.values(run.step)]
    lines = []
    peak = run.placement.roofs[index]
    if op.arithmetic is not None and peak is not None:
        flops = plain(op.op.matrix_flops.evaluate(op.extents))
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


def _link(op: OpFigures, run: Pass, seconds: float) -> Line:
    """The line of the link roof: bytes sent to other devices, and offloaded operands streamed from the host."""
    placement, sent = run.placement, op.op.link
    terms, formulas, own = [], [], 0.0
    if sent is not None:
        link, nodes = placement.hardware.link(placement.nodes.span(sent.reach)), placement.nodes
        found = over_link(placement.hardware, nodes, sent.collective, sent.reach, sent.ranks, sent.steps)
        moved = shown(plain(sent.bytes.evaluate(op.extents)) * found.share)
        terms.append(f"{moved} / {shown(found.bandwidth)} + {shown(found.latency)}")
        by = f", whose switch reduces ({link.reduction})" if found.share < 1 else ""
        members = ring_members(nodes, sent.collective, sent.reach, sent.ranks)
        over = f"rings over nodes of {members}, one port of {link.kind} per device" if members else link.kind
        formulas.append(f"bytes sent / bandwidth of {over}{by} + latencies")
        own = line("", "", terms[0]).value
    streamed = seconds - own
    if streamed > 1e-9 * seconds:
        terms.append(shown(streamed))
        formulas.append("offloaded operands / bandwidth from the host")
    return line("link", " + ".join(formulas), " + ".join(terms))


def _kernel(phase: Phase, run: Pass, index: int) -> tuple[list[Line], KernelCalibration]:
    """The lines of the expected time of an operator's kernel, and of the operator's fraction of it."""
    times = phase.timed(run)
    row, detail = times.kernel_of[index], times.detail(run.step)
    entry = times.kernels[row]
    bounds = [float(detail.bounds[part, 0]) for part in entry.parts]
    lines, ground = _kernel_model(times, row, run, entry)
    if times.unfused[row] != 1:
        several = f"{shown(times.unfused[row])} * {last(lines)}"
        lines.append(line("kernels of an operator", "time relative to one kernel x t", several))
    floor = sum(bounds)
    compared = f"max({last(lines)}, {shown(floor)})"
    lines.append(line("kernel, at least its bound", "max(t, bound of its operators)", compared))
    if row in times.corrections.upcasting:
        vector = sum(_row(run, part, Row.VECTOR_TIME) for part in entry.parts)
        text = f"({last(lines)}**2 + ({shown(vector)} / {shown(phase.engine['dequantization'])})**2)**0.5"
        lines.append(line("kernel with upcast operands", "(t^2 + (conversion / dequantization)^2)^(1/2)", text))
    if row in times.corrections.scaling:
        lines.append(_scaled(times, run, entry, lines[-1].value))
    if row in times.corrections.unpacking:
        formula = "(t^2 + (weights x instructions / (units lanes clock))^2)^(1/2)"
        text = f"({last(lines)}**2 + {shown(_unpacking(times, run, entry))}**2)**0.5"
        lines.append(line("kernel with unpacked weights", formula, text))
    if (limited := times.corrections.limited) is not None and entry.matches:
        work, read = (
            sum(_row(run, part, which) for part in entry.parts) for which in (Row.MATRIX_TIME, Row.MEMORY_TIME)
        )
        work = max(work, sum(_row(run, part, Row.VECTOR_TIME) for part in entry.parts))
        work += _unpacking(times, run, entry)
        longer = float(stretched(limited, lines[-1].value, work, read))
        law = "t_memory + (t - t_memory) / clock" + (
            "" if limited.locked else ", the clock at which it takes the limit"
        )
        lines.append(line(f"kernel on {limited.name}", law, f"{last(lines)} * {shown(longer)}"))
    if row in times.corrections.linked:
        sent = sum(_row(run, part, Row.LINK_TIME) for part in entry.parts)
        wait = min(sum(float(times.corrections.latencies[part, 0]) for part in entry.parts), sent)
        text = f"max({last(lines)}, {shown(sent - wait)} / {LINK_SHARE} + {shown(wait)})"
        lines.append(line("kernel limited by the link", f"max(t, bytes sent / {LINK_SHARE} + latencies)", text))
    if times.waited != 1:
        text = f"{shown(times.waited)} * {last(lines)}"
        lines.append(line("kernel on the slowest device", "(1 + s z(ranks)) t", text))
    share = f"{last(lines)} * {shown(float(detail.bounds[index, 0]))} / {shown(floor)}" if floor else "0"
    lines.append(line("expected", "kernel x bound of the operator / bound of the kernel", share))
    if phase.engine.kernel_slowdown(phase.name) != 1:
        text = f"{shown(phase.engine.kernel_slowdown(phase.name))} * {last(lines)}"
        lines.append(line("expected on this engine", "prefill x t", text))
    return lines, ground


def _terms(terms: Terms) -> list[Line]:
    """The lines of a kernel's terms, of those that overlap together, and of their sum."""
    lines = []
    for term in terms:  # its work over its rate, or its seconds
        amount, rate = plain(term.amount), plain(term.rate)
        text = shown(amount) if rate == 1 else f"{shown(amount)} / {shown(rate)}"
        lines.append(line(f"kernel: {term.name}", term.formula, text))
    parts = [(term.name, plain(term.seconds)) for term in terms.serial]
    if terms.units is not None and terms.memory is not None:
        one, other = terms.units, terms.memory
        first, second = sorted((plain(one.seconds), plain(other.seconds)))
        power, slowdown = plain(terms.sharpness), plain(terms.slowdown)
        formula = f"(({one.name})^p + ({other.name})^p)^(1/p), p = {power:.3g}"
        text = f"{shown(second)} * (1 + ({shown(first)} / {shown(second)})**{shown(power)})**(1 / {shown(power)})"
        if math.isinf(power):
            formula, text = f"max({one.name}, {other.name})", shown(second)
        if not second:
            text = "0"
        if slowdown != 1:
            formula, text = f"{slowdown:.3g} {formula}", f"{shown(slowdown)} * {text}"
        lines.append(line("kernel: overlapping", formula, text))
        parts.insert(1, ("overlapping", lines[-1].value))
    return [
        *lines,
        line("kernel: t", f"t = {' + '.join(name for name, _ in parts)}", total(value for _, value in parts)),
    ]


def _scaled(times: Timing, run: Pass, entry: LaunchedKernel, kernel: float) -> Line:
    """The line of an integer GEMM with block scales."""
    placement, hardware = run.placement, run.placement.hardware
    multiplies = sum(
        _row(run, part, Row.MATRIX_TIME) * (placement.roofs[part] or 0.0) / 2 * float(times.corrections.scales[part])
        for part in entry.parts
        if times.corrections.scaling_factors[part]
    )
    cycles, rate = shown(times.engine["integer_blocks"]), shown(unit_clocks(hardware))
    formula = "(t^2 + (multiply-adds x scales x integer_blocks / (1024 units clock))^2)^(1/2)"
    text = f"({shown(kernel)}**2 + ({shown(multiplies)} * {cycles} / (1024 * {rate}))**2)**0.5"
    return line("kernel with block scales", formula, text)


def _unpacking(times: Timing, run: Pass, entry: LaunchedKernel) -> float:
    """Seconds of the integer instructions that unpack a kernel's weights."""
    return sum(_row(run, part, Row.WEIGHT_BYTES) * float(times.corrections.unpacked[part]) for part in entry.parts)


def _row(run: Pass, index: int, row: Row) -> float:
    return plain(run.placement.coefficients[row, index] @ run.placement.values(run.step))


def _kernel_model(times: Timing, row: int, run: Pass, entry: LaunchedKernel) -> tuple[list[Line], KernelCalibration]:
    """The lines of a kernel model's terms; without a model, those of the bound at typical efficiencies."""
    parts = tuple(times.placement.ops[part][0].name for part in entry.parts)
    found = times.kernel_call(row, run.step)
    if found is None:
        compute = sum(max(_row(run, part, Row.MATRIX_TIME), _row(run, part, Row.VECTOR_TIME)) for part in entry.parts)
        memory = sum(_row(run, part, Row.MEMORY_TIME) for part in entry.parts)
        formula = f"launch + ((compute / {COMPUTE_SHARE})^2 + (memory / {MEMORY_SHARE})^2)^(1/2)"
        text = f"{LAUNCH} + (({shown(compute)}/{COMPUTE_SHARE})**2 + ({shown(memory)}/{MEMORY_SHARE})**2)**0.5"
        queries = run.step.queries
        return [line("kernel", formula, text)], KernelCalibration(
            "none", "", parts, entry.basis(queries), entry.source(queries)
        )
    fit = found.match.fit
    model = kernel(found.op)
    shape = shape_of(found.op, found.columns)
    lines = _terms(model.terms(shape, found.hardware, at_clock(fit.parameters, found.hardware)))
    if found.late:
        text = f"{last(lines)} + {shown(found.late)}"
        lines.append(line("kernel in a step", "t + what ranks of several nodes wait longer in a step", text))
    if found.conversion:
        text = f"({last(lines)}**2 + {shown(found.conversion)}**2)**0.5"
        lines.append(line("kernel with conversions", "(t^2 + conversions of the cache in software^2)^(1/2)", text))
    if found.factor != 1:
        text = f"{shown(found.factor)} * {last(lines)}"
        lines.append(
            line("kernel on this engine", "factors of the engine, and of kernels in place of tuned ones, x t", text)
        )
    meanings = {entry.name: entry for entry in kernel(fit.op).parameters(fit.format)}
    # What `on_units` derives from the peaks of two devices is no constant of the kernel.
    constants = tuple(
        (name, float(value), str(meanings[name].unit), meanings[name].meaning)
        for name, value in fit.parameters.items()
        if name in meanings
    )
    ranges = {
        name: (low, high, plain(found.columns[name]) if name in found.columns else None)
        for name, (low, high) in fit.ranges.items()
    }
    inside = all(here is None or low <= here <= high for low, high, here in ranges.values())
    match = found.match
    fitted = (match.basis, match.origin, fit.rows, inside, match.widening)
    return lines, KernelCalibration(found.op, fit.format, parts, *fitted, constants, ranges)
