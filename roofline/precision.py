"""Number formats: how many bits an element really takes, and in what arithmetic operands meet.

Weights, activations, KV cache and compute are separate choices. Two rules follow the hardware:

* A low-precision peak needs **all** operands in that precision and a device that has it. Otherwise operands are
  upcast along their `PROMOTIONS` until they meet in arithmetic the device offers, which costs work on the vector unit.
* Checkpoints leave parts unquantised. A `WeightScheme` says which format each component of the weights takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from roofline.errors import RooflineError, UnknownNameError, quote, suggest


@dataclass(frozen=True, slots=True)
class Format:
    """A number format: `bits` an element with its share of scales and zero points; `arithmetic` it is native to.

    `density` is the share of elements that a product has to multiply: below 1 for structured sparsity.
    """

    name: str
    bits: float
    arithmetic: str
    density: float = 1.0

    @property
    def bytes(self) -> float:
        """Bytes an element."""
        return self.bits / 8


def grouped(element: float, group: int, scale: float, zero: float = 0.0) -> float:
    """Effective bits of an element when each `group` of elements shares a scale and a zero point of these bits."""
    return element + (scale + zero) / group


_FORMATS = (
    Format("fp32", 32, "fp32"),
    Format("tf32", 32, "tf32"),  # stored as fp32, multiplied with a 10-bit mantissa (NVIDIA A100 whitepaper)
    Format("bf16", 16, "bf16"),
    Format("fp16", 16, "fp16"),
    Format("fp8", 8, "fp8"),  # one scale a tensor
    Format("fp8_block", grouped(8, 128 * 128, 32), "fp8"),  # DeepSeek-V3 (2024) section 3.3: 128x128 weight blocks
    Format("fp8_group", grouped(8, 128, 32), "fp8"),  # the same paper: activations in groups of 1x128
    Format("int8", 8, "int8"),  # one scale a channel
    Format("int4", 4, "int4"),  # idealised: the literature's "W4", scales not counted
    Format("awq", grouped(4, 128, 16, 4), "int4"),  # Lin et al. 2023: groups of 128, fp16 scale, 4-bit zero point
    Format("gptq", grouped(4, 128, 16, 4), "int4"),  # Frantar et al. 2022, the usual groups of 128
    # Dettmers et al. 2023 (QLoRA): blocks of 64 with an 8-bit scale, themselves scaled by an fp32 for each 256.
    Format("nf4", grouped(4, 64, 8 + 32 / 256), "fp4"),
    Format("mxfp4", grouped(4, 32, 8), "fp4"),  # OCP Microscaling Formats 1.0: E2M1, blocks of 32, E8M0 scale
    Format("nvfp4", grouped(4, 16, 8), "fp4"),  # NVIDIA: E2M1, blocks of 16, E4M3 scale
    # llama.cpp block formats: bytes a block / elements a block (ggml-common.h)
    Format("q8_0", 34 * 8 / 32, "int8"),
    Format("q6_k", 210 * 8 / 256, "int8"),
    Format("q5_k", 176 * 8 / 256, "int8"),
    Format("q4_k", 144 * 8 / 256, "int8"),
    Format("q4_0", 18 * 8 / 32, "int8"),
    Format("q3_k", 110 * 8 / 256, "int8"),
    Format("q2_k", 84 * 8 / 256, "int8"),
    Format("q5_1", 24 * 8 / 32, "int8"),
    Format("q5_0", 22 * 8 / 32, "int8"),
    Format("q4_1", 20 * 8 / 32, "int8"),
    Format("iq4_nl", 18 * 8 / 32, "int8"),
    Format("iq4_xs", 136 * 8 / 256, "int8"),
    Format("iq3_s", 110 * 8 / 256, "int8"),
    Format("iq3_xxs", 98 * 8 / 256, "int8"),
    Format("iq2_s", 82 * 8 / 256, "int8"),
    Format("iq2_xs", 74 * 8 / 256, "int8"),
    Format("iq2_xxs", 66 * 8 / 256, "int8"),
    Format("iq1_m", 56 * 8 / 256, "int8"),
    Format("iq1_s", 50 * 8 / 256, "int8"),
    Format("ternary", 2, "int8"),  # BitNet b1.58 as shipped: four weights packed in a byte, int8 arithmetic
    Format("binary", 1, "int8"),  # BitNet: 1-bit weights, int8 arithmetic
)

FORMATS: Mapping[str, Format] = MappingProxyType({f.name: f for f in _FORMATS})
"""Every named format. `int1` to `int8`, and `awq-gN` or `gptq-gN` with a group size of N, exist beside them."""

_SIXTEEN = ("fp16", "bf16", "tf32", "fp32")
PROMOTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fp32": ("fp32",),
        "tf32": ("tf32", "fp32"),
        "bf16": ("bf16", "fp32"),
        "fp16": ("fp16", "fp32", "bf16"),
        "fp8": ("fp8", *_SIXTEEN),
        "fp4": ("fp4", "fp8", *_SIXTEEN),
        "int8": ("int8", *_SIXTEEN),
        "int4": ("int4", "int8", "fp8", *_SIXTEEN),
        "code": _SIXTEEN,  # codes of a table, or of a range within a group: numbers only once they are decoded
    }
)
"""The arithmetic an operand of each format can be multiplied in, the native one first, wider ones after it."""

WIDTH: Mapping[str, int] = MappingProxyType(
    {"int4": 4, "fp4": 4, "int8": 8, "fp8": 8, "fp16": 16, "bf16": 16, "tf32": 19, "fp32": 32}
)
"""Bits that an arithmetic multiplies: among the possible ones the narrowest is the fastest."""

DEQUANTISE_FLOPS = 2
"""Vector FLOPs to upcast an element: subtract the zero point, multiply by the scale (one fused multiply-add)."""


@lru_cache(maxsize=512)
def find_format(name: str) -> Format:
    """The format called `name`; raises UnknownNameError with the nearest one."""
    key = name.strip().lower().replace("-", "_")
    if key in FORMATS:
        return FORMATS[key]
    if match := re.fullmatch(r"int([1-8])", key):
        bits = int(match[1])
        return Format(key, bits, "int4" if bits <= 4 else "int8")
    if match := re.fullmatch(r"(awq|gptq)_g(\d{1,5})", key):
        group = int(match[2])
        if group < 1:
            raise RooflineError(f"the group size of {quote(name)} must be at least 1")
        return Format(f"{match[1]}-g{group}", grouped(4, group, 16, 4), "int4")
    raise UnknownNameError("format", name, FORMATS)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A component stored in `better` in some layers and in `base` in the others, as `rule(layer, layers)` says."""

    base: Format
    better: Format
    rule: Callable[[int, int], bool]

    def over(self, layers: int) -> Format:
        """The mixture's average format over a model of `layers` layers."""
        share = sum(self.rule(layer, layers) for layer in range(layers)) / layers
        bits = share * self.better.bits + (1 - share) * self.base.bits
        return Format(f"{self.base.name}/{self.better.name}", bits, self.base.arithmetic)


@dataclass(frozen=True, slots=True)
class ByGroup:
    """A component whose format depends on how many query heads share a key and value head: `few` below 4, else `many`.

    With grouped queries V is small, so that better bits for it cost little.
    """

    few: Choice
    many: Choice


DEEP = 80
"""Layers by which llama.cpp knows a model of 70 billion parameters."""


@dataclass(frozen=True, slots=True)
class ByDepth:
    """A component that llama.cpp stores in a better format in models of `DEEP` layers: `deep` there, else `usual`."""

    usual: Choice
    deep: Choice


Choice: TypeAlias = Format | Mixture | ByGroup | ByDepth
"""What a component is stored in: one format, or a rule that picks it by layer, head group or depth."""


def _settled(choice: Choice, layers: int, group: int) -> Format:
    """The format that a choice means in a model of `layers` layers with `group` query heads to a key and value head."""
    match choice:
        case ByDepth():
            return _settled(choice.deep if layers == DEEP else choice.usual, layers, group)
        case ByGroup():
            return _settled(choice.many if group >= 4 else choice.few, layers, group)
        case Mixture():
            return choice.over(layers)
    return choice


def _more_bits(layer: int, layers: int) -> bool:
    """Where llama.cpp's K-quant mixtures spend more bits: the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


UNQUANTISED = frozenset({"embedding", "positions", "lm_head", "norm", "bias", "router"})
"""Components that quantised checkpoints usually leave in the model's own format."""


@dataclass(frozen=True)
class WeightScheme:
    """How a checkpoint stores its weights.

    Components in `unquantised` keep the model's own format; `special` ones take the format given there; all other
    linear layers take `linear` (None: the model's own format).
    """

    name: str
    linear: Format | None = None
    special: Mapping[str, Choice] = field(default_factory=lambda: MappingProxyType({}))
    unquantised: Collection[str] = UNQUANTISED

    def format_of(self, component: str, base: Format, layers: int, group: int = 1) -> Format:
        """The format of `component` (an op name, or embedding, norm, bias, ...).

        The model has `layers` layers, and `group` query heads to a key and value head.
        """
        chosen = self.special.get(component.removeprefix("expert_"))
        if chosen is not None:
            return _settled(chosen, layers, group)
        if self.linear is None or component in self.unquantised:
            return base
        return self.linear

    def __hash__(self) -> int:
        return hash((self.name, self.linear))


def _gguf(name: str, base: str, output: str, **special: Choice) -> WeightScheme:
    """A llama.cpp file type: vectors stay fp32, the embedding is quantised, the output matrix has its own format."""
    kept = {"norm": FORMATS["fp32"], "bias": FORMATS["fp32"], "router": FORMATS["fp32"]}
    mixtures: dict[str, Choice] = {**kept, "lm_head": FORMATS[output], **special}
    return WeightScheme(name, FORMATS[base], MappingProxyType(mixtures), frozenset())


def _mixed(base: str, better: str, rule: Callable[[int, int], bool] = _more_bits) -> Mixture:
    return Mixture(FORMATS[base], FORMATS[better], rule)


def _first_eighth(layer: int, layers: int) -> bool:
    return layer < layers // 8


def _middle(layer: int, layers: int) -> bool:
    return layers // 8 <= layer < 7 * layers // 8


def _grouped(few: str, many: str) -> ByGroup:
    return ByGroup(FORMATS[few], FORMATS[many])


def _deep(usual: Choice, deep: Choice = FORMATS["q5_k"]) -> ByDepth:
    """V in models of 80 layers: small under grouped queries, so that Q3_K and Q4_K become Q5_K there."""
    return ByDepth(usual, deep)


def _tiny(name: str, base: str, small: str, **special: Choice) -> WeightScheme:
    """The file types of one and two bits: V, the first eighth of down and the embedding keep more of them."""
    v, down = _grouped(small, "q4_k"), _mixed(base, small, _first_eighth)
    return _gguf(name, base, "q5_k", embedding=FORMATS[small], v_proj=v, down_proj=down, **special)


# The tensor-by-tensor choices of llama.cpp's llama_tensor_get_type (src/llama-quant.cpp) for dense Llama-like models,
# those of four bits and less with an importance matrix, as such files are made.
_GGUF = (
    _gguf("q8_0", "q8_0", "q8_0"),
    _gguf("q6_k", "q6_k", "q6_k"),
    _gguf("q5_k_m", "q5_k", "q6_k", v_proj=_mixed("q5_k", "q6_k"), down_proj=_mixed("q5_k", "q6_k")),
    _gguf("q5_k_s", "q5_k", "q6_k"),
    _gguf("q5_1", "q5_1", "q6_k"),
    _gguf("q5_0", "q5_0", "q6_k"),
    _gguf(
        "q4_k_m",
        "q4_k",
        "q6_k",
        v_proj=_deep(_mixed("q4_k", "q6_k"), _mixed("q5_k", "q6_k")),
        down_proj=_mixed("q4_k", "q6_k"),
    ),
    _gguf(
        "q4_k_s",
        "q4_k",
        "q6_k",
        v_proj=_deep(_mixed("q4_k", "q5_k", lambda layer, _: layer < 4)),
        down_proj=_mixed("q4_k", "q5_k", _first_eighth),
    ),
    _gguf("q4_1", "q4_1", "q6_k"),
    _gguf("q4_0", "q4_0", "q6_k"),
    _gguf("iq4_nl", "iq4_nl", "q6_k", v_proj=_grouped("iq4_nl", "q5_k")),
    _gguf("iq4_xs", "iq4_xs", "q6_k", v_proj=_grouped("iq4_xs", "q5_k")),
    _gguf("q3_k_l", "q3_k", "q6_k", v_proj=FORMATS["q5_k"], down_proj=FORMATS["q5_k"], o_proj=FORMATS["q5_k"]),
    _gguf(
        "q3_k_m",
        "q3_k",
        "q6_k",
        v_proj=_deep(_mixed("q4_k", "q5_k", lambda layer, _: layer < 2)),
        down_proj=_mixed("q4_k", "q5_k", lambda layer, layers: layer < layers // 16),
        o_proj=FORMATS["q4_k"],
    ),
    _gguf("q3_k_s", "q3_k", "q6_k", v_proj=_deep(FORMATS["q3_k"])),
    _gguf(
        "iq3_m",
        "iq3_s",
        "q6_k",
        v_proj=_deep(FORMATS["q4_k"]),
        down_proj=_mixed("iq3_s", "q4_k", _first_eighth),
        o_proj=FORMATS["q4_k"],
    ),
    _gguf("iq3_s", "iq3_s", "q6_k", v_proj=_deep(_grouped("iq3_s", "q4_k"))),
    _gguf(
        "iq3_xs",
        "iq3_s",
        "q6_k",
        q_proj=FORMATS["iq3_xxs"],
        k_proj=FORMATS["iq3_xxs"],
        v_proj=_deep(_grouped("iq3_s", "q4_k")),
        gate_proj=_mixed("iq3_s", "iq3_xxs", _middle),
        up_proj=_mixed("iq3_s", "iq3_xxs", _middle),
    ),
    _gguf(
        "iq3_xxs",
        "iq3_xxs",
        "q5_k",
        embedding=FORMATS["iq3_s"],
        q_proj=FORMATS["iq2_s"],
        k_proj=FORMATS["iq2_s"],
        v_proj=_deep(_grouped("iq3_xxs", "q4_k")),
        o_proj=FORMATS["iq3_s"],
    ),
    _gguf(
        "q2_k",
        "q2_k",
        "q6_k",
        v_proj=_deep(_grouped("q3_k", "q4_k")),
        down_proj=FORMATS["q3_k"],
        o_proj=FORMATS["q3_k"],
    ),
    _gguf(
        "q2_k_s",
        "q2_k",
        "q6_k",
        v_proj=_deep(_grouped("q2_k", "q4_k")),
        down_proj=_mixed("q2_k", "q4_k", _first_eighth),
    ),
    _tiny("iq2_m", "iq2_s", "iq3_s", o_proj=FORMATS["iq3_s"]),
    _tiny("iq2_s", "iq2_xs", "iq3_s", o_proj=FORMATS["iq3_s"]),
    _tiny("iq2_xs", "iq2_xs", "q2_k"),
    _tiny("iq2_xxs", "iq2_xxs", "q2_k"),
    _tiny("iq1_m", "iq1_m", "q2_k", o_proj=FORMATS["iq2_xxs"]),
    _tiny("iq1_s", "iq1_s", "q2_k", o_proj=FORMATS["iq2_xxs"]),
    # A mixture of experts in MXFP4: the experts only, everything else in Q8_0.
    _gguf(
        "mxfp4_moe",
        "mxfp4",
        "q8_0",
        **dict.fromkeys(("embedding", "q_proj", "k_proj", "v_proj", "o_proj"), FORMATS["q8_0"]),
    ),
)

WEIGHT_SCHEMES: Mapping[str, WeightScheme] = MappingProxyType(
    {scheme.name: scheme for scheme in _GGUF}
    | {
        # gpt-oss model card (2025): only the experts are MXFP4; a dense model has its MLP in that place.
        "mxfp4": WeightScheme(
            "mxfp4", FORMATS["mxfp4"], unquantised=UNQUANTISED | {"q_proj", "k_proj", "v_proj", "o_proj"}
        ),
    }
)
"""Ways to store weights that differ from "this format in every linear layer"."""


def find_weight_scheme(name: str) -> WeightScheme:
    """The weight scheme called `name`: a named one, or a format used in every linear layer."""
    key = name.strip().lower().replace("-", "_")
    if key in WEIGHT_SCHEMES:
        return WEIGHT_SCHEMES[key]
    if key in UNQUANTISED_FORMATS:
        return WeightScheme(key, FORMATS[key], unquantised=frozenset())
    try:
        return WeightScheme(key, find_format(name))
    except UnknownNameError:
        raise UnknownNameError("weight format", name, {*FORMATS, *WEIGHT_SCHEMES}) from None


def pruned(format: Format, sparsity: float, index_bits: float) -> Format:
    """A format whose zeros are not stored: each element kept has an index beside it, and all are multiplied."""
    kept = 1 - sparsity
    return replace(format, name=f"{format.name}-sparse-{sparsity:g}", bits=kept * (format.bits + index_bits))


def structured(format: Format, kept: int, of: int) -> Format:
    """N:M sparsity: `kept` of every `of` elements are stored, with the position of each, and multiplied."""
    share = kept / of
    bits = share * (format.bits + math.log2(of))
    return replace(format, name=f"{format.name}-{kept}:{of}", bits=bits, density=share)


UNQUANTISED_FORMATS = ("fp32", "tf32", "bf16", "fp16")
"""Formats that a whole model is kept in."""


@dataclass(frozen=True)
class Precision:
    """The formats of a scenario.

    `base` is what the model runs in where nothing is quantised: the residual stream, norms, queries, attention
    outputs. `activations` is the format in which linear layers receive their inputs (8-bit schemes quantise there),
    `kv` the cache's, `weights` a scheme by component. `compute` forces an arithmetic; None lets the operands decide.
    """

    base: Format
    weights: WeightScheme
    activations: Format
    kv: Format
    compute: str | None = None

    @property
    def attention(self) -> Format:
        """The format of queries and probabilities in the attention products.

        They follow the activations only where the cache is in the same arithmetic, so that both operands of the
        product are; otherwise attention runs in the base format.
        """
        return self.activations if self.activations.arithmetic == self.kv.arithmetic else self.base

    def __hash__(self) -> int:
        return hash((self.base.name, self.weights, self.activations.name, self.kv.name, self.compute))


# Named schemes: weights, activations, KV; None keeps the base format.
SCHEMES: Mapping[str, tuple[str | None, str | None, str | None]] = MappingProxyType(
    {
        "fp8": ("fp8", "fp8", None),
        "fp8_block": ("fp8_block", "fp8_group", None),
        "int8": ("int8", "int8", None),
        "int4": ("int4", None, None),
        "awq": ("awq", None, None),
        "gptq": ("gptq", None, None),
        "nf4": ("nf4", None, None),
        "mxfp4": ("mxfp4", None, None),
        "nvfp4": ("nvfp4", "nvfp4", None),
        "ternary": ("ternary", "int8", None),
        "binary": ("binary", "int8", None),
        **{scheme.name: (scheme.name, None, None) for scheme in _GGUF},
    }
)
"""What `--quant NAME` stands for, beside the literature's notation (W4, W8A8, W4A16KV8, KV4)."""

_NOTATION = re.compile(r"(?=.)(?:W(?P<w>\d+))?(?:A(?P<a>\d+))?(?:KV(?P<kv>\d+))?", re.IGNORECASE | re.ASCII)


def parse_precision(
    base: str,
    scheme: str | None = None,
    weights: str | None = None,
    activations: str | None = None,
    kv: str | None = None,
    compute: str | None = None,
) -> Precision:
    """The precision that a scheme and single choices describe; a single choice overrides the scheme.

    `base` is the model's own format. Raises RooflineError naming what is unknown and the nearest valid name.
    """
    ground = find_format(base)
    if scheme is not None:
        if scheme.strip().lower() in UNQUANTISED_FORMATS:
            ground = find_format(scheme)
        else:
            from_scheme = _parse_scheme(scheme)
            weights = from_scheme[0] if weights is None else weights
            activations = from_scheme[1] if activations is None else activations
            kv = from_scheme[2] if kv is None else kv
    chosen = find_format(activations) if activations is not None else ground
    if chosen.name in UNQUANTISED_FORMATS:
        ground = chosen
    if compute is not None and compute not in WIDTH:
        raise UnknownNameError("compute format", compute, WIDTH)
    return Precision(
        base=ground,
        weights=find_weight_scheme(ground.name if weights is None else weights),
        activations=chosen,
        kv=find_format(kv) if kv is not None else ground,
        compute=compute,
    )


def _parse_scheme(scheme: str) -> tuple[str | None, str | None, str | None]:
    key = scheme.strip().lower().replace("-", "_")
    if key in SCHEMES:
        return SCHEMES[key]
    if re.fullmatch(r"(awq|gptq)_g\d{1,5}", key):
        return key, None, None
    match = _NOTATION.fullmatch(scheme.strip())
    if match is None:
        known = (*SCHEMES, *UNQUANTISED_FORMATS)
        hint = suggest(scheme, known, listed=0) or "; write it like W4, W8A8, W4A16KV8, KV8, fp8, awq or q4_k_m"
        raise RooflineError(f"unknown quantisation scheme {quote(scheme)}{hint}")

    def integer(part: str, what: str) -> str | None:
        bits = match[part]
        if bits is None or bits == "16":
            return None
        if bits == "32":
            return "fp32"
        if len(bits) > 3 or not 1 <= int(bits) <= 8:
            raise RooflineError(f"{quote(scheme)} asks for {quote(bits)[1:-1]}-bit {what}; use 1 to 8, 16 or 32 bits")
        return f"int{int(bits)}"

    return integer("w", "weights"), integer("a", "activations"), integer("kv", "KV cache")
