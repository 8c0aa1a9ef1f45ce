"""Weight-only quantisation: weights of few bits, dequantised to the format of the activations as they are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from roofline.core.errors import UnknownNameError
from roofline.graph.rewrite import Incoherence
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import grouped
from roofline.specs.schemes import GGUF
from roofline.techniques.base import (
    ACCELERATORS,
    SURVEY,
    UNVEILED,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    model_technique,
)
from roofline.techniques.changes import with_rewrite
from roofline.techniques.formats import SCALE_BITS, bits_parameter, group_bits, group_parameter, stored, with_formats

CAVEAT = (
    "Accuracy is not simulated. The bound assumes that dequantisation overlaps with the GEMM; the slower prefill of"
    " real kernels shows in expected times only."
)

TRANSFORMED = ("q_proj", "up_proj", "o_proj", "down_proj", "q_a_proj")
"""Layers of which the input is transformed; k_proj, v_proj and gate_proj read the same."""

FILE_TYPES = {scheme.name: scheme for scheme in GGUF}


def weight_only(
    name: str,
    title: str,
    reference: str,
    bits: Callable[[Values], float],
    *parameters: Parameter,
    price: Price = Price.CALIBRATION,
    caveat: str = CAVEAT,
    codes: bool = False,
    plain: bool = False,
    transforms: Incoherence | None = None,
    **rest: Any,
) -> Technique:
    """An entry that stores linear layers in `bits(values)` effective bits.

    `codes`: as indices into a table. `plain`: checkpoints are groups of integers with a scale, which any kernel for
    such integers runs. `transforms`: those around every linear layer at run time.
    """

    def change(scenario: Scenario, values: Values) -> Scenario:
        effective = bits(values)
        nominal = values.get("bits", effective)
        format = f"int{nominal:g}-{name}" if plain else name
        if transforms is not None:
            scenario = with_rewrite(scenario, name, transforms)
        return with_formats(scenario, name, weights=stored(format, effective, nominal, "code" if codes else "int"))

    effect = "Fewer bytes of weights to store and read; the same FLOPs, plus dequantisation of every weight."
    slot = "weight format"
    return model_technique(
        name, title, reference, effect, slot, change, *parameters, price=price, caveat=caveat, **rest
    )


def _grouped(
    name: str, title: str, reference: str, bits: int, group: int, plain: bool = False, **rest: Any
) -> Technique:
    """An entry with a scale and a zero point for each group of weights: one simulation, rounded in several ways."""
    parameters = (bits_parameter(bits), group_parameter(group))
    return weight_only(name, title, reference, group_bits, *parameters, plain=plain, same_as="gptq", **rest)


def _average(default: float, meaning: str) -> Parameter:
    return Parameter("bits", default, meaning, 1, 16)


def _outliers(default: float, note: str = "fp16 with a 16-bit index") -> Parameter:
    return Parameter("outliers", default, f"fraction of the weights kept in {note}", 0, 0.5)


def _bits(values: Values) -> float:
    return float(values["bits"])


def _with_outliers(values: Values, base: float | None = None, index: int = 16) -> float:
    """Effective bits where some weights are stored a second time, in fp16 with their index."""
    return float((values["bits"] if base is None else base) + values["outliers"] * (16 + index))


def _spqr(values: Values) -> float:
    """Scales and zero points are quantised in turn, in groups of groups with fp16 statistics (SpQR, section 4)."""
    width, group = values["bits"], values["group"]
    second = 4 * SCALE_BITS / (group * group)
    return _with_outliers(values, grouped(width, group, values["scale"], values["scale"]) + second)


def _squeezellm(values: Values) -> float:
    """The table of 2^bits values per output channel is omitted: 0.06 bits for 4,096 inputs at 4 bits."""
    return _with_outliers(values, index=32)


def _pb_llm(values: Values) -> float:
    return float(values["salient"] * values["salient_bits"] + (1 - values["salient"]))


def _file_type(scenario: Scenario, values: Values) -> Scenario:
    name = str(values["type"]).strip().lower()
    if name not in FILE_TYPES:
        raise UnknownNameError("GGUF file type", name, FILE_TYPES)
    return with_formats(scenario, "gguf", weights=FILE_TYPES[name])


TABLE_4 = Published(
    "decode 1.16 to 2.51 times faster, prefill 0.75 to 1.32 times",
    "Llama-2-7B and 13B, W4A16, one A100, batch 1 to 16, 128 to 2,048 tokens, TensorRT-LLM and LMDeploy; output length,"
    " memory size and baseline are not stated",
    f"{SURVEY}, Table 4; some rows are identical and some end-to-end cells lie outside prefill and decode",
)
CEILING = Published(
    "at most the ratio of source to target bits",
    "latency and throughput of weight-only quantisation",
    f"{ACCELERATORS}, section 4.1; the figure itself is lost",
)

TECHNIQUES: tuple[Technique, ...] = (
    weight_only(
        "rtn",
        "Round-to-nearest weights",
        "Yao et al. 2022, as the baseline of the literature",
        group_bits,
        bits_parameter(8),
        group_parameter(0),
        plain=True,
        same_as="gptq",
        price=Price.LOSSY,
        covers=("Round-to-Nearest", "W8A16", "weight-only quantization"),
        published=(CEILING,),
    ),
    _grouped(
        "gptq",
        "GPTQ: second-order rounding of weights",
        "Frantar et al. 2022, GPTQ",
        4,
        128,
        covers=("GPTQ", "OPTQ"),
        published=(Published("3 to 4 bits a weight", "accuracy kept", f"{UNVEILED}, section 3.1.2"),),
    ),
    _grouped(
        "awq",
        "AWQ: activation-aware scaling of salient weights",
        "Lin et al. 2023, AWQ",
        4,
        128,
        covers=("AWQ", "W4A16"),
        published=(TABLE_4,),
        caveat="The format of GPTQ, with the kernel that an engine has for AWQ checkpoints. " + CAVEAT,
    ),
    model_technique(
        "gguf",
        "GGUF file types: blocks of integers with scales, mixed by tensor",
        "llama.cpp, quantize; Kawrakow 2023, k-quants",
        "Fewer bytes of weights to store and read; integer arithmetic where llama.cpp has integer kernels.",
        "weight format",
        _file_type,
        Parameter("type", "q4_k_m", "file type in the spelling of llama-quantize: q8_0, q6_k, iq4_xs, ..."),
        price=Price.CALIBRATION,
        covers=("k-quants", "i-quants"),
        published=(
            Published(
                "decode 2.47 times as fast as F16 (71.9 against 29.2 tokens/s), prefill 0.89 times",
                "Q4_K_M, Llama-3.1-8B, 128 tokens after 512; the device is not stated",
                "llama.cpp, quantize, README at 311c2c9f0ebd",
            ),
        ),
        caveat="Types of four bits and fewer use the tensor mix of an importance matrix, which needs calibration data."
        " Accuracy is not simulated.",
    ),
    weight_only(
        "lut-gemm",
        "LUT-GEMM: binary-coded weights multiplied through lookup tables",
        "Park et al. 2022, LUT-GEMM",
        lambda values: grouped(values["bits"], values["group"], SCALE_BITS * values["bits"]),
        bits_parameter(4),
        Parameter("group", 128, "weights that share the scales of their binary codes", 1, 65536),
        price=Price.LOSSY,
        codes=True,
        covers=("LUT-GEMM",),
        caveat="Table lookups are counted as dequantisation and multiplication; accuracy is not simulated.",
    ),
    weight_only(
        "owq",
        "OWQ: weak columns in fp16",
        "Lee et al. 2023, OWQ",
        lambda values: values["bits"] + values["extra"],
        bits_parameter(3),
        Parameter("extra", 0.1, "additional bits a weight for the fp16 columns and their indices", 0, 13),
        covers=("OWQ",),
    ),
    weight_only(
        "spqr",
        "SpQR: small groups, quantised scales, sparse outliers",
        "Dettmers et al. 2023, SpQR",
        _spqr,
        bits_parameter(3),
        Parameter("group", 16, "weights in a group, and groups in a group of scales", 1, 4096),
        Parameter("scale", 3, "bits of a quantised scale or zero point", 1, 16),
        _outliers(0.01),
        covers=("SpQR",),
        published=(Published("outliers in high precision, the rest in 3 to 4 bits", "", f"{UNVEILED}, section 3.1.2"),),
    ),
    weight_only(
        "squeezellm",
        "SqueezeLLM: non-uniform codes and sparse outliers",
        "Kim et al. 2023, SqueezeLLM",
        _squeezellm,
        bits_parameter(4),
        _outliers(0.0045, "fp16 with a 32-bit column index"),
        codes=True,
        covers=("SqueezeLLM",),
    ),
    weight_only(
        "quip",
        "QuIP: incoherence processing, then adaptive rounding",
        "Chee et al. 2023, QuIP",
        _bits,
        bits_parameter(2),
        transforms=Incoherence(TRANSFORMED, outputs=True, kronecker=True),
        covers=("QuIP",),
        caveat="Inputs and outputs of each layer pass products of two orthogonal matrices; layers with one input share"
        " its transform. Accuracy is not simulated.",
    ),
    weight_only(
        "quip-sharp",
        "QuIP#: incoherence by Hadamard transforms, lattice codes",
        "Tseng et al. 2024, QuIP#",
        _bits,
        bits_parameter(2),
        codes=True,
        transforms=Incoherence(TRANSFORMED, outputs=True),
        covers=("QuIP#",),
        caveat="Inputs and outputs of each layer pass Hadamard transforms; layers with one input share its transform."
        " The codebook of 1 KiB stays in the L1. Accuracy is not simulated.",
    ),
    weight_only(
        "aqlm",
        "AQLM: sums of learned codes for groups of weights",
        "Egiazarian et al. 2024, AQLM",
        lambda values: values["codebooks"] * values["code_bits"] / values["group"],
        Parameter("codebooks", 1, "codes added up for a group", 1, 16),
        Parameter("code_bits", 16, "bits of a code", 1, 16),
        Parameter("group", 8, "weights of a group", 1, 64),
        codes=True,
        covers=("AQLM", "PV-Tuning"),
        published=(
            Published(
                "decode 1.29 times as fast on RTX 3090 Ti, 0.69 times on A100",
                "LLaMA-2-7B, one codebook of 16 bits, batch 1",
                "Vahe1994/AQLM, issue 133",
            ),
        ),
        caveat="Expected times include the lookups of one codebook, the bound does not; PV-Tuning fine-tunes the same"
        " format. Accuracy is not simulated.",
    ),
    weight_only(
        "finequant",
        "FineQuant: adaptive fine-grained groups",
        "Kim et al. 2023, FineQuant",
        partial(group_bits, zero=0),
        bits_parameter(4),
        group_parameter(64),
        plain=True,
        same_as="gptq",
        price=Price.LOSSY,
        covers=("FineQuant",),
    ),
    weight_only(
        "llm-mq",
        "LLM-MQ: bit widths by layer, sparse fp16 outliers",
        "Li et al. 2023, LLM-MQ",
        _with_outliers,
        _average(3.0, "average bits of a dense weight, chosen by layer (an example)"),
        _outliers(0.005, "fp16 with a 16-bit index (an example)"),
        covers=("LLM-MQ",),
    ),
    _grouped(
        "affinequant",
        "AffineQuant: affine transformations before rounding",
        "Ma et al. 2024, AffineQuant",
        4,
        128,
        plain=True,
        covers=("AffineQuant",),
        caveat="The transformations merge into weights and norms, and integers in groups remain. " + CAVEAT,
    ),
    weight_only(
        "quantease",
        "QuantEase: coordinate descent on the rounding",
        "Behdin et al. 2023, QuantEase",
        _with_outliers,
        bits_parameter(3),
        _outliers(0.0, "fp16 with a 16-bit index, in the outlier-aware variant"),
        covers=("QuantEase",),
    ),
    _grouped(
        "norm-tweaking",
        "Norm Tweaking: norms adjusted to quantised weights",
        "Li et al. 2023, Norm Tweaking",
        2,
        64,
        plain=True,
        covers=("Norm Tweaking",),
        caveat="The adjusted norms cost nothing at inference; the bits are those of the quantisation beneath. Accuracy"
        " is not simulated.",
    ),
    weight_only(
        "billm",
        "BiLLM: residual binarisation of salient weights, split binarisation of the rest",
        "Huang et al. 2024, BiLLM",
        _bits,
        _average(1.08, "average bits of a weight, as the paper counts them"),
        covers=("BiLLM",),
        published=(Published("1.08 bits on average", "weights", f"{SURVEY}, section 5.2.1"),),
        caveat="The paper's average excludes scales and the map of salient columns; accuracy is not simulated.",
    ),
    weight_only(
        "pb-llm",
        "PB-LLM: salient weights in 8 bits, the others binary",
        "Shang et al. 2023, PB-LLM",
        _pb_llm,
        Parameter("salient", 0.1, "fraction of the weights that are salient", 0, 1),
        Parameter("salient_bits", 8, "bits of a salient weight", 1, 16),
        covers=("PB-LLM",),
        published=(Published("below 2 bits a weight", "", f"{UNVEILED}, section 3.1.2"),),
        caveat="The map of salient weights is not counted, as in the paper; accuracy is not simulated.",
    ),
    weight_only(
        "tsld",
        "TSLD: ternary weights trained with token-scaled distillation",
        "Kim et al. 2023, TSLD",
        lambda _: 2.0,
        price=Price.RETRAINING,
        covers=("TSLD",),
        caveat="A ternary weight is stored in 2 bits, without transforms or codebooks; accuracy is not simulated.",
    ),
)
