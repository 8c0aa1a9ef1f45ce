"""The quantization of a checkpoint: a scheme of `--quant`, and the parts that stay unquantized.

The keys are those that Transformers writes (its `quantization_config`), and the compressed-tensors library of vLLM.
Files list unquantized modules; of those only parts that are unquantized in all layers are read: attention, linear
attention, and dense blocks with shared experts. Others count as quantized.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.formats import find_format
from roofline.specs.huggingface.config import Config, Spec
from roofline.specs.library import MODELOPT
from roofline.specs.model import Layer, Model
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import scheme_formats
from roofline.specs.schemes import EXPERTS, PARTS, UNQUANTIZED
from roofline.specs.sublayers import Attention, LatentAttention, MixtureOfExperts
from roofline.specs.weight_files.components import layer_of, of_safetensors

SECTION = "quantization_config"
MODELOPT_SECTION = "quantization"
"""The keys of the section in a config.json, and in ModelOpt's file beside it."""
HINT = "; without that section the model runs in 16 bits, or in the scheme of --quant"


def quantization(config: Config, modelopt: Config | None, spec: Spec) -> Spec:
    """The spec keys of a checkpoint's quantization; none if it is unquantized. `spec` has the model's others.

    `modelopt`: the file in which ModelOpt names it, if the config.json does not. Raises SpecError for an unknown method
    or format instead of assuming 16 bits.
    """
    places = (config, config.section("text_config"))
    named = (place.section(name) for place in places for name in (SECTION, "compression_config"))
    found = [section for section in named if section.content]
    if not found and modelopt is not None:
        section = modelopt.section(MODELOPT_SECTION)
        # Without an algorithm only the KV cache is quantized.
        found = [section] if section.text("quant_algo", None) else []
    if not found:
        return {}
    if (found[0].text("quant_algo", "") or "").upper() == MIXED:
        return _mixed(found[0], parse_model(spec, config.where))
    layers = max(place.integer("num_hidden_layers", default=0, least=0, most=10**5) for place in places)
    parts = _unquantized_parts(found[0], layers or UNKNOWN_LAYERS)
    return {"quantization": _scheme(found[0], parts), **({"unquantized": parts} if parts else {})}


UNKNOWN_LAYERS = 10**6
"""The layer count of files without the key: no list of single layers can name them all."""

EXCLUSION_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
"""The keys under which files list modules that are not quantized."""

_NUMBER = re.compile(r"(?<=layers\.)\d+(?=\.)")
_PARTS: Mapping[str, re.Pattern[str]] = {
    "attention": re.compile(r"\bself_attn[.*$]*$"),
    "linear_attention": re.compile(r"\blinear_attn[.*$]*$"),
    "mlp": re.compile(r"\bshared_experts?(?!_gate)|\bmlp\.(\(|gate_up_proj|down_proj)"),
}


def _unquantized_parts(section: Config, layers: int) -> list[str]:
    """The parts that are unquantized in all layers. Listed patterns are searched as text, never evaluated."""
    listed: dict[str, set[str]] = {}
    for key in EXCLUSION_KEYS:
        for entry in section.texts(key):
            plain = entry.removeprefix("re:").replace("\\", "")
            listed.setdefault(_NUMBER.sub("*", plain), set()).update(_NUMBER.findall(plain))
    everywhere = [name for name, numbers in listed.items() if not numbers or len(numbers) >= layers]
    projections = {name.rpartition("self_attn.")[2] for name in everywhere}
    found = [part for part, pattern in _PARTS.items() if any(map(pattern.search, everywhere))]
    if "attention" not in found and {"q_proj", "o_proj"} <= projections:
        found.insert(0, "attention")
    return found


def _scheme(section: Config, unquantized: list[str]) -> str:
    # ModelOpt names its algorithms, and in some files not itself.
    own = {"default": "modelopt"} if section.content.get("quant_algo") else {}
    method = section.text("quant_method", **own).strip().lower().replace("_", "-")
    if method not in METHODS:
        raise _unknown(section, f"the method {quote(method)}{suggest(method, METHODS)}")
    scheme = METHODS[method](section)
    if scheme == "mxfp4" and method != "mxfp4" and "attention" not in unquantized:
        raise _unknown(section, "attention in MXFP4")
    return scheme


def _unknown(section: Config, what: str) -> SpecError:
    key = MODELOPT_SECTION if section.where.endswith(MODELOPT) else SECTION
    return SpecError(section.where, f"{quote(key)}: no scheme is known for {what}{HINT}")


def _grouped(section: Config, kind: str = "int") -> str:
    """Integers with a scale per group, or per channel (-1); 4-bit AWQ and GPTQ also have a zero point."""
    bits = section.integer("bits", "w_bit", most=8)
    group = section.integer("group_size", "q_group_size", default=-1, least=-1, most=65536)
    if group < 1:
        return f"W{bits}"
    if bits == 4 and kind != "int":
        return kind if group == 128 else f"{kind}-g{group}"
    return f"int{bits}-g{group}"


def _bitsandbytes(section: Config) -> str:
    """LLM.int8(), NF4 or FP4; the 4-bit scales are fp32 unless double quantization is enabled.

    Source: BitsAndBytesConfig of Transformers.
    """
    if not section.flag("load_in_4bit", False):
        return "int8"
    return "nf4" if section.flag("bnb_4bit_use_double_quant", False) else "nf4_single"


MODELOPT_ALGORITHMS: Mapping[str, str] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "w4a16_nvfp4",
    "W4A16_AWQ": "awq",
}
"""The schemes of `quant_algo`; vLLM runs FP8_PB_WO, blocks of 128 x 128, as it runs DeepSeek's."""

MIXED = "MIXED_PRECISION"
"""The `quant_algo` of a checkpoint in which each quantized module has an algorithm of its own."""


def _modelopt(section: Config) -> str:
    algorithm = section.text("quant_algo", "").upper()
    found = MODELOPT_ALGORITHMS.get(algorithm)
    if found is None:
        raise _unknown(section, f"the algorithm {quote(algorithm)}")
    return found


def _mixed(section: Config, model: Model) -> Spec:
    """The formats of a checkpoint that names those of its modules one by one; modules without are unquantized.

    Activations have the format of the scheme with the fewest bits, that of most weights: the MLP's or the experts'.
    """
    listed = section.section("quantized_layers")
    modules: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    schemes: set[str] = set()
    for name in listed.content:
        for component in _components(name):
            scheme = _modelopt(listed.section(name))
            schemes.add(scheme)
            modules[component][layer_of(name)].append(_weights(scheme))
    if not schemes:
        raise _unknown(section, f"the algorithm {quote(MIXED)} without 'quantized_layers' of the model")
    formats: dict[str, str | dict[str, float]] = {}
    for component, by_layer in modules.items():
        layers: dict[str, float] = defaultdict(float)
        for layer in [-1] if component in UNQUANTIZED else _layers_with(component, model):
            named = by_layer.get(layer) or by_layer.get(-1) or [model.dtype]
            for format in named:
                layers[format] += 1 / len(named)
        if set(layers) - {model.dtype}:
            formats[component] = dict(layers) if len(layers) > 1 else next(iter(layers))
    return {"quantization": min(sorted(schemes), key=lambda name: find_format(_weights(name)).bits), "formats": formats}


def _components(name: str) -> tuple[str, ...]:
    """The components of the module `name`; () for one that is not recognised, or of another network."""
    if name.endswith(".experts"):
        return tuple(part for projection in PARTS["mlp"] for part in of_safetensors(f"{name}.{projection}.weight"))
    return LINEAR_ATTENTION.get(name.rpartition("linear_attn.")[2]) or of_safetensors(f"{name}.weight")


LINEAR_ATTENTION: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("in_proj_qkvz", "in_proj_qkv", "in_proj_z"), ("in_proj",)),
    **dict.fromkeys(("in_proj_ba", "in_proj_b", "in_proj_a"), ("gate_in_proj",)),
    "out_proj": ("out_proj",),
}
"""The components of the projections of a Gated DeltaNet (Qwen3-Next, Qwen3.5)."""


def _layers_with(component: str, model: Model) -> list[int]:
    """The layers of a model that have a component."""
    layers = {group.name: group.layer for group in model.groups}

    def holds(layer: Layer) -> bool:
        feed = layer.feed_forward
        experts = isinstance(feed, MixtureOfExperts)
        if component in EXPERTS:
            return experts
        if component in PARTS["mlp"]:
            return bool(feed.shared_width) if isinstance(feed, MixtureOfExperts) else feed is not None
        return isinstance(layer.mixer, (Attention, LatentAttention)) == (component in PARTS["attention"])

    return [index for index, name in enumerate(model.pattern) if holds(layers[name])]


def _weights(scheme: str) -> str:
    """The format of a scheme's weights."""
    return scheme_formats(scheme)[0] or scheme


def _compressed(section: Config) -> str:
    """The scheme of a compressed-tensors file with a single group of formats.

    Sparse weights are rejected: they have other sizes and kernels.
    """
    sparsity = section.section("sparsity_config")
    pattern = sparsity.text("sparsity_structure", "") or ""
    stored = sparsity.text("format", "dense") or "dense"
    layout = section.text("format", "") or ""
    if stored != "dense" or pattern.replace("0:0", "").count(":") or layout == "marlin-24":
        named = layout if layout == "marlin-24" else pattern or stored
        raise SpecError(
            section.where,
            f"'{SECTION}': sparse weights ({quote(named)}) are not supported; without that section, give the format,"
            " and the pattern by the technique n-m-sparsity",
            options=["quant", "with"],
        )
    groups = section.section("config_groups")
    found = {_group_scheme(groups.section(name)) for name in groups.content}
    if len(found) != 1:
        raise _unknown(section, f"{len(found)} groups of formats" if found else "a file without 'config_groups'")
    return found.pop()


def _group_scheme(group: Config) -> str:
    weights, inputs = group.section("weights"), group.section("input_activations")
    bits, kind = weights.integer("num_bits", most=16), weights.text("type", "int")
    strategy = weights.text("strategy", "tensor") or "tensor"
    size = weights.integer("group_size", default=-1, least=-1, most=65536)
    fed = inputs.integer("num_bits", most=16) if inputs.content else 16
    if kind == "float":
        known = {(8, 8): "fp8_block" if strategy == "block" else "fp8", (4, 4): "nvfp4"}
        if size == 32:
            known = {(4, 16): "mxfp4"}
        if (bits, fed) not in known:
            raise _unknown(group, f"{bits}-bit floating-point weights and {fed}-bit activations")
        return known[bits, fed]
    if kind != "int" or not 1 <= bits <= 8:
        raise _unknown(group, f"{bits}-bit weights of type {quote(kind)}")
    if fed < 16:
        return "int8" if bits == fed == 8 else f"W{bits}A{fed}"
    return f"int{bits}-g{size}" if strategy == "group" and size > 0 else f"W{bits}"


METHODS: Mapping[str, Callable[[Config], str]] = {
    "fp8": lambda section: "fp8_block" if section.integers("weight_block_size") else "fp8",  # DeepSeek-V3
    "fbgemm-fp8": lambda _: "fp8",
    "mxfp4": lambda _: "mxfp4",
    "awq": lambda section: _grouped(section, "awq"),
    "gptq": lambda section: _grouped(section, "gptq"),
    "auto-round": _grouped,
    "bitsandbytes": _bitsandbytes,
    "bitnet": lambda _: "ternary",
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
}
"""The scheme of a section, by its `quant_method`."""
