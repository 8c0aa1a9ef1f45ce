"""Collectives over several nodes: the interval covers the networks of a kind, and the waits that a benchmark has not.

Constants of a collective are those of its library within a node; `roofline.timing.kernels.collective` adds the network.
Its time is known by kind, not by cluster: `Network.spread` is p10 and p90 of what clusters of a kind, and ranks that
wait for the last of them, make of it. Both errors are independent.

Ranks of a step wait longer for a collective than those of a benchmark, which start together: by LATE, and where experts
exchange the tokens of data-parallel ranks by EXCHANGED.
"""

from __future__ import annotations

from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Expected, Match
from roofline.timing.intervals.kernels import wider
from roofline.timing.kernels import Row

LATE = 20e-6
"""Seconds of a collective over nodes in a step beyond a benchmark's.

15 and 19 us of DeepSeek-R1's 122 all-reduces among 16 H100 in two nodes, with one request a worker (InferenceX,
TensorRT-LLM 1.2: 13.9 and 14.6 ms a token); with SGLang 0.5.8, which did not choose it, 28 us.
"""

EXCHANGED = 100e-6
"""The same of an exchange of expert ranks, which waits for the data-parallel rank with the most to do.

110 us of 116 exchanges among 16 H100 in two nodes with TensorRT-LLM 1.2, which gathers, 160 with few requests in SGLang
0.5.8 with DeepEP (InferenceX); 16 H200 with SGLang (lmsys.org/blog/2025-07-17-mtp) give 100, and did not choose it.
"""


class NetworkMatch(Match, frozen=True, kw_only=True):
    """The constants `one` of an exchange over nodes, and p10 and p90 of its time on networks of the kind over that."""

    one: Match
    networks: tuple[float, float]
    routed: bool = False

    def chosen(self, row: Row) -> Match:
        """The constants of the exchange itself."""
        return self.one.chosen(row)

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds, with the errors of the constants and of the network."""
        found = self.one.expected(row, hardware)
        return found._replace(times=wider(found.times + self.late, self.networks))

    @property
    def late(self) -> float:
        """Seconds of an exchange in a step beyond a benchmark's."""
        if self.routed:
            return EXCHANGED
        return LATE if self.one.fit.op == "collective" else 0.0


def over_network(match: Match, hardware: Hardware, routed: bool = False) -> Match:
    """The constants of a collective over the network of the hardware, or of an exchange of `routed` tokens."""
    network = hardware.crossing
    fields = {name: getattr(match, name) for name in Match.__struct_fields__}
    fields["source"] = f"{match.source}; network {network.name}{'' if hardware.network else ' (not named)'}"
    return NetworkMatch(**fields, one=match, networks=network.spread, routed=routed)
