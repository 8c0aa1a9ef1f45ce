"""Public tables of the kernels of 2026: the release that ran, and rows during which something else ran."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lab.tables import sparse_layers
from lab.tables.attention_layers import software, within_rates
from lab.tables.sparse_layers import whole_layers
from roofline.core.errors import RooflineError, SpecError, UnsupportedError


def test_a_row_names_its_release_where_it_is_another_than_its_tables() -> None:
    """SGLang's tables of 0.5.10 for DeepSeek-V4 ran 0.5.11 on GB300; builds between releases have no name."""
    ran = ["0.5.11", "0.5.10rc0", "kernel-level", "0.0.0.dev1+ga4cf2ea12"]
    rows = pd.DataFrame({"engine": "SGLang", "version": ran, "table_version": "0.5.10"})
    assert software(rows).tolist() == ["SGLang 0.5.11", *["SGLang 0.5.10"] * 3]


@pytest.mark.parametrize(("longer", "kept"), [(4.0, True), (12.0, False)])
def test_encoders_are_left_out_where_a_smaller_shape_has_a_far_higher_rate(longer: float, kept: bool) -> None:
    rows = pd.DataFrame({"batch_size": 1.0, "isl": [1024.0, 2048.0], "num_heads": 16.0, "latency_us": [100.0, 0.0]})
    rows.loc[1, "latency_us"] = 100.0 * longer
    assert within_rates(rows).tolist() == [True, kept]


@pytest.mark.parametrize(("part", "kept"), [(0.5, False), (0.98, True)])
def test_calls_of_more_tokens_than_blocks_are_left_out_where_a_kernel_is_missing(part: float, kept: bool) -> None:
    """A token takes as long in a call of 131,072 as in one of 32,768, or half of the layer did not run."""
    layers = dict.fromkeys(("model", "gemm_type", "op_name"), "layer") | {"isl": 4096.0, "step": 0.0}
    rows = pd.DataFrame({**layers, "kv_cache_dtype": ["bf16", "bf16", "fp8", "fp8"], "num_heads": 8.0})
    rows = rows.assign(batch_size=[8.0, 32.0, 8.0, 32.0], latency_us=[100.0, 400.0 * part, 100.0, 400.0])
    assert whole_layers(rows, prompts=True)["latency_us"].tolist() == [100.0, *([400.0 * part] * kept), 100.0, 400.0]


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """A table of two models in SGLang's DSA, of which one is not known."""
    models = ["deepseek-ai/DeepSeek-V3.2", "maker/Other"]
    texts = {"hardware": "h200-sxm", "gemm_type": "fp8_block", "kv_cache_dtype": "fp8", "op_name": "dsa"}
    texts |= {"engine": "SGLang", "version": "0.5.10", "table_version": "0.5.10", "kernel_source": "dsa"}
    sizes = {"num_heads": 16, "batch_size": 8, "isl": 1, "step": 4096, "latency_us": 100.0}
    rows = pd.DataFrame({"model": models, **texts, **sizes})
    rows.to_parquet(tmp_path / "h200-sxm.dsa_generation_module.sglang-0.5.10.parquet")
    return tmp_path


def test_layers_that_are_not_known_are_named(layers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = sparse_layers.read(layers)
    assert len(found) == 1
    assert "1 of maker/Other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "stops"),
    [(SpecError("h200-sxm.yaml", "the key 'fits' is missing"), True), (UnsupportedError("no such layer"), False)],
)
def test_a_file_that_cannot_be_read_stops_and_a_layer_that_cannot_be_predicted_is_named(
    error: RooflineError, stops: bool, layers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(sparse_layers, "analyze", failing)
    if stops:
        with pytest.raises(SpecError):
            sparse_layers.read(layers)
    else:
        assert sparse_layers.read(layers) == []
        assert str(error) in capsys.readouterr().err
