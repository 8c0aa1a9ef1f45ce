"""Explanations: a figure's formula with this scenario's numbers in it, what bounds it, and what it rests on.

Every line has a formula in words, the same with numbers, and its value. The one with numbers is arithmetic that Python
evaluates to the value: an explanation that does not add up is a defect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.analysis import Analysis, OpFigures, Phase, timed
from roofline.breakdown import decode_bound, mean_contexts, mean_step, steps
from roofline.calibration import load_calibration
from roofline.errors import RooflineError, UnknownNameError
from roofline.generation import WEIGHTS
from roofline.kernels import kernel
from roofline.kernels.terms import evaluate, shown, terms
from roofline.launches import Kernel
from roofline.memory import stored_tensors
from roofline.roof import TIMES, Row
from roofline.schedule import Pass
from roofline.size import Size
from roofline.tensor import Role
from roofline.timing import COMPUTE_SHARE, LAUNCH, LINK_SHARE, MEMORY_SHARE, Timing

DEFINITIONS: Mapping[str, str] = {
    "ttft": "Time to first token: the prefill of all prompts of the batch, from their arrival to the first token.",
    "tpot": "Time per output token after the first: (total - TTFT) / (generated - 1), the mean decode step.",
    "total": "The static batch from prompt to last token: TTFT and generated - 1 decode steps, the context growing.",
    "tokens_per_s": "Generated tokens of all sequences over the total.",
    "memory": "Bytes on the fullest device at the end: weights, KV cache, states, and activations at their peak.",
    "bound": "The speed of light: for each operator max(matrix FLOPs / matrix peak, vector FLOPs / vector peak, bytes /"
    " bandwidth, link bytes / link bandwidth); a pass is the sum over its operators.",
    "expected": "The time of calibrated kernels on an engine, with the host's share; low, mid and high are the 10th,"
    " 50th and 90th percentile of measurements over predictions.",
    "flops": "Arithmetic of an operator: a multiply-add is 2; attention counts the pairs that the causal mask leaves.",
    "bytes": "Traffic with memory: every tensor that an operator reads or writes, moved once, scales included.",
    "intensity": "FLOPs over bytes. Above the ridge point, peak over bandwidth, compute bounds an operator.",
    "ridge": "The intensity at which peak FLOP/s and memory bandwidth take equally long.",
    "mfu": "Model FLOPs utilisation: useful FLOPs over time and peak.",
    "mbu": "Model bandwidth utilisation: bytes of weights and cache over time and bandwidth.",
    "itl": "Inter-token latency: the time between two tokens of a sequence; its mean is the TPOT.",
}
"""What every figure means."""

METRICS = ("ttft", "tpot", "total", "tokens_per_s", "memory")


@dataclass(frozen=True, slots=True)
class Line:
    """One step: a formula, the same with numbers, and its value in `unit`."""

    name: str
    formula: str
    substituted: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Margin:
    """What bounds a figure, and how many times as long as the next longest roof it takes."""

    bound: str
    next: str
    ratio: float | None


@dataclass(frozen=True, slots=True)
class KernelGround:
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


@dataclass(frozen=True, slots=True)
class Explanation:
    """A figure taken apart.

    `kernel` is None for metrics of a whole pass; its constants are (name, value, unit, meaning), its ranges the
    smallest and largest fitted value of a column and the one here. `commands` measure the same on real hardware.
    """

    subject: str
    definition: str
    value: float
    unit: str
    lines: tuple[Line, ...]
    margin: Margin | None
    kernel: KernelGround | None
    assumptions: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]


def explain(analysis: Analysis, name: str, phase: str | None = None) -> Explanation:
    """Take a metric apart, or an operator of `phase` (prefill unless it is 'decode').

    Raises UnknownNameError for anything else.
    """
    notes: tuple[str, ...] = ()
    if name in METRICS:
        lines, margin, unit = _METRICS[name](analysis)
        subject, definition = name, DEFINITIONS[name]
        ground = None
    else:
        part = getattr(analysis, phase or "prefill")
        if part is None:
            raise RooflineError(f"{analysis.scenario.model.name} only encodes and has no decode phase")
        subject, lines, margin, ground = _operator(analysis, part, name)
        notes = _namesakes(part, name)
        definition, unit = "One operator of a pass on the roofline, and its part of the kernel that runs it.", "s"
    grounds, commands = (*notes, *_assumptions(analysis)), tuple(_commands(analysis, name))
    engine = analysis.scenario.profile.name
    commands = tuple(sorted(commands, key=lambda entry: entry[0] != engine))
    return Explanation(subject, definition, lines[-1].value, unit, tuple(lines), margin, ground, grounds, commands)


def _line(name: str, formula: str, substituted: str, unit: str = "s") -> Line:
    return Line(name, formula, substituted, evaluate(substituted), unit)


def _sum(values: Iterable[float]) -> str:
    return " + ".join(shown(value) for value in values) or "0"


# --- metrics ----------------------------------------------------------------------------------------------------------

Found = tuple[list[Line], Margin | None, str]


def _ttft(analysis: Analysis) -> Found:
    lines = [_bound_line(analysis.prefill)]
    if analysis.times_are_expected:
        lines += _expected_lines(analysis.prefill)
    return lines, _phase_margin(analysis.prefill), "s"


def _bound_line(phase: Phase) -> Line:
    summed = " + ".join(f"{shown(op.count)}*{shown(op.bound_time)}" for op in phase.ops)
    names = " + ".join(f"{shown(op.count)} {op.name}" for op in phase.ops)
    return _line(f"{phase.name} at the bound", f"sum over operators of count x max(roofs): {names}", summed)


def _expected_lines(phase: Phase, point: int = 0, name: str = "") -> list[Line]:
    """The expected time of a phase: the kernels of each pass, what the host adds, and the sum of the passes."""
    lines: list[Line] = []
    totals = []
    for run in phase.passes:
        times = timed(run, phase.engine)
        detail, engine = times.detail(run.step), phase.engine
        label = f"{run.label} " if run.label else ""
        counted = [(entry.count, float(detail.mid[row, point])) for row, entry in enumerate(times.kernels)]
        names = " + ".join(f"{shown(entry.count)} {_joined(times, entry)}" for entry in times.kernels)
        kernels = _line(
            f"{label}kernels{name}",
            f"sum over kernels of count x time: {names}",
            " + ".join(f"{shown(count)}*{shown(time)}" for count, time in counted),
        )
        slower = engine["prefill"] if phase.name == "prefill" else 1.0
        number, batch = sum(count for count, _ in counted), float(np.ravel(run.step.batch)[0])
        device = f"{shown(slower)} * {shown(kernels.value)} + {shown(engine['gap'])} * {shown(number)}"
        replayed = phase.name in engine.graphs
        busy = device if replayed else f"max({device}, {shown(engine['issue'])} * {shown(number)})"
        formula = "prefill x kernels + gap x number" if phase.name == "prefill" else "kernels + gap x number"
        formula = formula if replayed else f"max({formula}, issue x number)"
        host = f"{shown(engine['step'])} + {shown(engine['sequence'])} * {shown(batch)}"
        whole = _line(f"{label}pass{name}", f"{formula} + step + sequence x batch", f"{busy} + {host}")
        repeat = float(np.ravel(run.repeat)[0])
        totals.append(f"{shown(repeat)}*{shown(whole.value)}")
        lines += [kernels, whole]
    lines.append(_line(f"expected {phase.name}{name}", "sum over passes of repetitions x time", " + ".join(totals)))
    return lines


def _joined(times: Timing, entry: Kernel) -> str:
    return "/".join(times.placement.ops[part][0].name for part in entry.parts)


def _tpot(analysis: Analysis) -> Found:
    if analysis.decode is None or not steps(analysis):
        raise RooflineError("there is no TPOT: no token is generated after the first")
    bound = decode_bound(analysis)
    names = " + ".join(bound.parts)
    lines = [_line("TPOT at the bound", f"mean over all steps, by operator: {names}", _sum(bound.parts.values()))]
    margin = _phase_margin(analysis.decode)
    if not analysis.times_are_expected:
        return lines, margin, "s"
    phase, found = mean_step(analysis), []
    for point, context in enumerate(mean_contexts(analysis)):
        part = _expected_lines(phase, point, f" at context {shown(context)}")
        lines += part
        found.append(part[-1].value)
    weighted = " + ".join(f"{shown(weight / 2)}*{shown(time)}" for weight, time in zip(WEIGHTS, found, strict=True))
    tokens = analysis.tokens_per_iteration
    formula = "mean over all steps, integrated from three contexts (Gauss-Legendre), over the tokens of an iteration"
    lines.append(_line("expected TPOT", formula, f"({weighted}) / {shown(tokens)}"))
    return lines, margin, "s"


def _total(analysis: Analysis) -> Found:
    scenario, count = analysis.scenario, steps(analysis)
    generation = analysis.generation
    formula = "TTFT + (generated - 1) x TPOT"
    times = (generation.ttft, generation.tpot or 0.0)
    lines = [_line("total at the bound", formula, f"{shown(times[0])} + {count} * {shown(times[1])}")]
    if analysis.times_are_expected:
        expected = analysis.expected
        tpot = expected.tpot.mid if expected.tpot is not None else 0.0
        lines.append(_line("expected total", formula, f"{shown(expected.ttft.mid)} + {count} * {shown(tpot)}"))
    assert scenario.shape == ()
    return lines, None, "s"


def _rate(analysis: Analysis) -> Found:
    scenario, generation = analysis.scenario, analysis.generation
    if analysis.decode is None:
        raise RooflineError(f"{scenario.model.name} only encodes: it has no tokens a second")
    tokens = f"{shown(scenario.batch)} * {shown(scenario.generate)}"
    if scenario.settings.useful != 1:
        tokens += f" * {shown(scenario.settings.useful)}"
    formula = "batch x generated / total"
    lines = [_line("tokens/s at the bound", formula, f"{tokens} / {shown(generation.total)}", "tokens/s")]
    if analysis.times_are_expected:
        total = analysis.expected.total.mid
        lines.append(_line("expected tokens/s", formula, f"{tokens} / {shown(total)}", "tokens/s"))
    return lines, None, "tokens/s"


def _memory(analysis: Analysis) -> Found:
    memory, schedule = analysis.memory, analysis.schedule
    graph = schedule.networks[0]
    lines = []
    for tensor, count in stored_tensors(graph.sections, Role.WEIGHT):
        shape = [dim if isinstance(dim, int) else float(dim.evaluate({})) for dim in tensor.stored_shape]
        name = f"weight {tensor.name}"
        lines.append(_stored(name, count, shape, tensor.format.bits))
    listed = sum(line.value for line in lines)
    elsewhere = "of other models and towers, less those off the device and of other stages"
    lines.append(_line("other weights", elsewhere, f"{shown(memory.weights)} - {shown(listed)}", "B"))
    lines.append(_line("weights", "sum of the above", f"{shown(listed)} + {shown(lines[-1].value)}", "B"))
    parts = [("KV cache", memory.kv_cache, Role.KV), ("states", memory.state, Role.STATE)]
    last = schedule.kept_step(analysis.scenario.last_step)
    for name, value, role in parts:
        if not value:
            continue
        numbers = _numbers(schedule.networks[1], last)
        kept = []
        for tensor, count in stored_tensors(schedule.networks[1].sections, role):
            shape = [dim if isinstance(dim, int) else float(dim.evaluate(numbers)) for dim in tensor.stored_shape]
            kept.append(_stored(f"{name} {tensor.name}", count, shape, tensor.format.bits))
        lines += kept
        held = sum(line.value for line in kept)
        if abs(held - value) > 1e-9 * value:
            rest = f"{shown(value)} - {shown(held)}"
            lines.append(_line(f"other {name}", "of other models, shared, off the device or other stages", rest, "B"))
    peak = memory.activation_peak
    lines.append(
        Line("activations", "alive at once at the worst operator of all passes", shown(peak), float(peak), "B")
    )
    figures = (memory.weights, memory.kv_cache, memory.state, peak)
    lines.append(_line("memory", "weights + KV cache + states + activations", _sum(figures), "B"))
    ratio = memory.capacity / memory.total
    return lines, Margin("fits" if memory.fits else "does not fit", "capacity", float(ratio)), "B"


def _stored(name: str, count: float, shape: list[Any], bits: float) -> Line:
    text = " * ".join(shown(factor) for factor in (count, *shape))
    return _line(name, "layers x shape x bits / 8", f"{text} * {shown(bits)} / 8", "B")


def _numbers(graph: Any, step: Any) -> Mapping[str, Any]:
    from roofline.extents import extents

    return extents(step, graph.rules)


_METRICS = {"ttft": _ttft, "tpot": _tpot, "total": _total, "tokens_per_s": _rate, "memory": _memory}


def _phase_margin(phase: Phase) -> Margin:
    """The roofs under which a phase's bound time is spent."""
    spent: dict[str, float] = {}
    for op in phase.ops:
        spent[str(op.bound)] = spent.get(str(op.bound), 0.0) + float(op.count * op.bound_time)
    ranked = sorted(spent.items(), key=lambda item: -item[1])
    second = ranked[1] if len(ranked) > 1 else ("", 0.0)
    ratio = ranked[0][1] / second[1] if second[1] else None
    return Margin(ranked[0][0], second[0], ratio)


# --- operators --------------------------------------------------------------------------------------------------------


def _operator(analysis: Analysis, phase: Phase, name: str) -> tuple[str, list[Line], Margin, KernelGround | None]:
    """An operator's lines; of several by that name the one that takes longest in the phase."""
    known = [op.name for op in phase.ops]
    if name not in known:
        raise UnknownNameError(f"metric or operator of {phase.name}", name, {*known, *METRICS})
    places = [(run, index) for run in phase.passes for index in range(len(run.placement.ops))]
    same = [index for index, op in enumerate(phase.ops) if op.name == name]
    chosen = max(same, key=lambda index: phase.ops[index].count * phase.ops[index].bound_time)
    op, (run, index) = phase.ops[chosen], places[chosen]
    lines = [*_work(op), *_roofs(op, run, index)]
    roofs = {line.name: line.value for line in lines if line.name in ("matrix", "vector", "memory", "link")}
    ranked = sorted(roofs.items(), key=lambda item: -item[1])
    ratio = ranked[0][1] / ranked[1][1] if ranked[1][1] else None
    ground = None
    if analysis.times_are_expected:
        more, ground = _kernel(phase, run, index)
        lines += more
    return f"{name} ({op.section}, {phase.name})", lines, Margin(str(op.bound), ranked[1][0], ratio), ground


def _namesakes(phase: Phase, name: str) -> tuple[str, ...]:
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
        shape = [dim if isinstance(dim, int) else _plain(dim.evaluate(numbers)) for dim in tensor.shape]
        symbols = " x ".join(_formula(dim) for dim in tensor.shape)
        text = " * ".join([*(shown(dim) for dim in shape), f"{shown(tensor.format.bits)} / 8"])
        formula = f"[{symbols}] {tensor.role} in {tensor.format.name}"
        moved.append(_line(f"{tensor.name}", formula, text, "B"))
    lines += moved
    return [*lines, _line("bytes", "sum of the tensors, each moved once", _sum(line.value for line in moved), "B")]


def _plain(value: Any) -> float:
    return float(np.ravel(value)[0])


def _formula(dim: int | Size) -> str:
    """A dimension in symbols."""
    if isinstance(dim, int):
        return str(dim)
    return " + ".join(
        " ".join((*([] if names and value == 1 else [shown(value)]), *names)) for names, value in dim.terms.items()
    )


def _size(name: str, size: Size, numbers: Mapping[str, Any], unit: str) -> Line:
    text = " + ".join(
        " * ".join((shown(value), *(shown(_plain(numbers[extent])) for extent in names)))
        for names, value in size.terms.items()
    )
    return _line(name, _formula(size), text, unit)


def _roofs(op: OpFigures, run: Pass, index: int) -> list[Line]:
    """The time under each roof, and the longest."""
    hardware = run.placement.hardware
    rows = [_plain(row) for row in run.placement.coefficients[:TIMES, index] @ run.placement.values(run.step)]
    lines = []
    if op.arithmetic is not None:
        flops, peak = _plain(op.op.matrix_flops.evaluate(op.extents)), hardware.matrix_peak(op.arithmetic)
        formula = f"matrix FLOP / peak in {op.arithmetic}"
        lines.append(_line("matrix", formula, f"{shown(flops)} / {shown(peak)}"))
    if hardware.vector_peak:
        flops = _plain(op.op.vector_flops.evaluate(op.extents))
        text = f"({shown(flops)} + {shown(op.upcast_flops)}) / {shown(hardware.vector_peak)}"
        lines.append(_line("vector", "(vector FLOP + conversion) / vector peak", text))
    lines.append(_line("memory", "bytes / bandwidth", f"{shown(op.bytes)} / {shown(hardware.memory_bandwidth)}"))
    link = rows[Row.LINK_TIME]
    if link:
        lines.append(_link(op, run, link))
    names = ", ".join(line.name for line in lines)
    roofs = ", ".join(shown(line.value) for line in lines)
    bound = _line("at the bound", f"max({names})", f"max({roofs}, 0)")
    whole = f"{shown(op.count)} * {shown(bound.value)}"
    return [*lines, bound, _line("all at the bound", "instances in a pass x time", whole)]


def _link(op: OpFigures, run: Pass, seconds: float) -> Line:
    """The time on the link: what the operator sends to other devices, and what is streamed to it from the host."""
    placement, sent = run.placement, op.op.link
    terms, formulas, own = [], [], 0.0
    if sent is not None:
        link = placement.hardware.link(placement.parallel.spans_nodes(sent.reach))
        moved = shown(_plain(sent.bytes.evaluate(op.extents)))
        terms.append(f"{moved} / {shown(link.bandwidth)} + {sent.steps} * {shown(link.latency or 0.0)}")
        formulas.append(f"bytes sent / bandwidth of the {link.kind} + steps x latency")
        own = _line("", "", terms[0]).value
    streamed = seconds - own
    if streamed > 1e-9 * seconds:
        terms.append(shown(streamed))
        formulas.append("offloaded operands / bandwidth from the host")
    return _line("link", " + ".join(formulas), " + ".join(terms))


def _kernel(phase: Phase, run: Pass, index: int) -> tuple[list[Line], KernelGround]:
    """The expected time of the kernel that an operator is part of, and the operator's part of it."""
    times = timed(run, phase.engine)
    row, detail = times.kernel_of[index], times.detail(run.step)
    entry = times.kernels[row]
    bounds = [float(detail.bounds[part, 0]) for part in entry.parts]
    lines, ground = _measured(times, row, run, entry)
    floor = sum(bounds)
    formula = lines[-1].value if lines else 0.0
    compared = f"max({shown(formula)}, {shown(floor)})"
    lines.append(_line("kernel, not below its bound", "max(t, bound of its operators)", compared))
    slower = lines[-1].value
    if row in times.converting:
        vector = sum(_row(run, part, Row.VECTOR_TIME) for part in entry.parts)
        text = f"({shown(slower)}**2 + ({shown(vector)} / {shown(phase.engine['dequantisation'])})**2)**0.5"
        lines.append(_line("kernel that converts first", "(t^2 + (conversion / dequantisation)^2)^(1/2)", text))
        slower = lines[-1].value
    if row in times.linked:
        sent = sum(_row(run, part, Row.LINK_TIME) for part in entry.parts)
        text = f"max({shown(slower)}, {shown(sent)} / {LINK_SHARE})"
        lines.append(_line("kernel that waits for a link", f"max(t, link / {LINK_SHARE})", text))
        slower = lines[-1].value
    own = float(detail.bounds[index, 0])
    share = f"{shown(slower)} * {shown(own)} / {shown(floor)}" if floor else "0"
    lines.append(_line("expected", "kernel x the operator's part of its bound", share))
    return lines, ground


def _row(run: Pass, index: int, row: Row) -> float:
    return _plain(run.placement.coefficients[row, index] @ run.placement.values(run.step))


def _measured(times: Timing, row: int, run: Pass, entry: Kernel) -> tuple[list[Line], KernelGround]:
    """The terms of a measured kernel; for others their bound at typical efficiencies."""
    parts = tuple(times.placement.ops[part][0].name for part in entry.parts)
    found = times.measured(row, run.step)
    if found is None:
        compute = sum(max(_row(run, part, Row.MATRIX_TIME), _row(run, part, Row.VECTOR_TIME)) for part in entry.parts)
        memory = sum(_row(run, part, Row.MEMORY_TIME) for part in entry.parts)
        formula = f"launch + ((compute / {COMPUTE_SHARE})^2 + (memory / {MEMORY_SHARE})^2)^(1/2)"
        text = f"{LAUNCH} + (({shown(compute)}/{COMPUTE_SHARE})**2 + ({shown(memory)}/{MEMORY_SHARE})**2)**0.5"
        ground = KernelGround("none", "", parts, entry.basis, entry.source, 0, False, 1.0, (), {})
        return [_line("kernel", formula, text)], ground
    fit = found.match.fit
    lines = [
        Line(f"kernel: {term.name}", term.formula, term.substituted, term.value, "s")
        for term in terms(found.op, found.columns, found.hardware, fit.parameters)
    ]
    if found.factor != 1:
        text = f"{shown(found.factor)} * {shown(lines[-1].value)}"
        lines.append(_line("kernel on this engine", "factor of the engine x t", text))
    meanings = {entry.name: entry for entry in kernel(fit.op).parameters(fit.format)}
    constants = tuple(
        (name, float(value), str(meanings[name].unit), meanings[name].meaning) for name, value in fit.parameters.items()
    )
    ranges = {
        name: (low, high, _plain(found.columns[name]) if name in found.columns else None)
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


# --- what it rests on -------------------------------------------------------------------------------------------------


def _assumptions(analysis: Analysis) -> Iterable[str]:
    scenario, precision = analysis.scenario, analysis.precision
    yield (
        f"formats: weights {precision.weights.name}, activations {precision.activations.name}, KV {precision.kv.name},"
        f" elsewhere {precision.base.name}"
    )
    if analysis.fusions:
        yield f"fused in the graph: {', '.join(analysis.fusions)}"
    yield f"peaks and bandwidth of {scenario.hardware.name} from: {'; '.join(_sources(scenario.hardware))}"
    if scenario.model.experts:
        skew = scenario.settings.expert_skew
        yield f"experts are drawn with skew {skew:g}" if skew else "experts are drawn uniformly"
    if scenario.settings.speculation is not None:
        yield f"{scenario.settings.speculation.accepted:g} tokens an iteration are given, not predicted"
    if scenario.techniques:
        yield f"techniques: {', '.join(scenario.techniques)}"
    if not analysis.times_are_expected:
        yield "counted by the llm-viewer convention, which has no expected times"
        return
    engine = scenario.profile
    yield f"engine {engine.title or engine.name}: {'; '.join(engine.sources) or 'no measurements'}"
    if engine.fusions:
        yield f"kernels that the engine fuses: {', '.join(engine.fusions)}"
    calibration = load_calibration(scenario.hardware)
    chain = ", then ".join(f"{link.name} ({link.basis})" for link in calibration.chain)
    yield f"kernel constants: {chain}"
    for phase in (analysis.prefill, analysis.decode):
        if phase is not None:
            basis = phase.basis
            yield f"{phase.name}: mostly {basis.basis} ({basis.source}), {basis.outside:.0%} outside of fitted ranges"


def _sources(hardware: Any) -> list[str]:
    return list(dict.fromkeys(hardware.sources.values()))[:3] or ["its spec, which names no source"]


def _commands(analysis: Analysis, name: str) -> Iterable[tuple[str, str]]:
    """(tool, command) that measure the same: $MODEL is a checkpoint of the model."""
    scenario = analysis.scenario
    batch, prompt, generate = int(scenario.batch), int(scenario.prefix + scenario.prompt), int(scenario.generate)
    ranks = scenario.settings.parallel
    experts = ranks.expert > 1
    spread = f" --tensor-parallel-size {ranks.tensor}"
    spread += f" --pipeline-parallel-size {ranks.pipeline}" if ranks.pipeline > 1 else ""
    spread += f" --data-parallel-size {ranks.data}" if ranks.data > 1 else ""
    spread += " --enable-expert-parallel" if experts else ""
    group = f"--tp {ranks.tensor * ranks.data} --pp {ranks.pipeline}" + (f" --ep {ranks.expert}" if experts else "")
    cache = " --kv-cache-dtype fp8" if analysis.precision.kv.name == "fp8" else ""
    if scenario.model.task == "generate":
        yield (
            "vllm",
            f"vllm bench latency --model $MODEL --batch-size {batch} --input-len {prompt} --output-len {generate}"
            f"{spread}{cache}",
        )
        yield (
            "tensorrt-llm",
            f"trtllm-bench --model $MODEL throughput --backend pytorch {group}"
            f" --max_batch_size {batch} --dataset $DATASET  # of {batch} requests, {prompt} tokens in, {generate} out",
        )
        if ranks.data == 1 and ranks.pipeline == 1:
            yield (
                "sglang",
                f"python -m sglang.bench_one_batch --model-path $MODEL --batch-size {batch} --input-len {prompt}"
                f" --output-len {generate} --tp {ranks.tensor}" + (f" --ep-size {ranks.expert}" if experts else ""),
            )
        several = f"llama-batched-bench -m $MODEL.gguf -c {batch * (prompt + generate)} -npp {prompt} -ntg {generate}"
        alone = f"llama-bench -m $MODEL.gguf -p {prompt} -n {generate}"
        yield "llama.cpp", f"{alone if batch == 1 else f'{several} -npl {batch}'} -ngl 99"
    if name not in METRICS:
        yield "kernels", f"roofline validate score measured.csv --hw {scenario.hardware.name} --by op,format,regime"
    yield "published", "roofline validate check"
