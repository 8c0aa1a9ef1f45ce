"""What a user of the library types: names, paths and objects, settings that are obeyed, values that are refused."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import (
    RooflineError,
    Scenario,
    UnknownNameError,
    analyze,
    kv_bytes_per_token,
    load_hardware,
    load_model,
    parameters,
    parse_precision,
)
from roofline.graph.network import Build, network
from roofline.scenario.options import OF_A_LOAD, option_key
from roofline.scenario.settings import Settings
from roofline.serving import Load, serve
from roofline.serving.options import LOAD_OPTIONS
from roofline.specs.engine import load_engine
from roofline.techniques import apply_techniques
from roofline.whatif import make_study, sweep
from roofline.whatif.solve import Targets, max_batch, max_bits, max_concurrency
from roofline.whatif.study import read_study
from tests.paths import ROOT

MODEL, HARDWARE = load_model("llama-2-7b"), load_hardware("a6000")


def test_names_paths_and_objects_are_one_question() -> None:
    asked = Scenario("llama-2-7b", "a6000")
    paths = Path("modelspecs/llama-2-7b.yaml"), Path("hwspecs/a6000.yaml")
    for model in ("llama-2-7b", ROOT / paths[0], str(ROOT / paths[0]), MODEL):
        for hardware in ("a6000", ROOT / paths[1], str(ROOT / paths[1]), HARDWARE):
            same = Scenario(model, hardware)
            assert (same, hash(same)) == (asked, hash(asked))
    assert Scenario(model=MODEL, hw="a6000") == Scenario("llama-2-7b", hardware=HARDWARE) == asked
    assert Scenario(MODEL, HARDWARE, engine=load_engine("vllm")).profile == asked.profile
    assert load_model(MODEL) is MODEL
    assert load_model(ROOT / paths[0]) == MODEL
    assert load_hardware(ROOT / paths[1]) == HARDWARE


@pytest.mark.parametrize("techniques", [("awq",), ["awq"], "awq"])
def test_techniques_are_applied(techniques: Any) -> None:
    quantized = Scenario(MODEL, HARDWARE, techniques=techniques)
    assert quantized.techniques == ("awq",)
    assert analyze(quantized).memory.weights < 0.4 * analyze(Scenario(MODEL, HARDWARE)).memory.weights
    assert apply_techniques(Scenario(MODEL, HARDWARE), "awq").precision == quantized.precision


def test_a_scheme_by_name_is_a_precision() -> None:
    assert Scenario(MODEL, HARDWARE, precision="fp8") == Scenario(MODEL, HARDWARE, quant="fp8")
    object_ = parse_precision("fp16", "awq")
    assert Scenario(MODEL, HARDWARE, precision=object_).precision == object_
    with pytest.raises(RooflineError, match="precision gives all formats at once"):
        Scenario(MODEL, HARDWARE, precision=object_, kv="fp8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"techniques": ("nonsense",)}, "unknown technique 'nonsense'"),
        ({"batchs": 4}, "unknown option of a scenario 'batchs'; did you mean 'batch'"),
        ({"engine": "vlm"}, "unknown engine 'vlm'; did you mean 'vllm'"),
        ({"price": -1.0}, "price must be between 0.0001"),
        ({"max_num_seqs": 4, "batch": 5}, "a batch of 5 is more than max_num_seqs allows at once, 4"),
        ({"tp": 2, "tensor_parallel_size": 4}, "and another name of tp are given: give one of them"),
    ],
)
def test_what_no_scenario_has_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        analyze(Scenario("llama-2-7b", "a6000", **options))


def test_unknown_names_and_objects_of_other_kinds_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'llama-2-7b'"):
        Scenario("llama-2-7", "a6000")
    with pytest.raises(RooflineError, match="hardware is a name, a path or a Hardware"):
        Scenario(MODEL, MODEL)
    with pytest.raises(RooflineError, match="hardware is missing"):
        Scenario(MODEL)
    with pytest.raises(RooflineError, match="memory_bandwidth of Hardware must be a number above 0"):
        replace(HARDWARE, memory_bandwidth=-5.0)


def test_the_names_of_engines_are_options() -> None:
    assert Scenario(MODEL, HARDWARE, tensor_parallel_size=2, max_running_requests=8) == Scenario(
        MODEL, HARDWARE, tp=2, max_num_seqs=8
    )
    assert Scenario(MODEL, HARDWARE, kv_cache_dtype="fp8_e4m3") == Scenario(MODEL, HARDWARE, kv="fp8")


def test_single_options_change_nested_settings() -> None:
    settings = Settings(chunk=256, sequences=8)
    changed = Scenario(MODEL, HARDWARE, settings=settings, max_num_seqs=16, tp=2)
    assert (changed.settings.chunk, changed.settings.sequences) == (256, 16)
    assert changed.settings.parallel.tensor == 2


def test_with_applies_techniques_again_and_none_takes_back() -> None:
    asked = Scenario(MODEL, HARDWARE, techniques=["awq"], batch=4)
    assert asked.with_(batch=8) == Scenario(MODEL, HARDWARE, techniques=["awq"], batch=8)
    assert asked.with_(hw="h100-sxm").precision == Scenario(MODEL, "h100-sxm", techniques=["awq"]).precision
    assert asked.with_(techniques=None, batch=None) == Scenario(MODEL, HARDWARE)
    assert asked.without("techniques", "batch") == Scenario(MODEL, HARDWARE)
    assert asked.with_() == asked
    plain = asked.changed(batch=16)
    with pytest.raises(RooflineError, match="cannot be asked again"):
        plain.with_(batch=2)


def test_a_count_of_devices_is_their_tensor_parallelism() -> None:
    eight = Scenario("llama-3.1-70b", "8xh200")
    assert eight == Scenario("llama-3.1-70b", "h200-sxm", tp=8)
    assert eight.with_(hw="4xh100-sxm").settings.parallel.tensor == 4
    assert eight.with_(hw="h100-sxm").settings.parallel.tensor == 1
    assert eight.with_(tp=2).with_(hw="mi300x").settings.parallel.devices == 2
    assert eight.with_(tp=2, pp=4).settings.parallel.devices == 8
    divided = Scenario("deepseek-v3", "16xh200", dcp=4)  # which takes no devices more
    assert divided == Scenario("deepseek-v3", "16xh200").with_(dcp=4)
    assert (divided.settings.parallel.devices, divided.settings.parallel.context) == (16, 4)
    for degrees in ({"tp": 3}, {"tp": 16}, {"tp": 2, "dp": 2}, {"ep": 4}):
        with pytest.raises(RooflineError, match="is 8 devices, and the degrees of parallelism need"):
            Scenario("deepseek-v3", "8xh200", **degrees)


def test_servers_have_the_devices_that_are_said() -> None:
    """4x4xH100 are four servers of four, within which a layer is divided; other hardware has its own."""
    four = Scenario("deepseek-r1", "4x4xh100-sxm")
    assert (four.settings.parallel.tensor, four.settings.parallel.pipeline) == (4, 4)
    assert four == Scenario("deepseek-r1", "16xh100-sxm", network="nvl4")
    assert four.hardware.nodes(16) == Scenario("llama-3.1-8b", "4x4xl4", network="nvl4,400G").hardware.nodes(16) == 4
    assert four.with_(hw="16xh100-sxm") == Scenario("deepseek-r1", "16xh100-sxm")
    fast = four.with_(network="400G")
    assert fast == Scenario("deepseek-r1", "16xh100-sxm", network="nvl4,400G")
    assert (fast.with_(network=None), fast.with_(hw="16xh200")) == (
        four,
        Scenario("deepseek-r1", "16xh200", network="400G"),
    )
    assert Scenario("deepseek-r1", "2x8xh200") == Scenario("deepseek-r1", "16xh200")
    assert Scenario("deepseek-r1", "18x4xgb200") == Scenario("deepseek-r1", "72xgb200")  # the trays of one rack


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"tp": 1}, {"pp": 2}, {"tp": 2, "pp": 2}])
def test_replicas_fill_a_count_of_devices(degrees: dict[str, int]) -> None:
    """Degrees that divide the count are those of a replica, and stay so on other hardware of that count."""
    each = math.prod(degrees.values())
    found = Scenario("llama-3.1-70b", "8xh200", **degrees)
    assert found == Scenario("llama-3.1-70b", "h200-sxm", **degrees, dp=8 // each)
    assert found.with_(hw="16xh100-sxm") == Scenario("llama-3.1-70b", "h100-sxm", **degrees, dp=16 // each)
    assert found.with_(batch=16).devices_for_replicas == 8
    assert not found.counted  # nothing is left to lay out


def test_a_degree_that_is_varied_replaces_the_count_of_devices() -> None:
    found = sweep(Scenario("llama-2-7b", "8xa6000"), tp=[1, 2, 8], metrics="gpus,tpot").columns
    assert found["gpus"].tolist() == [1, 2, 8]
    one = sweep(Scenario("llama-2-7b", "a6000"), tp=[1, 2, 8], metrics="gpus,tpot").columns
    assert found["tpot"].tolist() == one["tpot"].tolist()
    text = make_study({"tp": "1,2,8"}, "gpus,tpot", model="llama-2-7b", hw="8xa6000")
    assert sweep(text).columns["tpot"].tolist() == one["tpot"].tolist()


def test_names_are_read_from_any_sequence() -> None:
    asked = Scenario(MODEL, HARDWARE, techniques=["eagle"])
    assert Scenario(MODEL, HARDWARE, techniques=(name for name in ["eagle"])) == asked  # type: ignore[arg-type]
    assert Scenario(MODEL, HARDWARE, techniques=map(str, ["eagle"])) == asked  # type: ignore[arg-type]
    for options, message in (
        ({"techniques": {"eagle": {"length": 3}}}, "techniques takes names joined by '\\+', got 'a mapping'"),
        ({"techniques": ["eagle", 3]}, "techniques takes names joined by '\\+', got '3'"),
        ({"techniques": "eagle,fp8-kv"}, "techniques takes names joined by '\\+', got 'eagle,fp8-kv'"),
        ({"fusions": 3}, "fusions takes names joined by '\\+', got '3'"),
        ({"batch": np.array([0, -1])}, "batch must be between 1 and 10000000, got -1"),
        ({"gpus": 2}, "unknown option of a scenario 'gpus'; tp is the number of devices"),
        ({"concurrency": 2}, "unknown option of a scenario 'concurrency'; a load or its targets have it"),
        ({"ctx_size": 100, "engine": "llama.cpp"}, "a sequence of 640 tokens is longer than the 100 of ctx_size"),
        ({"ctx_size": 2000, "engine": "vllm"}, "on vllm say max_model_len"),
        ({"precision": "fp8", "quant": "fp8"}, "precision and quant name the same"),
    ):
        with pytest.raises(RooflineError, match=message):
            analyze(Scenario(MODEL, HARDWARE, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parameters("llama-3.1-8b"), "model takes a Model, got 'llama-3.1-8b'"),
        (lambda: kv_bytes_per_token(MODEL, "fp8"), "precision takes a Precision, got 'fp8'"),
        (lambda: parse_precision(None), "base takes a text, got 'None'"),
        (lambda: parse_precision("bf16", kv=8), "kv takes a text, got '8'"),
        (lambda: Settings(eager="no"), "eager of Settings must be True or False, got 'no'"),
        (lambda: network(MODEL, parse_precision("bf16"), Build(fusions="x")), "unknown fusion 'x'"),
        (lambda: make_study("batch=1:4", model=MODEL, hw=HARDWARE), "over takes a mapping, got 'batch=1:4'"),
    ],
)
def test_values_of_another_kind_are_refused(call: Any, message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        call()


def test_counts_are_read_from_any_sequence() -> None:
    for batch in (range(1, 4), (1, 2, 3), iter([1, 2, 3])):
        assert Scenario(MODEL, HARDWARE, batch=batch) == Scenario(MODEL, HARDWARE, batch=np.array([1, 2, 3]))  # type: ignore[arg-type]


def test_a_limit_replaces_its_other_name() -> None:
    asked = Scenario(MODEL, HARDWARE, ctx_size=2000, engine="llama.cpp")
    assert asked.with_(max_model_len=3000) == Scenario(MODEL, HARDWARE, max_model_len=3000, engine="llama.cpp")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"memory_reading": "static"}])
def test_points_of_a_grid_without_images_are_those_without_an_encoder(options: dict[str, Any]) -> None:
    counts = [0, 1, 3]
    grid = analyze(Scenario("qwen2.5-vl-7b", "h100-sxm", images=np.array(counts), **options))
    for place, images in enumerate(counts):
        one = analyze(Scenario("qwen2.5-vl-7b", "h100-sxm", images=images, **options))
        assert grid.prefill.flops[place] == pytest.approx(one.prefill.flops, rel=1e-12)
        assert grid.expected.ttft.mid[place] == pytest.approx(one.expected.ttft.mid, rel=1e-12)
        assert grid.memory.total[place] == pytest.approx(one.memory.total, rel=1e-12)


def test_a_study_file_names_an_option_once(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("model: llama-2-7b\nhw: a6000\ntensor_parallel_size: 2\ntp: 4\nover: {batch: [1, 2]}\n")
    with pytest.raises(RooflineError, match="tp and another name of tp are given: give one of them"):
        read_study(path)


def test_scenarios_compare_hash_copy_and_pickle() -> None:
    batches = np.array([1, 2, 4])
    for options in ({}, {"batch": 8}, {"batch": batches}, {"techniques": ["awq"]}, {"prompt": "uniform:10:20"}):
        one, other = (Scenario("llama-2-7b", "a6000", **options) for _ in range(2))  # type: ignore[arg-type]
        assert (one, hash(one)) == (other, hash(other))
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one
        assert pickle.loads(pickle.dumps(one)).with_(generate=7) == one.with_(generate=7)
    assert Scenario(MODEL, HARDWARE, batch=batches) != Scenario(MODEL, HARDWARE, batch=batches + 1)
    assert Scenario(MODEL, HARDWARE) != Scenario(MODEL, HARDWARE, price=1.0)
    assert Scenario(MODEL, HARDWARE) != MODEL


def test_a_scenario_does_not_change() -> None:
    asked = Scenario(MODEL, HARDWARE)
    with pytest.raises(AttributeError, match=r"with_\(batch=\.\.\.\)"):
        asked.batch = 3
    with pytest.raises(AttributeError):
        del asked.batch


def test_options_are_what_differs_from_the_defaults() -> None:
    asked = Scenario("llama-2-7b", "a6000", batch=1, tp=2, quant=None, techniques=["eagle:accept=2"], flash=True)
    assert asked.options == {
        "model": "llama-2-7b",
        "hw": "a6000",
        "flash": True,
        "with": ["eagle:accept=2"],
        "tp": 2,
    }
    assert Scenario(**asked.options) == asked
    with pytest.raises(RooflineError, match="made in Python"):
        _ = Scenario(replace(MODEL, groups=MODEL.groups[:1], title="mine"), HARDWARE).options
    with pytest.raises(RooflineError, match="the settings of the scenario is an object"):
        _ = Scenario(MODEL, HARDWARE, settings=Settings(chunk=8)).options


def test_lengths_of_a_load_come_from_the_question() -> None:
    short = Scenario(MODEL, HARDWARE, prompt=100, generate=50)
    long = Scenario(MODEL, HARDWARE, prompt=2000, generate=50)
    times = [serve(asked, Load(concurrency=1), [8]).outcomes[0].ttft.mean.mid for asked in (short, long)]
    assert times[1] > 5 * times[0]
    assert serve(long, concurrency=8).outcomes[0].ttft.mean.mid == times[1]
    with pytest.raises(RooflineError, match="prompt is 2000 in the scenario and 1000 in the load"):
        serve(long, Load(prompt=1000, concurrency=8))


def test_a_cached_prefix_is_in_the_prefix_cache_of_a_load() -> None:
    cached = serve(Scenario(MODEL, HARDWARE, prompt=500, prefix=1500), concurrency=4)
    hits = serve(Scenario(MODEL, HARDWARE, prompt=2000), concurrency=4, prefix_hits=0.75)
    assert cached.outcomes[0].ttft.mean == hits.outcomes[0].ttft.mean


@pytest.mark.parametrize(
    ("settings", "least"),
    [({"max_num_seqs": 4}, 2), ({"gpu_memory_utilization": 0.4}, 1.2), ({"max_num_batched_tokens": 256}, 1.05)],
)
def test_settings_of_the_engine_are_obeyed_under_load(settings: dict[str, Any], least: float) -> None:
    plain = Scenario(MODEL, HARDWARE, prompt=2000, generate=200)
    limited = plain.with_(**settings)
    free, bound = (serve(asked, concurrency=48).outcomes[0] for asked in (plain, limited))
    assert bound.ttft.mean.mid > least * free.ttft.mean.mid
    if "max_num_seqs" in settings:
        assert bound.running <= 4 + 1e-9
        assert max_concurrency(limited, Targets(tpot=0.2)).value <= 4
        assert max_batch(limited, Targets()).value == 4


def test_a_distribution_is_of_a_load() -> None:
    asked = Scenario(MODEL, HARDWARE, prompt="uniform:100:300")
    assert asked.prompt == 200
    assert serve(asked, concurrency=4).load.prompts.written == "uniform:100:300"
    with pytest.raises(RooflineError, match="a distribution under load"):
        analyze(asked)


def test_the_method_of_a_checkpoint_keeps_it_as_released() -> None:
    released = Scenario("deepseek-v3", "h200-sxm", tp=8)
    assert released.question.as_released
    same, other = released.with_(quantization="fp8"), released.with_(quantization="awq")
    assert (same.question.as_released, same.precision) == (True, released.precision)
    assert not other.question.as_released
    with pytest.raises(RooflineError, match="max-bits tries all schemes"):
        max_bits(other, Targets())


def test_a_sweep_of_a_study_takes_no_other_query() -> None:
    study = make_study({"batch": "1,2"}, ["tpot"], model="llama-2-7b", hw="a6000")
    assert sweep(study).points == 2
    with pytest.raises(RooflineError, match="where is given beside a study"):
        sweep(study, where="fits")


def test_names_of_a_load_are_those_of_its_table() -> None:
    flags = (flag for option in LOAD_OPTIONS.values() for flag in (option.flag, *option.flags))
    assert {option_key(name) for name in (*LOAD_OPTIONS, *flags)} == OF_A_LOAD
