"""Counts: the largest batch, the longest prompt, the fewest devices and the longest draft that meet targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.limits import MAX_BATCH, MAX_LENGTH
from roofline.core.search import largest_satisfying, last_before_failure, last_before_failure_scalar
from roofline.graph.parallel import Parallelism
from roofline.graph.ranks import rank_model
from roofline.scenario.analysis import analyze
from roofline.scenario.argument import scenario_of
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Model
from roofline.techniques import find_technique
from roofline.whatif.solve.targets import Answer, Check, TargetOptions, Targets, check, check_any, read_targets, used


def max_batch(scenario: Scenario, targets: Targets | None = None, **limits: Unpack[TargetOptions]) -> Answer:
    """The largest batch such that it and every smaller one meets the targets.

    Throughput grows with the batch: a target of tokens/s must hold at the answer alone.
    """
    targets, most = read_targets(scenario, targets, limits, finds=["batch"]), scenario.max_batch
    check_any(targets, "the batch")
    limit = f"max_num_seqs, {most} sequences" if most < MAX_BATCH else ""
    return _largest("max-batch", "sequences", scenario, "batch", targets, most, limit)


def max_context(scenario: Scenario, targets: Targets | None = None, **limits: Unpack[TargetOptions]) -> Answer:
    """The longest prompt such that it and every shorter one meets the targets, up to the model's maximum context.

    A sequence is the cached prefix, the prompt and the generated tokens.
    """
    targets = read_targets(scenario, targets, limits, finds=["prompt", "context"])
    longest, model = _longest_prompt(scenario), scenario.model
    if longest < 1:
        raise RooflineError(
            f"the maximum context of {model.name} leaves no room for a prompt: lower prefix or generate"
        )
    limit = "" if model.max_context is None else f"the maximum context of {model.name}, {model.max_context} tokens"
    return _largest("max-context", "prompt tokens", scenario, "prompt", targets, longest, limit)


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


def _largest(
    question: str, unit: str, scenario: Scenario, count: str, targets: Targets, limit: int, limited_by: str
) -> Answer:
    """The largest `count` up to a `limit`: first by memory, which is cheap and monotonic, then by latency.

    `limited_by` is the limit in words; "" for one that is only the end of the search.
    """
    answer = partial(Answer, question, unit, scenario=scenario, targets=targets)

    def make(value: Any) -> Scenario:
        return scenario.at(**{count: value})

    def holds(some: Targets) -> Callable[[Any], Any]:
        return lambda counts: used(make(counts), some) <= 1

    def checked(value: int) -> Check:
        return check(value, make(value), targets)

    most = last_before_failure(holds(targets.memory_only), 1, limit) if targets.fits else limit
    ceilings = targets.ceilings
    best = last_before_failure(holds(ceilings), 1, most) if most and ceilings.timed else most
    if best >= 1:
        best = _settled(make, ceilings, best, limit)
    if best < 1:
        return answer("never", None, checked(1))
    if targets.tokens_per_second is not None:
        reached = largest_satisfying(holds(targets), 1, best)
        if reached is None:
            note = f"the targets hold up to {best} {unit}, and the rate is not reached there"
            return answer("never", None, checked(best), note=note)
        best = reached
    if best < limit:
        return answer("found", best, checked(best), checked(best + 1))
    if limited_by:
        return answer("found", best, checked(best), note=f"limited by {limited_by}")
    return answer("always", best, checked(best), note=f"no limit up to {limit} {unit}")


def _settled(make: Callable[[Any], Scenario], targets: Targets, best: int, limit: int) -> int:
    """`best`, corrected by single simulations of it and its neighbours: a grid may differ from them in rounding."""
    for _ in range(8):
        if best >= 1 and not check(best, make(best), targets).meets:
            best -= 1
        elif best < limit and check(best + 1, make(best + 1), targets).meets:
            best += 1
        else:
            break
    return best


MAX_TENSOR = 1024
"""Maximum degree of tensor parallelism considered."""


def min_gpus(scenario: Scenario, targets: Targets | None = None, **limits: Unpack[TargetOptions]) -> Answer:
    """The smallest degree of tensor parallelism that divides the model and meets the targets, over nodes if needed.

    Every smaller degree is simulated.
    """
    if scenario_of(scenario).counted:
        raise RooflineError("min-gpus finds the number of devices: name the hardware without its count", options=["hw"])
    targets = read_targets(scenario, targets, limits, finds=["tp"])
    check_any(targets, "the number of devices")
    answer = partial(Answer, "min-gpus", "devices", scenario=scenario, targets=targets)
    tried: list[Check] = []
    refused: RooflineError | None = None
    for degree in tensor_degrees(scenario.model, scenario.question.degrees):
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
            return answer("found", degree, found, before, note, tuple(tried))
    if not tried:
        raise refused or RooflineError(f"no degree of tensor parallelism divides {scenario.model.name}")
    note = f"tried: {', '.join(str(entry.value) for entry in tried)}"
    best = min(tried, key=lambda entry: max(entry.used.values(), default=0.0))
    return answer("never", None, best, None, note, tuple(tried))


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


LENGTHS = ("length", "depth", "heads")
"""Names of the number of draft tokens among parameters of techniques."""

PAYING = "tpot without draft"
"""The target of a draft length: the TPOT without a draft."""


def max_draft(scenario: Scenario, targets: Targets | None = None, **limits: Unpack[TargetOptions]) -> Answer:
    """The largest draft length with a TPOT at most that without a draft, which also meets the targets.

    The scenario has one technique of speculative decoding, with an `acceptance` rate per draft token. TPOT first falls
    and then rises with the length, so that very short drafts may lose where longer ones gain.
    """
    targets = read_targets(scenario, targets, limits)
    name, given = _drafting(scenario)
    technique = find_technique(name)
    answer = partial(Answer, "max-draft", "tokens", scenario=scenario, targets=targets)
    parameter = next(entry for entry in technique.parameters if entry.name in LENGTHS)
    high = int(parameter.high or 100)
    others = [entry for entry in scenario.techniques if entry.partition(":")[0] != name]
    plain = check(0, scenario.with_(techniques=others), targets)
    if plain.figures.tpot is None:
        raise RooflineError("speculative decoding needs at least two generated tokens", options=["generate"])

    tried: dict[int, Check] = {}

    def drafted(length: int) -> Check:
        if length not in tried:
            text = ",".join(f"{key}={value}" for key, value in {**given, parameter.name: str(length)}.items())
            found = check(length, scenario.with_(techniques=[*others, f"{name}:{text}"]), targets)
            assert plain.figures.tpot is not None
            used = {**found.used, PAYING: found.figures.tpot / plain.figures.tpot}
            tried[length] = replace(found, used=used)
        return tried[length]

    best = last_before_failure_scalar(lambda length: drafted(length).meets, 1, high)
    fastest = min(tried.values(), key=lambda entry: entry.figures.tpot)
    candidates = (plain, *(tried[length] for length in sorted(tried)))
    if best < 1:
        return answer("never", None, fastest, plain, "no draft length pays off", candidates)
    note = f"lowest TPOT among those tried: {fastest.value}"
    if best == high:
        return answer("always", best, drafted(best), None, note, candidates)
    return answer("found", best, drafted(best), drafted(best + 1), note, candidates)


def _drafting(scenario: Scenario) -> tuple[str, dict[str, str]]:
    """The name of the scenario's technique of speculative decoding, and its parameters without the length."""
    for entry in scenario.techniques:
        name, _, rest = entry.partition(":")
        technique = find_technique(name)
        names = {parameter.name for parameter in technique.parameters}
        if technique.slot != "speculative decoding":
            continue
        if "acceptance" not in names or not names & set(LENGTHS):
            raise RooflineError(
                f"max-draft needs an acceptance rate per token, and {technique.name} has none; use"
                " speculative-decoding, self-speculative, pass, prompt-lookup or another that has one"
            )
        pairs = [part.partition("=") for part in rest.split(",") if part]
        given = {key.strip(): value.strip() for key, _, value in pairs if key.strip() not in LENGTHS}
        scenario.with_(techniques=[entry])  # raises its usual error if invalid
        if given.get("acceptance") is None and technique.values(given).get("acceptance") is None:
            raise RooflineError(f"max-draft needs an acceptance rate: {name}:acceptance=0.8", options=["with"])
        return name, given
    usual = "speculative-decoding:draft=MODEL,acceptance=0.8"
    raise RooflineError(f"max-draft needs speculative decoding: {usual}", options=["with"])
