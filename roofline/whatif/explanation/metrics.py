"""Explanations of metrics: times, rates, memory, energy and cost as sums of their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roofline.bound.memory import stored_tensors
from roofline.core.documents import bundled
from roofline.core.errors import RooflineError
from roofline.graph.extents import extents
from roofline.graph.tensor import Role, Tensor
from roofline.scenario import cost, energy
from roofline.scenario.analysis import Analysis
from roofline.scenario.breakdown import decode_breakdown, mean_contexts, mean_step, prefill_breakdown, steps
from roofline.scenario.generation import WEIGHTS
from roofline.scenario.memory import memory_reserve, sampler_bytes
from roofline.scenario.passes import Pass, overlaps
from roofline.scenario.phase import Phase
from roofline.timing.intervals import Reading
from roofline.timing.passes import OVERLAPPED, Detail, Timing
from roofline.whatif.explanation.lines import Line, Margin, line, shown, total

Found = tuple[list[Line], Margin | None, str]


def _ttft(analysis: Analysis) -> Found:
    lines = [_bound_line(analysis)]
    if analysis.times_are_expected:
        lines += _expected_lines(analysis.prefill)
    return lines, _phase_margin(analysis.prefill), "s"


def _bound_line(analysis: Analysis) -> Line:
    phase = analysis.prefill
    if overlaps(phase.passes):
        parts = prefill_breakdown(analysis, "bound").parts
        return line(f"{phase.name} at the bound", f"sum by operator: {' + '.join(parts)}", total(parts.values()))
    summed = " + ".join(f"{shown(op.count)}*{shown(op.bound_time)}" for op in phase.ops)
    names = " + ".join(f"{shown(op.count)} {op.name}" for op in phase.ops)
    return line(f"{phase.name} at the bound", f"sum over operators of count x max(roofs): {names}", summed)


def _expected_lines(phase: Phase, point: int = 0, name: str = "") -> list[Line]:
    """The lines of a phase's expected time: the kernels and host time of each pass, and the sum of the passes."""
    lines: list[Line] = []
    totals = []
    for run in phase.passes:
        times = phase.timed(run)
        detail = times.detail(run.step)
        label = f"{run.label} " if run.label else ""
        counted = [(entry.count, float(detail.mid[row, point])) for row, entry in enumerate(times.kernels)]
        ops = ["/".join(times.placement.ops[part][0].name for part in entry.parts) for entry in times.kernels]
        names = " + ".join(f"{shown(entry.count)} {each}" for entry, each in zip(times.kernels, ops, strict=True))
        kernels = line(
            f"{label}kernels{name}",
            f"sum over kernels of count x time: {names}",
            " + ".join(f"{shown(count)}*{shown(time)}" for count, time in counted),
        )
        lines.append(kernels)
        if run.placement.all_to_alls.size:
            batches = times.placement.network.ping_pong
            way = f"{batches} micro-batches" if batches else "two-batch overlap"
            kernels = _overlap_line(times, counted, kernels, f"{label}kernels with {way}{name}")
            lines.append(kernels)
        elif float(times.hidden(detail, run.step, phase.name)[point]):
            kernels = _shared_experts_line(times, detail, point, kernels, f"{label}kernels with shared experts{name}")
            lines.append(kernels)
        whole = line(f"{label}pass{name}", *_pass_terms(phase, run, kernels.value, times.number))
        repeat = float(np.ravel(run.repeat)[0])
        totals.append(f"{shown(repeat)}*{shown(whole.value)}")
        lines.append(whole)
    lines.append(line(f"expected {phase.name}{name}", "sum over passes of repetitions x time", " + ".join(totals)))
    return lines


def _pass_terms(phase: Phase, run: Pass, kernels: float, number: float) -> tuple[str, str]:
    """The formula of a pass from the time of its `number` kernels, and the same with numbers."""
    engine, batch = phase.engine, float(np.ravel(run.step.batch)[0])
    slowdown = shown(engine.kernel_slowdown(phase.name))
    device = f"{slowdown} * {shown(kernels)} + {shown(engine['gap'])} * {shown(number)}"
    formula = "prefill x kernels + gap x number" if phase.name == "prefill" else "kernels + gap x number"
    sequences = f"{shown(engine['sequence'] * engine.handled)} * {shown(batch)}"
    begins = run.host == "step"
    captured = phase.name in engine.graphs and not 0 < engine.replayed < batch
    issue = engine.launched if phase.name in engine.graphs else engine["issue"]
    beside = [] if captured else [("issue x number", f"{shown(issue)} * {shown(number)}")]
    beside += [("sequence x batch", sequences)] if engine.overlap and begins else []
    for term, numbers in beside:
        formula, device = f"{formula}, {term}", f"{device}, {numbers}"
    if beside:
        formula, device = f"max({formula})", f"max({device})"
    if run.host == "draft":
        formula, device = f"{formula} + draft_step", f"{device} + {shown(engine['draft_step'])}"
    if begins:
        batches = run.placement.network.overlap_batches
        shared = f" / {batches}" if batches > 1 else ""
        formula, device = f"{formula} + step{shared}", f"{device} + {shown(engine['step'])}{shared}"
    if begins and not engine.overlap:
        formula, device = f"{formula} + sequence x batch", f"{device} + {sequences}"
    if run.slowdown != 1:
        formula, device = f"slowdown x ({formula})", f"{shown(run.slowdown)} * ({device})"
    return formula, device


def _overlap_line(times: Timing, counted: Sequence[tuple[float, float]], kernels: Line, label: str) -> Line:
    """The kernels less what two-batch overlap saves of the shorter of all-to-alls and all else."""

    def of(rows: frozenset[int]) -> str:
        return " + ".join(f"{shown(count)}*{shown(time)}" for row, (count, time) in enumerate(counted) if row in rows)

    all_to_alls = of(times.overlappable)
    if batches := times.placement.network.ping_pong:
        experts = of(times.apart)
        rest = f"{shown(kernels.value)} - ({experts}) - ({all_to_alls})"
        longest = f"max({rest}, {experts}, ({all_to_alls}) / 2, {shown(kernels.value)} / {batches})"
        return line(label, "max(attention, experts, all-to-alls / 2, kernels / micro-batches)", longest)
    rest = f"{shown(kernels.value)} - ({all_to_alls})"
    saved = f"{shown(OVERLAPPED)} * min({all_to_alls}, {rest})"
    return line(label, "kernels - saved x min(all-to-alls, kernels - all-to-alls)", f"{shown(kernels.value)} - {saved}")


def _shared_experts_line(times: Timing, detail: Detail, point: int, kernels: Line, label: str) -> Line:
    """The kernels less the shorter branch of each layer whose shared and routed experts run concurrently."""
    hidden = []
    for shared, routed in times.branches:
        both = (times.branch(detail, shared), times.branch(detail, routed))
        bound = times.branch_bound(detail, [*shared, *routed])
        one, other, least = (shown(float(values[point])) for values in (*both, bound))
        hidden.append(f"({one} + {other} - max({one}, {other}, {least}))")
    formula = "kernels - (shared + routed - max(shared, routed, bounds of both)) of each kind of layer"
    return line(label, formula, " - ".join([shown(kernels.value), *hidden]))


def _tpot(analysis: Analysis) -> Found:
    if analysis.decode is None or not steps(analysis):
        raise RooflineError("there is no TPOT: no token is generated after the first")
    bound = decode_breakdown(analysis, "bound")
    names = " + ".join(bound.parts)
    lines = [line("TPOT at the bound", f"mean over all steps, by operator: {names}", total(bound.parts.values()))]
    margin = _phase_margin(analysis.decode)
    if not analysis.times_are_expected:
        return lines, margin, "s"
    phase, found = mean_step(analysis), []
    for point, context in enumerate(mean_contexts(analysis)):
        part = _expected_lines(phase, point, f" at context {shown(context)}")
        lines += part
        found.append(part[-1].value)
    weighted = " + ".join(f"{shown(weight / 2)}*{shown(time)}" for weight, time in zip(WEIGHTS, found, strict=True))
    tokens = analysis.kept_per_iteration
    formula = "mean over all steps, integrated from three contexts (Gauss-Legendre), over tokens per iteration"
    lines.append(line("expected TPOT", formula, f"({weighted}) / {shown(tokens)}"))
    return lines, margin, "s"


def _total(analysis: Analysis) -> Found:
    scenario, count = analysis.scenario, steps(analysis)
    generation = analysis.generation
    formula = "TTFT + (generated - 1) x TPOT"
    times = (generation.ttft, generation.tpot or 0.0)
    lines = [line("total at the bound", formula, f"{shown(times[0])} + {count} * {shown(times[1])}")]
    if analysis.times_are_expected:
        expected = analysis.expected
        tpot = expected.tpot.mid if expected.tpot is not None else 0.0
        lines.append(line("expected total", formula, f"{shown(expected.ttft.mid)} + {count} * {shown(tpot)}"))
    assert scenario.shape == ()
    return lines, None, "s"


def _rate(analysis: Analysis) -> Found:
    scenario = analysis.scenario
    if analysis.decode is None:
        raise RooflineError(f"{scenario.model.name} only encodes: use sequences_per_s")
    tokens = f"{shown(scenario.batch)} * {shown(scenario.generate)}"
    if scenario.settings.useful != 1:
        tokens += f" * {shown(scenario.settings.useful)}"
    return _over_total(analysis, "batch x generated / total", tokens, "tokens/s")


def _over_total(analysis: Analysis, formula: str, count: str, unit: str) -> Found:
    lines = [line(f"{unit} at the bound", formula, f"{count} / {shown(analysis.generation.total)}", unit)]
    if analysis.times_are_expected:
        lines.append(line(f"expected {unit}", formula, f"{count} / {shown(analysis.expected.total.mid)}", unit))
    return lines, None, unit


def _memory(analysis: Analysis) -> Found:
    memory, schedule = analysis.memory, analysis.schedule
    graph = schedule.networks[0]
    lines = []
    for tensor, count in stored_tensors(graph.sections, Role.WEIGHT):
        lines.append(_stored(f"weight {tensor.name}", count, tensor, {}))
    listed = sum(line.value for line in lines)
    elsewhere = "of other models and encoders, less those offloaded and of other stages"
    lines.append(line("other weights", elsewhere, f"{shown(memory.weights)} - {shown(listed)}", "B"))
    lines.append(line("weights", "sum of the above", f"{shown(listed)} + {shown(lines[-1].value)}", "B"))
    parts = [("KV cache", memory.kv_cache, Role.KV), ("states", memory.state, Role.STATE)]
    last = schedule.allocated_step(analysis.scenario.last_step, memory_reserve(analysis.scenario).block)
    for name, value, role in parts:
        if not value:
            continue
        numbers = extents(last, schedule.networks[1].rules)
        kept = []
        for tensor, count in stored_tensors(schedule.networks[1].sections, role):
            kept.append(_stored(f"{name} {tensor.name}", count, tensor, numbers))
        lines += kept
        held = sum(line.value for line in kept)
        if abs(held - value) > 1e-9 * value:
            rest = f"{shown(value)} - {shown(held)}"
            lines.append(line(f"other {name}", "of other models, shared, off the device or other stages", rest, "B"))
    peak, runtime = memory.activation_peak, memory.runtime
    lines.append(_activations(analysis, float(peak)))
    figures = [memory.weights, memory.kv_cache, memory.state, peak]
    if runtime:
        lines.append(Line("runtime", "context of the device and workspaces", shown(runtime), float(runtime), "B"))
        figures.append(runtime)
    formula = "weights + KV cache + states + activations" + (" + runtime" if runtime else "")
    lines.append(line("memory", formula, total(figures), "B"))
    ratio = memory.budget / memory.total
    return lines, Margin("fits" if memory.fits else "does not fit", "usable memory", float(ratio)), "B"


def _activations(analysis: Analysis, peak: float) -> Line:
    """The activation peak, which is that of the operators or of the sampler that the engine profiles."""
    model, reserve = analysis.scenario.model, memory_reserve(analysis.scenario)
    if peak == sampler_bytes(model, reserve):
        numbers = f"{reserve.sequences} * {model.vocabulary} * {shown(reserve.sampled)}"
        return line("activations", "profiled sampling: sequences x vocabulary x bytes per logit", numbers, "B")
    meaning = "live at once, maximum over the operators of all passes, whose tokens the engine limits"
    return Line("activations", meaning, shown(peak), peak, "B")


def _energy(analysis: Analysis) -> Found:
    found: list[Line] = []
    tokens = _tokens(analysis)
    for reading, title in _readings(analysis):
        spent = energy.batch_energy(analysis, reading)
        if spent is None:
            raise next(energy.explain_missing(pool) for pool in energy.device_pools(analysis) if pool.energy is None)
        for name, phase, time in (
            ("prefill", spent.prefill, energy.times(analysis, reading).prefill),
            ("decode", spent.decode, energy.times(analysis, reading).decode),
        ):
            found += _energy_lines(analysis, f"{name} {title}", phase, time)
        joules = total(line.value for line in found if line.name.endswith(f"energy {title}"))
        found.append(line(f"energy {title}", "(prefill + decode) / generated tokens", f"({joules}) / {tokens}", "J"))
    return found, None, "J"


def _energy_lines(analysis: Analysis, name: str, phase: energy.PhaseEnergy, time: float) -> list[Line]:
    """The energy of a phase: static, of FLOPs, of memory traffic and of links, and their sum."""
    devices, pools = analysis.parallel.devices, energy.device_pools(analysis)
    watts = total(pool.energy.static for pool in pools if pool.energy is not None)
    first, device = name.split()[0], pools[-1] if name.startswith("decode") else pools[0]
    figures = device.energy
    assert figures is not None
    lines = [
        line(f"{first} static", "devices x static power x time", f"{devices} * ({watts}) * {shown(time)}", "J"),
        _work("compute", first, "J/FLOP x FLOPs, by format", phase.compute),
        line(
            f"{first} memory",
            "J/B x bytes of all devices",
            f"{shown(figures.memory)} * {shown(phase.memory / figures.memory)}",
            "J",
        ),
    ]
    if phase.link:
        lines.append(_work("links", first, "J/B x bytes sent", phase.link))
    summed = total(entry.value for entry in lines)
    limit, formula = energy.tdp_power(pools), "sum of the above"
    if limit is not None:
        formula, summed = "at most devices x TDP x time", f"min({summed}, {devices} * {shown(limit)} * {shown(time)})"
    return [*lines, line(f"{first} energy {name.split(' ', 1)[1]}", formula, summed, "J")]


def _work(what: str, phase: str, formula: str, joules: float) -> Line:
    return Line(f"{phase} {what}", formula, shown(joules), float(shown(joules)), "J")


def _cost(analysis: Analysis) -> Found:
    found: list[Line] = []
    pools = cost.billed_pools(analysis)
    prices = [cost.price(pool, analysis.scenario.price) for pool in pools]
    for pool, price in zip(pools, prices, strict=True):
        if price is None:
            raise cost.explain_missing(pool)
    hourly = f"{analysis.parallel.devices} * ({total(price for price in prices if price is not None)})"
    dates = dict.fromkeys(f"{pool.name}, {pool.price.date}" for pool in pools if pool.price is not None)
    source = ", ".join(dates) if analysis.scenario.price is None else "as given"
    for reading, title in _readings(analysis):
        time = shown(energy.times(analysis, reading).total)
        formula = f"devices x USD/h ({source}) / 3600 x total / generated tokens x 1000000"
        text = f"{hourly} / 3600 * {time} / ({_tokens(analysis)}) * 1000000"
        found.append(line(f"cost {title}", formula, text, "USD"))
    return found, None, "USD"


def _carbon(analysis: Analysis) -> Found:
    scenario, found = analysis.scenario, list[Line]()
    if scenario.carbon is None:
        raise energy.explain_missing_carbon(scenario.hardware)
    for reading, title in _readings(analysis):
        spent = energy.batch_energy(analysis, reading)
        joules = energy.energy_at_tdp(analysis, reading) if spent is None else spent.total
        if joules is None:
            raise energy.explain_missing_tdp(scenario.hardware)
        formula = f"J of all devices{' at TDP' if spent is None else ''} / generated tokens x 1000000 / J/kWh x g/kWh"
        text = f"{shown(joules)} / ({_tokens(analysis)}) * 1000000 / {energy.KWH:.0f} * {scenario.carbon:g}"
        found.append(line(f"carbon {title}", formula, text, "g"))
    return found, None, "g"


def _readings(analysis: Analysis) -> tuple[tuple[Reading, str], ...]:
    """The readings to show, with their titles."""
    bound: tuple[Reading, str] = ("bound", "at the bound")
    return (bound, ("mid", "expected")) if analysis.times_are_expected else (bound,)


def _tokens(analysis: Analysis) -> str:
    scenario = analysis.scenario
    if analysis.decode is None:
        raise RooflineError(f"{scenario.model.name} only encodes: it generates no tokens")
    useful = "" if scenario.settings.useful == 1 else f" * {shown(scenario.settings.useful)}"
    return f"({shown(scenario.batch)} * {shown(scenario.generate)}{useful})"


def _stored(name: str, count: float, tensor: Tensor, numbers: Mapping[str, Any]) -> Line:
    shape = (dim if isinstance(dim, int) else float(dim.evaluate(numbers)) for dim in tensor.stored_shape)
    text = " * ".join(shown(factor) for factor in (count, *shape))
    return line(name, "layers x shape x bits / 8", f"{text} * {shown(tensor.format.bits)} / 8", "B")


def _phase_margin(phase: Phase) -> Margin:
    """The roof with most of a phase's bound time, and the next one."""
    spent: dict[str, float] = {}
    for op in phase.ops:
        spent[str(op.bound)] = spent.get(str(op.bound), 0.0) + float(op.count * op.bound_time)
    ranked = sorted(spent.items(), key=lambda item: -item[1])
    second = ranked[1] if len(ranked) > 1 else ("", 0.0)
    ratio = ranked[0][1] / second[1] if second[1] else None
    return Margin(ranked[0][0], second[0], ratio)


METRIC_LINES: Mapping[str, Callable[[Analysis], Found]] = {
    "ttft": _ttft,
    "tpot": _tpot,
    "total": _total,
    "tokens_per_s": _rate,
    "sequences_per_s": lambda found: _over_total(found, "batch / total", shown(found.scenario.batch), "sequences/s"),
    "memory": _memory,
    "energy": _energy,
    "cost": _cost,
    "carbon": _carbon,
}
"""The function of each metric: its lines, its margin and its unit."""

METRICS = tuple(METRIC_LINES)
"""Metrics with an explanation."""

DEFINITIONS: Mapping[str, str] = bundled("whatif/explanation/definitions.yaml")
"""Definitions of metrics and terms."""
