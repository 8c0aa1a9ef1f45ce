"""Atomic file writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline.core.errors import RooflineError
from roofline.core.files import save_text


def test_save_text_creates_parent_folders(tmp_path: Path) -> None:
    save_text(tmp_path / "one" / "two.md", "µ\n")
    assert (tmp_path / "one" / "two.md").read_text(encoding="utf-8") == "µ\n"


def test_failed_write_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RooflineError, match=r"cannot write '.*two\.md': "):
        save_text(tmp_path / "file" / "two.md", "")
