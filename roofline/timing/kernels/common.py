"""Shared parts of the kernel models: columns, the number formats of kernels, waves, and the smooth maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.errors import UnknownNameError, UnsupportedError
from roofline.core.parameters import Parameter, Unit
from roofline.specs.formats import FORMATS as STORED
from roofline.specs.hardware import Hardware
from roofline.specs.version import Releases

Array = NDArray[np.float64]
Columns = Mapping[str, Array | float | str]
"""The shape columns of the measurement schema, one kernel a row; text columns such as `dtype` have one value."""

Mask = bool | NDArray[np.bool_]
"""A flag for all rows, or one for each row."""


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

TRITON_EXPERTS = Releases("vllm", before="0.15")
"""Versions that run Triton's experts on any GPU; see `TRITON`."""

TRITON_QUANTIZED = Releases("tensorrt-llm", before="1.3.0rc6")
"""Versions that quantize activations of block-scaled GEMMs in Triton on Blackwell with HBM, 20 ns a row.

NVIDIA/TensorRT-LLM, pull requests 11478 (16% of the time of DeepSeek-V3 Lite on B200) and 11607 (2026-02-24), which
replaced it.
"""

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
    EXPERT_PARALLEL: Numbers("fp8", 1 + 4 / 128**2, quantizes=True),
    "nvfp4": Numbers("fp4", 0.5 + 1 / 16, quantizes=True),
    MIN_LATENCY: Numbers("fp4", 0.5 + 1 / 16, quantizes=True),
    "mxfp4": Numbers("fp4", 0.5 + 1 / 32, quantizes=True),
    "int4": Numbers("int4", 0.5, quantizes=True),
    "int4_wo": Numbers("bf16", 0.5 + 2 / 128, activation_bytes=2),
    "int8_wo": Numbers("bf16", 1, activation_bytes=2),
    "w4a16_mxfp4": Numbers("bf16", 0.5 + 1 / 32, activation_bytes=2),
    "w4afp8": Numbers("fp8", 0.5 + 2 / 128, quantizes=True, activation_bytes=1),
    "w4a8_mxfp4_mxfp8": Numbers("fp8", 0.5 + 1 / 32, quantizes=True, activation_bytes=1 + 1 / 32),
    **{f"ggml_{name}": Numbers("fp32", STORED[name].bytes, activation_bytes=2) for name in ("fp32", "fp16", "bf16")},
    **{
        f"ggml_{name}": Numbers("int8", format.bytes, activation_bytes=STORED["q8_0"].bytes)
        for name, format in STORED.items()
        if name.startswith(("q", "iq"))
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


def storage(columns: Columns) -> Numbers:
    """The storage and arithmetic of the rows' `dtype`.

    Optional columns override it for unmeasured kernels: `weight_bytes` (an element, scales included), `arithmetic`,
    where older hardware runs a 16-bit kernel in another arithmetic, and `input_share`, where a convolution's windows
    overlap.
    """
    form = numbers(text(columns, "dtype"))
    if "weight_bytes" in columns:
        own = float(text(columns, "weight_bytes"))
        form = replace(form, bytes=own, activation_bytes=form.input_bytes)
    if "input_share" in columns:
        form = replace(form, input_share=float(text(columns, "input_share")))
    return replace(form, arithmetic=text(columns, "arithmetic")) if "arithmetic" in columns else form


def text(columns: Columns, name: str, default: str | None = None) -> str:
    """The value of a text column such as `dtype`; raises UnsupportedError for several values."""
    value = columns.get(name, default)
    if value is None:
        raise UnknownNameError("column", name, columns)
    if isinstance(value, (str, float)):
        return str(value)
    values = np.unique(np.asarray(value))
    if len(values) != 1:
        raise UnsupportedError(f"kernels of one {name} at a time; got {', '.join(map(str, values[:5]))}")
    return str(values[0])


def some(mask: Mask) -> bool:
    """Whether any row has the flag."""
    return mask if isinstance(mask, bool) else bool(mask.any())


def column(columns: Columns, name: str, default: float | None = None) -> Array:
    """A shape column as floats; raises UnknownNameError where it is absent and has no default."""
    value = columns.get(name, default)
    if value is None:
        raise UnknownNameError("column", name, columns)
    return np.asarray(value, dtype=np.float64)


def is_bare(columns: Columns) -> bool:
    """Whether the rows leave out the kernels that quantize activations, sort tokens or write the KV cache.

    Tables of tuned kernels do; a served model runs these kernels, too. Raises UnsupportedError for a mixture.
    """
    if "bare" not in columns:
        return False
    values = column(columns, "bare") != 0
    if values.any() and not values.all():
        raise UnsupportedError("rows with and without 'bare' in one call; evaluate them separately")
    return bool(values.any())


SMALL = 4096
"""Rows up to which broadcasting copies a column, which takes a fifth of the time of making a view."""


def aligned(*columns: Array) -> tuple[Array, ...]:
    """Columns broadcast to one shape; read-only."""
    shape = np.broadcast(*columns).shape
    return tuple(column if column.shape == shape else _stretched(column, shape) for column in columns)


def _stretched(column: Array, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) > SMALL:
        return np.broadcast_to(column, shape)
    found = np.empty(shape)
    found[...] = column
    return found


def units(hardware: Hardware) -> float:
    """The number of multiprocessors, compute units or cores.

    Where no document gives it, it is estimated from the peak: one unit for each 16 TFLOP/s, as on accelerators of 2022
    to 2024; it only sets the granularity of waves. The few large cores of an NPU are estimated so, too, since the
    constants of a unit are a GPU's. Hardware whose peaks are varied keeps its number: faster units, not more of them.
    """
    if hardware.assumed_units is not None:
        return hardware.assumed_units
    if hardware.units is not None and hardware.kind != "npu":
        return float(hardware.units)
    peak = max((*hardware.tensor.values(), *hardware.vector.values()))
    return max(1.0, peak / 16e12)


def has_tensor_memory(hardware: Hardware) -> bool:
    """Whether the matrix units have the instructions of tensor memory (tcgen05): those of Blackwell with HBM.

    GeForce, RTX PRO and GB10 have the `mma` of Ada, and such kernels (CUTLASS, functionality.md: SM100 and SM120).
    """
    return hardware.family == "blackwell" and hardware.memory_class == "hbm"


def unit_clocks(hardware: Hardware) -> float:
    """Clocks a second of all multiprocessors; without a clock in the spec, those of 128 FP32 lanes at the FP32 peak."""
    if hardware.clock:
        return units(hardware) * hardware.clock
    return (hardware.vector_peak or np.inf) / 256.0


def l2_bytes(hardware: Hardware) -> float:
    """The last-level cache in bytes; 0 where it is unknown."""
    return hardware.l2 or 0.0


def smooth_maximum(first: Array, second: Array, sharpness: Array | float) -> Array:
    """`(first^p + second^p)^(1/p)`: the maximum where one dominates, 2^(1/p) times it where they are equal.

    Compute and memory overlap imperfectly within a kernel; p = 1 is no overlap.
    """
    return _smooth(np.maximum(first, second), np.minimum(first, second), sharpness)


def _smooth(larger: Array, smaller: Array, sharpness: Array | float) -> Array:
    ratio = np.divide(smaller, larger, out=np.zeros(larger.shape), where=larger > 0)
    return larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)


OVERLAP = Parameter("overlap", Unit.SECONDS, 1e-6, 1.0, 1.0, "duration from which sharpness grows", start=20e-6)
"""Of attention, and of GEMMs and MLA decode on 16-bit operands; others gain nothing."""


def sharpness(longer: Array | float, parameters: Mapping[str, float]) -> Array | float:
    """The exponent of a kernel whose longer part takes so many seconds.

    The first loads and the last tiles overlap with nothing, whatever the length of a kernel.
    """
    begun = parameters.get("overlap")
    return parameters["sharpness"] * (1.0 if begun is None else np.sqrt(1.0 + longer / begun))


def overlapped(on_units: Array, over_memory: Array, parameters: Mapping[str, float]) -> Array:
    """The seconds of units and memory together: a smooth maximum that long kernels come nearer to."""
    longer = np.maximum(on_units, over_memory)
    return _smooth(longer, np.minimum(on_units, over_memory), sharpness(longer, parameters))


def rounds(waves: Array, quantization: float) -> Array:
    """Effective waves: whole waves for the fraction `quantization` of a kernel, else balanced; at least one."""
    return (1.0 - quantization) * np.maximum(1.0, waves) + quantization * np.ceil(waves)


NO_HOST = 1e-9
"""Host time that a benchmark with CUDA graphs does not wait for."""


def host_parameter(high: float, start: float) -> Parameter:
    """The parameter `host` of a kernel that some benchmarks launch without a CUDA graph."""
    meaning = "host time to launch, in a benchmark without CUDA graphs"
    return Parameter("host", Unit.SECONDS, NO_HOST, high, NO_HOST, meaning, start=start, host=True)


def benchmarked(time: Array, parameters: Mapping[str, float], resident: Mask, growth: Array | float = 1.0) -> Array:
    """Seconds in a benchmark (`resident` rows) that launches the kernel anew each time: no less than the host's."""
    host = parameters.get("host", NO_HOST)
    if host <= NO_HOST or not some(resident):
        return time
    return np.where(resident, smooth_maximum(time, np.asarray(host * growth), 8.0), time)


def resident_share(footprint: Array, cache: float, exponent: float) -> Array:
    """The fraction of `footprint` bytes that stays in a cache of `cache` bytes: 1 far below its size, 0 far above.

    For benchmarks that replay the same buffers; in a served model weights and KV are cold.
    """
    if cache <= 0:
        return np.zeros_like(footprint)
    return 1.0 / (1.0 + np.minimum(footprint / cache, 1e6) ** exponent)


def ceil_div(amount: Array, step: Array | float) -> Array:
    """`amount / step`, rounded up."""
    return np.ceil(amount / step)
