"""Quantisation of the KV cache, alone or with the weights."""

from __future__ import annotations

from functools import partial

from roofline.core.errors import UnsupportedError
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import find_format, grouped
from roofline.specs.model import Attention, LatentAttention
from roofline.techniques.base import Change, Parameter, Price, Published, Technique, Values, needs_generation
from roofline.techniques.entries import entry as written
from roofline.techniques.formats import SCALE_BITS, bits_parameter, cache_format, stored, with_formats

CAVEAT = "Accuracy is not simulated, and the bound takes decoding to overlap with the attention products."


entry = partial(written, caveat=CAVEAT)


def _needs_cache(scenario: Scenario, name: str) -> None:
    needs_generation(scenario, name)
    groups = scenario.model.groups
    if not any(isinstance(group.layer.mixer, Attention | LatentAttention) for group in groups):
        raise UnsupportedError(f"{name} quantises the KV cache, and {scenario.model.name} has none")


def _kivi(scenario: Scenario, values: Values) -> Scenario:
    _needs_cache(scenario, "kivi")
    return with_formats(scenario, "kivi", kv=cache_format("kivi", values["bits"], values["group"]))


def _kvquant(scenario: Scenario, values: Values) -> Scenario:
    _needs_cache(scenario, "kvquant")
    bits = values["bits"] + values["outliers"] * (16 + 16)
    return with_formats(scenario, "kvquant", kv=stored("kvquant", bits, values["bits"], "code"))


def _weights_and_cache(name: str) -> Change:
    def change(scenario: Scenario, values: Values) -> Scenario:
        _needs_cache(scenario, name)
        width, group = values["bits"], values["group"]
        weights = stored(name, grouped(width, group, SCALE_BITS, SCALE_BITS), width)
        return with_formats(scenario, name, weights, kv=cache_format(name, width, group))

    return change


def _fp8_cache(scenario: Scenario, _: Values) -> Scenario:
    _needs_cache(scenario, "fp8-kv")
    return with_formats(scenario, "fp8-kv", kv=find_format("fp8"))


def _groups(default: int) -> Parameter:
    return Parameter("group", default, "elements that share a scale and an offset", 1, 65536)


LESS_CACHE = "Fewer bytes of KV cache to keep and to read, and a decoding of every element read."

TECHNIQUES: tuple[Technique, ...] = (
    entry(
        "kvquant",
        "KVQuant: non-uniform codes, keys before rotation, sparse outliers",
        Price.CALIBRATION,
        "Hooper et al. 2024, KVQuant",
        LESS_CACHE,
        "KV format",
        _kvquant,
        bits_parameter(3, "cached element"),
        Parameter("outliers", 0.01, "share kept in fp16 with an index of 16 bits", 0, 0.5),
        covers=("KVQuant",),
        published=(
            Published(
                "contexts of a million tokens on one A100-80GB",
                "model and bits not stated; Llama-7B needs about 2 bits for it",
                "Park et al. 2024, Inference Optimization on AI Accelerators, section 2.1",
            ),
        ),
        caveat="Rotating keys as they are read is not counted; accuracy is not simulated.",
    ),
    entry(
        "kivi",
        "KIVI: 2 bits, keys by channel and values by token",
        Price.LOSSY,
        "Liu et al. 2024, KIVI",
        LESS_CACHE,
        "KV format",
        _kivi,
        bits_parameter(2, "cached element", low=1),
        _groups(32),
        covers=("KIVI", "KV-cache quantization"),
        caveat="The newest tokens (128 in the paper), which stay in 16 bits, are counted as the others; accuracy is not"
        " simulated.",
    ),
    entry(
        "fp8-kv",
        "FP8 KV cache",
        Price.CALIBRATION,
        "vLLM, FP8 E5M2 and E4M3 KV cache",
        "Half the bytes of KV cache to keep and to read.",
        "KV format",
        _fp8_cache,
        covers=("FP8 KV",),
        published=(
            Published(
                "1.49 times the throughput, at most 2.4% lost on HumanEval",
                "A100; model and batch not stated",
                "Park et al. 2024, Inference Optimization on AI Accelerators, section 2.4",
            ),
        ),
    ),
    entry(
        "wkvquant",
        "WKVQuant: weights and KV cache",
        Price.CALIBRATION,
        "Yue et al. 2024, WKVQuant",
        "Fewer bytes of weights and KV cache, the same FLOPs and a decoding of both.",
        "weight format",
        _weights_and_cache("wkvquant"),
        bits_parameter(4, "weight or cached element"),
        _groups(128),
        covers=("WKVQuant", "W4KV4"),
    ),
    entry(
        "flexgen-int4",
        "FlexGen's compression: weights and KV cache in groups",
        Price.LOSSY,
        "Sheng et al. 2023, FlexGen",
        "Fewer bytes of weights and KV cache, the same FLOPs and a decoding of both.",
        "weight format",
        _weights_and_cache("flexgen-int4"),
        bits_parameter(4, "weight or cached element"),
        _groups(64),
    ),
    entry(
        "cachegen",
        "CacheGen: a KV cache encoded for sending",
        Price.LOSSY,
        "Liu et al. 2023, CacheGen",
        "Fewer bytes of a stored context's KV cache to send over a network.",
        "KV format",
        None,
        covers=("CacheGen",),
        caveat="it shortens the loading of a context's cache from storage over a network, which no phase contains.",
    ),
)
