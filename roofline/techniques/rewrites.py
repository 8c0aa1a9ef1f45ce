"""Setting rewrites of linear layers, in the one order in which they make sense together."""

from __future__ import annotations

from roofline.core.errors import RooflineError
from roofline.graph.rewrite import Adapter, LowRank, Predictor, ProjectedKeys, Rewrite, Rotation, SharedWeights
from roofline.scenario.scenario import Scenario
from roofline.techniques.base import with_settings

_ORDER: tuple[type[Rewrite], ...] = (LowRank, Adapter, ProjectedKeys, Rotation, Predictor, SharedWeights)
"""What replaces layers comes before what adds some, so that those are left alone."""

_EXCLUSIVE = (LowRank, Adapter)


def with_rewrite(scenario: Scenario, name: str, rewrite: Rewrite) -> Scenario:
    """The scenario with one more rewrite; refused where another settles the same layers."""
    rewrites = scenario.settings.rewrites
    rivals = _EXCLUSIVE if isinstance(rewrite, _EXCLUSIVE) else (type(rewrite),)
    if any(isinstance(other, rivals) for other in rewrites):
        raise RooflineError(f"{name} rewrites linear layers that another technique has rewritten already")
    ordered = sorted(
        (*rewrites, rewrite), key=lambda each: next(i for i, kind in enumerate(_ORDER) if type(each) is kind)
    )
    return with_settings(scenario, rewrites=tuple(ordered))
