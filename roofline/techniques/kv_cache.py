"""KV cache quantisation, alone or with the weights."""

from __future__ import annotations

from functools import partial
from typing import Any

from roofline.scenario.scenario import Scenario
from roofline.specs.formats import find_format, grouped
from roofline.techniques.base import (
    ACCELERATORS,
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    model_technique,
)
from roofline.techniques.changes import require_kv_cache
from roofline.techniques.formats import SCALE_BITS, bits_parameter, cache_format, stored, with_formats

CAVEAT = "Accuracy is not simulated. The bound assumes that dequantisation overlaps with attention."

_entry = partial(model_technique, caveat=CAVEAT)


def _kivi(scenario: Scenario, values: Values) -> Scenario:
    require_kv_cache(scenario, "kivi")
    return with_formats(scenario, "kivi", kv=cache_format("kivi", values["bits"], values["group"]))


def _kvquant(scenario: Scenario, values: Values) -> Scenario:
    require_kv_cache(scenario, "kvquant")
    bits = values["bits"] + values["outliers"] * (16 + 16)
    return with_formats(scenario, "kvquant", kv=stored("kvquant", bits, values["bits"], "code"))


def _fp8_cache(scenario: Scenario, _: Values) -> Scenario:
    require_kv_cache(scenario, "fp8-kv")
    return with_formats(scenario, "fp8-kv", kv=find_format("fp8"))


def _group(default: int) -> Parameter:
    return Parameter("group", default, "elements that share a scale and an offset", 1, 65536)


def _weights_and_cache(name: str) -> Change:
    def change(scenario: Scenario, values: Values) -> Scenario:
        require_kv_cache(scenario, name)
        width, group = values["bits"], values["group"]
        weights = stored(name, grouped(width, group, SCALE_BITS, SCALE_BITS), width)
        return with_formats(scenario, name, weights, kv=cache_format(name, width, group))

    return change


def _weights_and_cache_entry(name: str, title: str, reference: str, group: int, price: Price, **rest: Any) -> Technique:
    effect = "Fewer bytes of weights and KV cache; the same FLOPs, plus dequantisation of both."
    parameters = (bits_parameter(4, "weight or cached element"), _group(group))
    change = _weights_and_cache(name)
    return _entry(name, title, reference, effect, "weight format", change, *parameters, price=price, **rest)


_SMALLER_CACHE = "Fewer bytes of KV cache to store and read, plus dequantisation of every element read."

TECHNIQUES: tuple[Technique, ...] = (
    _entry(
        "kvquant",
        "KVQuant: non-uniform codes, keys before RoPE, sparse outliers",
        "Hooper et al. 2024, KVQuant",
        _SMALLER_CACHE,
        "KV format",
        _kvquant,
        bits_parameter(3, "cached element"),
        Parameter("outliers", 0.01, "fraction kept in fp16 with a 16-bit index", 0, 0.5),
        price=Price.CALIBRATION,
        covers=("KVQuant",),
        published=(
            Published(
                "contexts of a million tokens on one A100-80GB",
                "model and bits not stated; Llama-7B needs about 2 bits for it",
                f"{ACCELERATORS}, section 2.1",
            ),
        ),
        caveat="RoPE on the keys read is not counted; accuracy is not simulated.",
    ),
    _entry(
        "kivi",
        "KIVI: 2 bits, keys per channel and values per token",
        "Liu et al. 2024, KIVI",
        _SMALLER_CACHE,
        "KV format",
        _kivi,
        bits_parameter(2, "cached element", low=1),
        _group(32),
        price=Price.LOSSY,
        covers=("KIVI", "KV-cache quantization"),
        caveat="The newest tokens (128 in the paper), which stay in 16 bits, are counted as quantised; accuracy is not"
        " simulated.",
    ),
    _entry(
        "fp8-kv",
        "FP8 KV cache",
        "vLLM, FP8 E5M2 and E4M3 KV cache",
        "Half the bytes of KV cache to store and read.",
        "KV format",
        _fp8_cache,
        price=Price.CALIBRATION,
        covers=("FP8 KV",),
        published=(
            Published(
                "1.49 times the throughput, at most 2.4% lost on HumanEval",
                "A100; model and batch not stated",
                f"{ACCELERATORS}, section 2.4",
            ),
        ),
    ),
    _weights_and_cache_entry(
        "wkvquant",
        "WKVQuant: weights and KV cache",
        "Yue et al. 2024, WKVQuant",
        128,
        Price.CALIBRATION,
        covers=("WKVQuant", "W4KV4"),
    ),
    _weights_and_cache_entry(
        "flexgen-int4", "FlexGen's group-wise INT4 weights and KV cache", "Sheng et al. 2023, FlexGen", 64, Price.LOSSY
    ),
)
