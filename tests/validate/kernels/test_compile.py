"""Every attention and streaming kernel compiles for an H100, which the interpreter cannot show.

It runs in a process of its own, since Triton is either interpreted or compiled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CAPABILITY = 90
SHARED = 227 * 1024
"""Shared memory that a program may have, in bytes (CUDA C++ Programming Guide, features by compute capability)."""


def build(function: Any, constants: dict[str, Any], types: dict[str, str], **options: int) -> Any:
    """Compile a kernel: pointers aligned to 16 bytes; arguments of no given type are 32-bit integers."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    while not hasattr(function, "params"):
        function = function.fn
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    aligned = [index for index, kind in enumerate(signature.values()) if kind.startswith("*")]
    attributes = {(index,): [["tt.divisibility", 16]] for index in aligned}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)


def compile_all() -> dict[str, dict[str, int]]:
    """What each kernel came to: shared memory in bytes, tensor-core and asynchronous copy instructions."""
    import triton.language as tl

    from roofline.validate.kernels.triton_kernels import decode, prefill, streaming

    attention = ("query", "keys", "values", "key_cache", "value_cache", "output")
    rows = ("source", "residual", "weight", "summed", "gate", "up", "first", "second")
    types = dict.fromkeys((*attention, *rows), "*bf16")
    types |= dict.fromkeys(("partial", "lse", "cosine", "sine"), "*fp32")
    types |= dict.fromkeys(("scale", "epsilon", "factor"), "fp32") | dict.fromkeys(("block_table", "lengths"), "*i32")
    head = {"HEAD_DIM": 40, "HEAD_PAD": 64}
    plain = head | {"UPCAST": False, "WINDOWED": True}
    tile = plain | {"CONVERT": None, "BLOCK_M": 64, "BLOCK_N": 32}
    paged = plain | {"CONVERT": False, "BLOCK_M": 16, "BLOCK_N": 32, "PAGE": 16, "SPLIT": True}
    cache = dict.fromkeys(("keys", "values", "key_cache", "value_cache"), "*fp8e4nv")
    short = {"LOOP": False, "ROWS": 4, "BLOCK": 256}
    wide = {"LOOP": True, "ROWS": 1, "BLOCK": 1024}
    kernels = {
        "prefill": (prefill._prefill, tile, 3),
        "decode": (decode._decode, paged, 3),
        "decode, fewer stages": (decode._decode, paged, 2),
        "prefill of fp8": (prefill._prefill, tile | {"CONVERT": tl.bfloat16}, 3),
        "decode of fp8": (decode._decode, paged | {"CONVERT": True}, 3),
        "combine": (decode._combine, head | {"SPLITS_PAD": 8, "BLOCK": 4}, 2),
        "norm": (streaming._norm, short, 2),
        "wide norm": (streaming._norm, wide, 2),
        "softmax": (streaming._softmax, short, 2),
        "wide softmax": (streaming._softmax, wide, 2),
        "swiglu": (streaming._swiglu, {"BLOCK": 1024}, 2),
        "rope": (streaming._rope, {"HEADS": 4, "BLOCK": 64}, 2),
        "copy": (streaming._copy, {"BLOCK": 1024}, 2),
    }
    found = {}
    for name, (function, constants, stages) in kernels.items():
        own = types | cache if "fp8" in name else types
        kernel = build(function, constants, own, num_warps=4, num_stages=stages)
        assembly = kernel.asm["ptx"]
        found[name] = {
            "shared": kernel.metadata.shared,
            "tensor_core_instructions": assembly.count("wgmma.mma_async"),
            "copies": assembly.count("cp.async.c"),
        }
    return found


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the kernels need PyTorch")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux alone")
def test_kernels_compile_for_h100(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == 13
    assert all(kernel["shared"] <= SHARED for kernel in found.values())
    assert found["prefill"]["tensor_core_instructions"], "prefill does not use the tensor cores"
    assert found["prefill"]["copies"], "prefill does not fetch ahead"
    assert found["prefill of fp8"]["tensor_core_instructions"], (
        "prefill over an fp8 cache does not use the tensor cores"
    )
    more, fewer = found["decode"], found["decode, fewer stages"]
    assert more["copies"] > fewer["copies"], "decode does not fetch keys and values ahead"
    assert more["shared"] > fewer["shared"] + 4096


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compile_all()))
