"""What a config.json says of a checkpoint's quantisation: a scheme of `--quant`, and the parts that it leaves out.

The keys are those that Transformers writes (its `quantization_config`), and the compressed-tensors library of vLLM.
Files name modules that are left out; of those only whole parts are read, in all layers: attention, and dense blocks
with shared experts. Others count as quantised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.huggingface.config import Config, Spec

SECTION = "quantization_config"
OTHERWISE = "; without that section the model is taken in 16 bits, and --quant says what else it runs in"


def quantization(config: Config) -> Spec:
    """The keys of a spec that a checkpoint's quantisation is written in; none where it is not quantised.

    Raises SpecError for a method, or formats of it, that no scheme stands for: they are not taken for 16 bits silently.
    """
    places = (config, config.section("text_config"))
    named = (place.section(name) for place in places for name in (SECTION, "compression_config"))
    found = [section for section in named if section.content]
    if not found:
        return {}
    layers = max(place.integer("num_hidden_layers", default=0, least=0, most=10**5) for place in places)
    parts = _left_out(found[0], layers or UNSAID)
    return {"quantization": _scheme(found[0], parts), **({"unquantised": parts} if parts else {})}


UNSAID = 10**6
"""Layers where a file does not say in these words how many: no list of single ones names them all."""


LEFT_OUT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
"""The keys under which files list modules that are not quantised."""

_NUMBER = re.compile(r"(?<=layers\.)\d+(?=\.)")
_PARTS: Mapping[str, re.Pattern[str]] = {
    "attention": re.compile(r"\bself_attn[.*$]*$"),
    "linear_attention": re.compile(r"\blinear_attn[.*$]*$"),
    "mlp": re.compile(r"\bshared_experts?(?!_gate)|\bmlp\.(\(|gate_up_proj|down_proj)"),
}


def _left_out(section: Config, layers: int) -> list[str]:
    """The parts that no layer has quantised. Patterns are searched for names, never run."""
    listed: dict[str, set[str]] = {}
    for key in LEFT_OUT:
        for entry in section.texts(key):
            plain = entry.removeprefix("re:").replace("\\", "")
            listed.setdefault(_NUMBER.sub("*", plain), set()).update(_NUMBER.findall(plain))
    everywhere = [name for name, numbers in listed.items() if not numbers or len(numbers) >= layers]
    products = {name.rpartition("self_attn.")[2] for name in everywhere}
    found = [part for part, pattern in _PARTS.items() if any(map(pattern.search, everywhere))]
    if "attention" not in found and {"q_proj", "o_proj"} <= products:
        found.insert(0, "attention")
    return found


def _scheme(section: Config, left_out: list[str]) -> str:
    method = section.text("quant_method").strip().lower().replace("_", "-")
    if method not in METHODS:
        raise SpecError(
            section.where,
            f"'{SECTION}': no scheme is known for the method {quote(method)}{suggest(method, METHODS)}{OTHERWISE}",
        )
    scheme = METHODS[method](section)
    if scheme == "mxfp4" and method != "mxfp4" and "attention" not in left_out:
        raise _unknown(section, "attention in MXFP4")
    return scheme


def _unknown(section: Config, what: str) -> SpecError:
    return SpecError(section.where, f"'{SECTION}': no scheme is known for {what}{OTHERWISE}")


def _fp8(section: Config) -> str:
    """A scale a tensor or channel, or one for a block of weights, as DeepSeek-V3 has them."""
    return "fp8_block" if section.integers("weight_block_size") else "fp8"


def _grouped(section: Config, kind: str = "int") -> str:
    """Integers with a scale a group, or a channel (-1); those of AWQ and GPTQ in 4 bits have a zero point beside it."""
    bits = section.integer("bits", "w_bit", most=8)
    group = section.integer("group_size", "q_group_size", default=-1, least=-1, most=65536)
    if group < 1:
        return f"W{bits}"
    if bits == 4 and kind != "int":
        return kind if group == 128 else f"{kind}-g{group}"
    return f"int{bits}-g{group}"


def _bitsandbytes(section: Config) -> str:
    """LLM.int8(), or four bits, NF4 or FP4: their scales are in fp32 unless quantised themselves, which is not default.

    Source: BitsAndBytesConfig of Transformers.
    """
    if not section.flag("load_in_4bit", False):
        return "int8"
    return "nf4" if section.flag("bnb_4bit_use_double_quant", False) else "nf4_single"


def _modelopt(section: Config) -> str:
    algorithm = section.text("quant_algo", "").upper()
    found = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "awq"}.get(algorithm)
    if found is None:
        raise _unknown(section, f"the algorithm {quote(algorithm)}")
    return found


def _compressed(section: Config) -> str:
    """The scheme of the one group of formats that a file of compressed-tensors has.

    What is zero by a pattern is refused: it is stored in other sizes, or multiplied by other kernels.
    """
    sparsity = section.section("sparsity_config")
    pattern = sparsity.text("sparsity_structure", "") or ""
    stored = sparsity.text("format", "dense") or "dense"
    layout = section.text("format", "") or ""
    if stored != "dense" or pattern.replace("0:0", "").count(":") or layout == "marlin-24":
        named = layout if layout == "marlin-24" else pattern or stored
        raise SpecError(
            section.where,
            f"'{SECTION}': sparse weights ({quote(named)}) are not read; without that section, --quant says the format"
            " and --with n-m-sparsity the pattern",
        )
    groups = section.section("config_groups")
    found = {_of_group(groups.section(name)) for name in groups.content}
    if len(found) != 1:
        raise _unknown(section, f"{len(found)} groups of formats" if found else "a file without 'config_groups'")
    return found.pop()


def _of_group(group: Config) -> str:
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
    "fp8": _fp8,
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
