"""What moves a KV cache between the devices' pool and the tiers below it: the rows of `connectors.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.specs.engine import Engine
from roofline.specs.records import record
from roofline.specs.version import Version

TABLE = Path(__file__).with_name("connectors.yaml")

Settings = Mapping[str, str | float | bool]
"""Settings of a tier, by the words of `--tiers`."""


class Connector(Struct, frozen=True, forbid_unknown_fields=True):
    """A connector: the oldest known version of each of `engines`, and the settings of its tiers.

    `settings` hold for all tiers, `tiers` for one of a name, and `before` in versions older than one; later ones count.
    `note`: what a user has to bring to start it. Sources are beside the rows.
    """

    title: str
    engines: Mapping[str, str]
    sources: tuple[str, ...]
    settings: Settings = {}
    tiers: Mapping[str, Settings] = {}
    before: Mapping[str, Settings] = {}
    note: str = ""
    name: str = ""

    def of(self, tier: str, version: str) -> Settings:
        """The settings of a tier in a version of the engine ("" for the newest)."""
        found = {**self.settings, **self.tiers.get(tier, {})}
        for limit, settings in self.before.items():
            if version and Version(version) < Version(limit):
                found |= settings
        return found


def connector_of(name: str, engine: Engine) -> Connector | None:
    """The connector of a name, "" for the engine's own, None where it has none.

    Raises UnknownNameError, and RooflineError for one that the engine, or its version, is not known to have.
    """
    kind = engine.name.split()[0].lower()
    known = {each.name: each for each in _connectors() if kind in each.engines}
    if not name:
        return next((each for each in known.values() if _has(each, kind, engine.version)), None)
    if name not in known:
        if any(name == each.name for each in _connectors()):
            having = ", ".join(known) or "none"
            raise RooflineError(f"{engine.name} is not known to have the connector {name}; it has {having}")
        raise UnknownNameError("connector of tiers", name, [each.name for each in _connectors()])
    if not _has(known[name], kind, engine.version):
        oldest = known[name].engines[kind]
        raise RooflineError(f"{engine.name} {engine.version} is not known to have {name}: it is from {oldest} on")
    return known[name]


def _has(connector: Connector, kind: str, version: str) -> bool:
    return not version or Version(version) >= Version(connector.engines[kind])


@cache
def _connectors() -> tuple[Connector, ...]:
    content = read_mapping(TABLE)
    return tuple(record(Connector, {**row, "name": name}, TABLE.name, name) for name, row in content.items())
