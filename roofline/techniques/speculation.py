"""Speculative decoding: several tokens drafted cheaply, verified in one pass of the model, which decides on its own."""

from __future__ import annotations

from math import ceil
from typing import Any

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Speculation, accepted_tokens
from roofline.specs.model import Attention, LatentAttention
from roofline.techniques.base import (
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    needs_generation,
    with_settings,
)
from roofline.techniques.drafts import draft_model, eagle_layer, medusa_heads, prediction_module
from roofline.techniques.entries import system_entry

TABLE_5 = "Zhou et al. 2024, Table 5"
_CONDITIONS = (
    "Vicuna 7B, 13B and 33B, LLaMA-2 7B and 13B, Vicuna-80 prompts; GPU, batch, precision and draft length not stated"
)
_TRUST = "How many tokens are accepted depends on texts and models and is given, not predicted."


def speculate(scenario: Scenario, name: str, speculation: Speculation, tree: bool = False) -> Scenario:
    """The scenario with a way to draft; refused where it accepts more than it drafts."""
    needs_generation(scenario, name)
    model = scenario.model
    if speculation.accepted > speculation.length + 1:
        raise RooflineError(
            f"{name} cannot yield {speculation.accepted:g} tokens an iteration:"
            f" it drafts {speculation.length} and the model adds one"
        )
    if tree and any(not isinstance(group.layer.mixer, (Attention, LatentAttention)) for group in model.groups):
        raise UnsupportedError(
            f"{name} verifies a tree, and the recurrent layers of {model.name} follow one branch only"
        )
    return with_settings(scenario, speculation=speculation)


def _accepted(name: str, values: Values, length: int) -> float:
    """Tokens an iteration: from the chance of each token where that is given, else as given."""
    if values.get("acceptance") is not None:
        return accepted_tokens(values["acceptance"], length)
    if values["accept"] is None:
        other = " or acceptance" if "acceptance" in values else ""
        raise RooflineError(f"{name} needs accept{other}: no mean is published that would hold in general")
    return float(values["accept"])


def _accept(default: float | None, source: str = "no default is published") -> Parameter:
    return Parameter("accept", default, f"tokens an iteration, the model's own included ({source})", 1, 1000)


def _least(default: float) -> Parameter:
    return _accept(default, f"the least of {TABLE_5}")


ACCEPTANCE = Parameter("acceptance", None, "chance that a drafted token is accepted; overrides accept", 0, 1)
DRAFT = Parameter("draft", None, "the model that drafts, of the same vocabulary")


def _length(default: int, source: str) -> Parameter:
    return Parameter("length", default, f"tokens drafted in an iteration ({source})", 1, 100)


def _tree(default: int, source: str) -> Parameter:
    return Parameter("tree", default, f"tokens of the tree that is verified ({source})", 1, 4096)


def _table_5(accepted: str, gain: str) -> tuple[Published, ...]:
    return (Published(f"{accepted} tokens a step, {gain} times as fast", _CONDITIONS, TABLE_5),)


# --- a second model drafts --------------------------------------------------------------------------------------------


def _with_draft(name: str) -> Change:
    """A smaller model drafts a sequence, as many as `width` at once, and speeds up by itself where it says so."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        length, width = values["length"], values.get("sequences", 1)
        accepted = min(_accepted(name, values, length) * values.get("gain", 1.0), length + 1)
        own = values.get("draft_accept", 1.0)
        speculation = Speculation(
            length=length,
            accepted=accepted,
            verified=values.get("tree", length * width),
            draft=draft_model(values["draft"], scenario.model, name),
            draft_width=max(width, ceil(values.get("tree", length) / length), ceil(own)),
            draft_passes=ceil(length / own),
        )
        return speculate(scenario, name, speculation, tree=speculation.verified > length)

    return change


_FOUR = _length(4, "as in Chen et al. 2023")
_SHARED = f"{_TRUST} That both models have one vocabulary is not checked."


def _drafted(
    name: str, title: str, reference: str, effect: str, parameters: tuple[Parameter, ...], **more: Any
) -> Technique:
    fields = {"caveat": _SHARED, "parameters": (DRAFT, *parameters), **more}
    return system_entry(name, title, reference, effect, "drafting", _with_draft(name), **fields)


WITH_DRAFT_MODEL = (
    _drafted(
        "speculative-decoding",
        "Speculative decoding with a draft model",
        "Leviathan et al. 2023; Chen et al. 2023",
        "a small model drafts tokens one by one and one pass of the model over all of them accepts a prefix: more "
        "FLOPs, weights read once for several tokens",
        (_FOUR, _least(1.77), ACCEPTANCE),
        covers=("SpD", "speculative sampling", "draft-model", "speculative decoding"),
        published=(
            *_table_5("1.77-2.02", "1.05-1.77"),
            Published("(1 - a^(g+1)) / (1 - a) tokens an iteration", "closed form", "Leviathan et al. 2023"),
        ),
        caveat=f"{_SHARED} The draft of Table 5 took 275 GPU hours to train.",
    ),
    _drafted(
        "distillspec",
        "A draft distilled from its target",
        "Zhou et al. 2023, DistillSpec",
        "a draft trained on the target's own outputs is accepted more often; the passes stay the same",
        (_FOUR, _least(1.77), ACCEPTANCE, Parameter("gain", 1.1, "factor on the tokens an iteration yields", 1, 10)),
        covers=("OSD", "Online SD", "online speculative decoding"),
        published=(
            Published("10-45% faster than with the undistilled draft", "not stated", "Yuan et al. 2024, section 4.2.1"),
        ),
        caveat=f"{_SHARED} The published figure is a gain of latency; here it multiplies the tokens accepted.",
    ),
    _drafted(
        "specinfer",
        "Token trees verified at once",
        "Miao et al. 2023, SpecInfer",
        "drafts branch into a tree that one pass verifies: more tokens verified, a longer accepted path",
        (
            _length(8, "depth of the tree, as SpecInfer's expansion 1,1,3,1,1,1,1,1"),
            _tree(20, "that expansion has 20"),
            _accept(None),
        ),
        covers=("tree attention", "LLMCad"),
        caveat=f"{_SHARED} Several drafts side by side are one draft of as wide a step.",
    ),
    _drafted(
        "sequoia",
        "Token trees of the best shape for the hardware",
        "Chen et al. 2024, Sequoia",
        "the size and depth of the verified tree are chosen for the hardware: large trees where bandwidth is scarce",
        (_length(6, "an example"), _tree(64, "an example"), _accept(None)),
        caveat=f"{_SHARED} The search for the best tree is not part of it.",
    ),
    _drafted(
        "spectr",
        "Several draft sequences at once",
        "Sun et al. 2023, SpecTr",
        "the draft samples several sequences and the pass verifies all of them, accepting the longest prefix",
        (_FOUR, Parameter("sequences", 4, "draft sequences (an example)", 1, 64), _accept(None)),
    ),
    _drafted(
        "staged-speculation",
        "A draft that speculates itself",
        "Spector and Re 2023, staged speculative decoding",
        "the draft is drafted for in turn, so that it needs fewer passes for the same tokens",
        (
            _FOUR,
            Parameter("draft_accept", 2.0, "tokens that one pass of the draft yields (an example)", 1, 100),
            _accept(None),
        ),
        covers=("Stage Spec. Decoding", "CS Drafting", "cascade speculative drafting"),
        caveat=f"{_SHARED} What drafts for the draft is free here, as n-grams are.",
    ),
    _drafted(
        "big-little-decoder",
        "A small model that falls back on a large one",
        "Kim et al. 2023, Big Little Decoder",
        "a small model writes until it is unsure, then one pass of the large one checks and corrects what it wrote",
        (
            _length(10, "tokens between two fallbacks, an example"),
            _accept(None),
            Parameter("acceptance", 0.9, "chance that a token of the small model stays (an example)", 0, 1),
        ),
        price=Price.LOSSY,
        covers=("fallback", "BiLD"),
    ),
)


# --- the model drafts for itself --------------------------------------------------------------------------------------


def _self_speculative(scenario: Scenario, values: Values) -> Scenario:
    length = values["length"]
    accepted = _accepted("self-speculative", values, length)
    speculation = Speculation(length, accepted, verified=length, draft_depth=values["depth"])
    return speculate(scenario, "self-speculative", speculation)


def _pass(scenario: Scenario, values: Values) -> Scenario:
    length = values["length"]
    accepted = _accepted("pass", values, length)
    speculation = Speculation(length, accepted, length, draft_depth=1.0, draft_width=length + 1, draft_passes=1)
    return speculate(scenario, "pass", speculation)


def _medusa(scenario: Scenario, values: Values) -> Scenario:
    heads = values["heads"]
    draft = medusa_heads(scenario.model, heads)
    accepted = _accepted("medusa", values, heads)
    speculation = Speculation(heads, accepted, values["tree"] - 1, draft, draft_passes=1)
    return speculate(scenario, "medusa", speculation, tree=True)


def _blockwise(scenario: Scenario, values: Values) -> Scenario:
    heads = values["heads"]
    accepted = _accepted("blockwise-parallel-decoding", values, heads)
    speculation = Speculation(heads, accepted, heads, medusa_heads(scenario.model, heads), draft_passes=1)
    return speculate(scenario, "blockwise-parallel-decoding", speculation)


def _eagle(scenario: Scenario, values: Values) -> Scenario:
    depth, tree = values["depth"], values["tree"]
    accepted = _accepted("eagle", values, depth)
    draft = eagle_layer(scenario.model)
    width = ceil(tree / depth)
    return speculate(
        scenario, "eagle", Speculation(depth, accepted, tree, draft, draft_width=width, shares_ends=True), tree=True
    )


def _multi_token_prediction(scenario: Scenario, values: Values) -> Scenario:
    name, length = "multi-token-prediction", values["length"]
    if not scenario.model.mtp:
        raise UnsupportedError(f"{name} uses modules of the checkpoint, and {scenario.model.name} has none")
    accepted = _accepted(name, {"accept": None, **values}, length)
    draft = prediction_module(scenario.model)
    return speculate(scenario, name, Speculation(length, accepted, length, draft, shares_ends=True))


def _own(
    name: str, title: str, reference: str, effect: str, change: Change, parameters: tuple[Parameter, ...], **more: Any
) -> Technique:
    fields = {"caveat": _TRUST, "parameters": parameters, **more}
    return system_entry(name, title, reference, effect, "drafting", change, **fields)


WITH_OWN_PARTS = (
    _own(
        "self-speculative",
        "The model drafts with a part of its layers",
        "Zhang et al. 2023, Draft and Verify",
        "a part of the model's own layers drafts: no second model in memory, but dear drafts",
        _self_speculative,
        (
            Parameter("depth", 0.5, "share of the layers that draft (an example)", 0.01, 1),
            _length(1, "Table 5 does not say; its acceptance needs one"),
            _least(1.64),
            ACCEPTANCE,
        ),
        covers=("SSD", "self-speculative decoding", "Kangaroo", "LayerSkip"),
        published=_table_5("1.64-1.74", "1.01-1.23"),
        caveat=f"{_TRUST} Verification runs all layers, also those whose results drafting could leave behind.",
    ),
    _own(
        "pass",
        "Lookahead embeddings draft",
        "Monea et al. 2023, PaSS",
        "learned lookahead tokens make one pass of the model draft several tokens, and a second one verify them",
        _pass,
        (_FOUR, _accept(None), ACCEPTANCE),
    ),
    _own(
        "medusa",
        "Heads that predict the tokens after the next",
        "Cai et al. 2024, Medusa",
        "extra heads on the last hidden state draft a tree in one go, which the next pass verifies",
        _medusa,
        (
            Parameter("heads", 4, "heads, as in Table 5", 1, 16),
            _tree(64, "as the released trees, the root included"),
            _least(2.52),
        ),
        covers=("Medusa-1",),
        published=_table_5("2.52-2.62", "2.04-2.86"),
        caveat=(
            f"{_TRUST} Medusa-1 trains its heads for about 24 GPU hours; the upper speed-up published exceeds the "
            "tokens a step, which no schedule allows."
        ),
    ),
    _own(
        "blockwise-parallel-decoding",
        "Blocks of tokens predicted and verified",
        "Stern et al. 2018",
        "extra heads predict a block of positions, of which the longest prefix that the model agrees with stays",
        _blockwise,
        (Parameter("heads", 4, "positions predicted (an example)", 1, 16), _accept(None)),
        price=Price.RETRAINING,
        covers=("Blockwise Parallel Decoding",),
    ),
    _own(
        "eagle",
        "A layer that extrapolates hidden states",
        "Li et al. 2024, EAGLE",
        "one decoder layer fed with the model's hidden states drafts a tree level by level",
        _eagle,
        (
            Parameter("depth", 5, "levels of the tree, as the released tree", 1, 16),
            _tree(25, "as the released tree"),
            _least(3.47),
        ),
        covers=("EAGLE-1", "FeatExtrapolator"),
        published=_table_5("3.47-3.72", "2.77-3.74"),
        caveat=(
            f"{_TRUST} The layer took 96-192 GPU hours to train; the survey's text takes its 3.47-3.72 for the "
            "speed-up, its table for the tokens a step."
        ),
    ),
    _own(
        "multi-token-prediction",
        "Prediction modules of the checkpoint draft",
        "DeepSeek-AI 2024, DeepSeek-V3, section 5.4.3",
        "modules trained with the model, a layer each, draft the tokens after the next",
        _multi_token_prediction,
        (
            _length(1, "as DeepSeek-V3"),
            Parameter("acceptance", 0.85, "chance that a drafted token is accepted", 0, 1),
        ),
        covers=("MTP",),
        published=(
            Published("85-90% of second tokens accepted, 1.8 times the tokens a second", "DeepSeek-V3", "its report"),
        ),
        caveat=f"{_TRUST} A module that is used for several tokens is taken to be accepted each time alike.",
    ),
)


# --- drafts that cost nothing -----------------------------------------------------------------------------------------


def _free(name: str) -> Change:
    """Drafts looked up: a sequence of `length`, or a tree of that depth where one is given."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        length = values["length"]
        accepted = _accepted(name, values, length)
        verified = values.get("tree", length)
        return speculate(scenario, name, Speculation(length, accepted, verified), tree=verified > length)

    return change


def _lookahead(scenario: Scenario, values: Values) -> Scenario:
    name, size = "lookahead", values["ngram"]
    accepted = _accepted(name, values, size - 1)
    # Both branches run size - 1 tokens for each place of their window; the current token is one of them.
    tokens = (values["window"] + values["guesses"]) * (size - 1)
    return speculate(scenario, name, Speculation(size - 1, accepted, tokens - 1), tree=True)


WITHOUT_DRAFT = (
    _own(
        "rest",
        "Drafts retrieved from a datastore",
        "He et al. 2023, REST",
        "continuations of the last tokens in a datastore become a tree that one pass verifies, at no cost of drafting",
        _free("rest"),
        (_length(10, "depth of the tree, an example"), _tree(64, "at most, as released"), _least(2.18)),
        covers=("retrieval-based drafting",),
        published=_table_5("2.18-2.31", "1.72-2.27"),
        caveat=f"{_TRUST} The retrieval, on the host, is left out.",
    ),
    _own(
        "prompt-lookup",
        "Drafts copied from the context",
        "Yang et al. 2023, LLMA; Ge et al. 2022, aggressive decoding",
        "what followed the last tokens earlier in the context is verified as a draft, at no cost of drafting",
        _free("prompt-lookup"),
        (_length(10, "an example"), _accept(None), ACCEPTANCE),
        covers=("LLMA", "aggressive decoding"),
    ),
    _own(
        "lookahead",
        "N-grams from Jacobi iterations",
        "Fu et al. 2024, lookahead decoding",
        "every pass carries a window that collects n-grams and others that are verified: many more tokens a pass",
        _lookahead,
        (
            Parameter("window", 7, "places of the lookahead branch, as released", 1, 1000),
            Parameter("ngram", 5, "length of the n-grams, as released", 2, 32),
            Parameter("guesses", 7, "n-grams verified, as released", 1, 1000),
            _least(1.92),
        ),
        covers=("LADE", "lookahead-decoding"),
        published=_table_5("1.92-2.14", "1.12-1.30"),
    ),
    _own(
        "jacobi",
        "Parallel decoding by fixed-point iteration",
        "Santilli et al. 2023; Song et al. 2021",
        "a block of guesses is recomputed in parallel until it no longer changes; what is settled is kept",
        _free("jacobi"),
        (
            _length(8, "tokens of the block, an example"),
            _accept(1.0, "1: no gain, as hardly any is reported for language models"),
        ),
        covers=("parallel decoding", "Gauss-Seidel", "parallel-decoding"),
    ),
    system_entry(
        "non-autoregressive",
        "All tokens at once",
        "Gu et al. 2018; Ghazvininejad et al. 2019; Miao et al. 2023, section 3.1.1",
        "a model trained for it predicts all output tokens, or groups of them, in a few parallel passes",
        "drafting",
        None,
        price=Price.RETRAINING,
        covers=("NAT", "non-autoregressive decoding", "semi-autoregressive decoding", "iterative refinement"),
        caveat=(
            "it takes another model, without a causal mask over its output, and a number of refinements that decides "
            "quality; none of the bundled models decodes so"
        ),
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*WITH_DRAFT_MODEL, *WITH_OWN_PARTS, *WITHOUT_DRAFT)
