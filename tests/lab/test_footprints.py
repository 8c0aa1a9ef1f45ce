"""Memory footprints: simulated rows, rows listed with a reason, invalid files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.score.footprints import Quantity, main, read_footprints, report, score_footprints
from roofline.core.errors import SpecError

HEADER = "model,hardware,num_gpus,engine,precision_weights,precision_kv,metric,value,unit,source"

# Figures that vLLM pull requests 10511 and 4454 and llama.cpp pull request 3084 print.
ROWS = (
    "Llama-2 7B,,,GGUF file,Q4_K_M,,weight_file_size,3.8,GiB,a",
    "Llama-3 8B,80GB-class GPU (not named),2.0,vLLM Dec 2024,BF16,BF16,weights_per_gpu,7.48,GiB,b",
    "Llama-3 8B,RTX A6000 48GB,1.0,vLLM Apr 2024 (torch 2.2),BF16,16-bit,kv_gpu_blocks_16tok,13248,blocks,c",
    "Llama-3 8B,80GB-class GPU (not named),1,vLLM Dec 2024,BF16,BF16,activation_peak_per_gpu,1.26,GiB,b",
)


def written(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "footprints.csv"
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def test_rows_are_simulated(tmp_path: Path) -> None:
    found = score_footprints(written(tmp_path, *ROWS))
    assert not found.unmapped
    assert [one.quantity for one in found.scored] == [
        Quantity.WEIGHTS,
        Quantity.WEIGHTS,
        Quantity.CAPACITY,
        Quantity.ACTIVATIONS,
    ]
    assert all(abs(one.error) < 0.01 for one in found.scored)
    assert found.scored[2].measured == 13248 * 16
    text = report(found)
    assert re.findall(r"^(weights|KV capacity|activations) +(\d+) +\d", text, re.MULTILINE) == [
        *(("weights", "2"), ("KV capacity", "1"), ("activations", "1"))
    ]
    assert "Not scored: 0 rows" in text


def test_rows_without_a_model_have_a_reason(tmp_path: Path) -> None:
    rows = (
        "Nosuch 7B,,,GGUF file,Q4_0,,weight_file_size,3.8,GiB,a",
        "Llama-2 7B,,,GGUF file,Q9_9,,weight_file_size,3.8,GiB,a",
        "Llama-2 7B,Nosuch 9000,1,vLLM Apr 2024,FP16,FP16,kv_cache_tokens,1000,tokens,a",
        "Llama-2 7B,A100 80GB,1,pegainfer,FP16,FP16,kv_cache_tokens,1000,tokens,a",
        "Llama-2 7B,A100 80GB,1,PyTorch HF,FP16,FP16,gpu_memory_used,15000,MB,a",
        "Llama-2 7B,A100 80GB,3,vLLM Apr 2024,FP16,FP16,kv_cache_tokens,1000,tokens,a",
        "Llama-2 7B,A100 80GB,x,vLLM Apr 2024,FP16,FP16,kv_cache_tokens,1000,tokens,a",
    )
    found = score_footprints(written(tmp_path, *rows))
    assert not found.scored
    reasons = [reason for _, reason in found.unmapped]
    for reason, said in zip(
        reasons,
        ("Nosuch 7B", "Q9_9", "Nosuch 9000", "pegainfer", "lengths", "tensor parallelism of 3", "'x' is no number"),
        strict=True,
    ):
        assert said in reason


def test_a_nondefault_utilization_is_detected(tmp_path: Path) -> None:
    row = "Llama-3.1 70B,1 GPU (80GB class),1,vLLM Jan 2025 V1,W8A8 INT8,BF16,kv_gpu_blocks_16tok,1381,blocks,d"
    ((_, reason),) = score_footprints(written(tmp_path, row)).unmapped
    assert "weights and KV cache take 94%" in reason


def test_an_engine_that_kept_the_inputs_of_all_reduces_is_scored_with_them(tmp_path: Path) -> None:
    """vLLM issue 2150: 160 all-reduces of 64 MiB stayed allocated, a third of the KV cache of four A100."""
    source = "https://github.com/vllm-project/vllm/pull/2031"
    rows = (
        f"Llama-2 7B,A100 80GB,1,vLLM 0.2.4+,FP16,FP16,kv_gpu_blocks_16tok,7351,blocks,{source}",
        f"Llama-2 70B,A100 80GB,4,vLLM 0.2.4+,FP16,FP16,kv_gpu_blocks_16tok,20865,blocks,{source}",
    )
    one, four = score_footprints(written(tmp_path, *rows)).scored
    assert abs(one.error) < 0.01
    assert abs(four.error) < 0.02
    without = "Llama-2 70B,A100 80GB,4,vLLM 0.2.4+,FP16,FP16,kv_gpu_blocks_16tok,20865,blocks,elsewhere"
    (fixed,) = score_footprints(written(tmp_path, without)).scored
    assert (fixed.simulated - four.simulated) * 81920 == pytest.approx(160 * 2**26, rel=1e-3)


def test_a_stated_utilization_is_used(tmp_path: Path) -> None:
    source = "https://github.com/vllm-project/vllm/issues/21348"
    row = f"Qwen3-235B-A22B,H100 80GB,4,SGLang Jul 2025,FP8,BF16,kv_cache_tokens,367404,tokens,{source}"
    (one,) = score_footprints(written(tmp_path, row)).scored
    assert abs(one.error) < 0.02


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        (HEADER.replace(",value", ""), "lacks the column 'value'"),
        (f"{HEADER}\n{ROWS[0].replace('3.8', '-1')}", r"'value' is not above zero \(row 1\)"),
        (f"{HEADER}\n{ROWS[0].replace('weight_file_size', 'girth')}", "unknown metric 'girth'"),
        (f'{HEADER}\n"Llama', "no readable CSV"),
        (f"{HEADER},unit\n{ROWS[0]},GiB", "has the column 'unit' twice"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "footprints.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=said):
        read_footprints(path)


def test_invalid_footprint_files(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"PAR1\xff\xfe\x00\x80")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_footprints(binary)
    with pytest.raises(SpecError, match="is a folder"):
        read_footprints(tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_footprints(tmp_path / "absent.csv")


def test_the_command_prints_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path, *ROWS))]) == 0
    assert "KV capacity" in capsys.readouterr().out
    assert main([str(tmp_path / "absent.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
