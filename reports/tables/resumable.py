"""Resumable files: chunks are appended to a partial file, and a manifest lists the complete ones.

`answer.csv.part` holds the chunks in order, `answer.csv.part.manifest` a line of JSON on the sweep and one per chunk:
its number, bytes, counts of points and rows, and a checksum of all of these. Data that the manifest does not verify,
after an interrupted run for example, is truncated and computed again. Files that no sweep wrote are left alone.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from roofline.core.errors import RooflineError, quote
from roofline.core.files import cannot_write, lock, target_of

SCHEMA = "roofline.sweep/2"

Count = Annotated[int, Meta(ge=0, le=1 << 62)]

MAX_LINE = 1 << 20
"""Longest line of a manifest, in bytes."""

FLAGS = os.O_RDWR | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


class Done(Struct, frozen=True, forbid_unknown_fields=True):
    """A complete chunk: number, bytes, points and rows, counts of reasons for invalid points, CRC-32."""

    number: Count
    size: Count
    points: Count
    rows: Count
    reasons: Mapping[str, Count]
    crc32: Count = 0

    def checksum(self, data: bytes) -> int:
        """The CRC-32 of a chunk's bytes and counts."""
        return zlib.crc32(json.dumps(asdict(self) | {"crc32": 0}, sort_keys=True).encode(), zlib.crc32(data))


class Spool:
    """The partial file of a sweep identified by `key`, and its manifest. A context manager; raises RooflineError."""

    def __init__(self, output: Path, key: str, head: bytes = b"") -> None:
        self.output, replaced = target_of(output)  # what a link points to is replaced, and not the link
        if not replaced:
            raise RooflineError(f"only a file can be resumed, and {quote(str(output), 200)} is not a file")
        self.path = self.output.with_name(f"{self.output.name}.part")
        self.manifest = self.output.with_name(f"{self.output.name}.part.manifest")
        self.done: list[Done] = []
        self._about = json.dumps({"schema": SCHEMA, "sweep": key, "head": len(head)}).encode() + b"\n"
        self._head = head

    def __enter__(self) -> Spool:
        try:
            with ExitStack() as files:
                self._log = files.enter_context(self._opened(self.manifest))
                self._start()
                self._file = files.enter_context(self._opened(self.path))  # which is never without a manifest
                self._recover()
                self._files = files.pop_all()
        except (OSError, ValueError) as error:
            raise cannot_write(self.path, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @staticmethod
    def _opened(path: Path) -> BinaryIO:
        """A regular file at this path, new or old, and never what a link points to."""
        if path.is_symlink():
            raise RooflineError(f"{quote(str(path), 200)} is a link, which no sweep wrote; delete it to start over")
        file = os.open(path, FLAGS | os.O_CREAT, 0o666)
        if stat.S_ISREG(os.fstat(file).st_mode):
            return os.fdopen(file, "r+b")
        os.close(file)
        raise RooflineError(f"{quote(str(path), 200)} is not a file; delete it to start over")

    def _start(self) -> None:
        lock(self._log.fileno(), self.path)
        if os.fstat(self._log.fileno()).st_nlink == 0:  # its last writer has just finished
            raise RooflineError(f"another process is writing {quote(str(self.path), 200)}")
        first = self._log.readline(MAX_LINE)
        if self._about.startswith(first):  # new, or cut off while it was created
            if first != self._about and os.path.lexists(self.path):
                self.manifest.unlink()
                raise RooflineError(
                    f"{quote(str(self.path), 200)} is of no sweep; delete it, or name another output",
                    options=["output"],
                )
            self._log.seek(0)
            self._log.write(self._about)
            self._log.flush()
        elif not first.startswith(self._about.partition(b",")[0]):
            wrong = f"{quote(str(self.manifest), 200)} is not the manifest of a sweep"
            raise RooflineError(f"{wrong}; delete it to start over")
        else:
            raise RooflineError(
                f"{quote(str(self.path), 200)} is of another sweep, or of other specs, another version or chunk size;"
                " delete it to start over, or write to another file"
            )

    def _recover(self) -> None:
        """Keep the leading chunks that the manifest verifies, and truncate the rest."""
        size, length, listed = os.fstat(self._file.fileno()).st_size, len(self._head), len(self._about)
        if self._file.read(length) == self._head:
            while (entry := _entry(line := self._log.readline(MAX_LINE))) is not None:
                if entry.number != len(self.done) or length + entry.size > size:
                    break
                if entry.checksum(self._file.read(entry.size)) != entry.crc32:
                    break
                self.done.append(entry)
                length, listed = length + entry.size, listed + len(line)
        self._file.seek(0)
        self._file.write(self._head)
        for file, end in ((self._file, length), (self._log, listed)):
            file.flush()
            file.truncate(end)
            file.seek(end)

    def append(self, data: bytes, number: int, points: int, rows: int, reasons: Mapping[str, int]) -> None:
        """Append a chunk: first its bytes, then its line of the manifest."""
        entry = Done(number, len(data), points, rows, reasons)
        entry = msgspec.structs.replace(entry, crc32=entry.checksum(data))
        try:
            self._file.write(data)
            self._file.flush()
            self._log.write(json.dumps(asdict(entry)).encode() + b"\n")
            self._log.flush()
        except OSError as error:
            raise cannot_write(self.path, error) from None
        self.done.append(entry)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of every chunk, in order."""
        self._file.seek(len(self._head))
        for entry in self.done:
            yield self._file.read(entry.size)

    def become_output(self) -> None:
        """Renames the complete file to the output, and deletes the manifest."""
        try:
            self.path.replace(self.output)
        except OSError as error:
            raise cannot_write(self.output, error) from None
        self.manifest.unlink(missing_ok=True)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.manifest.unlink(missing_ok=True)


def _entry(line: bytes) -> Done | None:
    """The chunk of a whole line; None for any other."""
    try:
        return msgspec.json.decode(line, type=Done) if line.endswith(b"\n") else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
