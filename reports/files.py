"""Writing results: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from roofline.errors import RooflineError, quote


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in one step: a reader sees the old file or the new one, never a part.

    Raises RooflineError where it cannot be written; nothing is left behind then.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step, as `write_text` does."""
    temporary = None
    try:
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise RooflineError(f"cannot write {quote(str(path), 200)}: it is a folder")
            _write_through(path, path, content)
            return
        target = path.resolve()
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
        temporary = None
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a valid path"
        raise RooflineError(f"cannot write {quote(str(path), 200)}: {reason}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _write_through(target: Path, path: Path, content: bytes) -> None:
    """A device such as /dev/stdout or a pipe: it cannot be replaced, only written to."""
    try:
        with target.open("wb") as file:
            file.write(content)
    except OSError as error:
        raise RooflineError(f"cannot write {quote(str(path), 200)}: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
