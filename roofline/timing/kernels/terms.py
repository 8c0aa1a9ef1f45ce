"""The terms of a kernel's time, as formulas with numbers: launch, multiprocessors, memory and others.

No formula is repeated here: a term is the kernel model's time with all other costs removed, constants in seconds set to
zero and achievable fractions and rates to infinity. Units and memory then add up to

    x = (units^p + memory^p)^(1/p),     with p = 1 their sum, which separates them where one cannot be removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from roofline.specs.hardware import Hardware
from roofline.timing.kernels import KERNELS, Columns, gated_delta_rule, in_step, kernel, top_k
from roofline.timing.kernels.attention import launch_alone, slowdown
from roofline.timing.kernels.attention_decode import keys_over_seen
from roofline.timing.kernels.common import column, is_bare, numbers, sharpness, storage, text, units
from roofline.timing.kernels.common import units as threads
from roofline.timing.kernels.elementwise import PASSES, cycle_rate, elements, pages
from roofline.timing.kernels.gemm import weight_only_kernel, weight_passes
from roofline.timing.kernels.mla import activation_bytes


class Term(NamedTuple):
    """A term in seconds: its formula, and the formula with numbers, a Python expression that evaluates to `value`."""

    name: str
    formula: str
    substituted: str
    value: float


Constants = Mapping[str, float]
_REMOVED = float("inf")


def shown(value: float) -> str:
    """The text of a number in a formula: integers whole, others with ten digits."""
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.10g}"


def terms(op: str, columns: Columns, hardware: Hardware, fitted: Constants) -> list[Term]:
    """The terms of one kernel in order of explanation; the last is its time."""
    chosen = kernel(op)
    constants = in_step(op, fitted, hardware)
    if op in PASSES:
        columns = {"op": op, **columns}

    def time(**changes: float) -> float:
        found = chosen.time(columns, hardware, {**constants, **changes})
        return float(found.reshape(-1)[0])

    if not KERNELS.is_shipped(op):
        return [_given("t", "t = the registered model of the kernel", time())]
    match op:
        case "gemm":
            return _gemm(columns, hardware, constants, time)
        case "attention_prefill":
            return _prefill(columns, hardware, constants, time)
        case "attention_decode":
            return _decode(columns, hardware, constants, time)
        case "mla_decode":
            return _mla(columns, hardware, constants, time)
        case "moe":
            return _experts(constants, time)
        case "collective":
            return _collective(constants, time)
        case "gated_delta_rule":
            return _gated_delta_rule(columns, hardware, constants)
        case "top_k":
            return _top_k(columns, hardware, constants)
    return _stream(columns, hardware, constants)


def _value(columns: Columns, name: str, default: float | None = None) -> float:
    return float(column(columns, name, default).reshape(-1)[0])


def evaluate(substituted: str) -> float:
    """The value of a formula with numbers: arithmetic, `min` and `max`."""
    return float(eval(substituted, {"__builtins__": {}}, {"min": min, "max": max}))  # noqa: S307 - numbers of ours


def _evaluated(name: str, formula: str, substituted: str) -> Term:
    """A term with the value of its formula."""
    return Term(name, formula, substituted, evaluate(substituted))


def _smooth(units: float, memory: float, sharpness: float) -> Term:
    larger = max(units, memory)
    p = shown(sharpness)
    if larger <= 0:
        return Term("x", "units and memory together", "0", 0.0)
    first, second = shown(units / larger), shown(memory / larger)
    text = f"{shown(larger)} * ({first}**{p} + {second}**{p})**(1/{p})"
    return _evaluated("x", "x = larger * ((units/larger)^p + (memory/larger)^p)^(1/p)", text)


def _overlapped(units: Term, memory: Term, constants: Constants) -> Term:
    exponent = float(sharpness(max(units.value, memory.value), constants))
    return _smooth(units.value, memory.value, exponent)


def _launch(constants: Constants) -> Term:
    return Term("launch", "launch", shown(constants["launch"]), constants["launch"])


def _given(name: str, formula: str, value: float) -> Term:
    return Term(name, formula, shown(value), value)


def _gemm(columns: Columns, hardware: Hardware, constants: Constants, time: Any) -> list[Term]:
    form = storage(columns)
    m, n, k = (_value(columns, name) for name in ("m", "n", "k"))
    if (chosen := weight_only_kernel(columns)) is not None:
        launch = _launch(constants)
        inside = _given(chosen.name, "x = weight-only kernel: units, memory, conversion by tile", time() - launch.value)
        return [launch, inside, _sum("t = launch + x", launch, inside)]
    bare = {"launch": 0.0, "barrier": 0.0, "quantize_row": 0.0, "quantize_efficiency": _REMOVED}
    bare = {name: value for name, value in bare.items() if name in constants}
    of_ggml = "row_efficiency" in constants
    how = (
        "n k (1 / e_1 + (m - 1) / e) / (peak / 2)"
        if of_ggml
        else "T_S (1 + d T_S / (T_S + 500 us)), T_S = min over tiles and splits of waves x (tile + prologue)"
        if "throttling" in constants
        else "min over tiles and splits of waves x (tile + prologue)"
    )
    units = _given("units", f"units = {how}", time(**bare, memory_efficiency=_REMOVED))
    passes = float(np.max(weight_passes(np.array(m), constants)))
    weights = f"{shown(form.bytes)}*{shown(n)}*{shown(k)}" + (f"*{shown(passes)}" if passes != 1 else "")
    inputs = f"{shown(form.input_share * form.input_bytes)}*{shown(m)}*{shown(k)}"
    moved = f"{weights} + {inputs} + {4 if of_ggml else 2}*{shown(m)}*{shown(n)}"
    rate = f"({shown(constants['memory_efficiency'])} * {shown(hardware.memory_bandwidth)})"
    formula = "memory = (B + A + C) / (e_B bandwidth)"
    if passes != 1:
        formula = "memory = (passes B + A + C) / (e_B bandwidth), passes = min(ceil(m / v), 1 + packing)"
    memory = _evaluated("memory", formula, f"({moved}) / {rate}")
    if of_ggml:
        count = shown(float(threads(hardware)))
        waiting = _evaluated("barriers", "barriers = barrier x threads", f"{shown(constants['barrier'])} * {count}")
        return [waiting, units, memory, _sum("t = barriers + units + memory", waiting, units, memory)]
    both = _overlapped(units, memory, constants)
    found = [_launch(constants), units, memory, both]
    if is_bare(columns) or not form.quantizes:
        return [*found, _sum("t = launch + x", found[0], both)]
    converting = _evaluated(
        "quantizing",
        "quantizing = row m + (2 + bytes) m k / (e_Q bandwidth)",
        f"{shown(constants.get('quantize_row', 0.0))}*{shown(m)} + {shown(2 + form.input_bytes)}*{shown(m)}*{shown(k)}"
        f" / ({shown(constants['quantize_efficiency'])} * {shown(hardware.memory_bandwidth)})",
    )
    return [*found, converting, _sum("t = launch + x + quantizing", found[0], both, converting)]


class _Attention(NamedTuple):
    batch: float
    queries: float
    heads: float
    kv_heads: float
    dim: float
    read: float
    bytes: float
    kv_bytes: float


def _attention(columns: Columns) -> _Attention:
    batch, queries, keys, heads, kv_heads, dim = (
        _value(columns, name) for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    )
    window, dtype = _value(columns, "window", 0.0), text(columns, "dtype")
    stored = numbers(text(columns, "kv_dtype", dtype)).bytes
    read = min(keys, window + queries - 1) if window > 0 else keys
    kv_bytes = _value(columns, "kv_bytes", stored)
    return _Attention(batch, queries, heads, kv_heads, dim, read, numbers(dtype).bytes, kv_bytes)


def _traffic(shape: _Attention) -> tuple[str, str]:
    """K and V, and Q and O, in bytes."""
    cache = (2, shape.batch, shape.kv_heads, shape.read, shape.dim, shape.kv_bytes)
    own = (2, shape.batch, shape.heads, shape.queries, shape.dim, shape.bytes)
    return "*".join(map(shown, cache)), "*".join(map(shown, own))


def _prefill(columns: Columns, hardware: Hardware, constants: Constants, time: Any) -> list[Term]:
    shape = _attention(columns)
    cache, own = _traffic(shape)
    rate = f"({shown(constants['memory_efficiency'])} * {shown(hardware.memory_bandwidth)})"
    formula = "units = max(all tiles / units, longest tile)"
    units = _given("units", formula, time(launch=0.0, token=0.0, memory_efficiency=_REMOVED))
    memory = _evaluated("memory", "memory = (K + V + Q + O) / (e_B bandwidth)", f"({cache} + {own}) / {rate}")
    both = _overlapped(units, memory, constants)
    if is_bare(columns):
        launch = _given("launch", "launch without that of the KV write", launch_alone(constants))
        return [launch, units, memory, both, _sum("t = launch + x", launch, both)]
    new = "*".join(map(shown, (2, shape.batch, shape.queries, shape.kv_heads, shape.dim, shape.bytes + shape.kv_bytes)))
    writing = _evaluated("KV write", "KV write = new K and V, read and written, / (e_B bandwidth)", f"{new} / {rate}")
    tokens = "*".join(map(shown, (constants["token"], shape.batch, shape.queries)))
    preparing = _evaluated("tokens", "tokens = token batch queries", tokens)
    launch = _launch(constants)
    whole = _sum("t = launch + x + KV write + tokens", launch, both, writing, preparing)
    return [launch, units, memory, both, writing, preparing, whole]


def _decode(columns: Columns, hardware: Hardware, constants: Constants, time: Any) -> list[Term]:
    shape = _attention(columns)
    shape = shape._replace(read=shape.read * float(keys_over_seen(columns, hardware, constants).reshape(-1)[0]))
    cache, own = _traffic(shape)
    bandwidth = shown(hardware.memory_bandwidth)
    activations = _evaluated("", "", f"{own} / {bandwidth}").value
    alone = {"launch": 0.0, "sequence": 0.0, "memory_efficiency": _REMOVED, "sharpness": 1.0, "overlap": _REMOVED}
    formula = "units = min over splits of waves x (keys of a split / unit bandwidth + prologue) + combining"
    slower = float(slowdown(np.asarray(shape.dim), columns, constants))
    units = _given("units", formula, max(time(**alone, regroup=0.0) / slower - activations, 0.0))
    rate = f"({shown(constants['memory_efficiency'])} * {bandwidth})"
    memory = _evaluated(
        "memory", "memory = (K + V) / (e_B bandwidth) + (Q + O) / bandwidth", f"{cache} / {rate} + {own} / {bandwidth}"
    )
    both = _overlapped(units, memory, constants)
    grouped = shape.heads > shape.kv_heads and shape.batch > 1
    sequences = _evaluated(
        "sequences",
        "sequences = sequence batch" + (" + regroup" if grouped else ""),
        f"{shown(constants['sequence'])}*{shown(shape.batch)}"
        + (f" + {shown(constants['regroup'])}" if grouped else ""),
    )
    launch = _launch(constants)
    if slower == 1.0:
        return [launch, units, memory, both, sequences, _sum("t = launch + x + sequences", launch, both, sequences)]
    text = f"{shown(both.value)} * {shown(slower)}"
    general = _evaluated("dimension", "dimension = x (1 + other_dim): a general kernel for such heads", text)
    whole = _sum("t = launch + dimension + sequences", launch, general, sequences)
    return [launch, units, memory, both, general, sequences, whole]


def _mla(columns: Columns, hardware: Hardware, constants: Constants, time: Any) -> list[Term]:
    alone = {"launch": 0.0, "sharpness": 1.0, "overlap": _REMOVED}
    removed = {"memory_efficiency": _REMOVED, "conversion": _REMOVED}
    activations = float(activation_bytes(columns, hardware).reshape(-1)[0]) / hardware.memory_bandwidth
    formula = "units = min over splits of waves x (keys x max(GEMMs, loads) + prologue) + combining"
    units = _given("units", formula, max(time(**alone, **removed) - activations, 0.0))
    formula = "memory = latents (1 / (e_B bandwidth) + conversion) + (queries + results) / bandwidth"
    memory = _given("memory", formula, time(**alone) - units.value)
    launch, both = _launch(constants), _overlapped(units, memory, constants)
    return [launch, units, memory, both, _sum("t = launch + x", launch, both)]


def _experts(constants: Constants, time: Any) -> list[Term]:
    idle = {"compute_efficiency": _REMOVED, "tile_bandwidth": _REMOVED, "tile_prologue": 0.0}
    unsorted = {"permute_efficiency": _REMOVED, "expert": 0.0}
    units = _given(
        "units",
        "units = both grouped GEMMs: min over tiles of waves x (tile + prologue)",
        time(launch=0.0, memory_efficiency=_REMOVED, **unsorted),
    )
    memory = _given(
        "memory",
        "memory = (weights of the experts reached + activations) / (e_B bandwidth)",
        time(launch=0.0, **unsorted, **idle),
    )
    permuting = _given(
        "permutation",
        "permutation = pairs (4 hidden + 6 width) / (e_P bandwidth) + expert x experts",
        time(launch=0.0, memory_efficiency=_REMOVED, **idle),
    )
    both = _overlapped(units, memory, constants)
    launch = _given(
        "launch",
        "launch = that of many tokens x (1 - few_tokens 4 / (tokens + 3))",
        time(memory_efficiency=_REMOVED, **unsorted, **idle),
    )
    return [launch, units, memory, both, permuting, _sum("t = launch + x + permutation", launch, both, permuting)]


def _collective(constants: Constants, time: Any) -> list[Term]:
    silent = {name: 0.0 for name in constants if name.startswith("latency_")}
    free = {name: _REMOVED for name in constants if name.startswith("efficiency_")}
    latency = _given("latency", "latency, interpolated in log2(ranks)", time(**free))
    # With no latency and a low-latency share of 1, the time is that of sending at full rate.
    sending = _given("sending", "sending = sent / (e link)", time(**silent, low_latency_share=1.0))
    low = _evaluated(
        "low latency",
        "t1 = latency + sending / low_latency_share",
        f"{shown(latency.value)} + {shown(sending.value)} / {shown(constants['low_latency_share'])}",
    )
    high = _smooth(latency.value * constants["handshake"], sending.value, constants["sharpness"])
    high = high._replace(name="high bandwidth", formula="t2 = ((handshake latency)^p + sending^p)^(1/p)")
    whole = _evaluated("time", "t = min(t1, t2)", f"min({shown(low.value)}, {shown(high.value)})")
    return [latency, sending, low, high, whole]


def _gated_delta_rule(columns: Columns, hardware: Hardware, constants: Constants) -> list[Term]:
    bandwidth, queries = shown(hardware.memory_bandwidth), _value(columns, "q_len")
    waves = float(gated_delta_rule.waves(columns, hardware).reshape(-1)[0])
    steps = f"{shown(queries)} * {shown(constants['token'])} * {shown(waves)}"
    chain = _evaluated("recurrence", "recurrence = tokens of a sequence x token x heads of a unit", steps)
    peak = f"({shown(constants['compute_efficiency'])} * {shown(gated_delta_rule.peak(columns, hardware))})"
    flops = shown(float(gated_delta_rule.flops(columns).reshape(-1)[0]))
    gemms = _evaluated("GEMMs", "GEMMs = FLOPs / (e_F peak)", f"{flops} / {peak}")
    own, handed = (
        float(bytes(columns).reshape(-1)[0])
        for bytes in (gated_delta_rule.operand_bytes, gated_delta_rule.intermediate_bytes)
    )
    moved = f"({shown(own)} + {shown(constants['intermediate_traffic'])} * {shown(handed)}) / {bandwidth}"
    memory = _evaluated("memory", "memory = (operands + intermediate_traffic x intermediates) / bandwidth", moved)
    fused = text(columns, "variant") == gated_delta_rule.FUSED
    work = max(gemms.value, memory.value) if fused else gemms.value + memory.value
    both = _smooth(chain.value, work, constants["sharpness"])
    how = "max(GEMMs, memory)" if fused else "GEMMs + memory"
    both = both._replace(formula=f"x = (recurrence^p + ({how})^p)^(1/p)")
    launch = _launch(constants)
    return [launch, chain, gemms, memory, both, _sum("t = launch + x", launch, both)]


def _top_k(columns: Columns, hardware: Hardware, constants: Constants) -> list[Term]:
    doublings, scored = (float(size(columns).reshape(-1)[0]) for size in (top_k.doublings, top_k.score_bytes))
    passed = f"{shown(constants['doubling'])} * {shown(doublings)}"
    passes = _evaluated("passes", "passes = doubling x log2(scores of a row / k)", passed)
    rate = f"({shown(constants['memory_efficiency'])} * {shown(hardware.memory_bandwidth)})"
    memory = _evaluated("memory", "memory = 4 rows scores / (e_B bandwidth)", f"{shown(scored)} / {rate}")
    launch = _launch(constants)
    return [launch, passes, memory, _sum("t = launch + passes + memory", launch, passes, memory)]


def _sum(formula: str, *parts: Term) -> Term:
    return _evaluated("time", formula, " + ".join(shown(part.value) for part in parts))


def _stream(columns: Columns, hardware: Hardware, constants: Constants) -> list[Term]:
    moved = _value(columns, "bytes")
    rate = f"({shown(constants['memory_efficiency'])} * {shown(hardware.memory_bandwidth)})"
    memory = _evaluated("memory", "memory = bytes / (e_B bandwidth)", f"{shown(moved)} / {rate}")
    count, cycles = float(elements(columns).reshape(-1)[0]), float(cycle_rate(columns, hardware).reshape(-1)[0])
    computing = _evaluated(
        "computing",
        "computing = elements cycles / (clock threads)",
        f"{shown(count)} * {shown(constants['cycles'])} / {shown(cycles)}",
    )
    found, formula = [_launch(constants), memory, computing], "t = launch + memory + computing"
    fresh, page = float(np.max(pages(columns, hardware))), constants.get("page", 0.0)
    if fresh:
        spent = f"{shown(fresh)} * {shown(page)} / {shown(units(hardware))}"
        found.append(_evaluated("mapping", "mapping = pages x page / threads", spent))
        formula += " + mapping"
    return [*found, _sum(formula, *found)]
