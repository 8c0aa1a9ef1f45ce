"""Precision: the formats of weights, activations, KV cache and arithmetic, chosen separately.

* A low-precision peak requires **all** operands in that precision and a device that supports it. Otherwise operands are
  upcast along `PROMOTIONS` to a common arithmetic of the device, at a cost on the vector unit.
* Checkpoints leave parts unquantized. A `WeightScheme` gives the format of each component of the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec import Struct

from roofline.core.checked import expect
from roofline.core.errors import RooflineError, UnknownNameError, located, quote, suggest
from roofline.specs.formats import UNQUANTIZED_FORMATS, WIDTH, Format, find_cache_format, find_format
from roofline.specs.names import undescribed
from roofline.specs.schemes import GGUF, WeightScheme, find_weight_scheme


class Precision(Struct, frozen=True):
    """The formats of a scenario.

    `base`: unquantized tensors, such as the residual stream, norms, queries and attention outputs. `activations`:
    inputs of linear layers. `kv`: the KV cache. `weights`: a scheme by component. `compute`: a forced arithmetic; None
    derives it from the operands. `queries`: queries and attention probabilities; None derives them (`attention`).
    """

    base: Format
    weights: WeightScheme
    activations: Format
    kv: Format
    compute: str | None = None
    queries: Format | None = None

    @property
    def attention(self) -> Format:
        """The format of queries and probabilities in the GEMMs of attention.

        The activation format if the KV cache has the same arithmetic, so that both operands match. Engines whose linear
        layers have narrower inputs (NVFP4) quantize queries to those of an FP8 cache (FlashInfer's TRT-LLM kernels);
        otherwise the base format.
        """
        if self.queries is not None:
            return self.queries
        if self.activations.arithmetic == "fp4" and self.kv.arithmetic == "fp8":
            return self.kv
        return self.activations if self.activations.arithmetic == self.kv.arithmetic else self.base

    def __repr__(self) -> str:
        return f"Precision(weights {self.weights.name}, activations {self.activations.name}, KV {self.kv.name})"

    def __hash__(self) -> int:
        return hash((self.base.name, self.weights, self.activations.name, self.kv.name, self.compute))


# Named schemes: weights, activations, KV; None keeps the base format.
SCHEMES: Mapping[str, tuple[str | None, str | None, str | None]] = MappingProxyType(
    {
        "fp8": ("fp8", "fp8", None),
        "fp8_block": ("fp8_block", "fp8_group", None),
        "int8": ("int8", "int8", None),
        "int4": ("int4", None, None),
        "w4afp8": ("int4_g128", "fp8", None),
        "awq": ("awq", None, None),
        "gptq": ("gptq", None, None),
        "nf4": ("nf4", None, None),
        "nf4_single": ("nf4_single", None, None),
        "mxfp4": ("mxfp4", None, None),
        "mxfp8": ("mxfp8", "mxfp8", None),
        "nvfp4": ("nvfp4", "nvfp4", None),
        "ternary": ("ternary", "int8", None),
        "binary": ("binary", "int8", None),
        **{scheme.name: (scheme.name, None, None) for scheme in GGUF},
    }
)
"""The schemes of `--quant NAME`, beside the notation W4, W8A8, W4A16KV8, KV4."""

PLAIN = "W16A16"
"""The unquantized scheme, which also overrides the format of a checkpoint."""

_NOTATION = re.compile(r"(?=.)(?:W(?P<w>\d+))?(?:A(?P<a>\d+))?(?:KV(?P<kv>\d+))?", re.IGNORECASE | re.ASCII)


def parse_precision(
    base: str,
    scheme: str | None = None,
    weights: str | None = None,
    activations: str | None = None,
    kv: str | None = None,
    compute: str | None = None,
) -> Precision:
    """The precision of a scheme and single formats; a single format overrides the scheme.

    `base` is the model's own format. Raises RooflineError for an unknown name, with the nearest valid one.
    """
    given = {"scheme": scheme, "weights": weights, "activations": activations, "kv": kv, "compute": compute}
    for part, name in {"base": base, **{part: name for part, name in given.items() if name is not None}}.items():
        expect(name, str, part)
    base_format = find_format(base)
    if scheme is not None:
        if scheme.strip().lower() in UNQUANTIZED_FORMATS:
            base_format = find_format(scheme)
        else:
            from_scheme = scheme_formats(scheme)
            weights = from_scheme[0] if weights is None else weights
            activations = from_scheme[1] if activations is None else activations
            kv = from_scheme[2] if kv is None else kv
    chosen = find_format(activations) if activations is not None else base_format
    if chosen.name in UNQUANTIZED_FORMATS:
        base_format = chosen
    if compute is not None and compute not in WIDTH:
        raise UnknownNameError("compute format", compute, WIDTH)
    return Precision(
        base=base_format,
        weights=find_weight_scheme(base_format.name if weights is None else weights),
        activations=chosen,
        kv=find_cache_format(kv) if kv is not None else base_format,
        compute=compute,
    )


def check_scheme(scheme: str, where: str, key: str) -> None:
    """Raise SpecError with the file and key if `scheme` is unknown."""
    with located(where, key):
        scheme_formats(scheme)


@lru_cache(maxsize=256)
def scheme_formats(scheme: str) -> tuple[str | None, str | None, str | None]:
    """The formats of weights, activations and KV cache in a scheme; None keeps the base format.

    Raises RooflineError for an unknown scheme, with the nearest one.

    >>> scheme_formats("W8A8KV4")
    ('int8', 'int8', 'int4')
    """
    key = scheme.strip().lower().replace("-", "_")
    if key in SCHEMES:
        return SCHEMES[key]
    if re.fullmatch(r"(awq|gptq|(int|affine)[1-8])_g\d{1,5}", key):
        return key, None, None
    if key == "w4a16_nvfp4":  # ModelOpt's and vLLM's name of NVFP4 weights alone
        return "nvfp4", None, None
    if key == "w8a16_fp8":  # compressed-tensors' FP8 weights alone
        return "fp8", None, None
    match = _NOTATION.fullmatch(scheme.strip())
    if match is None and (bits := re.fullmatch(r"(?:q|int|mlx)?_?([34568])_?bits?", key)):
        of = {"4": "awq or gptq (GPUs), nf4, q4_k_m (llama.cpp)", "8": "fp8 or int8 (GPUs), q8_0 (llama.cpp)"}
        of |= {"3": "q3_k_m (llama.cpp)", "5": "q5_k_m (llama.cpp)", "6": "q6_k (llama.cpp)"}
        names = f"{of[bits[1]]} or affine{bits[1]}_g64 (MLX)"
        raise RooflineError(f"{quote(scheme)} names no quantization scheme; of {bits[1]} bits are {names}")
    if match is None and (facts := undescribed(scheme, "formats")) is not None:
        raise RooflineError(f"unknown quantization scheme {quote(scheme)}: {facts}")
    if match is None:
        known = (*SCHEMES, *UNQUANTIZED_FORMATS)
        hint = suggest(scheme, known, listed=0) or "; write it like W4, W8A8, W4A16KV8, KV8, fp8, awq or q4_k_m"
        raise RooflineError(f"unknown quantization scheme {quote(scheme)}{hint}")

    def integer(part: str, what: str) -> str | None:
        bits = match[part]
        if bits is None or bits == "16":
            return None
        if bits == "32":
            return "fp32"
        if len(bits) > 3 or not 1 <= int(bits) <= 8:
            raise RooflineError(f"{quote(scheme)} has {quote(bits)[1:-1]}-bit {what}; use 1 to 8, 16 or 32 bits")
        return f"int{int(bits)}"

    return integer("w", "weights"), integer("a", "activations"), integer("kv", "KV cache")
