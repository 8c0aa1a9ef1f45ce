"""What moves a KV cache between the devices' pool and the tiers below it: the rows of `connectors.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from roofline.core.documents import bundled
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.specs.engine import Engine
from roofline.specs.records import record
from roofline.specs.version import Version, between

TABLE = "serving/sessions/connectors.yaml"

Settings = Mapping[str, str | float | bool]
"""Settings of a tier, by the words of `--tiers`."""


class Connector(Struct, frozen=True, forbid_unknown_fields=True):
    """A connector: the oldest known version of each of `engines` ("": any), and the settings of its tiers.

    `settings` hold for all tiers, `tiers` for one of a name, and `before` in versions older than one; later ones count.
    `note`: what a user has to bring to start it.
    """

    name: str
    engines: Mapping[str, str]
    sources: tuple[str, ...]
    settings: Settings = {}
    tiers: Mapping[str, Settings] = {}
    before: Mapping[str, Settings] = {}
    note: str = ""

    def of(self, tier: str, version: str) -> Settings:
        """The settings of a tier in a version of the engine ("" for the newest)."""
        found = {**self.settings, **self.tiers.get(tier, {})}
        for limit, settings in self.before.items():
            found |= settings if version and Version(version) < Version(limit) else {}
        return found


def connector_of(name: str, engine: Engine) -> Connector | None:
    """The connector of a name, "" for the engine's own, None where it has none; raises RooflineError for another's."""
    kind, version = engine.name.split()[0].lower(), engine.version
    rows = [each for each in connectors() if kind in each.engines]
    known = {each.name: each for each in rows if not version or between(version, each.engines[kind], "")}
    if not name:
        return next(iter(known.values()), None)
    if name not in known and any(name == each.name for each in connectors()):
        having = ", ".join(known) or "none"
        raise RooflineError(f"{engine.name} {version}".rstrip() + f" is not known to have {name}; it has {having}")
    if name not in known:
        raise UnknownNameError("connector of tiers", name, [each.name for each in connectors()])
    return known[name]


@cache
def connectors() -> tuple[Connector, ...]:
    """The rows; of each engine the first is its own."""
    rows = bundled(TABLE).items()
    return tuple(record(Connector, {**row, "name": name}, TABLE, name) for name, row in rows)
