"""Releases of engines whose public rows are read alike."""

from __future__ import annotations

from typing import NamedTuple

from roofline.specs.version import between


class Releases(NamedTuple):
    """The versions of an engine from `since` on and before `before`; "" is no limit.

    >>> Releases("vllm", before="0.15").include("vllm", "0.9.1"), Releases("vllm").include("sglang", "0.5")
    (True, False)
    """

    engine: str
    before: str = ""
    since: str = ""

    def include(self, engine: str, version: str) -> bool:
        """Whether an engine's version is among them; an unstated version ("") is not."""
        return engine == self.engine and bool(version) and between(version, self.since, self.before)
