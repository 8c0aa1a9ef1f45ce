"""Number formats of kernels: how operands are stored, and the arithmetic that multiplies them.

Some names are of a kernel beside a format: engines have several kernels for one, each with constants of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import UnknownNameError
from roofline.specs.formats import FORMATS as STORED
from roofline.timing.kernels.model import Row, text


class Numbers(Struct, frozen=True):
    """A kernel's storage of operands (bytes an element, scales included) and the arithmetic that multiplies them.

    `bytes` are those of weights, and of activations without `activation_bytes`. `quantizes`: a separate kernel converts
    16-bit activations first. `input_share`: elements of the activations that are read from memory, over m * k.
    """

    arithmetic: str
    bytes: float
    quantizes: bool = False
    activation_bytes: float | None = None
    input_share: float = 1.0

    @property
    def input_bytes(self) -> float:
        """Bytes an element of the activations."""
        return self.bytes if self.activation_bytes is None else self.activation_bytes


MIN_LATENCY = "nvfp4_min_latency"
"""NVFP4 experts in the kernel that TensorRT-LLM has for few tokens, beside the one for many."""

EXPERT_PARALLEL = "fp8_block_ep"
"""Block-scaled experts in the kernel that vLLM has for expert ranks on Hopper (CUTLASS), beside Triton's for the others
(all rows of vLLM 0.24 there, and `select_fp8_moe_backend` in its fused_moe/oracle/fp8.py)."""

UNTUNED = "fp8_untuned"
"""FP8 experts in CUTLASS's kernels on Hopper with the tactic that FlashInfer falls back to: vLLM's tables from 0.24 run
the layer without the autotuning of a served engine's start (vllm-project/vllm, pull request 27904), and read weights
at an eighth of the memory's bandwidth."""

TRITON = {name: f"{name}_triton" for name in ("bf16", "fp8", "fp8_block", "int4_wo")}
"""Experts in Triton's kernels on GPUs where vLLM runs others since 0.15: its public tables up to 0.23 call these by
name (`fused_experts` in the collector), whatever a served engine runs (vllm-project/vllm, pull request 32414)."""

MXFP4_TRITON, MXFP4_TRITON_RANKS, MXFP4_TRTLLM = ("w4a16_mxfp4_triton", "w4a16_mxfp4_triton_ep", "w4a16_mxfp4_trtllm")
"""MXFP4 experts on 16-bit activations beside Marlin's (`w4a16_mxfp4`, on any NVIDIA GPU): in OpenAI's Triton kernels on
Hopper, which map the experts of ranks in further kernels, and in FlashInfer's TRT-LLM ones on Blackwell with HBM."""

FLASHINFER = "fp8_block_flashinfer"
"""Block-scaled GEMMs in FlashInfer's TRT-LLM kernels, beside DeepGEMM's (SGLang's --fp8-gemm-backend)."""

_FORMATS: Mapping[str, Numbers] = {
    "fp32": Numbers("fp32", 4),
    "tf32": Numbers("tf32", 4),
    "bf16": Numbers("bf16", 2),
    "fp16": Numbers("fp16", 2),
    "fp8": Numbers("fp8", 1, quantizes=True),
    "fp8_static": Numbers("fp8", 1, quantizes=True),
    "int8": Numbers("int8", 1, quantizes=True),
    "fp8_block": Numbers("fp8", 1 + 4 / 128**2, quantizes=True),
    UNTUNED: Numbers("fp8", 1, quantizes=True),
    **dict.fromkeys((EXPERT_PARALLEL, FLASHINFER), Numbers("fp8", 1 + 4 / 128**2, quantizes=True)),
    "nvfp4": Numbers("fp4", 0.5 + 1 / 16, quantizes=True),
    MIN_LATENCY: Numbers("fp4", 0.5 + 1 / 16, quantizes=True),
    "mxfp4": Numbers("fp4", 0.5 + 1 / 32, quantizes=True),
    "int4": Numbers("int4", 0.5, quantizes=True),
    "int4_wo": Numbers("bf16", 0.5 + 2 / 128, activation_bytes=2),
    "int8_wo": Numbers("bf16", 1, activation_bytes=2),
    **dict.fromkeys(
        ("w4a16_mxfp4", MXFP4_TRITON, MXFP4_TRITON_RANKS, MXFP4_TRTLLM),
        Numbers("bf16", 0.5 + 1 / 32, activation_bytes=2),
    ),
    "w4afp8": Numbers("fp8", 0.5 + 2 / 128, quantizes=True, activation_bytes=1),
    "w4a8_mxfp4_mxfp8": Numbers("fp8", 0.5 + 1 / 32, quantizes=True, activation_bytes=1 + 1 / 32),
    **{f"ggml_{name}": Numbers("fp32", STORED[name].bytes, activation_bytes=2) for name in ("fp32", "fp16", "bf16")},
    **{
        f"ggml_{name}": Numbers("int8", format.bytes, activation_bytes=STORED["q8_0"].bytes)
        for name, format in STORED.items()
        if name.startswith(("q", "iq", "mxfp4"))
    },
}

FORMATS: Mapping[str, Numbers] = {**_FORMATS, **{own: _FORMATS[name] for name, own in TRITON.items()}}
"""By the names of measurement files. Weight-only formats multiply in the arithmetic of the activations.

Those of `ggml_` are the kernels of llama.cpp on CPUs (`roofline.timing.kernels.ggml`).
"""


def numbers(dtype: str) -> Numbers:
    """The storage and arithmetic of the format `dtype`; raises UnknownNameError."""
    if dtype not in FORMATS:
        raise UnknownNameError("kernel format", dtype, FORMATS)
    return FORMATS[dtype]


def storage(row: Row) -> Numbers:
    """The storage and arithmetic of the rows' `dtype`.

    Optional columns override it for unmeasured kernels: `weight_bytes` (an element, scales included), `arithmetic`,
    where older hardware runs a 16-bit kernel in another arithmetic, and `input_share`, where a convolution's windows
    overlap.
    """
    form = numbers(text(row, "dtype"))
    if "weight_bytes" in row:
        own = float(text(row, "weight_bytes"))
        form = replace(form, bytes=own, activation_bytes=form.input_bytes)
    if "input_share" in row:
        form = replace(form, input_share=float(text(row, "input_share")))
    return replace(form, arithmetic=text(row, "arithmetic")) if "arithmetic" in row else form
