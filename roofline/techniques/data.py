"""Data-level techniques, which change the workload: prompts, retrieval, answers in parallel parts, cascades."""

from __future__ import annotations

from roofline.core.errors import UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Cascade
from roofline.techniques.changes import require, scaled_tokens, with_cached_prefix, with_settings, with_tokens
from roofline.techniques.drafts import draft_model


def shorter_prompt(scenario: Scenario, _: str, *, keep: float) -> Scenario:
    """The scenario with a fraction of the prompt's tokens."""
    return with_tokens(scenario, prompt=scaled_tokens(scenario.prompt, keep))


def soft_prefix(scenario: Scenario, _: str, *, fixed: float, tokens: int) -> Scenario:
    """A fixed fraction of the prompt becomes a few learned tokens, computed once and cached."""
    return with_cached_prefix(scenario, fixed, replaced_by=tokens)


def retrieved_passages(scenario: Scenario, _: str, *, passages: int, tokens: int) -> Scenario:
    """The scenario with a prompt longer by the passages."""
    return with_tokens(scenario, prompt=scenario.prompt + passages * tokens)


def parallel_parts(
    scenario: Scenario, _: str, *, points: int, skeleton: float = 0.0, alone: float = 0.0, longer: float = 1.0
) -> Scenario:
    """An answer of points decoded in parallel, after a fraction of it decoded sequentially.

    With p points, a sequential fraction s (`alone`) and points that add up to l times (`longer`) their part of a plain
    answer, a sequence runs s + l (1 - s) / p of the plain answer's steps. Where the sequential part is a `skeleton`,
    which is no part of the answer, it runs s + l / p. All p beams together yield the whole answer.
    """
    steps = scaled_tokens(scenario.generate, skeleton + alone + longer * (1 - alone) / points)
    return with_settings(
        with_tokens(scenario, generate=steps),
        beams=scenario.settings.beams * points,
        useful=scenario.settings.useful * (scenario.generate / steps),
        shared_prefix=True,
    )


def cascade(scenario: Scenario, name: str, *, model: str, answered: float) -> Scenario:
    """FrugalGPT: a smaller model answers a fraction of the requests, and the scenario's model the others."""
    if scenario.model.tower is not None:
        raise UnsupportedError(f"{name} is simulated for text-only models, and {scenario.model.name} has a tower")
    require(scenario, name, "generation")
    return with_settings(scenario, cascade=Cascade(draft_model(model, scenario.model, name), answered))
