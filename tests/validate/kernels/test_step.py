"""A decoder layer's decode step against float64; interpreted where there is no GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the kernels need PyTorch")

from roofline import load_model  # noqa: E402
from roofline.core.errors import UnknownNameError, UnsupportedError  # noqa: E402
from roofline.validate.kernels.step import (  # noqa: E402
    LayerShape,
    decode_step,
    layer_shape,
    make_state,
    make_weights,
    step_reference,
    step_refusal,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


def error(result: Any, expected: Any) -> float:
    """The distance over the norm; NaN for what nobody wrote."""
    assert result.shape == expected.shape
    return float((result.double() - expected).norm() / expected.norm())


LAYERS = {
    "grouped": LayerShape(hidden=96, heads=6, kv_heads=2, head_dim=32, width=80),
    "biases and head norms": LayerShape(
        hidden=64, heads=2, kv_heads=2, head_dim=64, width=48, qkv_bias=True, output_bias=True, mlp_bias=True,
        qk_norm=True,
    ),
    "a window, no rotation": LayerShape(
        hidden=64, heads=3, kv_heads=1, head_dim=16, width=32, window=11, rotary=False
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "dtype", "tolerance"),
    [
        ("torch", "fp32", 1e-5),
        ("torch", "bf16", 2e-2),
        pytest.param("triton", "fp16", 2e-3, marks=needs_triton),
        pytest.param("triton", "bf16", 2e-2, marks=needs_triton),
    ],
)
@pytest.mark.parametrize("shape", LAYERS.values(), ids=LAYERS)
def test_decode_step_against_float64(shape: LayerShape, backend: Any, dtype: str, tolerance: float) -> None:
    """A chain of a dozen roundings: twice the tolerance of one kernel."""
    assert step_refusal(shape, backend, dtype, DEVICE) is None
    weights = make_weights(shape, dtype, DEVICE, seed=8)
    state = make_state(shape, batch=3, kv_len=37, dtype=dtype, device=DEVICE, seed=9)
    expected = step_reference(shape, weights, state)
    before = state.key_cache.clone()
    for _ in range(2):  # a replay computes the same
        result = decode_step(shape, weights, state, backend)
        assert max(map(error, result, expected)) < tolerance
    changed = (state.key_cache != before).flatten(2).any(-1).flatten().nonzero().flatten()
    assert sorted(changed.tolist()) == sorted(state.slots.tolist())


def test_a_step_has_the_dimensions_of_its_model() -> None:
    llama = layer_shape(load_model("llama-3.1-8b"))
    assert llama == LayerShape(hidden=4096, heads=32, kv_heads=8, head_dim=128, width=14336)
    small = make_weights(LayerShape(hidden=8, heads=4, kv_heads=2, head_dim=2, width=6), "bf16", DEVICE, 0)
    assert small.bytes == 2 * (8 + 16 * 8 + 8 * 8 + 8 + 12 * 8 + 8 * 6)
    for other in ("mixtral-8x7b", "gemma-2-9b", "opt-6.7b"):
        with pytest.raises(UnsupportedError, match="Llama-like"):
            layer_shape(load_model(other))
    with pytest.raises(UnknownNameError, match="layer group"):
        layer_shape(load_model("llama-3.1-8b"), "no such group")


def test_step_refusals() -> None:
    shape = LAYERS["grouped"]
    assert step_refusal(shape, "cutlass", "bf16", DEVICE) == "there is no backend cutlass"
    assert step_refusal(shape, "triton", "fp32", DEVICE) == "no attention kernel for fp32"


@needs_gpu
@needs_triton
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_step_in_a_cuda_graph(backend: Any) -> None:
    shape = layer_shape(load_model("llama-3.1-8b"))
    weights = make_weights(shape, "bf16", "cuda", seed=10)
    state = make_state(shape, batch=4, kv_len=1000, dtype="bf16", device="cuda", seed=11)
    expected = step_reference(shape, weights, state)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decode_step(shape, weights, state, backend)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = decode_step(shape, weights, state, backend)
    for tensor in result:
        tensor.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert max(map(error, result, expected)) < 2e-2
