"""Measurement files: reading, and errors with the file and the rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from roofline.core.errors import SpecError
from roofline.specs.hardware import load_hardware
from roofline.timing.kernels import kernel_bound
from roofline.validate.tables.implausible import as_computed
from roofline.validate.tables.rows import only_hardware, read_measurements


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
        ("latency_us", -1.0, "'latency_us' is not above zero (row 2)"),
        ("m", float("nan"), "'m' is no finite number (row 2)"),
        ("m", 1.5, "'m' is no whole number of at least 1 (row 2)"),
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


def test_the_cache_column(tmp_path: Path) -> None:
    """Rows that say nothing are those of benchmarks that replay their buffers."""
    lines = ["hardware,op,dtype,m,n,k,latency_us,cache"]
    lines += [f"h100-sxm,gemm,bf16,1,1024,{k},10,{cache}" for k, cache in ((1, "cold"), (2, "warm"), (3, ""))]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    (part,) = read_measurements(path)
    assert part.warm.tolist() == [False, True, True]
    assert part.texts("cache").tolist() == ["cold", "warm", ""]
    path.write_text("\n".join([*lines, "h100-sxm,gemm,bf16,1,1024,4,10,lukewarm"]))
    with pytest.raises(SpecError, match=r"'cache' is neither cold nor warm \(row 4\)"):
        read_measurements(path)
    path.write_text("hardware,op,dtype,m,n,k,latency_us\nh100-sxm,gemm,bf16,1,1024,1,10\n")
    (part,) = read_measurements(path)
    assert part.warm.all()
    assert part.texts("cache").tolist() == [""]


def test_rows_in_a_format_that_hardware_lacks_are_of_converted_weights(tmp_path: Path) -> None:
    """FP8 on Intel's B60: BF16's peak, and half the bytes of its weights."""
    (part,) = read_measurements(write(tmp_path, rows(1).assign(dtype="fp8", hardware="arc-b60")))
    hardware = load_hardware("arc-b60")
    computed = as_computed(part, hardware)
    few, many = ({**computed.columns, "m": size} for size in (1.0, 65536.0))
    assert kernel_bound("gemm", many, hardware) == pytest.approx(2 * 65536 * 1024 * 2048 / 98.3e12)
    assert kernel_bound("gemm", few, hardware) == pytest.approx(1024 * 2048 / 456e9, rel=0.01)
    assert as_computed(part, load_hardware("h100-sxm")) is part
