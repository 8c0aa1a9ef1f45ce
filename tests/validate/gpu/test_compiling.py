"""Every kernel and tile of the plan compiles for Hopper, fits its shared memory, and spills no register.

Compiling needs a process in which Triton is not interpreted. `python test_compiling.py [--all]` prints a table.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("PyTorch or Triton is not installed", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("Triton compiles on Linux alone", allow_module_level=True)

from roofline.validate.gpu import shapes
from roofline.validate.gpu.plan import Target, compiled
from roofline.validate.gpu.pool import Answer, each
from roofline.validate.gpu.shapes import Point
from roofline.validate.kernels.work import attention_case, experts_case, gemm_case, rows_case

FRAME = 16
"""Bytes of local memory that are no spill: kernels with a hundred registers to spare have a frame of 8."""


def everything() -> list[Point]:
    """All points that the plan times by name."""
    return [*shapes.gemms(), *shapes.attention(), *shapes.layers(), *shapes.quantized()]


DECODE = {"kv_dtype": "fp8", "batch": 8, "kv_len": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}

FEW: list[Point] = [
    (gemm_case("fp8", 16, 4096, 4096), "triton"),
    (gemm_case("bf16", 2047, 4095, 4096), "triton"),
    (gemm_case("int4_wo", 64, 4096, 4096), "triton"),
    (attention_case("attention_decode", "bf16", **DECODE), "triton"),
    (experts_case(64, 2048, 768, 8, 128), "triton"),
    (rows_case("norm", "bf16", 64, 4096), "triton"),
]
"""One point of each kernel."""


def facts(kernel: Any, format: str) -> list[Any]:
    """Name, format, tile, warps, stages, shared memory, registers, spilled bytes and matrix instructions."""
    names, constants = kernel.src.fn.arg_names, {}
    for path, value in kernel.src.constants.items():
        if names[path[0]].startswith(("BLOCK", "HEAD_DIM")):
            constants[names[path[0]]] = value
    usage, about = resources(kernel.asm["cubin"]), kernel.metadata
    spilled = usage.get("LOCAL", 0) + usage.get("STACK", 0)
    matrix = re.findall(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.]+", kernel.asm["ptx"])
    used = (about.num_warps, about.num_stages, about.shared, usage.get("REG", 0), spilled, len(set(matrix)))
    return [kernel.name, format, constants, *used]


def resources(cubin: bytes) -> dict[str, int]:
    """Registers, stack and local memory of a kernel; empty where there is no cuobjdump."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not program.is_file():
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program), "-res-usage", file.name]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", answer.stdout)}


def compiled_points(points: list[Point]) -> dict[str, Any]:
    """The facts of all binaries of the points."""
    found: dict[str, Any] = {"errors": [], "binaries": []}

    def listed(point: Point) -> list[list[Any]]:
        kernels = {kernel.hash: kernel for kernel in compiled(point, Target(90, 132))}
        return [facts(kernel, point[0].format) for kernel in kernels.values()]

    def keep(answer: Answer) -> None:
        if answer.error is not None:
            found["errors"].append(f"{answer.task}: {answer.error}")
            return
        found["binaries"] += [row for row in answer.value if row not in found["binaries"]]

    own = [point for point in points if point[1].startswith("triton")]
    each(listed, own, os.cpu_count() or 1, keep)
    return found


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[3]), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, check=False, timeout=1500, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> set[str]:
    """No error, no tile over the limit, none that spills; the names of the kernels."""
    assert not found["errors"]
    assert not [row for row in found["binaries"] if row[5] > 227 * 1024]
    assert not [row for row in found["binaries"] if row[7] > FRAME]
    assert any(row[8] for row in found["binaries"]), "nothing runs on the tensor cores"
    return {row[0] for row in found["binaries"]}


@pytest.mark.slow
def test_a_tile_of_each_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    assert check(run(tmp_path)) >= {
        "_gemm", "_weight_only_gemm", "_decode", "_grouped", "_count", "_sort", "_norm"
    }  # fmt: skip


@pytest.mark.slow
def test_every_tile_of_the_plan_compiles_for_hopper(tmp_path: Path) -> None:
    found = run(tmp_path, "--all")
    assert check(found) >= {
        "_prefill",
        "_decode",
        "_gemm",
        "_weight_only_gemm",
        "_grouped",
        "_softmax",
        "_rope",
    }
    assert len(found["binaries"]) > 150


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compiled_points(everything() if "--all" in sys.argv else FEW)))
