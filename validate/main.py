"""What the modules share that are run as `python -m validate.NAME`, by those who fit and score what is shipped."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence

from roofline.core.errors import RooflineError


def answer(parser: ArgumentParser, work: Callable[[Namespace], str], arguments: Sequence[str] | None = None) -> int:
    """Print what `work` says to the options; returns the exit status: 2, with one sentence, for a mistake."""
    options = parser.parse_args(arguments)
    try:
        text = work(options)
    except RooflineError as error:
        sys.stderr.write(f"roofline: {error}\n")
        return 2
    sys.stdout.write(text)
    return 0
