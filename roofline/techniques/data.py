"""Data-level techniques, which change the workload: prompts, retrieval, answers in parallel parts, cascades."""

from __future__ import annotations

from typing import Any

from roofline.core.errors import UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Cascade
from roofline.techniques.base import (
    SURVEY,
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    data_technique,
)
from roofline.techniques.changes import (
    require_generation,
    scaled_tokens,
    with_cached_prefix,
    with_settings,
    with_tokens,
)
from roofline.techniques.drafts import draft_model

_QUALITY = "The quality loss of the answer is not simulated."

# --- shorter prompts --------------------------------------------------------------------------------------------------


def _shorter(scenario: Scenario, values: Values) -> Scenario:
    return with_tokens(scenario, prompt=scaled_tokens(scenario.prompt, values["keep"]))


_KEPT = "Fewer prompt tokens: less compute in prefill, and a smaller KV cache."
_SUMMARY = "The prompt is replaced by a summary: fewer tokens in prefill and in the KV cache."
_SOFT = "The context is replaced by a few learned tokens: fewer tokens to attend to and in the KV cache."
_COMPRESSION = f"{_QUALITY} The pass that compresses the context is not counted."


PRUNED = "prompt-pruning"


def _pruning(
    name: str,
    title: str,
    reference: str,
    keep: float,
    source: str,
    *covers: str,
    effect: str = _KEPT,
    caveat: str = f"{_QUALITY} The model that selects or rewrites tokens is not counted.",
    **rest: Any,
) -> Technique:
    """An entry that keeps a fraction of the prompt's tokens."""
    kept = Parameter("keep", keep, f"fraction of the prompt's tokens kept ({source})", 1e-6, 1)
    return data_technique(
        name, title, reference, effect, "prompt", _shorter, kept, covers=covers, caveat=caveat, same_as=PRUNED, **rest
    )


SHORTER_PROMPTS = (
    _pruning(
        "prompt-pruning",
        "Prompt pruning",
        f"{SURVEY}, section 4.1.1",
        0.5,
        "an example; DYNAICL reports 46% of tokens saved, PCRL 24.6%",
        *("prompt pruning", "input compression", "context compression", "DYNAICL", "STDC", "PCRL", "CoT-Influx"),
    ),
    _pruning(
        "llmlingua",
        "LLMLingua: demonstrations and tokens pruned by perplexity",
        "Jiang et al. 2023, LLMLingua",
        0.05,
        "abstract: up to 20 times fewer",
    ),
    _pruning(
        "longllmlingua",
        "LongLLMLingua: long contexts pruned by relevance to the question",
        "Jiang et al. 2023, LongLLMLingua",
        0.25,
        "abstract: about 4 times fewer",
        "sequence compression",
    ),
    _pruning(
        "selective-context",
        "Selective Context: lexical units of low self-information removed",
        "Li et al. 2023, Selective Context",
        0.5,
        "abstract: half of the context",
        "Selective Context",
    ),
    _pruning(
        "recomp",
        "RECOMP: extractive or abstractive summaries of retrieved documents",
        "Xu et al. 2023, RECOMP",
        0.06,
        "abstract: compression down to 6%",
        effect=_SUMMARY,
    ),
    _pruning(
        "semantic-compression",
        "Semantic compression: text rewritten without redundancy",
        "Fei et al. 2023, semantic compression",
        0.15,
        "abstract: texts 6 to 8 times as long fit",
        "SemanticCompression",
        "prompt summary",
        effect=_SUMMARY,
    ),
    _pruning(
        "autocompressors",
        "AutoCompressors: segments compressed into summary vectors",
        "Chevalier et al. 2023, AutoCompressors",
        0.25,
        "an example",
        "summary tokens",
        "landmark tokens",
        effect=_SOFT,
        caveat=_COMPRESSION,
        price=Price.RETRAINING,
    ),
    _pruning(
        "icae",
        "ICAE: the context encoded into memory slots",
        "Ge et al. 2023, ICAE",
        0.25,
        "abstract: 4 times fewer",
        "auto-encoders",
        effect=_SOFT,
        caveat=_COMPRESSION,
        price=Price.RETRAINING,
    ),
)


def _soft_prefix(scenario: Scenario, values: Values) -> Scenario:
    """A fixed part of the prompt becomes a few learned tokens, computed once and cached."""
    return with_cached_prefix(scenario, values["fixed"], replaced_by=values["tokens"])


def _soft(name: str, title: str, reference: str, tokens: int, *covers: str) -> Technique:
    return data_technique(
        name,
        title,
        reference,
        "A fixed part of the prompt is replaced by a few learned tokens that are in the KV cache from the start.",
        "prompt",
        _soft_prefix,
        Parameter("fixed", 0.5, "fraction of the prompt that all requests have in common (an example)", 0, 1),
        Parameter("tokens", tokens, "learned tokens that replace it (an example)", 1, 100_000),
        price=Price.RETRAINING,
        covers=covers,
        same_as="gisting",
        caveat=f"{_QUALITY} The learned tokens are cached for every sequence.",
    )


SOFT_PROMPTS = (
    _soft("gisting", "Instructions compressed into gist tokens", "Mu et al. 2023, gist tokens", 1, "gist tokens"),
    _soft(
        "soft-prompt",
        "Fixed prompts learned as soft tokens",
        "Wingate et al. 2022, prompt compression",
        20,
        "PromptCompression",
        "soft-prompt compression",
    ),
)


# --- retrieval --------------------------------------------------------------------------------------------------------


def _retrieved(scenario: Scenario, values: Values) -> Scenario:
    return with_tokens(scenario, prompt=scenario.prompt + values["passages"] * values["tokens"])


RETRIEVAL = (
    data_technique(
        "rag",
        "Retrieval-augmented generation (RAG)",
        "Lewis et al. 2020, retrieval-augmented generation",
        "The prompt grows by the retrieved passages, instead of by all documents that might be relevant.",
        "retrieval",
        _retrieved,
        Parameter("passages", 5, "passages (the paper retrieves 5 or 10)", 0, 10_000),
        Parameter("tokens", 100, "tokens of a passage (the paper splits into 100 words)", 1, 1_000_000),
        covers=("FLARE", "REPLUG", "Self-RAG", "retrieval augmentation"),
        caveat="`prompt` is the question alone. Retrieval, also repeated retrieval during generation, is not counted.",
    ),
)


# --- answers in parallel parts ----------------------------------------------------------------------------------------


def _in_parts(name: str) -> Change:
    """An answer of points decoded in parallel, after a fraction of it decoded sequentially.

    With p points, a sequential fraction s and points that add up to l times their part of a plain answer, a sequence
    runs s + l (1 - s) / p of the plain answer's steps. Where the sequential part is a `skeleton`, which is no part of
    the answer, it runs s + l / p. All p beams together yield the whole answer.
    """

    def change(scenario: Scenario, values: Values) -> Scenario:
        require_generation(scenario, name)
        points, skeleton = values["points"], values.get("skeleton", 0.0)
        alone = values.get("alone", 0.0)
        share = skeleton + alone + values.get("longer", 1.0) * (1 - alone) / points
        steps = scaled_tokens(scenario.generate, share)
        return with_settings(
            with_tokens(scenario, generate=steps),
            beams=scenario.settings.beams * points,
            useful=scenario.settings.useful * (scenario.generate / steps),
            shared_prefix=True,
        )

    return change


def _parts(name: str, title: str, reference: str, *parameters: Parameter, **rest: Any) -> Technique:
    return data_technique(
        name,
        title,
        reference,
        "Independent parts of an answer are decoded as a batch that shares the prompt's KV cache: fewer steps, and"
        " weights read once for all parts.",
        "output",
        _in_parts(name),
        *parameters,
        caveat=f"{_QUALITY} Parts are assumed to be equally long, sequential steps to cost the same as the others, and"
        " additional prompts of the parts to cost nothing.",
        **rest,
    )


OUTPUT = (
    _parts(
        "skeleton-of-thought",
        "Skeleton-of-Thought: a skeleton, then its points in parallel",
        "Ning et al. 2023, Skeleton-of-Thought",
        Parameter("points", 6, "points expanded in parallel (below 6 for LLaMA-2 to about 9 for GPT-4)", 1, 1000),
        Parameter("skeleton", 0.2, "tokens of the skeleton over those of a plain answer (3 to 5 words a point)", 0, 1),
        Parameter("longer", 1.5, "tokens of all points over those of a plain answer (mostly 1 to 2)", 0.1, 10),
        covers=("SoT", "output organization"),
        published=(
            Published("up to 2.39 times as fast", "12 models; settings not stated", f"{SURVEY}, section 4.2"),
            Published(
                "1.89 to 2.33 times as fast in five categories of questions",
                "12 models on Vicuna-80, one A100, batch 1",
                "Ning et al. 2023, section 3.1",
            ),
        ),
    ),
    _parts(
        "sgd",
        "SGD: a graph of sub-problems answered in parallel",
        "Jin et al. 2024, SGD",
        Parameter("points", 3, "sub-problems answered in parallel (an example within the published gain)", 1, 1000),
        Parameter("alone", 0.4, "fraction of the answer that waits for others (an example)", 0, 1),
        same_as="skeleton-of-thought",
        published=(Published("1.68 times the throughput", "models and settings vary", "Jin et al. 2024, abstract"),),
    ),
    _parts(
        "apar",
        "APAR: the model forks its own output",
        "Liu et al. 2024, APAR",
        Parameter("points", 3, "forks decoded in parallel (an example within the published gain)", 1, 1000),
        Parameter("alone", 0.35, "fraction of the answer decoded before the fork (an example)", 0, 1),
        same_as="skeleton-of-thought",
        price=Price.RETRAINING,
        published=(
            Published("1.4-2.0 times as fast on average", "settings not stated", f"{SURVEY}, section 4.2"),
            Published("4 times as fast with Medusa on hierarchical text", "not stated", "Yuan et al. 2024, 4.2.2"),
        ),
    ),
)


# --- cascades ---------------------------------------------------------------------------------------------------------


def _cascade(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.tower is not None:
        raise UnsupportedError(f"frugalgpt is simulated for text-only models, and {scenario.model.name} has a tower")
    require_generation(scenario, "frugalgpt")
    smaller = draft_model(values["model"], scenario.model, "frugalgpt")
    return with_settings(scenario, cascade=Cascade(smaller, values["answered"]))


CASCADES = (
    data_technique(
        "frugalgpt",
        "FrugalGPT: a cascade with a smaller model first",
        "Chen et al. 2023, FrugalGPT",
        "A smaller model runs every request, and the large model only those that the smaller one does not answer.",
        "cascade",
        _cascade,
        Parameter("model", None, "the smaller model"),
        Parameter("answered", 0.5, "fraction of the requests that the smaller model answers (an example)", 0, 1),
        covers=(
            *("model cascade", "cascade inference", "CascadeBERT", "Tabi", "Mixture-of-thought"),
            "joint model multiplexing and query caching",
        ),
        caveat=f"{_QUALITY} Times are means over requests, with the requests of the large model in full batches; the"
        " judge of the answers and cached answers cost nothing.",
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*SHORTER_PROMPTS, *SOFT_PROMPTS, *RETRIEVAL, *OUTPUT, *CASCADES)
