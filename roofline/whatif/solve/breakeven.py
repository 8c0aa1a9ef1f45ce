"""Break-even: the batch up to which one set of options is faster than another."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.search import last_before_failure
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.whatif.solve.targets import Answer, Check, TargetOptions, Targets, check, figures, read_targets, used

METRICS = ("ttft", "tpot", "total")
"""Metrics to compare, in seconds: less is better."""


def break_even(
    one: Scenario,
    other: Scenario,
    targets: Targets | None = None,
    metric: str = "total",
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The largest batch up to which the scenario that is faster at batch 1 is no slower than the other.

    The verdict is "always" if `one` is faster at every batch, "never" if `other` is. Both must fit in memory, unless
    `targets.fits` is False. The check is of `one`, the neighbour of `other`, and the
    candidates are both at the next batch. Raises RooflineError if both requests are the same.
    """
    if metric not in METRICS:
        raise UnknownNameError("metric of a break-even", metric, METRICS)
    targets = read_targets(one, targets, limits, finds=["batch"])
    read_targets(other, None, {}, finds=["batch"])
    if targets.timed:
        raise RooflineError(f"a break-even compares times: it has no target of {targets.timed[0]}")
    if one == other:
        raise RooflineError(
            "break-even: both scenarios are the same; name what differs, like quant awq", options=["against"]
        )
    answer = partial(Answer, "break-even", "sequences", scenario=one, targets=targets, other=other)

    def times(scenario: Scenario, batches: Any) -> Any:
        value = getattr(figures(analyze(scenario.at(batch=batches)), targets.at), metric)
        if value is None:
            raise RooflineError("a TPOT needs at least two generated tokens", options=["generate"])
        return value

    def fits(batches: Any) -> Any:
        first, second = (used(scenario.at(batch=batches), targets.memory_only) for scenario in (one, other))
        return (first <= 1) & (second <= 1)

    def pair(batch: int) -> tuple[Check, Check]:
        first, second = (check(batch, scenario.at(batch=batch), targets.memory_only) for scenario in (one, other))
        return first, second

    limit = min(one.max_batch, other.max_batch)
    most = last_before_failure(fits, 1, limit) if targets.fits else limit
    if most < 1:
        raise RooflineError("one of the two does not fit in memory at batch 1", options=["ignore_memory"])
    ahead = bool(times(one, 1) <= times(other, 1))

    def holds(batches: Any) -> Any:
        first, second = times(one, batches), times(other, batches)
        return first <= second if ahead else first >= second

    best = last_before_failure(holds, 1, most)
    first, second = pair(best)
    if best == most:
        until = f"up to {most}, the largest that fits" if targets.fits else f"up to {most}"
        if ahead:
            return answer("always", best, first, second, f"faster at every batch {until}")
        return answer("never", None, first, second, f"slower at every batch {until}")
    leaders = ("these options", "the others")
    before, after = leaders if ahead else leaders[::-1]
    note = f"{before} are faster up to this batch, {after} from the next"
    return answer("found", best, first, second, note, pair(best + 1))
