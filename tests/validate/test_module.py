"""What the modules share that are run by themselves."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from roofline.errors import RooflineError
from validate.module import answer, save


def test_it_prints_what_the_work_says(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("name")
    assert answer(parser, lambda options: f"{options.name}!\n", ["here"]) == 0
    assert capsys.readouterr() == ("here!\n", "")


def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def work(_: Namespace) -> str:
        raise RooflineError("no such thing")

    assert answer(ArgumentParser(), work, []) == 2
    assert capsys.readouterr() == ("", "roofline: no such thing\n")


def test_folders_of_what_is_saved_are_made(tmp_path: Path) -> None:
    save("µ\n", tmp_path / "one" / "two.md")
    assert (tmp_path / "one" / "two.md").read_text(encoding="utf-8") == "µ\n"


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RooflineError, match=r"cannot write '.*two\.md': "):
        save("", tmp_path / "file" / "two.md")
