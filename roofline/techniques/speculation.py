"""Speculative decoding: a draft proposes tokens, and the model verifies them in one pass."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Any

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.scenario.speculation import Speculation, accepted_tokens
from roofline.specs.model import Attention, LatentAttention
from roofline.techniques.acceptance import TASKS, as_published, published_acceptance
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
from roofline.techniques.drafts import draft_model

TABLE_5 = f"{SURVEY}, Table 5"
_CONDITIONS = (
    "Vicuna 7B, 13B and 33B, LLaMA-2 7B and 13B, Vicuna-80 prompts; GPU, batch, precision and draft length not stated"
)
INPUT = "The accepted tokens per iteration depend on texts and models and are an input, not a prediction."

OF_ANOTHER = (
    "Accepted tokens are those published for the model and the task, or for another model where it has none; drafts of"
    " other training differ."
)

entry = partial(system_technique, caveat=INPUT)


def speculate(scenario: Scenario, name: str, speculation: Speculation, tree: bool = False) -> Scenario:
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


def as_measured(scenario: Scenario, name: str, values: Values, length: int, tree: bool = False) -> tuple[float, str]:
    """Tokens per iteration as given, else as published for the model and the task, and where those were measured."""
    row = published_acceptance(name, scenario.model.name, values["task"], tree)
    if row is None or not {values["accept"], values["acceptance"]} <= {None}:
        return accepted_of(name, values, length), ""
    return row.of_length(length), f"{row.where} ({row.source})"


def accepted_of(name: str, values: Values, length: int) -> float:
    """Tokens per iteration: from the acceptance rate if there is one, else `accept`."""
    if values.get("acceptance") is not None:
        return accepted_tokens(values["acceptance"], length)
    if values.get("accept") is None:
        other = " or acceptance" if "acceptance" in values else ""
        raise RooflineError(f"{name} needs accept{other}: no published mean holds in general")
    return float(values["accept"])


def accept(default: float | None = None, source: str = "no default is published") -> Parameter:
    """The parameter for tokens per iteration; `source` says where its default comes from."""
    return Parameter("accept", default, f"tokens per iteration, including the model's own ({source})", 1, 1000)


def lowest_in_table_5(default: float) -> Parameter:
    """The same with the lowest tokens of a method in Table 5 of the survey."""
    return accept(default, f"the lowest in {TABLE_5}")


def acceptance(default: float | None = None, note: str = "overrides accept") -> Parameter:
    """The parameter for the acceptance rate of a draft token."""
    return Parameter(
        "acceptance", default, f"acceptance rate: probability that a draft token is accepted; {note}", 0, 1
    )


def task() -> Parameter:
    """The parameter for the task whose published acceptance is used."""
    return Parameter("task", TASKS[0], f"task of the published acceptance: {', '.join(TASKS)}")


BY_MODEL = accept(None, "that published for the model and the task")


def draft_length(default: int, source: str) -> Parameter:
    """The parameter for draft tokens in a row."""
    return Parameter("length", default, f"draft tokens per iteration ({source})", 1, 100)


def tree_size(default: int, source: str) -> Parameter:
    """The parameter for the tokens of a tree."""
    return Parameter("tree", default, f"tokens of the verified tree ({source})", 1, 4096)


def from_table_5(accepted: str, gain: str) -> tuple[Published, ...]:
    """The published effect of a method in Table 5 of the survey."""
    return (Published(f"{accepted} tokens a step, {gain} times as fast", _CONDITIONS, TABLE_5),)


# --- a draft model ----------------------------------------------------------------------------------------------------


def _draft_model(name: str) -> Change:
    """A smaller model drafts one or more sequences or a tree; `draft_accept` is its own speculative decoding."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        length, width = values["length"], values.get("sequences", 1)
        accepted = min(accepted_of(name, values, length) * values.get("gain", 1.0), length + 1)
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


FOUR = draft_length(4, "as in Chen et al. 2023")
_SAME_VOCABULARY = f"{INPUT} Both models must have the same vocabulary, which is not checked."


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
    return entry(
        name, title, reference, effect, "speculative decoding", change, draft, *parameters, caveat=caveat, **rest
    )


WITH_DRAFT_MODEL = (
    _with_draft_model(
        "speculative-decoding",
        "Speculative decoding with a draft model",
        "Leviathan et al. 2023; Chen et al. 2023",
        "A small model drafts tokens one by one, and one pass of the model verifies all of them: more FLOPs, weights"
        " read once for several tokens.",
        FOUR,
        lowest_in_table_5(1.77),
        acceptance(),
        covers=("SpD", "speculative sampling", "draft-model", "speculative decoding"),
        published=(
            *from_table_5("1.77-2.02", "1.05-1.77"),
            Published("(1 - a^(g+1)) / (1 - a) tokens an iteration", "closed form", "Leviathan et al. 2023"),
        ),
        caveat=f"{_SAME_VOCABULARY} Training the draft of Table 5 took 275 GPU hours.",
    ),
    _with_draft_model(
        "distillspec",
        "DistillSpec: a draft model distilled from its target",
        "Zhou et al. 2023, DistillSpec",
        "A draft model trained on the target's outputs has a higher acceptance rate; the passes stay the same.",
        FOUR,
        lowest_in_table_5(1.77),
        acceptance(),
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
        draft_length(8, "depth of the tree, as SpecInfer's expansion 1,1,3,1,1,1,1,1"),
        tree_size(20, "the size of that expansion"),
        accept(),
        covers=("tree attention", "LLMCad"),
        caveat=f"{_SAME_VOCABULARY} Several draft models in parallel are simulated as one wider draft step.",
    ),
    _with_draft_model(
        "sequoia",
        "Sequoia: token trees shaped for the hardware",
        "Chen et al. 2024, Sequoia",
        "The size and depth of the verified tree fit the hardware: large trees where bandwidth is scarce.",
        draft_length(6, "an example"),
        tree_size(64, "an example"),
        accept(),
        caveat=f"{_SAME_VOCABULARY} The search for the best tree is not simulated.",
    ),
    _with_draft_model(
        "spectr",
        "SpecTr: several draft sequences",
        "Sun et al. 2023, SpecTr",
        "The draft model samples several sequences; one pass verifies all and accepts the longest prefix.",
        FOUR,
        Parameter("sequences", 4, "draft sequences (an example)", 1, 64),
        accept(),
    ),
    _with_draft_model(
        "staged-speculation",
        "Staged speculative decoding: the draft model speculates too",
        "Spector and Re 2023, staged speculative decoding",
        "The draft model uses speculative decoding itself, so that it needs fewer passes for the same tokens.",
        FOUR,
        Parameter("draft_accept", 2.0, "tokens per pass of the draft model (an example)", 1, 100),
        accept(),
        covers=("Stage Spec. Decoding", "CS Drafting", "cascade speculative drafting"),
        caveat=f"{_SAME_VOCABULARY} The draft of the draft model costs nothing, like n-grams.",
    ),
    _with_draft_model(
        "big-little-decoder",
        "Big Little Decoder: a small model with fallback to a large one",
        "Kim et al. 2023, Big Little Decoder",
        "A small model generates until its confidence is low; one pass of the large model then checks and corrects.",
        draft_length(10, "tokens between two fallbacks, an example"),
        accept(),
        acceptance(0.9, "overrides accept (an example)"),
        price=Price.LOSSY,
        covers=("fallback", "BiLD"),
    ),
)


# --- drafts without a network -----------------------------------------------------------------------------------------


def _lookup(name: str) -> Change:
    """Drafts that cost nothing: a sequence of `length`, or a tree of that depth and `tree` tokens."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        length = values["length"]
        accepted = accepted_of(name, values, length)
        verified = values.get("tree", length)
        return speculate(scenario, name, Speculation(length, accepted, verified), tree=verified > length)

    return change


def _prompt_lookup(scenario: Scenario, values: Values) -> Scenario:
    name, length = "prompt-lookup", values["length"]
    accepted, measured = as_measured(scenario, name, values, length)
    return speculate(scenario, name, Speculation(length, accepted, length, measured=measured))


def _lookahead(scenario: Scenario, values: Values) -> Scenario:
    name, size = "lookahead", values["ngram"]
    accepted = accepted_of(name, values, size - 1)
    # Each position of the window and each guess takes size - 1 tokens; the current token is one of them.
    tokens = (values["window"] + values["guesses"]) * (size - 1)
    speculation = Speculation(size - 1, accepted, tokens - 1, slowdown=values["slowdown"])
    return speculate(scenario, name, speculation, tree=True)


def _refined(scenario: Scenario, values: Values) -> Scenario:
    """Groups of tokens that are recomputed `refinements` times: tokens / refinements a pass."""
    name, tokens = "non-autoregressive", values["tokens"]
    if values["refinements"] > tokens:
        raise RooflineError(f"{name}: {values['refinements']} refinements of {tokens} tokens are slower than decoding")
    return speculate(scenario, name, Speculation(tokens - 1, tokens / values["refinements"], tokens - 1), tree=True)


WITHOUT_NETWORK = (
    entry(
        "rest",
        "REST: drafts retrieved from a datastore",
        "He et al. 2023, REST",
        "Continuations of the last tokens in a datastore form a tree that one pass verifies; drafts cost nothing.",
        "speculative decoding",
        _lookup("rest"),
        draft_length(10, "depth of the tree, an example"),
        tree_size(64, "at most, as released"),
        lowest_in_table_5(2.18),
        covers=("retrieval-based drafting",),
        published=from_table_5("2.18-2.31", "1.72-2.27"),
        caveat=f"{INPUT} Retrieval on the CPU is not counted.",
    ),
    entry(
        "prompt-lookup",
        "Prompt lookup: n-gram drafts copied from the context",
        "Yang et al. 2023, LLMA; Ge et al. 2022, aggressive decoding",
        "The tokens after an earlier occurrence of the last tokens are verified as a draft; drafts cost nothing.",
        "speculative decoding",
        _prompt_lookup,
        draft_length(10, "as released by Saxena 2023, prompt lookup decoding"),
        task(),
        BY_MODEL,
        acceptance(),
        covers=("LLMA", "aggressive decoding"),
        published=as_published("prompt-lookup"),
        caveat=f"{OF_ANOTHER} Matching n-grams on the CPU is not counted.",
    ),
    entry(
        "lookahead",
        "Lookahead decoding: n-grams from Jacobi iterations",
        "Fu et al. 2024, lookahead decoding",
        "Every pass extends n-grams in a window and verifies others: many more tokens per pass.",
        "speculative decoding",
        _lookahead,
        Parameter("window", 7, "positions of the lookahead branch, as released", 1, 1000),
        Parameter("ngram", 5, "length of the n-grams, as released", 2, 32),
        Parameter("guesses", 7, "n-grams verified, as released", 1, 1000),
        lowest_in_table_5(1.92),
        Parameter(
            "slowdown", 1.65, f"time of an iteration over that of its pass (2.14 tokens over 1.30, {TABLE_5})", 1, 10
        ),
        covers=("LADE", "lookahead-decoding"),
        published=(
            *from_table_5("1.92-2.14", "1.12-1.30"),
            Published("1.63 times as fast at 1.69 tokens a step", "Vicuna-7B, MT-Bench", "Li et al. 2024, EAGLE-2"),
        ),
        caveat=f"{INPUT} The slowdown is that of the released PyTorch code, which keeps its n-grams on the CPU, in the"
        " survey's measurement; EAGLE-2's authors measured next to none, and kernels that build the drafts have none"
        " (slowdown=1). It is in expected times only.",
    ),
    entry(
        "jacobi",
        "Jacobi decoding: parallel fixed-point iteration",
        "Santilli et al. 2023; Song et al. 2021",
        "A block of draft tokens is recomputed in parallel until it converges; the converged prefix is accepted.",
        "speculative decoding",
        _lookup("jacobi"),
        draft_length(8, "tokens of the block, an example"),
        accept(1.0, "1: no gain, since language models report hardly any"),
        covers=("parallel decoding", "Gauss-Seidel", "parallel-decoding"),
    ),
    entry(
        "non-autoregressive",
        "Non-autoregressive decoding",
        f"Gu et al. 2018; Ghazvininejad et al. 2019; {GENERATIVE_SURVEY}, section 3.1.1",
        "A model trained for it predicts all output tokens, or groups of them, in a few parallel passes.",
        "speculative decoding",
        _refined,
        Parameter("tokens", 30, "output tokens predicted together (an example: a sentence)", 1, 4096),
        Parameter("refinements", 10, "passes until they are final (Ghazvininejad et al. 2019: 4 to 10)", 1, 4096),
        price=Price.RETRAINING,
        covers=("NAT", "non-autoregressive decoding", "semi-autoregressive decoding", "iterative refinement"),
        caveat="The model is one of the same shape that was trained for it: its tokens attend to all others of the"
        " group, of which half are counted. Quality falls with fewer refinements and is not simulated.",
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*WITH_DRAFT_MODEL, *WITHOUT_NETWORK)
