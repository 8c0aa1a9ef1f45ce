"""Measurement files: reading, and errors with the file and the rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from roofline.core.errors import SpecError
from roofline.specs.hardware import load_hardware
from roofline.timing.kernels import kernel_bound
from roofline.timing.kernels.moe import OPTIONS
from roofline.validate.score.accuracy import load
from roofline.validate.tables.experts import gated
from roofline.validate.tables.rows import only_hardware, read_measurements
from roofline.validate.tables.weight_only import as_computed


def rows(count: int = 4) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "hardware": "h100-sxm",
            "op": "gemm",
            "dtype": "bf16",
            "m": range(1, count + 1),
            "n": 1024,
            "k": 2048,
            "latency_us": [10.0 + index for index in range(count)],
            "kernel": "any",
            "software": "any 1.0",
        }
    )


def write(folder: Path, frame: pd.DataFrame, name: str = "rows.csv") -> Path:
    path = folder / name
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_measurements(path)
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text
    assert path.name in text
    return text


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_measurement_files_are_read(tmp_path: Path, name: str) -> None:
    (part,) = read_measurements(write(tmp_path, rows(), name))
    assert part.op == "gemm"
    assert len(part) == 4
    assert part.seconds[0] == pytest.approx(10e-6)
    assert part.columns["dtype"] == "bf16"


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    write(tmp_path, rows(2), "a.csv")
    write(tmp_path, rows(3), "b.parquet")
    assert [len(part) for part in read_measurements(tmp_path)] == [2, 3]


def test_files_of_the_same_hardware_and_kind_are_joined(tmp_path: Path) -> None:
    write(tmp_path, rows(2), "a.csv")
    write(tmp_path, pd.concat([rows(1), rows(4).assign(hardware="h200-sxm", m=8)]), "b.csv")
    data = load(tmp_path)
    assert {name: len(parts["gemm"]) for name, parts in data.items()} == {"h100-sxm": 3, "h200-sxm": 4}


def test_missing_columns(tmp_path: Path) -> None:
    assert "lacks the column 'latency_us'" in refused(write(tmp_path, rows().drop(columns="latency_us")))
    assert "lacks the columns 'n', 'k' for gemm" in refused(write(tmp_path, rows().drop(columns=["n", "k"])))


def test_unknown_op(tmp_path: Path) -> None:
    frame = rows()
    frame.loc[2, "op"] = "gemn"
    text = refused(write(tmp_path, frame))
    assert "unknown op 'gemn'; did you mean 'gemm'? (row 3)" in text


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("latency_us", float("nan"), "'latency_us' is no finite number (row 2)"),
        ("latency_us", float("inf"), "'latency_us' is no finite number (row 2)"),
        ("latency_us", -1.0, "'latency_us' is not above zero (row 2)"),
        ("latency_us", 0.0, "'latency_us' is not above zero (row 2)"),
        ("m", float("nan"), "'m' is no finite number (row 2)"),
        ("m", -1, "'m' is no whole number of at least 1 (row 2)"),
        ("m", 1.5, "'m' is no whole number of at least 1 (row 2)"),
        ("dtype", None, "the column 'dtype' is empty (row 2)"),
        ("hardware", None, "the column 'hardware' is empty (row 2)"),
    ],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_bad_values(tmp_path: Path, column: str, value: object, message: str, name: str) -> None:
    frame = rows()
    frame[column] = [value if index == 1 else old for index, old in enumerate(frame[column])]
    assert message in refused(write(tmp_path, frame, name))


def test_text_where_a_number_belongs(tmp_path: Path) -> None:
    frame = rows().astype({"latency_us": object})
    frame.loc[3, "latency_us"] = "fast"
    assert "(row 4)" in refused(write(tmp_path, frame))


def test_many_rows_are_counted(tmp_path: Path) -> None:
    frame = rows(20)
    frame["latency_us"] = -1.0
    assert "(rows 1, 2, 3, 4, 5 and 15 more)" in refused(write(tmp_path, frame))


def test_repeated_rows(tmp_path: Path) -> None:
    frame = pd.concat([rows(), rows().iloc[[1]]])
    assert "the row repeats an earlier one (row 5)" in refused(write(tmp_path, frame))


def test_the_same_shape_may_be_measured_twice(tmp_path: Path) -> None:
    again = rows().iloc[[1]].assign(latency_us=99.0)
    (part,) = read_measurements(write(tmp_path, pd.concat([rows(), again])))
    assert len(part) == 5


def test_mixed_hardware(tmp_path: Path) -> None:
    frame = rows()
    frame.loc[2, "hardware"] = "h200-sxm"
    parts = read_measurements(write(tmp_path, frame))
    with pytest.raises(SpecError, match="mixes hardware: 'h100-sxm' and, from row 3, 'h200-sxm'"):
        only_hardware(parts, "rows.csv")


def test_rows_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    norm = pd.DataFrame(
        {"hardware": "h100-sxm", "op": "norm", "dtype": "bf16", "rows": [8, -1], "columns": 64, "latency_us": 3.0}
    )
    frame = pd.concat([rows(2), norm], ignore_index=True)
    assert "'rows' is no whole number of at least 1 (row 4)" in refused(write(tmp_path, frame))


def test_empty_and_damaged_files(tmp_path: Path) -> None:
    empty = tmp_path / "empty.parquet"
    empty.write_bytes(b"")
    assert "is empty" in refused(empty)
    assert "has no rows" in refused(write(tmp_path, rows().iloc[:0]))
    whole = write(tmp_path, rows(200), "cut.parquet")
    whole.write_bytes(whole.read_bytes()[:-40])
    assert "PARQUET" in refused(whole)
    text = tmp_path / "text.parquet"
    text.write_text("not parquet")
    assert "PARQUET" in refused(text)
    assert "neither" in refused(tmp_path / "rows.txt")
    assert "cannot be read" in refused(tmp_path / "absent.csv")
    folder = tmp_path / "none"
    folder.mkdir()
    assert "no .parquet or .csv" in refused(folder)


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
    (part,) = read_measurements(tmp_path / "rows.csv")
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
    (part,) = read_measurements(write(tmp_path, frame))
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
    (part,) = read_measurements(write(tmp_path, frame.assign(hardware=hardware, dtype=dtype, kernel=kernel)))
    assert part.frame["dtype"].tolist() == [found]


def test_default_tiles_of_triton_experts_are_known_by_version(tmp_path: Path) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128, "tp": 1, "ep": 1}
    frame = pd.DataFrame({"software": ["vLLM 0.9.2", "vLLM 0.16.0", "vLLM 0.17.1", "vLLM 0.22.0"], "latency_us": 50})
    frame = frame.assign(op="moe", routing="balanced", dtype="fp8", kernel="vllm_fused_moe", hardware="b200-sxm")
    (part,) = read_measurements(write(tmp_path, frame.assign(**sizes)))
    assert part.columns["tiles"].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_block_scaled_experts_that_have_one_scale_are_those_of_fp8(tmp_path: Path) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "top_k": 8, "experts": 128, "ep": 1, "hardware": "h100-sxm", "latency_us": 50}
    frame = pd.DataFrame(
        {"tp": [1, 8, 1, 8], "software": ["SGLang 0.5.9", "SGLang 0.5.10", "SGLang 0.5.10", "vLLM 0.24"]}
    )
    frame = frame.assign(op="moe", dtype="fp8_block", intermediate=768, routing="balanced", kernel="triton", **sizes)
    (part,) = read_measurements(write(tmp_path, frame))
    assert part.frame["dtype"].tolist() == ["fp8", "fp8", "fp8_block", "fp8_block"]


def test_experts_of_no_named_software_or_kernel_are_plain_ones(tmp_path: Path) -> None:
    sizes = {"tokens": 8, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128, "tp": 1, "ep": 2}
    frame = pd.DataFrame([{**sizes, "dtype": "fp8_block", "hardware": "h100-sxm", "latency_us": 50, "op": "moe"}])
    (part,) = read_measurements(write(tmp_path, frame.assign(routing="balanced", software=None, kernel=None)))
    assert part.frame["dtype"].tolist() == ["fp8_block"]


def test_the_cache_column(tmp_path: Path) -> None:
    """Rows that say nothing are those of public benchmarks: replayed buffers, one kernel a graph."""
    lines = ["hardware,op,dtype,m,n,k,latency_us,cache"]
    lines += [f"h100-sxm,gemm,bf16,1,1024,{k},10,{cache}" for k, cache in ((1, "cold"), (2, "warm"), (3, ""))]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    (part,) = read_measurements(path)
    assert part.resident.tolist() == [False, True, True]
    assert part.alone.tolist() == [False, False, True]
    path.write_text("\n".join([*lines, "h100-sxm,gemm,bf16,1,1024,4,10,lukewarm"]))
    with pytest.raises(SpecError, match=r"'cache' is neither cold nor warm \(row 4\)"):
        read_measurements(path)
    path.write_text("hardware,op,dtype,m,n,k,latency_us\nh100-sxm,gemm,bf16,1,1024,1,10\n")
    (part,) = read_measurements(path)
    assert part.resident.all()
    assert part.alone.all()


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
    (part,) = read_measurements(tmp_path / "twice.csv")
    assert part.frame["heads"].tolist() == [128, 64, 32, 16, 32]
    assert part.empty == 1
    table[table["heads"] > 0].to_csv(tmp_path / "without-zeros.csv", index=False)
    (part,) = read_measurements(tmp_path / "without-zeros.csv")
    assert part.frame["heads"].tolist() == [128, 64, 32, 16, 32]


@pytest.mark.parametrize("heads", [[128, 32, 8], [128, 64, 32, 16, 8], [64, 16, 4], [16, 8, 4, 2]])
def test_heads_that_a_table_may_divide_once(heads: list[int], tmp_path: Path) -> None:
    """128 or 64 heads on up to 16 ranks, and DeepSeek-V2-Lite's 16 on up to 8: nothing shows a second division."""
    table = pd.DataFrame({"heads": heads}).assign(
        hardware="h100-sxm", op="mla_decode", dtype="bf16", kv_dtype="bf16", batch=1, q_len=1, kv_len=64, latency_us=9.0
    )
    table.to_csv(tmp_path / "once.csv", index=False)
    (part,) = read_measurements(tmp_path / "once.csv")
    assert part.frame["heads"].tolist() == heads


def test_attention_without_the_kernel_that_writes_the_cache(tmp_path: Path) -> None:
    table = pd.DataFrame({"software": ["vLLM 0.22.0", "vLLM 0.24.0"]}).assign(
        hardware="h100-sxm", op="attention_decode", dtype="bf16", kv_dtype="bf16", batch=1, q_len=1, kv_len=64
    )
    table = table.assign(heads=32, kv_heads=8, head_dim=128, window=0, latency_us=8.0)
    table.to_csv(tmp_path / "attention.csv", index=False)
    (part,) = read_measurements(tmp_path / "attention.csv")
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
    (part,) = read_measurements(tmp_path / "attention.csv")
    assert part.frame["keys_only"].tolist() == [1, 1, 1, 0, 0, 0]
    assert part.frame["ungrouped"].tolist() == [0, 0, ungrouped, 0, 0, 0]


def test_rows_in_a_format_that_hardware_lacks_are_of_converted_weights(tmp_path: Path) -> None:
    """FP8 on Intel's B60: BF16's peak, and half the bytes of its weights."""
    (part,) = read_measurements(write(tmp_path, rows(1).assign(dtype="fp8", hardware="arc-b60")))
    hardware = load_hardware("arc-b60")
    computed = as_computed(part, hardware)
    few, many = ({**computed.columns, "m": size} for size in (1.0, 65536.0))
    assert kernel_bound("gemm", many, hardware) == pytest.approx(2 * 65536 * 1024 * 2048 / 98.3e12)
    assert kernel_bound("gemm", few, hardware) == pytest.approx(1024 * 2048 / 456e9, rel=0.01)
    assert as_computed(part, load_hardware("h100-sxm")) is part
