"""Resolution of names in measurement files to bundled specs, formats and engines.

Aliases are listed one by one in names.yaml; nothing is guessed. Unresolved names raise `Unmapped` with the reason, so
that the row is listed and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, quote
from roofline.specs.checkpoint import default_base, precision_of
from roofline.specs.formats import FORMATS, Format, find_cache_format, grouped
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.model import Model
from roofline.specs.modelspec import load_model
from roofline.specs.precision import Precision, parse_precision
from roofline.specs.records import bundled_record
from roofline.specs.schemes import UNQUANTIZED, WEIGHT_SCHEMES, Mixture, WeightScheme


class Unmapped(RooflineError):  # noqa: N818 - a category of rows, not a fault
    """A row with a name that has no bundled spec, format or engine; the message is the reason."""


class ResolvedHardware(Struct, frozen=True):
    """A hardware spec, with the assumption where the file does not state the variant."""

    hardware: Hardware
    assumed: str = ""


class Names(Struct, frozen=True):
    """The tables of names.yaml."""

    models: dict[str, str]
    hardware: dict[str, tuple[str, str]]
    engines: dict[str, str]
    years: dict[str, dict[str, str]]
    weights: dict[str, str]


NAMES = bundled_record(Names, "validate/tables/names.yaml")

LARGEST = "the file does not say how many GPU cores: the largest configuration"

_APPLE = re.compile(r"apple (m\d(?: (?:pro|max|ultra))?)(?: \((\d+)-core gpu\))?")

_RELEASE = re.compile(r"\s+v?(\d+(?:\.\d+)+(?:[.-]?(?:dev|a|b|rc|post)\d*)*)")


def find_model(text: str) -> Model:
    """The bundled model that a file calls `text`, also by its repository; raises Unmapped."""
    plain = re.sub(r"\s*\([^)]*\)", "", text).strip().lower()
    name = re.sub(r"\s+", "-", plain)
    name = NAMES.models.get(name) or name.rsplit("/", 1)[-1]
    if name.endswith((".yaml", ".yml", ".json", ".gguf")):
        raise Unmapped(f"expected the name of a model, not a file: {quote(text)}")
    try:
        return load_model(name)
    except RooflineError:
        raise Unmapped(f"no bundled model is {quote(text)}, and none of ROOFLINE_SPECS") from None


def find_hardware(text: str) -> ResolvedHardware:
    """The bundled accelerator that a file calls `text`; raises Unmapped."""
    plain = re.sub(r"^nvidia ", "", text.strip().lower())
    if match := _APPLE.fullmatch(plain):
        hardware, cores = _bundled(match[1].replace(" ", "-"), text), match[2]
        if cores is not None and hardware.units != int(cores):
            raise Unmapped(f"the bundled {hardware.title} is not {quote(text)}")
        return ResolvedHardware(hardware, "" if cores else LARGEST)
    name, assumed = NAMES.hardware.get(plain, (plain, ""))
    return ResolvedHardware(_bundled(name, text), assumed)


def _bundled(name: str, text: str) -> Hardware:
    if "/" in name or name.endswith((".yaml", ".yml")):
        raise Unmapped(f"{quote(text)} is not the name of one accelerator")
    try:
        return load_hardware(name)
    except RooflineError:
        raise Unmapped(f"no bundled spec of {quote(text)}, and none of ROOFLINE_SPECS") from None


def find_engine(text: str) -> str:
    """The engine that a file calls `text`, with its version where it states one or the year; raises Unmapped.

    >>> [find_engine(text) for text in ("vLLM 0.24.0", "TensorRT-LLM v1.3.0rc10", "vLLM (2024)", "SGLang")]
    ['vllm@0.24.0', 'tensorrt-llm@1.3.0rc10', 'vllm@0.5', 'sglang']
    """
    plain = text.strip().lower()
    for prefix, name in NAMES.engines.items():
        if plain.startswith(prefix):
            stated, year = _RELEASE.match(plain, len(prefix)), re.search(r"\b20\d\d\b", plain)
            version = stated[1] if stated else NAMES.years.get(name, {}).get(year[0]) if year else None
            return f"{name}@{version}" if version else name
    raise Unmapped(f"no engine profile is for {quote(text)}")


AS_RELEASED = "as released"
"""The text of formats that are those of the model's release."""

_UNQUANTIZED_16_BIT = frozenset({"", "-", "f16", "fp16", "bf16", "16-bit", "bf16 mla"})
_GGUF_NAMES = {"mxfp4": "mxfp4_moe"}

GPT_FAST_KEPT = UNQUANTIZED - {"lm_head"}
"""gpt-fast quantizes every linear layer, lm_head included (its quantize.py)."""

GPT_FAST: Mapping[str, WeightScheme] = MappingProxyType(
    {
        "int8": WeightScheme("int8 (gpt-fast)", FORMATS["int8"], unquantized=GPT_FAST_KEPT),
        # Groups of 32 share a bf16 scale and zero point.
        "int4_g32": WeightScheme(
            "int4 g32 (gpt-fast)", Format("int4-g32", grouped(4, 32, 16, 16), "int4"), unquantized=GPT_FAST_KEPT
        ),
    }
)

_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_MLA_PROJECTIONS = frozenset({"q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "q_absorb", "v_absorb", "o_proj"})


def _ends(layer: int, layers: int) -> bool:
    return layer in (0, layers - 1)


_BLOCKS = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), Mixture(FORMATS["fp8"], FORMATS["bf16"], _ends))
LLAMA_405B_FP8 = WeightScheme(
    "fp8 (feed-forward)", FORMATS["fp8"], MappingProxyType(_BLOCKS), UNQUANTIZED | _PROJECTIONS
)
"""Meta's FP8 checkpoint of Llama 3.1 405B: feed-forward weights of all but the first and last layer.

Source: The Llama 3 Herd of Models (2024), section 6.2."""

NVFP4_BLOCKS = WeightScheme("nvfp4 (feed-forward)", FORMATS["nvfp4"], unquantized=UNQUANTIZED | _MLA_PROJECTIONS)
"""NVIDIA's FP4 checkpoint of DeepSeek-R1: experts and dense feed-forward in NVFP4, attention in BF16 (model card)."""


def find_precision(weights: str, kv: str, model: Model, hardware: Hardware, engine: str) -> Precision:
    """The precision of a file's format columns, for a model in an engine; raises Unmapped."""
    key = re.sub(r"\s*\([^)]*\)", "", weights).strip().lower()
    if key == AS_RELEASED:
        return precision_of(model, hardware, find_engine(engine), kv=kv.strip().lower() or None)
    chosen = _weights(key, weights, model, hardware, engine.strip().lower())
    cache = kv.strip().lower()
    if cache in _UNQUANTIZED_16_BIT:
        return chosen
    try:
        return replace(chosen, kv=find_cache_format(cache))
    except RooflineError:
        raise Unmapped(f"no cache format is {quote(kv)}") from None


def _weights(key: str, text: str, model: Model, hardware: Hardware, engine: str) -> Precision:
    base = default_base(model, hardware)
    if engine.startswith(("llama.cpp", "llama-cpp-python", "gguf")):
        # llama.cpp computes in fp16 for any checkpoint.
        scheme = None if key in _UNQUANTIZED_16_BIT else _GGUF_NAMES.get(key, key)
        if scheme is not None and scheme not in WEIGHT_SCHEMES:
            raise Unmapped(f"llama.cpp has no file type {quote(text)}")
        return parse_precision("fp16", scheme)
    if key in _UNQUANTIZED_16_BIT:
        stated = "fp16" if key in ("f16", "fp16") else "bf16" if key == "bf16" else base
        return parse_precision(stated if hardware.supports(stated) else base)
    if engine.startswith("gpt-fast"):
        if key not in GPT_FAST:
            raise Unmapped(f"gpt-fast has no weight format {quote(text)}")
        return replace(parse_precision("bf16"), weights=GPT_FAST[key])
    if key == "fp32":
        return parse_precision("fp32")
    if key == "fp8" and model.name == "llama-3.1-405b":
        return replace(parse_precision(base, "fp8"), weights=LLAMA_405B_FP8)
    if key == "fp8" and (model.uses_mla or model.name.startswith("qwen3")):
        return parse_precision(base, "fp8_block")  # their own checkpoints have scales by blocks of 128 x 128
    if key.startswith("nvfp4 moe"):
        return replace(parse_precision(base, "nvfp4"), weights=NVFP4_BLOCKS)
    if key not in NAMES.weights and key not in WEIGHT_SCHEMES:
        raise Unmapped(f"no weight format is {quote(text)}")
    return parse_precision(base, NAMES.weights.get(key, key))
