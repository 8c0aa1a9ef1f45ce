"""Fuzzing of quantities, formats and workloads: a consistent result or one sentence (`make fuzz` attacks the files)."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.core.units import Dimension, parse_quantity
from roofline.reports.documents.analysis import (
    analysis_document,
)
from tests.fuzzing import Document, attempt


def check_figures(value: object) -> None:
    match value:
        case dict():
            for entry in value.values():
                check_figures(entry)
        case list():
            for entry in value:
                check_figures(entry)
        case int() | float():
            assert math.isfinite(value)
            assert value >= 0


# What a file may contain instead of what it should

words = st.sampled_from(
    [
        *("", " ", "0", "-1", "16 GB", "1e3 TB/s", "5 TFLOP/s [datasheet]", "nan", "1_0 W", "llama", "gemma3", "silu"),
        *(
            "rope",
            "learned",
            "fp16",
            "5 x local",
            "global",
            "\x1b[31m",
            "two\nlines",
            "=1+1",
            "x" * 500,
            "\u202e",
            "🦙",
        ),
    ]
)
numbers = st.one_of(
    st.sampled_from([0, 1, 2, 3, 8, 64, 100, 4096, -1, 10**9, 10**40, 0.0, 0.5, 1e308, math.inf, -math.inf, math.nan]),
    st.integers(),
    st.floats(),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, words, st.text(max_size=12))
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)


quantities = st.one_of(
    junk,
    st.text(alphabet="0123456789.eE+-_ kMGTPiBFLOPs/HzWUSDh[];µ٣８", max_size=16),
    st.from_regex(
        r"\A[+-]?[0-9_]{1,4}(\.[0-9]{1,2})?(e[+-]?[0-9]{1,4})? ?[kMGTPmuµ]?i?(B|B/s|FLOP/s|OP/s|Hz|s|W|USD)?\Z"
    ),
)


@given(quantities, st.sampled_from(Dimension))
def test_quantities(text: object, dimension: Dimension) -> None:
    quantity = attempt(lambda: parse_quantity(text, dimension))
    if quantity is not None:
        assert dimension.low <= quantity.value <= dimension.high
        assert str(text).isascii() or "µ" in str(text) or "[" in str(text)


formats = st.one_of(
    st.none(),
    st.sampled_from(
        ["W4", "w8a8", "W4A16KV8", "KV4", "fp8", "int8", "awq", "gptq-g64", "nf4", "q4_k_m", "mxfp4", "bf16"]
    ),
    st.from_regex(r"\A(W[0-9]{1,3})?(A[0-9]{1,3})?(KV[0-9]{1,3})?\Z"),
    st.from_regex(r"\A(awq|gptq|int|fp|bf|q)[-_]?g?[0-9]{0,6}(_[01k])?\Z"),
    st.text(alphabet="WAKVwakv0123456789-_ gptqint٣", max_size=10),
    words,
)


@given(formats, formats, formats, formats)
def test_precisions(scheme: str | None, weights: str | None, activations: str | None, kv: str | None) -> None:
    precision = attempt(lambda: parse_precision("bf16", scheme, weights, activations, kv))
    if precision is None:
        return
    linear = precision.weights.format_of("q_proj", precision.base, 32)
    assert all(0 < each.bits <= 64 for each in (precision.base, linear, precision.activations, precision.kv))
    model, hardware = load_model("llama-2-7b"), load_hardware("a100-sxm-80gb")
    answer = attempt(lambda: analyze(Scenario(model, hardware, precision=precision)))
    if answer is not None:
        check_figures(analysis_document(answer)["phases"])


counts = st.integers(1, 5000)
workloads = st.one_of(
    counts,
    st.lists(counts, min_size=1, max_size=3),
    st.lists(st.lists(counts, min_size=1, max_size=2), min_size=1, max_size=2),
    st.lists(numbers, max_size=3),
    scalars,
)


@given(workloads, workloads, workloads, workloads, workloads)
def test_workloads(batch: object, prompt: object, generate: object, context: object, prefix: object) -> None:
    asked: Document = {"batch": batch, "prompt": prompt, "generate": generate, "context": context, "prefix": prefix}
    scenario = attempt(lambda: Scenario(load_model("llama-2-7b"), load_hardware("a100-sxm-80gb"), **asked))
    if scenario is not None:
        answer = analyze(scenario)
        for figure in (answer.prefill.flops, answer.decode.bound_time, answer.generation.total, answer.memory.total):
            assert np.shape(figure) == scenario.shape
            assert np.isfinite(figure).all()
            assert np.min(figure) > 0
