"""Weight schemes: the format of each component of a checkpoint, including unquantized parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from roofline.core.documents import bundled
from roofline.core.errors import UnknownNameError
from roofline.specs.formats import FORMATS, UNQUANTIZED_FORMATS, Format, find_format

BLOCK = 256
"""The elements of a block of llama.cpp's K- and IQ-quants, which rows of other lengths do not have."""

FALLBACK: Mapping[str, str] = MappingProxyType({"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"})
"""The formats of rows that blocks do not divide; those of three bits and fewer, and IQ4_XS, have IQ4_NL instead
(llama_tensor_get_type in src/llama-quant.cpp)."""


def _of_rows(format: Format, columns: int) -> Format:
    """The format of a matrix with so many columns, for which llama.cpp chooses `format`."""
    blocked = format.name.endswith("_k") or (format.name.startswith("iq") and format.name != "iq4_nl")
    if columns % BLOCK == 0 or not blocked or FORMATS.get(format.name) != format:
        return format
    return FORMATS[FALLBACK.get(format.name, "iq4_nl")]


class Mixture(Struct, frozen=True):
    """A component stored in `better` in the layers where `rule(layer, layers)` holds, and in `base` in the others."""

    base: Format
    better: Format
    rule: Callable[[int, int], bool]

    def average(self, layers: int, columns: int = BLOCK) -> Format:
        fraction = sum(self.rule(layer, layers) for layer in range(layers)) / layers
        base, better = _of_rows(self.base, columns), _of_rows(self.better, columns)
        bits = fraction * better.bits + (1 - fraction) * base.bits
        return Format(f"{base.name}/{better.name}", bits, base.arithmetic)


class ByGroup(Struct, frozen=True):
    """A component whose format depends on the query heads per KV head: `few` below 4, else `many`.

    With GQA V is small, so more bits for it cost little.
    """

    few: Choice
    many: Choice


DEEP = 80
"""The layer count by which llama.cpp recognises a 70B model."""


class ByDepth(Struct, frozen=True):
    """A component that llama.cpp stores in the format `deep` in models of `DEEP` layers, else in `usual`."""

    usual: Choice
    deep: Choice


Choice: TypeAlias = Format | Mixture | ByGroup | ByDepth
"""The format of a component: a fixed one, or a rule by layer, GQA group size or depth."""


def _resolve(choice: Choice, layers: int, group: int, columns: int) -> Format:
    """The format of a choice in a model of `layers` layers and `group` query heads per KV head."""
    match choice:
        case ByDepth():
            return _resolve(choice.deep if layers == DEEP else choice.usual, layers, group, columns)
        case ByGroup():
            return _resolve(choice.many if group >= 4 else choice.few, layers, group, columns)
        case Mixture():
            return choice.average(layers, columns)
    return _of_rows(choice, columns)


def _more_bits(layer: int, layers: int) -> bool:
    """Whether llama.cpp's K-quants use more bits in a layer: the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


UNQUANTIZED = frozenset({"embedding", "positions", "lm_head", "norm", "bias", "router", "convolution"})
"""Components that quantized checkpoints usually leave unquantized."""

PARTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "attention": frozenset(
            {"q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj"}
            | {"index_q_proj", "index_k_proj", "index_weights_proj", "kv_proj", "o_a_proj", "o_b_proj"}
        ),
        "linear_attention": frozenset(
            {"in_proj", "gate_in_proj", "x_proj", "dt_proj", "decay_proj", "output_gate_proj", "out_proj"}
        ),
        "mlp": frozenset({"gate_proj", "up_proj", "down_proj"}),
    }
)
"""Further parts that a checkpoint may leave unquantized; "mlp" is dense blocks and shared experts."""

EXPERTS = frozenset(f"expert_{name}" for name in PARTS["mlp"]) | {"latent_down_proj", "latent_up_proj"}
"""The components of routed experts, and of the projections around those that compute on latents."""

COMPONENTS = UNQUANTIZED.union(EXPERTS, {"engram_proj"}, *PARTS.values())
"""The components that a checkpoint may leave unquantized."""


class WeightScheme(Struct, frozen=True):
    """The weight formats of a checkpoint.

    Components in `unquantized` keep the model's own format, those in `special` have the format given there, and all
    other linear layers have `linear` (None: the model's own format). Models with experts keep `beside_experts`, too.
    """

    name: str
    linear: Format | None = None
    special: Mapping[str, Choice] = field(default_factory=lambda: MappingProxyType({}))
    unquantized: Collection[str] = UNQUANTIZED
    beside_experts: Collection[str] = frozenset()

    def of_model(self, experts: bool) -> WeightScheme:
        if not experts or not self.beside_experts:
            return self
        return replace(self, unquantized=frozenset(self.unquantized) | frozenset(self.beside_experts))

    def format_of(self, component: str, base: Format, layers: int, group: int = 1, columns: int = BLOCK) -> Format:
        """The format of `component` (an operator name, or embedding, norm, bias, ...), a matrix of so many columns.

        The model has `layers` layers and `group` query heads per KV head.
        """
        chosen = self.special.get(component)
        if chosen is None and component not in self.unquantized:
            chosen = self.special.get(component.removeprefix("expert_"))
        if chosen is not None:
            return _resolve(chosen, layers, group, columns)
        if self.linear is None or component in self.unquantized:
            return base
        return _of_rows(self.linear, columns)

    def with_parts(self, formats: Mapping[str, Choice]) -> WeightScheme:
        return replace(self, special=MappingProxyType({**self.special, **formats}))

    def without(self, parts: Collection[str]) -> WeightScheme:
        kept = frozenset(self.unquantized).union(*(PARTS[part] for part in parts))
        return replace(self, unquantized=kept)

    def mixed(self, formats: Mapping[str, str | Mapping[str, float]]) -> WeightScheme:
        """The scheme in which only the components of `formats` are quantized, each in a format of its own.

        Several formats of a component have the number of layers in each, and count with their average.
        """
        special = {
            component: find_format(chosen) if isinstance(chosen, str) else _average(chosen)
            for component, chosen in formats.items()
        }
        names = dict.fromkeys(part for format in special.values() for part in format.name.split("/"))
        ordered = sorted(names, key=lambda name: name != self.name)
        return replace(self, name="/".join(ordered), special=MappingProxyType(special), unquantized=COMPONENTS)

    def __hash__(self) -> int:
        return hash((self.name, self.linear))


def _average(layers: Mapping[str, float]) -> Format:
    """The format of a component with so many layers in each format: that of the most, with the average bits."""
    ordered = sorted(layers, key=lambda name: -layers[name])
    formats = [find_format(name) for name in ordered]
    bits = sum(layers[name] * format.bits for name, format in zip(ordered, formats, strict=True))
    return Format("/".join(format.name for format in formats), bits / sum(layers.values()), formats[0].arithmetic)


class First(Struct, frozen=True):
    """The rule of the first so many layers, or of the first of so many equal parts of them."""

    layers: int = 0
    parts: int = 0

    def __call__(self, layer: int, layers: int) -> bool:
        return layer < (layers // self.parts if self.parts else self.layers)


def _middle(layer: int, layers: int) -> bool:
    return layers // 8 <= layer < 7 * layers // 8


RULES: Mapping[str, Callable[[int, int], bool]] = {
    "more": _more_bits,
    "eighth": First(parts=8),
    "sixteenth": First(parts=16),
    "four": First(4),
    "two": First(2),
    "middle": _middle,
}


def _choice(given: Any) -> Choice:
    """The choice that an entry of `schemes.yaml` describes."""
    match given:
        case [base, better, rule]:
            return Mixture(FORMATS[base], FORMATS[better], RULES[rule])
        case {"few": few, "many": many}:
            return ByGroup(_choice(few), _choice(many))
        case {"usual": usual, "deep": deep}:
            return ByDepth(_choice(usual), _choice(deep))
    return MXFP4_BLOCKS if given == "mxfp4" else FORMATS[given]


def _gguf(name: str, linear: str, **special: Any) -> WeightScheme:
    """A llama.cpp file type: vectors in fp32, the embedding quantized, the output matrix in its own format."""
    chosen = {"norm": "fp32", "bias": "fp32", "router": "fp32", "convolution": "fp16", **special}
    choices = {component: _choice(given) for component, given in chosen.items()}
    return WeightScheme(name, FORMATS[linear], MappingProxyType(choices), frozenset())


MXFP4_BLOCKS = Format("mxfp4", 17 * 8 / 32, "int8")
"""llama.cpp's MXFP4 blocks: its kernels multiply the doubled elements, which are integers."""

MXFP4_EXPERTS: Mapping[str, Choice] = dict.fromkeys(
    ("expert_gate_proj", "expert_up_proj", "expert_down_proj"), MXFP4_BLOCKS
)
"""The experts of a checkpoint that was released with them in MXFP4, in files that keep them.

gpt-oss-20b is 12.1 GB in MXFP4, and 12.04 GB in Q6_K (model card of bartowski/openai_gpt-oss-20b-GGUF).
"""

GGUF = tuple(_gguf(name, **row) for name, row in bundled("specs/schemes.yaml").items())
"""llama.cpp's file types."""

GGUF_SCHEMES = frozenset(scheme.name for scheme in GGUF)
"""The names of llama.cpp's file types."""

WEIGHT_SCHEMES: Mapping[str, WeightScheme] = MappingProxyType(
    {scheme.name: scheme for scheme in GGUF}
    | {
        # gpt-oss model card (2025): only the experts are MXFP4. A dense model has every linear layer in it.
        "mxfp4": WeightScheme(
            "mxfp4", FORMATS["mxfp4"], beside_experts=frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
        )
    }
)
"""Schemes with more than one format; any other name is one format for every linear layer."""


def find_weight_scheme(name: str) -> WeightScheme:
    """The weight scheme `name`: a named scheme, or a format for every linear layer."""
    key = name.strip().lower().replace("-", "_")
    if key in WEIGHT_SCHEMES:
        return WEIGHT_SCHEMES[key]
    if key in UNQUANTIZED_FORMATS:
        return WeightScheme(key, FORMATS[key], unquantized=frozenset())
    try:
        ends = {"embedding", "lm_head"} if key.startswith("affine") else set()  # mlx.nn.quantize takes embeddings, too
        return WeightScheme(key, find_format(name), unquantized=UNQUANTIZED - ends)
    except UnknownNameError:
        raise UnknownNameError("weight format", name, {*FORMATS, *WEIGHT_SCHEMES}) from None
