"""Shared entry points of the modules that run as `python -m roofline.validate.NAME`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from roofline.core.errors import RooflineError, system_error
from roofline.core.files import save_text


def run_command(
    parser: ArgumentParser, work: Callable[[Namespace], str], arguments: Sequence[str] | None = None
) -> int:
    """Print the text that `work` returns for the options; returns the exit status, 2 with a message for an error."""
    options = parser.parse_args(arguments)
    try:
        text = work(options)
    except (RooflineError, OSError) as error:
        sys.stderr.write(f"roofline: {system_error(error) if isinstance(error, OSError) else error}\n")
        return 2
    sys.stdout.write(text)
    return 0


def run_written(
    parser: ArgumentParser, work: Callable[[Namespace], str], arguments: Sequence[str] | None = None
) -> int:
    """The same, with an option `--output` for a file that the text is written to as well."""
    parser.add_argument("--output", type=Path, help="also write the report to this file")

    def written(options: Namespace) -> str:
        text = work(options)
        if options.output is not None:
            save_text(options.output, text)
        return text

    return run_command(parser, written, arguments)


def run_report(module: str, title: str, report: Callable[[Path], str], arguments: Sequence[str] | None = None) -> int:
    """Print the report of a folder of measurement files, and write it to `--output`; returns the exit status."""
    parser = ArgumentParser(prog=f"python -m roofline.validate.{module}", description=title)
    parser.add_argument("measurements", type=Path, help="folder of measurement files")
    return run_written(parser, lambda options: report(options.measurements), arguments)
