"""A synthetic machine: its kernels take the times of the simulator's forms with known constants, and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.kernels import kernel, kernel_time
from roofline.validate.kernels.benchmark import Benchmark, Tensors
from roofline.validate.kernels.work import Case
from roofline.validate.measure.device import Call, Device, Sample

H100 = load_hardware("h100-sxm")
NOISE = 0.05


def constants(op: str, format: str = "bf16", **changes: float) -> dict[str, float]:
    known = {parameter.name: parameter.default for parameter in kernel(op).parameters(format)}
    return {**known, **changes}


MACHINE: Mapping[str, Mapping[str, float]] = {
    "gemm": constants("gemm", launch=6e-6, compute_efficiency=0.62, memory_efficiency=0.71),
    "attention_prefill": constants("attention_prefill", launch=16e-6, compute_efficiency=0.45),
    "attention_decode": constants("attention_decode", launch=15e-6, memory_efficiency=0.75),
    **{
        op: constants(op, launch=3e-6, memory_efficiency=0.66)
        for op in ("norm", "softmax", "activation", "rope", "copy")
    },
}


def true_time(case: Case, hardware: Hardware = H100, slower: Mapping[str, float] | None = None) -> float:
    """Seconds of a case on the machine; `slower` changes constants by a factor."""
    truth = dict(MACHINE[case.op])
    for name, factor in (slower or {}).items():
        truth = {**truth, name: truth[name] * factor} if name in truth else truth
    columns: dict[str, Any] = {
        name: value if isinstance(value, str) else float(value) for name, value in case.columns.items()
    }
    return float(kernel_time(case.op, {**columns, "op": case.op}, hardware, truth))


class FakeDevice(Device):
    """A device whose clock is a formula: what ran last says how long it takes."""

    name = "cuda"

    def __init__(self, seed: int = 0, noise: float = NOISE, slower: Mapping[str, float] | None = None) -> None:
        self.memory, self.cache = 60e9, 50e6
        self.random = np.random.default_rng(seed)
        self.noise = noise
        self.slower = slower
        self.timed: list[Case] = []

    @property
    def state(self) -> Mapping[str, str]:
        return {"device": "Fake H100", "driver": "1.0", "clock_mhz": "1980", "temperature_c": "40"}

    @property
    def software(self) -> str:
        return "torch 2.13.0; CUDA 13.0"

    def time(self, calls: Sequence[Call], cold: bool, replayed: bool = False) -> Sample:
        calls[0]()
        case = FakeBenchmark.last
        assert case is not None
        self.timed.append(case)
        middle = true_time(case, slower=self.slower) * np.exp(self.noise * self.random.standard_normal())
        seconds = middle * np.exp(0.2 * self.noise * self.random.standard_normal(9))
        return Sample(tuple(sorted(map(float, seconds))), "graph")


class FakeBenchmark(Benchmark):
    """A kernel that does nothing but say that it was called."""

    dtypes = ("bf16", "fp8")
    last: Case | None = None

    def __init__(self, op: str, error: Exception | None = None) -> None:
        self.op = op
        self.error = error
        self.backends = {"triton": self.run, "torch": self.run}

    def run(self, case: Case, inputs: Tensors, outputs: Tensors) -> None:
        if self.error is not None and case.dtype == "fp8":
            raise self.error
        FakeBenchmark.last = case

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, Any]:
        return {}

    def outputs(self, case: Case, device: str) -> dict[str, Any]:
        return {}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, Any]:
        return {}


def fake_benchmarks(error: Exception | None = None) -> dict[str, Benchmark]:
    return {op: FakeBenchmark(op, error) for op in MACHINE}
