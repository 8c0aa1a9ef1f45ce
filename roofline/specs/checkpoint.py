"""Checkpoints: the formats a model is released in, and what an engine on a device makes of them.

Where no format is asked for, a model runs as it was released: DeepSeek-V3 in FP8, gpt-oss with its experts in MXFP4,
most others in 16 bits. Three rules follow what engines do:

* Weights stay as they are stored, where the engine reads them so; another engine's conversion widens them to 16 bits.
* Activations are quantised with them only where the device multiplies in that arithmetic: FP8 weights on Ampere, and
  NVFP4 ones before Blackwell, are decoded as they are read (vLLM's Marlin kernels).
* Whoever asks for a scheme or for other weights has those in the place of the released ones.

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

from msgspec.structs import replace

from roofline.specs.engine import Engine, profile_on
from roofline.specs.formats import find_format
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import PLAIN, Precision, parse_precision, scheme_formats

SETTLED = ("scheme", "weights")
"""What is asked for in the place of a checkpoint's own formats."""


def default_base(model: Model, hardware: Hardware) -> str:
    """The format a model runs in where nothing is quantised on this hardware.

    Checkpoints in fp32 are run in fp16, as engines do (vLLM, `--dtype auto`); where the hardware does not compute in
    the model's format, it is the other 16-bit one if it does in that.
    """
    own = {"fp32": "fp16"}.get(model.dtype, model.dtype)
    for candidate in (own, "bf16", "fp16"):
        if hardware.supports(candidate):
            return candidate
    return own


def released_scheme(model: Model, engine: Engine) -> str:
    """The scheme that an engine runs a checkpoint in, as `--quant` has it; `PLAIN` where it is not quantised there."""
    if model.quantization is None:
        return PLAIN
    return model.quantization if engine.checkpoints is None else engine.checkpoints.get(model.quantization, PLAIN)


def released(model: Model, hardware: Hardware, engine: Engine) -> Mapping[str, str]:
    """The formats of a checkpoint as it runs, as arguments of `parse_precision`; none where it is not quantised."""
    scheme = released_scheme(model, engine)
    weights, activations, kv = scheme_formats(scheme)
    found = {"weights": weights, "activations": None if lacking(scheme, hardware) else activations, "kv": kv}
    return {part: name for part, name in found.items() if name is not None}


def lacking(scheme: str, hardware: Hardware) -> str | None:
    """The arithmetic of a scheme's activations, where the device does not multiply in it."""
    activations = scheme_formats(scheme)[1]
    arithmetic = None if activations is None else find_format(activations).arithmetic
    return None if arithmetic is None or hardware.supports(arithmetic) else arithmetic


def precision_of(
    model: Model, hardware: Hardware, engine: Engine | str | None = None, **asked: str | None
) -> Precision:
    """The formats a model runs in: as asked for (arguments of `parse_precision`), else as it was released.

    `engine` is a profile or its name, by default the one of the hardware. Raises RooflineError naming what is unknown.
    """
    base = default_base(model, hardware)
    if model.quantization is None or any(asked.get(part) for part in SETTLED):
        return parse_precision(base, **asked)
    profile = profile_on(hardware, engine)
    chosen = {part: name for part, name in asked.items() if name is not None}
    found = parse_precision(base, **{**released(model, hardware, profile), **chosen})
    if released_scheme(model, profile) == model.quantization:
        found = replace(found, weights=found.weights.without(model.unquantised))
    return found
