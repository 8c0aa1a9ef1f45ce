"""Weight-only quantisation: weights are stored in few bits and decoded to the activations' format as they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.core.errors import UnknownNameError
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import grouped
from roofline.specs.schemes import GGUF
from roofline.techniques.base import Level, Parameter, Price, Published, Technique, Values
from roofline.techniques.formats import SCALE_BITS, bits_parameter, group_bits, group_parameter, stored, with_formats

CAVEAT = (
    "Accuracy is not simulated, and the bound takes decoding to overlap with the product: the slower prefill that"
    " kernels show needs calibrated times."
)
FEWER_BYTES = "Fewer bytes of weights to store and to read, the same FLOPs and a decoding of every weight."
INDEX_BITS = 16

FILE_TYPES = {scheme.name: scheme for scheme in GGUF}


def weight_only(
    name: str,
    title: str,
    reference: str,
    bits: Callable[[Values], float],
    *parameters: Parameter,
    price: Price = Price.CALIBRATION,
    effect: str = FEWER_BYTES,
    caveat: str = CAVEAT,
    codes: bool = False,
    **rest: Any,
) -> Technique:
    """An entry that stores linear layers in `bits(values)` effective bits; `codes`: as indices of a table."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        effective = bits(values)
        nominal = values.get("bits", effective)
        return with_formats(scenario, name, weights=stored(name, effective, nominal, "code" if codes else "int"))

    return Technique(
        name=name,
        title=title,
        level=Level.MODEL,
        price=price,
        reference=reference,
        effect=effect,
        slot="weight format",
        change=change,
        parameters=parameters,
        caveat=caveat,
        **rest,
    )


def _average(default: float, meaning: str) -> Parameter:
    return Parameter("bits", default, meaning, 1, 16)


def _outliers(default: float, meaning: str) -> Parameter:
    return Parameter("outliers", default, meaning, 0, 0.5)


def _sparse_outliers(base: float, values: Values, index: int = INDEX_BITS) -> float:
    """Bits with some weights stored a second time, in fp16 with their index."""
    return float(base + values["outliers"] * (16 + index))


def _plain(values: Values) -> float:
    return float(values["bits"])


def _spqr(values: Values) -> float:
    """Scales and zero points are quantised themselves, in groups of groups with fp16 statistics (SpQR, section 4)."""
    width, group = values["bits"], values["group"]
    second = 4 * SCALE_BITS / (group * group)
    return _sparse_outliers(grouped(width, group, values["scale"], values["scale"]) + second, values)


def _squeezellm(values: Values) -> float:
    """A table of 2^bits values an output channel is left out: 0.06 bits for 4,096 inputs at 4 bits."""
    return _sparse_outliers(values["bits"], values, 32)


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
    "Zhou et al. 2024, Table 4; some rows are identical and some end-to-end cells lie outside prefill and decode",
)
CEILING = Published(
    "at most the ratio of source to target bits",
    "latency and throughput of weight-only quantisation",
    "Park et al. 2024, Inference Optimization on AI Accelerators, section 4.1; the figure itself is lost",
)

TECHNIQUES: tuple[Technique, ...] = (
    weight_only(
        "rtn",
        "Round-to-nearest weights",
        "Yao et al. 2022, as the baseline of the literature",
        lambda values: group_bits(values),
        bits_parameter(8),
        group_parameter(0),
        price=Price.LOSSY,
        covers=("Round-to-Nearest", "W8A16", "weight-only quantization"),
        published=(CEILING,),
    ),
    weight_only(
        "gptq",
        "GPTQ: second-order rounding of weights",
        "Frantar et al. 2022, GPTQ",
        group_bits,
        bits_parameter(4),
        group_parameter(128),
        covers=("GPTQ", "OPTQ"),
        published=(
            Published(
                "3 to 4 bits a weight", "accuracy kept", "Yuan et al. 2024, LLM Inference Unveiled, section 3.1.2"
            ),
        ),
    ),
    weight_only(
        "awq",
        "AWQ: activation-aware scaling of salient weights",
        "Lin et al. 2023, AWQ",
        group_bits,
        bits_parameter(4),
        group_parameter(128),
        covers=("AWQ", "W4A16"),
        published=(TABLE_4,),
    ),
    Technique(
        name="gguf",
        title="GGUF file types: blocks of integers with scales, mixed by tensor",
        level=Level.MODEL,
        price=Price.CALIBRATION,
        reference="llama.cpp, quantize; Kawrakow 2023, k-quants",
        effect="Fewer bytes of weights to store and to read; llama.cpp multiplies integers where its kernels do.",
        slot="weight format",
        change=_file_type,
        covers=("k-quants", "i-quants"),
        parameters=(Parameter("type", "q4_k_m", "file type as llama-quantize has it: q8_0, q6_k, iq4_xs, ..."),),
        published=(
            Published(
                "decode 2.47 times as fast as F16 (71.9 against 29.2 tokens/s), prefill 0.89 times",
                "Q4_K_M, Llama-3.1-8B, 128 tokens after 512; the device is not stated",
                "llama.cpp, quantize, README at 311c2c9f0ebd",
            ),
        ),
        caveat="Types of four bits and fewer are mixed as with an importance matrix, which calibration data make."
        " Accuracy is not simulated.",
    ),
    weight_only(
        "lut-gemm",
        "LUT-GEMM: binary-coded weights multiplied through look-up tables",
        "Park et al. 2022, LUT-GEMM",
        lambda values: grouped(values["bits"], values["group"], SCALE_BITS * values["bits"]),
        bits_parameter(4),
        Parameter("group", 128, "weights that share the scales of their binary codes", 1, 65536),
        price=Price.LOSSY,
        codes=True,
        covers=("LUT-GEMM",),
        caveat="Its look-ups take the place of decoding and multiplying, and are counted as those; accuracy is not"
        " simulated.",
    ),
    weight_only(
        "owq",
        "OWQ: weak columns stay in fp16",
        "Lee et al. 2023, OWQ",
        lambda values: values["bits"] + values["extra"],
        bits_parameter(3),
        Parameter("extra", 0.1, "bits a weight that the fp16 columns and their indices add", 0, 13),
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
        _outliers(0.01, "share of the weights kept in fp16 with an index of 16 bits"),
        covers=("SpQR",),
        published=(
            Published(
                "outliers in high precision, the rest in 3 to 4 bits",
                "",
                "Yuan et al. 2024, LLM Inference Unveiled, section 3.1.2",
            ),
        ),
    ),
    weight_only(
        "squeezellm",
        "SqueezeLLM: non-uniform codes and sparse outliers",
        "Kim et al. 2023, SqueezeLLM",
        _squeezellm,
        bits_parameter(4),
        _outliers(0.0045, "share of the weights kept in fp16 with a column index of 32 bits"),
        codes=True,
        covers=("SqueezeLLM",),
    ),
    weight_only(
        "quip",
        "QuIP: incoherence processing, then adaptive rounding",
        "Chee et al. 2023, QuIP",
        _plain,
        bits_parameter(2),
        covers=("QuIP",),
        caveat="The products with orthogonal matrices around each layer are not counted; accuracy is not simulated.",
    ),
    weight_only(
        "quip-sharp",
        "QuIP#: incoherence by Hadamard transforms, lattice codes",
        "Tseng et al. 2024, QuIP#",
        _plain,
        bits_parameter(2),
        codes=True,
        covers=("QuIP#",),
        caveat="The Hadamard transforms around each layer are not counted; accuracy is not simulated.",
    ),
    weight_only(
        "aqlm",
        "AQLM: sums of learned codes for groups of weights",
        "Egiazarian et al. 2024, AQLM",
        lambda values: values["codebooks"] * values["code_bits"] / values["group"],
        Parameter("codebooks", 1, "codes that are added up for a group", 1, 16),
        Parameter("code_bits", 16, "bits of a code", 1, 16),
        Parameter("group", 8, "weights of a group", 1, 64),
        codes=True,
        covers=("AQLM", "PV-Tuning"),
        caveat="The codebooks themselves are not counted, nor the look-ups that miss the cache; PV-Tuning fine-tunes"
        " the same format. Accuracy is not simulated.",
    ),
    weight_only(
        "finequant",
        "FineQuant: adaptive fine-grained groups",
        "Kim et al. 2023, FineQuant",
        lambda values: group_bits(values, zero=0),
        bits_parameter(4),
        group_parameter(64),
        price=Price.LOSSY,
        covers=("FineQuant",),
    ),
    weight_only(
        "llm-mq",
        "LLM-MQ: bit widths by layer, sparse fp16 outliers",
        "Li et al. 2023, LLM-MQ",
        lambda values: _sparse_outliers(values["bits"], values),
        _average(3.0, "average bits of a dense weight, which the method chooses by layer (an example)"),
        _outliers(0.005, "share of the weights kept in fp16 with an index of 16 bits (an example)"),
        covers=("LLM-MQ",),
    ),
    weight_only(
        "affinequant",
        "AffineQuant: affine transformations before rounding",
        "Ma et al. 2024, AffineQuant",
        group_bits,
        bits_parameter(4),
        group_parameter(128),
        covers=("AffineQuant",),
    ),
    weight_only(
        "quantease",
        "QuantEase: coordinate descent on the rounding",
        "Behdin et al. 2023, QuantEase",
        lambda values: _sparse_outliers(values["bits"], values),
        bits_parameter(3),
        _outliers(0.0, "share of the weights kept in fp16 with an index of 16 bits, in its outlier-aware variant"),
        covers=("QuantEase",),
    ),
    weight_only(
        "norm-tweaking",
        "Norm Tweaking: norms adjusted to quantised weights",
        "Li et al. 2023, Norm Tweaking",
        group_bits,
        bits_parameter(2),
        group_parameter(64),
        covers=("Norm Tweaking",),
        caveat="It changes the values of norms on top of another method and costs nothing itself: the bits are that"
        " method's. Accuracy is not simulated.",
    ),
    weight_only(
        "billm",
        "BiLLM: residual binarisation of salient weights, split binarisation of the rest",
        "Huang et al. 2024, BiLLM",
        _plain,
        _average(1.08, "average bits of a weight, as the paper counts them"),
        covers=("BiLLM",),
        published=(Published("1.08 bits on average", "weights", "Zhou et al. 2024, section 5.2.1"),),
        caveat="The paper's average leaves out scales and the map of salient columns; accuracy is not simulated.",
    ),
    weight_only(
        "pb-llm",
        "PB-LLM: salient weights in 8 bits, the others binary",
        "Shang et al. 2023, PB-LLM",
        _pb_llm,
        Parameter("salient", 0.1, "share of the weights that are salient", 0, 1),
        Parameter("salient_bits", 8, "bits of a salient weight", 1, 16),
        covers=("PB-LLM",),
        published=(Published("below 2 bits a weight", "", "Yuan et al. 2024, LLM Inference Unveiled, section 3.1.2"),),
        caveat="The map of which weights are salient is left out, as in the paper; accuracy is not simulated.",
    ),
    weight_only(
        "tsld",
        "TSLD: ternary weights trained with token-scaled distillation",
        "Kim et al. 2023, TSLD",
        lambda _: 2.0,
        price=Price.RETRAINING,
        covers=("TSLD",),
        caveat="A ternary weight is stored in 2 bits; accuracy is not simulated.",
    ),
)
