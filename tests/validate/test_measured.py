"""Kernels of this project: readable, with their provenance, predicted as anybody would, and guarded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from roofline.core.errors import RooflineError, SpecError
from roofline.reports.documents.check import as_markdown, parts
from roofline.reports.output.terminal import render
from roofline.specs.hardware import load_hardware
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_bound, kernel_time
from roofline.validate.check.check import PREDICTIONS, check, read_predictions
from roofline.validate.check.measured import geometric_mean, load_row_files, predict_rows
from roofline.validate.score.kernels import score

ABOUT = {
    "title": "A card",
    "hardware": "h100-sxm",
    "machine": "one card",
    "software": "torch 2.13.0",
    "command": "roofline validate measure",
    "date": "2026-01-02",
    "revision": "abc1234",
    "load": "none",
    "fitted": False,
    "constants": "those of h100-sxm, of other rows",
}
HEAD = "hardware,op,dtype,m,n,k,latency_us,kernel,cache"


def folder(root: Path, *rows: str, head: str = HEAD, **about: object) -> Path:
    (root / "card.csv").write_text("\n".join([head, *rows]) + "\n")
    content = {name: value for name, value in {**ABOUT, **about}.items() if value is not None}
    text = yaml.safe_dump(content).replace("'2026-01-02'", "2026-01-02")
    (root / "card.yaml").write_text(text)
    return root


def gemm_row(m: int, way: str = "torch", cache: str = "cold", latency: float = 50.0) -> str:
    return f"h100-sxm,gemm,bf16,{m},4096,4096,{latency},{way},{cache}"


@pytest.mark.slow
def test_the_files_of_the_repository() -> None:
    """Every file names its machine and is, all of it, predicted; and the schema's own reader takes it."""
    found = load_row_files()
    assert found
    for kept in found:
        groups = predict_rows(kept)
        assert sum(len(group.measured) for group in groups) == sum(map(len, kept.parts))
        errors = {(group.op, group.format): group.errors.mape for group in groups if group.kernel == "torch"}
        for group in score(kept.parts, kept.hardware, by=("op", "format")):
            assert group.mape == pytest.approx(errors[group["op"], group["format"]])


def test_the_cpu_constants_name_the_rows_they_were_fitted_to() -> None:
    """Its constants are those of the files that say so, and of no other: as many rows as these have."""
    kept = {found.name: found for found in load_row_files()}
    kept = {name: found for name, found in kept.items() if found.hardware.kind == "cpu"}
    assert {name for name, found in kept.items() if not found.provenance.fitted} == {"epyc-2-threads"}
    family = load_calibration(kept["epyc-2-threads"].hardware)
    assert family.name == "cpu"
    fitted = [part for found in kept.values() if found.provenance.fitted for part in found.parts]
    for (op, format), fit in family.fits.items():
        own = [part.frame["dtype"] for part in fitted if part.op == op]
        assert fit.rows == sum(int(dtype.isin([format]).sum()) if format != "any" else len(dtype) for dtype in own)
    for found in kept.values():
        assert {group.basis for group in predict_rows(found)} == {"family"}


def test_predictions_are_those_of_the_calibration(tmp_path: Path) -> None:
    """Kernels and caches are distinguished; replayed weights need no memory."""
    rows = [gemm_row(8), gemm_row(16), gemm_row(8, "triton"), gemm_row(8, cache="warm")]
    (kept,) = load_row_files(folder(tmp_path, *rows))
    groups = {(group.kernel, group.cache): group for group in predict_rows(kept)}
    assert {key: len(group.measured) for key, group in groups.items()} == {
        ("torch", "cold"): 2,
        ("triton", "cold"): 1,
        ("torch", "warm"): 1,
    }
    card = load_hardware("h100-sxm")
    columns = {"dtype": "bf16", "m": np.array([8.0, 16.0]), "n": 4096.0, "k": 4096.0}
    constants = load_calibration(card).fits["gemm", "bf16"].parameters
    np.testing.assert_allclose(groups["torch", "cold"].mid, kernel_time("gemm", columns, card, constants))
    np.testing.assert_allclose(groups["torch", "cold"].bound, kernel_bound("gemm", columns, card))
    assert groups["torch", "warm"].mid[0] < groups["torch", "cold"].mid[0]


@pytest.mark.parametrize(
    ("rows", "about", "message"),
    [
        ((gemm_row(8),), {"load": None}, r"card.yaml: .*'load'"),
        ((gemm_row(8),), {"hardware": "hardware/absent.yaml"}, "absent.yaml"),
        ((), {}, "has no rows"),
        ((gemm_row(8, latency=-3.0),), {}, r"'latency_us' is not above zero"),
        ((gemm_row(8).replace("gemm", "gem"),), {}, "unknown op 'gem'"),
        ((gemm_row(8).replace("gemm", "norm"),), {}, "lacks the columns 'rows'"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, rows: tuple[str, ...], about: dict[str, object], message: str) -> None:
    with pytest.raises(RooflineError, match=message) as caught:
        [predict_rows(kept) for kept in load_row_files(folder(tmp_path, *rows, **about))]
    assert "\n" not in str(caught.value)


def test_rows_without_provenance(tmp_path: Path) -> None:
    folder(tmp_path, gemm_row(8))
    (tmp_path / "card.yaml").unlink()
    with pytest.raises(SpecError, match=r"has no provenance file card.yaml"):
        load_row_files(tmp_path)


# --- guarded ---


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an anchor, rows and their accepted predictions."""
    (tmp_path / "anchors").mkdir()
    (tmp_path / "rows").mkdir()
    entry = "{id: first, metric: ttft, value: 9.5 ms, conditions: {hw: a100-sxm-80gb, model: llama-2-7b}}"
    (tmp_path / "anchors" / "page.yaml").write_text(f"title: A\nsource: b\nanchors:\n  - {entry}\n")
    folder(tmp_path / "rows", gemm_row(8), gemm_row(64), gemm_row(64, latency=60.0), gemm_row(1024))
    assert checked(tmp_path, accept=True)["passed"]
    return tmp_path


def checked(root: Path, accept: bool = False) -> dict[str, object]:
    return check(root / "anchors", root / "golden.yaml", accept, measurements=root / "rows")


def test_the_geometric_mean_of_a_class_is_committed(project: Path) -> None:
    (kept,) = load_row_files(project / "rows")
    (group,) = predict_rows(kept)
    committed = read_predictions(project / "golden.yaml")
    ids = ["first", *(f"card/gemm/bf16/torch/cold/{label}" for label in ("m<=16", "m<=128", "m<4096"))]
    assert list(committed) == ids
    assert committed[ids[2]].mid == pytest.approx(1e6 * geometric_mean(group.mid[1:3]), rel=1e-4)
    document = checked(project)
    assert document["passed"]
    assert (
        document["verdict"] == "all 1 predictions and those of 4 measured kernels match the committed ones within 0.5%"
    )


def test_kernels_that_move_fail_until_accepted(project: Path) -> None:
    """As if the simulator had said twice as much when the predictions were accepted."""
    path = project / "golden.yaml"
    before = path.read_text()
    content = yaml.safe_load(before)
    id = "card/gemm/bf16/torch/cold/m<=128"
    content["kernels"][id]["mid"] *= 2
    path.write_text(yaml.safe_dump(content))
    document = checked(project)
    assert not document["passed"]
    (moved,) = document["moved"]  # type: ignore[misc]
    assert (moved["id"], moved["status"], moved["unit"]) == (id, "moved", "us")
    assert moved["change"] == pytest.approx(-0.5, abs=1e-3)
    assert moved["published"] == pytest.approx(np.sqrt(50 * 60))
    assert moved["error_after"] == pytest.approx(moved["new"] / moved["published"] - 1)
    assert "1 moved of 1 anchors and 3 classes of kernels" in str(document["verdict"])
    assert checked(project, accept=True)["accepted"]
    assert yaml.safe_load(path.read_text())["kernels"] == yaml.safe_load(before)["kernels"]
    assert checked(project)["passed"]


def test_rows_that_come_and_go(project: Path) -> None:
    folder(project / "rows", gemm_row(8), gemm_row(9000))
    statuses = {row["id"].split("/")[-1]: row["status"] for row in checked(project)["moved"]}  # type: ignore[attr-defined]
    assert statuses == {"m>=4096": "added", "m<=128": "removed", "m<4096": "removed"}
    checked(project, accept=True)
    assert checked(project)["passed"]


def test_errors_on_fitted_rows_are_marked(project: Path) -> None:
    for fitted, said in ((False, "constants not fitted to these rows"), (True, "so the errors are no test")):
        folder(project / "rows", gemm_row(8), fitted=fitted)
        document = checked(project)
        assert said in " ".join(render(parts(document)).split())
        page = as_markdown(document)
        assert said in page
        assert ("- Load: none" in page) == (not fitted)


def test_the_committed_file_has_every_class() -> None:
    committed = [name for name in read_predictions(PREDICTIONS) if "/" in name]
    assert {name.split("/")[0] for name in committed} == {kept.name for kept in load_row_files()}
