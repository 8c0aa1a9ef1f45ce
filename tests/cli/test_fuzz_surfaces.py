"""A few inputs of every surface that `make fuzz` attacks."""

import socket
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fuzz.surfaces import SURFACES, Surface, attack, surface_of
from tests.fuzz.worker import forbid_connections

PERIOD = sum(SURFACES.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.__name__)
def test_surfaces(surface: Surface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, getattr(socket.socket, name))
    forbid_connections()
    numbers = [number for number in range(PERIOD) if surface_of(number) is surface]
    for index in numbers[: settings().max_examples // 6]:
        attack(1, index, tmp_path / "input")
