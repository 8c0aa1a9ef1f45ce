"""Writing results: whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from roofline.core.errors import RooflineError, quote


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in one step: a reader sees the old file or the new one, never a part.

    Raises RooflineError where it cannot be written; nothing is left behind then.
    """
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError:
        raise RooflineError(f"cannot write {quote(str(path), 200)}: the text has characters of no encoding") from None
    write_bytes(path, content)


def save_text(path: Path, text: str) -> None:
    """Write `text` to `path` as `write_text` does, and make the folders that it lies in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    write_text(path, text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step, as `write_text` does."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that becomes `path` once all is written: a reader sees the old file or the new one.

    Devices and pipes are written to as they are. Raises RooflineError where it cannot be written, and leaves nothing
    behind then, nor where what is written fails.
    """
    temporary = None
    try:
        target, replaced = _target(path)
        if not replaced:
            with path.open("wb") as file:
                yield file
            return
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.chmod(temporary, mode)
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _target(path: Path) -> tuple[Path, bool]:
    """The file behind a path, and whether it is one that can be replaced: a device or a pipe is none."""
    try:
        if path.is_dir():
            raise RooflineError(f"cannot write {quote(str(path), 200)}: it is a folder")
        target = path.resolve()
        if target.is_symlink():  # in a circle: up to Python 3.12 that is a RuntimeError
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return target, path.is_file() or not path.exists()
    except (ValueError, RuntimeError) as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: Exception) -> RooflineError:
    """The sentence for an error of the file system, or of a path that is none."""
    reason = "not a valid path"
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0] or reason
    return RooflineError(f"cannot write {quote(str(path), 200)}: {reason}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
