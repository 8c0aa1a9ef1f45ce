"""Atomic file writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roofline.core.errors import RooflineError
from roofline.core.files import save_text, write_bytes


def test_save_text_creates_parent_folders(tmp_path: Path) -> None:
    save_text(tmp_path / "one" / "two.md", "µ\n")
    assert (tmp_path / "one" / "two.md").read_text(encoding="utf-8") == "µ\n"


def test_failed_write_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RooflineError, match=r"cannot write '.*two\.md': "):
        save_text(tmp_path / "file" / "two.md", "")


def test_a_signal_while_the_file_is_created_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = Path.open

    def interrupted(path: Path, *args: Any, **kwargs: Any) -> None:
        create(path, *args, **kwargs).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "answer.csv", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_written_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "answer.csv"
    path.write_text("old")
    path.chmod(0o600)
    write_bytes(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
