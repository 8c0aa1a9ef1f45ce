"""Model-level techniques: all of them on all models, and closed forms for what the best known ones change."""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, analyze, list_models, load_hardware, load_model, parse_precision
from roofline.bound.memory import parameters
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.op import Op
from roofline.scenario.analysis import Analysis
from roofline.scenario.phase import Phase
from roofline.specs.formats import PROMOTIONS, find_format
from roofline.specs.model import Model
from roofline.specs.sublayers import Attention, MixtureOfExperts, Mlp, Retention
from roofline.techniques import Level, Technique, apply_techniques, techniques
from roofline.techniques.structure import pruned_model

TECHNIQUES = [entry for entry in techniques().values() if entry.level is Level.MODEL]
REQUIRED = {"distillation": "distillation:model=qwen3-0.6b"}
SIMULATED = [entry for entry in TECHNIQUES if entry.change is not None]


def scenario(model: str = "llama-2-7b", hardware: str = "h100-sxm", **workload: object) -> Scenario:
    return Scenario(load_model(model), load_hardware(hardware), **{"batch": 4, "prompt": 512, **workload})  # type: ignore[arg-type]


def applied(before: Scenario, *requests: str) -> Analysis:
    return analyze(apply_techniques(before, requests))


def request(entry: Technique) -> str:
    return REQUIRED.get(entry.name, entry.name)


def phases(answer: Analysis) -> tuple[Phase, ...]:
    return tuple(phase for phase in (answer.prefill, answer.decode) if phase)


def figures(answer: Analysis) -> np.ndarray:
    """Every total of both phases and of memory."""
    memory = answer.memory
    kept = [memory.weights, memory.kv_cache, memory.state, memory.activation_peak]
    return np.array([x for p in phases(answer) for x in (p.flops, p.bytes, p.link_bytes, p.bound_time)] + kept, float)


def decode(answer: Analysis) -> Phase:
    assert answer.decode is not None
    return answer.decode


def op(phase: Phase, name: str) -> Op:
    return next(figures.op for figures in phase.ops if figures.name == name)


@lru_cache
def plain(model: str, hardware: str = "h100-sxm") -> Analysis:
    return analyze(scenario(model, hardware))


# --- all of them ------------------------------------------------------------------------------------------------------


def kind_of(model: Model) -> tuple[object, ...]:
    """Properties of a model beside sizes that techniques depend on: layer types and flags, tower, task, tables."""

    def switches(part: object) -> tuple[object, ...]:
        values = [getattr(part, name) for name in getattr(part, "__struct_fields__", ())]
        return (type(part).__name__, *(value for value in values if isinstance(value, (bool, str)) or value is None))

    layers = {(switches(group.layer.mixer), switches(group.layer.feed_forward)) for group in model.groups}
    grouped = {
        getattr(group.layer.mixer, "kv_heads", 0) == getattr(group.layer.mixer, "heads", 1) for group in model.groups
    }
    return (frozenset(layers), frozenset(grouped), model.tower_kind, model.task, model.tied_embeddings, model.dtype)


EVERY = bool(os.environ.get("ROOFLINE_EVERY_MODEL"))


@lru_cache(maxsize=1)
def model_kinds() -> list[str]:
    """The smallest model of each kind; all models where ROOFLINE_EVERY_MODEL is set, which takes minutes."""
    if EVERY:
        return list_models()
    found: dict[tuple[object, ...], str] = {}
    for name in sorted(list_models(), key=lambda name: parameters(load_model(name))):
        found.setdefault(kind_of(load_model(name)), name)
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_technique_applies_to_every_kind_of_model_or_is_refused(part: int) -> None:
    """A tenth of the techniques on each kind, in turn; all where ROOFLINE_EVERY_MODEL is set."""
    wrong = []
    for index, model in enumerate(model_kinds()[part::4]):
        before = scenario(model)
        for entry in SIMULATED if EVERY else SIMULATED[index % 10 :: 10]:
            try:
                totals = figures(applied(before, request(entry)))
            except RooflineError as error:
                text = str(error)
                if "\n" in text or len(text) < 20 or text.endswith(".") or not text.isprintable():
                    wrong.append((model, entry.name, text))
            else:
                if not (np.isfinite(totals) & (totals >= 0)).all():
                    wrong.append((model, entry.name, str(totals)))
    assert not wrong


@pytest.mark.parametrize("entry", SIMULATED, ids=lambda entry: entry.name)
def test_every_technique_applies_to_some_model(entry: Technique) -> None:
    for model in ("llama-2-7b", "qwen3-30b-a3b", "bert-base"):
        with contextlib.suppress(RooflineError):
            assert applied(scenario(model), request(entry)).prefill.bound_time > 0
            return
    pytest.fail(f"{entry.name} applies to none of them")


def test_every_technique_is_simulated() -> None:
    assert all(entry.change for entry in TECHNIQUES)


def test_mpoe_shares_the_core_of_eight_experts() -> None:
    """T5-base in all 24 layers has 27.2 times fewer parameters than Switch-Base's 7.41 billion (its abstract)."""
    before = scenario("t5-base")
    dense, experts = (found.memory.weights / 2 for found in (analyze(before), applied(before, "mpoe")))
    of_decoder, router = experts - dense, 12 * 8 * 768
    assert of_decoder - router == pytest.approx(12 * 2 * 8 * 2 * (16 * 16 + 16 * 16 * 256), rel=1e-6)
    assert 7.41e9 / (dense + 2 * of_decoder) == pytest.approx(27.2, rel=0.01)


def test_no_model_level_technique_is_lossless() -> None:
    assert all(entry.price != "lossless" for entry in TECHNIQUES)


EXTREMES = [entry for entry in SIMULATED if any(isinstance(p.default, (int, float)) for p in entry.parameters)]


@given(st.sampled_from(EXTREMES), st.data())
def test_both_ends_of_every_parameter_range(entry: Technique, data: st.DataObject) -> None:
    chosen = {
        parameter.name: str(data.draw(st.sampled_from([parameter.low, parameter.high])))
        for parameter in entry.parameters
        if parameter.low is not None
    }
    whole = {p.name for p in entry.parameters if isinstance(p.default, int)}
    values = {name: str(int(float(text))) if name in whole else text for name, text in chosen.items()}
    model = data.draw(st.sampled_from(["llama-2-7b", "mixtral-8x7b", "bert-base"]))
    written = f"{entry.name}:{','.join(f'{key}={value}' for key, value in values.items())}"
    totals = np.zeros(1)
    with contextlib.suppress(RooflineError):
        totals = figures(applied(scenario(model), written))
    assert (np.isfinite(totals) & (totals >= 0)).all()


# --- composition ------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(SIMULATED), min_size=2, max_size=4, unique_by=lambda entry: entry.name), st.data())
def test_the_order_of_requests_does_not_matter(entries: list[Technique], data: st.DataObject) -> None:
    requests = [request(entry) for entry in entries]
    other = data.draw(st.permutations(requests))
    before = scenario("olmoe-1b-7b")
    try:
        expected = applied(before, *requests)
    except RooflineError:
        with pytest.raises(RooflineError):
            apply_techniques(before, other)
        return
    assert apply_techniques(before, other) == apply_techniques(before, requests) or np.array_equal(
        figures(applied(before, *other)), figures(expected)
    )


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (("awq", "gptq"), "gptq conflicts with awq: both set the weight format"),
        (("awq", "awq"), "requested twice"),
        (("quarot", "kivi"), "kivi sets the format of the KV cache, which is already quarot-kv"),
        (("kivi", "kvquant"), "both set the KV format"),
        (("h2o", "fastgen"), "both set the KV cache eviction"),
        (("streamingllm", "bigbird"), "both set the attention pattern"),
        (("asvd", "lora"), "lora rewrites linear layers that another technique has already rewritten"),
        (("asvd", "lplr"), "already rewritten"),
        (("gqa", "mqa"), "both set the KV heads"),
        (("calm", "skipdecode"), "both set the depth"),
        (("llm-pruner", "slicegpt"), "both set the model size"),
        (("deja-vu", "moefication"), "both set the neurons"),
        (("losparse:low_rank=0.6,sparse=0.6",), "more than all of the weights"),
        (("n-m-sparsity:n=1,m=4",), "got 1:4"),
        (("gqa:kv_heads=7",), "32 heads are not divisible by 7 KV heads"),
        (("gqa:kv_heads=32",), "already has no more than 32 KV heads"),
        (("distillation",), "distillation needs model"),
        (("distillation:model=llama-2-13b",), "not smaller"),
        (("distillation:model=bert-base",), "does not do the task"),
        (("awq:bits=9",), "bits must be between 2 and 8"),
    ],
)
def test_conflicting_requests_are_refused(requests: tuple[str, ...], message: str) -> None:
    with pytest.raises(RooflineError, match=re.escape(message)):
        apply_techniques(scenario(), requests)


def test_quantizing_a_quantized_scenario_is_refused() -> None:
    quantized = scenario().changed(precision=parse_precision("bf16", "w4a8kv8"))
    for name, part in (("awq", "weights"), ("fp8-kv", "KV cache")):
        with pytest.raises(RooflineError, match=f"{name} sets the format of the {part}, which is already int"):
            apply_techniques(quantized, [name])
    mixed = scenario().changed(precision=parse_precision("bf16", "q4_k_m"))
    with pytest.raises(UnsupportedError, match="mixed weight formats of q4_k_m"):
        apply_techniques(mixed, ["flash-llm"])


def test_techniques_of_different_slots_compose() -> None:
    answer = applied(scenario(), "awq", "kivi", "gqa", "h2o", "deja-vu", "calm", "vocabulary-shrinking")
    before = plain("llama-2-7b")
    assert answer.memory.weights < before.memory.weights
    assert answer.memory.kv_cache < before.memory.kv_cache
    assert decode(answer).bound_time < decode(before).bound_time


# --- formats ----------------------------------------------------------------------------------------------------------


def test_awq_speeds_up_decode_and_not_a_long_prefill() -> None:
    before = scenario("llama-2-13b", "a6000", batch=1, prompt=2048)
    with_awq, without = applied(before, "awq"), analyze(before)
    short = scenario("llama-2-13b", "a6000", batch=1)
    gain = decode(analyze(short)).bound_time / decode(applied(short, "awq")).bound_time
    assert gain == pytest.approx(3.6, abs=0.05)
    assert with_awq.prefill.bound_time == pytest.approx(without.prefill.bound_time, rel=0.01)
    assert with_awq.prefill.bound_time >= without.prefill.bound_time * 0.99


def test_the_gain_of_weight_only_quantization_falls_with_the_batch() -> None:
    batches = np.array([1, 4, 16, 64, 256, 1024])
    before = scenario("llama-2-7b", "a100-sxm-80gb", batch=batches, prompt=128)
    gains = decode(analyze(before)).bound_time / decode(applied(before, "awq")).bound_time
    assert (np.diff(gains) <= 0).all()
    assert gains[0] > 3
    assert gains[-1] < 1.2


LINEAR = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
"""Weights of the linear layers of Llama-2-7B."""


@pytest.mark.parametrize(
    ("written", "bits"),
    [
        ("awq", 4 + 20 / 128),
        ("gptq:bits=3,group=0", 3),
        ("gptq:group=32", 4 + 20 / 32),
        ("rtn", 8),
        ("lut-gemm:bits=4,group=128", 4 * (1 + 16 / 128)),
        ("owq", 3.1),
        ("spqr", 3 + 6 / 16 + 64 / 256 + 0.32),
        ("squeezellm", 4 + 0.0045 * 48),
        ("quip", 2),
        ("aqlm", 2),
        ("billm", 1.08),
        ("pb-llm", 1.7),
        ("tsld", 2),
        ("finequant", 4 + 16 / 64),
        ("omniquant", 4 + 16 / 128),
        ("smoothquant", 8),
        ("llm-int8", 8 + 0.001 * 8),
        ("atom", 4 + 4 * 128 / 4096 + 16 / 128),
        ("fptq", 4 + 16 / 128),
        ("fp8", 8),
        ("nvfp4", 4.5),
        ("bitnet", 1),
        ("bitnet-b1.58", 2),
        ("flexgen-int4", 4.5),
        ("qa-lora", 4 + 20 / 32),
        ("flash-llm", 0.2 * 32),
        ("n-m-sparsity", 0.5 * 18),
        ("weight-sharing", 8),
    ],
)
def test_weights_in_memory_follow_the_bits(written: str, bits: float) -> None:
    before = plain("llama-2-7b").memory.weights
    saved = before - applied(scenario(), written).memory.weights
    norms = 2 * 4096 * 32 * 2 / 2 if written == "weight-sharing" else 0  # shared as well
    assert saved - norms == pytest.approx(LINEAR * (16 - bits) / 8, rel=1e-9)


@pytest.mark.parametrize("name", ["q8_0", "q4_k_m", "IQ4_XS"])
def test_a_gguf_file_type_equals_its_weight_scheme(name: str) -> None:
    llama_cpp = scenario().with_(engine="llama.cpp")
    named = analyze(llama_cpp.changed(precision=parse_precision("fp16", name)))
    found = applied(llama_cpp, f"gguf:type={name}")
    assert found.memory == named.memory
    assert found.expected == named.expected
    assert found.precision.activations.name == "int8"


def test_quantized_activations_raise_the_peak_only_with_hardware_support() -> None:
    long = {"batch": 8, "prompt": 2048}
    for hardware, written, least, most in (
        ("a100-sxm-80gb", "smoothquant", 1.5, 2.0),
        ("h100-sxm", "fp8", 1.4, 2.0),
        ("v100-sxm2-32gb", "fp8", 0.8, 1.05),
        ("a100-sxm-80gb", "atom", 1.8, 4.0),
    ):
        before = scenario("llama-2-7b", hardware, **long)
        gain = analyze(before).prefill.bound_time / applied(before, written).prefill.bound_time
        assert least < gain < most


def test_codes_are_upcast_to_the_format_of_the_activations() -> None:
    answer = applied(scenario(), "squeezellm")
    projection = next(figures for figures in decode(answer).ops if figures.name == "up_proj")
    assert projection.arithmetic == load_model("llama-2-7b").dtype
    assert projection.upcast_flops == 2 * 4096 * 11008
    assert set(PROMOTIONS["code"]) <= set(PROMOTIONS["int8"])


@pytest.mark.parametrize(("written", "bits"), [("kivi", 3), ("kivi:bits=4,group=64", 4.5), ("kvquant", 3.32),
                                               ("fp8-kv", 8), ("quarot", 4.25), ("wkvquant", 4.25),
                                               ("llm-qat", 4)])  # fmt: skip
def test_kv_cache_follows_the_bits(written: str, bits: float) -> None:
    before, after = plain("llama-3.1-8b"), applied(scenario("llama-3.1-8b"), written)
    assert after.memory.kv_cache == pytest.approx(before.memory.kv_cache * bits / 16)
    assert after.prefill.flops == pytest.approx(before.prefill.flops, rel=0.1)


def test_kv_quantization_leaves_the_weights() -> None:
    after = applied(scenario(), "kivi")
    assert after.memory.weights == plain("llama-2-7b").memory.weights


# --- sparsity, low rank, adapters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sparsegpt", "wanda", "magnitude-pruning", "unstructured-pruning"])
def test_unstructured_pruning_changes_nothing(name: str) -> None:
    assert np.array_equal(figures(applied(scenario(), name)), figures(plain("llama-2-7b")))
    assert next(entry for entry in TECHNIQUES if entry.name == name).effect.startswith("None at the bound")


def test_flash_llm_loads_sparse_and_computes_dense() -> None:
    before, after = plain("llama-2-7b"), applied(scenario(), "flash-llm")
    assert after.prefill.flops == before.prefill.flops
    assert decode(after).bytes < 0.6 * decode(before).bytes
    even = applied(scenario(), "flash-llm:sparsity=0.5")  # indices as wide as the weights
    assert even.memory.weights == pytest.approx(before.memory.weights)


def test_2_4_sparsity_halves_the_time_of_compute_bound_gemms() -> None:
    before = scenario("llama-2-7b", "a100-sxm-80gb", batch=8, prompt=2048)
    dense, sparse = (
        {figures.name: figures for figures in answer.prefill.ops}
        for answer in (analyze(before), applied(before, "n-m-sparsity"))
    )
    for name in ("q_proj", "gate_proj", "down_proj"):
        assert str(sparse[name].bound) == "compute"
        assert sparse[name].bound_time == pytest.approx(dense[name].bound_time / 2)
    assert sparse["fused_attention"].bound_time == dense["fused_attention"].bound_time
    assert sparse["lm_head"].bound_time == dense["lm_head"].bound_time


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v2-lite"])
def test_2_4_sparsity_halves_the_flops_of_experts_and_mla(model: str) -> None:
    dense, sparse = plain(model), applied(scenario(model), "n-m-sparsity")
    for before, after in zip(phases(dense), phases(sparse), strict=True):
        for was, now in zip(before.ops, after.ops, strict=True):
            weights = [tensor for tensor in was.op.operands if tensor.role == "weight"]
            kept = 1 if not weights or was.name in ("lm_head", "router") else 0.5
            assert now.op.matrix_flops == was.op.matrix_flops * kept


@pytest.mark.parametrize("hardware", ["v100-sxm2-32gb", "mi300x", "tpu-v5e", "m3-max"])
def test_2_4_sparsity_is_refused_without_sparse_tensor_cores(hardware: str) -> None:
    with pytest.raises(UnsupportedError, match="n-m-sparsity is simulated for NVIDIA's sparse tensor cores"):
        apply_techniques(scenario("llama-2-7b", hardware), ["n-m-sparsity"])


@given(st.floats(0.05, 1.0))
def test_low_rank_factors_have_their_fraction_of_the_weights(share: float) -> None:
    saved = plain("llama-2-7b").memory.weights - applied(scenario(), f"asvd:share={share}").memory.weights
    assert saved == pytest.approx(2 * LINEAR * (1 - share), abs=2 * 32 * 7 * (4096 + 11008))  # ranks are whole


def test_low_rank_composes_with_sparsity_and_formats() -> None:
    before = plain("llama-2-7b")
    after = applied(scenario(), "asvd:share=0.5", "awq", "n-m-sparsity")
    assert after.prefill.flops < 0.4 * before.prefill.flops
    assert after.memory.weights < 0.2 * before.memory.weights


def test_losparse_and_dsformer_cost_as_much_as_one_low_rank_factorisation() -> None:
    for name in ("losparse", "dsformer"):
        assert np.array_equal(figures(applied(scenario(), name)), figures(applied(scenario(), "asvd:share=0.5")))


def test_tensorgpt_shrinks_only_the_embedding() -> None:
    before, after = plain("llama-2-7b"), applied(scenario(), "tensorgpt:ratio=4")
    assert before.memory.weights - after.memory.weights == pytest.approx(32000 * 4096 * 2 * 0.75)
    assert after.prefill.flops == before.prefill.flops
    both = applied(scenario(), "tensorgpt:ratio=4", "awq")
    assert both.memory.weights < applied(scenario(), "awq").memory.weights
    with pytest.raises(UnsupportedError, match="shares its embedding"):
        apply_techniques(scenario("llama-3.2-1b"), ["tensorgpt"])


def test_an_adapter_adds_two_low_rank_gemms() -> None:
    before, after = plain("llama-2-7b"), applied(scenario(), "lora:rank=16")
    added = 32 * 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
    assert after.memory.weights - before.memory.weights == pytest.approx(2 * added)
    several = applied(scenario(), "lora:rank=16,adapters=8")
    assert several.memory.weights - before.memory.weights == pytest.approx(8 * 2 * added)
    one, many = (
        applied(scenario(), "lora:rank=16,adapters=1000"),
        applied(scenario(batch=32), "lora:rank=16,adapters=1000"),
    )
    batched = analyze(scenario(batch=32))
    read = many.decode.bytes - one.decode.bytes - (batched.decode.bytes - before.decode.bytes)
    assert read / 2 / added == pytest.approx(1000 * (0.999**4 - 0.999**32), rel=0.15)  # distinct ones, and activations
    padded = applied(scenario(), "lora:rank=16,adapters=100,slots=8,largest=64")
    assert padded.memory.weights - before.memory.weights == pytest.approx(8 * 4 * 2 * added)
    quantized = applied(scenario(), "qlora:rank=16")
    assert quantized.memory.weights < 0.4 * before.memory.weights


# --- smaller models ---------------------------------------------------------------------------------------------------


def test_distillation_equals_the_student() -> None:
    answer = applied(scenario("llama-3.1-8b"), "distillation:model=llama-3.2-1b")
    assert np.array_equal(figures(answer), figures(plain("llama-3.2-1b")))


def test_sheared_llama_has_the_published_size() -> None:
    sheared = apply_techniques(scenario("llama-2-7b"), ["sheared-llama"]).model
    assert (sheared.hidden, sheared.layers, sheared.attentions[0].heads) == (2560, 32, 20)
    assert parameters(sheared) == pytest.approx(2.7e9, rel=0.02)


def test_query_heads_are_pruned_with_their_kv_heads() -> None:
    pruned = pruned_model(load_model("llama-3.1-8b"), "test", heads=0.5).attentions[0]
    assert (pruned.heads, pruned.kv_heads, pruned.head_dim) == (16, 4, 128)


def test_pruning_an_encoder_decoder_prunes_both() -> None:
    pruned = apply_techniques(scenario("t5-base"), ["llm-pruner"]).model
    assert pruned.tower is not None
    assert pruned.tower.attentions[0].heads == pruned.attentions[0].heads == 10


def test_slicegpt_adds_rotations() -> None:
    before, after = plain("llama-2-7b"), applied(scenario(), "slicegpt:slice=0.25")
    rotation = op(after.prefill, "attn_add_rotation")
    assert rotation.operands[1].shape == (3072, 3072)
    rotations = 2 * 32 * 3072 * 3072 * 2
    norms = 65 * 4096 * 2
    rest = before.memory.weights * 0.75 + rotations
    assert after.memory.weights == pytest.approx(rest, abs=norms)


def test_layer_pruning_and_vocabulary_shrinking() -> None:
    before = plain("llama-2-7b")
    half = applied(scenario(), "layer-pruning:share=0.5")
    assert half.memory.kv_cache == before.memory.kv_cache / 2
    smaller_vocabulary = applied(scenario(), "vocabulary-shrinking:share=0.5")
    assert before.memory.weights - smaller_vocabulary.memory.weights == pytest.approx(2 * 16000 * 4096 * 2)
    gemma = apply_techniques(scenario("gemma-3-12b"), ["layer-pruning:share=0.5"]).model
    assert gemma.layers == sum(group.count for group in gemma.groups) == 24


def test_shared_weights_are_read_by_every_layer() -> None:
    before, after = plain("mixtral-8x7b"), applied(scenario("mixtral-8x7b"), "weight-sharing:repeats=4")
    assert decode(after).bytes == decode(before).bytes
    assert after.memory.weights < 0.3 * before.memory.weights
    assert after.prefill.expected == before.prefill.expected  # all experts of a layer are those of this rank


# --- attention --------------------------------------------------------------------------------------------------------


def test_streamingllm_bounds_the_kv_cache() -> None:
    grid = np.array([512, 2048, 8192, 10**6])
    before = scenario(prompt=grid, generate=1)
    cache = applied(before, "streamingllm").memory.kv_cache
    whole = analyze(before).memory.kv_cache
    assert cache[0] == whole[0]
    assert cache == pytest.approx(whole / (grid + 0) * np.minimum(grid, 1024), rel=0.01)
    times = decode(applied(before, "streamingllm")).bound_time
    assert times[1] == times[2] == times[3]


def test_a_smaller_window_of_the_model_stays() -> None:
    before = load_model("gemma-3-12b")
    after = apply_techniques(scenario("gemma-3-12b"), ["sliding-window"]).model
    windows = {attention.window for attention in before.attentions if attention.window}
    assert {attention.window for attention in after.attentions} == {*windows, 4096}


def test_kv_cache_eviction_bounds_decode_and_not_prefill() -> None:
    before = scenario(prompt=2048)
    after = applied(before, "h2o")
    assert after.prefill.bound_time == analyze(before).prefill.bound_time
    assert after.prefill.flops == analyze(before).prefill.flops
    token = 2 * 32 * 4096 * 2
    attention = [figures for figures in decode(after).ops if figures.name == "fused_attention"]
    assert attention[0].kv_bytes * 32 == pytest.approx(4 * 411 * token)
    assert after.memory.kv_cache == pytest.approx(4 * 411 * token)


def test_gqa_and_mqa_shrink_the_kv_cache() -> None:
    before = plain("llama-2-7b")
    for written, kv_heads in (("gqa", 8), ("gqa:kv_heads=4", 4), ("mqa", 1)):
        after = applied(scenario(), written)
        assert after.memory.kv_cache == before.memory.kv_cache * kv_heads / 32
        saved = 2 * 32 * 4096 * (4096 - kv_heads * 128) * 2
        assert before.memory.weights - after.memory.weights == pytest.approx(saved)


def test_attention_sharing_halves_the_kv_cache() -> None:
    before, after = plain("llama-2-7b"), applied(scenario(), "attention-sharing")
    assert after.memory.kv_cache == before.memory.kv_cache / 2
    assert before.memory.weights - after.memory.weights == pytest.approx(16 * 2 * 4096 * 4096 * 2)


def test_linear_attention_has_a_state_of_fixed_size() -> None:
    model = apply_techniques(scenario(), ["linear-attention"]).model
    assert model.groups[0].layer.mixer == Retention(32, 128, 128, gated=False)
    after = applied(scenario(prompt=[512, 8192]), "linear-attention")
    assert (after.memory.kv_cache == 0).all()
    assert after.memory.state[0] == after.memory.state[1] == 4 * 32 * 32 * 128 * 128 * 4


def test_linformer_flops_follow_its_rank() -> None:
    before = analyze(scenario("bert-base", prompt=4096, fusions=()))
    after = applied(scenario("bert-base", prompt=4096, fusions=()), "linformer:rank=256")
    dense, projected = (
        next(figures for figures in answer.prefill.ops if figures.name == "qk_matmul") for answer in (before, after)
    )
    scores = 4 * 12 * 4096 * 4096 * 64 * 2
    assert dense.flops == scores
    assert projected.flops == pytest.approx(2 * scores * 256 / 4096)


def test_hash_attention_keeps_the_kv_cache() -> None:
    before, after = plain("llama-2-7b"), applied(scenario(), "hash-attention")
    assert after.memory.kv_cache == before.memory.kv_cache
    assert decode(after).bytes < decode(before).bytes
    assert after.prefill.flops < before.prefill.flops


# --- conditional computation ------------------------------------------------------------------------------------------


def test_deja_vu_reads_the_active_neurons_of_its_batch() -> None:
    one = applied(scenario(batch=1), "deja-vu:active=0.2,predictor=1000")
    up = next(figures for figures in decode(one).ops if figures.name == "up_proj")
    assert up.flops == pytest.approx(2 * 4096 * 11008 * 0.2)
    assert up.weight_bytes == pytest.approx(2 * 4096 * 11008 * 0.2)
    predictor = [figures for figures in decode(one).ops if figures.name.startswith("neuron_predictor")]
    assert sum(figures.flops for figures in predictor) == pytest.approx(2 * 1000 * (4096 + 11008))
    many = applied(scenario(batch=64), "deja-vu")
    gain = [
        decode(analyze(scenario(batch=batch))).bound_time / decode(answer).bound_time
        for batch, answer in ((1, one), (64, many))
    ]
    assert gain[0] > 1.5
    assert gain[1] < 1


def test_expert_techniques() -> None:
    split = apply_techniques(scenario(), ["moefication"]).model.experts[0]
    assert (split.experts, split.top_k, split.width) == (344, 69, 32)
    grown = apply_techniques(scenario(), ["sparse-upcycling"]).model
    kinds = [type(group.layer.feed_forward) for group in grown.groups]
    assert kinds == [Mlp, MixtureOfExperts]
    assert [group.count for group in grown.groups] == [16, 16]
    pruned = apply_techniques(scenario("mixtral-8x7b"), ["expert-pruning", "top-k-reduction"]).model.experts[0]
    assert (pruned.experts, pruned.top_k) == (6, 1)
    before, task = plain("mixtral-8x7b"), applied(scenario("mixtral-8x7b"), "task-moe")
    assert task.prefill.flops == pytest.approx(before.prefill.flops, rel=0.01)
    assert task.memory.weights < 0.3 * before.memory.weights


def test_early_exit_runs_a_fraction_of_the_layers_and_lm_head() -> None:
    before, after = plain("llama-3.1-8b"), applied(scenario("llama-3.1-8b"), "skipdecode:depth=0.25")
    ends = sum(
        figures.count * figures.flops for figures in decode(before).ops if figures.section in ("embedding", "head")
    )
    assert decode(after).flops == pytest.approx(ends + 0.25 * (decode(before).flops - ends))
    assert after.prefill.flops == before.prefill.flops
    assert np.array_equal(figures(after)[8:], figures(before)[8:])
    depths = applied(scenario("llama-3.1-8b"), "mixture-of-depths")
    assert decode(depths).flops == pytest.approx(ends + (1 - 0.875 / 2) * (decode(before).flops - ends))


def test_sample_early_exit_of_an_encoder() -> None:
    before, after = plain("bert-base"), applied(scenario("bert-base"), "sample-early-exit:depth=0.5")
    assert after.prefill.flops < 0.52 * before.prefill.flops
    assert after.memory.weights == before.memory.weights


def test_streamingllm_changes_only_attention() -> None:
    before = scenario("llama-3.1-8b")
    after = apply_techniques(before, ["streamingllm"])
    mixer = after.model.groups[0].layer.mixer
    assert isinstance(mixer, Attention)
    assert replace(mixer, window=None, extra=0) == before.model.groups[0].layer.mixer
    assert after.precision == before.precision
    assert after.settings == before.settings
    assert find_format("int4").arithmetic == "int4"
