"""What is made of a visit: files of the repository. All rows are made up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from lab import publish
from lab.library_kernels import COLUMNS as KERNEL_COLUMNS
from lab.library_kernels import KERNELS
from roofline.core.errors import RooflineError
from roofline.timing.calibration_files import parse_document
from roofline.validate.check.measured import load_row_files, predict_rows
from roofline.validate.gpu import plan
from roofline.validate.gpu.network import COLUMNS as NETWORK_COLUMNS
from roofline.validate.gpu.summary import rows_in
from roofline.validate.gpu.visit import CALIBRATION, LOG, NETWORK, ROWS, Bench, Result, Visit
from roofline.validate.measure.bench import measure, points_of
from roofline.validate.measure.design import Limits, design
from roofline.validate.tables.rowfile import RowFile
from tests.validate.fakes import FakeDevice, fake_benchmarks
from tests.validate.gpu.test_results import H100, MACHINE, made_up, result


def fitted(folder: Path) -> Visit:
    """A visit with rows of a made-up machine, and the calibration that was fitted to them."""
    cases = design({"gemm": ("bf16",), "norm": ("bf16",)}, Limits(1e9, 1e13, 1e10), 60)
    with RowFile(folder / ROWS) as file:
        measure(points_of(cases, fake_benchmarks(), FakeDevice(), ("torch",)), 60.0, FakeDevice(), "h100-sxm", file)
    visit = Visit(folder, Bench(isolated=False), facts={"machine": MACHINE})
    said, facts = plan.fitted(visit)
    assert "held-out rows" in said
    steps = (result("machine", **MACHINE), Result("fit", "done", said, 1.0, facts))
    (folder / LOG).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    return visit


def test_a_visit_is_published(tmp_path: Path) -> None:
    """Its rows are read and predicted by the check, its calibration is one, and the page shows both."""
    folder, root, page = tmp_path / "visit", tmp_path / "root", tmp_path / "gpu.md"
    folder.mkdir()
    fitted(folder)
    with RowFile(folder / NETWORK, NETWORK_COLUMNS) as file:
        times = {"latency_us": 1000, "low_us": 800, "expected_us": 900, "high_us": 1200, "bound_us": 500}
        file.append({"hardware": "h100-sxm", "model": "made-up", "dtype": "bf16", "phase": "decode", "batch": 8,
                     "context": 64, "timing": "graph", **times})  # fmt: skip
    with RowFile(folder / KERNELS, KERNEL_COLUMNS) as file:
        name = "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT"
        file.append({"hardware": "h100-sxm", "dtype": "bf16", "m": 1, "n": 4096, "k": 4096, "kernel": name,
                     "kernels": 2, "grid": "2x64x1", "latency_us": 11.0})  # fmt: skip
    publish.publish(folder, "made-up", "abc", "nothing ran: made up", root, root / "visits", page)
    (published,) = load_row_files(root)
    assert published.hardware == H100
    rows = rows_in(root / "made-up.csv")
    assert rows == [{name: row[name] for name in rows[0]} for row in rows_in(folder / ROWS) if row["kernel"] == "torch"]
    groups = predict_rows(published)
    assert {group.op for group in groups} == {"gemm", "norm"}
    assert all(np.isfinite(group.mid).all() for group in groups)
    calibration = root / "specs" / "calibration" / "h100-sxm.yaml"
    assert calibration.read_text() == (folder / CALIBRATION).read_text()
    parse_document(yaml.safe_load(calibration.read_text()), "calibration")
    text = page.read_text()
    assert text == publish.pages(root, root / "visits")
    assert "decode, batch 8, 64 tokens | 1 | 0.9 (0.8 to 1.2) | -10% | inside" in text
    assert "| 1 to 8 | 1 | 100% | 100% | 100% | 100% | 64 |" in text
    assert "gemm bf16" in text


def test_no_folder_and_no_name_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RooflineError, match="no folder of a visit"):
        publish.publish(tmp_path, "name", "abc", "", tmp_path / "root", tmp_path / "visits", tmp_path / "page.md")
    made_up(tmp_path)
    for name in ("../up", "", "A b", "/etc"):
        with pytest.raises(RooflineError, match="a name has"):
            publish.publish(tmp_path, name, "abc", "", tmp_path / "root", tmp_path / "visits", tmp_path / "page.md")
    assert not (tmp_path / "root").exists()
