"""Answers: what a question came to, the simulation that shows it, and that of its neighbour, which shows the edge."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from roofline.whatif.solve.targets import Check

Verdict = Literal["found", "never", "always"]


class Answer(Struct, frozen=True):
    """The answer to an inverse question.

    `value` is in `unit` (None where the verdict is never). `check` is the simulation of the answer, `neighbour` that of
    the next value, which misses a target: the targets that it misses are what limits the answer. Of a verdict `never`
    the check is the best that was tried, of `always` the end of the range. `note` says what else there is to say, and
    `candidates` are further settings that were simulated, each with its name as value.
    """

    question: str
    unit: str
    verdict: Verdict
    value: Any
    check: Check
    neighbour: Check | None = None
    note: str = ""
    candidates: tuple[Check, ...] = ()

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The targets that the next value misses."""
        if self.verdict == "never":
            return self.check.missed
        return self.neighbour.missed if self.neighbour is not None else ()
