"""What the modules share that are run by themselves."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import pytest

from roofline.core.errors import RooflineError
from roofline.validate.main import answer


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
