"""What engines are not known to run: the architectures, formats and techniques that their documents leave out."""

from __future__ import annotations

from typing import Any

import pytest

from roofline import Scenario, analyze, list_models, load_hardware, load_model, parse_precision
from roofline.advisor.advice import advise
from roofline.advisor.search.moves import engine_techniques
from roofline.core.errors import RooflineError
from roofline.graph.parallel import Parallelism
from roofline.launch import launch
from roofline.reports.documents.analysis import analysis_document
from roofline.reports.documents.compare import compare_document
from roofline.reports.documents.summary import summary_lines
from roofline.scenario.settings import Settings
from roofline.techniques import apply_techniques
from roofline.techniques.support import load_support
from roofline.techniques.unsupported import features, not_started, note, unsupported
from roofline.whatif.explanation import explain
from roofline.whatif.metrics import find_metric


def scenario(model: str = "llama-3.1-8b", hw: str = "h100-sxm", quant: str | None = None, **options: Any) -> Scenario:
    found = load_model(model)
    precision = None if quant is None else parse_precision(found.dtype, quant)
    return Scenario(found, load_hardware(hw), precision=precision, **options)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (scenario("dit-xl-2"), "diffusion transformers"),
        (scenario("hyena-355m"), "Hyena"),
        (scenario("flash"), "gated attention units"),
        (scenario("h3-125m"), "S4 and H3"),
        (scenario("t5-11b"), "encoder-decoder models of text"),
        (scenario("rwkv-7-2.9b"), "RWKV"),
        (scenario(quant="KV2"), "a KV cache in int2"),
        (scenario(quant="W3"), "weights in int3"),
        (scenario(quant="W4A8"), "weights in int4 with activations in int8"),
        (scenario(quant="W8A8", hw="b200-sxm"), "weights in int8 with activations in int8"),
        (scenario("mamba-2.8b", engine="sglang"), "Mamba"),
        (scenario(engine="llama.cpp", quant="awq"), "weights in awq"),
        (Scenario("llama-3.1-8b", "rtx-4090", engine="llama.cpp", kv="q6_k"), "a KV cache in q6_k"),
        (scenario(hw="t4", engine="tensorrt-llm"), "on t4"),
        (scenario(hw="tpu-v6e", quant="fp8"), "weights in fp8 with activations in fp8"),  # recommended on v7 alone
        (scenario(settings=Settings(parallel=Parallelism(pipeline=2)), engine="gpt-fast"), "pipeline parallelism"),
    ],
)
def test_what_the_documents_leave_out(asked: Scenario, expected: str) -> None:
    assert [*map(str, unsupported(asked))] == [expected]


@pytest.mark.parametrize(
    "asked",
    [
        scenario(),
        scenario(quant="fp8"),
        scenario(quant="fp8", hw="a100-sxm-80gb"),
        scenario(quant="W8A16"),
        scenario(quant="awq_g64"),
        scenario(quant="nvfp4", hw="b200-sxm"),
        scenario("gpt-oss-120b"),
        scenario("deepseek-r1"),
        scenario("whisper-large-v3"),
        scenario("llava-1.5-7b", images=1),
        scenario("jamba-v0.1"),
        scenario("t5-11b", engine="hf-eager"),
        scenario("rwkv-7-2.9b", engine="llama.cpp"),
        scenario(hw="m3-max", quant="q4_k_m"),
        scenario(engine="llama.cpp", quant="KV4"),
        scenario(hw="tpu-v7", quant="fp8"),
        scenario(hw="tpu-v6e", quant="awq"),
        Scenario("llama-3.1-8b", "rtx-4090", engine="llama.cpp", quant="q4_k_m", kv="q8_0"),
        Scenario("llama-3.1-8b", "rtx-4090", engine="ollama", kv="q4_0"),
        scenario("hyena-355m", engine="ideal"),
    ],
)
def test_what_the_documents_say_has_no_note(asked: Scenario) -> None:
    assert unsupported(asked) == ()
    assert note(asked) is None


@pytest.mark.parametrize(
    ("technique", "expected"),
    [
        ("kivi", ("the technique kivi",)),
        ("powerinfer:hardware=core-i9-13900k", ("the technique powerinfer",)),
        ("zero-inference", ("the technique zero-inference",)),
        ("flexgen", ("an offloaded KV cache",)),
        ("flexgen:kv=0", ()),
        ("awq", ()),
        ("fp8-kv", ()),
        ("eagle-3", ()),
        ("llmlingua", ()),
        ("tensor-parallelism", ()),
        ("speculative-decoding:draft=opt-125m,acceptance=0.6", ()),
    ],
)
def test_techniques_on_vllm(technique: str, expected: tuple[str, ...]) -> None:
    assert tuple(map(str, unsupported(apply_techniques(scenario("opt-6.7b"), [technique])))) == expected


@pytest.mark.parametrize(
    ("model", "lacking", "running", "engine", "kv"),
    [
        ("deepseek-v4-pro", "mi325x", "mi355x", "vllm", None),
        ("deepseek-v4-flash", "mi300x", "h200-sxm", "vllm", None),
        ("glm-5.3-flash", "a100-sxm-80gb", "rtx-pro-6000-server", "vllm", None),
        ("glm-5.3-flash", "h200-sxm", "b200-sxm", "vllm", "fp8"),
    ],
)
def test_what_a_device_lacks_is_not_started_or_proposed_there(
    model: str, lacking: str, running: str, engine: str, kv: str | None
) -> None:
    def asked(hw: str, **options: Any) -> Scenario:
        return Scenario(model, f"8x{hw}", engine=engine, **options)

    assert not_started(asked(running, kv=kv)) == ()
    (part,) = not_started(asked(lacking, kv=kv))
    assert (part.device, str(part)) == (lacking, f"{part.part} on {lacking}")
    with pytest.raises(RooflineError, match="no command starts it"):
        launch(asked(lacking, kv=kv))
    if kv is not None:
        assert not_started(asked(lacking)) == ()
        heavy = {"batch": 64, "prompt": 100_000}
        moves = [move for move in engine_techniques(asked(lacking)) if move.name == "fp8-kv"]
        assert moves
        assert not advise(asked(lacking, **heavy), moves=moves).recommendations
        assert advise(asked(running, **heavy), moves=moves).recommendations


def test_what_a_later_version_runs_an_earlier_one_lacks() -> None:
    versions = ("vllm@0.11", "vllm@0.12", "vllm")
    found = [not_started(Scenario("deepseek-v3.2", "8xmi300x", engine=version)) for version in versions]
    assert [bool(parts) for parts in found] == [True, False, False]


def test_every_bundled_model_has_known_features() -> None:
    found = {name: features(load_model(name)) for name in list_models()}
    assert all(found.values())
    # Modules of a class of Transformers without a reader have no name that a document could have.
    assert set().union(*found.values(), {"vision"}) - {"modules"} == {*load_support().features, *load_support().kinds}


def test_every_answer_says_so() -> None:
    asked = scenario("hyena-355m")
    analysis, usual = analyze(asked), analyze(scenario())
    sentence = note(asked)
    assert sentence is not None
    assert sentence.startswith("vllm is not known to run Hyena; ")
    document = analysis_document(analysis)
    assert document["unsupported"] == ["Hyena"]
    lines = summary_lines(document)
    assert any(line.startswith("expected as if vllm ran it: ") for line in lines)
    assert not any("; calibrated on this hardware" in line for line in lines)
    assert f"note: {sentence}" in lines
    assert any(line.startswith("expected on vllm: ") for line in summary_lines(analysis_document(usual)))
    compared = compare_document([usual, analysis], ["a", "b"])
    assert [entry["unsupported"] for entry in compared["scenarios"]] == [[], ["Hyena"]]
    assert sentence in compared["scenarios"][1]["notes"]
    assert sentence in explain(analysis, "tpot").assumptions
    supported = find_metric("supported", "expected")
    assert [bool(supported.figure(found)) for found in (usual, analysis)] == [True, False]
