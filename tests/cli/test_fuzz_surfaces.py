"""A few inputs of every surface that `make fuzz` attacks."""

from pathlib import Path

import pytest

from tests.fuzz.surfaces import SURFACES, Surface, attack, surface_of

PERIOD = sum(SURFACES.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.__name__)
def test_surfaces(surface: Surface, tmp_path: Path) -> None:
    numbers = [number for number in range(PERIOD) if surface_of(number) is surface]
    for index in numbers[:6]:
        attack(1, index, tmp_path / "input")
