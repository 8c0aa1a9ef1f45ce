"""Collectives over several nodes: the interval covers the networks of a kind, and the waits that a benchmark has not.

Constants of a collective are those of its library within a node; `roofline.timing.kernels.collective` adds the network.
Its time is known by kind, not by cluster: `Network.spread` is p10 and p90 of what clusters of a kind, and ranks that
wait for the last of them, make of it. Both errors are independent.
"""

from __future__ import annotations

import numpy as np

from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Expected, Match
from roofline.timing.kernels import Row


class NetworkMatch(Match, frozen=True, kw_only=True):
    """The constants `one` of an exchange over nodes, and p10 and p90 of its time on networks of the kind over that."""

    one: Match
    networks: tuple[float, float]

    def chosen(self, row: Row) -> Match:
        """The constants of the exchange itself."""
        return self.one.chosen(row)

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds, with the errors of the constants and of the network."""
        found = self.one.expected(row, hardware)
        below, above = np.log(self.networks)
        low = found.mid * np.exp(-np.hypot(np.log(found.mid / found.low), below))
        high = found.mid * np.exp(np.hypot(np.log(found.high / found.mid), above))
        return found._replace(low=low, high=high)


def over_network(match: Match, hardware: Hardware) -> Match:
    """The constants of a collective over the network of the hardware."""
    network = hardware.crossing
    fields = {name: getattr(match, name) for name in Match.__struct_fields__}
    fields["source"] = f"{match.source}; network {network.name}{'' if hardware.network else ' (not named)'}"
    return NetworkMatch(**fields, one=match, networks=network.spread)
