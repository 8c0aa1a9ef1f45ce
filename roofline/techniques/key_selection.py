"""Selection of keys by the query or the prompt: SnapKV keeps few, Quest reads few."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.scenario.scenario import Scenario
from roofline.techniques.base import Parameter, Price, Published, Technique, Values, model_technique
from roofline.techniques.changes import require_generation, with_attention

CAVEAT = "The quality loss from tokens that are not attended to is not simulated."


def _snapkv(scenario: Scenario, values: Values) -> Scenario:
    require_generation(scenario, "snapkv")
    kept = values["budget"]
    return with_attention(scenario, "snapkv", lambda spec: replace(spec, kept=min(kept, spec.kept or kept)))


def _quest(scenario: Scenario, values: Values) -> Scenario:
    require_generation(scenario, "quest")
    budget, page = values["budget"], values["page"]
    return with_attention(
        scenario,
        "quest",
        lambda spec: replace(spec, selected=min(budget, spec.selected or budget), page=page),
    )


TECHNIQUES: tuple[Technique, ...] = (
    model_technique(
        "snapkv",
        "SnapKV: of the prompt, only keys that its last queries attend to are kept",
        "Li et al. 2024, SnapKV",
        "Fewer bytes of KV cache to store and read in decode; prefill is unchanged.",
        "KV cache eviction",
        _snapkv,
        Parameter("budget", 1024, "tokens kept of a sequence (one of the paper's settings)", 1, 10**9),
        price=Price.LOSSY,
        covers=("SnapKV",),
        published=(
            Published(
                "3.6 times the generation speed, 8.2 times the memory efficiency",
                "prompts of 16K tokens",
                "Li et al. 2024, SnapKV, arXiv 2404.14469, abstract",
            ),
        ),
        same_as="h2o",
        caveat="Generated tokens, which SnapKV keeps, are counted within the budget; voting and pooling over the prompt"
        f" are not counted. {CAVEAT}",
    ),
    model_technique(
        "quest",
        "Quest: each query reads only the pages of the KV cache that it may attend to most",
        "Tang et al. 2024, Quest",
        "Fewer keys and values read in decode, by the bounds of each page; the whole KV cache and the bounds are kept.",
        "attention pattern",
        _quest,
        Parameter("budget", 2048, "keys that a query reads (a setting of the paper)", 1, 10**9),
        Parameter("page", 16, "keys of a page (the paper's)", 1, 65536),
        price=Price.LOSSY,
        covers=("Quest",),
        published=(
            Published(
                "self-attention up to 7.03 times as fast, decode up to 2.23 times",
                "budget of 2,048 of 32K tokens; decode with 4-bit weights",
                "Tang et al. 2024, Quest, arXiv 2406.10774 (some copies of the abstract swap the two figures)",
            ),
        ),
        caveat="The first two layers, which Quest leaves dense, are counted as sparse; the top-k is not counted."
        f" {CAVEAT}",
    ),
)
