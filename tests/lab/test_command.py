"""Entry points of the modules that run by themselves."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import pytest

from lab.command import run_command
from roofline.core.errors import RooflineError


def test_run_command_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("name")
    assert run_command(parser, lambda options: f"{options.name}!\n", ["here"]) == 0
    assert capsys.readouterr() == ("here!\n", "")


def test_an_error_is_one_sentence_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    def work(_: Namespace) -> str:
        raise RooflineError("no such thing")

    assert run_command(ArgumentParser(), work, []) == 2
    assert capsys.readouterr() == ("", "roofline: no such thing\n")
