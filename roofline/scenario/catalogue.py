"""What a scenario needs of the technique catalogue, which is in a later room and registers itself here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from roofline.core.errors import RooflineError

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario


class Catalogue(NamedTuple):
    """How techniques apply to a scenario, the slot of one as written, both raising RooflineError, and all names."""

    apply: Callable[[Scenario, Iterable[str]], Scenario]
    slot: Callable[[str], str]
    names: Callable[[], Iterable[str]]


_registered: list[Catalogue] = []


def use_catalogue(catalogue: Catalogue) -> None:
    """Set the catalogue of techniques."""
    _registered[:] = [catalogue]


def catalogue() -> Catalogue:
    """The catalogue; raises RooflineError before `roofline.techniques` is imported."""
    if not _registered:
        raise RooflineError("import roofline.techniques, which applies the techniques of scenarios")
    return _registered[0]
