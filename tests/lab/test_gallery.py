"""The gallery: every study is drawn, and the paper's figures have the paper's values."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

mpl = pytest.importorskip("matplotlib", reason="figures need matplotlib")

from lab.gallery.build import FOLDER, SHOWN, build, entries, rounded, write  # noqa: E402
from roofline.core.errors import RooflineError  # noqa: E402
from tests.roofline.graph.test_convention import FIGURE_6, FIGURE_7, FIGURE_8, WIDTHS  # noqa: E402

OUTDATED = "run `make gallery`"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return build()


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_every_study_has_a_figure(files: dict[str, bytes]) -> None:
    studies = {path.stem for path in FOLDER.glob("*.yaml")}
    assert {name.removesuffix(".svg") for name in files if name.endswith(".svg")} == studies


@pytest.mark.parametrize("name", SHOWN)
def test_the_figure_of_the_readme_is_current(files: dict[str, bytes], name: str) -> None:
    old = SHOWN[name].read_bytes()
    version = re.search(rb"Matplotlib v([\d.]+)", old)
    assert version is not None
    if version[1].decode() != mpl.__version__:
        pytest.skip("the figure was drawn by another version of matplotlib")
    # The ids that matplotlib makes are hashes of coordinates: the last digit of one changes them.
    was, now = (_outline(content) for content in (old, files[name]))
    assert was[0] == now[0], OUTDATED
    assert was[1] == pytest.approx(now[1], abs=0.01), OUTDATED


def _outline(svg: bytes) -> tuple[str, list[float]]:
    """A figure's elements and text, and its numbers, without the ids."""
    text = re.sub(r'(id="|href="#|url\(#)[^")]*', "", svg.decode())
    return re.sub(r"-?\d+\.?\d*", "", text), [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def test_files_are_small(files: dict[str, bytes]) -> None:
    assert max(map(len, files.values())) < 150_000
    assert sum(map(len, files.values())) < 1_500_000


def test_no_file_contains_a_local_path_or_a_date(files: dict[str, bytes]) -> None:
    for content in files.values():
        assert str(FOLDER.parent).encode() not in content
        assert b"<dc:date>" not in content


def test_figure_4_and_5_have_the_ridges_of_the_paper(files: dict[str, bytes]) -> None:
    assert [float(row["ridge"]) for row in rows_of(files["figure-4.csv"])] == pytest.approx([201.6], abs=0.1)
    assert [float(row["ridge"]) for row in rows_of(files["figure-5.csv"])] == pytest.approx([403.3, 201.6], abs=0.1)


def test_figure_6_has_the_shares_of_the_paper(files: dict[str, bytes]) -> None:
    rows = {(row["phase"], row["group"], row["quant"]): row for row in rows_of(files["figure-6.csv"])}
    for (phase, batch, length), (total_gb, *shares) in FIGURE_6.items():
        for scheme, expected in zip(("fp16", "W4", "W4KV4"), shares, strict=True):
            row = rows[phase, f"batch {batch}, prompt {length}", scheme]
            parts = [float(row[name]) / total_gb / 1e9 for name in ("weights", "kv_cache", "activations")]
            assert parts == pytest.approx(expected, abs=1e-4)
    assert len(rows) == 6 * 4


@pytest.mark.parametrize(
    ("name", "axis", "metric", "published"),
    [("figure-7.csv", "batch", "step", FIGURE_7), ("figure-8.csv", "prompt", "ttft", FIGURE_8)],
)
def test_figures_7_and_8_have_the_times_of_the_paper(
    files: dict[str, bytes], name: str, axis: str, metric: str, published: dict[int, tuple[float, ...]]
) -> None:
    times = {(row["quant"], int(row[axis])): 1e3 * float(row[metric]) for row in rows_of(files[name])}
    for value, expected in published.items():
        assert [times[width, value] for width in WIDTHS] == pytest.approx(expected, rel=1e-3)


def test_table_1_agrees_with_what_was_printed(files: dict[str, bytes]) -> None:
    rows = [
        line.split(" | ")
        for line in files["README.md"].decode().splitlines()
        if line.endswith(("compute |", "memory |"))
    ]
    assert len(rows) == 24
    for row in rows:
        cells = [cell.removesuffix(" †") for cell in row]
        assert cells[1:9:2] == cells[2:9:2]
    assert sum(cell.endswith("†") for row in rows for cell in row) == 5


def test_the_figures_of_the_paper_have_a_source() -> None:
    assert {entry.name for entry in entries() if entry.spec.source} == {f"figure-{number}" for number in range(4, 9)}


def test_a_folder_without_studies_or_with_an_invalid_one(tmp_path: Path) -> None:
    with pytest.raises(RooflineError, match="there is no gallery here"):
        build(tmp_path)
    (tmp_path / "one.yaml").write_text("hw: a6000\nfigure: {kind: roofs}\n")
    with pytest.raises(RooflineError, match="kind, title and caption"):
        build(tmp_path)


def test_writing_to_another_folder(tmp_path: Path) -> None:
    write({"a.csv": b"1\n"}, tmp_path / "deep" / "folder")
    assert (tmp_path / "deep" / "folder" / "a.csv").read_bytes() == b"1\n"
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "lab.gallery.build", "--output", str(tmp_path / "file" / "below")]
    done = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_fractions_have_ten_digits() -> None:
    assert rounded("a,b\n0.123456789012,12\nx.y,1e-300000000000\n") == "a,b\n0.123456789,12\nx.y,0\n"
