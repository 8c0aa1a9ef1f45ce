"""GEMM and MoE kernels in Triton and PyTorch against float64: on the GPU if there is one, else interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.graph.op import Kind
from roofline.specs.hardware import load_hardware
from roofline.timing.kernels import kernel_bound
from roofline.validate.gpu import correctness
from roofline.validate.kernels.benchmark import Benchmark
from roofline.validate.kernels.experts import EXPERTS
from roofline.validate.kernels.gemm import GEMM
from roofline.validate.kernels.tools import interpreted
from roofline.validate.kernels.work import Case, gemm_case, work_of
from roofline.validate.kernels.work import experts_case as moe_case

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
from roofline.validate.kernels.triton_kernels import experts, gemm, weight_only  # noqa: E402
from tests.cases import sampled  # noqa: E402
from tests.validate.synthetic import restored  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"
FORMATS = [dtype for dtype in GEMM.dtypes if dtype != "int4_wo"]
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: tiles and sizes that only a device runs")
ERRORS = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 1e-2, "int8": 3e-3, "fp8": 1e-2, "int4_wo": 3e-3}
"""Relative norm of the error, by format."""

SLACK = 1e-4
"""Error of an element, beside the rounding of the output, over the deviation of all."""


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Memory that a kernel allocates holds NaN until it is written, where PyTorch can do so."""
    torch.use_deterministic_algorithms(DEVICE == "cpu")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def error(result: Any, exact: Any) -> float:
    """The relative norm of the error; NaN where something was not written."""
    return float((result.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def check(case: Case, outputs: dict[str, Any], exact: dict[str, Any]) -> None:
    """Outputs are within their format: by norm, and element by element if sums are exact or fp32."""
    assert outputs.keys() == exact.keys()
    for name, result in outputs.items():
        assert torch.isfinite(result).all()
        assert error(result, exact[name]) < ERRORS[case.dtype]
        if case.op == "gemm" and case.dtype != "fp8":
            allowed = torch.finfo(result.dtype).eps / 2 * exact[name].abs() + SLACK * exact[name].std(correction=0)
            allowed = allowed + 1e-6 * exact[name].abs()
            assert ((result.double() - exact[name]).abs() <= allowed).all()


def computed(benchmark: Benchmark, case: Case, backend: str, seed: int = 0) -> None:
    """Run a backend and check what it leaves."""
    assert benchmark.refusal(case, backend, DEVICE) is None
    inputs, outputs = benchmark.inputs(case, DEVICE, seed), benchmark.outputs(case, DEVICE)
    assert not any(torch.isfinite(output).any() for output in outputs.values())
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    if backend == "triton":
        with poisoned_allocations():
            benchmark.backends[backend](case, inputs, outputs)
    else:
        benchmark.backends[backend](case, inputs, outputs)
    assert all(torch.equal(bits(tensor), bits(before[name])) for name, tensor in inputs.items())
    check(case, outputs, benchmark.reference(case, inputs))


def skip_oversized_tiles() -> suppress:
    """Passes over tiles that need more shared memory than the device has, as tuning does."""
    from triton.runtime.errors import OutOfResources

    return suppress(OutOfResources)


def bits(tensor: Any) -> Any:
    """The bytes of a tensor: fp8 has no comparison."""
    return tensor.contiguous().view(torch.uint8)


# ---- gemm


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (17, 24, 48), (33, 48, 16), (70, 40, 96)])
def test_gemm_against_float64(dtype: str, shape: tuple[int, int, int]) -> None:
    case = gemm_case(dtype, *shape)
    for backend in GEMM.backends:
        if GEMM.refusal(case, backend, DEVICE) is None:
            computed(GEMM, case, backend)
    assert DEVICE == "cuda" or GEMM.refusal(case, "triton", DEVICE) is None


@settings(max_examples=18)
@given(
    dtype=st.sampled_from(FORMATS),
    m=st.integers(1, 40),
    n=st.integers(1, 70),
    k=st.one_of(st.integers(1, 80), st.integers(500, 1200)),
    splits=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_gemm_with_split_k(dtype: str, m: int, n: int, k: int, splits: int, seed: int) -> None:
    case = gemm_case(dtype, m, n, k)
    if GEMM.refusal(case, "triton", DEVICE):
        return
    inputs, outputs = GEMM.inputs(case, DEVICE, seed), GEMM.outputs(case, DEVICE)
    scales = inputs.get("row_scales"), inputs.get("column_scales")
    tile = gemm.configs_for(m, inputs["input"].element_size())[-1]
    with poisoned_allocations():
        gemm.gemm(inputs["input"], inputs["weight"], outputs["output"], *scales, splits=splits, config=tile)
    check(case, outputs, GEMM.reference(case, inputs))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 33, 520), (20, 7, 1300)])
def test_int8_gemm_is_exact(shape: tuple[int, int, int], splits: int) -> None:
    inputs = GEMM.inputs(gemm_case("int8", *shape), DEVICE, 1)
    output = torch.full(shape[:2], torch.iinfo(torch.int32).max, dtype=torch.int32, device=DEVICE)
    gemm.gemm(inputs["input"], inputs["weight"], output, splits=splits)
    exact = inputs["input"].double() @ inputs["weight"].double().T
    assert torch.equal(output.double(), exact)


def test_split_length_is_a_multiple_of_block_k() -> None:
    """k is a multiple of the tile's depth, so that the program masks nothing: splits must be, too."""
    inputs = GEMM.inputs(gemm_case("int8", 2, 16, 1536), DEVICE, 1)
    exact = inputs["input"].double() @ inputs["weight"].double().T
    for splits in (1, 2, 3):
        output = torch.zeros(2, 16, dtype=torch.int32, device=DEVICE)
        tile = gemm.make_config(16, 16, gemm.SPLIT_MULTIPLE, 4, 1)
        gemm.gemm(inputs["input"], inputs["weight"], output, splits=splits, config=tile)
        assert torch.equal(output.double(), exact)
    depths = [depth * 2 for _, depth, *_ in gemm._SKINNY] + [depth * 2 for _, _, depth, *_ in gemm._TALL]
    assert all(gemm.SPLIT_MULTIPLE % depth == 0 for depth in depths)


def test_int8_gemm_does_not_overflow() -> None:
    ones = torch.full((1, 2048), -128, dtype=torch.int8, device=DEVICE)
    output = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)
    gemm.gemm(ones, ones, output, splits=1)
    assert output.item() == 2048 * 128**2


@pytest.mark.parametrize(("rows", "columns", "depth"), [(16, 16, 64), (32, 16, 16), (64, 32, 32)])
def test_swizzled_tiles_cover_the_output(rows: int, columns: int, depth: int) -> None:
    case = gemm_case("fp16", 100, 40, 70)
    inputs, outputs = GEMM.inputs(case, DEVICE, 2), GEMM.outputs(case, DEVICE)
    tile = gemm.make_config(rows, columns, depth, 4, 1)
    tile.kwargs["GROUP"] = 3
    gemm.gemm(inputs["input"], inputs["weight"], outputs["output"], config=tile)
    check(case, outputs, GEMM.reference(case, inputs))


def test_split_heuristic() -> None:
    assert gemm.splits_for(gemm.SKINNY + 1, 64, 1 << 20, DEVICE) == 1
    assert gemm.splits_for(1, 1 << 20, 4096, DEVICE) == 1
    assert gemm.splits_for(1, 64, 128, DEVICE) == 1
    assert 1 < gemm.splits_for(1, 64, 4096, DEVICE) <= 8
    assert all(gemm.splits_for(1, 64, k, DEVICE) <= gemm.MAX_SPLITS for k in (1, 1 << 14, 1 << 20))


def test_gemm_is_deterministic() -> None:
    case = gemm_case("bf16", 3, 40, 2100)
    inputs = GEMM.inputs(case, DEVICE, 3)
    results = []
    for _ in range(2):
        outputs = GEMM.outputs(case, DEVICE)
        GEMM.backends["triton"](case, inputs, outputs)
        results.append(bits(outputs["output"]))
    assert torch.equal(*results)


# ---- 4-bit weights


@pytest.mark.parametrize("shape", [(1, 1, 128), (3, 70, 384), (33, 48, 256), (66, 17, 128)])
def test_weight_only_gemm_against_float64(shape: tuple[int, int, int]) -> None:
    case = gemm_case("int4_wo", *shape)
    computed(GEMM, case, "triton")
    inputs, outputs = GEMM.inputs(case, DEVICE, 0), GEMM.outputs(case, DEVICE)
    GEMM.backends["torch"](case, inputs, outputs)
    # PyTorch rounds the weights to bf16 before it multiplies.
    assert error(outputs["output"], GEMM.reference(case, inputs)["output"]) < ERRORS["bf16"]


@pytest.mark.slow
@settings(max_examples=8)
@given(
    m=st.integers(1, 40),
    n=st.integers(1, 70),
    groups=st.integers(1, 5),
    splits=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_weight_only_gemm_with_split_k(m: int, n: int, groups: int, splits: int, seed: int) -> None:
    case = gemm_case("int4_wo", m, n, 128 * groups)
    inputs, outputs = GEMM.inputs(case, DEVICE, seed), GEMM.outputs(case, DEVICE)
    operands = inputs["input"], inputs["weight"], inputs["scales"]
    with poisoned_allocations():
        weight_only.weight_only_gemm(*operands, outputs["output"], splits=splits, config=weight_only.configs_for(m)[-1])
    check(case, outputs, GEMM.reference(case, inputs))


def test_weight_only_gemm_unpacks_every_integer() -> None:
    """The GEMM with the identity is the weights: all sixteen values, low and high halves, every group its scale."""
    k, n = 256, 16
    packed = torch.arange(n, dtype=torch.uint8, device=DEVICE)[:, None].expand(n, k // 2)
    packed = (packed | (15 - packed) << 4).contiguous()
    scales = torch.tensor([0.5, 2.0], dtype=torch.float16, device=DEVICE)[:, None].expand(2, n).contiguous()
    output = torch.full((k, n), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    weight_only.weight_only_gemm(torch.eye(k, dtype=torch.bfloat16, device=DEVICE), packed, scales, output)
    values = torch.arange(n, device=DEVICE) - 8
    group = torch.stack([values] * 64 + [-1 - values] * 64)
    assert torch.equal(output.double(), torch.cat([0.5 * group, 2.0 * group]).double())


# ---- experts


@pytest.mark.parametrize("case", sampled(correctness.EXPERTS, 4), ids=str)
def test_moe_against_float64(case: Case) -> None:
    for backend in EXPERTS.backends:
        computed(EXPERTS, case, backend)


@pytest.mark.slow
@settings(max_examples=4)
@given(data=st.data(), tokens=st.integers(1, 20), number=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_moe_of_any_shape(data: Any, tokens: int, number: int, seed: int) -> None:
    top_k = data.draw(st.integers(1, number))
    hidden, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    case = moe_case(tokens, hidden, width, top_k, number)
    inputs, outputs = EXPERTS.inputs(case, DEVICE, seed), EXPERTS.outputs(case, DEVICE)
    with poisoned_allocations():
        ran(inputs, outputs, 16)
    check(case, outputs, EXPERTS.reference(case, inputs))


def ran(inputs: dict[str, Any], outputs: dict[str, Any], rows: int, tile: Any = None) -> None:
    """The Triton backend with tiles of `rows`."""
    weights = inputs["gate_weight"], inputs["up_weight"], inputs["down_weight"]
    tile = experts.configs_for(rows, 2)[0] if tile is None else tile
    experts.routed_experts(
        inputs["input"],
        inputs["expert_ids"],
        inputs["routing_weights"],
        *weights,
        outputs["output"],
        rows=rows,
        config=tile,
    )


def test_expert_parallel_ranks_sum_to_all_experts() -> None:
    """The experts of two ranks, each with the tokens of both, are those of one device."""
    whole, half = moe_case(11, 24, 32, 3, 6), moe_case(11, 24, 32, 3, 6, ep=2)
    inputs = EXPERTS.inputs(whole, DEVICE, 9)
    expected = EXPERTS.reference(whole, inputs)["output"]
    for backend in EXPERTS.backends:
        summed = torch.zeros_like(expected)
        for rank in range(2):
            own = {
                name: tensor[3 * rank : 3 * rank + 3] if name.endswith("_weight") else tensor
                for name, tensor in inputs.items()
            }
            # A rank's own experts come first: numbers of others are at least the count of its experts.
            own["expert_ids"] = (inputs["expert_ids"] - 3 * rank) % 6
            outputs = EXPERTS.outputs(half, DEVICE)
            with poisoned_allocations():
                EXPERTS.backends[backend](half, own, outputs)
            check(half, outputs, EXPERTS.reference(half, own))
            summed += outputs["output"].double()
        assert float((summed - expected).norm() / expected.norm()) < 1e-2


@pytest.mark.slow
def test_experts_with_no_or_all_tokens() -> None:
    case = moe_case(37, 24, 20, 1, 5)
    for expert_ids in (0, 4, 2):
        inputs, outputs = EXPERTS.inputs(case, DEVICE, expert_ids), EXPERTS.outputs(case, DEVICE)
        inputs["expert_ids"].fill_(expert_ids)
        with poisoned_allocations():
            ran(inputs, outputs, 16)
        check(case, outputs, EXPERTS.reference(case, inputs))


@pytest.mark.parametrize(("tokens", "top_k", "number", "rows"), [(1, 1, 1, 16), (50, 3, 9, 16), (700, 2, 3, 32)])
def test_sort_pairs_is_a_stable_sort(tokens: int, top_k: int, number: int, rows: int) -> None:
    expert_ids = EXPERTS.inputs(moe_case(tokens, 1, 1, top_k, number), DEVICE, 4)["expert_ids"]
    plan = {name: tensor.tolist() for name, tensor in experts.sort_pairs(expert_ids, number, rows).items()}
    flat = expert_ids.flatten().long()
    counts = torch.bincount(flat, minlength=number).tolist()
    expert_starts = [sum(counts[:expert]) for expert in range(number)]
    tiles = [
        (expert, expert_starts[expert] + start) for expert in range(number) for start in range(0, counts[expert], rows)
    ]
    assert plan["order"] == torch.argsort(flat, stable=True).tolist()
    assert (plan["counts"], plan["expert_starts"], plan["tile_count"]) == (counts, expert_starts, [len(tiles)])
    assert list(zip(plan["tile_experts"], plan["tile_starts"], strict=True))[: len(tiles)] == tiles
    assert len(tiles) <= len(plan["tile_experts"]) == experts.max_tile_count(tokens * top_k, number, rows)


@pytest.mark.parametrize(("tokens", "top_k", "number"), [(1, 2, 8), (13, 3, 5), (64, 4, 16)])
def test_routing_selects_distinct_experts_and_balances(tokens: int, top_k: int, number: int) -> None:
    for routing in ("uniform", "balanced"):
        expert_ids = EXPERTS.inputs(moe_case(tokens, 1, 1, top_k, number, routing), DEVICE, 5)["expert_ids"]
        assert all(len(set(row)) == top_k for row in expert_ids.tolist())
        assert 0 <= int(expert_ids.min()) <= int(expert_ids.max()) < number
    loads = torch.bincount(expert_ids.flatten().long(), minlength=number)
    assert int(loads.max() - loads.min()) <= 1


def test_tile_rows_follow_expert_load() -> None:
    assert [experts.tile_rows(pairs, 8) for pairs in (1, 8, 200, 1000, 100_000)] == [16, 16, 64, 128, 128]


# ---- the same work as the simulator's


@pytest.mark.parametrize("dtype", GEMM.dtypes)
def test_gemm_operands_have_the_bytes_of_the_work(dtype: str) -> None:
    case = gemm_case(dtype, 7, 96, 256)
    inputs, outputs = GEMM.inputs(case, DEVICE, 0), GEMM.outputs(case, DEVICE)
    apart = [inputs.pop(name) for name in ("row_scales", "column_scales") if name in inputs]
    assert sum(tensor.nbytes for tensor in (*inputs.values(), *outputs.values())) == work_of(case).bytes
    assert sum(tensor.nbytes for tensor in apart) == (4 * (7 + 96) if dtype in ("int8", "fp8") else 0)


def test_moe_operands_have_the_bytes_of_the_work() -> None:
    case = moe_case(9, 64, 96, 8, 8, tp=2)
    work = work_of(case)
    inputs, outputs = EXPERTS.inputs(case, DEVICE, 0), EXPERTS.outputs(case, DEVICE)
    bytes = {tensor.name: round(tensor.bytes.evaluate(work.extents)) for op in work.parts for tensor in op.tensors}
    for name in ("gate", "up", "down"):
        assert inputs[f"{name}_weight"].nbytes == bytes[f"expert_{name}_proj.weight"]
    assert inputs["input"].nbytes * 8 == bytes["mlp_input"]  # gathered: read once for each of its experts
    assert inputs["routing_weights"].nbytes == bytes["routes"]
    assert outputs["output"].nbytes == bytes["routed"]
    assert inputs["expert_ids"].nbytes == 4 * 9 * 8


def test_expert_parallel_rank_has_its_fraction_of_pairs() -> None:
    """As the kernel's form counts them: tokens are those of all ranks (each has tokens top_k / ep pairs)."""
    case = moe_case(64, 32, 48, 4, 16, "balanced", ep=4)
    work, whole = work_of(case), work_of(moe_case(64, 32, 48, 4, 16))
    expert_ids = EXPERTS.inputs(case, DEVICE, 3)["expert_ids"]
    assert int((expert_ids < 4).sum()) == 64 * 4 // 4
    flops = {op.name: op.matrix_flops.evaluate(work.extents) for op in work.parts if op.kind is Kind.MOE}
    assert set(flops.values()) == {2 * (64 * 4 // 4) * 32 * 48}
    assert sum(flops.values()) * 4 == sum(
        op.matrix_flops.evaluate(whole.extents) for op in whole.parts if op.kind is Kind.MOE
    )
    card = load_hardware("h100-sxm")
    columns = {name: value if isinstance(value, str) else float(value) for name, value in case.columns.items()}
    columns["hidden"] = 2**20  # arithmetic alone holds it back
    flops = work_of(Case("moe", {**case.columns, "hidden": 2**20, "tokens": 2**16})).flops
    bound = kernel_bound("moe", {**columns, "tokens": float(2**16)}, card)
    assert flops / card.matrix_peak("bf16") == pytest.approx(float(bound), rel=0.01)
    row = restored(case)
    assert row == {**row, **case.columns, "routing": "uniform"}


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (GEMM, gemm_case("fp8", 5, 33, 40)),
        (GEMM, gemm_case("int4_wo", 5, 33, 256)),
        (EXPERTS, moe_case(5, 16, 8, 2, 3)),
    ],
    ids=["gemm", "weight_only", "experts"],
)
def test_inputs_follow_their_seed(kind: Benchmark, case: Case) -> None:
    first, again, other = (kind.inputs(case, DEVICE, seed) for seed in (6, 6, 7))
    assert all(torch.equal(bits(first[name]), bits(again[name])) for name in first)
    assert not any(torch.equal(bits(first[name]), bits(other[name])) for name in first if first[name].numel() > 20)


# ---- refusals


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    case = gemm_case("bf16", 5, 33, 40)
    assert GEMM.refusal(case, "cutlass", DEVICE) == "there is no backend cutlass"
    assert "mxfp4" in (GEMM.refusal(gemm_case("mxfp4", 1, 1, 32), "triton", DEVICE) or "")
    assert "128" in (GEMM.refusal(gemm_case("int4_wo", 1, 8, 100), "torch", DEVICE) or "")
    assert "ep" in (EXPERTS.refusal(moe_case(1, 8, 8, 1, 3, ep=2), "triton", DEVICE) or "")
    assert "tp" in (EXPERTS.refusal(moe_case(1, 8, 9, 1, 2, tp=2), "triton", DEVICE) or "")
    assert "top_k" in (EXPERTS.refusal(moe_case(1, 8, 8, 3, 2), "triton", DEVICE) or "")
    assert "routing" in (EXPERTS.refusal(moe_case(1, 8, 8, 1, 2, "power_law_1.2"), "triton", DEVICE) or "")
    assert "int8" in (EXPERTS.refusal(moe_case(1, 8, 8, 1, 2, dtype="int8"), "triton", DEVICE) or "")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    for benchmark, own in (
        (GEMM, case),
        (GEMM, gemm_case("int4_wo", 1, 8, 128)),
        (EXPERTS, moe_case(1, 8, 8, 1, 2)),
    ):
        assert benchmark.refusal(own, "triton", "cpu") == "triton needs a GPU, or TRITON_INTERPRET=1"
        assert benchmark.refusal(own, "torch", "cpu") is None


def test_refusals_by_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    capability = (8, 6)
    monkeypatch.setattr("roofline.validate.kernels.tools.capability", lambda device: capability)
    assert GEMM.refusal(gemm_case("fp8", 32, 32, 32), "torch", "cuda") == (
        "fp8 needs compute capability 8.9, the device has 8.6"
    )
    assert GEMM.refusal(gemm_case("bf16", 5, 7, 9), "torch", "cuda") is None
    capability = (7, 5)
    assert "8.0" in (GEMM.refusal(gemm_case("bf16", 5, 7, 9), "triton", "cuda") or "")
    assert GEMM.refusal(gemm_case("fp16", 5, 7, 9), "triton", "cuda") is None
    assert "m > 16" in (GEMM.refusal(gemm_case("int8", 16, 32, 32), "torch", "cuda") or "")
    assert GEMM.refusal(gemm_case("int8", 17, 32, 32), "torch", "cuda") is None
    capability = (9, 0)
    assert "divisible by 16" in (GEMM.refusal(gemm_case("fp8", 1, 24, 32), "torch", "cuda") or "")


# ---- on a device only


@needs_gpu
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(
    "shape", [(1, 4096, 4096), (16, 4096, 14336), (50, 2880, 5120), (300, 4104, 4096), (777, 999, 333)]
)
def test_every_gemm_config_on_the_gpu(dtype: str, shape: tuple[int, int, int]) -> None:
    case = gemm_case(dtype, *shape)
    if reason := GEMM.refusal(case, "triton", DEVICE):
        pytest.skip(reason)
    inputs = GEMM.inputs(case, DEVICE, 8)
    exact = GEMM.reference(case, inputs)
    scales = inputs.get("row_scales"), inputs.get("column_scales")
    for tile in gemm.configs_for(case["m"], inputs["input"].element_size()):
        outputs = GEMM.outputs(case, DEVICE)
        with skip_oversized_tiles():
            gemm.gemm(inputs["input"], inputs["weight"], outputs["output"], *scales, config=tile)
            check(case, outputs, exact)


@needs_gpu
@pytest.mark.parametrize(
    "shape", [(1, 4096, 4096), (16, 4096, 14336), (50, 2880, 5120), (300, 4104, 4096), (777, 999, 384)]
)
def test_every_weight_only_config_on_the_gpu(shape: tuple[int, int, int]) -> None:
    case = gemm_case("int4_wo", *shape)
    inputs = GEMM.inputs(case, DEVICE, 8)
    exact = GEMM.reference(case, inputs)
    operands = inputs["input"], inputs["weight"], inputs["scales"]
    for tile in weight_only.configs_for(case["m"]):
        outputs = GEMM.outputs(case, DEVICE)
        with skip_oversized_tiles():
            weight_only.weight_only_gemm(*operands, outputs["output"], config=tile)
            check(case, outputs, exact)


@needs_gpu
@pytest.mark.parametrize("dtype", EXPERTS.dtypes)
@pytest.mark.parametrize("tokens", [1, 7, 64, 500, 3000])
def test_every_moe_config_on_the_gpu(dtype: str, tokens: int) -> None:
    case = moe_case(tokens, 2048, 760, 8, 64, dtype=dtype)
    inputs = EXPERTS.inputs(case, DEVICE, 8)
    exact = EXPERTS.reference(case, inputs)
    rows = experts.tile_rows(tokens * 8, 64)
    for tile in experts.configs_for(rows, 1):
        outputs = EXPERTS.outputs(case, DEVICE)
        with skip_oversized_tiles():
            ran(inputs, outputs, rows, tile)
            check(case, outputs, exact)


@needs_gpu
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_tuned_kernels_on_the_gpu(backend: str) -> None:
    cases: list[tuple[Benchmark, Case]] = [
        *((GEMM, gemm_case(dtype, m, 4096, 4096)) for dtype in FORMATS for m in (8, 2048)),
        *((GEMM, gemm_case("int4_wo", m, 4096, 4096)) for m in (8, 2048)),
        *((EXPERTS, moe_case(tokens, 2048, 768, 8, 128)) for tokens in (8, 2048)),
    ]
    for benchmark, case in cases:
        if benchmark.refusal(case, backend, DEVICE) is None:
            inputs, outputs = benchmark.inputs(case, DEVICE, 9), benchmark.outputs(case, DEVICE)
            benchmark.backends[backend](case, inputs, outputs)
            worst = max(error(outputs[name], exact) for name, exact in benchmark.reference(case, inputs).items())
            assert worst < ERRORS["bf16"], case
