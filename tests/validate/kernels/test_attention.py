"""Attention kernels against float64, over shapes that fit no tile; interpreted where there is no GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the kernels need PyTorch")

from roofline.validate.gpu.correctness import DECODES, PREFILLS  # noqa: E402
from roofline.validate.kernels.attention import DECODE, PREFILL, Decode  # noqa: E402
from roofline.validate.kernels.work import (  # noqa: E402
    Case,
    attention_case,
    work_of,
)
from tests.cases import sampled  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None
BACKENDS = ["torch", pytest.param("triton", marks=pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed"))]
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")

TOLERANCES = {"fp16": 2e-3, "bf16": 1e-2}
"""Of the norm. The interpreter cuts bf16 off (5e-3 in all) where PyTorch and a device round (2e-3)."""


def columns(dtype: str = "fp16", **given: int | str) -> dict[str, Any]:
    """The columns of a case; a small one but for what is given."""
    return dict(attention_case("attention_prefill", dtype, **given).columns)


def error(result: Any, expected: Any) -> float:
    """The distance over the norm; NaN for what nobody wrote."""
    assert result.shape == expected.shape
    return float((result.double() - expected).norm() / expected.norm().clamp_min(1e-30))


def skipped(refusal: str | None, case: Case, backend: str) -> bool:
    """Whether a backend refuses a case as it should: PyTorch reads no other cache, and no window of prefill."""
    if backend == "torch" and case.columns["kv_dtype"] == "fp8":
        assert refusal == "PyTorch's attention reads no fp8 cache"
        return True
    if backend.startswith("torch") and case["q_len"] > 1 and 0 < case["window"] < case["kv_len"]:
        assert refusal == "PyTorch has no attention that skips the keys before a window"
        return True
    if refusal is not None and "compute capability" in refusal:
        pytest.skip(refusal)
    assert refusal is None
    return False


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", sampled(PREFILLS.values(), 5), ids=PREFILLS)
def test_prefill_against_float64(case: Case, backend: str) -> None:
    if skipped(PREFILL.refusal(case, backend, DEVICE), case, backend):
        return
    inputs, outputs = PREFILL.inputs(case, DEVICE, seed=1), PREFILL.outputs(case, DEVICE)
    assert outputs["output"].isnan().all()
    PREFILL.backends[backend](case, inputs, outputs)
    assert error(outputs["output"], PREFILL.reference(case, inputs)["output"]) < TOLERANCES[case.dtype]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", sampled(DECODES.values(), 5), ids=DECODES)
def test_decode_against_float64(case: Case, backend: str) -> None:
    if skipped(DECODE.refusal(case, backend, DEVICE), case, backend):
        return
    inputs, outputs = DECODE.inputs(case, DEVICE, seed=2), DECODE.outputs(case, DEVICE)
    assert outputs["output"].isnan().all()
    DECODE.backends[backend](case, inputs, outputs)
    assert error(outputs["output"], DECODE.reference(case, inputs)["output"]) < TOLERANCES[case.dtype]


def ragged(benchmark: Decode, case: Case, lengths: list[int], seed: int) -> dict[str, Any]:
    """Operands for sequences of these lengths; the slots beyond a length hold NaN."""
    inputs = benchmark.inputs(case, DEVICE, seed)
    counts = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    table = inputs["block_table"].long()
    slots = torch.arange(table.shape[1] * benchmark.page, device=DEVICE).view(table.shape[1], benchmark.page)
    empty = torch.zeros(inputs["key_cache"].shape[:2], dtype=torch.bool, device=DEVICE)
    empty[table] = slots >= counts[:, None, None]
    for name in ("key_cache", "value_cache"):
        cache = inputs[name]
        inputs[name] = cache.float().masked_fill(empty[:, :, None, None], float("nan")).to(cache.dtype)
    return {**inputs, "lengths": counts}


@needs_triton
@pytest.mark.parametrize("window", [0, 9])
def test_sequences_of_different_lengths(window: int) -> None:
    """Down to none at all; the slots beyond a length hold NaN."""
    benchmark = Decode(page=4)
    case = Case("attention_decode", columns(batch=5, q_len=2, kv_len=41, heads=3, kv_heads=1, window=window))
    inputs = ragged(benchmark, case, [41, 0, 17, 2, 1], seed=3)
    assert inputs["key_cache"].isnan().any()
    outputs = benchmark.outputs(case, DEVICE)
    benchmark.backends["triton"](case, inputs, outputs)
    assert error(outputs["output"], benchmark.reference(case, inputs)["output"]) < TOLERANCES[case.dtype]
    assert not outputs["output"][1].any()


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("splits", [1, 2, 9])
def test_splits_do_not_change_the_result(splits: int) -> None:
    """Splits and sequences that hold no key, too; and the same numbers each time, bit by bit."""
    from roofline.validate.kernels.triton_kernels.decode import decode

    case = Case("attention_decode", columns("bf16", batch=3, q_len=2, kv_len=70, heads=3))
    inputs = ragged(DECODE, case, [70, 20, 0], seed=4)
    operands = [inputs[name] for name in ("query", "key_cache", "value_cache", "block_table", "lengths")]
    results = []
    for _ in range(2):
        outputs = DECODE.outputs(case, DEVICE)
        decode(*operands, outputs["output"], splits=splits)
        results.append(outputs["output"])
    assert error(results[0], DECODE.reference(case, inputs)["output"]) < TOLERANCES[case.dtype]
    assert torch.equal(*results)


@needs_triton
def test_split_heuristic() -> None:
    from roofline.validate.kernels.triton_kernels.decode import MAX_SPLITS, MIN_KEYS_PER_SPLIT, splits_for

    assert splits_for(8, 100, 132) == 1
    assert splits_for(8, 131072, 132) * 8 >= 0.85 * 132
    assert splits_for(264, 131072, 132) == 1
    assert splits_for(100_000, 4096, 132) == 1
    assert 0.85 * MAX_SPLITS <= splits_for(1, 10**7, 132) <= MAX_SPLITS
    for programs in (1, 5, 77, 300):
        splits = splits_for(programs, 3000, 108)
        assert 1 <= splits <= 3000 // MIN_KEYS_PER_SPLIT


def test_pages_are_shuffled() -> None:
    """Otherwise a kernel that ignored the block table would pass."""
    case = Case("attention_decode", columns(batch=2, kv_len=300))
    table = DECODE.inputs(case, DEVICE, seed=5)["block_table"].flatten()
    assert sorted(table.tolist()) == list(range(table.numel()))
    assert table.tolist() != sorted(table.tolist())


def test_inputs_are_fresh() -> None:
    case = Case("attention_prefill", columns(q_len=3, kv_len=3))
    first, again, other = (PREFILL.inputs(case, DEVICE, seed=seed)["query"] for seed in (6, 6, 7))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def size(*tensors: Any) -> int:
    """Bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    "given",
    [
        columns(q_len=45, kv_len=45, heads=4, kv_heads=2),
        columns("bf16", batch=3, q_len=5, kv_len=77, heads=6, kv_heads=1, head_dim=96),
        columns(q_len=40, kv_len=40, window=8),
        columns("bf16", batch=2, q_len=5, kv_len=33, heads=4, kv_heads=2, kv_dtype="fp8"),
    ],
)
def test_prefill_operands_have_the_bytes_of_the_work(given: dict[str, Any]) -> None:
    case = Case("attention_prefill", given)
    inputs, outputs = PREFILL.inputs(case, DEVICE, 0), PREFILL.outputs(case, DEVICE)
    operands = (inputs[name] for name in ("query", "keys", "values"))
    assert size(*operands, *outputs.values()) == work_of(case).bytes


def test_decode_operands_have_the_bytes_of_the_work() -> None:
    """And, beyond the schema's, unused slots of last pages, the block table and the lengths."""
    case = Case("attention_decode", columns("bf16", batch=3, kv_len=70, heads=6, kv_heads=2))
    inputs, outputs = DECODE.inputs(case, DEVICE, 0), DECODE.outputs(case, DEVICE)
    gathered = size(*(inputs[name] for name in ("query", "keys", "values")), *outputs.values())
    assert gathered == work_of(case).bytes
    slots = 3 * (DECODE.page * 5 - 70)
    paged = size(*(inputs[name] for name in ("query", "key_cache", "value_cache")), *outputs.values())
    assert paged == gathered + 2 * slots * 2 * 64 * 2
    assert size(inputs["block_table"], inputs["lengths"]) == 3 * 4 * (5 + 1)


@needs_triton
def test_fp8_cache_has_half_the_bytes_and_poisoned_slots() -> None:
    """Sequences of different lengths: slots without a token are NaN in fp8, too, and do not spread."""
    case = Case("attention_decode", columns("bf16", batch=3, kv_len=70, heads=6, kv_heads=2, kv_dtype="fp8"))
    inputs, outputs = ragged(DECODE, case, [70, 0, 9], 3), DECODE.outputs(case, DEVICE)
    cache = [inputs[name] for name in ("key_cache", "value_cache")]
    assert {tensor.element_size() for tensor in cache} == {1}
    assert all(tensor.float().isnan().any() for tensor in cache)
    assert not {"keys", "values"} & inputs.keys()
    slots = 3 * (DECODE.page * 5 - 70)
    held = size(*cache, inputs["query"], *outputs.values())
    assert held == work_of(case).bytes + 2 * slots * 2 * 64
    if skipped(DECODE.refusal(case, "triton", DEVICE), case, "triton"):
        return
    DECODE.backends["triton"](case, inputs, outputs)
    assert error(outputs["output"], DECODE.reference(case, inputs)["output"]) < TOLERANCES["bf16"]
    assert not outputs["output"][1].any()


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(benchmark: Any, backend: str = "torch", **given: Any) -> str | None:
        reason: str | None = benchmark.refusal(Case(benchmark.op, {**columns(), **given}), backend, DEVICE)
        return reason

    assert refused(PREFILL) is None
    assert refused(PREFILL, dtype="fp8", kv_dtype="fp8") == "no kernel for fp8"
    assert "fp8 cache" in (refused(DECODE, kv_dtype="fp8") or "")
    assert "or fp8" in (refused(DECODE, kv_dtype="fp32") or "")
    assert "multiple" in (refused(PREFILL, heads=3, kv_heads=2) or "")
    assert "new tokens" in (refused(PREFILL, q_len=2) or "")
    assert "page" in (refused(Decode(page=12)) or "")
    if HAS_TRITON:
        assert "head_dim" in (refused(PREFILL, "triton", head_dim=512) or "")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    if HAS_TRITON:
        assert "GPU" in (PREFILL.refusal(Case("attention_prefill", columns()), "triton", "cpu") or "")


@needs_gpu
@needs_triton
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("window", [0, 300])
def test_attention_of_real_sizes(dtype: str, head_dim: int, window: int) -> None:
    """Every tile that tuning may choose runs at these sizes; what it chose is checked."""
    shape = {"batch": 2, "heads": 16, "kv_heads": 4, "head_dim": head_dim, "window": window}
    for benchmark, q_len, kv_len in ((PREFILL, 1000, 1000), (PREFILL, 500, 2003), (DECODE, 1, 8191), (DECODE, 4, 999)):
        case = Case(benchmark.op, columns(dtype, **shape, q_len=q_len, kv_len=kv_len))
        inputs = benchmark.inputs(case, "cuda", seed=12)
        expected = benchmark.reference(case, inputs)["output"]
        for backend in benchmark.backends:
            if skipped(benchmark.refusal(case, backend, "cuda"), case, backend):
                continue
            outputs = benchmark.outputs(case, "cuda")
            benchmark.backends[backend](case, inputs, outputs)
            assert error(outputs["output"], expected) < TOLERANCES[case.dtype]
