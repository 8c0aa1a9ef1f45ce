"""The surfaces that `make fuzz` attacks, and how an input of a number finds its own."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from roofline.core.errors import RooflineError
from tests.fuzz import files, tables
from tests.fuzz.commands import command_line
from tests.fuzz.laws import laws, served

Surface = Callable[[random.Random, Path], None]

SURFACES: Mapping[Surface, int] = {
    files.hardware: 10,
    files.model: 10,
    files.config: 10,
    files.engine: 10,
    files.calibration: 6,
    files.catalogue: 4,
    files.anchors: 6,
    files.scenario: 5,
    files.study: 10,
    files.manifest: 10,
    tables.measurements: 6,
    tables.rows: 5,
    tables.figures: 5,
    tables.weights: 6,
    tables.sessions: 4,
    files.aliases: 4,
    command_line: 12,
    laws: 3,
    served: 1,
}
"""The surfaces with their shares of the inputs in percent or so."""


def surface_of(index: int) -> Surface:
    """The surface of the input of this number."""
    at = index % sum(SURFACES.values())
    for surface, share in SURFACES.items():
        if at < share:
            return surface
        at -= share
    raise AssertionError


def attack(seed: int, index: int, folder: Path) -> None:
    """Give one input to its surface, in an empty folder."""
    surface = surface_of(index)
    folder.mkdir()
    try:
        surface(random.Random(f"{seed} {surface.__name__} {index}"), folder)
    except RooflineError as error:  # outside of `attempt`: the check itself was refused
        raise AssertionError(f"{surface.__name__}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
