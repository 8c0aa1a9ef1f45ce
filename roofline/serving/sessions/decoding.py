"""Decode on devices of its own, beside the simulation of a worker of prefill."""

from __future__ import annotations

from heapq import heappop, heappush

from roofline.scenario.speculation import iterations
from roofline.serving.pools import Tandem


class Decoding:
    """A worker's share of the replicas of decode: what it has sent them, and when each turn there ends.

    A turn's KV cache is sent, waits for room, and its steps have the length of those at its begin. All end by `until`.
    """

    def __init__(self, tandem: Tandem) -> None:
        self.tandem, self.replica = tandem, tandem.decode
        share = tandem.decodes / tandem.prefills
        self.room, self.slots = self.replica.kv_tokens * share, max(self.replica.sequences * share, 1.0)
        self.ranks = self.replica.data * share
        self.held = self.until = 0.0
        self._ends: list[tuple[float, float]] = []

    def times(self, at: float, prompt: int, output: int) -> tuple[float, float]:
        """The seconds of the first and the last token of a turn whose prompt is computed."""
        at += float(self.tandem.transfer(prompt))
        need, ends = float(prompt + output), self._ends
        while ends and (ends[0][0] <= at or self.held + need > self.room or len(ends) >= self.slots):
            end, tokens = heappop(ends)
            at, self.held = max(at, end), self.held - tokens
        self.held += need
        each, context = (len(ends) + 1) / self.ranks, self.held / (len(ends) + 1)
        step = float(self.replica.steps.seconds(max(each, 1.0), context, mean=self.replica.routed(each)))
        last = at + float(iterations(output - 1.0, self.replica.steps.accepted)) * step
        heappush(ends, (last, need))
        self.until = max(self.until, last)
        return at, last
