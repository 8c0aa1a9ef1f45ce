"""Identify this machine's hardware: a bundled spec where a GPU matches one, else a spec of what is measured.

A new spec holds what the driver or the operating system reports (capacity, units, clock, cache) and what is measured:
bandwidth by streaming kernels, peaks by large GEMMs, each with the source "measured by roofline validate measure".
"""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import yaml
from msgspec import Struct, field

from roofline.core.errors import UnknownNameError
from roofline.core.units import si
from roofline.specs.hardware import MEASURED, Hardware, load_hardware
from roofline.specs.hardware_files import parse_hardware
from roofline.validate.kernels.benchmark import torch_dtype
from roofline.validate.measure.device import Call, Cpu, Cuda, Device, is_out_of_memory
from roofline.validate.measure.host import cpu_field, total_memory

GPUS = {"NVIDIA GH200 480GB": "gh200", "NVIDIA B300 SXM6 AC": "b300-sxm", "NVIDIA GB10": "dgx-spark"}
"""Bundled specs by names in drivers that name the hardware otherwise."""

FAMILIES = {
    (7, 0): "volta",
    (7, 5): "turing",
    **dict.fromkeys(((8, 0), (8, 6), (8, 7)), "ampere"),
    (8, 9): "ada",
    (9, 0): "hopper",
    **dict.fromkeys(((10, 0), (10, 3), (12, 0), (12, 1)), "blackwell"),
}
"""Architectures by NVIDIA compute capability."""

MEMORY_TOLERANCE = 0.12
"""Relative difference of a GPU's memory from its spec: firmware and ECC reserve a part of it."""

PEAK_TIME = {"cuda": 2e-3, "cpu": 40e-3}
"""Seconds: the GEMMs that measure a peak grow until one takes this long."""

MAX_WIDTH = 16384
"""Rows of the largest GEMM that measures a peak."""

MATRIX = ("bf16", "fp16", "fp8", "int8")
"""Formats that a GPU multiplies on its tensor cores."""

FORMATS = {"cuda": ("fp32", "fp16", "bf16", "fp8", "int8"), "cpu": ("fp32", "bf16", "int8")}
"""Formats whose peaks are measured."""

INSTRUCTIONS = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16", "avx_ne_convert"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp"),
}
"""The names by which an operating system says that a CPU multiplies in a format."""


class Machine(Struct, frozen=True):
    """The hardware to predict with, whether its spec is bundled, and its measured rates.

    `peaks` are achieved FLOP/s by format, `bandwidth` achieved B/s; `spec` is the text of a hardware file for it.
    """

    hardware: Hardware
    bundled: bool
    title: str
    bandwidth: float
    peaks: Mapping[str, float] = field(default_factory=dict)
    spec: str = ""

    @property
    def lines(self) -> list[str]:
        """Text: each achieved rate, and its fraction of the datasheet's."""
        name = self.hardware.name
        known = "bundled datasheet" if self.bundled else "no bundled datasheet: its spec is what was measured"
        found = [f"{self.title}: {name} ({known})"]
        found += [_achieved("bandwidth", self.bandwidth, self.hardware.memory_bandwidth, "B/s", self.bundled)]
        for format, peak in self.peaks.items():
            sheet = self.hardware.matrix_peak(format) if self.hardware.supports(format) else None
            found.append(_achieved(f"{format} GEMM", peak, sheet, "FLOP/s", self.bundled))
        return found


def _achieved(name: str, value: float, sheet: float | None, unit: str, bundled: bool) -> str:
    if not bundled:
        return f"  {name}: {si(value, unit)} achieved"
    if sheet is None:
        return f"  {name}: {si(value, unit)} achieved; the datasheet gives none"
    return f"  {name}: {si(value, unit)} achieved, {100 * value / sheet:.0f}% of the datasheet's {si(sheet, unit)}"


def examine(device: Device) -> Machine:
    """Identify `device` and measure its bandwidth and peaks, in a few seconds."""
    bandwidth = achieved_bandwidth(device)
    peaks = {format: peak for format in formats_of(device) if (peak := achieved_peak(device, format))}
    if isinstance(device, Cuda):
        properties = device.torch.cuda.get_device_properties(0)
        known = bundled(properties.name, float(properties.total_memory), int(properties.multi_processor_count))
        if known is not None:
            return Machine(known, bundled=True, title=device.title, bandwidth=bandwidth, peaks=peaks)
        content = _gpu_spec(properties, device, bandwidth, peaks)
    else:
        content = _cpu_spec(device, bandwidth, peaks)
    text = _rendered(content)
    hardware = parse_hardware(yaml.safe_load(text), content["name"])
    return Machine(hardware, bundled=False, title=content["title"], bandwidth=bandwidth, peaks=peaks, spec=text)


def bundled(name: str, memory: float, units: int | None) -> Hardware | None:
    """The bundled hardware with the driver's `name`, if memory and units agree with its spec; else None.

    A MIG instance has fewer units and less memory than the GPU, and is no bundled hardware.
    """
    try:
        hardware = load_hardware(GPUS.get(name, name))
    except UnknownNameError:
        return None
    same = abs(memory / hardware.memory_capacity - 1) < MEMORY_TOLERANCE
    whole = units is None or hardware.units is None or units == hardware.units
    return hardware if same and whole else None


def formats_of(device: Device) -> tuple[str, ...]:
    """The formats whose peaks are measured: a CPU's only where it has instructions for them."""
    if device.name != "cpu":
        return FORMATS[device.name]
    return tuple(format for format in FORMATS["cpu"] if format == "fp32" or _flags() & set(INSTRUCTIONS[format]))


def _flags() -> set[str]:
    """The instruction set extensions of this CPU, by the operating system's names."""
    return set((cpu_field("flags") or cpu_field("Features") or "").split())


def cpu_family() -> str:
    """The calibrations of this CPU: those of ARM, or of x86 with or without integer dot products (VNNI)."""
    if platform.machine() in ("aarch64", "arm64"):
        return "arm"
    flags = _flags()
    return "avx2" if "avx2" in flags and not flags & set(INSTRUCTIONS["int8"]) else "cpu"


# --- measuring ---


def achieved_bandwidth(device: Device) -> float:
    """B/s of the fastest of a copy, a triad and a sum of arrays larger than the caches."""
    torch = device.torch
    count = int(min(max(1.5 * device.cache, 64e6), 0.15 * device.memory)) // 4
    first, second, third = (torch.ones(count, device=device.name) for _ in range(3))
    kernels: tuple[tuple[float, Call], ...] = (
        (8.0, partial(third.copy_, first)),
        (12.0, partial(torch.add, first, second, alpha=2.0, out=third)),
        (4.0, first.sum),
    )
    best = max(bytes * count / device.time([call], cold=False).percentile(0.1) for bytes, call in kernels)
    del first, second, third, kernels
    device.release()
    return best


def achieved_peak(device: Device, format: str) -> float | None:
    """FLOP/s of square GEMMs, grown until one takes `PEAK_TIME`; None where the device lacks the format."""
    best, width = 0.0, 512
    while width <= MAX_WIDTH:
        try:
            seconds = device.time([_gemm_call(device, format, width)], cold=False).percentile(0.1)
        except (RuntimeError, TypeError, ValueError, AttributeError, MemoryError) as error:
            if is_out_of_memory(error):
                break
            return best or None
        finally:
            device.release()
        best = max(best, 2.0 * width**3 / seconds)
        if seconds > PEAK_TIME[device.name]:
            break
        width *= 2
    return best or None


def _gemm_call(device: Device, format: str, width: int) -> Call:
    """A square GEMM in `format`, its second operand transposed like weights."""
    torch = device.torch
    dtype, on = torch_dtype(format), device.name
    left, right = (
        torch.randint(-8, 8, (width, width), dtype=dtype, device=on)
        if format == "int8"
        else torch.randn(width, width, device=on).to(dtype)
        for _ in range(2)
    )
    if format == "fp8":
        scale = torch.ones((), device=on)
        return partial(torch._scaled_mm, left, right.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    if format == "int8":
        return partial(torch._int_mm, left, right.t())
    return partial(torch.mm, left, right.t(), out=torch.empty(width, width, dtype=dtype, device=on))


# --- the spec of new hardware ---


def _gpu_spec(properties: Any, device: Cuda, bandwidth: float, peaks: Mapping[str, float]) -> dict[str, Any]:
    capability = (int(properties.major), int(properties.minor))
    amd = bool(getattr(device.torch.version, "hip", None))
    clock = getattr(properties, "clock_rate", None)
    cache = getattr(properties, "L2_cache_size", None)
    return {
        "name": slug(device.title.removeprefix("NVIDIA ").removeprefix("GeForce ")),
        "title": device.title,
        "vendor": "AMD" if amd else "NVIDIA",
        "family": str(getattr(properties, "gcnArchName", "cdna")).split(":")[0]
        if amd
        else FAMILIES.get(capability, f"sm{capability[0]}{capability[1]}"),
        "kind": "gpu",
        "capacity": float(properties.total_memory),
        "bandwidth": bandwidth,
        "units": int(properties.multi_processor_count),
        "clock": float(clock) * 1e3 if clock else None,
        "tensor": {format: peak for format, peak in peaks.items() if format in MATRIX},
        "vector": {format: peak for format, peak in peaks.items() if format not in MATRIX},
        "l2": float(cache) if cache else None,
    }


def _cpu_spec(device: Device, bandwidth: float, peaks: Mapping[str, float]) -> dict[str, Any]:
    assert isinstance(device, Cpu)
    title, threads = device.state["device"], device.threads
    clock = cpu_field("cpu MHz")
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "Apple": "Apple"}.get(cpu_field("vendor_id") or "")
    return {
        "name": slug(f"{title} {threads} thread{'s' if threads > 1 else ''}"),
        "title": f"{title}, {threads} thread{'s' if threads > 1 else ''}",
        "vendor": vendor or cpu_field("vendor_id") or platform.machine() or "unknown",
        "family": cpu_family(),
        "kind": "cpu",
        "capacity": total_memory(),
        "bandwidth": bandwidth,
        "units": threads,
        "clock": float(clock) * 1e6 if clock else None,
        "tensor": {},
        "vector": dict(peaks),
        "l2": device.cache,
    }


def slug(title: str) -> str:
    """A name for a spec: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9.+]+", "-", title.lower()).strip("-")[:72] or "machine"


def _rendered(content: Mapping[str, Any]) -> str:
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    precise = partial(si, digits=5)
    measured = {
        unit: {
            format: f"{precise(peak, 'OP/s' if format.startswith('int') else 'FLOP/s')}"
            " [measured; achieved in large GEMMs]"
            for format, peak in content[unit].items()
        }
        for unit in ("tensor", "vector")
    }
    compute = {
        "units": f"{content['units']} [system]",
        "clock": content["clock"] and f"{precise(content['clock'], 'Hz')} [system]",
        **measured,
    }
    cache = content["l2"] and {"l2": f"{precise(content['l2'], 'B')} [system; the last level]"}
    document = {
        **{key: content[key] for key in ("name", "title", "vendor", "family", "kind")},
        "memory": {
            "capacity": f"{precise(content['capacity'], 'B')} [system]",
            "bandwidth": f"{precise(content['bandwidth'], 'B/s')} [measured; the fastest of a copy, a triad and a sum]",
        },
        "compute": {key: value for key, value in compute.items() if value},
        **({"cache": cache} if cache else {}),
        "sources": {
            "measured": f"{MEASURED} on {date}",
            "system": f"reported by the operating system and the driver, {date}",
        },
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
