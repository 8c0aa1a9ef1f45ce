"""Quantisation of weights and activations, optionally with the KV cache, and models trained in one or two bits."""

from __future__ import annotations

from functools import partial
from typing import Any

from roofline.graph.rewrite import Adapter, Incoherence
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import Format, find_format, grouped
from roofline.techniques.base import (
    ACCELERATORS,
    GENERATIVE_SURVEY,
    UNVEILED,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    model_technique,
)
from roofline.techniques.changes import with_rewrite
from roofline.techniques.formats import SCALE_BITS, bits_parameter, cache_format, group_parameter, stored, with_formats

CAVEAT = (
    "Accuracy, the scales of activations and the kernels that quantise activations are not simulated. Hardware without"
    " the arithmetic computes in the next wider format, with no higher peak."
)
BOTH = "Fewer bytes of weights and activations; GEMMs at the low-precision peak where the hardware has it."
ONLINE = ("o_proj", "down_proj")
"""Linear layers whose inputs keep a Hadamard transform at run time; the others' are merged into weights."""
HADAMARD = "The Hadamard transforms of queries and keys before a low-bit KV cache are not counted. " + CAVEAT

_entry = partial(model_technique, price=Price.CALIBRATION, caveat=CAVEAT)


def _format(name: str, part: str, bits: int, group: int = 0, family: str = "int") -> Format | None:
    """The format of `bits`-bit elements in groups with a scale; None for 16 bits."""
    if bits >= 16:
        return None
    effective = grouped(bits, group, SCALE_BITS) if group else float(bits)
    return stored(f"{name}-{part}", effective, bits, family)


def _width(name: str, default: int, element: str) -> Parameter:
    return Parameter(name, default, f"bits of {element}, scales excluded (16: not quantised)", 2, 16)


def weight_activation(
    name: str,
    title: str,
    reference: str,
    weights: int,
    activations: int,
    kv: int = 16,
    *,
    group: int = 0,
    kv_group: int = 128,
    family: str = "int",
    effect: str = BOTH,
    rotated: tuple[str, ...] = (),
    **rest: Any,
) -> Technique:
    """An entry that quantises weights and activations, and the KV cache if `kv` is below 16 bits.

    `rotated`: linear layers whose input passes a Hadamard transform first.
    """

    def change(scenario: Scenario, values: Values) -> Scenario:
        if rotated:
            scenario = with_rewrite(scenario, name, Incoherence(rotated, outputs=False))
        return with_formats(
            scenario,
            name,
            _format(name, "weights", values["weights"], values["group"], family),
            _format(name, "activations", values["activations"], family=family),
            cache_format(name, values.get("kv", 16), kv_group),
        )

    parameters = (
        _width("weights", weights, "a weight"),
        _width("activations", activations, "an activation"),
        *([_width("kv", kv, "an element of the KV cache")] if kv < 16 else []),
        group_parameter(group),
    )
    return _entry(name, title, reference, effect, "weight format", change, *parameters, same_as="smoothquant", **rest)


def _named_formats(
    name: str, title: str, reference: str, weights: str, activations: str, effect: str = BOTH, **rest: Any
) -> Technique:
    """An entry that sets named formats and has no parameters."""

    def change(scenario: Scenario, _: Values) -> Scenario:
        return with_formats(scenario, name, find_format(weights), find_format(activations))

    return _entry(name, title, reference, effect, "weight format", change, **rest)


def _mixed_bits(fraction: float, low: float, high: float) -> float:
    """Mean bits where a fraction of the channels has `high` bits and the rest `low`."""
    return (1 - fraction) * low + fraction * high


def _llm_int8(scenario: Scenario, values: Values) -> Scenario:
    bits = _mixed_bits(values["outliers"], 8, 16)
    weights, inputs = (stored(f"llm-int8-{part}", bits, 8) for part in ("weights", "inputs"))
    return with_formats(scenario, "llm-int8", weights, inputs)


def _atom(scenario: Scenario, values: Values) -> Scenario:
    outliers = min(1.0, values["outliers"] / scenario.model.hidden)
    width, group = values["bits"], values["group"]
    bits = _mixed_bits(outliers, width, 8) + SCALE_BITS / group
    weights, inputs = (stored(f"atom-{part}", bits, width) for part in ("weights", "inputs"))
    return with_formats(scenario, "atom", weights, inputs, cache_format("atom", values["kv"], group))


def _zeroquant_v2(scenario: Scenario, values: Values) -> Scenario:
    scenario = with_formats(
        scenario,
        "zeroquant-v2",
        _format("zeroquant-v2", "weights", values["weights"], values["group"]),
        _format("zeroquant-v2", "activations", values["activations"]),
    )
    return with_rewrite(scenario, "zeroquant-v2", Adapter(values["rank"])) if values["rank"] else scenario


TECHNIQUES: tuple[Technique, ...] = (
    _entry(
        "llm-int8",
        "LLM.int8(): 8-bit GEMMs, outlier columns in fp16",
        "Dettmers et al. 2022, LLM.int8()",
        BOTH,
        "weight format",
        _llm_int8,
        Parameter("outliers", 0.001, "fraction of the input columns kept in fp16", 0, 1),
        price=Price.LOSSY,
        covers=("LLM.int8()",),
        published=(
            Published("memory halved, for models of up to 175B parameters", "8 bits", f"{UNVEILED}, section 3.1.2"),
        ),
        caveat="Kernels are those of bitsandbytes in 2022, which cost launches and traffic beside the GEMM: small"
        " models lose, and so does decode; accuracy is not simulated.",
    ),
    weight_activation(
        "zeroquant",
        "ZeroQuant: group-wise weights, token-wise activations",
        "Yao et al. 2022, ZeroQuant",
        8,
        8,
        covers=("ZeroQuant", "weight-activation quantization"),
        published=(Published("weights and activations in INT8", "", f"{UNVEILED}, section 3.1.2"),),
    ),
    _entry(
        "zeroquant-v2",
        "ZeroQuant-V2: fine-grained groups and low-rank compensation",
        "Yao et al. 2023, ZeroQuant-V2",
        "Fewer bytes of weights and activations, plus a low-rank GEMM beside every linear layer.",
        "weight format",
        _zeroquant_v2,
        _width("weights", 4, "a weight"),
        _width("activations", 8, "an activation"),
        group_parameter(128),
        Parameter("rank", 8, "rank of the compensation (0: none)", 0, 4096),
        covers=("ZeroQuant-V2",),
    ),
    weight_activation(
        "zeroquant-fp",
        "ZeroQuant-FP: FP4 weights, FP8 activations",
        "Wu et al. 2023, ZeroQuant-FP",
        4,
        8,
        group=256,
        family="fp",
        covers=("ZeroQuant-FP",),
        published=(
            Published(
                "FP8 activations lose less than INT8, FP4 weights about as much as INT4",
                "accuracy",
                f"{UNVEILED}, section 3.1.2",
            ),
        ),
    ),
    weight_activation(
        "smoothquant",
        "SmoothQuant: activation outliers scaled into the weights",
        "Xiao et al. 2022, SmoothQuant",
        8,
        8,
        covers=("SmoothQuant", "W8A8"),
    ),
    weight_activation(
        "rptq", "RPTQ: channels reordered into clusters of one range", "Yuan et al. 2023, RPTQ", 4, 4, covers=("RPTQ",)
    ),
    weight_activation(
        "olive",
        "OliVe: outliers use the bits of their neighbours",
        "Guo et al. 2023, OliVe",
        4,
        4,
        covers=("OliVe",),
        caveat="The encoding needs hardware decoders; without them a device converts the elements first, which is not"
        " counted. Accuracy is not simulated.",
    ),
    weight_activation(
        "outlier-suppression-plus",
        "Outlier Suppression+: channels shifted and scaled",
        "Wei et al. 2023, Outlier Suppression+",
        6,
        6,
        covers=("OS+", "Outlier Suppression+"),
    ),
    weight_activation(
        "omniquant",
        "OmniQuant: learned clipping and equivalent transformation",
        "Shao et al. 2023, OmniQuant",
        4,
        16,
        group=128,
        covers=("OmniQuant",),
        effect="Fewer bytes of weights, and low-precision GEMMs where activations are quantised too.",
    ),
    weight_activation(
        "qllm", "QLLM: outlier channels split and others merged", "Liu et al. 2023, QLLM", 4, 4, covers=("QLLM",)
    ),
    _entry(
        "atom",
        "Atom: 4 bits for all tensors, a few channels in 8",
        "Zhao et al. 2023, Atom",
        "Fewer bytes of weights, activations and KV cache; GEMMs at the INT4 peak where the hardware has it.",
        "weight format",
        _atom,
        bits_parameter(4, "weight or activation"),
        Parameter("group", 128, "elements that share a scale", 1, 65536),
        Parameter("outliers", 128, "input channels kept in 8 bits", 0, 65536),
        _width("kv", 4, "an element of the KV cache"),
        covers=("Atom", "W4A4"),
        caveat="The 8-bit channels are counted in bytes and multiplied at the 4-bit peak; accuracy is not simulated.",
    ),
    weight_activation(
        "quarot",
        "QuaRot: outliers removed by rotation, 4 bits for all tensors",
        "Ashkboos et al. 2024, QuaRot",
        4,
        4,
        4,
        covers=("QuaRot",),
        rotated=ONLINE,
        caveat=HADAMARD,
    ),
    weight_activation(
        "spinquant",
        "SpinQuant: learned rotations, 4 bits for all tensors",
        "Liu et al. 2024, SpinQuant",
        4,
        4,
        4,
        covers=("SpinQuant",),
        rotated=ONLINE,
        caveat="The same kernels as QuaRot, with learned rotations in the weights. " + HADAMARD,
    ),
    weight_activation(
        "llm-fp4", "LLM-FP4: 4-bit floating point", "Liu et al. 2023, LLM-FP4", 4, 4, family="fp", covers=("LLM-FP4",)
    ),
    weight_activation(
        "fptq", "FPTQ: 4-bit weights, 8-bit activations", "Li et al. 2023, FPTQ", 4, 8, group=128, covers=("FPTQ",)
    ),
    _named_formats(
        "fp8",
        "FP8 weights and activations",
        "Micikevicius et al. 2022, FP8 Formats",
        "fp8",
        "fp8",
        published=(
            Published(
                "60 times the FLOP/s of FP32",
                "H100",
                f"{GENERATIVE_SURVEY}, section 3.2.1; it sets sparse FP8 against FP32 without tensor cores, where dense"
                " FP8 has 30 times",
            ),
        ),
    ),
    _named_formats("nvfp4", "NVFP4 weights and activations", "NVIDIA 2024, NVFP4", "nvfp4", "nvfp4"),
    weight_activation(
        "llm-qat",
        "LLM-QAT: data-free quantisation-aware training of weights, activations and KV cache",
        "Liu et al. 2023, LLM-QAT",
        4,
        8,
        4,
        kv_group=0,
        price=Price.RETRAINING,
        covers=("LLM-QAT",),
        published=(Published("4-bit weights and KV cache", "", f"{UNVEILED}, section 3.1.2"),),
    ),
    _named_formats(
        "bitnet",
        "BitNet: 1-bit weights",
        "Wang et al. 2023, BitNet",
        "binary",
        "int8",
        "One sixteenth of the bytes of weights, and 8-bit activations at the INT8 peak.",
        price=Price.RETRAINING,
        covers=("BitNet",),
    ),
    _named_formats(
        "bitnet-b1.58",
        "BitNet b1.58: ternary weights",
        "Ma et al. 2024, BitNet b1.58",
        "ternary",
        "int8",
        "One eighth of the bytes of weights, four weights a byte, and 8-bit activations at the INT8 peak.",
        price=Price.RETRAINING,
        covers=("1.58-bit",),
        published=(Published("on par with full precision", "accuracy", f"{ACCELERATORS}, section 4.1"),),
    ),
)
