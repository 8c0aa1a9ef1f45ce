"""The one place where input files are opened: regular files only, and no more of them than a limit.

A path from a command line, a variable or a spec is hostile: a pipe or a device may never end, or never begin, and a
file of /proc has another size than `stat` says. Every problem is a SpecError that names the file. `restricted` limits
the files that may be opened, for texts that do not come from the person at the command line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from roofline.core.errors import SpecError, quote

PIECE = 1 << 20
"""Bytes per read."""

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


@contextmanager
def open_file(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file, open for reading, and its size in bytes; raises SpecError for anything else."""
    check_allowed(path)
    where = str(path)
    try:
        _check_regular(path.stat().st_mode, where)  # before it is opened: opening some devices has effects
        with open(os.open(path, _FLAGS), "rb") as file:  # noqa: PTH123 - of a descriptor
            status = os.fstat(file.fileno())
            _check_regular(status.st_mode, where)
            _READ.add(_version_of(status))
            _OPENED.add(path)
            yield file, status.st_size
    except (OSError, ValueError) as error:
        raise SpecError(quote(where, 200), f"cannot be read ({reason(error)})") from None


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; raises SpecError for anything else."""
    pieces, size = [], 0
    with open_file(path) as (file, _):
        while size <= limit and (piece := file.read(PIECE)):
            pieces.append(piece)
            size += len(piece)
    if size > limit:
        raise SpecError(str(path), f"is larger than {limit >> 20} MiB")
    return b"".join(pieces)


_READ: set[tuple[int, ...]] = set()


def was_read(path: Path) -> bool:
    """Whether `read_bytes` has read this file, as it is now."""
    try:
        return _version_of(path.stat()) in _READ
    except (OSError, ValueError):
        return False


def _version_of(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


_OPENED: set[Path] = set()


def opened() -> frozenset[Path]:
    """The files that have been opened, as they were named."""
    return frozenset(_OPENED)


_ALLOWED: ContextVar[Callable[[Path], None] | None] = ContextVar("allowed", default=None)


@contextmanager
def restricted(check: Callable[[Path], None]) -> Iterator[None]:
    """Within the block, in its thread, `check` raises RooflineError for a file that may not be opened."""
    token = _ALLOWED.set(check)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def check_allowed(path: Path) -> None:
    """Raise RooflineError for a file that may not be opened here (`restricted`)."""
    check = _ALLOWED.get()
    if check is not None:
        check(path)


def read_text(path: Path, limit: int) -> str:
    """The text of a regular file in UTF-8, with or without a byte-order mark; raises SpecError."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(str(path), f"is not UTF-8 text (byte {error.start})") from None


def reason(error: Exception) -> str:
    """A short text of why a path cannot be read."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else "not a valid path"


def _check_regular(mode: int, where: str) -> None:
    if stat.S_ISDIR(mode):
        raise SpecError(where, "is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise SpecError(where, "is a pipe or a device, not a regular file")
