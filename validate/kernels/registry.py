"""Which benchmark measures an op: this project's kernels where they can be imported, plain PyTorch otherwise.

A weight-only product is a `gemm` of the schema in the format `int4_wo`: `Joined` asks the benchmark that has a format.
On processors it is always plain PyTorch, which is what runs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from roofline.validate.kernels import plain
from roofline.validate.kernels.benchmark import Benchmark, Tensors, Way
from roofline.validate.kernels.work import Case

if TYPE_CHECKING:
    import torch

MODULES: Sequence[tuple[str, str]] = (
    ("gemm", "GEMM"),
    ("weight_only", "WEIGHT_ONLY"),
    ("experts", "EXPERTS"),
    ("prefill", "PREFILL"),
    ("decode", "DECODE"),
    ("streaming", "NORM"),
    ("streaming", "SOFTMAX"),
    ("streaming", "ACTIVATION"),
    ("streaming", "ROPE"),
    ("streaming", "COPY"),
)
"""Modules of this package and the benchmarks in them."""


class Joined(Benchmark):
    """Benchmarks of one op that have different formats, as one."""

    def __init__(self, members: Sequence[Benchmark]) -> None:
        self.op = members[0].op
        self.members = {dtype: member for member in reversed(members) for dtype in member.dtypes}
        self.dtypes = tuple(dict.fromkeys(dtype for member in members for dtype in member.dtypes))

    def _of(self, case: Case) -> Benchmark:
        return self.members[case.dtype]

    @property
    def ways(self) -> Mapping[str, Way]:
        """Every way of any of them; the benchmark of a case's format runs it."""
        names = dict.fromkeys(way for member in self.members.values() for way in member.ways)
        return {name: self._way(name) for name in names}

    def _way(self, name: str) -> Way:
        def run(case: Case, inputs: Tensors, outputs: Tensors) -> None:
            self._of(case).ways[name](case, inputs, outputs)

        return run

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Those of the benchmark of the format."""
        return self._of(case).inputs(case, device, seed)

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Those of the benchmark of the format."""
        return self._of(case).outputs(case, device)

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """That of the benchmark of the format."""
        return self._of(case).reference(case, inputs)

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """What the benchmark of the format says."""
        if case.dtype not in self.members:
            return f"no benchmark of {self.op} has {case.dtype}"
        return self._of(case).refusal(case, way, device)


def benchmarks(device: str = "cuda") -> dict[str, Benchmark]:
    """The benchmark of every op that can be measured on the device."""
    if device == "cpu":
        return dict(plain.BENCHMARKS)
    found: dict[str, list[Benchmark]] = {}
    for module, name in MODULES:
        try:
            benchmark = getattr(import_module(f"roofline.validate.kernels.{module}"), name)
        except (ImportError, AttributeError):
            continue
        found.setdefault(benchmark.op, []).append(benchmark)
    own = {op: members[0] if len(members) == 1 else Joined(members) for op, members in found.items()}
    return {**plain.BENCHMARKS, **own}
