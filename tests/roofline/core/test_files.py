"""Files are written whole, with the folders they lie in."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline.core.errors import RooflineError
from roofline.core.files import save_text


def test_folders_of_what_is_saved_are_made(tmp_path: Path) -> None:
    save_text(tmp_path / "one" / "two.md", "µ\n")
    assert (tmp_path / "one" / "two.md").read_text(encoding="utf-8") == "µ\n"


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RooflineError, match=r"cannot write '.*two\.md': "):
        save_text(tmp_path / "file" / "two.md", "")
