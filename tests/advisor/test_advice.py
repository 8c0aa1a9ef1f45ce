"""Advice: every figure is reproduced by its command, gains are simulated, and nothing impossible is advised."""

import json
import re
import shlex
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import RooflineError, analyze
from roofline.advisor import Advice, Goal, Limits, Objective, Price, Quality, advise
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.moves import engine_techniques, is_consumer, technique_moves
from roofline.advisor.search.trials import sure
from roofline.cli.scenario_options import parse_scenarios
from roofline.scenario.scenario import Scenario
from roofline.timing.intervals import Estimate
from tests.cases import sampled

SCENARIOS = st.builds(
    lambda model, hw, batch, prompt, generate, quant, tp, engine: Scenario(
        model,
        hw,
        quant=quant,
        tp=tp,
        batch=batch,
        prompt=prompt,
        generate=generate,
        engine=engine,
    ),
    st.sampled_from(["llama-3.1-8b", "llama-2-13b", "qwen3-30b-a3b", "opt-6.7b", "gemma-2-9b"]),
    st.sampled_from(["h100-sxm", "a100-sxm-80gb", "a6000", "rtx-4090", "mi300x", "l40s"]),
    st.sampled_from([1, 7, 64]),
    st.sampled_from([100, 2048, 6000]),
    st.sampled_from([2, 64, 700]),
    st.sampled_from([None, "W4", "W8A8"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["vllm", "tensorrt-llm", "llama.cpp", "sglang"]),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "hw", "scheme", "refused"),
    [
        ("deepseek-v3", "h200-sxm", None, {"fp8", "smoothquant", "rtn"}),
        ("deepseek-v3", "h200-sxm", "bf16", set()),
        ("deepseek-v3", "a100-sxm-80gb", None, {"rtn", "smoothquant"}),  # published in INT8 by nobody
        ("gpt-oss-20b", "h200-sxm", None, {"fp8", "awq", "gptq", "smoothquant", "nvfp4"}),
        ("llama-3.1-8b", "h200-sxm", None, set()),
    ],
)
def test_no_checkpoint_is_quantized_to_what_it_has(model, hw, scheme, refused) -> None:
    asked = Scenario(model, hw, quant=scheme, tp=8)
    told = set()
    for move in technique_moves():
        try:
            changed = move(asked)
        except RooflineError as error:
            if "nothing would be narrower" in str(error):
                told.add(move.name)
            continue
        if move.slot == "weight format" and scheme is None:
            before, after = (analyze(entry).memory.weights for entry in (asked, changed))
            assert after < before * 1.01
    assert refused <= told
    assert bool(refused) is bool(told)
    assert "fp8-kv" not in told
    assert model != "deepseek-v3" or "nvfp4" not in told


@pytest.mark.parametrize("objective", sampled([Objective.TOTAL, Objective.TPOT], 1))
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(SCENARIOS)
def test_every_figure_is_reproduced_by_its_command(objective, request_) -> None:
    try:
        goal = Goal(objective, quality=Quality.LOSSY)
        moves = list(engine_techniques(request_))
        advice = advise(request_, goal, moves=moves, top=1)
    except RooflineError:
        return  # the hardware or the engine cannot run the request itself
    base = read(shlex.split(advice_command(request_)))
    for found in advice.recommendations:
        again = read(shlex.split(found.command))
        assert again.memory.total == found.trial.analysis.memory.total
        assert tuple(again.expected.total) == pytest.approx(tuple(found.trial.analysis.expected.total), rel=1e-12)
        told = float(goal.gain(goal.value(base), goal.value(again)))
        assert found.better.mid == pytest.approx(told, rel=1e-12)
        assert found.better.low <= found.better.mid <= found.better.high
        assert found.better.mid > HELPS or len(found.trial.missed) < len(advice.base.missed)
        assert goal.quality.allows(found.price)


def advice_command(request_: Scenario) -> str:
    from roofline.whatif.command_line import command_line

    return command_line(request_)


def read(words: list[str]):
    assert words[:2] == ["roofline", "analyze"]
    (found,) = parse_scenarios([shlex.join(words[2:])])
    return analyze(found)


def asked(model: str = "llama-2-13b", hw: str = "a6000", **options) -> Scenario:
    return Scenario(model, hw, **{"prompt": 128, "generate": 128, **options})


def test_four_bit_weights_gain_at_the_bound_what_the_paper_says() -> None:
    """Yuan et al. 2024, section 3.1.1: about 3.6 times for a 13B model alone on an A6000; nothing in prefill."""
    known = {move.name: move for move in technique_moves()}
    decode = advise(asked(), Goal(Objective.TPOT, at="bound"), moves=[known["awq"]])
    assert decode.recommendations[0].better.mid == pytest.approx(3.6, abs=0.1)
    prefill = advise(asked(prompt=2048), Goal(Objective.TTFT, at="bound"), moves=[known["awq"]])
    assert not prefill.recommendations


def test_the_whole_advice_of_a_scenario() -> None:
    advice = advise(asked("llama-3.1-8b", "h100-sxm", batch=8, prompt=1024), Goal(Objective.TPOT))
    names = [found.move.name for found in advice.recommendations]
    assert "fp8" in names or "awq" in names
    gains = [found.better.mid for found in advice.recommendations]
    assert gains == sorted(gains, reverse=True)
    assert advice.bottlenecks
    assert advice.hardware
    assert all(found.better.mid > 1 for found in advice.hardware)
    assert advice.recommendation(names[0]) is advice.recommendations[0]
    assert advice.recommendation("no such move") is None
    first = advice.recommendations[0]
    assert first.conditions
    assert advice.plan.better.mid >= first.better.mid


def test_methods_to_the_same_format_are_one_recommendation() -> None:
    known = {move.name: move for move in technique_moves()}
    moves = [known["awq"], known["gptq"], known["affinequant"], known["squeezellm"]]
    advice = advise(asked("llama-2-13b", "a6000"), Goal(Objective.TPOT), moves=moves)
    first, *rest = advice.recommendations
    assert {first.move.name, *first.same} == {"awq", "gptq", "affinequant"}, "vLLM runs Marlin for all three"
    assert {name for found in rest for name in (found.move.name, *found.same)} <= {"squeezellm"}


def test_llama_cpp_is_advised_its_own_file_types() -> None:
    """What everyone does who runs a model at home: sixteen bits do not fit, four do and are the fastest."""
    advice = advise(asked("llama-3.1-8b", "rtx-3060", engine="llama.cpp", prompt=2048), Goal(), top=1)
    first, second = advice.recommendations[:2]
    assert (first.move.name, second.move.name) == ("gguf:type=q4_k_m", "gguf:type=q8_0")
    assert advice.base.missed
    assert not first.trial.missed
    assert first.trial.analysis.precision.activations.name == "int8"
    assert first.better.mid > second.better.mid > 1
    assert advice.plan.steps[0].move == first.move
    assert not advise(asked("llama-3.1-8b", "rtx-4090"), Goal(), top=1).recommendation("gguf:type=q4_k_m")


def test_a_mac_is_advised_what_llama_cpp_runs() -> None:
    advice = advise(asked("llama-3.1-8b", "m4-max"), Goal(), top=1)
    assert advice.recommendations[0].move.name == "gguf:type=q4_k_m"
    assert "--engine" not in advice.recommendations[0].command


@pytest.mark.parametrize(("hardware", "desk"), sampled([("rtx-3060", True), ("m4-pro", True), ("a6000", False)], 1))
def test_for_a_desk_other_computers_are_advised_and_no_accelerators_of_servers(hardware: str, desk: bool) -> None:
    found = [entry.trial.scenario.hardware for entry in advise(asked("llama-3.1-8b", hardware), Goal(), top=0).hardware]
    assert found
    assert all(is_consumer(device) for device in found) is desk


def test_few_bits_cost_quality_whatever_the_method() -> None:
    known = {move.name: move for move in technique_moves()}
    moves = [known["billm"], known["awq"], known["kivi"]]
    careful = advise(asked(), Goal(Objective.TPOT), moves=moves)
    assert [found.move.name for found in careful.recommendations] == ["awq"]
    bold = advise(asked(), Goal(Objective.TPOT, quality=Quality.LOSSY), moves=moves)
    assert {found.move.name: found.price for found in bold.recommendations}["billm"] is Price.LOSSY


@pytest.mark.slow
def test_a_gain_within_its_interval_says_so_and_ties_are_marked() -> None:
    crowded = advise(asked("gpt-oss-20b", "mi300x", batch=96, prompt=512, generate=64), Goal())
    drafts = crowded.recommendation("eagle-3")
    assert drafts is not None
    assert not drafts.certain
    advice = advise(asked(), Goal(Objective.TPOT))
    assert advice.recommendations[0].certain
    assert any(found.tied for found in (*advice.recommendations, *advice.hardware))


@pytest.mark.slow
def test_a_plan_that_may_be_no_better_is_not_sure() -> None:
    advice = advise(asked("gpt-oss-20b", "mi300x", batch=192, prompt=512, generate=64), Goal(), top=0)
    assert advice.plan.steps
    assert advice.plan.better.low < 1 < advice.plan.better.high
    assert not advice.plan.sure
    assert advise(asked(), Goal(Objective.TPOT), top=0).plan.sure
    beyond = advise(asked("llama-3.1-70b", "a6000"), Goal(), top=0)
    assert beyond.base.missed
    assert beyond.plan.sure


@cache
def usual() -> Advice:
    return advise(asked(), Goal(Objective.TPOT), top=0)


@pytest.mark.parametrize(("low", "mid", "judged"), [(1.02, 1.05, True), (0.99, 1.2, False), (1.001, 1.009, False)])
def test_gains_of_plans_and_single_changes_are_judged_alike(low: float, mid: float, judged: bool) -> None:
    assert sure(Estimate(low, mid, mid**2 / low)) is judged
    advice = usual()
    assert replace(advice.plan, better=Estimate(low, mid, mid**2 / low)).sure is judged
    unsure = [replace(found, better=Estimate(low, mid, mid**2 / low)) for found in advice.recommendations]
    assert (replace(advice, recommendations=tuple(unsure)).surest is not None) is judged


def test_break_even_points_are_edges() -> None:
    known = {move.name: move for move in technique_moves()}
    request_ = asked("llama-3.1-8b", "h100-sxm", batch=4, prompt=512, generate=64)
    goal = Goal(Objective.TPOT)
    (found,) = advise(request_, goal, moves=[known["eagle-2"]]).recommendations
    over = {condition.variable: condition for condition in found.conditions}

    def gain(batch: int, technique: str = "eagle-2") -> float:
        before, after = (
            goal.value(analyze(one.at(batch=batch))) for one in (request_, request_.with_(techniques=technique))
        )
        return float(goal.gain(before, after))

    edge = int(over["batch"].high)
    assert gain(edge) > HELPS >= gain(edge + 1)
    least = over["acceptance"].low
    assert gain(4, f"eagle-2:accept={least!r}") > HELPS >= gain(4, f"eagle-2:accept={least * 0.998!r}")


def test_objectives_that_a_scenario_has_no_figure_of_are_refused() -> None:
    with pytest.raises(RooflineError, match="price"):
        advise(asked(hw="mi210"), Goal(Objective.COST))
    with pytest.raises(RooflineError, match="only encodes"):
        advise(Scenario("bert-base", "h100-sxm"), Goal(Objective.TPOT))
    with pytest.raises(RooflineError, match="two generated tokens"):
        advise(asked(generate=1), Goal(Objective.TPOT))
    with pytest.raises(RooflineError, match="two generated tokens"):
        advise(asked(generate=1), Goal(Objective.TOTAL, Limits(tpot=0.01)))
    with pytest.raises(RooflineError, match="no TPOT"):
        advise(Scenario("bert-base", "h100-sxm"), Goal(Objective.TTFT, Limits(tpot=0.01)))
    with pytest.raises(RooflineError, match="above 0"):
        Limits(ttft=-1)


def test_energy_is_an_upper_end_where_no_figures_are_known() -> None:
    known = {move.name: move for move in technique_moves()}
    advice = advise(asked(), Goal(Objective.ENERGY), moves=[known["awq"]])
    assert advice.case.goal.of == "energy.tdp"
    assert advice.recommendations[0].better.mid > 2


@pytest.mark.slow
def test_a_price_is_that_of_the_given_device_alone() -> None:
    advice = advise(asked(price=0.8, hw="a6000"), Goal(Objective.COST))
    assert all("--price" not in found.command for found in advice.hardware)
    assert "--price 0.8" in advice.recommendations[0].command


def test_an_encoder_can_be_advised() -> None:
    advice = advise(Scenario("bert-base", "h100-sxm", batch=64), Goal(Objective.TTFT))
    assert all(found.move.slot not in ("speculative decoding", "KV format") for found in advice.recommendations)


@pytest.mark.slow
def test_no_gain_is_quoted_over_a_baseline_that_does_not_fit(run: Callable[..., tuple[int, str, str]]) -> None:
    """Qwen2.5-32B in 16 bits needs 66 GB: a time on 24 GB is that of no run."""
    code, text, _ = run("advise", "qwen2.5-32b", "--hw", "rtx-4090")
    assert code == 0
    assert "does not fit as it is; it fits with --engine llama.cpp --quant q5_k_m (34.3 tokens/s); with" in " ".join(
        text.split()
    )
    assert "goes from" not in text
    assert "times alone" not in text
    assert not re.search(r"\(\d\S* times\)", text.partition("Single changes")[2])
    found = json.loads(run("advise", "qwen2.5-32b", "--hw", "rtx-4090", "--format", "json")[1])
    single = [*found["recommendations"], *found["other_engines"], *found["other_hardware"]]
    assert single
    assert [entry["times_better"] for entry in single] == [None] * len(single)
    assert all("capacity" not in entry["misses"] for entry in single)  # nothing is advised that does not fit either
    first, *later = found["plan"]["steps"]
    assert (found["plan"]["times_better"], first["times_better"]) == (None, None)
    assert all(step["times_better"]["mid"] > 1 for step in later)
    assert found["plan"]["interactions"] == []
