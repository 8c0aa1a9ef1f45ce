"""System-level techniques: kernels, serving, speculation, placement."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import (
    Analysis,
    Model,
    RooflineError,
    Scenario,
    UnsupportedError,
    analyze,
    kv_bytes_per_token,
    list_models,
    load_hardware,
    load_model,
    parameters,
    parse_precision,
    state_bytes_per_sequence,
)
from roofline.bound.memory import weight_bytes
from roofline.graph.network import network
from roofline.graph.offload import Offload
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.sublayers import Attention, Hyena
from roofline.techniques import Level, Price, Technique, apply_techniques, techniques
from roofline.techniques.drafts import eagle_layer, medusa_heads, prediction_module
from roofline.timing.collectives import EXCHANGED, LATE
from roofline.timing.passes import OVERLAPPED
from roofline.whatif.odds import gain
from tests.cases import MODELS

H100 = load_hardware("h100-sxm")


def test_masks_of_a_grammar_cost_nothing_beside_the_pass() -> None:
    """Nearly no cost a token where they overlap (XGrammar, abstract); in turn, each sequence has its mask."""
    plain = Scenario("llama-3.1-8b", H100, batch=32)
    free, beside, after, slow = (
        float(analyze(apply_techniques(plain, given)).expected.tpot.mid)
        for given in (
            [],
            ["structured-output:overlap=1"],
            ["structured-output:overlap=0"],
            ["structured-output:overlap=0,mask=1ms"],
        )
    )
    assert beside == pytest.approx(free, rel=0.01)
    assert slow - after == pytest.approx(32 * 960e-6, rel=0.05)


ENTRIES = [entry for entry in techniques().values() if entry.level is not Level.MODEL]
SIMULATED = [entry for entry in ENTRIES if entry.change is not None]


STATIC = Settings(memory="static")  # KV caches in closed form, not in the engine's blocks


def plain(model: str | Model = "llama-3.1-8b", **workload: Any) -> Scenario:
    loaded = load_model(model) if isinstance(model, str) else model
    return Scenario(
        loaded, workload.pop("hardware", H100), **{"prompt": 700, "generate": 8, "settings": STATIC, **workload}
    )


def run(model: str | Model, *requests: str, **workload: Any) -> Analysis:
    return analyze(apply_techniques(plain(model, **workload), requests))


def request(entry: Technique) -> str:
    """A request for the technique, with its required parameters."""
    needed = {"draft": "opt-125m", "model": "opt-125m", "accept": "2"}
    given = [f"{p.name}={needed[p.name]}" for p in entry.parameters if p.default is None and p.name in needed]
    return f"{entry.name}:{','.join(given)}" if given else entry.name


def tpot(answer: Analysis) -> Any:
    return answer.generation.tpot


# --- every entry on every model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_technique_applies_to_every_model_or_is_refused(name: str) -> None:
    """A tenth of the techniques on each model, in turn; all where ROOFLINE_EVERY_MODEL is set."""
    scenario, turn = plain(name), list_models().index(name) % 10
    before, refusals = analyze(scenario), []
    for entry in SIMULATED if os.environ.get("ROOFLINE_EVERY_MODEL") else SIMULATED[turn::10]:
        try:
            after = apply_techniques(scenario, [request(entry)])
            answer = analyze(after)
            figures = [
                *(answer.prefill.flops, answer.prefill.bytes, answer.prefill.link_bytes, answer.generation.total),
                *(answer.memory.weights, answer.memory.kv_cache, answer.memory.state, answer.memory.activation_peak),
            ]
        except RooflineError as error:
            refusals.append(str(error))
            continue
        assert all(np.isfinite(figure) and figure >= 0 for figure in figures), entry.name
        if entry.name != "petals":  # its machines are joined by the Internet
            assert after.hardware is scenario.hardware, entry.name
        assert after.precision == scenario.precision, entry.name
        if entry.name != "powerinfer":
            assert after.model is scenario.model, entry.name
        if entry.level == "system" and entry.price is Price.LOSSLESS:
            tokens = (scenario.batch, scenario.prompt + scenario.prefix, scenario.generate)
            assert (after.batch, after.prompt + after.prefix, after.generate) == tokens, entry.name
        assert after.techniques[-1].startswith(entry.name)
    assert analyze(scenario).generation == before.generation  # nothing was changed in place
    assert all(len(refusal) > 20 and "\n" not in refusal for refusal in refusals)


# --- speculation ------------------------------------------------------------------------------------------------------


@given(st.floats(0, 0.999), st.integers(1, 20))
def test_tokens_per_iteration_in_closed_form(acceptance: float, length: int) -> None:
    answer = run("llama-3.1-8b", f"speculative-decoding:draft=llama-3.2-1b,length={length},acceptance={acceptance!r}")
    expected = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    assert answer.tokens_per_iteration == pytest.approx(expected)


@pytest.mark.parametrize("length", [2, 4, 8])
def test_speculative_decoding_gains_fall_with_the_batch(length: int) -> None:
    target, tp4 = load_model("llama-3.1-70b"), Settings(parallel=Parallelism(tensor=4))
    batches = np.array([1, 4, 16, 32, 64, 128, 256, 512, 1024])
    scenario = Scenario(target, H100, batch=batches, prompt=128, generate=64, settings=tp4)
    name = f"speculative-decoding:draft=llama-3.2-1b,length={length},acceptance=0.8"
    drafted = apply_techniques(scenario, [name])
    gains = tpot(analyze(scenario)) / tpot(analyze(drafted))
    assert (np.diff(gains) < 0).all()
    assert 1.5 < gains[0] < analyze(drafted).tokens_per_iteration
    assert gains[-1] < 1
    # A compute-bound iteration computes length + 1 tokens and yields the accepted ones.
    assert gains[-1] == pytest.approx(analyze(drafted).tokens_per_iteration / (length + 1), rel=0.1)


def test_speculative_decoding_breaks_even_below_the_ridge_point() -> None:
    scenario = plain("llama-3.1-8b", batch=np.arange(1, 400), prompt=1, generate=16)
    free = apply_techniques(scenario, ["prompt-lookup:length=3,accept=2"])
    gains = tpot(analyze(scenario)) / tpot(analyze(free))
    crossover = int(scenario.batch[np.argmax(gains < 1)])
    ridge = H100.matrix_peak("bf16") / H100.memory_bandwidth
    assert ridge / 4 < crossover < ridge  # compute-bound with four tokens a sequence, not with one


def test_verification_computes_logits_at_every_position() -> None:
    answer = run("llama-3.1-8b", "prompt-lookup:length=7,accept=2")
    assert answer.decode is not None
    ops = {op.name: op.flops for op in answer.decode.ops}
    assert ops["lm_head"] == 8 * 2 * 4096 * 128256


def test_rejected_free_drafts_cost_verification_only() -> None:
    before = run("llama-3.1-8b")
    after = run("llama-3.1-8b", "prompt-lookup:length=1,acceptance=0")
    assert after.tokens_per_iteration == 1
    assert 1 < tpot(after) / tpot(before) < 1.02


@pytest.mark.parametrize(
    ("model", "millions"),
    [("llama-2-7b", 240), ("llama-2-13b", 370), ("llama-2-70b", 990)],
)
def test_eagle_parameters(model: str, millions: int) -> None:
    """As published beside the checkpoints: 0.24, 0.37 and 0.99 billion, without embedding and head.

    The 0.56 billion published for 33B are fewer than its layer (0.535) and the fusing GEMM (0.089) have.
    """
    target = load_model(model)
    ends = 2 * target.vocabulary * target.hidden
    assert (parameters(eagle_layer(target)) - ends) / 1e6 == pytest.approx(millions, abs=7.5)


def test_medusa_parameters() -> None:
    target = load_model("llama-2-7b")
    assert parameters(medusa_heads(target, 4)) == 4 * (4096 * 4096 + 32000 * 4096)


@pytest.mark.parametrize(
    ("name", "stored"),
    [("nemotron-3-super-120b-a12b", 2_942_325_248), ("qwen3.5-27b", 424_699_392)],  # headers of their BF16 files
)
def test_a_prediction_module_has_the_parameters_of_the_checkpoints(name: str, stored: int) -> None:
    """But for norms of inputs. Where a layer is attention or experts alone, the module has both."""
    model = load_model(name)
    ends = 2 * model.vocabulary * model.hidden  # shared with the model
    assert parameters(prediction_module(model)) - ends == pytest.approx(stored, rel=1e-4)


def test_mtp_module_parameters() -> None:
    """The checkpoint has 685 B parameters, 671 B in the main model, 14 B with copies of embedding and lm_head."""
    module = prediction_module(load_model("deepseek-v3"))
    assert parameters(module) == pytest.approx(14e9, rel=0.05)


def test_draft_model_memory() -> None:
    before = run("llama-3.1-70b").memory
    after = run("llama-3.1-70b", "speculative-decoding:draft=llama-3.2-1b").memory
    draft = load_model("llama-3.2-1b")
    precision = parse_precision("bf16")
    assert after.weights - before.weights == weight_bytes(network(draft, precision))
    assert after.kv_cache - before.kv_cache == pytest.approx(kv_bytes_per_token(draft, precision) * (700 + 7))


def test_eagle_shares_embedding_and_lm_head_with_its_target() -> None:
    target = load_model("llama-2-7b")
    before, after = run(target).memory, run(target, "eagle").memory
    ends = (2 * target.vocabulary + 1) * target.hidden  # tables, and the final norm
    assert after.weights - before.weights == 2 * (parameters(eagle_layer(target)) - ends)


def test_mtp_of_deepseek_v3() -> None:
    node = Settings(parallel=Parallelism(tensor=8, expert=8))
    scenario = Scenario(load_model("deepseek-v3"), load_hardware("h200-sxm"), settings=node)
    drafted = apply_techniques(scenario, ["multi-token-prediction"])
    assert 1.85 <= analyze(drafted).tokens_per_iteration <= 1.9  # its report: 85 to 90% of second tokens
    assert 1 < tpot(analyze(scenario)) / tpot(analyze(drafted)) < 1.85


def test_self_speculative_drafts_run_half_of_the_layers_and_lm_head() -> None:
    answer = run("llama-3.1-8b", "self-speculative:depth=0.5")
    assert answer.decode is not None
    counts = {(op.section, op.name): op.count for op in answer.decode.ops}
    assert counts["draft layer", "up_proj"] == 16
    assert counts["draft head", "lm_head"] == 1
    assert counts["verify layer", "up_proj"] == 32


def test_speculative_decoding_composes_with_quantization_and_tp() -> None:
    scenario = plain("llama-3.1-70b", hardware=load_hardware("a100-sxm-80gb"))
    both = apply_techniques(scenario, ["eagle:accept=3.5", "tensor-parallelism:degree=4"])
    assert both.settings.parallel.tensor == 4
    assert tpot(analyze(both)) < tpot(analyze(scenario)) / 4
    if "awq" in techniques():
        either = [
            apply_techniques(scenario, names) for names in (["eagle:accept=3.5", "awq"], ["awq", "eagle:accept=3.5"])
        ]
        assert tpot(analyze(either[0])) == tpot(analyze(either[1]))
        assert tpot(analyze(either[0])) < tpot(analyze(scenario)) / 3


@pytest.mark.parametrize("degrees", [{"pipeline": 2}, {"expert": 2}, {"data": 2}, {"sequence": 2}])
def test_a_dense_draft_model_with_any_parallelism(degrees: dict[str, int]) -> None:
    scenario = plain("mixtral-8x7b", settings=Settings(parallel=Parallelism(**degrees)), batch=4)
    assert analyze(apply_techniques(scenario, ["speculative-decoding:draft=opt-125m"])).generation.total > 0


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        ("llama-3.2-1b", ["speculative-decoding:draft=llama-3.1-8b"], "no smaller"),
        ("llama-3.2-1b", ["speculative-decoding:draft=llama-3.2-1b"], "no smaller"),
        ("llama-3.1-8b", ["speculative-decoding"], "needs draft"),
        ("llama-3.1-8b", ["speculative-decoding:draft=t5-small"], "encoder"),
        ("llama-3.1-8b", ["speculative-decoding:draft=lama"], "unknown model"),
        ("llama-3.1-8b", ["medusa", "eagle"], "conflicts with"),
        ("llama-3.1-8b", ["medusa", "medusa"], "requested twice"),
        ("llama-3.1-8b", ["eagle:accept=7"], "cannot yield 7 tokens"),
        ("llama-3.1-8b", ["specinfer:draft=llama-3.2-1b"], "needs accept"),
        ("llama-3.1-8b", ["multi-token-prediction"], "has none"),
        ("mamba-2.8b", ["medusa"], "verifies a token tree"),
        ("bert-base", ["lookahead"], "encoder-only"),
        ("llama-3.1-8b", ["paged-attention", "contiguous-kv"], "conflicts with"),
        ("llama-3.1-8b", ["continuous-batching", "static-batching"], "conflicts with"),
        ("llama-3.1-8b", ["radix-attention:hit=1.5"], "between 0 and 1"),
        ("llama-3.1-8b", ["flexgen", "llama-cpp-split"], "conflicts with"),
        ("llama-3.1-8b", ["tensor-parallelism:degree=3"], "does not divide"),
        ("llama-3.1-8b", ["expert-parallelism"], "no experts"),
        ("llama-3.1-8b", ["powerinfer"], "ReLU"),
        ("llama-3.1-8b", ["beam-search", "skeleton-of-thought"], "conflicts with"),
        ("mamba-2.8b", ["paged-attention"], "applies to the KV cache"),
        ("mamba-2.8b", ["flash-attention"], "finds no operators"),
        ("llama-3.1-8b", ["tensor-parallelism", "llama-cpp-split"], "one device"),
        ("llama-3.1-8b", ["zero-inference:bandwidth=fast"], "fast"),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(model: str, names: list[str], message: str) -> None:
    with pytest.raises(RooflineError, match=message) as error:
        run(model, *names)
    assert "\n" not in str(error.value)


def test_conflicts_with_settings_of_the_scenario_are_refused() -> None:
    parallel = plain(settings=Settings(parallel=Parallelism(tensor=2)))
    with pytest.raises(
        RooflineError, match="tensor-parallelism conflicts with the degree of tensor parallelism 2 of the scenario"
    ):
        apply_techniques(parallel, ["tensor-parallelism"])
    with pytest.raises(RooflineError, match="offload"):
        apply_techniques(plain(settings=Settings(offload=Offload(0.5))), ["flexgen"])


# --- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["flash-attention", "qkv-fusion", "gate-up-fusion", "gate-up-activation-fusion", "residual-norm-fusion"]
)
def test_fusions_reduce_bytes_and_keep_flops(name: str) -> None:
    before, after = (analyze(apply_techniques(plain(fusions=()), names)) for names in ([], [name]))
    assert after.prefill.bytes < before.prefill.bytes
    assert after.prefill.flops == pytest.approx(before.prefill.flops)
    everything = analyze(apply_techniques(plain(fusions=()), ["whole-layer-fusion"]))
    assert everything.prefill.bytes < after.prefill.bytes


@pytest.mark.parametrize(
    "name", ["cuda-graphs", "flash-decoding", "unsplit-attention", "flashdecoding-plus-plus", "continuous-batching"]
)
def test_no_effect_at_the_bound(name: str) -> None:
    assert run("llama-3.1-8b", name).generation == run("llama-3.1-8b").generation
    assert techniques()[name].caveat


def test_cuda_graphs_remove_the_launch_time_of_decode() -> None:
    """Transformers issues every kernel of a step on the host; replayed, the kernels and the host's step remain."""
    model = load_model("llama-2-7b")
    eager = Scenario(model, load_hardware("h100-sxm"), engine="hf-eager")
    replayed = apply_techniques(eager, ["cuda-graphs"])
    before, after = analyze(eager), analyze(replayed)
    assert before.expected.tpot is not None
    assert after.expected.tpot is not None
    assert before.decode is not None
    engine = eager.profile
    kernels = sum(op.count * engine.unfused.get(op.op.kind, (1.0, 1.0))[0] for op in before.decode.ops)
    assert before.expected.tpot.mid == pytest.approx(kernels * engine["issue"] + engine["step"], rel=0.01)
    assert after.expected.tpot.mid < 0.7 * before.expected.tpot.mid
    assert after.prefill.expected == before.prefill.expected
    faster = gain(before, after)
    assert faster.low > 1.3
    served = Scenario(model, load_hardware("h100-sxm"))
    assert apply_techniques(served, ["cuda-graphs"]).engine == served.engine


@pytest.mark.parametrize(
    ("model", "hardware", "splits"), [("llama-3.1-8b", "h100-sxm", True), ("llama-2-7b", "a100-sxm-80gb", False)]
)
def test_split_keys_gain_with_the_context(model: str, hardware: str, splits: bool) -> None:
    """Relative to a kernel without splits; FlashAttention-2 on A100 splits for grouped heads alone, vLLM's on H100 all.

    Dao et al. 2023 report up to 8 times faster generation at long contexts and hardly any gain at short ones.
    """
    times = {}
    for name in ("unsplit-attention", None, "flash-decoding"):
        scenario = plain(model, hardware=load_hardware(hardware), prompt=np.array([512, 8192, 65536]))
        answer = analyze(apply_techniques(scenario, [name] if name else []))
        times[name] = answer.expected.tpot.mid if answer.expected.tpot else np.nan
    gains = times["unsplit-attention"] / times["flash-decoding"]
    assert gains[0] < 1.1
    assert (np.diff(gains) > 0).all()
    assert 1.2 < gains[-1] < 8
    np.testing.assert_allclose(times[None], times["flash-decoding" if splits else "unsplit-attention"], rtol=1e-12)
    enough = plain(model, hardware=load_hardware(hardware), batch=128, prompt=8192)
    busy = [analyze(apply_techniques(enough, [name])).expected.tpot for name in ("unsplit-attention", "flash-decoding")]
    assert busy[0] is not None
    assert busy[1] is not None
    assert busy[0].mid == pytest.approx(busy[1].mid, rel=0.05)  # enough sequences fill the device


def test_flashdecoding_plus_plus_against_transformers() -> None:
    """Table 6 of Zhou et al. 2024: 38.96 and 106.64 tokens/s, LLaMA-2-7B, batch 1, 1k and 128 tokens on one A100."""
    scenario = Scenario(
        *(load_model("llama-2-7b"), load_hardware("a100-sxm-80gb")),
        prompt=1024,
        generate=128,
        precision=parse_precision("fp16"),
        engine="hf-eager",
    )
    before, after = (
        analyze(apply_techniques(scenario, names)).expected.tokens_per_second.mid
        for names in ([], ["flashdecoding-plus-plus"])
    )
    assert before == pytest.approx(38.963, rel=0.01)  # its launches were fitted on an H200
    assert 2 < after / before < 106.636 / 38.963


# --- serving ----------------------------------------------------------------------------------------------------------


def is_causal(name: str) -> bool:
    """Whether all layers attend to all that precedes, and to nothing else."""
    layers = [group.layer for group in load_model(name).groups]
    attend = all(type(layer.mixer) is Attention and layer.mixer.window is None and not layer.cross for layer in layers)
    return attend and load_model(name).task == "generate"


CAUSAL = st.sampled_from(list_models()).filter(is_causal)


@given(CAUSAL, st.integers(2, 5000), st.integers(1, 3000), st.integers(0, 500))
def test_chunked_prefill_keeps_flops_and_never_reduces_bytes(name: str, prompt: int, chunk: int, prefix: int) -> None:
    whole = run(name, prompt=prompt, prefix=prefix, batch=2)
    cut = run(name, f"chunked-prefill:chunk={chunk}", prompt=prompt, prefix=prefix, batch=2)
    assert cut.prefill.flops == pytest.approx(whole.prefill.flops, rel=1e-9)
    assert cut.prefill.bytes >= whole.prefill.bytes * (1 - 1e-9)
    assert cut.prefill.bound_time >= whole.prefill.bound_time * (1 - 1e-9)
    assert cut.decode is not None
    assert whole.decode is not None
    assert cut.decode.bound_time == whole.decode.bound_time


def test_a_parameter_may_be_written_like_a_length() -> None:
    assert (
        run("llama-3.1-8b", "chunked-prefill:chunk=1K").prefill.bytes
        == run("llama-3.1-8b", "chunked-prefill:chunk=1024").prefill.bytes
    )


def test_every_prefill_chunk_reads_the_weights() -> None:
    cut = run("llama-3.1-8b", "chunked-prefill:chunk=512", prompt=2048)
    whole = run("llama-3.1-8b", prompt=2048)
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)

    def weights(answer: Analysis) -> float:
        return sum(op.count * op.weight_bytes for op in answer.prefill.ops if op.name.endswith("_proj"))

    assert weights(whole) == 2 * layers
    assert weights(cut) == 4 * 2 * layers


@pytest.mark.parametrize("name", ["radix-attention", "prompt-cache"])
def test_a_prefix_hit_computes_only_the_uncached_tokens(name: str) -> None:
    scenario = plain(prompt=1000, prefix=24, batch=4)
    hit = apply_techniques(scenario, [f"{name}:hit=0.7"])
    assert (hit.prompt, hit.prefix) == (300, 724)
    rest = analyze(plain(prompt=300, prefix=724, batch=4))
    assert analyze(hit).generation.ttft == rest.generation.ttft < analyze(scenario).generation.ttft
    assert tpot(analyze(hit)) == tpot(analyze(scenario))
    token = kv_bytes_per_token(scenario.model, parse_precision("bf16"))
    # Four sequences of 1024 + 7 tokens, of which 724 are the same.
    assert analyze(hit).memory.kv_cache == pytest.approx(token * (4 * 1031 - 3 * 724))


def test_prefix_caching_keeps_an_explicit_context() -> None:
    assert apply_techniques(plain(prompt=1000, context=5000), ["radix-attention"]).context == 5000


def test_kv_allocation_in_closed_form() -> None:
    token = kv_bytes_per_token(load_model("llama-2-7b"), parse_precision("fp16"))
    workload = {"batch": 3, "prompt": 100, "generate": 51}  # 150 tokens in the cache at the end
    expected = {
        "token-attention": 150,
        "paged-attention": 160,
        "paged-attention:block=64": 192,
        "contiguous-kv": 4096,
        "contiguous-kv:length=120": 150,
        "contiguous-kv:length=2048": 2048,
        "s3:bucket=1": 151,
        "s3:bucket=1,excess=2": 202,
        "s3": 200,
    }
    for name, tokens in expected.items():
        memory = run("llama-2-7b", name, **workload).memory
        assert memory.kv_cache == pytest.approx(3 * token * tokens), name


def test_static_batching_wastes_finished_sequences() -> None:
    before, after = run("llama-3.1-8b", batch=8), run("llama-3.1-8b", "static-batching:utilisation=0.25", batch=8)
    assert after.generation.total == before.generation.total
    assert after.generation.tokens_per_second == before.generation.tokens_per_second / 4


def test_padding_affects_prefill_only() -> None:
    padded = run("llama-3.1-8b", "padded-batching:padding=1.5", batch=8, prompt=1000)
    assert padded.generation.ttft == run("llama-3.1-8b", batch=8, prompt=1500).generation.ttft
    assert tpot(padded) == tpot(run("llama-3.1-8b", batch=8, prompt=1000))
    assert run("llama-3.1-8b", "packed-batching").generation == run("llama-3.1-8b").generation


def test_beams_are_sequences_in_decode() -> None:
    before, after = run("llama-3.1-8b", batch=2), run("llama-3.1-8b", "beam-search:beams=4", batch=2)
    assert tpot(after) == tpot(run("llama-3.1-8b", batch=8))
    assert after.generation.ttft == before.generation.ttft
    assert after.memory.kv_cache == 4 * before.memory.kv_cache


# --- placement --------------------------------------------------------------------------------------------------------

shares = st.floats(0, 1)


@given(
    st.sampled_from(["llama-2-13b", "qwen3-30b-a3b", "mamba-2.8b", "bert-large"]), shares, shares, st.integers(1, 64)
)
def test_offloading_is_never_faster(name: str, weights: float, kv: float, batch: int) -> None:
    before = run(name, batch=batch)
    for request_ in (f"flexgen:weights={weights!r},kv={kv!r}", f"zero-inference:weights={weights!r}"):
        after = run(name, request_, batch=batch)
        assert after.generation.total >= before.generation.total * (1 - 1e-12)
        assert after.memory.weights == pytest.approx(before.memory.weights * (1 - weights))
        left = 1 - kv if "kv" in request_ else 1
        assert after.memory.kv_cache == pytest.approx(before.memory.kv_cache * left)


def test_tpot_is_inverse_to_the_offload_bandwidth() -> None:
    memory, disk = run("llama-2-13b", "flexgen:kv=0"), run("llama-2-13b", "zero-inference:bandwidth=3 GB/s")
    assert tpot(disk) == pytest.approx(tpot(memory) * 64 / 3, rel=0.01)


def test_layer_split_with_the_cpu() -> None:
    before = run("llama-2-13b")
    after = run("llama-2-13b", "llama-cpp-split:share=0.25")
    assert tpot(after) > tpot(before)
    assert after.memory.weights == before.memory.weights * 0.75
    assert tpot(run("llama-2-13b", "llama-cpp-split:share=0")) == pytest.approx(tpot(before))


def test_attention_on_the_cpu_frees_the_kv_cache() -> None:
    before, after = run("llama-2-13b", batch=8), run("llama-2-13b", "fastdecode", batch=8)
    assert after.memory.kv_cache == 0
    assert after.memory.weights == before.memory.weights
    assert after.prefill.bound_time == before.prefill.bound_time
    assert after.decode is not None
    assert {op.name for op in after.decode.ops if "host" in op.section} == {"fused_attention"}
    assert after.decode.flops == pytest.approx(before.decode.flops if before.decode else 0)


def test_cold_neurons_on_the_cpu() -> None:
    before, after = run("opt-30b"), run("opt-30b", "powerinfer")
    blocks = 2 * 48 * 2 * 7168 * 28672
    assert before.memory.weights - after.memory.weights == pytest.approx(0.74 * blocks, rel=0.01)
    assert after.decode is not None
    host = {op.name for op in after.decode.ops if "host" in op.section}
    assert host == {"up_proj", "mlp_act", "down_proj"}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-2-9b", "deepseek-v2-lite", "mamba-2.8b", "jamba-v0.1"])
def test_disaggregation_sends_the_kv_cache_once(name: str) -> None:
    scenario = plain(name, batch=4, prompt=1000)
    answer = analyze(apply_techniques(scenario, ["disaggregation"]))
    precision = scenario.precision
    sent = kv_bytes_per_token(scenario.model, precision) * 1000 + state_bytes_per_sequence(scenario.model, precision)
    assert answer.prefill.link_bytes == pytest.approx(4 * sent)
    assert answer.generation.ttft == pytest.approx(analyze(scenario).generation.ttft + 4 * sent / 50e9)
    assert tpot(answer) == tpot(analyze(scenario))


def test_disaggregation_with_other_decode_hardware() -> None:
    answer = run("llama-3.1-8b", "disaggregation:decode=a100-sxm-80gb")
    assert tpot(answer) == tpot(run("llama-3.1-8b", hardware=load_hardware("a100-sxm-80gb")))


@pytest.mark.parametrize(
    ("name", "degree"),
    [
        ("tensor-parallelism", "tensor"),
        ("pipeline-parallelism", "pipeline"),
        ("data-parallelism", "data"),
        ("ring-attention", "sequence"),
        ("sequence-parallelism", "sequence"),
        ("expert-parallelism", "expert"),
    ],
)
def test_parallelism_techniques_set_their_degree(name: str, degree: str) -> None:
    scenario = plain("mixtral-8x7b", batch=8)
    by_name = apply_techniques(scenario, [f"{name}:degree=4"])
    filled = {"micro_batches": 4} if degree == "pipeline" else {}
    assert by_name.settings.parallel == Parallelism(**{degree: 4}, **filled)
    assert analyze(apply_techniques(scenario, [f"{name}:degree=1"])).generation == analyze(scenario).generation


def test_stages_are_filled_as_by_the_option() -> None:
    whole = Scenario("llama-3.1-70b", "h100-sxm", batch=8)
    technique = apply_techniques(whole, ["pipeline-parallelism:degree=4"])
    assert analyze(technique).generation == analyze(whole.with_(pp=4)).generation
    alone = apply_techniques(whole.with_(micro_batches=1), ["pipeline-parallelism:degree=4"])
    assert analyze(alone).generation == analyze(whole.with_(pp=4, micro_batches=1)).generation


def test_tp_of_an_indivisible_model_is_refused() -> None:
    hyena = next(name for name in list_models() if isinstance(load_model(name).groups[0].layer.mixer, Hyena))
    with pytest.raises(UnsupportedError):
        apply_techniques(plain(hyena), ["tensor-parallelism"])


# --- two-batch overlap ------------------------------------------------------------------------------------------------


def served(model: str, hardware: str, *requests: str, devices: int = 32, **workload: Any) -> Analysis:
    """The analysis with EP and DP over nodes of eight devices."""
    parallel = Parallelism(expert=devices, data=devices, nodes=devices // 8)
    settings = Settings(parallel=parallel)
    return run(model, *requests, hardware=load_hardware(hardware), settings=settings, **workload)


def seconds_of(phase: Any, all_to_all: bool) -> float:
    """Bound time of the all-to-alls of a phase, or of all other operators."""
    return float(sum(op.count * op.bound_time for op in phase.ops if op.op.is_all_to_all is all_to_all))


@pytest.mark.parametrize(("model", "hardware"), [("deepseek-v3", "h800-sxm"), ("qwen3-30b-a3b", "h100-sxm")])
@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_two_batch_overlap_hides_the_shorter_of_all_to_alls_and_computation(
    model: str, hardware: str, name: str
) -> None:
    half = getattr(served(model, hardware, batch=32 * 8), name)
    both = getattr(served(model, hardware, "two-batch-overlap", batch=32 * 16), name)
    sent, rest = seconds_of(half, True), seconds_of(half, False)
    assert sent > 0 < rest
    assert both.bound_time == pytest.approx(2 * max(sent, rest), rel=1e-12)
    assert seconds_of(both, True) == pytest.approx(2 * sent, rel=1e-12)
    assert both.flops == pytest.approx(2 * half.flops, rel=1e-12)
    assert both.link_bytes == pytest.approx(2 * half.link_bytes, rel=1e-12)
    assert both.bound == ("link" if sent > rest else max(_by_bound(half), key=_by_bound(half).__getitem__))


def _by_bound(phase: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in phase.ops:
        if not op.op.is_all_to_all:
            found[str(op.bound)] = found.get(str(op.bound), 0.0) + op.count * op.bound_time
    return found


def test_two_batch_overlap_in_expected_times() -> None:
    half = served("deepseek-v3", "h800-sxm", batch=32 * 8)
    both = served("deepseek-v3", "h800-sxm", "two-batch-overlap", batch=32 * 16)
    for name in ("prefill", "decode"):
        one, two = getattr(half, name), getattr(both, name)
        kernels = {True: 0.0, False: 0.0}
        waits = 0.0  # for the slowest rank, which a second batch hides
        for op, found in zip(one.ops, one.expected_ops, strict=True):
            kernels[op.op.is_all_to_all] += op.count * found.time.mid
            waits += op.count * (EXCHANGED - LATE) if op.op.is_all_to_all else 0.0
        host = one.idle - one.engine["step"] / 2
        assert one.expected.mid == pytest.approx(sum(kernels.values()) - one.hidden + one.idle, rel=1e-9)
        kernels[True] -= waits
        saved = OVERLAPPED * min(kernels.values())
        assert two.expected.mid == pytest.approx(2 * (sum(kernels.values()) - saved + host), rel=1e-9)
        assert two.hidden == pytest.approx(2 * saved, rel=1e-9)
        assert two.expected.low < two.expected.mid < two.expected.high
        assert two.expected.mid >= two.bound_time


def test_two_batch_overlap_of_one_phase() -> None:
    plain_, prefill, decode, both = (
        served("deepseek-v3", "h800-sxm", *requests_, batch=32 * 16)
        for requests_ in (
            (),
            ("two-batch-overlap:phases=prefill",),
            ("two-batch-overlap:phases=decode",),
            ("two-batch-overlap",),
        )
    )
    assert prefill.expected.ttft == both.expected.ttft != plain_.expected.ttft == decode.expected.ttft
    assert decode.expected.tpot == both.expected.tpot != plain_.expected.tpot == prefill.expected.tpot
    with pytest.raises(RooflineError, match="phases must be prefill, decode or both, got 'all'"):
        served("deepseek-v3", "h800-sxm", "two-batch-overlap:phases=all")


def test_two_batch_overlap_gains_grow_with_the_batch() -> None:
    sizes, eight = 32 * np.array([1, 4, 16, 64, 256]), parse_precision("bf16", "fp8_block")
    before = served("deepseek-v3", "h800-sxm", batch=sizes, prompt=2000, precision=eight)
    after = served("deepseek-v3", "h800-sxm", "two-batch-overlap", batch=sizes, prompt=2000, precision=eight)
    gain = before.expected.tpot.mid / after.expected.tpot.mid
    assert gain[0] < 1 < gain[-1]  # weights are read for each half
    assert np.all(np.diff(gain) > 0)
    assert np.all(gain < 2)
    np.testing.assert_allclose(after.memory.activation_peak[1:], before.memory.activation_peak[1:], rtol=1e-9)
    np.testing.assert_array_equal(after.memory.kv_cache, before.memory.kv_cache)
    np.testing.assert_array_equal(after.memory.weights, before.memory.weights)
    single = served("deepseek-v3", "h800-sxm", "two-batch-overlap", batch=32 * 16, prompt=2000, precision=eight)
    assert single.expected.tpot.mid == pytest.approx(after.expected.tpot.mid[2], rel=1e-9)


def test_two_batch_overlap_composes_with_chunked_prefill_mtp_and_pp() -> None:
    for extra in ("chunked-prefill", "multi-token-prediction", "disaggregation"):
        plain_ = served("deepseek-v3", "h800-sxm", extra, batch=32 * 64, prompt=4096)
        both = served("deepseek-v3", "h800-sxm", extra, "two-batch-overlap", batch=32 * 64, prompt=4096)
        assert both.expected.ttft.mid < plain_.expected.ttft.mid
    staged = Parallelism(expert=8, data=8, pipeline=2, micro_batches=2)
    before, after = (
        run(
            "deepseek-v3",
            *requests_,
            hardware=load_hardware("h200-sxm"),
            settings=Settings(parallel=staged),
            batch=2048,
        )
        for requests_ in ((), ("two-batch-overlap",))
    )
    assert after.expected.ttft.mid < before.expected.ttft.mid


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
def test_two_batch_overlap_without_all_to_alls_is_refused(model: str) -> None:
    with pytest.raises(UnsupportedError, match="there are none"):
        run(model, "two-batch-overlap", settings=Settings(parallel=Parallelism(tensor=2)))
