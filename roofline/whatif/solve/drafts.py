"""Draft lengths: the largest number of draft tokens with which speculative decoding pays off."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.search import last_before_failure_scalar
from roofline.scenario.scenario import Scenario
from roofline.techniques import find_technique
from roofline.whatif.solve.targets import Answer, Check, TargetOptions, Targets, check, read_targets

if TYPE_CHECKING:
    from typing import Unpack

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
            raise RooflineError(f"max-draft needs an acceptance rate: {name}:acceptance=0.8,...", options=["with"])
        return name, given
    usual = "speculative-decoding:draft=MODEL,acceptance=0.8"
    raise RooflineError(f"max-draft needs speculative decoding: {usual}", options=["with"])
