"""MLA decode rows from measurements of whole modules."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lab.score.accuracy import load
from lab.tables.mla_modules import mla_decode_rows
from lab.tables.public import MODULES, translated
from roofline.validate.tables.rows import Measurements, read_measurements

ATTENTION_US = {3: 0.0, 129: 1.0, 1025: 10.0, 4097: 40.0}


def modules(name: str = "h100-sxm") -> pd.DataFrame:
    """Modules whose projections take 100 us in BF16 and 70 us in FP8, and whose attention takes `ATTENTION_US`."""
    rows = [
        {
            "hardware": name, "op": "mla_decode_module", "dtype": "bf16", "kv_dtype": "bf16", "gemm_dtype": form,
            "model": "deepseek-ai/DeepSeek-V3", "batch": batch, "q_len": 1, "kv_len": keys, "heads": 128, "tp": 1,
            "latency_us": projections + batch * attention, "kernel": "any", "software": "any 1.0",
        }
        for form, projections in (("bf16", 100.0), ("fp8_block", 70.0))
        for batch in (1, 8)
        for keys, attention in ATTENTION_US.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_projections_are_subtracted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    modules().to_csv(path, index=False)
    (part,) = read_measurements(path, translated, MODULES)
    found = mla_decode_rows(part)
    assert found is not None
    times = found.frame.set_index(["batch", "kv_len"])["latency_us"].to_dict()
    # Differences below 4 us are noise; the launch of 5 us cancels in the difference and is added.
    assert times == pytest.approx({(1, 1025): 15.0, (1, 4097): 45.0, (8, 129): 13.0, (8, 1025): 85.0, (8, 4097): 325.0})
    assert set(found.frame["latent"]) == {512}
    by_op = load(tmp_path)["h100-sxm"]
    assert set(by_op) == {"mla_decode"}
    assert by_op["mla_decode"].formats().keys() == {"bf16"}


def test_modules_without_few_keys_give_no_rows() -> None:
    frame = modules()
    assert mla_decode_rows(Measurements("mla_decode_module", frame[frame["kv_len"] > 3], "rows")) is None


def layers() -> pd.DataFrame:
    """Attention layers on a host that takes 160 us: other kernels take 100 us, attention 0.1 us a key."""
    rows = [
        {
            "hardware": "h100-sxm", "op": "mla_decode", "dtype": "bf16", "kv_dtype": "bf16", "batch": 1, "q_len": 1,
            "kv_len": keys, "heads": heads, "latency_us": max(160.0, 100.0 + 0.1 * keys), "software": "vLLM 0.14.0",
        }
        for heads in (64, 128)
        for keys in (4, 64, 1024, 2048, 4096, 8192)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_layers_without_graphs_are_compared_where_the_host_does_not_hide_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    frame = layers()
    late = (frame["heads"] == 64) & (frame["kv_len"] == 2048)
    frame.loc[late, "latency_us"] = 900.0  # no other row of more keys takes as long: it cannot be the fewest
    frame.to_csv(path, index=False)
    (part,) = read_measurements(path, translated, MODULES)
    found = mla_decode_rows(part)
    assert found is not None
    assert (found.texts("cache") == "warm").all()
    times = found.frame.set_index(["heads", "less_kv", "kv_len"])["latency_us"].to_dict()
    assert times == pytest.approx({(64, 4096, 8192): 414.6, (128, 2048, 4096): 209.8, (128, 2048, 8192): 619.4})


def test_kernels_beside_layers_stay_as_they_are() -> None:
    kernels = layers().assign(software="SGLang 0.5.10")
    both = Measurements("mla_decode", pd.concat([kernels, layers()], ignore_index=True), "rows")
    found = mla_decode_rows(both)
    assert found is not None
    assert (found.texts("cache") == "").sum() == len(kernels)
    assert len(found) == len(kernels) + 4
