"""The harness of public tables of kernels (ai-dynamo/aiconfigurator): what they time beside the kernel of an engine.

    graphs       a table replays a CUDA graph of one call, which takes `graph` longer than a kernel within a step; some
                 launch it anew each time: then a row takes no less than the host's time for it (`host`), and the
                 device idles between the kernels of one GEMM (`host_gap`)
    replay       a few buffers, of which the L2 holds a part (`roofline.validate.observation`)
    padding      block-scaled GEMMs where m is no multiple of 4: kernels that pad it, which engines need not run
    unpacking    scales of weights, converted in every call
    quantizing   activations quantized in PyTorch operators (`lab.observation.quantizing`)
    routing      tokens dealt to the experts of one device (`lab.observation.routing`)
    comparing    scores of an indexer that are all alike, and counting them (`lab.observation.selecting`)
    rest         of a layer, in seconds, where a table times whole layers, what of it dense attention skips, and the
                 host's time of a layer without a graph
    differences  of two times of one layer, with many and with few keys (`less_kv`), and `DIFFERENCE_LAUNCH`

`Collector` puts all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

from lab.observation.quantizing import eager_quantization
from lab.observation.routing import OPTIONS, PARTS, dealt
from lab.observation.selecting import counted
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Calibration, Match
from roofline.timing.kernels import Array, Parameters, launch_factor
from roofline.timing.kernels.common import unit_clocks, units
from roofline.timing.kernels.formats import numbers
from roofline.timing.kernels.ggml import PREFIX
from roofline.timing.kernels.mla import has_own_kernels
from roofline.timing.kernels.model import Term, Terms, smooth_maximum
from roofline.timing.kernels.moe import Loads, uniform
from roofline.validate.observation import Harness, Mask, Observation, Timed, allowed, replayed
from roofline.validate.tables.rows import CACHES, Measurements

DIFFERENCE_LAUNCH = 5e-6
"""Seconds that are added to a difference of two times, which has no launch."""

BLOCK = 128.0
"""Elements with one scale of a row of block-scaled activations; rows of a single block need no other layout."""

GRAPH = Parameter("graph", Unit.SECONDS, 1e-9, 80e-6, 4e-6, "a CUDA graph of one call, beside the kernel")
"""Attention benchmarks replay a graph of one call and measure 8 to 9 us, where a step of a served model takes about 4.5
(gpt-fast's and TensorRT-LLM's published decode steps)."""

GRAPHED = ("attention_prefill", "attention_decode", "mla_prefill")
"""Kinds of kernels to which it applies."""

SMALL = Parameter(
    "small", Unit.SECONDS, 1e-9, 400e-6, 1e-9, "small kernels of a layer, beside those of a served model", start=20e-6
)
"""Layers are timed as modules, which nothing compiles: rotations, scales and conversions are kernels of their own. In
vLLM's decode of DSA they take 120 to 190 us a layer, where a served GLM-5.2 of 78 layers has a TPOT of 10.3 ms."""

COMPARING = Parameter(
    "comparing", Unit.RATIO, 1e-4, 1.0, 0.03, "clocks of a unit to compare two scores of a selection that are alike"
)

COUNTING = Parameter(
    "counting", Unit.RATIO, 1e-3, 20, 1e-3, "clocks of a unit to count a score that is alike", start=1.0
)
"""TensorRT-LLM's tables of DSA's decode have 2.7 to 3.4 clocks, in three releases on both families, vLLM's 0.1 to 0.8;
prompts of DSA have them, too: between prompts of equal tokens a score takes vLLM 6.7 ps on B200 and 9.3 to 9.7 on H100
and H200, beyond what grows with the heads of the indexer, so by the clock and not by the bandwidth. Of a trained
indexer 64 rows of 9,295 scores take TensorRT-LLM 14 us (its tech blog 15), as the constants of selections have it
without this term; 3 clocks a score would be 14 us more."""

LAYERS = ("sparse_prefill", "sparse_decode")
"""Kinds of kernels whose tables are of whole layers; their `launch` is that within a step."""

KERNEL_SHARPNESS, LAYER_SHARPNESS = 8.0, 2.0
"""Exponents of the smooth maximum of the device's time and the host's: of a single GEMM, and of an eager layer, whose
long kernels come last, so that the device still has work when the host has launched all. That of layers was chosen on
DSA's prompts by version; with 8, SGLang's rows of up to 4,096 tokens are a quarter longer than predicted."""

PADDING = Parameter("padding", Unit.SECONDS, 1e-9, 30e-6, 1e-9, "kernels that pad m to a multiple of 4", start=1e-6)

SCALE_ROW, SCALE = 0.45e-9, 4e-12
"""Seconds to convert the scales of block-scaled weights in each call, for an output and for a scale, where a benchmark
does (`lab.tables.kernel_benchmarks.UNPACKED`): between fits to B200 and GB200, SGLang 0.5.9 and 0.5.10."""

NO_HOST = 1e-9
"""Host time that a benchmark with CUDA graphs does not wait for."""


def _host(high: float, start: float) -> Parameter:
    return Parameter("host", Unit.SECONDS, NO_HOST, high, NO_HOST, "host time to launch, without a graph", start=start)


HOST: Mapping[str, tuple[Parameter, ...]] = {
    "gemm": (
        _host(500e-6, 170e-6),
        Parameter("host_gap", Unit.SECONDS, 1e-9, 200e-6, 1e-9, "idle time between the kernels of a GEMM", start=10e-6),
    ),
    "mla_prefill": (_host(1e-3, 150e-6),),
}
"""Host time of tables without CUDA graphs, which hides the time of short kernels; of GEMMs that quantize.

It is that of vLLM's CUTLASS kernel called from an x86 host, which other calls are a multiple of (`called`).
"""

ONE_LAYER = ("launch", "few_tokens")
"""Constants of experts that tables of one number of experts do not tell from the time to sort pairs by expert."""

HIDDEN = ("launch", "odd_rows", "l2_share", "small")
"""Constants that the host time of a table without CUDA graphs hides: they stay as they start."""

DIFFERENCED = ("launch", "tile_prologue")
"""Constants that the difference of two times of a kernel does not tell: they stay as they start."""

BESIDE = {
    **dict.fromkeys(("graph", "called"), 1.0),
    **dict.fromkeys(("eager", "unpacked", "less_kv", "rest", "skipped", "host", "compared", *OPTIONS), 0.0),
}
"""Columns of what a table times beside the kernel, with what they are where they are absent."""


class Collected(Observation, frozen=True, kw_only=True):
    """Rows of a public table, routed as they were, with what was timed `beside` the kernel.

    `alone` rows are of benchmarks that replay or launch a single kernel; others are the product's own measurements.
    """

    alone: Mask
    beside: Mapping[str, Array]

    def column(self, name: str) -> Array:
        """A column of what was timed beside the kernel."""
        return self.beside.get(name, np.asarray(BESIDE[name]))


class Collector(Harness):
    """The harness of public tables; with `hosted` its constants include the host time of tables without graphs.

    With `together` constants are those of devices of several families, whose launches are at the reference clock.
    """

    def __init__(self, hosted: bool = False, together: bool = False) -> None:
        self.hosted, self.together = hosted, together

    def observe(self, rows: Any, hardware: Hardware, constants: Parameters) -> Timed:
        if self.together and "launch" in constants:
            constants = {**constants, "launch": launch_factor(hardware) * constants["launch"]}
        return super().observe(rows, hardware, constants)

    def parameters(self, op: str, format: str) -> tuple[Parameter, ...]:
        """The constants of the collector for one kind of kernel, beside those of the kernel."""
        found = [*super().parameters(op, format)]
        found += [GRAPH] if op in GRAPHED else []
        found += [SMALL] if op in LAYERS else []
        found += [COMPARING] if op == "sparse_prefill" else []
        found += [COUNTING] if op == "sparse_decode" or (op == "sparse_prefill" and format.startswith("dsa")) else []
        found += [PADDING] if (op, format) == ("gemm", "fp8_block") else []
        return (*found, *(host_of(op, format) if self.hosted else ()))

    def fixed(self, parts: Sequence[tuple[Measurements, Hardware]]) -> tuple[str, ...]:
        """The constants that stay as they start: what these rows do not tell, and what hardly any fit needs."""
        whole = ("wave_quantization",) if any(part.op.endswith("_prefill") for part, _ in parts) else ()
        if any(part.op in LAYERS for part, _ in parts):
            return (*(HIDDEN if self.hosted else ("launch",)),)
        layers = {count for part, _ in parts if part.op == "moe" for count in part.numbers("experts", 0.0).tolist()}
        if len(layers) == 1:
            return (*ONE_LAYER, GRAPH.name)
        if self.hosted:
            return (*HIDDEN, GRAPH.name, *whole)
        return (*(DIFFERENCED if all(are_differences(*part) for part in parts) else ()), GRAPH.name, *whole)

    def rows(self, part: Measurements) -> Collected:
        """The rows of a table as they were timed."""
        beside = {name: part.numbers(name, usual) for name, usual in BESIDE.items() if name in part.frame}
        found = Collected(**asdict(super().rows(part)), alone=~np.isin(part.texts("cache"), CACHES), beside=beside)
        if part.op != "moe":
            return found
        routing = part.frame["routing"].to_numpy(dtype=object) if "routing" in part.frame else "balanced"
        return replace(found, shape=_routed(found, routing))

    def constants(self, match: Match, calibration: Calibration, rows: Collected) -> Parameters:
        """The constants of a match, and those of how its rows were timed: host time is of the engine's own tables.

        Rows without CUDA graphs have that of the nearest benchmark without.
        """
        observed = dict(match.fit.observed)
        if "engine" in match.crossed:
            observed = {name: value for name, value in observed.items() if not name.startswith("host")}
        if np.any(rows.alone & (rows.column("graph") == 0.0)) and observed.get("host", 0.0) <= NO_HOST:
            key = match.fit.op, rows.kernel.format(rows.row)
            fits = (link.fits.get(key) for link in calibration.chain)
            near = next((fit for fit in fits if fit is not None and fit.observed.get("host", 0.0) > NO_HOST), match.fit)
            observed |= {name: value for name, value in near.observed.items() if name.startswith("host")}
        return {**match.fit.parameters, **self.known(match.fit.op, match.fit.format, observed)}

    def bound(self, rows: Any, hardware: Hardware, cold: bool = False) -> Array:
        """The bound of each row in seconds; of differences that of the keys beyond the fewer ones."""
        less = rows.column("less_kv")
        shape = replace(rows.shape, kv_len=rows.shape.kv_len - less) if np.any(less > 0) else rows.shape
        return allowed(rows, shape, hardware, cold)

    def seconds(self, terms: Terms, rows: Any, hardware: Hardware, constants: Parameters) -> Array:
        """What the timing of the kernels shows: their terms, and what the collector adds to them."""
        op, row, alone = rows.op, rows.row, rows.alone
        if op == "gemm" and np.any(rows.column("eager") > 0):
            terms = _eager(terms, rows, hardware)
        time, bare = terms.seconds, bool(np.any(np.asarray(rows.row.get("bare", 0.0))))
        if op == "mla_decode" and np.any(rows.column("less_kv") > 0):
            time = self._difference(time, rows, hardware, constants)
        time = time + rows.column("rest") + constants.get("small", 0.0)
        if np.any(rows.column("compared") > 0):
            time = time + constants.get("comparing", 0.0) * rows.column("compared") / unit_clocks(hardware)
        if op in LAYERS and constants.get("counting", 0.0) > 0:
            alike = counted(rows.shape, 1.0 if op == "sparse_prefill" else units(hardware))
            time = time + constants["counting"] * alike / unit_clocks(hardware)
        if op == "sparse_prefill":
            time = time - rows.shape.is_dense(constants) * rows.column("skipped")
        launched, host = alone & (rows.column("graph") == 0.0), constants.get("host", NO_HOST)
        if op == "gemm" and np.any(rows.column("unpacked") > 0):
            per_row = SCALE_ROW + SCALE * np.ceil(np.asarray(row["k"]) / BLOCK)
            time = time + rows.column("unpacked") * np.asarray(row["n"]) * per_row
        if op == "gemm" and not bare and numbers(rows.kernel.format(row)).quantizes:
            m, k = np.asarray(row["m"]), np.asarray(row["k"])
            time = time + constants.get("padding", 0.0) * (rows.warm & (m % 4 != 0) & (m > 1) & (k > BLOCK))
            gapped = launched | (alone & (host <= NO_HOST))
            time = time + np.where(gapped, constants.get("host_gap", 0.0), 0.0)
        if host > NO_HOST and np.any(launched) and not bare:
            time = np.where(launched, smooth_maximum(time, host * rows.column("called"), KERNEL_SHARPNESS), time)
        if np.any(rows.column("host") > 0):
            time = smooth_maximum(time, rows.column("host"), LAYER_SHARPNESS)
        return time + np.where(alone, constants.get("graph", 0.0), 0.0)

    def _difference(self, time: Array, rows: Any, hardware: Hardware, constants: Parameters) -> Array:
        """The time less that of the same layer with fewer keys, whose launch and plan cancel."""
        less = rows.column("less_kv")
        fewer = replace(rows.shape, kv_len=np.broadcast_to(np.maximum(less, 1.0), rows.shape.kv_len.shape))
        shape = replayed(rows, fewer, hardware, constants)
        short = rows.kernel.terms(shape, hardware, constants)
        return np.where(less > 0, DIFFERENCE_LAUNCH + time - constants["launch"] - short.overlapped, time)


def host_of(op: str, format: str) -> tuple[Parameter, ...]:
    """The constants of host time for one kind of kernel: of GEMMs those that quantize their activations."""
    if op == "gemm" and (format.startswith(PREFIX) or not numbers(format).quantizes):
        return ()
    return HOST.get(op, ())


def _eager(terms: Terms, rows: Collected, hardware: Hardware) -> Terms:
    """The terms with activations quantized in PyTorch operators, in the rows where they were."""
    row = rows.row
    eager = eager_quantization(np.asarray(row["m"]) * np.asarray(row["k"]), str(row["dtype"]), hardware)
    serial = tuple(
        Term(term.name, term.formula, np.where(rows.column("eager") > 0, eager, term.seconds))
        if term.name == "quantizing"
        else term
        for term in terms.serial
    )
    return replace(terms, serial=serial)


def _routed(rows: Collected, routing: Any) -> Any:
    """Experts with the loads of the busiest device in a benchmark's `routing`, one for all rows or one each."""
    shape = rows.shape
    routings = np.broadcast_to(np.asarray(routing), shape.tokens.shape)
    if set(routings.tolist()) <= {"uniform"}:
        return shape
    count = shape.tokens.size
    parts = max((1 if name == "uniform" else PARTS) for name in set(routings.tolist()))
    tokens, reached = np.empty((parts, count)), np.empty((parts, count))
    arriving, counted = shape.tokens.copy(), np.zeros(count, dtype=bool)
    options = {name: np.broadcast_to(rows.column(name), shape.tokens.shape) for name in OPTIONS}
    ep = np.ones(count) if shape.ep is None else shape.ep
    for name in set(routings.tolist()):
        own = routings == name
        if name == "uniform":
            loads: Loads = uniform((shape.tokens * shape.top_k / shape.experts)[own])
        else:
            tokens_, top_k, experts, devices = (size[own] for size in (shape.tokens, shape.top_k, shape.experts, ep))
            how = options["consecutive"][own], options["rerouted"][own]
            found = dealt(tokens_, top_k, experts, devices, str(name), *how)
            loads, counted[own] = found.loads, True
            arriving[own] = np.minimum(found.arriving, shape.tokens[own])
        tokens[:, own], reached[:, own] = loads
    arriving = np.where(options["arriving"] > 0, arriving, shape.tokens)
    here = (tokens * reached).mean(axis=0) * shape.local
    elsewhere = np.where(options["clamped"] > 0, np.maximum(arriving * shape.top_k - here, 0.0), 0.0)
    return replace(shape, loads=Loads(tokens, reached), arriving=arriving, elsewhere=elsewhere, counted=counted)


def are_differences(part: Measurements, hardware: Hardware) -> bool:
    """Whether rows are differences of two times of kernels that have as many parts for many keys as for few."""
    return has_own_kernels(hardware) and bool("less_kv" in part.frame and np.all(part.numbers("less_kv", 0.0) > 0.0))
