"""Tuning and launching, shared by all kernels: on the device, or compiled for a GPU that is absent.

Inside `compiled_only` a launch compiles every tile that tuning would try, with the very types, constants and alignments
of the operands, and runs nothing. Operands may then be on PyTorch's `meta` device: their shapes suffice.
"""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import triton

from roofline.validate.kernels import tools

TUNING_WARMUP, TUNING_TIME = 5, 20
"""Milliseconds to warm up and to time a tile when tuning: tiles differ by more than the noise of so short a time."""


_found: list[Any] | None = None


def autotune(configs: Sequence[Any], key: Sequence[str], prune: Callable[..., list[Any]]) -> Any:
    """Triton's tuner over `configs`, with short timings; `prune` selects the tiles for the arguments of a launch."""

    def timed(call: Callable[[], object], quantiles: Sequence[float]) -> Any:
        from triton.testing import do_bench

        return do_bench(call, warmup=TUNING_WARMUP, rep=TUNING_TIME, quantiles=quantiles)

    return triton.autotune(list(configs), key=list(key), prune_configs_by={"early_config_prune": prune}, do_bench=timed)


def launch(kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
    """Run a kernel, or compile its tiles inside `compiled_only`."""
    if _found is None:
        kernel[grid](*arguments, **constants)
        return
    made = kernel.warmup(*arguments, grid=grid, **constants)
    _found.extend(made if isinstance(made, list) else [made])


class _Absent:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def compiled_only(capability: int, multiprocessors: int) -> Iterator[list[Any]]:
    """Launches compile for an NVIDIA GPU and run nothing; what is yielded lists the compiled kernels so far.

    `capability` is 90 for a compute capability of 9.0. It must be entered before any kernel ran in this process.
    """
    global _found
    from triton.runtime.driver import driver

    driver.set_active(_Absent(capability))
    _found, tools.absent_multiprocessors = [], multiprocessors
    try:
        yield _found
    finally:
        _found, tools.absent_multiprocessors = None, None
