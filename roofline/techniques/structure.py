"""Smaller models: distillation, structured pruning, fewer layers, a smaller vocabulary, shared weights."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from roofline.bound.memory import parameters as stored_parameters
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Rotation, SharedWeights
from roofline.scenario.scenario import Scenario
from roofline.specs.model import (
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    LayerGroup,
    MixtureOfExperts,
    Mlp,
    Model,
)
from roofline.specs.modelspec import load_model
from roofline.techniques.base import Parameter, Price, Published, Technique, Values, scaled
from roofline.techniques.entries import entry
from roofline.techniques.rewrites import with_rewrite


def split_layers(model: Model, name: str, change: Callable[[int, Layer], Layer]) -> Model:
    """`model` with layers changed one by one: `change` gets how many layers of the same make came before."""
    makes = {group.name: group.layer for group in model.groups}
    seen: Counter[str] = Counter()
    layers: dict[str, Layer] = {}
    pattern: list[str] = []
    for make in model.pattern:
        layer = change(seen[make], makes[make])
        seen[make] += 1
        pattern.append(make if layer == makes[make] else f"{make}+{name}")
        layers[pattern[-1]] = layer
    return regrouped(model, name, layers, pattern)


def regrouped(model: Model, name: str, layers: dict[str, Layer], pattern: list[str]) -> Model:
    """`model` with these layers in this pattern; its published sizes no longer hold."""
    counts = Counter(pattern)
    groups = tuple(LayerGroup(make, counts[make], layer) for make, layer in layers.items() if counts[make])
    return replace(
        model,
        name=f"{model.name}+{name}",
        groups=groups,
        pattern=tuple(pattern),
        parameters=None,
        active_parameters=None,
    )


def _thinned(model: Model, name: str, share: float) -> Model:
    """A model that keeps a share of the layers, evenly spread."""
    kept = scaled(model.layers, share)
    pattern = [model.pattern[index * model.layers // kept] for index in range(kept)]
    return regrouped(model, name, {group.name: group.layer for group in model.groups}, pattern)


# --- structured pruning -----------------------------------------------------------------------------------------------


def _fewer_heads(spec: Attention, share: float) -> Attention:
    """Heads go with the key and value heads that they share."""
    kv_heads = scaled(spec.kv_heads, share)
    return dataclasses.replace(spec, kv_heads=kv_heads, heads=kv_heads * spec.group)


def _narrower(block: FeedForward | None, share: float) -> FeedForward | None:
    match block:
        case Mlp():
            return dataclasses.replace(block, width=scaled(block.width, share))
        case MixtureOfExperts():
            shared = scaled(block.shared_width, share) if block.shared_width else 0
            return dataclasses.replace(block, width=scaled(block.width, share), shared_width=shared)
    return None


def _smaller_layer(layer: Layer, heads: float, width: float) -> Layer:
    mixer, cross = layer.mixer, layer.cross
    if isinstance(mixer, LatentAttention):
        mixer = dataclasses.replace(mixer, heads=scaled(mixer.heads, heads))
    elif isinstance(mixer, Attention):
        mixer = _fewer_heads(mixer, heads)
    cross = _fewer_heads(cross, heads) if cross else None
    return replace(layer, mixer=mixer, cross=cross, feed_forward=_narrower(layer.feed_forward, width))


def smaller(
    model: Model, name: str, hidden: float = 1.0, heads: float = 1.0, width: float = 1.0, layers: float = 1.0
) -> Model:
    """`model` with these shares of its hidden size, heads, feed-forward width and layers; its encoder as well.

    A vision tower stays. Refused for mixers without heads to take away.
    """
    if any(not isinstance(group.layer.mixer, Attention | LatentAttention | None) for group in model.groups):
        raise UnsupportedError(f"{name} prunes transformers, and {model.name} has layers of another kind")
    if hidden != 1 and (model.tower_kind == "vision" or model.patch):
        raise UnsupportedError(f"{name} changes the hidden size, which {model.name} shares with what reads its images")
    tower = model.tower
    if tower is not None and model.tower_kind == "encoder":
        tower = smaller(tower, name, hidden, heads, width, layers)
    makes = {group.name: _smaller_layer(group.layer, heads, width) for group in model.groups}
    pruned = regrouped(model, name, makes, list(model.pattern))
    pruned = replace(pruned, hidden=scaled(model.hidden, hidden), tower=tower)
    return pruned if layers == 1 else replace(_thinned(pruned, name, layers), name=pruned.name)


PRUNING_CAVEAT = (
    "One share stands for what differs by layer, rounded to whole heads and channels; hardware prefers multiples of its"
    " tiles, which is not part of the bound. Accuracy is not simulated."
)
PRUNED = "Fewer FLOPs and bytes in both phases, on dense hardware as it is: whole heads and channels are gone."


def _share(name: str, default: float, what: str) -> Parameter:
    return Parameter(name, default, f"share of {what} that is kept", 0.01, 1)


def _structured(
    name: str,
    title: str,
    reference: str,
    price: Price = Price.RETRAINING,
    *,
    effect: str = PRUNED,
    heads: float = 1.0,
    width: float = 1.0,
    hidden: float = 1.0,
    layers: float = 1.0,
    caveat: str = PRUNING_CAVEAT,
    **rest: Any,
) -> Technique:
    def change(scenario: Scenario, values: Values) -> Scenario:
        return replace(scenario, model=smaller(scenario.model, name, **values))

    sizes = (
        _share("hidden", hidden, "the hidden size"),
        _share("heads", heads, "the heads"),
        _share("width", width, "the feed-forward width"),
        _share("layers", layers, "the layers"),
    )
    return entry(name, title, price, reference, effect, "model size", change, *sizes, caveat=caveat, **rest)


def _slicegpt(scenario: Scenario, values: Values) -> Scenario:
    model = scenario.model
    if model.tower is not None or model.task == "encode":
        raise UnsupportedError(f"slicegpt slices the residual stream of decoders, and {model.name} is more than one")
    sliced = replace(scenario, model=smaller(model, "slicegpt", hidden=1 - values["slice"]))
    return with_rewrite(sliced, "slicegpt", Rotation())


# --- a model in the place of another ----------------------------------------------------------------------------------


def _student(scenario: Scenario, values: Values) -> Scenario:
    teacher, student = scenario.model, load_model(values["model"])
    kinds = [(model.task, model.tower_kind, bool(model.patch)) for model in (teacher, student)]
    if kinds[0] != kinds[1]:
        raise RooflineError(f"distillation: {student.name} does not do the task of {teacher.name}")
    if stored_parameters(student) >= stored_parameters(teacher):
        raise RooflineError(f"distillation: the student {student.name} is not smaller than {teacher.name}")
    return replace(scenario, model=student)


def _smaller_vocabulary(scenario: Scenario, values: Values) -> Scenario:
    model = scenario.model
    if model.patch or model.vocabulary <= 1:
        raise UnsupportedError(f"vocabulary-shrinking takes words away, and {model.name} has no vocabulary")
    size = scaled(model.vocabulary, values["share"])
    name = f"{model.name}+vocabulary"
    return replace(scenario, model=replace(model, name=name, vocabulary=size, parameters=None, active_parameters=None))


def _layer_pruning(scenario: Scenario, values: Values) -> Scenario:
    return replace(scenario, model=_thinned(scenario.model, "layer-pruning", values["share"]))


def _weight_sharing(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.layers < values["repeats"]:
        raise UnsupportedError(f"weight-sharing: {scenario.model.name} has only {scenario.model.layers} layers")
    return with_rewrite(scenario, "weight-sharing", SharedWeights(values["repeats"]))


DISTILLATION = entry(
    "distillation",
    "Knowledge distillation: a smaller model in its place",
    Price.RETRAINING,
    "Zhou et al. 2024, section 5.2.4",
    "Fewer FLOPs, bytes and memory: those of the student.",
    "student",
    _student,
    Parameter("model", None, "the student: a bundled model or a spec file"),
    caveat="What the student learnt, and what training it costs, are not simulated.",
    covers=("knowledge distillation", "white-box distillation", "black-box distillation"),
)

TECHNIQUES: tuple[Technique, ...] = (
    DISTILLATION,
    _structured(
        "llm-pruner",
        "LLM-Pruner: coupled heads and channels",
        "Ma et al. 2023, LLM-Pruner",
        heads=0.8,
        width=0.8,
        covers=("LLM-Pruner", "structured pruning"),
    ),
    _structured(
        "sheared-llama",
        "Sheared LLaMA: pruned to a given shape, then trained on",
        "Xia et al. 2023, Sheared LLaMA (2.7B from Llama-2-7B by default)",
        hidden=0.625,
        heads=0.625,
        width=0.628,
        covers=("Sheared LLaMA",),
    ),
    _structured(
        "ziplm",
        "ZipLM: structures removed by what they save in time",
        "Kurtic et al. 2023, ZipLM",
        heads=0.5,
        width=0.5,
        covers=("ZipLM",),
        caveat="The default shares are an example, since it prunes to a target of speed; " + PRUNING_CAVEAT,
    ),
    _structured(
        "loraprune",
        "LoRAPrune: importance from adapters' gradients",
        "Zhang et al. 2023, LoRAPrune",
        heads=0.8,
        width=0.8,
        covers=("LoRAPrune",),
    ),
    _structured(
        "lorashear",
        "LoRAShear: structured pruning with knowledge recovery",
        "Chen et al. 2023, LoRAShear",
        heads=0.8,
        width=0.8,
        covers=("LoRAShear",),
    ),
    _structured(
        "cofi",
        "CoFi: layers, heads, channels and hidden size pruned together",
        "Xia et al. 2022, CoFi",
        heads=0.5,
        width=0.5,
        layers=0.5,
        covers=("CoFi",),
        caveat="The default shares are an example; " + PRUNING_CAVEAT,
    ),
    _structured(
        "simple",
        "SIMPLE: learned masks, then distillation",
        "Tao et al. 2023, SIMPLE",
        heads=0.5,
        width=0.5,
        covers=("SIMPLE",),
        caveat="The default shares are an example; " + PRUNING_CAVEAT,
    ),
    _structured(
        "platon",
        "PLATON: pruning by an upper confidence bound of importance",
        "Zhang et al. 2022, PLATON",
        heads=0.5,
        width=0.5,
        covers=("PLATON",),
        caveat="The survey lists it as structured; where it prunes single weights, unstructured-pruning holds."
        " The default shares are an example; " + PRUNING_CAVEAT,
    ),
    _structured(
        "compresso",
        "Compresso: collaborative structured pruning",
        "Guo et al. 2023, Compresso",
        heads=0.8,
        width=0.8,
        covers=("Compresso",),
        published=(
            Published(
                "LLaMA-7B to 5.4B parameters",
                "the same performance",
                "Yuan et al. 2024, LLM Inference Unveiled, section 3.2.2",
            ),
        ),
    ),
    entry(
        "slicegpt",
        "SliceGPT: the hidden size cut after a rotation",
        Price.CALIBRATION,
        "Ashkboos et al. 2024, SliceGPT",
        "Fewer FLOPs and bytes of every layer, and a square product on the residual stream before each addition.",
        "model size",
        _slicegpt,
        Parameter("slice", 0.25, "share of the hidden size cut away", 0, 0.9),
        caveat=PRUNING_CAVEAT,
        covers=("SliceGPT",),
    ),
    entry(
        "layer-pruning",
        "Fewer layers",
        Price.RETRAINING,
        "Miao et al. 2023, section 3.1.2, configuration downsizing",
        "Fewer FLOPs, bytes, KV cache and weights, in proportion to the layers.",
        "model size",
        _layer_pruning,
        Parameter("share", 0.5, "share of the layers that is kept, evenly spread (an example)", 0.01, 1),
        caveat="Accuracy is not simulated.",
        covers=("shallow decoders", "shallow encoders"),
    ),
    entry(
        "vocabulary-shrinking",
        "A smaller vocabulary",
        Price.RETRAINING,
        "Miao et al. 2023, section 3.1.2",
        "Fewer FLOPs and bytes of the output head, and a smaller embedding.",
        "vocabulary",
        _smaller_vocabulary,
        Parameter("share", 0.5, "share of the vocabulary that is kept (an example)", 0.0001, 1),
        caveat="Texts become longer where a word is lost, which is not simulated.",
        covers=("vocabulary shrinking",),
    ),
    entry(
        "weight-sharing",
        "Weights shared by neighbouring layers",
        Price.RETRAINING,
        "Liu et al. 2024, MobileLLM",
        "Less memory of weights; FLOPs and bytes read stay, since every layer still reads its weights.",
        "weight sharing",
        _weight_sharing,
        Parameter("repeats", 2, "neighbouring layers that share their weights", 1, 1000),
        caveat="A device whose on-chip memory holds a layer reads shared weights once, which is not part of the bound;"
        " MobileLLM spends the memory on more layers instead.",
        covers=("weight sharing", "MobileLLM"),
    ),
)
