"""Number formats: effective bits per element, and native arithmetic."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec.structs import replace

from roofline.core.checked import Checked, Positive, Share
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.specs.weight_files.ggml import TYPES as GGML


class Format(Checked, frozen=True):
    """A number format: effective `bits` per element, scales and zero points included, and native `arithmetic`.

    `density` is the fraction of elements that a GEMM multiplies: below 1 for structured sparsity.
    """

    name: str
    bits: Positive
    arithmetic: str
    density: Share = 1.0

    @property
    def bytes(self) -> float:
        return self.bits / 8


def grouped(element: float, group: int, scale: float, zero: float = 0.0) -> float:
    """Effective bits per element if each `group` of elements shares a scale and a zero point of these bits."""
    return element + (scale + zero) / group


_FORMATS = (
    Format("fp32", 32, "fp32"),
    Format("tf32", 32, "tf32"),  # stored as fp32, multiplied with a 10-bit mantissa (NVIDIA A100 whitepaper)
    Format("bf16", 16, "bf16"),
    Format("fp16", 16, "fp16"),
    Format("fp8", 8, "fp8"),  # one scale per tensor
    Format("fp8_block", grouped(8, 128 * 128, 32), "fp8"),  # DeepSeek-V3 (2024) section 3.3: 128x128 weight blocks
    Format("fp8_group", grouped(8, 128, 32), "fp8"),  # the same paper: activations in groups of 1x128
    Format("int8", 8, "int8"),  # one scale per channel
    Format("int4", 4, "int4"),  # idealised: the literature's "W4", scales not counted
    Format("awq", grouped(4, 128, 16, 4), "int4"),  # Lin et al. 2023: groups of 128, fp16 scale, 4-bit zero point
    Format("gptq", grouped(4, 128, 16, 4), "int4"),  # Frantar et al. 2022, the usual groups of 128
    # Dettmers et al. 2023 (QLoRA): blocks of 64 with an 8-bit scale, themselves with an fp32 scale per 256.
    Format("nf4", grouped(4, 64, 8 + 32 / 256), "fp4"),
    Format("nf4_single", grouped(4, 64, 32), "fp4"),  # bitsandbytes without bnb_4bit_use_double_quant: fp32 scales
    Format("mxfp4", grouped(4, 32, 8), "fp4"),  # OCP Microscaling Formats 1.0: E2M1, blocks of 32, E8M0 scale
    Format("mxfp8", grouped(8, 32, 8), "fp8"),  # the same: E4M3
    Format("nvfp4", grouped(4, 16, 8), "fp4"),  # NVIDIA: E2M1, blocks of 16, E4M3 scale
    # llama.cpp's block formats, scales included
    *(Format(name, 8 * size / block, "int8") for name, block, size in GGML.values() if name.startswith(("q", "iq"))),
    Format("ternary", 2, "int8"),  # BitNet b1.58 as shipped: four weights packed in a byte, int8 arithmetic
    Format("binary", 1, "int8"),  # BitNet: 1-bit weights, int8 arithmetic
)

FORMATS: Mapping[str, Format] = MappingProxyType({f.name: f for f in _FORMATS})
"""Every named format. `find_format` also accepts `int1` to `int8` and, with groups of N elements, `int4-gN` (a 16-bit
scale, no zero point; other widths likewise), `awq-gN` and `gptq-gN`, and `affine4-gN` (MLX, HQQ: a 16-bit scale and a
16-bit offset; other widths likewise)."""

UNQUANTIZED_FORMATS = ("fp32", "tf32", "bf16", "fp16")
"""Formats of unquantized models."""

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
        "code": _SIXTEEN,  # codebook indices, or codes of a range within a group: usable only once decoded
    }
)
"""The arithmetics an operand of each format can be multiplied in, native first, then wider."""

WIDTH: Mapping[str, int] = MappingProxyType(
    {"int4": 4, "fp4": 4, "int8": 8, "fp8": 8, "fp16": 16, "bf16": 16, "tf32": 19, "fp32": 32}
)
"""Operand bits of each arithmetic; of the possible ones the narrowest is the fastest."""

DEQUANTIZE_FLOPS = 2
"""Vector FLOPs to dequantize an element: zero point and scale in one fused multiply-add."""


@lru_cache(maxsize=512)
def find_format(name: str) -> Format:
    """The format called `name`; raises UnknownNameError with the nearest one."""
    key = name.strip().lower().replace("-", "_")
    if key in FORMATS:
        return FORMATS[key]
    match = re.fullmatch(r"((?:int|affine)([1-8])|awq|gptq)(?:_g(\d{1,5}))?", key)
    if match is None:
        raise UnknownNameError("format", name, FORMATS)
    affine = match[1].startswith("affine")
    bits, zero = (int(match[2]), 16 if affine else 0) if match[2] else (4, 4)
    arithmetic = "int4" if bits <= 4 else "int8"
    if match[3] is None:
        return Format(key, bits, arithmetic)
    if (group := int(match[3])) < 1:
        raise RooflineError(f"the group size of {quote(name)} must be at least 1")
    return Format(f"{match[1]}-g{group}", grouped(bits, group, 16, zero), arithmetic)


CACHE_GROUPS: Mapping[int, int] = MappingProxyType({1: 32, 2: 32, 3: 64, 4: 64, 5: 64, 6: 64, 7: 64})
"""Cached elements that share a 16-bit scale and a 16-bit zero point, by their bits; 8 bits have one scale a tensor.

2 bits: KIVI (Liu et al. 2024, section 4), groups of 32. 4 bits: FlexGen (Sheng et al. 2023, section 4) and
Transformers' QuantizedCache (`q_group_size`), groups of 64. 8 bits: TensorRT-LLM's INT8 KV cache.
"""


def find_cache_format(name: str) -> Format:
    """The format `name` of a KV cache: integers of few bits have a scale and a zero point a group."""
    format = find_format(name)
    match = re.fullmatch(r"int([1-7])", format.name)
    if match is None:
        return format
    bits = int(match[1])
    return replace(format, bits=grouped(bits, CACHE_GROUPS[bits], 16, 16))


def without_scales(format: Format) -> Format:
    """A cache format of integers as the literature idealises it, scales and zero points not counted."""
    return find_format(format.name) if re.fullmatch(r"int[1-7]", format.name) else format


def pruned(format: Format, sparsity: float, index_bits: float) -> Format:
    """Unstructured sparsity: zeros are not stored, each nonzero has an index, and all elements are multiplied."""
    kept = 1 - sparsity
    return replace(format, name=f"{format.name}-sparse-{sparsity:g}", bits=kept * (format.bits + index_bits))


def structured(format: Format, kept: int, of: int) -> Format:
    """N:M sparsity: `kept` of every `of` elements are stored, each with its position, and multiplied."""
    share = kept / of
    bits = share * (format.bits + math.log2(of))
    return replace(format, name=f"{format.name}-{kept}:{of}", bits=bits, density=share)
