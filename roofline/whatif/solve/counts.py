"""Counts: the largest batch, the longest prompt and the fewest devices that meet targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roofline.core.errors import RooflineError
from roofline.core.limits import MAX_BATCH, MAX_LENGTH
from roofline.core.search import largest_satisfying, last_before_failure
from roofline.graph.parallel import Parallelism, rank_model
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Model
from roofline.whatif.solve.targets import Answer, Check, TargetOptions, Targets, check, read_targets, used

if TYPE_CHECKING:
    from typing import Unpack

Make = Callable[[Any], Scenario]


def max_batch(scenario: Scenario, targets: Targets | None = None, **limits: Unpack[TargetOptions]) -> Answer:
    """The largest batch such that it and every smaller one meets the targets.

    Throughput grows with the batch: a target of tokens/s must hold at the answer alone.
    """
    targets = read_targets(targets, limits)
    _check_any(targets, "the batch")
    most = scenario.max_batch
    answer = _largest("max-batch", "sequences", lambda batch: scenario.at(batch=batch), targets, most)
    if answer.verdict == "always" and most < MAX_BATCH:
        answer = _limited(answer, f"max_num_seqs, {most} sequences")
    return answer.to(scenario, targets)


def max_context(scenario: Scenario, targets: Targets | None = None, **limits: Unpack[TargetOptions]) -> Answer:
    """The longest prompt such that it and every shorter one meets the targets, up to the model's maximum context.

    A sequence is the cached prefix, the prompt and the generated tokens.
    """
    targets, longest = read_targets(targets, limits), _longest_prompt(scenario)
    if longest < 1:
        raise RooflineError(
            f"the maximum context of {scenario.model.name} leaves no room for a prompt: lower prefix or generate"
        )
    answer = _largest("max-context", "prompt tokens", lambda prompt: scenario.at(prompt=prompt), targets, longest)
    if answer.verdict == "always" and scenario.model.max_context is not None:
        answer = _limited(answer, f"the maximum context of {scenario.model.name}, {scenario.model.max_context} tokens")
    return answer.to(scenario, targets)


def _limited(answer: Answer, limit: str) -> Answer:
    """An answer that no target limits, with what does."""
    return Answer(answer.question, answer.unit, "found", answer.value, answer.check, None, f"limited by {limit}")


def _longest_prompt(scenario: Scenario) -> int:
    """The longest prompt whose sequences fit in the model's maximum context."""
    if scenario.model.max_context is None:
        return MAX_LENGTH // 100
    low, high = 0, scenario.model.max_context + 1
    while high - low > 1:
        middle = (low + high) // 2
        beyond = analyze(scenario.at(prompt=middle)).beyond_max_context
        low, high = (low, middle) if beyond else (middle, high)
    longest = scenario.settings.longest
    if longest is None or scenario.model.tower_kind == "encoder":
        return low
    shortest = scenario.at(prompt=1)  # vLLM counts the last token, which no pass reads
    return min(low, longest - int(shortest.first_cached) - int(shortest.generate) + 1)


def _check_any(targets: Targets, what: str) -> None:
    if not targets.fits and not targets.timed:
        raise RooflineError(f"{what} needs a target, such as a TPOT of 30ms, or the memory limit", options=["tpot"])


def _largest(question: str, unit: str, make: Make, targets: Targets, limit: int) -> Answer:
    """The largest count up to `limit`: first by memory, which is cheap and monotonic, then by latency."""

    def holds(some: Targets) -> Callable[[Any], Any]:
        return lambda counts: used(make(counts), some) <= 1

    most = last_before_failure(holds(targets.memory_only), 1, limit) if targets.fits else limit
    ceilings = targets.ceilings
    best = last_before_failure(holds(ceilings), 1, most) if most and ceilings.timed else most
    if best < 1:
        return _never(question, unit, make, targets)
    best = _settled(make, ceilings, best, limit)
    if best < 1:
        return _never(question, unit, make, targets)
    if targets.tokens_per_second is not None:
        reached = largest_satisfying(holds(targets), 1, best)
        if reached is None:
            note = f"the targets hold up to {best} {unit}, and the rate is not reached there"
            return Answer(question, unit, "never", None, check(best, make(best), targets), None, note)
        if reached < best:
            found, beyond = check(reached, make(reached), targets), check(reached + 1, make(reached + 1), targets)
            return Answer(question, unit, "found", reached, found, beyond)
    found = check(best, make(best), targets)
    if best >= limit:
        return Answer(question, unit, "always", best, found, None, f"no limit up to {limit} {unit}")
    return Answer(question, unit, "found", best, found, check(best + 1, make(best + 1), targets))


def _settled(make: Make, targets: Targets, best: int, limit: int) -> int:
    """`best`, corrected by single simulations of it and its neighbours: a grid may differ from them in rounding."""
    for _ in range(8):
        if best >= 1 and not check(best, make(best), targets).meets:
            best -= 1
        elif best < limit and check(best + 1, make(best + 1), targets).meets:
            best += 1
        else:
            break
    return best


def _never(question: str, unit: str, make: Make, targets: Targets) -> Answer:
    return Answer(question, unit, "never", None, check(1, make(1), targets))


MAX_TENSOR = 1024
"""Maximum degree of tensor parallelism considered."""


def min_gpus(scenario: Scenario, targets: Targets | None = None, **limits: Unpack[TargetOptions]) -> Answer:
    """The smallest degree of tensor parallelism that divides the model and meets the targets, over nodes if needed.

    Every smaller degree is simulated.
    """
    targets = read_targets(targets, limits)
    _check_any(targets, "the number of devices")
    return _fewest(scenario, targets).to(scenario, targets)


def _fewest(scenario: Scenario, targets: Targets) -> Answer:
    """The answer of `min_gpus`."""
    tried: list[Check] = []
    refused: RooflineError | None = None
    for degree in tensor_degrees(scenario.model, scenario.degrees):
        try:
            wider = scenario.with_(tp=degree)
            found = check(degree, wider, targets)
        except RooflineError as error:
            refused = error  # no link to that many devices, or nodes that do not share them evenly
            continue
        tried.append(found)
        if found.meets:
            before = tried[-2] if len(tried) > 1 else None
            devices = wider.settings.parallel.devices
            note = f"{devices} devices in all" if devices != degree else ""
            return Answer("min-gpus", "devices", "found", degree, found, before, note, tuple(tried))
    if not tried:
        raise refused or RooflineError(f"no degree of tensor parallelism divides {scenario.model.name}")
    note = f"tried: {', '.join(str(entry.value) for entry in tried)}"
    best = min(tried, key=lambda entry: max(entry.used.values(), default=0.0))
    return Answer("min-gpus", "devices", "never", None, best, None, note, tuple(tried))


def tensor_degrees(model: Model, degrees: Any) -> list[int]:
    """The degrees of tensor parallelism that divide the model."""
    widest = max((attention.heads for attention in model.attentions), default=64)
    found = []
    for degree in range(1, min(MAX_TENSOR, max(widest, 64)) + 1):
        try:
            rank_model(model, Parallelism(**{**degrees, "tensor": degree, "nodes": 1}))
        except RooflineError:
            continue
        found.append(degree)
    return found
