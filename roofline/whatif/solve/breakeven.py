"""Break-even: the batch at which one set of options stops to beat another."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.search import last_holding
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import MAX_BATCH
from roofline.whatif.request import Request
from roofline.whatif.solve.answer import Answer
from roofline.whatif.solve.targets import Check, Targets, check, figures, used

METRICS = ("ttft", "tpot", "total")
"""What is compared: seconds, of which less is better."""


def break_even(one: Request, other: Request, targets: Targets, metric: str = "total") -> Answer:
    """The last batch before the two change places: whichever is ahead at batch 1 is ahead, or level, up to there.

    The verdict is always where `one` is ahead at every batch, never where `other` is. Batches at which either does not
    fit are out of the question, unless the targets let them; targets of speed play no part. The check is of `one`, the
    neighbour of `other`, and the candidates are both at the next batch.
    """
    if metric not in METRICS:
        raise RooflineError(f"options are compared by {', '.join(METRICS)}, not by '{metric}'")

    def times(request: Request, batches: Any) -> Any:
        value = getattr(figures(analyze(request.scenario(batch=batches)), targets.at), metric)
        if value is None:
            raise RooflineError("a TPOT needs at least two generated tokens: raise --generate")
        return value

    def fits(batches: Any) -> Any:
        first, second = (used(request.scenario(batch=batches), targets.memory_only) for request in (one, other))
        return (first <= 1) & (second <= 1)

    def pair(batch: int) -> tuple[Check, Check]:
        return _checked(one, batch, targets), _checked(other, batch, targets)

    most = last_holding(fits, 1, MAX_BATCH) if targets.fits else MAX_BATCH
    if most < 1:
        raise RooflineError("one of the two does not fit in memory at batch 1: --ignore-memory compares times alone")
    ahead = bool(times(one, 1) <= times(other, 1))

    def holds(batches: Any) -> Any:
        first, second = times(one, batches), times(other, batches)
        return first <= second if ahead else first >= second

    best = last_holding(holds, 1, most)
    first, second = pair(best)
    if best == most:
        until = f"up to {most}, the largest that fits" if targets.fits else f"up to {most}"
        if ahead:
            return Answer("break-even", "sequences", "always", best, first, second, f"ahead at every batch {until}")
        return Answer("break-even", "sequences", "never", None, first, second, f"behind at every batch {until}")
    leaders = ("these options", "the others")
    before, after = leaders if ahead else leaders[::-1]
    note = f"{before} are ahead up to there, {after} at the next"
    return Answer("break-even", "sequences", "found", best, first, second, note, pair(best + 1))


def _checked(request: Request, batch: int, targets: Targets) -> Check:
    speedless = replace(targets, ttft=None, tpot=None, total=None, tokens_per_second=None)
    return check(batch, request.scenario(batch=batch), speedless)
