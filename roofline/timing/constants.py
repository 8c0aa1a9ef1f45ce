"""Constants of the kernels that an engine launches: those of the nearest measured kernel of the calibration's chain.

A kernel is a row of the measurement schema where the schema has one (`roofline.timing.kernels.shapes`). Engines have
kernels of their own for weight-only GEMMs, all-reduces, the experts of a rank and quantized inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.roof import Placement
from roofline.core.errors import UnknownNameError
from roofline.core.registry import cached
from roofline.graph.op import Kind, Op
from roofline.graph.parallel import Collective
from roofline.specs.engine import GATED_DELTA_RULE_KERNELS, Engine
from roofline.specs.hardware import Hardware
from roofline.specs.weight_only import METHODS, WeightOnlyKernel, kernel_of
from roofline.specs.weight_only import UNMEASURED as UNMEASURED_KERNEL
from roofline.timing.calibration import Calibration, Fit, Match
from roofline.timing.collectives import of_two_peers, on_host
from roofline.timing.exchanges import GATHERED, SUMMED, exchange_match, exchange_of, exchange_shape
from roofline.timing.intervals.kernels import UNMEASURED, unmeasured
from roofline.timing.intervals.levels import crossing_spread
from roofline.timing.kernels import kernel
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.kernels.formats import numbers
from roofline.timing.kernels.ggml import PREFIX
from roofline.timing.kernels.moe import VECTORS
from roofline.timing.kernels.shapes import KernelShape, kernel_shape, of_ggml, weight_format
from roofline.timing.variants import Variant, costs, variants_of

ATTENTION = ("attention_prefill", "attention_decode")
"""The measurement schema's names of the two attention kernels."""

KERNELS_OF: Mapping[str, tuple[str, ...]] = {
    "attention": ATTENTION,
    "sparse_attention": ("sparse_prefill", "sparse_decode"),
    "gated_delta_rule": ("gated_delta_rule", "state_update"),
    "kimi_delta": ("kimi_delta", "state_update"),
    "convolution": ("convolution_prefill", "convolution_decode"),
}
"""The kernels of prompts and of decode, by the op of a shape that has both."""

STATES: Mapping[str, str] = {"gated_delta_rule": "delta_net", "kimi_delta": "kimi_delta"}
"""The variant of the kernel that updates states in decode, by the op of a shape."""

ENCODER = "encoder_attention"
"""The kernel of attention in both directions."""

WEIGHT_ONLY_DTYPES = ("int4_wo", "w4a16_mxfp4")
"""The measurement schema's names of weight-only GEMMs, of integers and of codes."""

WEIGHT_ONLY_VENDORS = ("NVIDIA",)
"""Vendors of hardware that the weight-only kernels are written for; elsewhere the weights' upcast is added."""

QUANTIZED, UNFUSED = ("fp8", "nvfp4"), ("o_proj",)
"""Formats of GEMMs whose inputs norms and activations can write, and those whose input is of attention's kernel."""

LAUNCH = 2e-6
"""Seconds: launch of a small kernel in a step, such as the one that quantizes the activations of an FP8 GEMM.

GEMMs of at most 16 rows and 2M weights take that much longer in FP8 than in BF16, in public tables with CUDA graphs of
vLLM 0.24 and SGLang (medians): -0.2 to 2.4 us on H100, H200 and L40S, 2.2 to 5.1 us on B200, GB200 and RTX PRO 6000.
"""

MEASURED_CACHES = ("bf16", "fp16", "fp32", "fp8")
"""Formats of the KV cache that measured attention kernels read, beside that of the queries."""

SAME_KERNELS: Mapping[str, tuple[str, ...]] = {"fp32": ("bf16",), "tf32": ("bf16",), "fp16": ("bf16",)}
"""Formats whose kernels are those of another format, from the same libraries."""

SAME_BYTES = 0.15
"""Relative difference of stored bytes up to which weights have a measured format: zero points or other groups."""


class Choices(Struct, frozen=True, cache_hash=True):
    """What decides the constants of an engine's kernels, beside their operators.

    `weight_only` are its kernels by weight format, `all_reduces` its own all-reduce kernels by reach, `also` the
    engines that further kernels of it were measured with, by op of the schema; `gated_delta_rule` is its choice where
    there are several kernels. `on_ggml`: GEMMs and attention are llama.cpp's on a CPU; `quantized`: the kernels before
    GEMMs quantize their inputs. `told` are the kernels that it was told to run, by op and format;
    `vector_experts`: those of few tokens are matrices times vectors. `exchange`: how expert ranks exchange tokens.
    """

    hardware: Hardware
    calibration: Calibration
    weight_only: tuple[tuple[str, str], ...]
    all_reduces: tuple[tuple[int, str], ...]
    also: tuple[tuple[str, str], ...]
    gated_delta_rule: str
    on_ggml: bool
    quantized: bool
    exchange: str
    told: tuple[tuple[str, str], ...] = ()
    vector_experts: bool = False


def choices_of(placement: Placement, engine: Engine, calibration: Calibration, prompts: bool = False) -> Choices:
    """The choices of an engine for a placed graph; `prompts`: of a pass that computes prompts."""
    hardware = placement.hardware
    return Choices(
        hardware,
        calibration,
        tuple(engine.weight_only.items()) if hardware.vendor in WEIGHT_ONLY_VENDORS else (),
        _own_all_reduces(placement, engine),
        tuple(engine.also.get(hardware.family, {}).items()),
        engine.gated_delta_rule,
        not engine.uses_calibrated_kernels(hardware),
        "quantization" in engine.fusions,
        exchange_of(placement, engine, prompts),
        tuple(engine.told.items()),
        engine.vector_experts,
    )


def _own_all_reduces(placement: Placement, engine: Engine) -> tuple[tuple[int, str], ...]:
    """The engine's own kernel for all-reduces over the links of a node, by their reach."""
    if not engine.all_reduce:
        return ()
    links = (op.link for section in placement.network.sections for op in section.ops if op.link is not None)
    reaches = {link.reach for link in links if link.collective is Collective.ALL_REDUCE}
    spans = {reach: placement.nodes.span(reach) for reach in sorted(reaches)}
    kinds = {
        reach: placement.hardware.link(span).kind.split()[0] for reach, span in spans.items() if not span.across_nodes
    }
    return tuple((reach, engine.all_reduce[kind]) for reach, kind in kinds.items() if kind in engine.all_reduce)


class Constants(NamedTuple):
    """The constants of a kernel: the fields of these names of `roofline.timing.launches.LaunchedKernel`."""

    shape: KernelShape | None
    matches: Mapping[str, Match]
    others: Mapping[str, Match]
    upcasts_cache: bool


@cached(maxsize=1 << 14)
def constants_of(ops: tuple[Op, ...], arithmetic: str | None, choices: Choices, ranks: float = 1.0) -> Constants:
    """The constants of a kernel of these operators, of a layer whose experts so many ranks divide."""
    hardware, calibration = choices.hardware, choices.calibration
    caches = (tensor.format.arithmetic for op in ops if op.kind is Kind.ATTENTION for tensor in op.operands[1:2])
    upcasts = not choices.on_ggml and any(name.startswith("fp") and not hardware.supports(name) for name in caches)
    exchanged = None if ops[0].link is None else exchange_shape(ops[0].link, choices.exchange)
    if exchanged is not None and exchanged.op != "collective":
        found = exchange_match(exchanged, choices.exchange, calibration)
        return Constants(
            None if found is None else exchanged, {} if found is None else {exchanged.op: found}, {}, False
        )
    shape = exchanged or _shape_of(ops, arithmetic, choices)
    if shape is None:
        return Constants(None, {}, {}, upcasts)
    shape, matches = _nearest(ops, shape, choices)
    others = _others(shape, choices)
    if ranks != 1.0:
        matches, others = (
            {op: _of_ranks(match, choices) for op, match in found.items()} for found in (matches, others)
        )
        if shape.op == "moe" and choices.exchange in ("", GATHERED, SUMMED):
            shape = replace(shape, texts={**shape.texts, "among": ranks})
    for op, name in choices.also:
        match = calibration.of_engine(name).find(op, kernel(op).format(shape.texts)) if op in matches else None
        others = others if match is None or op in others else {**others, op: match}
    written = shape.op == "gemm" and shape.texts["dtype"] in QUANTIZED and ops[0].name not in UNFUSED
    if choices.quantized and written:  # a norm or an activation writes the quantized input
        shape = replace(shape, texts={**shape.texts, "bare": 1.0})
        matches, others = ({op: _launched_less(match) for op, match in found.items()} for found in (matches, others))
    link = ops[0].link
    own = (
        dict(choices.all_reduces).get(link.reach)
        if link is not None and link.collective is Collective.ALL_REDUCE
        else None
    )
    if own is not None and link is not None and hardware.over_host(link.reach):
        kernel_of_engine = calibration.find(shape.op, own)
        matches = {op: of_two_peers(kernel_of_engine, match, hardware, link.ranks) for op, match in matches.items()}
    elif own is not None:
        others = {op: match for op in matches if (match := calibration.find(op, own)) is not None}
    return Constants(shape if matches else None, matches, others, upcasts)


def _shape_of(ops: tuple[Op, ...], arithmetic: str | None, choices: Choices) -> KernelShape | None:
    """The row of the measurement schema; hardware without the engine's variant of a kernel runs the other one."""
    shape = kernel_shape(ops, arithmetic)
    if choices.on_ggml and shape is not None and arithmetic is not None:
        shape = of_ggml(shape, ops, arithmetic)
    if shape is not None and shape.op == "moe" and choices.vector_experts:
        return replace(shape, texts={**shape.texts, "tiles": VECTORS})
    if shape is None or shape.op not in STATES:
        return shape
    match = choices.calibration.find(shape.op, choices.gated_delta_rule)
    if match is None or "engine" in match.crossed:
        found = (choices.calibration.find(shape.op, variant) for variant in GATED_DELTA_RULE_KERNELS)
        match = next((other for other in found if other and "engine" not in other.crossed), match)
    variant = match.fit.format if match else choices.gated_delta_rule
    return replace(shape, texts={**shape.texts, "variant": variant})


def _nearest(ops: tuple[Op, ...], shape: KernelShape, choices: Choices) -> tuple[KernelShape, Mapping[str, Match]]:
    """The nearest constants by op of the schema, on the host's links and of the weights' format, and their row."""
    hardware, calibration, link = choices.hardware, choices.calibration, ops[0].link
    shape, matches = _matches(shape, choices)
    if shape.op == "collective" and link is not None and hardware.over_host(link.reach):
        matches = {op: on_host(match, hardware) for op, match in matches.items()}
    chosen = _weight_only(ops, shape, dict(choices.weight_only), hardware)
    if chosen is None:
        kept = not choices.weight_only or _converted_once(ops, shape, hardware)
        return shape, {op: _of_format(match, ops, shape, kept) for op, match in matches.items()}
    if chosen.name in METHODS and (plain := calibration.find(shape.op, "bf16")) is not None:
        matches = {shape.op: plain}
    shape = replace(shape, texts={**shape.texts, "weight_only": chosen.name})
    return shape, {op: _of_weight_only(match, chosen, hardware) for op, match in matches.items()}


def _launched_less(match: Match) -> Match:
    """The constants of a GEMM without the kernel that quantizes its input."""
    launch = match.fit.parameters["launch"]
    parameters = {**match.fit.parameters, "launch": max(launch - LAUNCH, launch / 4)}
    return replace(match, fit=replace(match.fit, parameters=parameters))


def _weight_only(
    ops: tuple[Op, ...], shape: KernelShape | None, kernels: Mapping[str, str], hardware: Hardware
) -> WeightOnlyKernel | None:
    """The weight-only kernel of a GEMM, of an engine's `kernels` by format; None for other kernels.

    `METHODS` multiply in another arithmetic than 16 bits.
    """
    if shape is None or shape.op != "gemm" or not kernels:
        return None
    if _converted_once(ops, shape, hardware):
        return None
    chosen = kernel_of(weight_format(ops).name, kernels, hardware.family)
    return chosen if chosen.name in METHODS or shape.texts.get("dtype") in WEIGHT_ONLY_DTYPES else None


def _converted_once(ops: Sequence[Op], shape: KernelShape, hardware: Hardware) -> bool:
    """Whether engines convert the weights of a 16-bit layer as they load them: those that the hardware multiplies."""
    if shape.op != "gemm" or shape.texts.get("dtype") not in WEIGHT_ONLY_DTYPES:
        return False
    arithmetic = weight_format(ops).arithmetic
    return arithmetic.startswith("fp") and hardware.supports(arithmetic)


def _of_weight_only(match: Match, chosen: WeightOnlyKernel, hardware: Hardware) -> Match:
    """The constants of the 16-bit GEMM that a weight-only kernel's are relative to, with its source and interval."""
    fitted, measured = hardware.family in chosen.fitted, chosen.name != UNMEASURED_KERNEL
    basis = match.basis if fitted else "pooled"
    source = f"{chosen.source}; the 16-bit GEMM: {match.source}"
    widening = match.widening * (1.0 if fitted else chosen.widening)
    spread = crossing_spread(
        match.fit.op, match.fit.format, match.crossed
    )  # the kernel's own model takes the place of a related format
    found = replace(match, source=source, basis=basis, widening=widening, spread=spread)
    return found if measured else _unmeasured(found)


def _of_format(match: Match, ops: Sequence[Op], shape: KernelShape, kept: bool) -> Match:
    """The constants of a kernel; those of another format say so, unless they are `kept` for all weights.

    The interval is that of unmeasured kernels where none reads a KV cache or weights of the stored bytes.
    """
    if shape.op in (*ATTENTION, "attention", "mla_decode"):
        cache, query = ops[0].operands[1].format, ops[0].operands[0].format
        return match if cache.name in (query.name, *MEASURED_CACHES) else _unmeasured(match, f"a {cache.name} KV cache")
    if kept or shape.op not in ("gemm", "moe"):
        return match
    dtype, name = str(shape.texts["dtype"]), weight_format(ops).name
    stored = float(shape.texts.get("weight_bytes", numbers(dtype).bytes))
    if abs(stored / numbers(dtype).bytes - 1) > SAME_BYTES:
        return _unmeasured(match, f"{name} weights")
    related = match.fit.format not in (dtype, *SAME_KERNELS.get(dtype, ()))
    return replace(match, basis="unmeasured", source=_without(f"{name} weights", match)) if related else match


def _unmeasured(match: Match, what: str = "") -> Match:
    """The constants for a kernel without measurements, with at least the interval of such kernels."""
    source = _without(what, match) if what else match.source
    return replace(
        match, fit=replace(match.fit, residuals=unmeasured(match.fit.residuals)), basis="unmeasured", source=source
    )


def _without(what: str, match: Match) -> str:
    return f"no kernel for {what} was measured: constants of {match.fit.format}, {match.source}"


def _others(shape: KernelShape, choices: Choices) -> Mapping[str, Match]:
    """The engine's second kernel for experts of the same format, where it was measured."""
    for variant in _variants("moe", str(shape.texts.get("dtype")), choices) if shape.op == "moe" else ():
        match = choices.calibration.find("moe", variant.beside) if variant.beside else None
        if match is not None and match.fit.format == variant.beside and "engine" not in match.crossed:
            return {"moe": match}
    return {}


def _of_ranks(match: Match, choices: Choices) -> Match:
    """The constants of the kernel for expert ranks, where it was measured as near as that of all experts."""
    for variant in _variants(match.fit.op, match.fit.format, choices):
        found = choices.calibration.find(match.fit.op, variant.kernel) if variant.ranks else None
        if found is not None and found.fit.format == variant.kernel and found.place == match.place:
            return _instead(found, match.fit.op, match.fit.format, choices)
    return match


def _variants(op: str, format: str, choices: Choices) -> tuple[Variant, ...]:
    """The variants that the engine whose kernels were measured runs; kernels of all engines come before its own."""
    measured = next((link for link in choices.calibration.chain if link.engine), choices.calibration)
    return variants_of(op, format, measured.engine, measured.version, choices.hardware)


def _matches(shape: KernelShape, choices: Choices) -> tuple[KernelShape, Mapping[str, Match]]:
    """The constants of a kernel, by op of the schema, and its shape with the columns of the engine's variant."""
    hardware, calibration = choices.hardware, choices.calibration
    if shape.op in PASSES:
        return shape, {shape.op: calibration.find(shape.op, "any") or _default_pass(shape.op)}
    found = {}
    if shape.op == "attention" and not shape.texts.get("causal", 1.0):
        encoder = calibration.find_for(ENCODER, kernel(ENCODER).format(shape.texts), hardware)
        if encoder is not None and "pooled" not in encoder.crossed and _computes(shape, hardware):
            return shape, {ENCODER: encoder}
    for op in KERNELS_OF.get(shape.op, (shape.op,)):
        format = _measured_format(op, shape, choices)
        variant = _of_variant(op, format, choices)
        match = variant[0] if variant else _found(op, format, choices)
        if match is None or (op == "moe" and shape.texts["dtype"] == "fp32" and match.basis == "pooled"):
            continue  # experts on vector units: the pooled constants are those of grouped GEMMs on matrix units
        if _computes(shape, hardware):
            found[op] = _instead(match, op, format, choices)
            shape = shape if variant is None else _of_kernel(shape, *variant)
    return shape, found


def _instead(match: Match, op: str, format: str, choices: Choices) -> Match:
    """The constants for a kernel that runs in place of the tuned ones that they are of, where nobody measured it."""
    named = (row.instead for row in _variants(op, format, choices) if row.instead)
    name = dict(choices.told).get(op) or next(named, "")
    if not name:
        return match
    if name not in costs():
        raise UnknownNameError("kernel in place of tuned ones", name, costs())
    source = f"no kernel of {name} was measured: constants of {match.source}"
    return replace(match, cost=costs()[name].times, basis="unmeasured", source=source)


def _of_kernel(shape: KernelShape, match: Match, columns: Mapping[str, float]) -> KernelShape:
    """The shape with the columns of a variant; experts with its format, which says what its instructions reach."""
    named = {"dtype": match.fit.format} if shape.op == "moe" else {}
    return replace(shape, texts={**shape.texts, **named, **columns}) if named or columns else shape


def _found(op: str, format: str, choices: Choices) -> Match | None:
    """The constants of a kernel; llama.cpp's experts on a CPU have those of its GEMMs."""
    of_gemm = op == "moe" and format.startswith(PREFIX)
    found = choices.calibration.find_for("gemm" if of_gemm else op, format, choices.hardware)
    return replace(found, fit=replace(found.fit, op=op, ranges={})) if of_gemm and found is not None else found


def _of_variant(op: str, format: str, choices: Choices) -> tuple[Match, Mapping[str, float]] | None:
    """The constants of the kernel of the engine's release, where it was measured, and its columns.

    A kernel that is so many times `slower` than a related one was not measured, and has that one's.
    """
    told = dict(choices.told).get(f"{op} {format}")
    if told is not None:
        match = choices.calibration.find(op, told)
        return None if match is None else (match, {})
    for variant in _variants(op, format, choices):
        if not variant.kernel or variant.ranks:
            continue
        named = variant.named(format)
        found = choices.calibration.find_for(op, named, choices.hardware)
        if found is not None and (found.fit.format == named or "slower" in variant.columns):
            return found, variant.columns
    return None


def _measured_format(op: str, shape: KernelShape, choices: Choices) -> str:
    """The format whose constants a kernel has; 16 bits for experts that convert weights, unmeasured there.

    The kernels of NVIDIA's GPUs (Marlin) are slow in prefill by what limits them on their multiprocessors.
    """
    if op == "state_update":
        return STATES[shape.op]
    format = kernel(op).format(shape.texts)
    if op != "moe" or format not in WEIGHT_ONLY_DTYPES or choices.hardware.vendor in WEIGHT_ONLY_VENDORS:
        return format
    found = choices.calibration.find(op, format)
    own = found is not None and found.fit.format == format and "pooled" not in found.crossed
    return format if own else "bf16"


def _computes(shape: KernelShape, hardware: Hardware) -> bool:
    """Whether the hardware has a peak for the kernel's arithmetic."""
    dtype = str(shape.texts.get("dtype", "any"))
    if dtype == "any":
        return True
    form = numbers(dtype)
    return hardware.supports(str(shape.texts.get("arithmetic", form.arithmetic)))


@cached(maxsize=16)
def _default_pass(op: str) -> Match:
    """Default constants of elementwise kernels without measurements."""
    constants = {parameter.name: parameter.default for parameter in kernel(op).parameters("any")}
    fit = Fit(op, "any", constants, {"all": UNMEASURED})
    return Match(fit, "pooled", "default", "launch and bandwidth typical of small kernels", 1.0)
