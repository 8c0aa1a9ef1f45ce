"""Speculative decoding: a draft proposes tokens, and the model verifies them in one pass."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Any

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Speculation, accepted_tokens
from roofline.specs.model import Attention, LatentAttention
from roofline.techniques.base import (
    GENERATIVE_SURVEY,
    SURVEY,
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    system_technique,
)
from roofline.techniques.changes import require_generation, with_settings
from roofline.techniques.drafts import draft_model, eagle_layer, medusa_heads, prediction_module

TABLE_5 = f"{SURVEY}, Table 5"
_CONDITIONS = (
    "Vicuna 7B, 13B and 33B, LLaMA-2 7B and 13B, Vicuna-80 prompts; GPU, batch, precision and draft length not stated"
)
_INPUT = "The accepted tokens per iteration depend on texts and models and are an input, not a prediction."

_entry = partial(system_technique, caveat=_INPUT)


def _speculate(scenario: Scenario, name: str, speculation: Speculation, tree: bool = False) -> Scenario:
    """The scenario with speculative decoding; raises RooflineError where more tokens are accepted than drafted."""
    require_generation(scenario, name)
    model = scenario.model
    if speculation.accepted > speculation.length + 1:
        raise RooflineError(
            f"{name} cannot yield {speculation.accepted:g} tokens an iteration:"
            f" it drafts {speculation.length} and the model adds one"
        )
    if tree and any(not isinstance(group.layer.mixer, Attention | LatentAttention) for group in model.groups):
        raise UnsupportedError(f"{name} verifies a token tree, which the recurrent layers of {model.name} cannot do")
    return with_settings(scenario, speculation=speculation)


def _accepted(name: str, values: Values, length: int) -> float:
    """Tokens per iteration: from the acceptance rate if there is one, else `accept`."""
    if values.get("acceptance") is not None:
        return accepted_tokens(values["acceptance"], length)
    if values.get("accept") is None:
        other = " or acceptance" if "acceptance" in values else ""
        raise RooflineError(f"{name} needs accept{other}: no published mean holds in general")
    return float(values["accept"])


def _accept(default: float | None = None, source: str = "no default is published") -> Parameter:
    return Parameter("accept", default, f"tokens per iteration, including the model's own ({source})", 1, 1000)


def _lowest_in_table_5(default: float) -> Parameter:
    return _accept(default, f"the lowest in {TABLE_5}")


def _acceptance(default: float | None = None, note: str = "overrides accept") -> Parameter:
    return Parameter(
        "acceptance", default, f"acceptance rate: probability that a draft token is accepted; {note}", 0, 1
    )


def _length(default: int, source: str) -> Parameter:
    return Parameter("length", default, f"draft tokens per iteration ({source})", 1, 100)


def _tree(default: int, source: str) -> Parameter:
    return Parameter("tree", default, f"tokens of the verified tree ({source})", 1, 4096)


def _table_5(accepted: str, gain: str) -> tuple[Published, ...]:
    return (Published(f"{accepted} tokens a step, {gain} times as fast", _CONDITIONS, TABLE_5),)


# --- a draft model ----------------------------------------------------------------------------------------------------


def _draft_model(name: str) -> Change:
    """A smaller model drafts one or more sequences or a tree; `draft_accept` is its own speculative decoding."""

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
        return _speculate(scenario, name, speculation, tree=speculation.verified > length)

    return change


_FOUR = _length(4, "as in Chen et al. 2023")
_SAME_VOCABULARY = f"{_INPUT} Both models must have the same vocabulary, which is not checked."


def _with_draft_model(
    name: str,
    title: str,
    reference: str,
    effect: str,
    *parameters: Parameter,
    caveat: str = _SAME_VOCABULARY,
    **rest: Any,
) -> Technique:
    draft = Parameter("draft", None, "draft model with the same vocabulary")
    change = _draft_model(name)
    return _entry(
        name, title, reference, effect, "speculative decoding", change, draft, *parameters, caveat=caveat, **rest
    )


WITH_DRAFT_MODEL = (
    _with_draft_model(
        "speculative-decoding",
        "Speculative decoding with a draft model",
        "Leviathan et al. 2023; Chen et al. 2023",
        "A small model drafts tokens one by one, and one pass of the model verifies all of them: more FLOPs, weights"
        " read once for several tokens.",
        _FOUR,
        _lowest_in_table_5(1.77),
        _acceptance(),
        covers=("SpD", "speculative sampling", "draft-model", "speculative decoding"),
        published=(
            *_table_5("1.77-2.02", "1.05-1.77"),
            Published("(1 - a^(g+1)) / (1 - a) tokens an iteration", "closed form", "Leviathan et al. 2023"),
        ),
        caveat=f"{_SAME_VOCABULARY} Training the draft of Table 5 took 275 GPU hours.",
    ),
    _with_draft_model(
        "distillspec",
        "DistillSpec: a draft model distilled from its target",
        "Zhou et al. 2023, DistillSpec",
        "A draft model trained on the target's outputs has a higher acceptance rate; the passes stay the same.",
        _FOUR,
        _lowest_in_table_5(1.77),
        _acceptance(),
        Parameter("gain", 1.1, "factor on the tokens per iteration", 1, 10),
        covers=("OSD", "Online SD", "online speculative decoding"),
        published=(
            Published("10-45% faster than with the undistilled draft", "not stated", "Yuan et al. 2024, section 4.2.1"),
        ),
        caveat=f"{_SAME_VOCABULARY} The published gain is in latency; here it multiplies the accepted tokens.",
    ),
    _with_draft_model(
        "specinfer",
        "SpecInfer: token tree verification",
        "Miao et al. 2023, SpecInfer",
        "Drafts branch into a tree that one pass verifies: more tokens verified, a longer accepted path.",
        _length(8, "depth of the tree, as SpecInfer's expansion 1,1,3,1,1,1,1,1"),
        _tree(20, "the size of that expansion"),
        _accept(),
        covers=("tree attention", "LLMCad"),
        caveat=f"{_SAME_VOCABULARY} Several draft models in parallel are simulated as one wider draft step.",
    ),
    _with_draft_model(
        "sequoia",
        "Sequoia: token trees shaped for the hardware",
        "Chen et al. 2024, Sequoia",
        "The size and depth of the verified tree fit the hardware: large trees where bandwidth is scarce.",
        _length(6, "an example"),
        _tree(64, "an example"),
        _accept(),
        caveat=f"{_SAME_VOCABULARY} The search for the best tree is not simulated.",
    ),
    _with_draft_model(
        "spectr",
        "SpecTr: several draft sequences",
        "Sun et al. 2023, SpecTr",
        "The draft model samples several sequences; one pass verifies all and accepts the longest prefix.",
        _FOUR,
        Parameter("sequences", 4, "draft sequences (an example)", 1, 64),
        _accept(),
    ),
    _with_draft_model(
        "staged-speculation",
        "Staged speculative decoding: the draft model speculates too",
        "Spector and Re 2023, staged speculative decoding",
        "The draft model uses speculative decoding itself, so that it needs fewer passes for the same tokens.",
        _FOUR,
        Parameter("draft_accept", 2.0, "tokens per pass of the draft model (an example)", 1, 100),
        _accept(),
        covers=("Stage Spec. Decoding", "CS Drafting", "cascade speculative drafting"),
        caveat=f"{_SAME_VOCABULARY} The draft of the draft model costs nothing, like n-grams.",
    ),
    _with_draft_model(
        "big-little-decoder",
        "Big Little Decoder: a small model with fallback to a large one",
        "Kim et al. 2023, Big Little Decoder",
        "A small model generates until its confidence is low; one pass of the large model then checks and corrects.",
        _length(10, "tokens between two fallbacks, an example"),
        _accept(),
        _acceptance(0.9, "overrides accept (an example)"),
        price=Price.LOSSY,
        covers=("fallback", "BiLD"),
    ),
)


# --- self-speculation -------------------------------------------------------------------------------------------------


def _self_speculative(scenario: Scenario, values: Values) -> Scenario:
    name, length = "self-speculative", values["length"]
    accepted = _accepted(name, values, length)
    return _speculate(scenario, name, Speculation(length, accepted, verified=length, draft_depth=values["depth"]))


def _pass(scenario: Scenario, values: Values) -> Scenario:
    length = values["length"]
    accepted = _accepted("pass", values, length)
    speculation = Speculation(length, accepted, length, draft_depth=1.0, draft_width=length + 1, draft_passes=1)
    return _speculate(scenario, "pass", speculation)


def _heads(name: str) -> Change:
    """Extra output heads that draft a sequence, or the tree given by `tree`, in one pass."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        heads = values["heads"]
        draft = medusa_heads(scenario.model, heads)
        verified = values["tree"] - 1 if "tree" in values else heads
        speculation = Speculation(heads, _accepted(name, values, heads), verified, draft, draft_passes=1)
        return _speculate(scenario, name, speculation, tree="tree" in values)

    return change


def _eagle(scenario: Scenario, values: Values) -> Scenario:
    depth, tree = values["depth"], values["tree"]
    accepted = _accepted("eagle", values, depth)
    draft = eagle_layer(scenario.model)
    speculation = Speculation(depth, accepted, tree, draft, draft_width=ceil(tree / depth), shares_ends=True)
    return _speculate(scenario, "eagle", speculation, tree=True)


def _multi_token_prediction(scenario: Scenario, values: Values) -> Scenario:
    name, length = "multi-token-prediction", values["length"]
    if not scenario.model.mtp:
        raise UnsupportedError(f"{name} needs MTP modules in the checkpoint, and {scenario.model.name} has none")
    draft = prediction_module(scenario.model)
    accepted = _accepted(name, values, length)
    return _speculate(scenario, name, Speculation(length, accepted, length, draft, shares_ends=True))


SELF_SPECULATION = (
    _entry(
        "self-speculative",
        "Self-speculative decoding: drafts from a subset of the layers",
        "Zhang et al. 2023, Draft and Verify",
        "A subset of the model's own layers drafts: no second model in memory, but expensive drafts.",
        "speculative decoding",
        _self_speculative,
        Parameter("depth", 0.5, "fraction of the layers that draft (an example)", 0.01, 1),
        _length(1, "not stated in Table 5; its accepted tokens need one"),
        _lowest_in_table_5(1.64),
        _acceptance(),
        covers=("SSD", "self-speculative decoding", "Kangaroo", "LayerSkip"),
        published=_table_5("1.64-1.74", "1.01-1.23"),
        caveat=f"{_INPUT} Verification runs all layers, also those whose draft results could be reused.",
    ),
    _entry(
        "pass",
        "PaSS: drafts from lookahead embeddings",
        "Monea et al. 2023, PaSS",
        "Learned lookahead tokens let one pass of the model draft several tokens, and a second pass verifies them.",
        "speculative decoding",
        _pass,
        _FOUR,
        _accept(),
        _acceptance(),
    ),
    _entry(
        "medusa",
        "Medusa: extra heads that predict later tokens",
        "Cai et al. 2024, Medusa",
        "Extra heads on the last hidden state draft a tree in one pass, which the next pass verifies.",
        "speculative decoding",
        _heads("medusa"),
        Parameter("heads", 4, "heads, as in Table 5", 1, 16),
        _tree(64, "as the released trees, including the root"),
        _lowest_in_table_5(2.52),
        covers=("Medusa-1",),
        published=_table_5("2.52-2.62", "2.04-2.86"),
        caveat=f"{_INPUT} Medusa-1 trains its heads for about 24 GPU hours; the highest published speed-up exceeds the"
        " tokens per step, which is impossible.",
    ),
    _entry(
        "blockwise-parallel-decoding",
        "Blockwise parallel decoding",
        "Stern et al. 2018",
        "Extra heads predict a block of positions, and the longest prefix that the model agrees with is accepted.",
        "speculative decoding",
        _heads("blockwise-parallel-decoding"),
        Parameter("heads", 4, "positions predicted (an example)", 1, 16),
        _accept(),
        price=Price.RETRAINING,
        covers=("Blockwise Parallel Decoding",),
    ),
    _entry(
        "eagle",
        "EAGLE: a draft layer on the hidden states",
        "Li et al. 2024, EAGLE",
        "One decoder layer on the model's hidden states drafts a token tree level by level.",
        "speculative decoding",
        _eagle,
        Parameter("depth", 5, "levels of the tree, as in the released tree", 1, 16),
        _tree(25, "as the released tree"),
        _lowest_in_table_5(3.47),
        covers=("EAGLE-1", "FeatExtrapolator"),
        published=_table_5("3.47-3.72", "2.77-3.74"),
        caveat=f"{_INPUT} Training the layer took 96-192 GPU hours; 3.47-3.72 is the speed-up in the survey's text but"
        " the tokens per step in its table.",
    ),
    _entry(
        "multi-token-prediction",
        "Multi-token prediction (MTP): drafts from MTP modules of the checkpoint",
        "DeepSeek-AI 2024, DeepSeek-V3, section 5.4.3",
        "MTP modules, trained with the model and one layer each, draft the next tokens.",
        "speculative decoding",
        _multi_token_prediction,
        _length(1, "as DeepSeek-V3"),
        Parameter("acceptance", 0.85, "acceptance rate: probability that a draft token is accepted", 0, 1),
        covers=("MTP",),
        published=(
            Published("85-90% of second tokens accepted, 1.8 times the tokens a second", "DeepSeek-V3", "its report"),
        ),
        caveat=f"{_INPUT} A module used for several tokens is assumed to have the same acceptance rate for each.",
    ),
)


# --- drafts without a network -----------------------------------------------------------------------------------------


def _lookup(name: str) -> Change:
    """Drafts that cost nothing: a sequence of `length`, or a tree of that depth and `tree` tokens."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        length = values["length"]
        accepted = _accepted(name, values, length)
        verified = values.get("tree", length)
        return _speculate(scenario, name, Speculation(length, accepted, verified), tree=verified > length)

    return change


def _lookahead(scenario: Scenario, values: Values) -> Scenario:
    name, size = "lookahead", values["ngram"]
    accepted = _accepted(name, values, size - 1)
    # Each position of the window and each guess takes size - 1 tokens; the current token is one of them.
    tokens = (values["window"] + values["guesses"]) * (size - 1)
    return _speculate(scenario, name, Speculation(size - 1, accepted, tokens - 1), tree=True)


WITHOUT_NETWORK = (
    _entry(
        "rest",
        "REST: drafts retrieved from a datastore",
        "He et al. 2023, REST",
        "Continuations of the last tokens in a datastore form a tree that one pass verifies; drafts cost nothing.",
        "speculative decoding",
        _lookup("rest"),
        _length(10, "depth of the tree, an example"),
        _tree(64, "at most, as released"),
        _lowest_in_table_5(2.18),
        covers=("retrieval-based drafting",),
        published=_table_5("2.18-2.31", "1.72-2.27"),
        caveat=f"{_INPUT} Retrieval on the CPU is not counted.",
    ),
    _entry(
        "prompt-lookup",
        "Prompt lookup: n-gram drafts copied from the context",
        "Yang et al. 2023, LLMA; Ge et al. 2022, aggressive decoding",
        "The tokens after an earlier occurrence of the last tokens are verified as a draft; drafts cost nothing.",
        "speculative decoding",
        _lookup("prompt-lookup"),
        _length(10, "an example"),
        _accept(),
        _acceptance(),
        covers=("LLMA", "aggressive decoding"),
    ),
    _entry(
        "lookahead",
        "Lookahead decoding: n-grams from Jacobi iterations",
        "Fu et al. 2024, lookahead decoding",
        "Every pass extends n-grams in a window and verifies others: many more tokens per pass.",
        "speculative decoding",
        _lookahead,
        Parameter("window", 7, "positions of the lookahead branch, as released", 1, 1000),
        Parameter("ngram", 5, "length of the n-grams, as released", 2, 32),
        Parameter("guesses", 7, "n-grams verified, as released", 1, 1000),
        _lowest_in_table_5(1.92),
        covers=("LADE", "lookahead-decoding"),
        published=_table_5("1.92-2.14", "1.12-1.30"),
    ),
    _entry(
        "jacobi",
        "Jacobi decoding: parallel fixed-point iteration",
        "Santilli et al. 2023; Song et al. 2021",
        "A block of draft tokens is recomputed in parallel until it converges; the converged prefix is accepted.",
        "speculative decoding",
        _lookup("jacobi"),
        _length(8, "tokens of the block, an example"),
        _accept(1.0, "1: no gain, since language models report hardly any"),
        covers=("parallel decoding", "Gauss-Seidel", "parallel-decoding"),
    ),
    _entry(
        "non-autoregressive",
        "Non-autoregressive decoding",
        f"Gu et al. 2018; Ghazvininejad et al. 2019; {GENERATIVE_SURVEY}, section 3.1.1",
        "A model trained for it predicts all output tokens, or groups of them, in a few parallel passes.",
        "speculative decoding",
        None,
        price=Price.RETRAINING,
        covers=("NAT", "non-autoregressive decoding", "semi-autoregressive decoding", "iterative refinement"),
        caveat="it needs a model without a causal mask over its output, and a number of refinements that determines"
        " quality; no bundled model decodes this way",
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*WITH_DRAFT_MODEL, *SELF_SPECULATION, *WITHOUT_NETWORK)
