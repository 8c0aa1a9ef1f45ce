"""Streaming kernels against float64, over rows that fit no block; interpreted where there is no GPU."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="the kernels need PyTorch")

from roofline.validate.gpu.correctness import ROW_SHAPES  # noqa: E402
from roofline.validate.gpu.correctness import rows_case as case_of  # noqa: E402
from roofline.validate.kernels.streaming import ACTIVATION, COPY, NORM, ROPE, SOFTMAX, head_dim  # noqa: E402
from roofline.validate.kernels.work import Case, work_of  # noqa: E402
from tests.cases import sampled  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None
BACKENDS = ["torch", pytest.param("triton", marks=pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed"))]
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")

BENCHMARKS = {benchmark.op: benchmark for benchmark in (NORM, SOFTMAX, ACTIVATION, ROPE, COPY)}
TOLERANCES = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 1e-2}


def check(op: str, backend: str, case: Case) -> None:
    benchmark = BENCHMARKS[op]
    inputs, outputs = benchmark.inputs(case, DEVICE, seed=1), benchmark.outputs(case, DEVICE)
    kept = {name: tensor.clone() for name, tensor in inputs.items()}
    assert all(tensor.isnan().all() for tensor in outputs.values())
    benchmark.backends[backend](case, inputs, outputs)
    expected = benchmark.reference(case, inputs)
    assert outputs.keys() == expected.keys()
    for name, tensor in outputs.items():
        assert tensor.shape == expected[name].shape
        assert tensor.dtype == inputs[benchmark.sources[0]].dtype
        # Not a norm alone: a poisoned element is NaN in it, and so is a wrong one that overflowed.
        error = (tensor.double() - expected[name]).norm() / expected[name].norm().clamp_min(1e-30)
        assert float(error) < TOLERANCES[case.dtype], name
    assert all(torch.equal(inputs[name], kept[name]) for name in kept)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", sampled(TOLERANCES, 1))
@pytest.mark.parametrize("op", BENCHMARKS)
def test_against_float64(op: str, dtype: str, backend: str) -> None:
    ran = 0
    for rows, columns in ROW_SHAPES:
        case = case_of(op, dtype, rows, columns)
        refusal = BENCHMARKS[op].refusal(case, backend, DEVICE)
        if op == "rope" and columns % 2:
            assert refusal == "columns must be even"
            continue
        assert refusal is None
        check(op, backend, case)
        ran += 1
    assert ran > 4


@needs_triton
def test_softmax_of_large_and_hidden_scores() -> None:
    """Neither overflows nor is poisoned by scores of minus infinity, in one block or several."""
    from roofline.validate.kernels.triton_kernels.streaming import stream

    for columns in (70, 300):
        scores = torch.randn(3, columns, device=DEVICE) * 3 + 1e4
        scores[:, columns // 2 :] = float("-inf")
        output = torch.full_like(scores, float("nan"))
        stream("softmax", [scores, output])
        assert torch.allclose(output.double(), scores.double().softmax(-1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("op", ["norm", "softmax", "activation", "rope", "copy"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_operands_have_the_bytes_that_are_counted(op: str, dtype: str) -> None:
    """But for rope, which reads a table of angles that the schema does not have."""
    case = case_of(op, dtype, 7, 256)
    benchmark = BENCHMARKS[op]
    operands = {**benchmark.inputs(case, DEVICE, 0), **benchmark.outputs(case, DEVICE)}
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in operands.items()}
    table = sizes.pop("cosine", 0) + sizes.pop("sine", 0)
    assert sum(sizes.values()) == work_of(case).bytes
    assert table == (7 * 128 * 4 if op == "rope" else 0)


def test_heads_of_a_row() -> None:
    assert [head_dim(columns) for columns in (128, 4096, 64, 192)] == [128, 128, 64, 192]


def test_refusals() -> None:
    assert COPY.refusal(case_of("copy", "fp8", 1, 1), "torch", DEVICE) == "no kernel for fp8"
    assert NORM.refusal(case_of("norm", "bf16", 1, 1), "torch", DEVICE) is None


@needs_gpu
@needs_triton
@pytest.mark.parametrize("op", BENCHMARKS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rows_of_real_sizes(op: str, dtype: str) -> None:
    """Rows in one block and in several, few and many; more than 2^31 elements for the copy."""
    for rows, columns in ((1, 4096), (300, 14336), (3, 40000), (10000, 128), (7, 16386)):
        check(op, "triton", case_of(op, dtype, rows, columns))


@needs_gpu
@needs_triton
def test_more_elements_than_32_bits_count() -> None:
    case = case_of("copy", "fp16", 2**17 + 1, 2**14)
    inputs, outputs = COPY.inputs(case, "cuda", 1), COPY.outputs(case, "cuda")
    COPY.backends["triton"](case, inputs, outputs)
    assert torch.equal(inputs["source"][-1], outputs["output"][-1])
