"""Compile the Triton kernels for GPUs that are absent: `python compiled.py 80 89 90 [--few | --all]`.

Prints a line for each: architecture, program, tile, KiB of shared memory, matrix instructions. With `--all` every tile
that is tuned over, with `--few` programs for few rows and in bf16, else the first tile of all programs. Must run
without TRITON_INTERPRET.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roofline.validate.kernels.triton_kernels import experts, gemm, weight_only

POINTERS = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32", "int8": "*i8", "fp8": "*fp8e4nv"}
FP8 = 89
"""The architecture from which on it is multiplied."""

MANY = (
    "fp16",
    "fp32",
    "int8",
    "integer",
    "fp8",
    "m=16",
    "m=128",
    "rows=32",
    "rows=64",
    "rows=128",
    "experts=1",
    "experts=256",
    "count",
    "down",
    "combine",
)
"""What `--few` leaves out."""

MATRIX = re.compile(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.]+")
INDEX = "*i32"
PLAN = dict.fromkeys(("order", "tile_experts", "tile_starts", "expert_starts", "counts", "tile_count"), INDEX)
PLAIN = triton.Config({})


def programs() -> Iterator[tuple[str, Any, Mapping[str, str], Mapping[str, Any], list[Any]]]:
    """Name, program, types of pointers (all else is an integer), constants, tiles.

    Triton makes sizes of 1 constants: those are compiled, too.
    """
    for dtype, pointer in POINTERS.items():
        for m in (1, 16, 64, 128):
            split = m <= 16
            scaled = dtype in ("int8", "fp8") and not split
            output = ("*i32" if dtype == "int8" else "*fp32") if split else pointer if len(pointer) > 4 else "*bf16"
            output = "*bf16" if scaled else output
            types = {"a": pointer, "w": pointer, "c": output, "row_scales": "*fp32", "column_scales": "*fp32"}
            constants = {"INTEGER": dtype == "int8", "SCALED": scaled, "UPCAST": False, "EVEN": m != 1}
            if m == 1:
                constants |= {"m": 1, "n": 1, "k": 1, "split_length": 1}
            if not scaled:
                constants |= {"row_scales": None, "column_scales": None}
            width = {"fp32": 4, "int8": 1, "fp8": 1}.get(dtype, 2)
            yield f"gemm {dtype} m={m}", gemm._gemm, types, constants, gemm.configs_for(m, width)
    types = {"partial": "*fp32", "c": "*bf16", "row_scales": "*fp32", "column_scales": "*fp32"}
    yield "reduce splits", gemm._reduce_splits, types, {"SCALED": True, "UPCAST": False, "BLOCK": 1024}, [PLAIN]
    types |= {"partial": INDEX}
    yield (
        "reduce integer splits",
        gemm._reduce_splits,
        types,
        {"SCALED": True, "UPCAST": False, "BLOCK": 1024, "n": 1},
        [PLAIN],
    )
    types = {"a": "*bf16", "w": "*u8", "scales": "*fp16", "c": "*fp32"}
    for m in (1, 16, 64, 128):
        constants = {"SIZE": 128, "UPCAST": False, **({"m": 1, "n": 1} if m == 1 else {})}
        yield f"weight only m={m}", weight_only._weight_only_gemm, types, constants, weight_only.configs_for(m)
    types = {"expert_ids": INDEX, **PLAN}
    yield "count", experts._count, types, {"BLOCK": 1024}, [PLAIN]
    for number in (1, 8, 256):
        constants = {"EXPERTS": number, "ROWS": 16, "BLOCK": 16 * min(number, 64)}
        if number == 1:
            constants |= {"experts": 1, "pairs": 1}
        yield f"sort experts={number}", experts._sort, types, constants, [PLAIN]
    for rows in (16, 32, 64, 128):
        constants = {"UPCAST": False, "EVEN": rows != 32, "BLOCK_M": rows}
        if rows == 32:
            constants |= {"max_tiles": 1, "top_k": 1, "n": 1, "k": 1}
        types = {**dict.fromkeys(("a", "gate", "up", "w", "c"), "*bf16"), **PLAN}
        yield f"gate and up rows={rows}", experts._gate_up, types, constants, experts.configs_for(rows, 2)
        yield f"down rows={rows}", experts._down, types, constants, experts.configs_for(rows, 1)
    types = {**dict.fromkeys(("rows", "routing_weights", "c"), "*bf16"), "expert_ids": INDEX}
    yield "combine", experts._combine, types, {"UPCAST": False, "BLOCK": 1024}, [PLAIN]


def compile(program: Any, types: Mapping[str, str], constants: Mapping[str, Any], architecture: int, tile: Any) -> Any:
    """A program with aligned pointers and sizes, as they are in models."""
    while not hasattr(program, "params"):
        program = program.fn
    names = program.arg_names
    constants = {name: value for name, value in {**constants, **tile.kwargs}.items() if name in names}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    sizes = {"n", "k", "split_length"} - set(constants)
    aligned = [i for i, name in enumerate(names) if signature[name][0] == "*" or name in sizes]
    source = ASTSource(
        program,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def main(arguments: list[str]) -> None:
    """Compile and print."""
    for architecture in (int(number) for number in arguments if number.isdigit()):
        for name, program, types, constants, tiles in programs():
            words = name.split()
            if ("fp8" in words and architecture < FP8) or ("--few" in arguments and not set(words).isdisjoint(MANY)):
                continue
            for tile in tiles if "--all" in arguments else tiles[:1]:
                kernel = compile(program, types, constants, architecture, tile)
                instructions = sorted(set(MATRIX.findall(kernel.asm["ptx"])))
                line = (architecture, name, tile, kernel.metadata.shared // 1024, instructions)
                print(*line, sep="; ", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
