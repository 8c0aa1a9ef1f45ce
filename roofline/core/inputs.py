"""The one place where input files are opened: regular files only, and no more of them than a limit.

A path from a command line, a variable or a spec is hostile: a pipe or a device may never end, or never begin, and a
file of /proc has another size than `stat` says. Every problem is a SpecError that names the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from roofline.core.errors import SpecError, quote

PIECE = 1 << 20
"""Bytes per read."""

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; raises SpecError for anything else."""
    where = str(path)
    try:
        _check_regular(path.stat().st_mode, where)  # before it is opened: opening some devices has effects
        file = os.open(path, _FLAGS)
        try:
            _check_regular(os.fstat(file).st_mode, where)
            pieces, size = [], 0
            while size <= limit and (piece := os.read(file, PIECE)):
                pieces.append(piece)
                size += len(piece)
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        raise SpecError(quote(where, 200), f"cannot be read ({reason(error)})") from None
    if size > limit:
        raise SpecError(where, f"is larger than {limit >> 20} MiB")
    return b"".join(pieces)


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
