"""Speculative decoding: a draft proposes tokens, and the model verifies them in one pass.

The keyword arguments `yields` of a function are `accept`, the tokens per iteration including the model's own, and for
some techniques `acceptance`, the probability that a draft token is accepted, which overrides it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from types import MappingProxyType
from typing import Any

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.network import EMBEDDING, HEAD
from roofline.scenario.scenario import Scenario
from roofline.scenario.speculation import Speculation, accepted_tokens
from roofline.specs.model import Model
from roofline.specs.sublayers import Attention, LatentAttention
from roofline.techniques.acceptance import is_published, published_acceptance
from roofline.techniques.changes import with_settings
from roofline.techniques.drafts import (
    block_layers,
    draft_model,
    eagle_3_layer,
    eagle_layer,
    medusa_heads,
    prediction_module,
)

Yields = Mapping[str, float | None]


def _speculate(scenario: Scenario, name: str, speculation: Speculation, tree: bool = False) -> Scenario:
    """The scenario with speculative decoding; raises RooflineError where more tokens are accepted than drafted."""
    model = scenario.model
    if speculation.accepted > speculation.length + 1:
        raise RooflineError(
            f"{name} cannot yield {speculation.accepted:g} tokens an iteration:"
            f" it drafts {speculation.length} and the model adds one"
        )
    if tree and any(not isinstance(group.layer.mixer, Attention | LatentAttention) for group in model.groups):
        raise UnsupportedError(f"{name} verifies a token tree, which the recurrent layers of {model.name} cannot do")
    return with_settings(scenario, speculation=speculation)


def _accepted(name: str, length: int, yields: Yields) -> float:
    """Tokens per iteration: from the acceptance rate if there is one, else `accept`."""
    rate, tokens = yields.get("acceptance"), yields.get("accept")
    if rate is not None:
        return accepted_tokens(rate, length)
    if tokens is None:
        other = " or acceptance" if "acceptance" in yields else ""
        raise RooflineError(f"{name} needs accept{other}: no published mean holds in general")
    return float(tokens)


def _accepted_as_published(
    scenario: Scenario, name: str, task: str, length: int, yields: Yields, tree: int = 0, topk: int = 1
) -> dict[str, Any]:
    """Tokens per iteration as given, else as published for the model and the task, as fields of `Speculation`.

    With where those were measured, and whether they are borrowed from another model.
    """
    row = published_acceptance(name, scenario.model.name, task, bool(tree))
    if row is None or any(value is not None for value in yields.values()):
        return {"accepted": _accepted(name, length, yields)}
    measured = f"{row.where} ({row.source})"
    return {"accepted": row.of(length, tree, topk), "measured": measured, "borrowed": row.scale is not None}


def with_draft_model(
    scenario: Scenario,
    name: str,
    *,
    draft: str,
    length: int,
    tree: int | None = None,
    sequences: int = 1,
    gain: float = 1.0,
    draft_accept: float = 1.0,
    **yields: float | None,
) -> Scenario:
    """A smaller model drafts `sequences` of `length` tokens, or a tree of that depth and `tree` tokens.

    `gain` multiplies the accepted tokens. `draft_accept`: tokens per pass of the draft model, which speculates itself.
    """
    speculation = Speculation(
        length=length,
        accepted=min(_accepted(name, length, yields) * gain, length + 1),
        verified=length * sequences if tree is None else tree,
        draft=draft_model(draft, scenario.model, name),
        draft_width=max(sequences, ceil((length if tree is None else tree) / length), ceil(draft_accept)),
        draft_passes=ceil(length / draft_accept),
    )
    return _speculate(scenario, name, speculation, tree=speculation.verified > length)


def look_up(scenario: Scenario, name: str, *, length: int, tree: int | None = None, **yields: float | None) -> Scenario:
    """Drafts that cost nothing: a sequence of `length` tokens, or a tree of that depth and `tree` tokens."""
    verified = length if tree is None else tree
    speculation = Speculation(length, _accepted(name, length, yields), verified)
    return _speculate(scenario, name, speculation, tree=verified > length)


def look_up_prompt(scenario: Scenario, name: str, *, length: int, task: str, **yields: float | None) -> Scenario:
    """Drafts copied from the prompt, with the published acceptance of the model on a task."""
    accepted = _accepted_as_published(scenario, name, task, length, yields)
    return _speculate(scenario, name, Speculation(length, verified=length, **accepted))


def look_ahead(
    scenario: Scenario, name: str, *, window: int, ngram: int, guesses: int, slowdown: float, **yields: float | None
) -> Scenario:
    """Lookahead decoding: every pass extends the n-grams of a window and verifies `guesses` others."""
    # Each position of the window and each guess takes ngram - 1 tokens; the current token is one of them.
    tokens = (window + guesses) * (ngram - 1)
    speculation = Speculation(ngram - 1, _accepted(name, ngram - 1, yields), tokens - 1, slowdown=slowdown)
    return _speculate(scenario, name, speculation, tree=True)


def refine_groups(scenario: Scenario, name: str, *, tokens: int, refinements: int) -> Scenario:
    """Groups of tokens that are recomputed `refinements` times: tokens / refinements a pass."""
    if refinements > tokens:
        raise RooflineError(f"{name}: {refinements} refinements of {tokens} tokens are slower than decoding")
    return _speculate(scenario, name, Speculation(tokens - 1, tokens / refinements, tokens - 1), tree=True)


def draft_with_layers(scenario: Scenario, name: str, *, depth: float, length: int, **yields: float | None) -> Scenario:
    """A fraction of the model's own layers drafts tokens one by one."""
    speculation = Speculation(length, _accepted(name, length, yields), verified=length, draft_depth=depth)
    return _speculate(scenario, name, speculation)


def draft_in_one_pass(scenario: Scenario, name: str, *, length: int, **yields: float | None) -> Scenario:
    """PaSS: one pass of the model over lookahead tokens drafts all tokens, and a second one verifies them."""
    accepted = _accepted(name, length, yields)
    speculation = Speculation(length, accepted, length, draft_depth=1.0, draft_width=length + 1, draft_passes=1)
    return _speculate(scenario, name, speculation)


def draft_with_heads(
    scenario: Scenario, name: str, *, heads: int, tree: int | None = None, **yields: float | None
) -> Scenario:
    """Extra output heads draft a sequence in one pass, or a tree of `tree` tokens with its root."""
    verified = heads if tree is None else tree - 1
    draft = medusa_heads(scenario.model, heads)
    speculation = Speculation(heads, _accepted(name, heads, yields), verified, draft, draft_passes=1)
    return _speculate(scenario, name, speculation, tree=tree is not None)


EAGLE_DRAFTS: Mapping[str, tuple[Callable[[Model], Model], tuple[str, ...]]] = MappingProxyType(
    {"eagle": (eagle_layer, (EMBEDDING, HEAD)), "eagle-3": (eagle_3_layer, (EMBEDDING,))}
)
"""Draft networks of EAGLE, and the sections that they share with the model."""


def draft_with_eagle(
    scenario: Scenario, name: str, *, draft: str, length: int, tree: int, topk: int, task: str, **yields: float | None
) -> Scenario:
    """A decoder layer drafts a chain of `length` tokens, or a tree of that depth and `tree` tokens (0: a chain).

    The draft continues `topk` tokens of a level of the tree.
    """
    network, shared_ends = EAGLE_DRAFTS[draft]
    accepted, width = _accepted_as_published(scenario, name, task, length, yields, tree, topk), topk if tree else 1
    drafts: dict[str, Any] = {"draft": network(scenario.model), "draft_width": width, "shared_ends": shared_ends}
    speculation = Speculation(length, verified=max(tree, length), **drafts, **accepted)
    return _speculate(scenario, name, speculation, tree=bool(tree))


def draft_with_mtp(scenario: Scenario, name: str, *, length: int, task: str, **yields: float | None) -> Scenario:
    """MTP modules of the checkpoint draft the next tokens."""
    if not scenario.model.mtp:
        raise UnsupportedError(f"{name} needs MTP modules in the checkpoint, and {scenario.model.name} has none")
    accepted, module = _accepted_as_published(scenario, name, task, length, yields), prediction_module(scenario.model)
    speculation = Speculation(length, verified=length, draft=module, shared_ends=(EMBEDDING, HEAD), **accepted)
    return _speculate(scenario, name, speculation)


def draft_block(
    scenario: Scenario, name: str, *, layers: int, experts: bool, length: int, task: str, **yields: float | None
) -> Scenario:
    """Layers on the model's hidden states draft a block of `length` tokens in one pass, with `experts` or dense."""
    if is_published(name, scenario.model.name):
        accepted = _accepted_as_published(scenario, name, task, length, yields)
    else:  # there are drafts for few models
        accepted = {"accepted": _accepted(name, length, yields)}
    block = block_layers(scenario.model, layers, experts)
    draft: dict[str, Any] = {"draft": block, "draft_width": length, "draft_passes": 1, "shared_ends": (EMBEDDING, HEAD)}
    return _speculate(scenario, name, Speculation(length, verified=length, **draft, **accepted))
