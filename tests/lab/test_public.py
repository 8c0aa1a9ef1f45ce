"""Reading public tables: names of formats, experts, heads of a rank and caches in the words of the schema."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lab.observation.routing import OPTIONS
from lab.score.accuracy import load
from lab.tables.experts import gated
from lab.tables.public import read


def write(folder: Path, frame: pd.DataFrame, name: str = "rows.csv") -> Path:
    frame.to_csv(folder / name, index=False)
    return folder / name


def gemms(count: int) -> pd.DataFrame:
    frame = pd.DataFrame({"m": range(1, count + 1), "latency_us": [10.0 + index for index in range(count)]})
    return frame.assign(hardware="h100-sxm", op="gemm", dtype="bf16", n=1024, k=2048, software="any 1.0")


def test_files_of_the_same_hardware_and_kind_are_joined(tmp_path: Path) -> None:
    write(tmp_path, gemms(2), "a.csv")
    write(tmp_path, pd.concat([gemms(1), gemms(4).assign(hardware="h200-sxm", m=8)]), "b.csv")
    data = load(tmp_path)
    assert {name: len(parts["gemm"]) for name, parts in data.items()} == {"h100-sxm": 3, "h200-sxm": 4}


def test_experts_of_two_matrices_are_inferred_from_the_shape() -> None:
    frame = pd.DataFrame({"hidden": [2688, 4096], "intermediate": [1856, 2048], "top_k": [6, 8], "experts": [128, 256]})
    assert gated(frame).tolist() == [0.0, 1.0]
    assert gated(frame.assign(gated=1)).tolist() == [1.0, 1.0]
    for software, kernel, found in (
        ("vLLM 0.24.0", "triton", 0.0),
        ("vLLM 0.22.0", "vllm_fused_moe", 1.0),
        ("vLLM 1.2", "triton", 0.0),
        ("SGLang 0.5.10", "triton", 1.0),
        ("TensorRT-LLM 1.3.0rc10", "moe_torch_flow_min_latency", 1.0),
        ("TensorRT-LLM 1.3.0rc10", "moe_torch_flow_nongated", 0.0),
    ):
        assert gated(frame[:1].assign(software=software, kernel=kernel)).tolist() == [found], software


def test_kernels_for_expert_ranks_have_constants_of_their_own(tmp_path: Path) -> None:
    """vLLM 0.24 on Hopper: CUTLASS where ranks divide block-scaled experts, Triton elsewhere."""
    sizes = "h100-sxm,moe,fp8_block,8,7168,2048,8,256,1,{},balanced,50,vLLM 0.24.0,vllm_fp8moe_{}"
    lines = ["hardware,op,dtype,tokens,hidden,intermediate,top_k,experts,tp,ep,routing,latency_us,software,kernel"]
    cutlass, triton = "flashinfer_cutlass_flashinferexperts", "triton_tritonexperts"
    lines += [sizes.format(*one) for one in ((8, cutlass), (4, triton), (1, cutlass))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    (part,) = read(tmp_path / "rows.csv")
    assert part.frame["dtype"].tolist() == ["fp8_block_ep", "fp8_block", "fp8_block"]


@pytest.mark.parametrize(
    ("software", "kernel", "hardware", "found"),
    [
        ("vLLM 0.14.0", "vllm_fused_moe", "h100-sxm", (1, 0, 0, 0)),
        ("vLLM 0.22.0", "vllm_fused_moe", "h100-sxm", (0, 0, 0, 0)),
        ("TensorRT-LLM 1.3.0rc10", "moe_torch_flow_cutlass", "h100-sxm", (1, 0, 0, 0)),
        ("TensorRT-LLM 1.3.0rc10", "moe_torch_flow_cutlass", "rtx-pro-6000-server", (0, 0, 0, 0)),
        ("SGLang 0.5.9", "sglang_fused_moe_triton", "h100-sxm", (1, 1, 0, 0)),
        ("SGLang 0.5.9", "sglang_marlin_moe", "h100-sxm", (1, 1, 0, 1)),
        ("SGLang 0.5.9", "sglang_flashinfer_cutedsl_moe", "b200-sxm", (1, 0, 0, 0)),
        ("SGLang 0.5.10", "sglang_fused_moe_triton", "b200-sxm", (0, 1, 0, 0)),
        ("SGLang 0.5.10", "sglang_marlin_moe", "h100-sxm", (0, 1, 1, 0)),
        ("SGLang 0.5.14", "sglang_fused_moe_triton", "h100-sxm", (0, 1, 1, 0)),
        ("SGLang 0.5.14", "sglang_marlin_moe", "h100-sxm", (0, 0, 0, 0)),
    ],
)
def test_what_benchmarks_of_several_devices_compute_is_known_of_their_tables(
    tmp_path: Path, software: str, kernel: str, hardware: str, found: tuple[int, ...]
) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128, "tp": 1, "ep": 8}
    frame = pd.DataFrame([{**sizes, "op": "moe", "dtype": "bf16", "routing": "power_law_1.2", "latency_us": 50}])
    frame = frame.assign(software=software, kernel=kernel, hardware=hardware)
    (part,) = read(write(tmp_path, frame))
    assert tuple(part.frame[list(OPTIONS)].iloc[0]) == found


@pytest.mark.parametrize(
    ("hardware", "dtype", "kernel", "found"),
    [
        ("h100-sxm", "bf16", "vllm_fused_moe", "bf16"),
        ("b200-sxm", "bf16", "vllm_fused_moe", "bf16_triton"),
        ("b200-sxm", "bf16", "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts", "bf16"),
        ("h100-sxm", "fp8", "vllm_fused_moe", "fp8_triton"),
        ("h200-sxm", "fp8", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "fp8_untuned"),
        ("b200-sxm", "fp8", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "fp8"),
        ("l40s", "fp8", "vllm_fused_moe", "fp8"),
        ("l40s", "int4_wo", "vllm_marlin_int4_moe", "int4_wo_triton"),
    ],
)
def test_triton_experts_that_benchmarks_call_by_name_have_constants_of_their_own(
    tmp_path: Path, hardware: str, dtype: str, kernel: str, found: str
) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128, "tp": 1, "ep": 1}
    frame = pd.DataFrame([{**sizes, "op": "moe", "routing": "balanced", "latency_us": 50, "software": "vLLM 0.22.0"}])
    (part,) = read(write(tmp_path, frame.assign(hardware=hardware, dtype=dtype, kernel=kernel)))
    assert part.frame["dtype"].tolist() == [found]


def test_default_tiles_of_triton_experts_are_known_by_version(tmp_path: Path) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128, "tp": 1, "ep": 1}
    frame = pd.DataFrame({"software": ["vLLM 0.9.2", "vLLM 0.16.0", "vLLM 0.17.1", "vLLM 0.22.0"], "latency_us": 50})
    frame = frame.assign(op="moe", routing="balanced", dtype="fp8", kernel="vllm_fused_moe", hardware="b200-sxm")
    (part,) = read(write(tmp_path, frame.assign(**sizes)))
    assert part.columns["tiles"].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_block_scaled_experts_that_have_one_scale_are_those_of_fp8(tmp_path: Path) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "top_k": 8, "experts": 128, "ep": 1, "hardware": "h100-sxm", "latency_us": 50}
    frame = pd.DataFrame(
        {"tp": [1, 8, 1, 8], "software": ["SGLang 0.5.9", "SGLang 0.5.10", "SGLang 0.5.10", "vLLM 0.24"]}
    )
    frame = frame.assign(op="moe", dtype="fp8_block", intermediate=768, routing="balanced", kernel="triton", **sizes)
    (part,) = read(write(tmp_path, frame))
    assert part.frame["dtype"].tolist() == ["fp8", "fp8", "fp8_block", "fp8_block"]


def test_experts_of_no_named_software_or_kernel_are_plain_ones(tmp_path: Path) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128, "tp": 1, "ep": 2}
    frame = pd.DataFrame([{**sizes, "dtype": "fp8_block", "hardware": "h100-sxm", "latency_us": 50, "op": "moe"}])
    (part,) = read(write(tmp_path, frame.assign(routing="balanced", software=None, kernel=None)))
    assert part.frame["dtype"].tolist() == ["fp8_block"]


def test_heads_that_a_table_divides_twice(tmp_path: Path) -> None:
    """128 heads on 1, 2, 4, 8 and 16 ranks, and 64 on 2: a table that divides a rank's heads by the ranks once more."""
    table = pd.DataFrame({"heads": [128, 32, 8, 2, 0, 16]}).assign(
        hardware="h100-sxm",
        op="mla_decode",
        dtype="bf16",
        kv_dtype="bf16",
        batch=1,
        q_len=1,
        kv_len=64,
        latency_us=20.0,
    )
    table.to_csv(tmp_path / "twice.csv", index=False)
    (part,) = read(tmp_path / "twice.csv")
    assert part.frame["heads"].tolist() == [128, 64, 32, 16, 32]
    assert part.empty == 1
    table[table["heads"] > 0].to_csv(tmp_path / "without-zeros.csv", index=False)
    (part,) = read(tmp_path / "without-zeros.csv")
    assert part.frame["heads"].tolist() == [128, 64, 32, 16, 32]


@pytest.mark.parametrize("heads", [[128, 32, 8], [128, 64, 32, 16, 8], [64, 16, 4], [16, 8, 4, 2]])
def test_heads_that_a_table_may_divide_once(heads: list[int], tmp_path: Path) -> None:
    """128 or 64 heads on up to 16 ranks, and DeepSeek-V2-Lite's 16 on up to 8: nothing shows a second division."""
    table = pd.DataFrame({"heads": heads}).assign(
        hardware="h100-sxm", op="mla_decode", dtype="bf16", kv_dtype="bf16", batch=1, q_len=1, kv_len=64, latency_us=9.0
    )
    table.to_csv(tmp_path / "once.csv", index=False)
    (part,) = read(tmp_path / "once.csv")
    assert part.frame["heads"].tolist() == heads


def test_attention_without_the_kernel_that_writes_the_cache(tmp_path: Path) -> None:
    table = pd.DataFrame({"software": ["vLLM 0.22.0", "vLLM 0.24.0"]}).assign(
        hardware="h100-sxm", op="attention_decode", dtype="bf16", kv_dtype="bf16", batch=1, q_len=1, kv_len=64
    )
    table = table.assign(heads=32, kv_heads=8, head_dim=128, window=0, latency_us=8.0)
    table.to_csv(tmp_path / "attention.csv", index=False)
    (part,) = read(tmp_path / "attention.csv")
    assert part.frame["bare"].tolist() == [1, 0]


@pytest.mark.parametrize(("hardware", "ungrouped"), [("h100-sxm", 0), ("b200-sxm", 1), ("gb300", 1)])
def test_public_tables_of_decode_over_a_cache_of_keys_alone(hardware: str, ungrouped: int, tmp_path: Path) -> None:
    """TensorRT-LLM's before 1.3.0rc20; those of 1.3 on Blackwell have no grouped kernel for it."""
    software = [f"TensorRT-LLM {version}" for version in ("1.0.0", "1.2.0rc5", "1.3.0rc10", "1.3.0rc20", "1.4.0")]
    table = pd.DataFrame({"software": [*software, "SGLang 0.5.10"]}).assign(
        hardware=hardware, op="attention_decode", dtype="bf16", kv_dtype="bf16", batch=1, q_len=1, kv_len=64
    )
    table = table.assign(heads=32, kv_heads=8, head_dim=128, window=0, latency_us=8.0)
    table.to_csv(tmp_path / "attention.csv", index=False)
    (part,) = read(tmp_path / "attention.csv")
    assert part.frame["keys_only"].tolist() == [1, 1, 1, 0, 0, 0]
    assert part.frame["ungrouped"].tolist() == [0, 0, ungrouped, 0, 0, 0]
