"""Break-even: the batch at which one set of options stops to beat another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roofline.analysis import analyze
from roofline.errors import RooflineError
from roofline.request import Request
from roofline.scenario import MAX_BATCH, Scenario
from roofline.solve.answer import Answer
from roofline.solve.search import last_holding
from roofline.solve.targets import Check, Targets, check, figures, used

METRICS = ("ttft", "tpot", "total", "tokens_per_second")
"""What is compared; less is better, but for the rate."""


def break_even(one: Request, other: Request, targets: Targets, metric: str = "total") -> Answer:
    """The largest batch before the first at which `one` is slower than `other`.

    Batches at which either does not fit are out of the question (unless the targets let them). Where `one` is slower
    from the start, the verdict is never, and the note says where it catches up.
    """
    if metric not in METRICS:
        raise RooflineError(f"options are compared by {', '.join(METRICS)}, not by '{metric}'")

    def times(request: Request, batches: Any) -> Any:
        value = getattr(figures(analyze(request.scenario(batch=batches)), targets.at), metric)
        if value is None:
            raise RooflineError("a TPOT needs at least two generated tokens: raise --generate")
        return -value if metric == "tokens_per_second" else value

    def fits(batches: Any) -> Any:
        needed = (used(request.scenario(batch=batches), targets.memory_only) for request in (one, other))
        first, second = needed
        return (first <= 1) & (second <= 1)

    def beats(batches: Any) -> Any:
        return times(one, batches) <= times(other, batches)

    def pair(batch: int) -> tuple[Check, Check]:
        return _checked(one, batch, targets), _checked(other, batch, targets)

    most = last_holding(fits, 1, MAX_BATCH) if targets.fits else MAX_BATCH
    if most < 1:
        raise RooflineError(
            "one of the two does not fit in memory at batch 1: use --ignore-memory to compare times alone"
        )
    best = last_holding(beats, 1, most)
    if best < 1:
        behind = last_holding(lambda batches: ~beats(batches), 1, most)
        note = f"ahead from batch {behind + 1} on" if behind < most else f"behind up to batch {most}"
        first, second = pair(1)
        return Answer("break-even", "sequences", "never", None, first, second, note, ())
    first, second = pair(best)
    if best == most:
        note = f"ahead at every batch that fits, up to {most}" if targets.fits else f"ahead up to batch {most}"
        return Answer("break-even", "sequences", "always", best, first, second, note)
    return Answer("break-even", "sequences", "found", best, first, second, "", pair(best + 1))


def _checked(request: Request, batch: int, targets: Targets) -> Check:
    scenario: Scenario = request.scenario(batch=batch)
    return check(batch, scenario, replace(targets, ttft=None, tpot=None, total=None, tokens_per_second=None))
