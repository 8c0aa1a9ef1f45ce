"""Resumable files: chunks are appended to a partial file, and a manifest lists the complete ones.

`answer.csv.part` holds the chunks in order, `answer.csv.part.manifest` a line of JSON on the sweep and one per chunk:
its number, bytes, checksum, and counts of points and rows. Data that the manifest does not verify, after an interrupted
run for example, is truncated and computed again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import asdict

from roofline.core.errors import RooflineError, quote
from roofline.core.files import cannot_write

SCHEMA = "roofline.sweep/1"


class Done(Struct, frozen=True):
    """A complete chunk: its number, bytes and CRC-32, its points and rows, and counts of reasons for invalid points."""

    number: int
    bytes: int
    crc32: int
    points: int
    rows: int
    reasons: Mapping[str, int]


class Spool:
    """The partial file of a sweep identified by `key`, and its manifest. A context manager; raises RooflineError."""

    def __init__(self, output: Path, key: str, head: bytes = b"") -> None:
        self.output = output
        self.path = output.with_name(f"{output.name}.part")
        self.manifest = output.with_name(f"{output.name}.part.manifest")
        self.done: list[Done] = []
        self._about = {"schema": SCHEMA, "sweep": key, "head": len(head)}
        self._head = head
        self._file: BinaryIO
        self._log: BinaryIO

    def __enter__(self) -> Spool:
        try:
            if self.output.exists() and not self.output.is_file():
                raise RooflineError(f"only a file can be resumed, and {quote(str(self.output), 200)} is not a file")
            if self.manifest.exists():
                self._check_manifest()
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
            self._lock()
            self._recover()
        except (OSError, ValueError) as error:
            raise cannot_write(self.path, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._log.close()

    def _check_manifest(self) -> None:
        """Raises RooflineError if the manifest is not of this sweep."""
        with self.manifest.open("rb") as file:
            first = _record(file.readline())
        if first is None or first.get("schema") != SCHEMA:
            raise RooflineError(
                f"{quote(str(self.manifest), 200)} is not the manifest of a sweep; delete it to start over"
            )
        if first.get("sweep") != self._about["sweep"]:
            raise RooflineError(
                f"{quote(str(self.path), 200)} is of another sweep, or of other specs, another version or chunk size;"
                " delete it to start over, or write to another file with --output"
            )

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # not on this system
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RooflineError(f"another process is writing {quote(str(self.path), 200)}") from None

    def _recover(self) -> None:
        """Keeps the leading chunks that the manifest verifies, and truncates the rest."""
        length = len(self._head)
        if self._file.read(length) == self._head and self.manifest.exists():
            with self.manifest.open("rb") as file:
                file.readline()
                for line in file:
                    entry = _entry(line)
                    if entry is None or entry.number != len(self.done):
                        break
                    data = self._file.read(entry.bytes)
                    if len(data) != entry.bytes or zlib.crc32(data) != entry.crc32:
                        break
                    self.done.append(entry)
                    length += entry.bytes
        self._file.seek(0)
        self._file.write(self._head)
        self._file.truncate(length)
        self._file.seek(length)
        self._file.flush()
        self._log = self.manifest.open("wb")
        self._write_log(self._about, *map(asdict, self.done))

    def _write_log(self, *records: Mapping[str, Any]) -> None:
        self._log.write("".join(json.dumps(record) + "\n" for record in records).encode())
        self._log.flush()

    def append(self, data: bytes, number: int, points: int, rows: int, reasons: Mapping[str, int]) -> None:
        """Appends a chunk: first its bytes, then its line of the manifest."""
        entry = Done(number, len(data), zlib.crc32(data), points, rows, reasons)
        try:
            self._file.write(data)
            self._file.flush()
            self._write_log(asdict(entry))
        except OSError as error:
            raise cannot_write(self.path, error) from None
        self.done.append(entry)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of every chunk, in order."""
        self._file.seek(len(self._head))
        for entry in self.done:
            yield self._file.read(entry.bytes)

    def become_output(self) -> None:
        """Renames the complete file to the output, and deletes the manifest."""
        try:
            self.path.replace(self.output)
        except OSError as error:
            raise cannot_write(self.output, error) from None
        self.manifest.unlink(missing_ok=True)

    def discard(self) -> None:
        """Deletes the partial file and its manifest."""
        self.path.unlink(missing_ok=True)
        self.manifest.unlink(missing_ok=True)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _entry(line: bytes) -> Done | None:
    record = _record(line)
    try:
        return None if record is None else Done(**record)
    except TypeError:
        return None
