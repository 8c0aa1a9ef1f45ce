"""The data level: what changes the workload, and neither the model nor how it runs."""

from __future__ import annotations

from typing import Any

from roofline.core.errors import UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Cascade
from roofline.techniques.base import (
    Change,
    Level,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    lengths,
    needs_generation,
    with_settings,
)
from roofline.techniques.drafts import draft_model
from roofline.techniques.workload import cached_share, with_prompt, with_tokens

_QUALITY = "What is lost of the answer's quality is not simulated."


def _entry(name: str, title: str, reference: str, effect: str, slot: str, change: Change, **more: Any) -> Technique:
    fields = {"price": Price.LOSSY, **more}
    return Technique(
        name=name,
        title=title,
        level=Level.DATA,
        reference=reference,
        effect=effect,
        slot=slot,
        change=change,
        **fields,
    )


# --- shorter prompts --------------------------------------------------------------------------------------------------


def _shorter(scenario: Scenario, values: Values) -> Scenario:
    return with_prompt(scenario, values["keep"])


def _pruning(
    name: str, title: str, reference: str, keep: float, source: str, covers: tuple[str, ...] = (), **more: Any
) -> Technique:
    """Fewer prompt tokens: their share that is kept settles it all."""
    fields = {
        "effect": "only the share of the prompt's tokens that matters is prefilled: less compute, less cache",
        "caveat": f"{_QUALITY} The model that picks or rewrites, and its time, are left out.",
        **more,
    }
    effect = fields.pop("effect")
    keeps = (Parameter("keep", keep, f"share of the prompt's tokens that is kept ({source})", 1e-6, 1),)
    return _entry(name, title, reference, effect, "prompt", _shorter, covers=covers, parameters=keeps, **fields)


_SUMMARY = "the prompt is replaced by a summary: fewer tokens to prefill and to keep"
_SOFT = "the context is replaced by a few learned tokens: fewer tokens to attend to and to keep"
_ONLINE = f"{_QUALITY} Compressing the context, which reads all of it once, is left out."

SHORTER_PROMPTS = (
    _pruning(
        "prompt-pruning",
        "Parts of the prompt left out",
        "Zhou et al. 2024, section 4.1.1",
        0.5,
        "an example; DYNAICL reports 46% of tokens saved, PCRL 24.6%",
        ("prompt pruning", "input compression", "context compression", "DYNAICL", "STDC", "PCRL", "CoT-Influx"),
    ),
    _pruning(
        "llmlingua",
        "Demonstrations and tokens pruned by perplexity",
        "Jiang et al. 2023, LLMLingua",
        0.05,
        "up to 20 times fewer, as its abstract has it",
    ),
    _pruning(
        "longllmlingua",
        "Long contexts pruned by what is asked",
        "Jiang et al. 2023, LongLLMLingua",
        0.25,
        "about 4 times fewer, as its abstract has it",
        ("sequence compression",),
    ),
    _pruning(
        "selective-context",
        "Lexical units of little information left out",
        "Li et al. 2023, Selective Context",
        0.5,
        "half of the context, as its abstract has it",
        ("Selective Context",),
    ),
    _pruning(
        "recomp",
        "Retrieved documents extracted or summarised",
        "Xu et al. 2023, RECOMP",
        0.06,
        "compression down to 6%, as its abstract has it",
        effect=_SUMMARY,
    ),
    _pruning(
        "semantic-compression",
        "Text rewritten without what it repeats",
        "Fei et al. 2023, semantic compression",
        0.15,
        "texts 6 to 8 times as long fit, as its abstract has it",
        ("SemanticCompression", "prompt summary"),
        effect=_SUMMARY,
    ),
    _pruning(
        "autocompressors",
        "Segments compressed to summary vectors",
        "Chevalier et al. 2023, AutoCompressors",
        0.25,
        "an example",
        ("summary tokens", "landmark tokens"),
        effect=_SOFT,
        caveat=_ONLINE,
        price=Price.RETRAINING,
    ),
    _pruning(
        "icae",
        "A context encoded to memory slots",
        "Ge et al. 2023, ICAE",
        0.25,
        "4 times fewer, as its abstract has it",
        ("auto-encoders",),
        effect=_SOFT,
        caveat=_ONLINE,
        price=Price.RETRAINING,
    ),
)


def _soft_prefix(scenario: Scenario, values: Values) -> Scenario:
    """A fixed part of the prompt becomes a few learned tokens, which are computed once and cached."""
    return cached_share(scenario, values["fixed"], replaced_by=values["tokens"])


def _soft(name: str, title: str, reference: str, tokens: int, covers: tuple[str, ...]) -> Technique:
    return _entry(
        name,
        title,
        reference,
        "a fixed part of the prompt is replaced by a few learned tokens whose cache exists beforehand",
        "prompt",
        _soft_prefix,
        price=Price.RETRAINING,
        covers=covers,
        parameters=(
            Parameter("fixed", 0.5, "share of the prompt that is the same for all requests (an example)", 0, 1),
            Parameter("tokens", tokens, "learned tokens in its place (an example)", 1, 100_000),
        ),
        caveat=f"{_QUALITY} The learned tokens are cached for every sequence.",
    )


SOFT_PROMPTS = (
    _soft("gisting", "Instructions learned as gist tokens", "Mu et al. 2023, gist tokens", 1, ("gist tokens",)),
    _soft(
        "soft-prompt",
        "Fixed prompts learned as soft tokens",
        "Wingate et al. 2022, prompt compression",
        20,
        ("PromptCompression", "soft-prompt compression"),
    ),
)


def _retrieved(scenario: Scenario, values: Values) -> Scenario:
    added = values["passages"] * values["tokens"]
    return with_tokens(scenario, prompt=scenario.prompt + added)


RETRIEVAL = (
    _entry(
        "rag",
        "Retrieved passages instead of everything",
        "Lewis et al. 2020, retrieval-augmented generation",
        "the prompt grows by the passages that were retrieved, instead of by all that might be relevant",
        "retrieval",
        _retrieved,
        covers=("FLARE", "REPLUG", "Self-RAG", "retrieval augmentation"),
        parameters=(
            Parameter("passages", 5, "passages (the paper retrieves 5 or 10)", 0, 10_000),
            Parameter("tokens", 100, "tokens of a passage (the paper splits into 100 words)", 1, 1_000_000),
        ),
        caveat="`prompt` is the question alone. Retrieval itself, and retrieving again while generating, are left out.",
    ),
)


# --- answers in parallel parts ----------------------------------------------------------------------------------------


def _in_parts(name: str) -> Change:
    """An answer in points that are decoded side by side, after a share of it that is decoded alone.

    Of p points and a share s ahead, a sequence runs s + (1 - s) / p of the answer's steps; all p beams together yield
    the answer that one yielded before.
    """

    def change(scenario: Scenario, values: Values) -> Scenario:
        needs_generation(scenario, name)
        points, alone = values["points"], values["alone"]
        share = alone + (1 - alone) / points
        steps = lengths(scenario.generate, share)
        return with_settings(
            with_tokens(scenario, generate=steps),
            beams=scenario.settings.beams * points,
            useful=scenario.settings.useful * (scenario.generate / steps),
            shared_prefix=True,
        )

    return change


def _parts(
    name: str,
    title: str,
    reference: str,
    published: tuple[Published, ...] = (),
    covers: tuple[str, ...] = (),
    **more: Any,
) -> Technique:
    return _entry(
        name,
        title,
        reference,
        "independent parts of an answer are decoded as a batch that shares its prompt's cache: fewer steps, "
        "the weights read for all parts at once",
        "output",
        _in_parts(name),
        covers=covers,
        published=published,
        parameters=(
            Parameter("points", 5, "parts decoded side by side (an example)", 1, 1000),
            Parameter("alone", 0.1, "share of the answer decoded alone first, such as a skeleton (an example)", 0, 1),
        ),
        caveat=(
            f"{_QUALITY} Parts are taken to be equally long, the steps alone to cost as much as the others, and the "
            "prompts that are added for each part nothing."
        ),
        **more,
    )


OUTPUT = (
    _parts(
        "skeleton-of-thought",
        "A skeleton, then its points in parallel",
        "Ning et al. 2023, Skeleton-of-Thought",
        (Published("up to 2.39 times as fast", "12 models; settings not stated", "Zhou et al. 2024, section 4.2"),),
        ("SoT", "output organization"),
    ),
    _parts(
        "sgd",
        "A graph of sub-problems answered in parallel",
        "Jin et al. 2024, SGD",
    ),
    _parts(
        "apar",
        "The model forks its own output",
        "Liu et al. 2024, APAR",
        (
            Published("1.4-2.0 times as fast on average", "settings not stated", "Zhou et al. 2024, section 4.2"),
            Published("4 times as fast with Medusa on hierarchical text", "not stated", "Yuan et al. 2024, 4.2.2"),
        ),
        price=Price.RETRAINING,
    ),
)


# --- cascades ---------------------------------------------------------------------------------------------------------


def _cascade(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.tower is not None:
        raise UnsupportedError(
            f"frugalgpt is simulated for models that read text alone; {scenario.model.name} has a tower"
        )
    needs_generation(scenario, "frugalgpt")
    smaller = draft_model(values["model"], scenario.model, "frugalgpt")
    return with_settings(scenario, cascade=Cascade(smaller, values["answered"]))


CASCADES = (
    _entry(
        "frugalgpt",
        "A smaller model is asked first",
        "Chen et al. 2023, FrugalGPT",
        "a smaller model answers every request and the model itself only those it does not settle",
        "cascade",
        _cascade,
        covers=(
            *("model cascade", "cascade inference", "CascadeBERT", "Tabi", "Mixture-of-thought"),
            "joint model multiplexing and query caching",
        ),
        parameters=(
            Parameter("model", None, "the smaller model"),
            Parameter("answered", 0.5, "share of the requests that it settles (an example)", 0, 1),
        ),
        caveat=(
            f"{_QUALITY} Times are means over requests, second rounds gathered into full batches; who judges answers, "
            "and answers that are found in a store, cost nothing here."
        ),
    ),
)

TECHNIQUES: tuple[Technique, ...] = (*SHORTER_PROMPTS, *SOFT_PROMPTS, *RETRIEVAL, *OUTPUT, *CASCADES)
