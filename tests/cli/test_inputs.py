"""Input files: regular files of bounded size and expansion, whichever reader opens them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from roofline.core import inputs
from roofline.core.documents import MAX_BYTES, read_mapping
from roofline.core.errors import RooflineError, SpecError
from roofline.core.inputs import read_bytes
from roofline.scenario.lengths import parse_lengths
from roofline.serving.traces import read_trace
from roofline.specs.engine import load_engine
from roofline.specs.engine_files import parse_engine
from roofline.specs.hardware import load_hardware
from roofline.specs.library import find_file
from roofline.timing.calibration_files import parse_calibration
from roofline.validate.tables.rowfile import read_rows
from roofline.validate.tables.rows import read_measurements
from roofline.validate.tables.text import read_lines
from roofline.whatif.study import read_study
from tests.conftest import Run
from tests.paths import ROOT

READERS: Mapping[str, Callable[[Path], object]] = {
    "spec.yaml": read_mapping,
    "config.json": read_mapping,
    "engine.yaml": lambda path: load_engine(str(path)),
    "study.yaml": read_study,
    "trace.jsonl": read_trace,
    "lengths.csv": lambda path: parse_lengths(str(path), "prompt"),
    "table.csv": lambda path: read_lines(path, ("a",)),
    "table.csv.gz": lambda path: read_lines(path, ("a",)),
    "measured.csv": read_measurements,
    "measured.parquet": read_measurements,
    "continued.csv": read_rows,
}


@contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < seconds


def test_files_are_opened_in_one_place_only() -> None:
    """Other modules of the package open what they write, their own data, or the system's."""
    opens = re.compile(r"\b(gzip\.|os\.)?open\(|\.read_(text|bytes)\(|\bread_(csv|parquet)\(")
    own = (
        "reports/view/page/__init__.py",
        "reports/tables/resumable.py",
        "validate/measure/host.py",
        "reports/view/server.py",
    )
    writers = ("roofline/core/inputs.py", "roofline/core/files.py", "validate/tables/rowfile.py")
    from_memory = ("validate/tables/text.py", "validate/tables/frames.py")
    found = {
        str(path.relative_to(ROOT))
        for room in ("roofline", "advisor", "validate", "reports")
        for path in (ROOT / room).rglob("*.py")
        if opens.search(path.read_text("utf-8"))
    }
    unknown = {name for name in found if not name.startswith((*own, *writers, *from_memory, "roofline/core/inputs.py"))}
    assert unknown == {"roofline/cli/program.py"}  # /dev/null


@pytest.mark.parametrize("name", READERS)
def test_pipes_and_devices_are_not_opened(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(RooflineError, match="not a regular file"):
        READERS[name](path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(RooflineError, match="not a regular file"):
        READERS[name](path)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_large_files_are_read_up_to_a_limit(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with within(5), pytest.raises(RooflineError, match="is larger than"):
        READERS[name](tmp_path / name)


def test_files_are_larger_than_their_size_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of /proc, whose size is 0."""
    (tmp_path / "a").write_bytes(bytes(100))
    monkeypatch.setattr(inputs, "PIECE", 7)
    assert read_bytes(tmp_path / "a", 100) == bytes(100)
    with pytest.raises(SpecError, match="is larger than"):
        read_bytes(tmp_path / "a", 99)


def test_a_pipe_on_the_search_path(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "own.yaml")
    monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path))
    monkeypatch.delenv = lambda *_args, **_options: None  # type: ignore[method-assign]  # the fixture `run` unsets it
    status, _, err = run("analyze", "llama-3.1-8b", "--hw", "h100-sxm")
    assert status == 2
    assert "own.yaml: is a pipe or a device, not a regular file" in err


# Aliases


def bomb(key: str, levels: int = 40) -> str:
    """A YAML document of a few hundred bytes whose `key` stands for 2^levels entries."""
    lines = ["x0: &x0 [word, word]", *(f"x{i}: &x{i} [*x{i - 1}, *x{i - 1}]" for i in range(1, levels))]
    return "\n".join((*lines, f"{key}: *x{levels - 1}", ""))


def test_aliases_stand_for_as_much_as_a_file_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(bomb("title"))
    with within(1), pytest.raises(SpecError, match=r"line \d+: its aliases stand for more than 4 MiB"):
        read_mapping(path)
    path.write_text(f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * (MAX_BYTES // 100_000 + 1))}]\n")
    with pytest.raises(SpecError, match="its aliases stand for"):
        read_mapping(path)
    path.write_text(bomb("title", 10))
    assert str(read_mapping(path)["title"]).count("word") == 2**10


@pytest.mark.parametrize("key", ["title", "sources", "checkpoints", "source", "quant", "engine", "hw", "model"])
@pytest.mark.parametrize("name", ["engine.yaml", "study.yaml"])
def test_values_that_are_printed_are_small(name: str, key: str, tmp_path: Path) -> None:
    """Eighteen readers called `str` or `repr` on what aliases nest."""
    (tmp_path / name).write_text(bomb(key, 16) + "name: x\nover: {batch: 1}\n")
    with within(2), pytest.raises(RooflineError):
        READERS[name](tmp_path / name)


# Tables


def test_a_header_of_commas(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for text in ("," * 3_000_000, '"\n",' * 1_000_000, "hardware,op\n" + "," * 3_000_000):
        path.write_text(text)
        with within(5), pytest.raises(SpecError, match=r"columns; 1 to 200 are read|cells in row 1"):
            read_measurements(path)


def test_parquet_is_bounded_after_decompression(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    long = pa.DictionaryArray.from_arrays([0] * 3_000, ["x" * 1_000_000])
    parquet.write_table(pa.table({"hardware": long, "op": ["gemm"] * 3_000}), path, store_schema=False)
    with within(5), pytest.raises(SpecError, match="lacks the column"):
        read_measurements(path)
    parquet.write_table(pa.table({"op": pa.array([[1.0] * 10])}), path)
    with pytest.raises(SpecError, match="'op' holds lists or structs in every row"):
        read_measurements(path)
    parquet.write_table(pa.table({f"c{i}": [0.0] for i in range(300)}), path)
    with pytest.raises(SpecError, match="300 columns"):
        read_measurements(path)
    parquet.write_table(pa.table({"op": np.zeros(1_000_001)}), path)
    with pytest.raises(SpecError, match="1000001 rows"):
        read_measurements(path)


# Names


@pytest.mark.parametrize("key", ["name", "family"])
@pytest.mark.parametrize("value", ["../calibration/h100-sxm", "sglang/hopper", "../../x", "a\\b", "h100.yaml", ".."])
def test_names_in_specs_are_no_paths(key: str, value: str, tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "hwspecs" / "rtx-4090.yaml").read_text("utf-8"))
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**content, key: value}))
    with pytest.raises(SpecError, match=f"'{key}' must be a name, not a path"):
        load_hardware(str(path))


@pytest.mark.parametrize("relative", ["calibration/../calibration/h100-sxm.yaml", "../pyproject.toml", "/etc/hosts"])
def test_files_are_found_below_the_search_path_only(relative: str) -> None:
    assert find_file("calibration/h100-sxm.yaml", "hwspecs") is not None
    assert find_file(relative, "hwspecs") is None


def test_members_and_kernels_of_are_names(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'members' must be a name, not a path"):
        parse_calibration({"name": "own", "members": ["../rtx-4090.yaml"]}, "own.yaml")
    profile = {**yaml.safe_load((ROOT / "roofline/specs/engines/sglang.yaml").read_text("utf-8"))}
    with pytest.raises(SpecError, match="engine with measured kernels"):
        parse_engine({**profile, "kernels_of": "../calibration/sglang"}, "own.yaml")
