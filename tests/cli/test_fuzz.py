"""Fuzzing of file and text readers: a consistent result or one sentence, never a crash."""

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline import Hardware, Model, Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.core.documents import read_mapping
from roofline.core.units import Dimension, parse_quantity
from roofline.reports.documents.analysis import (
    analysis_document,
    as_csv,
    as_markdown,
    hardware_document,
    model_document,
)
from roofline.reports.output.export import as_json
from roofline.specs.hardware_files import parse_hardware
from roofline.specs.huggingface import translate
from roofline.specs.modelspec import parse_model
from roofline.specs.written import to_spec
from tests.fuzzing import TOKENS, Document, attempt, disordered, places
from tests.paths import ROOT

pytestmark = pytest.mark.slow

HARDWARE_FILES = [ROOT / "hwspecs" / f"{name}.yaml" for name in ("a100-sxm-80gb", "m2-ultra", "tpu-v5e", "epyc-9654")]
MODEL_FILES = [ROOT / "modelspecs" / f"{name}.yaml" for name in ("llama-3-8b", "gemma-3-4b", "opt-350m", "falcon-7b")]
CONFIG_FILES = sorted((ROOT / "tests" / "data" / "configs").glob("*.json"))

# `make fuzz` attacks the same readers with a thousand times as many.
fuzz = settings(max_examples=60, deadline=None, derandomize=True, database=None)
fuzz_files = settings(fuzz, max_examples=40)


def check_analysis(model: Model, hardware: Hardware) -> None:
    """Checks that the scenario has finite, non-negative figures that print in every format, or raises RooflineError."""
    answer = attempt(lambda: analyze(Scenario(model, hardware, batch=3, prompt=300, generate=40)))
    if answer is None:
        return
    document = analysis_document(answer)
    check_figures({key: document[key] for key in ("phases", "generation")})
    assert not disordered(document)
    assert document["memory"]["weights_bytes"] > 0
    assert json.loads(as_json(document))["model"] == model.name
    assert as_csv(document).count("\n") > len(document["phases"])
    assert as_markdown(document).startswith("# ")


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


@st.composite
def mutated(draw: st.DrawFn, documents: list[Document]) -> Document:
    """One of `documents` with up to three entries deleted, replaced, renamed, moved or added."""
    content = copy.deepcopy(draw(st.sampled_from(documents)))
    keys = sorted({str(key) for document in documents for _, key in places(document)})
    for _ in range(draw(st.integers(1, 3))):
        found = places(content)
        if not found:
            break
        index, other = draw(st.integers(0, len(found) - 1)), draw(st.integers(0, len(found) - 1))
        (holder, key), (donor, donated) = found[index], found[other]
        match draw(st.sampled_from(["replace", "delete", "rename", "move", "insert"])):
            case "replace":
                holder[key] = draw(junk)
            case "delete":
                del holder[key]
            case "move":
                holder[key] = copy.deepcopy(donor[donated])
            case "rename" if isinstance(holder, dict):
                holder[draw(st.one_of(st.sampled_from(keys), words, st.text(max_size=8)))] = holder.pop(key)
            case _ if isinstance(holder, dict):
                holder[draw(st.one_of(st.sampled_from(keys), words))] = draw(junk)
            case _:
                holder.insert(key, draw(junk))
    return content


@st.composite
def damaged(draw: st.DrawFn, texts: list[str]) -> str:
    """One of `texts` with a stretch of it replaced."""
    text = draw(st.sampled_from(texts))
    start = draw(st.integers(0, len(text)))
    return text[:start] + draw(tokens) + text[start + draw(st.integers(0, 40)) :]


tokens = st.lists(st.sampled_from(TOKENS), max_size=12).map("".join)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def check_hardware(content: Mapping[str, Any]) -> None:
    hardware = attempt(lambda: parse_hardware(content, "own.yaml"))
    if hardware is not None:
        as_json(hardware_document(hardware))
        check_analysis(load_model("llama-2-7b"), hardware)


def check_model(content: Mapping[str, Any]) -> None:
    model = attempt(lambda: parse_model(content, "own.yaml"))
    if model is not None:
        as_json(model_document(model))
        assert parse_model(yaml.safe_load(yaml.safe_dump(to_spec(model))), "again.yaml") == model
        check_analysis(model, load_hardware("a100-sxm-80gb"))


@fuzz
@given(mutated([read_mapping(path) for path in HARDWARE_FILES]))
def test_hardware_documents(content: Document) -> None:
    check_hardware(content)


@fuzz
@given(mutated([read_mapping(path) for path in MODEL_FILES]))
def test_model_documents(content: Document) -> None:
    check_model(content)


@fuzz
@given(mutated([read_mapping(path) for path in CONFIG_FILES]))
def test_config_documents(content: Document) -> None:
    spec = attempt(lambda: translate(content, "config.json", "own"))
    if spec is not None:
        check_model(spec)


@fuzz
@given(st.dictionaries(st.text(max_size=8), junk, max_size=4))
def test_any_mapping(content: Document) -> None:
    check_hardware(content)
    check_model(content)
    attempt(lambda: translate(content, "config.json", "own"))


@fuzz
@given(
    st.sampled_from(["own.yaml", "own.json"]),
    st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(str.encode),
        tokens.map(str.encode),
        junk.map(lambda value: json.dumps(value).encode()),
        junk.map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode()),
    ),
)
def test_files_of_anything(folder: Path, name: str, raw: bytes) -> None:
    path = folder / name
    path.write_bytes(raw)
    content = attempt(lambda: read_mapping(path))
    if content is not None:
        assert all(isinstance(key, str) for key in content)
        check_hardware(content)
        check_model(content)
        attempt(lambda: translate(content, name, "own"))


@fuzz_files
@given(damaged([path.read_text("utf-8") for path in HARDWARE_FILES]))
def test_damaged_hardware_files(folder: Path, text: str) -> None:
    (folder / "hw.yaml").write_text(text, "utf-8")
    content = attempt(lambda: read_mapping(folder / "hw.yaml"))
    if content is not None:
        check_hardware(content)


@fuzz_files
@given(damaged([path.read_text("utf-8") for path in MODEL_FILES]))
def test_damaged_model_files(folder: Path, text: str) -> None:
    (folder / "model.yaml").write_text(text, "utf-8")
    content = attempt(lambda: read_mapping(folder / "model.yaml"))
    if content is not None:
        check_model(content)


@fuzz_files
@given(damaged([path.read_text("utf-8") for path in CONFIG_FILES]))
def test_damaged_configs(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, "utf-8")
    model = attempt(lambda: load_config(folder / "config.json"))
    if model is not None:
        check_analysis(model, load_hardware("a100-sxm-80gb"))


def load_config(path: Path) -> Model:
    return parse_model(translate(read_mapping(path), str(path), "own"), str(path))


quantities = st.one_of(
    junk,
    st.text(alphabet="0123456789.eE+-_ kMGTPiBFLOPs/HzWUSDh[];µ٣８", max_size=16),
    st.from_regex(
        r"\A[+-]?[0-9_]{1,4}(\.[0-9]{1,2})?(e[+-]?[0-9]{1,4})? ?[kMGTPmuµ]?i?(B|B/s|FLOP/s|OP/s|Hz|s|W|USD)?\Z"
    ),
)


@fuzz
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


@fuzz
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


@fuzz
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
