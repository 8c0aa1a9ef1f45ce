"""Smaller models: distillation, structured pruning, fewer layers, a smaller vocabulary, shared weights."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from roofline.bound.memory import parameters as stored_parameters
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Rotation, SharedWeights
from roofline.scenario.scenario import Scenario
from roofline.specs.model import Attention, FeedForward, LatentAttention, Layer, MixtureOfExperts, Mlp, Model
from roofline.specs.modelspec import load_model
from roofline.techniques.base import (
    GENERATIVE_SURVEY,
    SURVEY,
    UNVEILED,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    model_technique,
)
from roofline.techniques.changes import regrouped, scaled, with_rewrite


def _with_fewer_layers(model: Model, name: str, fraction: float) -> Model:
    """`model` with a fraction of its layers, evenly spread."""
    kept = scaled(model.layers, fraction)
    pattern = [model.pattern[index * model.layers // kept] for index in range(kept)]
    return regrouped(model, name, {group.name: group.layer for group in model.groups}, pattern)


# --- structured pruning -----------------------------------------------------------------------------------------------


def _with_fewer_heads(spec: Attention, fraction: float) -> Attention:
    """KV heads are pruned together with the query heads of their group."""
    kv_heads = scaled(spec.kv_heads, fraction)
    return replace(spec, kv_heads=kv_heads, heads=kv_heads * spec.group)


def _narrower(block: FeedForward | None, fraction: float) -> FeedForward | None:
    match block:
        case Mlp():
            return replace(block, width=scaled(block.width, fraction))
        case MixtureOfExperts():
            shared = scaled(block.shared_width, fraction) if block.shared_width else 0
            return replace(block, width=scaled(block.width, fraction), shared_width=shared)
    return None


def _pruned_layer(layer: Layer, heads: float, width: float) -> Layer:
    mixer, cross = layer.mixer, layer.cross
    if isinstance(mixer, LatentAttention):
        mixer = replace(mixer, heads=scaled(mixer.heads, heads))
    elif isinstance(mixer, Attention):
        mixer = _with_fewer_heads(mixer, heads)
    cross = _with_fewer_heads(cross, heads) if cross else None
    return replace(layer, mixer=mixer, cross=cross, feed_forward=_narrower(layer.feed_forward, width))


def pruned_model(
    model: Model, name: str, hidden: float = 1.0, heads: float = 1.0, width: float = 1.0, layers: float = 1.0
) -> Model:
    """`model` with these fractions of its hidden size, heads, feed-forward width and layers; also of a text encoder.

    A vision encoder stays. Raises UnsupportedError for layers other than attention.
    """
    if any(not isinstance(group.layer.mixer, Attention | LatentAttention | None) for group in model.groups):
        raise UnsupportedError(f"{name} prunes attention heads, and {model.name} has layers without attention")
    if hidden != 1 and (model.tower_kind == "vision" or model.patch):
        raise UnsupportedError(f"{name} changes the hidden size, which {model.name} shares with its vision encoder")
    tower = model.tower
    if tower is not None and model.tower_kind == "encoder":
        tower = pruned_model(tower, name, hidden, heads, width, layers)
    makes = {group.name: _pruned_layer(group.layer, heads, width) for group in model.groups}
    pruned = regrouped(model, name, makes, list(model.pattern))
    pruned = replace(pruned, hidden=scaled(model.hidden, hidden), tower=tower)
    return pruned if layers == 1 else replace(_with_fewer_layers(pruned, name, layers), name=pruned.name)


PRUNING_CAVEAT = (
    "One fraction applies to all layers, rounded to whole heads and channels; the bound ignores tile sizes, to which"
    " hardware prefers dimensions to be aligned. Accuracy is not simulated."
)
EXAMPLE_CAVEAT = "The default fractions are an example. " + PRUNING_CAVEAT


def _structured(
    name: str,
    title: str,
    reference: str,
    *,
    hidden: float = 1.0,
    heads: float = 1.0,
    width: float = 1.0,
    layers: float = 1.0,
    caveat: str = PRUNING_CAVEAT,
    **rest: Any,
) -> Technique:
    """An entry that prunes whole heads and channels."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        return replace(scenario, model=pruned_model(scenario.model, name, **values))

    return model_technique(
        name,
        title,
        reference,
        "Fewer FLOPs and bytes in prefill and decode on any hardware: whole heads and channels are removed.",
        "model size",
        change,
        Parameter("hidden", hidden, "fraction of the hidden size kept", 0.01, 1),
        Parameter("heads", heads, "fraction of the heads kept", 0.01, 1),
        Parameter("width", width, "fraction of the feed-forward width kept", 0.01, 1),
        Parameter("layers", layers, "fraction of the layers kept", 0.01, 1),
        price=Price.RETRAINING,
        caveat=caveat,
        same_as="llm-pruner",
        **rest,
    )


def _slicegpt(scenario: Scenario, values: Values) -> Scenario:
    model = scenario.model
    if model.tower is not None or model.task == "encode":
        raise UnsupportedError(f"slicegpt slices the residual stream of decoder-only models, which {model.name} is not")
    sliced = replace(scenario, model=pruned_model(model, "slicegpt", hidden=1 - values["slice"]))
    return with_rewrite(sliced, "slicegpt", Rotation())


# --- other changes of the model ---------------------------------------------------------------------------------------


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
        raise UnsupportedError(f"vocabulary-shrinking needs a vocabulary, and {model.name} has none")
    size = scaled(model.vocabulary, values["share"])
    name = f"{model.name}+vocabulary"
    return replace(scenario, model=replace(model, name=name, vocabulary=size, parameters=None, active_parameters=None))


def _layer_pruning(scenario: Scenario, values: Values) -> Scenario:
    return replace(scenario, model=_with_fewer_layers(scenario.model, "layer-pruning", values["share"]))


def _weight_sharing(scenario: Scenario, values: Values) -> Scenario:
    if scenario.model.layers < values["repeats"]:
        raise UnsupportedError(f"weight-sharing: {scenario.model.name} has only {scenario.model.layers} layers")
    return with_rewrite(scenario, "weight-sharing", SharedWeights(values["repeats"]))


TECHNIQUES: tuple[Technique, ...] = (
    model_technique(
        "distillation",
        "Knowledge distillation: a smaller student model",
        f"{SURVEY}, section 5.2.4",
        "Fewer FLOPs, bytes and memory: those of the student.",
        "student",
        _student,
        Parameter("model", None, "the student: a bundled model or a spec file"),
        price=Price.RETRAINING,
        covers=("knowledge distillation", "white-box distillation", "black-box distillation"),
        caveat="Accuracy and the cost of training the student are not simulated.",
    ),
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
        "Sheared LLaMA: pruning to a target shape, then continued pre-training",
        "Xia et al. 2023, Sheared LLaMA (2.7B from Llama-2-7B by default)",
        hidden=0.625,
        heads=0.625,
        width=0.628,
        covers=("Sheared LLaMA",),
    ),
    _structured(
        "ziplm",
        "ZipLM: structures pruned by the latency that they save",
        "Kurtic et al. 2023, ZipLM",
        heads=0.5,
        width=0.5,
        covers=("ZipLM",),
        caveat="The default fractions are an example; the method prunes to a latency target. " + PRUNING_CAVEAT,
    ),
    _structured(
        "loraprune",
        "LoRAPrune: importance from the gradients of adapters",
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
        caveat=EXAMPLE_CAVEAT,
    ),
    _structured(
        "simple",
        "SIMPLE: learned masks, then distillation",
        "Tao et al. 2023, SIMPLE",
        heads=0.5,
        width=0.5,
        covers=("SIMPLE",),
        caveat=EXAMPLE_CAVEAT,
    ),
    _structured(
        "platon",
        "PLATON: pruning by an upper confidence bound of importance",
        "Zhang et al. 2022, PLATON",
        heads=0.5,
        width=0.5,
        covers=("PLATON",),
        caveat="The survey lists it as structured; for pruning of single weights use unstructured-pruning. "
        + EXAMPLE_CAVEAT,
    ),
    _structured(
        "compresso",
        "Compresso: collaborative structured pruning",
        "Guo et al. 2023, Compresso",
        heads=0.8,
        width=0.8,
        covers=("Compresso",),
        published=(Published("LLaMA-7B to 5.4B parameters", "the same performance", f"{UNVEILED}, section 3.2.2"),),
    ),
    model_technique(
        "slicegpt",
        "SliceGPT: rotation and slicing of the hidden size",
        "Ashkboos et al. 2024, SliceGPT",
        "Fewer FLOPs and bytes in every layer, plus a square GEMM on the residual stream before each addition.",
        "model size",
        _slicegpt,
        Parameter("slice", 0.25, "fraction of the hidden size sliced off", 0, 0.9),
        price=Price.CALIBRATION,
        covers=("SliceGPT",),
        caveat=PRUNING_CAVEAT,
    ),
    model_technique(
        "layer-pruning",
        "Fewer layers",
        f"{GENERATIVE_SURVEY}, section 3.1.2, configuration downsizing",
        "Fewer FLOPs, bytes, KV cache and weights, in proportion to the layers.",
        "model size",
        _layer_pruning,
        Parameter("share", 0.5, "fraction of the layers kept, evenly spread (an example)", 0.01, 1),
        price=Price.RETRAINING,
        covers=("shallow decoders", "shallow encoders"),
        caveat="Accuracy is not simulated.",
    ),
    model_technique(
        "vocabulary-shrinking",
        "A smaller vocabulary",
        f"{GENERATIVE_SURVEY}, section 3.1.2",
        "Fewer FLOPs and bytes of lm_head, and a smaller embedding.",
        "vocabulary",
        _smaller_vocabulary,
        Parameter("share", 0.5, "fraction of the vocabulary kept (an example)", 0.0001, 1),
        price=Price.RETRAINING,
        covers=("vocabulary shrinking",),
        caveat="The same text takes more tokens of a smaller vocabulary, which is not simulated.",
    ),
    model_technique(
        "weight-sharing",
        "Weights shared by neighbouring layers",
        "Liu et al. 2024, MobileLLM",
        "Less memory for weights; FLOPs and bytes read stay, since every layer reads its weights.",
        "weight sharing",
        _weight_sharing,
        Parameter("repeats", 2, "neighbouring layers that share their weights", 1, 1000),
        price=Price.RETRAINING,
        covers=("weight sharing", "MobileLLM"),
        caveat="A device whose on-chip memory holds a layer reads shared weights once, which the bound does not model;"
        " MobileLLM uses the saved memory for more layers.",
    ),
)
