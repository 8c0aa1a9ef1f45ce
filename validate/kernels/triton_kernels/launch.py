"""Tuning and launching, shared by all kernels: on the device, or compiled for a GPU that is absent.

Inside `compiled_only` a launch compiles every tile that tuning would try, with the very types, constants and alignments
of the operands, and runs nothing. Operands may then be on PyTorch's `meta` device: their shapes suffice.
"""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import triton
from msgspec import Struct

from roofline.validate.kernels import tools

TUNING_WARMUP, TUNING_TIME = 5, 20
"""Milliseconds to warm up and to time a tile when tuning: tiles differ by more than the noise of so short a time."""


class Binary(Struct, frozen=True):
    """A compiled kernel: its constants, and what one program of it takes of a multiprocessor.

    `shared` is in bytes, `registers` in 32-bit registers of a thread, `spilled` in bytes of local memory of a thread.
    """

    name: str
    constants: Mapping[str, Any]
    warps: int
    stages: int
    shared: int
    registers: int
    spilled: int
    instructions: tuple[str, ...]


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
def compiled_only(capability: int, multiprocessors: int) -> Iterator[Callable[[], list[Binary]]]:
    """Launches compile for an NVIDIA GPU and run nothing; what is yielded lists the binaries so far.

    `capability` is 90 for a compute capability of 9.0. It must be entered before any kernel ran in this process.
    """
    global _found
    from triton.runtime.driver import driver

    driver.set_active(_Absent(capability))
    _found, tools.absent_multiprocessors = [], multiprocessors
    try:
        yield partial(_binaries, _found)
    finally:
        _found, tools.absent_multiprocessors = None, None


def _binaries(found: Sequence[Any]) -> list[Binary]:
    """Every different binary, with its use of registers and local memory as NVIDIA's cuobjdump prints it."""
    different = {kernel.hash: kernel for kernel in found}
    return [_binary(kernel) for kernel in different.values()]


_MATRIX = re.compile(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.]+")


def _binary(kernel: Any) -> Binary:
    names = kernel.src.fn.arg_names
    constants = {names[path[0]]: value for path, value in kernel.src.constants.items()}
    usage = _resources(kernel.asm["cubin"])
    return Binary(
        kernel.name,
        {name: str(value) if not isinstance(value, int | float | bool) else value for name, value in constants.items()},
        kernel.metadata.num_warps,
        kernel.metadata.num_stages,
        kernel.metadata.shared,
        usage.get("REG", 0),
        usage.get("LOCAL", 0) + usage.get("STACK", 0),
        tuple(sorted(set(_MATRIX.findall(kernel.asm["ptx"])))),
    )


def _resources(cubin: bytes) -> Mapping[str, int]:
    """Registers, stack and local memory of a kernel; empty where there is no cuobjdump."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not program.is_file():
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        answer = subprocess.run(  # noqa: S603
            [str(program), "-res-usage", file.name], capture_output=True, text=True, check=False, timeout=60
        )
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", answer.stdout)}
