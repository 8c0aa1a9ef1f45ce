"""Counts of a shared page in the text form that Prometheus reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from msgspec import Struct, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Struct):
    """Requests by question and status, the seconds of work on them, and the present state."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waiting: int = 0
    running: int = 0

    def text(self, clients: int) -> str:
        """All figures, https://prometheus.io/docs/instrumenting/exposition_formats."""
        return "".join(f"{line}\n" for line in self._lines(clients))

    def _lines(self, clients: int) -> Iterator[str]:
        yield from _head("roofline_requests_total", "counter", "Questions by status.")
        for (name, status), count in sorted(self.requests.items()):
            yield f'roofline_requests_total{{question="{name}",status="{status}"}} {count}'
        yield from _head("roofline_work_seconds_total", "counter", "Seconds of work on questions.")
        for name, seconds in sorted(self.seconds.items()):
            yield f'roofline_work_seconds_total{{question="{name}"}} {seconds:.6f}'
        gauges = {
            "waiting": (self.waiting, "Questions in the queue."),
            "running": (self.running, "Questions that are being answered."),
            "clients": (clients, "Clients that are remembered."),
        }
        for name, (value, told) in gauges.items():
            yield from _head(f"roofline_{name}", "gauge", told)
            yield f"roofline_{name} {value}"


def _head(name: str, kind: str, told: str) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"
