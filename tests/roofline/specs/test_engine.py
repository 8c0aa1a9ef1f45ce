"""Engine profiles: bundled, from files, and invalid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Precision, Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.core.documents import read_mapping
from roofline.core.errors import SpecError, UnknownNameError
from roofline.graph.parallel import Parallelism
from roofline.scenario.phase import Phase
from roofline.scenario.settings import Settings
from roofline.specs.engine import (
    PARAMETERS,
    ROUTED_EXPERTS,
    SHARED_EXPERTS,
    Engine,
    default_engine,
    list_engines,
    load_engine,
    resolve_engine,
)
from roofline.specs.engine_files import parse_engine
from roofline.specs.engine_written import render
from roofline.timing.chains import load_calibration
from roofline.whatif.explanation.assumptions import assumptions


def test_bundled_engines() -> None:
    promised = {"ideal", "vllm", "tensorrt-llm", "sglang", "llama.cpp", "hf-eager", "gpt-fast"}
    assert {*promised, "lmdeploy", "deepspeed-mii"} <= set(list_engines())


@pytest.mark.parametrize("name", list_engines())
def test_profiles_have_sources_and_round_trip(name: str, tmp_path: Path) -> None:
    engine = load_engine(name)
    assert engine.name == name
    assert engine.title
    assert all(engine.sources)
    assert engine.sources
    path = tmp_path / "mine.yaml"
    path.write_text(render(engine), encoding="utf-8")
    again = parse_engine(read_mapping(path), str(path))
    assert (again.fusions, again.graphs, again.sources) == (engine.fusions, engine.graphs, engine.sources)
    assert (again.int8_activations, again.overlap) == (engine.int8_activations, engine.overlap)
    assert (again.own_kernels, again.own_kernels_of) == (engine.own_kernels, engine.own_kernels_of)
    assert again.prompt_logits == engine.prompt_logits
    assert (again.shared_stream, again.all_reduce) == (engine.shared_stream, engine.all_reduce)
    for parameter in PARAMETERS:
        assert again[parameter.name] == pytest.approx(engine[parameter.name], rel=1e-3)


def test_fits_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    engine = load_engine("vllm")
    fitted = replace(engine, scheduler=replace(engine.scheduler, spread_ttft=(np.float64(0.8), np.float64(1.25))))
    path = tmp_path / "mine.yaml"
    path.write_text(render(fitted), encoding="utf-8")
    assert parse_engine(read_mapping(path), str(path)).scheduler.spread_ttft == (0.8, 1.25)


def test_ideal_engine_has_no_host_time() -> None:
    engine = load_engine("ideal")
    assert all(engine[name] == 0 for name in ("step", "sequence", "gap", "issue"))
    assert engine.spread == (1.0, 1.0)


def test_profile_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nparameters: {step: 1 s}\ngraphs: [decode]\n", encoding="utf-8")
    answer = analyze(Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), engine=str(path)))
    assert answer.decode is not None
    assert answer.decode.expected.mid > 1
    assert answer.decode.idle == pytest.approx(1)


def _decode(tmp_path: Path, profile: str, batch: int, generate: int = 33) -> Phase:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\n{profile}\n", encoding="utf-8")
    model, hardware = load_model("llama-3.2-1b"), load_hardware("h100-sxm")
    decode = analyze(Scenario(model, hardware, batch=batch, generate=generate, engine=str(path))).decode
    assert decode is not None
    return decode


def test_overlap_scheduling_hides_host_time_behind_the_device(tmp_path: Path) -> None:
    """The pass is max(device, sequence batch) + step, between a free host and one that is waited for."""
    kernels = _decode(tmp_path, "parameters: {step: 1 ms}", 64)
    device = kernels.expected.mid - 1e-3
    for share in (0.2, 0.9, 3.0):
        sequence = share * device / 64
        parameters = f"parameters: {{step: 1 ms, sequence: {sequence * 1e6!r} us}}"
        ahead = _decode(tmp_path, f"overlap: true\n{parameters}", 64)
        waiting = _decode(tmp_path, parameters, 64)
        assert ahead.expected.mid == pytest.approx(max(device, 64 * sequence) + 1e-3, rel=0.02)
        assert ahead.idle == pytest.approx(ahead.expected.mid - device, rel=0.02, abs=1e-6)
        assert waiting.expected.mid == pytest.approx(device + 64 * sequence + 1e-3, rel=1e-6)
        assert kernels.expected.mid * (1 - 1e-9) <= ahead.expected.mid < waiting.expected.mid


def _seconds(tmp_path: Path, profile: str, **settings: Any) -> Phase:
    path = tmp_path / "mine.yaml"
    graphs = "" if "graphs" in profile else "graphs: [decode]\n"
    path.write_text(f"name: mine\nfusions: [gate_up, experts]\n{graphs}{profile}\n", encoding="utf-8")
    model = load_model(settings.pop("model"))
    hardware = load_hardware(settings.pop("hardware", "h200-sxm"))
    decode = analyze(Scenario(model, hardware, generate=2, context=4096, engine=str(path), **settings)).decode
    assert decode is not None
    return decode


@pytest.mark.parametrize("batch", [1, 64, 256, 257])
def test_shared_experts_overlap_routed_experts(tmp_path: Path, batch: int) -> None:
    """The longer branch counts, up to so many tokens; what is hidden is the shorter one, layer by layer."""
    setting: dict[str, Any] = {"model": "qwen3.5-35b-a3b", "batch": batch}
    apart, beside = (_seconds(tmp_path, profile, **setting) for profile in ("", "shared_stream: 256"))
    if batch > 256:
        assert beside.hidden == 0
        assert beside.expected == apart.expected
        return
    branches = {True: 0.0, False: 0.0}
    for op, found in zip(apart.ops, apart.expected_ops, strict=True):
        if op.name in SHARED_EXPERTS | ROUTED_EXPERTS:
            branches[op.name in SHARED_EXPERTS] += op.count * found.time.mid
    assert beside.hidden == pytest.approx(min(branches.values()), rel=0.01)
    assert beside.expected.mid == pytest.approx(apart.expected.mid - beside.hidden)
    assert beside.expected.mid > beside.bound_time
    eager = _seconds(tmp_path, "shared_stream: 256\ngraphs: []", **setting)
    assert eager.hidden == 0


def test_experts_overlap_only_on_families_that_are_named(tmp_path: Path) -> None:
    profile = "shared_stream: 256\nshared_on: [blackwell]"
    named, other = (
        _seconds(tmp_path, profile, model="qwen3.5-35b-a3b", hardware=hw) for hw in ("b200-sxm", "h200-sxm")
    )
    assert named.hidden > 0
    assert other.hidden == 0


def test_overlapped_experts_stay_above_their_bound(tmp_path: Path) -> None:
    """A model whose branches are long: what both must read and compute bounds what can be hidden."""
    decode = _seconds(tmp_path, "shared_stream: 4096", model="llama-4-scout", hardware="b200-sxm", batch=64)
    names = SHARED_EXPERTS | ROUTED_EXPERTS
    both = sum(op.count * op.bound_time for op in decode.ops if op.name in names)
    times = zip(decode.ops, decode.expected_ops, strict=True)
    apart = sum(op.count * found.time.mid for op, found in times if op.name in names)
    assert 0 < decode.hidden <= apart - both


def _with_and_without_a_stream(folder: Path) -> tuple[Any, Any]:
    """DeepSeek-R1 in FP8 on eight B200, batch 32, as in vllm-project/vllm, pull 26440."""
    setting: dict[str, Any] = {"model": "deepseek-r1", "hardware": "b200-sxm", "batch": 32}
    setting["settings"] = Settings(parallel=Parallelism(tensor=8))
    return _seconds(folder, "", **setting), _seconds(folder, "shared_stream: 256", **setting)


def test_published_time_with_the_shared_expert_stream(tmp_path: Path) -> None:
    _, beside = _with_and_without_a_stream(tmp_path)
    assert beside.expected.low < 22.09e-3 < beside.expected.high


def test_published_gain_of_the_shared_expert_stream(tmp_path: Path) -> None:
    """23.35 ms without, 22.09 ms with."""
    apart, beside = _with_and_without_a_stream(tmp_path)
    gain = (apart.expected.mid - beside.expected.mid) / (23.35e-3 - 22.09e-3)
    assert 0.75 < gain < 2


def test_faster_all_reduce_is_used(tmp_path: Path) -> None:
    """vLLM's kernel for a small message, NCCL's time where that is faster, and on other links."""
    setting: dict[str, Any] = {"model": "llama-3.1-8b", "settings": Settings(parallel=Parallelism(tensor=8))}

    def reduced(profile: str, **more: Any) -> float:
        phase = _seconds(tmp_path, profile, **setting, **more)
        times = zip(phase.ops, phase.expected_ops, strict=True)
        return next(found.time.mid for op, found in times if op.name == "attn_all_reduce")

    own = reduced("all_reduce: {NVLink: custom_all_reduce}", batch=16)
    assert own == pytest.approx(7.7e-6, rel=0.25)  # 128 KiB among eight H100 with vLLM 0.14's kernel
    assert reduced("", batch=16) > own
    assert reduced("all_reduce: {PCIe: custom_all_reduce}") == reduced("")
    for batch in (1, 64, 1024, 8192):
        assert reduced("all_reduce: {NVLink: custom_all_reduce}", batch=batch) <= reduced("", batch=batch)


@pytest.mark.parametrize(
    ("engine", "hardware", "model", "fused"),
    [
        ("sglang@0.5.7", "h200-sxm", "deepseek-r1", True),
        ("sglang", "h100-sxm", "qwen3-30b-a3b", True),
        ("sglang@0.5.6", "h200-sxm", "deepseek-r1", False),
        ("sglang", "h200-sxm", "llama-3.1-8b", False),
        ("sglang", "h20", "deepseek-r1", False),
        ("sglang", "b200-sxm", "deepseek-r1", False),
    ],
)
def test_all_reduces_of_experts_normalise(engine: str, hardware: str, model: str, fused: bool) -> None:
    """On Hopper but H20 from 0.5.7 on (python/sglang/srt/server_args.py), which a step of few tokens gains from."""
    asked = Scenario(
        load_model(model),
        load_hardware(hardware),
        engine=engine,
        settings=Settings(parallel=Parallelism(tensor=8)),
    )
    assert ("reduced_norm" in asked.profile.fusions) == fused
    apart = asked.changed(engine=replace(load_engine(engine), fused_reduce={}))
    times = [analyze(each).decode.expected.mid for each in (asked, apart)]
    assert (times[0] < times[1]) if fused else (times[0] == times[1])


def test_vllm_v0_is_host_bound() -> None:
    """Many sequences of a small model: the host of vLLM V0 takes longer than its device."""
    model, hardware = load_model("llama-3.2-1b"), load_hardware("h100-sxm")
    old, new = (
        analyze(Scenario(model, hardware, batch=256, generate=33, engine=name)).decode for name in ("vllm@0.5", "vllm")
    )
    assert old is not None
    assert new is not None
    assert old.idle > old.expected.mid / 2
    assert new.idle < new.expected.mid / 2
    between = analyze(Scenario(model, hardware, batch=256, generate=33, engine="vllm@0.11")).decode
    assert between is not None
    assert between.idle == pytest.approx(1e-3 + 256 * 18e-6)
    assert new.expected.mid < between.expected.mid < old.expected.mid


@pytest.mark.parametrize(("sequences", "published"), [(1, 30.29), (8, 206.32), (32, 760.52)])
def test_published_deepseek_v3_of_an_early_release(sequences: int, published: float) -> None:
    """SGLang 0.4.1.post2 on 8 H200, 128 to 256 tokens (sgl-project/sglang, pull request 2643)."""
    eight = Settings(parallel=Parallelism(tensor=8))
    engine, workload = "sglang@0.4.1", {"batch": sequences, "prompt": 128, "generate": 256}
    asked = Scenario(load_model("deepseek-v3"), load_hardware("h200-sxm"), engine=engine, settings=eight, **workload)
    assert analyze(asked).expected.tokens_per_second.mid == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(("model", "early"), [("deepseek-v2", True), ("minicpm3-4b", False), ("mixtral-8x7b", False)])
def test_early_releases_lack_kernels_for_latent_attention_with_experts(model: str, early: bool) -> None:
    """DeepSeek's file of SGLang is that of all its models (python/sglang/srt/models/deepseek_v2.py)."""
    profile = Scenario(load_model(model), load_hardware("h100-sxm"), engine="sglang@0.4.3").profile
    assert (profile["launches"] > 1) == early


@pytest.mark.parametrize(("key", "model"), [("norm", "gpt2-xl"), ("rmsnorm", "llama-3.2-1b"), ("norm", "llama-3.2-1b")])
def test_norms_are_several_kernels_by_operator_or_by_their_kind(key: str, model: str, tmp_path: Path) -> None:
    """Two norms a layer and one at the end, of three kernels each in the place of one."""
    numbers = []
    for unfused in ("{}", f"{{{key}: [3, 1]}}"):
        (tmp_path / "e.yaml").write_text(f"name: e\nfusions: []\ngraphs: []\nunfused: {unfused}\n")
        engine = load_engine(str(tmp_path / "e.yaml"))
        decode = analyze(Scenario(load_model(model), load_hardware("h100-sxm"), engine=engine)).decode
        assert decode is not None
        numbers.append(decode.timed(decode.passes[0]).number)
    assert numbers[1] - numbers[0] == 2 * (2 * load_model(model).layers + 1)


@pytest.mark.parametrize("sequences", [4, 5])
def test_the_host_launches_what_no_graph_replays(sequences: int, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(
        "name: e\nfusions: []\ngraphs: [decode]\nreplayed: 4\nparameters: {issue: 1 ms, launches: 2}\n"
    )
    engine = load_engine(str(tmp_path / "e.yaml"))
    asked = Scenario(load_model("llama-3.2-1b"), load_hardware("h100-sxm"), engine=engine, batch=sequences)
    decode = analyze(asked).decode
    assert decode is not None
    launched = decode.timed(decode.passes[0]).number * 2e-3
    assert (decode.expected.mid >= launched) == (sequences > 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "'name' is missing"),
        ({"name": "x", "based_on": ["vllm"]}, "in 'based_on'"),
        ({"name": "x", "fusions": "qkv"}, "'fusions' must be a list"),
        ({"name": "x", "graphs": ["decoding"]}, "did you mean 'decode'"),
        ({"name": "x", "parameters": {"step": "fast"}}, "'parameters.step'"),
        ({"name": "x", "parameters": {"launch": -1}}, "outside 0.1 to 10"),
        ({"name": "x", "parameters": {"memory": float("nan")}}, "must be a number"),
        ({"name": "x", "spread": [0.5]}, "'spread' must be a list of length 2"),
        ({"name": "x", "sources": "me"}, "'sources' must be a list"),
        ({"name": "x", "own_kernels": ["cpus"]}, "unknown name 'cpus' in 'own_kernels'; did you mean 'cpu'"),
        ({"name": "x", "shared_stream": True}, "'shared_stream' must be a whole number"),
        ({"name": "x", "all_reduce": "8 us"}, "'all_reduce' must be a mapping"),
        ({"name": "x", "caches": {"attention": "fp9"}}, "unknown format 'fp9'"),
        ({"name": "x", "vendors": ["Apple"]}, "'vendors' must be a mapping"),
        ({"name": "x", "vendors": {"Apple": {"gapp": "1 us"}}}, "'gapp' in 'vendors.Apple'; did you mean 'gap'"),
    ],
)
def test_invalid_profiles_are_rejected(content: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_engine(content, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")


def test_parameters_of_a_vendor_s_backend(tmp_path: Path) -> None:
    """They replace the engine's on hardware of that vendor or kind alone."""
    path = tmp_path / "mine.yaml"
    path.write_text("{name: mine, parameters: {step: 1 ms, gap: 1 us}, vendors: {Apple: {gap: 9 us}, cpu: {step: 0}}}")
    found = {
        name: Scenario(load_model("llama-2-7b"), load_hardware(name), engine=str(path)).profile
        for name in ("h100-sxm", "m2-ultra", "epyc-9654")
    }
    assert [engine["gap"] for engine in found.values()] == pytest.approx([1e-6, 9e-6, 1e-6])
    assert [engine["step"] for engine in found.values()] == pytest.approx([1e-3, 1e-3, 0])
    mine = replace(found["m2-ultra"], parameters={"gap": 3e-6})
    assert resolve_engine(load_hardware("m2-ultra"), mine)["gap"] == 3e-6
    apple = load_hardware("m2-max-cpu")
    assert load_engine("llama.cpp").on(apple).on(apple) == load_engine("llama.cpp").on(apple)
    host = found["m2-ultra"].on(load_hardware("epyc-9654"))
    assert (host["gap"], host["step"]) == (1e-6, 0), "experts in CPU memory have the CPU's, and the profile's own"


@pytest.mark.parametrize("name", ["m2", "m2-pro", "m1-max", "m3-max", "m4-max", "m1-ultra", "m2-ultra", "m3-ultra"])
def test_metal_adds_the_same_time_to_a_token_on_every_gpu(name: str) -> None:
    """About 5 ms over the weights of Llama 2 7B: 4.2 to 7 in the Q4_0 and F16 rows of llama.cpp, discussion 4167."""
    gpu, model = load_hardware(name), load_model("llama-2-7b")
    bound, times = [], []
    for scheme in ("q4_0", None):
        found = analyze(Scenario(model, gpu, prompt=1, generate=129, precision=parse_precision("fp16", scheme)))
        assert found.expected.tpot is not None
        bound.append(found.generation.tpot)
        times.append(found.expected.tpot.mid)
    slope = (times[1] - times[0]) / (bound[1] - bound[0])
    assert 0.9 < slope < 1.3
    assert 3.5e-3 < times[0] - slope * bound[0] < 8e-3


@pytest.mark.parametrize(
    ("hardware", "engine"),
    [
        *(("h100-sxm", "vllm"), ("tpu-v5e", "vllm"), ("t4", "vllm"), ("dgx-spark", "vllm")),
        *(("m4-max", "llama.cpp"), ("epyc-9654", "llama.cpp"), ("ryzen-ai-max-395", "llama.cpp")),
    ],
)
def test_default_engine(hardware: str, engine: str) -> None:
    device = load_hardware(hardware)
    assert default_engine(device) == engine
    assert Scenario(load_model("llama-3.1-8b"), device).engine == engine


def formats(
    hardware: str = "rtx-4090", scheme: str | None = "q4_0", engine: str = "llama.cpp", **given: str
) -> Precision:
    precision = parse_precision("fp16", scheme, **given)
    return analyze(
        Scenario(load_model("llama-2-7b"), load_hardware(hardware), precision=precision, engine=engine)
    ).precision


@pytest.mark.parametrize("name", ["xeon-platinum-8480plus", "epyc-9654", "core-i9-13900k"])
def test_own_kernels_do_not_use_the_cpu_calibration(name: str) -> None:
    """Whatever their family: those of GPUs come after the kind's, and alone with llama.cpp."""
    hardware = load_hardware(name)
    assert [link.name for link in load_calibration(hardware).chain if not link.engine] == ["cpu", "pooled"]
    assert [link.name for link in load_calibration(hardware, kind=False).chain if not link.engine] == ["pooled"]
    for engine in ("hf-eager", "llama.cpp"):
        analysis = analyze(Scenario(load_model("llama-7b"), hardware, generate=8, engine=engine))
        said = " ".join(assumptions(analysis))
        assert ("kernel constants: cpu (family), then pooled" in said) == (engine == "hf-eager")
        assert ("validate/measurements" in analysis.prefill.basis.source) == (engine == "hf-eager")


def test_the_server_of_llama_cpp_python_multiplies_the_logits_of_all_prompt_tokens() -> None:
    model, prompt = load_model("qwen2.5-0.5b"), 200
    server, plain = (
        analyze(Scenario(model, load_hardware("ryzen-9-7950x"), prompt=prompt, generate=9, engine=engine))
        for engine in ("llama-cpp-python", "llama.cpp")
    )
    further = 2 * (prompt - 1) * model.vocabulary * model.hidden
    norms = 10 * prompt * model.hidden
    assert server.prefill.flops - plain.prefill.flops == pytest.approx(further, abs=norms)
    assert server.decode is not None
    assert plain.decode is not None
    assert server.decode.flops == plain.decode.flops
    assert server.prefill.basis.source == plain.prefill.basis.source


def test_a_profile_has_what_its_base_says_unless_it_says_otherwise(tmp_path: Path) -> None:
    base, path = load_engine("llama.cpp"), tmp_path / "mine.yaml"
    path.write_text("name: mine\nbased_on: llama.cpp\nparameters: {step: 5 ms}\nsources: [here]\n", encoding="utf-8")
    mine = load_engine(str(path))
    assert (mine["step"], mine["sequence"], mine.memory) == (5e-3, base["sequence"], base.memory)
    assert (mine.name, mine.checkpoints, mine.sources) == ("mine", base.checkpoints, ("here",))
    assert mine.measured_as(load_hardware("ryzen-9-7950x")) == ("llama.cpp", "")
    assert mine.measured_as(load_hardware("h100-sxm")) == base.measured_as(load_hardware("h100-sxm"))


def test_llama_cpp_quantizes_activations_to_int8() -> None:
    for hardware in ("rtx-4090", "t4", "radeon-rx-7900-xtx"):
        for scheme in ("q4_0", "q8_0", "q4_k_m", "iq4_xs"):
            found = formats(hardware, scheme)
            assert found.activations.name == "int8"
            assert (found.base.name, found.kv.name, found.attention.name) == ("fp16", "fp16", "fp16")
    assert formats(kv="q8_0").attention.name == "fp16", "the inputs of linear layers are rounded, queries are not"


@pytest.mark.parametrize(
    "kept",
    [
        formats("m2-ultra"),  # Metal computes in fp16
        formats("v100-sxm2-16gb"),  # no integers in its matrix unit
        formats(scheme=None),
        formats(scheme="awq"),
        formats(engine="vllm"),
        formats(compute="fp16"),
    ],
)
def test_llama_cpp_int8_activation_exceptions(kept: Precision) -> None:
    assert kept.activations.name == "fp16"


def test_requested_activation_format_is_kept() -> None:
    assert formats(activations="fp8").activations.name == "fp8"


def test_literature_conventions_ignore_the_engine() -> None:
    model, hardware, precision = load_model("llama-2-7b"), load_hardware("rtx-4090"), parse_precision("fp16", "q4_0")
    asked = Scenario(model, hardware, precision=precision, engine="llama.cpp", convention="llm-viewer")
    assert analyze(asked).precision == precision


def test_engines_are_hashable() -> None:
    assert hash(Engine("a")) != hash(Engine("a", parameters={"step": 1.0}))


def test_measured_kernels_are_those_of_an_engine_that_is_known() -> None:
    cases: list[dict[str, Any]] = [
        *({"kernels_of": "nonsense"}, {"own_kernels_of": "vlm@1"}, {"also": {"hopper": {"gemm": "vlm"}}}),
    ]
    for changes in cases:
        with pytest.raises(UnknownNameError):
            Engine("mine", **changes)
    assert Engine("mine", kernels_of="vllm@0.14").kernels_of == "vllm@0.14"


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("qwen3-14b", "q4_k_m"),
        ("Qwen/Qwen3-14B", "q4_k_m"),
        ("deepseek-r1", "q4_k_m"),
        ("qwen3:14b-fp16", "fp16"),
        ("gpt-oss-20b", "mxfp4_moe"),
        ("bge-m3", "fp16"),
    ],
)
def test_ollama_has_models_in_the_format_of_its_library(model: str, weights: str) -> None:
    scenario = Scenario(model, "rtx-3090", engine="ollama")
    assert scenario.precision.weights.name == weights
    assert scenario.with_(quant="q8_0").precision.weights.name == "q8_0"
    assert scenario.with_(engine="vllm").library_format is None
    assert scenario.with_(quantization="awq").library_format is None


def test_the_cache_that_kernels_read_alone_is_the_default() -> None:
    flash = Scenario("deepseek-v4-flash", "h200-sxm", tp=4)
    assert flash.precision.kv.name == "fp8"
    assert flash.with_(quant="nvfp4").precision.kv.name == "fp8"
    assert flash.with_(kv="bf16").precision.kv.name == "bf16"
    assert flash.with_(engine="sglang").precision.kv.name == "bf16"
