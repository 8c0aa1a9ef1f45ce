"""Atomic file writes, by one process at a time."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from roofline.core.errors import RooflineError, quote
from roofline.core.inputs import was_read


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically (`whole_file`); raises RooflineError if that fails."""
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError:
        raise RooflineError(f"cannot write {quote(str(path), 200)}: the text has characters of no encoding") from None
    write_bytes(path, content)


def save_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, and create missing parent folders."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    write_text(path, text)


def write_output(path: Path, content: str | bytes) -> None:
    """Write the output of a command; raises RooflineError if `path` is a file that it has read."""
    check_output(path)
    write_text(path, content) if isinstance(content, str) else write_bytes(path, content)


def check_output(path: Path) -> None:
    """Raise RooflineError if a file to be written is one that was read."""
    if was_read(path):
        raise RooflineError(f"cannot write {quote(str(path), 200)}: it is an input of this command")


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files, none of which is replaced before all are complete (`whole_file`)."""
    with ExitStack() as open_files:
        for path, content in contents.items():
            file = open_files.enter_context(whole_file(path))
            file.write(content)
            file.flush()


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically (`whole_file`)."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces `path` when the block succeeds: a reader sees the old file or the new one.

    Devices, pipes and the descriptors of this process are written directly. If the block or the write fails, no file is
    left behind; raises RooflineError if the file cannot be written.
    """
    temporary = None
    try:
        target, replaced = target_of(path)
        if not replaced:
            stream = _stream(path)
            with path.open("wb") if stream is None else os.fdopen(os.dup(stream), "wb") as file:
                yield file
            return
        _remove_left(target)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        # Named before it is created: tempfile.mkstemp would leave it if a signal came before it returned.
        temporary = target.with_name(f".{target.name[:50]}.{os.urandom(8).hex()}")
        with temporary.open("xb") as file:
            lock(file.fileno(), temporary)
            os.chmod(temporary, mode)
            yield file
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def lock(file: int, path: Path) -> None:
    """Make this process the only writer of an open file; raises RooflineError if another one is."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise RooflineError(f"another process is writing {quote(str(path), 200)}") from None


def lock_folder(folder: Path) -> int:
    """Make this process the owner of a folder until the returned descriptor is closed.

    Raises RooflineError where another process is, and OSError where folders have no locks.
    """
    found = os.open(folder, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        lock(found, folder)
    except RooflineError:
        os.close(found)
        raise
    return found


def _remove_left(target: Path) -> None:
    """Remove temporary files that killed runs left beside `target`: those that no process has locked."""
    for path in target.parent.glob(f".{escape(target.name[:50])}.{'[0-9a-f]' * 16}"):
        with suppress(OSError, RooflineError):
            if path.is_symlink() or time.time() - path.stat().st_mtime < 1:  # it may not be locked yet
                continue
            with path.open("r+b") as file:
                lock(file.fileno(), path)
                path.unlink()


def target_of(path: Path) -> tuple[Path, bool]:
    """The file behind a path, and whether it can be replaced: a device, a pipe or a descriptor cannot.

    Raises RooflineError for a folder and an invalid path.
    """
    try:
        if path.is_dir():
            raise RooflineError(f"cannot write {quote(str(path), 200)}: it is a folder")
        target = path.resolve()
        if target.is_symlink():  # a cycle; up to Python 3.12 resolve() raises RuntimeError
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return target, _stream(path) is None and (path.is_file() or not path.exists())
    except (ValueError, RuntimeError) as error:
        raise cannot_write(path, error) from None


def _stream(path: Path) -> int | None:
    """Our output that a path names, such as /dev/stdout: where it is a file, others write there, too."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
    return None


def cannot_write(path: Path, error: Exception) -> RooflineError:
    """The error for a failed write or an invalid path."""
    reason = "not a valid path"
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0] or reason
    return RooflineError(f"cannot write {quote(str(path), 200)}: {reason}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
