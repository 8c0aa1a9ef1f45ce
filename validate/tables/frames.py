"""Parquet and CSV files as data frames, of bounded size whatever they claim to hold."""

from __future__ import annotations

import csv
import io
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.core.errors import RooflineError, SpecError, install, quote
from roofline.core.inputs import read_bytes

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 128 << 20
"""The largest file."""

MAX_ROWS, MAX_COLUMNS = 1_000_000, 200
"""The most rows and columns of a file, so that a wrong one does not fill the memory."""

MAX_DECODED = 256 << 20
"""Most bytes of a Parquet file's columns, decompressed."""

PIECE = 1 << 20
"""Cells of a Parquet file that are decoded at once."""


def read_frame(path: Path) -> pd.DataFrame:
    """The rows of a Parquet or CSV file; raises SpecError for a file that is none, or too large."""
    where, ending = str(path), path.suffix.lower()
    if ending not in (".parquet", ".csv"):
        raise SpecError(quote(where, 200), "is neither .parquet nor .csv")
    content = read_bytes(path, MAX_BYTES)
    if not content:
        raise SpecError(where, "is empty")
    try:
        return _parquet(content, where) if ending == ".parquet" else _csv(content, where)
    except ModuleNotFoundError as error:  # pragma: no cover - the extra is not installed
        raise RooflineError(f"reading measurements needs {error.name}: {install('fit')}") from None
    except SpecError:
        raise
    except Exception as error:  # parsers raise many types
        problem = quote(" ".join(str(error).split()), 120)[1:-1]
        raise SpecError(where, f"is no readable {ending[1:].upper()} file ({problem})") from None


def _parquet(content: bytes, where: str) -> pd.DataFrame:
    """The rows of a Parquet file. Texts stay in dictionaries: a long one would else be there once a row."""
    import pandas as pd

    pa: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    file = parquet.ParquetFile(pa.BufferReader(content))
    about, schema = file.metadata, file.schema_arrow
    if about.num_rows > MAX_ROWS:
        raise SpecError(where, f"has {about.num_rows} rows; at most {MAX_ROWS} are read")
    _check_columns(len(schema), where)
    for field in schema:
        if pa.types.is_nested(field.type):
            raise SpecError(where, f"{quote(field.name)} holds lists or structs in every row, not texts or numbers")
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    sizes = [group.column(index).total_uncompressed_size for group in groups for index in range(group.num_columns)]
    if sum(sizes) > MAX_DECODED:
        raise SpecError(where, f"holds more than {MAX_DECODED >> 20} MiB of data")
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
    file = parquet.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
    pieces, size = [], 0
    for piece in file.iter_batches(batch_size=max(1, PIECE // len(schema))):
        size += piece.nbytes
        if size > MAX_DECODED:
            raise SpecError(where, f"holds more than {MAX_DECODED >> 20} MiB of data")
        pieces.append(piece)
    return pd.DataFrame(pa.Table.from_batches(pieces, None if pieces else schema).to_pandas())


def _csv(content: bytes, where: str) -> pd.DataFrame:
    """The rows of a CSV file, none of them with more cells than the header."""
    import pandas as pd

    lines = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline=""))
    header, first = (next(filter(None, lines), []) for _ in range(2))
    _check_columns(len(header), where)
    if len(first) > len(header):
        raise SpecError(where, f"has {len(first)} cells in row 1, and {len(header)} in the header")
    frame = pd.read_csv(io.BytesIO(content), nrows=MAX_ROWS + 1, index_col=False, low_memory=False)
    if len(frame) > MAX_ROWS:
        raise SpecError(where, f"has more than {MAX_ROWS} rows")
    return frame


def _check_columns(columns: int, where: str) -> None:
    if not 0 < columns <= MAX_COLUMNS:
        raise SpecError(where, f"has {columns} columns; 1 to {MAX_COLUMNS} are read")
