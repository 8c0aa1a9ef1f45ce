"""Data of this package: files beside its modules."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from roofline.core.documents import read_mapping
from roofline.specs.records import record

Record = TypeVar("Record", bound=Struct)

FOLDER = Path(str(files("roofline.validate")))


def shipped(kind: type[Record], name: str) -> Record:
    """The content of a YAML file below FOLDER."""
    path = FOLDER / name
    return record(kind, read_mapping(path), str(path))
