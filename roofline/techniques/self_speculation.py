"""Self-speculation: drafts from the model's own layers, from heads and from layers on its hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.core.errors import UnsupportedError
from roofline.graph.network import EMBEDDING, HEAD
from roofline.scenario.scenario import Scenario
from roofline.scenario.speculation import Speculation
from roofline.specs.model import Model
from roofline.techniques.acceptance import as_published
from roofline.techniques.base import Change, Parameter, Price, Published, Technique, Values
from roofline.techniques.drafts import eagle_3_layer, eagle_layer, medusa_heads, prediction_module
from roofline.techniques.speculation import (
    BY_MODEL,
    FOUR,
    INPUT,
    OF_ANOTHER,
    accept,
    acceptance,
    accepted_of,
    as_measured,
    draft_length,
    entry,
    from_table_5,
    lowest_in_table_5,
    speculate,
    task,
    tree_size,
)


def _self_speculative(scenario: Scenario, values: Values) -> Scenario:
    name, length = "self-speculative", values["length"]
    accepted = accepted_of(name, values, length)
    return speculate(scenario, name, Speculation(length, accepted, verified=length, draft_depth=values["depth"]))


def _pass(scenario: Scenario, values: Values) -> Scenario:
    length = values["length"]
    accepted = accepted_of("pass", values, length)
    speculation = Speculation(length, accepted, length, draft_depth=1.0, draft_width=length + 1, draft_passes=1)
    return speculate(scenario, "pass", speculation)


def _heads(name: str) -> Change:
    """Extra output heads that draft a sequence, or the tree given by `tree`, in one pass."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        heads = values["heads"]
        draft = medusa_heads(scenario.model, heads)
        verified = values["tree"] - 1 if "tree" in values else heads
        speculation = Speculation(heads, accepted_of(name, values, heads), verified, draft, draft_passes=1)
        return speculate(scenario, name, speculation, tree="tree" in values)

    return change


def _eagle(name: str, draft: Callable[[Model], Model], *shared_ends: str) -> Change:
    """A decoder layer that drafts a chain of `length` tokens, or a tree of that depth and `tree` tokens."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        length, tree = values["length"], values["tree"]
        accepted, measured = as_measured(scenario, name, values, length, tree=bool(tree))
        speculation = Speculation(
            length,
            accepted,
            verified=max(tree, length),
            draft=draft(scenario.model),
            draft_width=values["topk"] if tree else 1,
            shared_ends=shared_ends,
            measured=measured,
        )
        return speculate(scenario, name, speculation, tree=bool(tree))

    return change


def _multi_token_prediction(scenario: Scenario, values: Values) -> Scenario:
    name, length = "multi-token-prediction", values["length"]
    if not scenario.model.mtp:
        raise UnsupportedError(f"{name} needs MTP modules in the checkpoint, and {scenario.model.name} has none")
    draft = prediction_module(scenario.model)
    accepted = accepted_of(name, values, length)
    return speculate(scenario, name, Speculation(length, accepted, length, draft, shared_ends=(EMBEDDING, HEAD)))


_SGLANG = "Llama-3.1-8B, MT-Bench, SGLang 0.4.4 on one H100, a chain of 3 draft tokens"
SGLANG_EAGLE = Published(
    "1.54 times as fast for one sequence, 0.93 times the throughput at batch 24", _SGLANG, "Li et al. 2025, EAGLE-3"
)
SGLANG_EAGLE_3 = Published(
    "2.36 times as fast for one sequence; 1.81, 1.62, 1.48, 1.32 and 1.38 times the throughput at batch 2, 8, 16, 32"
    " and 64",
    _SGLANG,
    "Li et al. 2025, EAGLE-3",
)


def _eagle_entry(
    name: str,
    title: str,
    reference: str,
    effect: str,
    change: Change,
    length: Parameter,
    *,
    topk: int,
    tree: int,
    published: tuple[Published, ...] = (),
    **rest: Any,
) -> Technique:
    """An entry with a chain, or a tree where `tree` is above 0, and the published acceptance of models and tasks."""
    return entry(
        name,
        title,
        reference,
        effect,
        "speculative decoding",
        change,
        length,
        Parameter("tree", tree, "draft tokens verified of a tree (0: a chain)", 0, 4096),
        Parameter("topk", topk, "tokens of a level of the tree that the draft continues", 1, 64),
        task(),
        BY_MODEL,
        acceptance(),
        published=(*published, *as_published(name)),
        **rest,
    )


TECHNIQUES: tuple[Technique, ...] = (
    entry(
        "self-speculative",
        "Self-speculative decoding: drafts from a subset of the layers",
        "Zhang et al. 2023, Draft and Verify",
        "A subset of the model's own layers drafts: no second model in memory, but expensive drafts.",
        "speculative decoding",
        _self_speculative,
        Parameter("depth", 0.5, "fraction of the layers that draft (an example)", 0.01, 1),
        draft_length(1, "not stated in Table 5; its accepted tokens need one"),
        lowest_in_table_5(1.64),
        acceptance(),
        covers=("SSD", "self-speculative decoding", "Kangaroo", "LayerSkip"),
        published=from_table_5("1.64-1.74", "1.01-1.23"),
        caveat=f"{INPUT} Verification runs all layers, also those whose draft results could be reused.",
    ),
    entry(
        "pass",
        "PaSS: drafts from lookahead embeddings",
        "Monea et al. 2023, PaSS",
        "Learned lookahead tokens let one pass of the model draft several tokens, and a second pass verifies them.",
        "speculative decoding",
        _pass,
        FOUR,
        accept(),
        acceptance(),
    ),
    entry(
        "medusa",
        "Medusa: extra heads that predict later tokens",
        "Cai et al. 2024, Medusa",
        "Extra heads on the last hidden state draft a tree in one pass, which the next pass verifies.",
        "speculative decoding",
        _heads("medusa"),
        Parameter("heads", 4, "heads, as in Table 5", 1, 16),
        tree_size(64, "as the released trees, including the root"),
        lowest_in_table_5(2.52),
        covers=("Medusa-1",),
        published=from_table_5("2.52-2.62", "2.04-2.86"),
        caveat=f"{INPUT} Medusa-1 trains its heads for about 24 GPU hours; the highest published speed-up exceeds the"
        " tokens per step, which is impossible.",
    ),
    entry(
        "blockwise-parallel-decoding",
        "Blockwise parallel decoding",
        "Stern et al. 2018",
        "Extra heads predict a block of positions, and the longest prefix that the model agrees with is accepted.",
        "speculative decoding",
        _heads("blockwise-parallel-decoding"),
        Parameter("heads", 4, "positions predicted (an example)", 1, 16),
        accept(),
        price=Price.RETRAINING,
        covers=("Blockwise Parallel Decoding",),
    ),
    _eagle_entry(
        "eagle",
        "EAGLE: a draft layer on the hidden states",
        "Li et al. 2024, EAGLE",
        "One decoder layer on the model's last hidden states drafts a chain of tokens, or a tree (`tree`) level by"
        " level; it uses the model's embedding and lm_head.",
        _eagle("eagle", eagle_layer, EMBEDDING, HEAD),
        draft_length(3, "a chain, as in vLLM's tests of it and in SGLang's evaluation by Li et al. 2025"),
        topk=1,
        tree=0,
        covers=("EAGLE-1", "FeatExtrapolator"),
        published=(*from_table_5("3.47-3.72", "2.77-3.74"), SGLANG_EAGLE),
        caveat=f"{OF_ANOTHER} vLLM drafts a chain; the released tree is tree=25,topk=10,length=5. Training the layer"
        " took 96-192 GPU hours; 3.47-3.72 is the speed-up in the survey's text but the tokens per step in its table.",
    ),
    _eagle_entry(
        "eagle-2",
        "EAGLE-2: a draft tree that follows the draft's confidence",
        "Li et al. 2024, EAGLE-2",
        "EAGLE's layer expands the likeliest nodes of each level, and the likeliest of all nodes are verified.",
        _eagle("eagle-2", eagle_layer, EMBEDDING, HEAD),
        draft_length(6, "depth of the tree, the paper's"),
        topk=10,
        tree=60,
        covers=("dynamic draft tree",),
        caveat=f"{OF_ANOTHER} The draft has EAGLE's weights, and as a chain it is EAGLE. SGLang's defaults (5 steps,"
        " topk 4, 8 tokens) have no published acceptance: give accept with them.",
    ),
    _eagle_entry(
        "eagle-3",
        "EAGLE-3: a draft layer on low, middle and high features, with its own vocabulary",
        "Li et al. 2025, EAGLE-3",
        "A decoder layer on the hidden states of three layers drafts a chain, or a tree (`tree`); its lm_head has the"
        " 32,000 most frequent tokens.",
        _eagle("eagle-3", eagle_3_layer, EMBEDDING),
        draft_length(3, "a chain, as in vLLM's tests of it and in SGLang's evaluation by the paper"),
        topk=1,
        tree=0,
        published=(SGLANG_EAGLE_3,),
        caveat=f"{OF_ANOTHER} vLLM drafts a chain; the paper's tree is tree=60,topk=10,length=8. The fusion of the"
        " three features is counted in every pass of the draft.",
    ),
    entry(
        "multi-token-prediction",
        "Multi-token prediction (MTP): drafts from MTP modules of the checkpoint",
        "DeepSeek-AI 2024, DeepSeek-V3, section 5.4.3",
        "MTP modules, trained with the model and one layer each, draft the next tokens.",
        "speculative decoding",
        _multi_token_prediction,
        draft_length(1, "as DeepSeek-V3"),
        Parameter("acceptance", 0.85, "acceptance rate: probability that a draft token is accepted", 0, 1),
        covers=("MTP",),
        published=(
            Published("85-90% of second tokens accepted, 1.8 times the tokens a second", "DeepSeek-V3", "its report"),
        ),
        caveat=f"{INPUT} A module used for several tokens is assumed to have the same acceptance rate for each.",
    ),
)
