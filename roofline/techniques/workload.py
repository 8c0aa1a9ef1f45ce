"""Changes of the workload: shorter or longer prompts, shorter answers, parts that are cached already."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from roofline.scenario.scenario import Scenario
from roofline.techniques.base import lengths


def with_tokens(scenario: Scenario, **counts: Any) -> Scenario:
    """The scenario with other counts of tokens; a context that was given changes as much as what precedes it."""
    changed = replace(scenario, context=None, **counts)
    if scenario.context is None:
        return changed
    shifted = np.maximum(scenario.context + (changed.first_cached - scenario.first_cached), 1)
    return replace(changed, context=shifted if np.ndim(shifted) else int(shifted))


def with_prompt(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with its prompts this much as long, rounded up to whole tokens."""
    return with_tokens(scenario, prompt=lengths(scenario.prompt, factor))


def cached_share(scenario: Scenario, share: float, replaced_by: int | None = None) -> Scenario:
    """The scenario with a share of its prompts cached before they come, all but one token at most.

    The cached part keeps its length, or is `replaced_by` so many tokens.
    """
    rest = lengths(scenario.prompt, 1 - share)
    cached = scenario.prompt - rest if replaced_by is None else replaced_by
    return with_tokens(scenario, prompt=rest, prefix=scenario.prefix + cached)
