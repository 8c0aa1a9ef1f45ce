"""The benchmark of each op: this project's kernels where they can be imported, eager PyTorch otherwise.

A weight-only GEMM is a `gemm` of the schema in the format `int4_wo`: `MultiFormatBenchmark` selects the benchmark by
format. CPUs are always measured with eager PyTorch, which is what runs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from roofline.validate.kernels import eager
from roofline.validate.kernels.benchmark import Backend, Benchmark, Tensors
from roofline.validate.kernels.work import Case

if TYPE_CHECKING:
    import torch

MODULES: Mapping[str, Sequence[str]] = {
    "gemm": ("GEMM", "WEIGHT_ONLY"),
    "experts": ("EXPERTS",),
    "attention": ("PREFILL", "DECODE"),
    "streaming": ("NORM", "SOFTMAX", "ACTIVATION", "ROPE", "COPY"),
}
"""Modules of this package and the benchmarks in them."""


class MultiFormatBenchmark(Benchmark):
    """Several benchmarks of one op, each with formats of its own, as one benchmark."""

    def __init__(self, members: Sequence[Benchmark]) -> None:
        self.op = members[0].op
        self.members = {dtype: member for member in reversed(members) for dtype in member.dtypes}
        self.dtypes = tuple(dict.fromkeys(dtype for member in members for dtype in member.dtypes))

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The backends of all members; the member that has the case's format runs it."""
        names = dict.fromkeys(name for member in self.members.values() for name in member.backends)
        return {name: self._backend(name) for name in names}

    def _backend(self, name: str) -> Backend:
        def run(case: Case, inputs: Tensors, outputs: Tensors) -> None:
            self.members[case.dtype].backends[name](case, inputs, outputs)

        return run

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Those of the member that has the format."""
        return self.members[case.dtype].inputs(case, device, seed)

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Those of the member that has the format."""
        return self.members[case.dtype].outputs(case, device)

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """That of the member that has the format."""
        return self.members[case.dtype].reference(case, inputs)

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """That of the member that has the format."""
        if case.dtype not in self.members:
            return f"no benchmark of {self.op} has {case.dtype}"
        return self.members[case.dtype].refusal(case, backend, device)


def benchmarks(device: str = "cuda") -> dict[str, Benchmark]:
    """The benchmark of every op that can be measured on the device."""
    if device == "cpu":
        return dict(eager.BENCHMARKS)
    found: dict[str, list[Benchmark]] = {}
    for module, names in MODULES.items():
        try:
            imported = import_module(f"roofline.validate.kernels.{module}")
        except ImportError:
            continue
        for benchmark in (getattr(imported, name) for name in names):
            found.setdefault(benchmark.op, []).append(benchmark)
    own = {op: members[0] if len(members) == 1 else MultiFormatBenchmark(members) for op, members in found.items()}
    return {**eager.BENCHMARKS, **own}
