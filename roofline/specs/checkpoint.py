"""Released checkpoints: their formats, and the formats that an engine on a device runs them in.

By default a model runs as it was released: DeepSeek-V3 in FP8, gpt-oss with its experts in MXFP4, most others in 16
bits. Three rules follow the engines:

* Weights keep their released format if the engine supports it; otherwise they are dequantized to 16 bits.
* Activations are quantized only if the device multiplies in that arithmetic: FP8 weights on Ampere, and NVFP4 weights
  before Blackwell, are dequantized on the fly (vLLM's Marlin kernels).
* A requested scheme or weight format replaces the released formats.

>>> from roofline import load_hardware, load_model
>>> from roofline.specs.engine import load_engine
>>> model = load_model("deepseek-v3")
>>> model.quantization
'fp8_block'
>>> dict(released(model, load_hardware("h200-sxm"), load_engine("vllm")))
{'weights': 'fp8_block', 'activations': 'fp8_group'}
>>> dict(released(model, load_hardware("a100-sxm-80gb"), load_engine("vllm")))
{'weights': 'fp8_block'}
>>> dict(released(model, load_hardware("h200-sxm"), load_engine("llama.cpp")))
{}
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec.structs import replace

from roofline.specs.engine import Engine, resolve_engine
from roofline.specs.formats import find_format
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import PLAIN, Precision, parse_precision, scheme_formats
from roofline.specs.schemes import BLOCK, GGUF_SCHEMES, MXFP4_BLOCKS, MXFP4_EXPERTS, find_weight_scheme
from roofline.specs.sublayers import MIXERS

RELEASED_OVERRIDES = ("scheme", "weights")
"""Requested formats that replace those of the checkpoint."""


def default_base(model: Model, hardware: Hardware) -> str:
    """The unquantized format that a model runs in on this hardware.

    fp32 checkpoints run in fp16 (vLLM, `--dtype auto`). If the hardware does not support the model's format, it is the
    other 16-bit format, if supported.
    """
    own = {"fp32": "fp16"}.get(model.dtype, model.dtype)
    for candidate in (own, "bf16", "fp16"):
        if hardware.supports(candidate):
            return candidate
    return own


def released_scheme(model: Model, engine: Engine) -> str:
    """The scheme, in the notation of `--quant`, in which an engine runs a checkpoint; `PLAIN` if unquantized."""
    if model.quantization is None:
        return PLAIN
    return model.quantization if engine.checkpoints is None else engine.checkpoints.get(model.quantization, PLAIN)


def released(model: Model, hardware: Hardware, engine: Engine) -> Mapping[str, str]:
    """The quantized formats in which a released checkpoint runs, as arguments of `parse_precision`."""
    scheme = released_scheme(model, engine)
    weights, activations, kv = scheme_formats(scheme)
    if scheme in engine.fp8_inputs and hardware.has_tensor_memory:
        activations = "fp8"
    found = {
        "weights": weights,
        "activations": None if unsupported_arithmetic(scheme, hardware) else activations,
        "kv": kv or ("fp8" if model.kv_scales in engine.kv_scales else None),
    }
    return {part: name for part, name in found.items() if name is not None}


def unsupported_arithmetic(scheme: str, hardware: Hardware) -> str | None:
    """The arithmetic of a scheme's activations if the device does not support it, else None."""
    activations = scheme_formats(scheme)[1]
    arithmetic = None if activations is None else find_format(activations).arithmetic
    return None if arithmetic is None or hardware.supports(arithmetic) else arithmetic


def precision_of(
    model: Model, hardware: Hardware, engine: Engine | str | None = None, **requested: str | None
) -> Precision:
    """The formats a model runs in: as requested (arguments of `parse_precision`), else as released.

    `engine` is a profile or its name, by default that of the hardware and the model; a requested `base` is the format
    of what is not quantized. Raises RooflineError for an unknown name.
    """
    return _precision_of(model, hardware, resolve_engine(hardware, engine, model), tuple(requested.items()))


INTEGER = find_format("int8")
"""The format to which some engines quantize the inputs of layers with integer weights."""


def run_precision(precision: Precision, model: Model, hardware: Hardware, engine: Engine) -> Precision:
    """The formats in which an engine computes with the formats that were asked for or released.

    Inputs of linear layers differ from these in three cases:

    * FP8 or FP4 inputs that the hardware does not multiply stay in 16 bits where the engine has a weight-only kernel
      (Marlin for NVFP4 on Hopper). Of all vendors' hardware only NVIDIA's multiplies NVFP4.
    * Some engines quantize 16-bit inputs of MXFP4 weights to MXFP4; not where a model was released with MXFP4 experts
      alone, whose inputs keep 16 bits.
    * Some engines quantize 16-bit inputs of integer weights to 8-bit integers.
    """
    linear, inputs = precision.weights.linear, precision.activations
    if linear is None or precision.compute is not None:
        return precision
    foreign = inputs.name == "nvfp4" and hardware.vendor != "NVIDIA"
    unmultiplied = inputs.arithmetic.startswith("fp") and not hardware.supports(inputs.arithmetic)
    if (foreign or unmultiplied) and linear.name in engine.weight_only:
        return replace(precision, activations=precision.base)
    if inputs != precision.base:  # as the user asks
        return precision
    experts_alone = model.quantization == "mxfp4" and bool(model.formats or model.unquantized)
    if linear.name == "mxfp4" and not experts_alone and hardware.family in engine.mxfp4_activations:
        return replace(precision, activations=linear)
    quantizes = not {hardware.vendor, hardware.kind}.isdisjoint(engine.int8_activations)
    if linear.arithmetic == INTEGER.arithmetic and quantizes and hardware.supports(INTEGER.arithmetic):
        return replace(precision, activations=INTEGER, queries=precision.attention)
    return precision


def only_cache(model: Model, engine: Engine) -> str | None:
    """The format of the only KV cache of a model that an engine's kernels read; None where there are several."""
    mixers = [group.layer.mixer for group in model.groups]
    found = (name for key, name in engine.caches.items() if any(isinstance(mixer, MIXERS[key]) for mixer in mixers))
    return next(found, None)


@lru_cache(maxsize=1024)
def _precision_of(
    model: Model, hardware: Hardware, profile: Engine, parts: tuple[tuple[str, str | None], ...]
) -> Precision:
    requested = dict(parts)
    requested["kv"] = requested.get("kv") or only_cache(model, profile)
    base = requested.pop("base", None) or default_base(model, hardware)
    if any(requested.get(part) for part in RELEASED_OVERRIDES):
        asked = parse_precision(base, **requested)
        return _experts_kept(model, asked) if asked.weights.name in GGUF_SCHEMES else asked
    chosen = {part: name for part, name in requested.items() if name is not None}
    found = parse_precision(base, **{**released(model, hardware, profile), **chosen})
    if model.stored is not None and runs_as_stored(model, profile):
        return replace(found, weights=model.stored.scheme)
    if model.quantization is not None and released_scheme(model, profile) == model.quantization:
        if model.quantization in GGUF_SCHEMES:
            return _experts_kept(model, replace(found, weights=found.weights.without(model.unquantized)))
        own = found.weights.without(model.unquantized) if model.formats is None else found.weights.mixed(model.formats)
        return replace(found, weights=own)
    keeps = profile.checkpoints is not None and profile.checkpoints.get("mxfp4") in GGUF_SCHEMES
    return _experts_kept(model, found) if keeps and model.formats is not None and model.stored is None else found


def _experts_kept(model: Model, precision: Precision) -> Precision:
    """The formats of llama.cpp's files with experts in MXFP4 where a checkpoint was released with them.

    Files of four bits and more keep them (Unsloth's guide to DeepSeek-V4-Flash: 162 GB in 8 bits, 155 in 4), and all
    where 256 does not divide a row, as k-quants need (model card of bartowski/openai_gpt-oss-20b-GGUF).
    """
    scheme = precision.weights
    released = model.quantization == "mxfp4" or (model.formats or {}).get("expert_up_proj") == "mxfp4"
    fewer = scheme.linear is not None and scheme.linear.bits < MXFP4_BLOCKS.bits and model.hidden % BLOCK == 0
    return replace(precision, weights=scheme.with_parts(MXFP4_EXPERTS)) if released and not fewer else precision


def tower_precision(tower: Model, precision: Precision) -> Precision:
    """The formats of a vision encoder: those its checkpoint says, else 16 bits, whatever the decoder is stored in.

    AWQ, GPTQ and GGUF files, and most others, leave vision encoders alone.
    """
    if tower.quantization is None:
        plain = find_weight_scheme(precision.base.name)
        return replace(precision, weights=plain, activations=precision.base, kv=precision.base)
    return replace(precision, weights=find_weight_scheme(scheme_formats(tower.quantization)[0] or tower.quantization))


def draft_precision(precision: Precision) -> Precision:
    """The formats of a draft layer that reads a model's hidden states: 16 bits where the weights have fewer than 8.

    NVFP4, MXFP4, AWQ and GPTQ checkpoints leave MTP modules alone (nvidia/DeepSeek-R1-0528-FP4, hf_quant_config.json:
    model.layers.61*), and draft layers trained apart are released in 16 bits.
    """
    linear = precision.weights.linear
    if linear is None or linear.bytes >= 1:
        return precision
    return replace(precision, weights=find_weight_scheme(precision.base.name), activations=precision.base)


def runs_as_stored(model: Model, engine: Engine) -> bool:
    """Whether an engine keeps the formats of a checkpoint's tensors.

    Unquantized safetensors are converted to one format as they are loaded; GGUF is not.
    """
    if model.quantization is not None:
        return released_scheme(model, engine) == model.quantization
    return model.stored is not None and model.stored.loaded
