"""Plans: never worse than the best single step, within limits and budget, equal to exhaustive search, monotone."""

import re
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.advisor.advice import advise, all_moves
from roofline.advisor.search.combine import MIN_GAIN, _useful, search
from roofline.advisor.search.goal import QUALITIES, Goal, Limits, Objective, Quality
from roofline.advisor.search.moves import (
    FACT_SLOTS,
    SERVED_BY,
    Kind,
    Move,
    elsewhere,
    engine_moves,
    engine_techniques,
    parallel_moves,
    technique_moves,
)
from roofline.advisor.search.plan import batch_grid, make_plan
from roofline.advisor.search.trials import Trials
from roofline.scenario.scenario import Scenario
from roofline.techniques import check_request
from roofline.techniques.support import runs
from tests.cases import sampled

NAMES = ("awq", "fp8", "fp8-kv", "eagle", "llmlingua")


def moves(request: Scenario, *names: str) -> list[Move]:
    known = {move.name: move for move in technique_moves()}
    degrees = [move for move in parallel_moves(request, [2]) if move.name == "tp=2"]
    return [known[name] for name in names] + degrees


def request(batch: int = 1, prompt: int = 512, model: str = "llama-3.1-8b", hw: str = "h100-sxm") -> Scenario:
    return Scenario(model, hw, batch=batch, prompt=prompt, generate=64)


def exhaustive(trials: Trials, offered: list[Move]) -> list[tuple[float, bool, frozenset[Move]]]:
    """Every combination of at most one move a slot."""
    slots: dict[str, list[Move | None]] = {}
    for move in offered:
        slots.setdefault(move.slot, [None]).append(move)
    found = []
    for chosen in product(*slots.values()):
        combination = frozenset(move for move in chosen if move is not None)
        trial = trials.attempt(combination)
        if trial is None or not trials.goal.quality.allows(trial.price):
            continue
        for value, excess in np.nditer(
            [np.atleast_1d(trial.value), np.atleast_1d(np.max(np.broadcast_arrays(*trial.used.values()), axis=0))]
        ):
            found.append((float(value), bool(excess <= 1), combination))
    return found


@pytest.mark.parametrize(
    ("objective", "batch", "prompt"),
    sampled(
        [
            (Objective.TOTAL, 1, 512),
            (Objective.TTFT, 64, 8192),
            (Objective.TPOT, 64, 8192),
            (Objective.THROUGHPUT, 64, 2048),
            (Objective.MEMORY, 1, 512),
        ],
        2,
    ),
)
def test_the_search_equals_an_exhaustive_one(objective, batch, prompt) -> None:
    goal = Goal(objective, Limits(tpot=0.02), Quality.LOSSY)
    asked = request(batch, prompt)
    grid = asked.with_(batch=batch_grid(asked)) if goal.batch_varies else asked
    trials = Trials(grid, goal)
    offered = moves(asked, *NAMES)
    found = search(trials, offered, exhaustive=1000).outcomes.best
    searched = search(trials, offered, depth=6, exhaustive=0).outcomes.best
    everything = [value for value, feasible, _ in exhaustive(Trials(grid, goal), offered) if feasible]
    best = (max if goal.metric.better > 0 else min)(everything)
    assert found is not None
    assert found.value == pytest.approx(best, rel=1e-12)
    assert searched is not None
    # The beam keeps few, and drops moves that alone change nothing by half a hundredth.
    assert goal.gain(searched.value, best) <= 1.01


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from([Objective.TOTAL, Objective.TPOT, Objective.TTFT, Objective.THROUGHPUT, Objective.MEMORY]),
    st.sampled_from([1, 8, 128]),
    st.sampled_from([256, 4096]),
    st.sampled_from(["h100-sxm", "a6000", "rtx-4090"]),
    st.sampled_from(QUALITIES),
    st.sampled_from([None, 0.005, 0.05]),
)
def test_plans_keep_limits_and_budget_and_beat_single_steps(objective, batch, prompt, hw, quality, tpot) -> None:
    goal = Goal(objective, Limits(tpot=tpot), quality)
    asked = request(batch, prompt, hw=hw)
    offered = moves(asked, *NAMES)[:-1]
    advice = advise(asked, goal, moves=offered)
    plan = advice.plan
    if plan.end is None:
        assert advice.base.missed
        assert not [one for one in advice.recommendations if not one.trial.missed]
        assert set(plan.nearest) <= {"capacity", "tpot"}
        assert all(use > 1 for use in plan.nearest.values())
        return
    assert not plan.end.missed
    assert quality.allows(plan.end.price)
    singles = [one.trial for one in advice.recommendations if not one.trial.missed]
    for single in [*singles, *([advice.base] if not advice.base.missed else [])]:
        assert goal.gain(single.value, plan.end.value) >= 1 - 1e-12
    if plan.steps and not advice.base.missed:
        gains = np.prod([step.better.mid for step in plan.steps])
        assert gains == pytest.approx(plan.better.mid, rel=1e-9)  # each step's gain is given those before it


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    st.sampled_from([Objective.TOTAL, Objective.THROUGHPUT, Objective.MEMORY]),
    st.sampled_from(["h100-sxm", "a6000"]),
    st.sampled_from(["tpot", "ttft"]),
    st.tuples(st.floats(1e-3, 2), st.floats(1, 30)),
    st.sampled_from(list(combinations(QUALITIES, 2))),
)
def test_loosening_never_worsens_the_objective(objective, hw, limit, tightness, budgets) -> None:
    tight, factor = tightness
    asked = request(8, 1024, hw=hw)
    offered = moves(asked, *NAMES)
    found = []
    for seconds, quality in ((tight, budgets[0]), (tight * factor, budgets[0]), (tight * factor, budgets[1])):
        goal = Goal(objective, Limits(**{limit: seconds}), quality)
        grid = asked.with_(batch=batch_grid(asked)) if goal.batch_varies else asked
        found.append(search(Trials(grid, goal), offered).outcomes.best)
    for before, after in pairwise(found):
        if before is not None:
            assert after is not None
            assert Goal(objective).gain(before.value, after.value) >= 1


def test_more_devices_never_worsen_the_objective() -> None:
    asked = Scenario("llama-3.1-70b", "h100-sxm", tp=2, prompt=512, generate=64)
    values = []
    for gpus in (2, 4, 8):
        goal = Goal(Objective.TOTAL, Limits(gpus=gpus))
        offered = [*moves(asked, "awq", "fp8")[:-1], *parallel_moves(asked, [n for n in (1, 2, 4, 8) if n <= gpus])]
        best = search(Trials(asked, goal), offered).outcomes.best
        values.append(best.value)
        assert best.used["gpus"] <= 1
    assert values == sorted(values, reverse=True)
    assert values[2] < values[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "hw", "objective", "batch", "options", "limits"),
    [
        # The least memory is that of a move that breaks a limit: singles that keep it are in nobody's way.
        ("llama-4-scout", "gh200", Objective.MEMORY, 16, {"prompt": 64, "generate": 2}, Limits(ttft=0.3, tpot=0.01)),
        ("gemma-3-27b", "mi210", Objective.MEMORY, 16, {"prompt": 3000, "generate": 16}, Limits(tpot=0.04, gpus=4)),
    ],
)
def test_a_plan_is_as_good_as_every_change_alone(model, hw, objective, batch, options, limits) -> None:
    asked = Scenario(model, hw, tp=8, batch=batch, **options)
    advice = advise(asked, Goal(objective, limits), top=0)
    end = advice.plan.end
    assert end is not None
    alone = [found.trial for found in advice.recommendations if not found.trial.missed]
    assert alone
    assert all(advice.case.goal.gain(end.value, trial.value) <= 1 + 1e-9 for trial in alone)


@pytest.mark.slow
def test_other_numbers_of_devices_never_worsen_the_objective() -> None:
    """With a limit of as many devices as there are, fewer may be had: more is allowed, and nothing is lost."""
    options = {"batch": 64, "prompt": 3000, "generate": 128}
    asked = Scenario("glm-4.5-air", "rtx-4090", tp=8, **options)
    plans = [advise(asked, Goal(Objective.THROUGHPUT, Limits(tpot=0.04, gpus=gpus)), top=0).plan for gpus in (None, 8)]
    same, fewer = (plan.end for plan in plans)
    assert same is not None
    assert fewer is not None
    assert fewer.value >= same.value * (1 - 1e-9)


def test_unreachable_limits_name_the_binding_one_and_the_nearest_value() -> None:
    asked = request(8, 1024)
    plan = advise(asked, Goal(Objective.TOTAL, Limits(tpot=1e-4)), moves=moves(asked, *NAMES)[:-1]).plan
    assert not plan.feasible
    assert list(plan.nearest) == ["tpot"]
    reached = plan.nearest["tpot"] * 1e-4
    again = advise(asked, Goal(Objective.TOTAL, Limits(tpot=reached * 1.0001)), moves=moves(asked, *NAMES)[:-1]).plan
    assert again.feasible
    barely = advise(asked, Goal(Objective.TOTAL, Limits(tpot=reached * 0.9999)), moves=moves(asked, *NAMES)[:-1]).plan
    assert not barely.feasible


def test_limits_that_are_met_one_at_a_time_are_reported_together() -> None:
    asked = request()
    limits = Limits(ttft=1e-4, tpot=1e-4)
    plan = advise(asked, Goal(Objective.TOTAL, limits), moves=moves(asked, *NAMES)[:-1]).plan
    assert not plan.feasible
    assert plan.jointly
    reached = {name: plan.nearest[name] * 1e-4 for name in ("ttft", "tpot")}
    for slack, feasible in ((1.0001, True), (0.9999, False)):
        near = Limits(**{name: value * slack for name, value in reached.items()})
        again = advise(asked, Goal(Objective.TOTAL, near), moves=moves(asked, *NAMES)[:-1]).plan
        assert again.feasible == feasible


def test_moves_that_work_only_together_are_found() -> None:
    """Llama-3.1-70B in bf16 fits on no A6000, with W4 on one."""
    asked = Scenario("llama-3.1-70b", "a6000", prompt=512, generate=64)
    advice = advise(asked, Goal(Objective.TOTAL), moves=moves(asked, "awq", "eagle", "fp8-kv")[:-1])
    assert advice.base.missed == ("capacity",)
    assert "awq" in {step.move.name for step in advice.plan.steps}
    assert advice.plan.feasible


def test_a_move_after_which_nothing_is_decoded_has_no_tpot() -> None:
    """Skeleton-of-Thought leaves one step of two: such a move is refused, and the others are still advised."""
    asked = request().with_(generate=2)
    chosen = [move for move in technique_moves() if move.name in ("skeleton-of-thought", "awq")]
    advice = advise(asked, Goal(Objective.TPOT, quality=Quality.LOSSY), moves=chosen, top=0)
    assert list(advice.refused) == ["skeleton-of-thought"]
    assert advice.recommendation("awq") is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "hw", "batch", "degrees", "objective", "quality", "least"),
    [
        ("deepseek-v3", "h200-sxm", 32, {"tp": 8}, Objective.COST, "calibrated", 2),
        ("qwen2.5-32b", "rtx-4090", 1, {}, Objective.TOTAL, "calibrated", 2),  # it does not fit as it is
        ("llama-3.1-8b", "h100-sxm", 64, {}, Objective.THROUGHPUT, "calibrated", 2),
        ("llama-2-13b", "a6000", 1, {}, Objective.TPOT, "calibrated", 2),
        ("llama-2-13b", "a6000", 1, {}, Objective.TOTAL, "retrain", 6),
    ],
)
def test_no_single_change_makes_a_plan_better(model, hw, batch, degrees, objective, quality, least) -> None:
    asked = Scenario(model, hw, **degrees, batch=batch, prompt=2000, generate=500)
    goal = Goal(objective, quality=Quality(quality))
    advice = advise(asked, goal)
    end = advice.plan.end
    assert end is not None
    assert not end.missed
    assert len(end.moves) >= least
    fixed = {move for move in end.moves if move.kind is Kind.BATCH}
    for move in advice.case.moves.values():
        if move.kind not in (Kind.TECHNIQUE, Kind.PARALLELISM) or move.slot in FACT_SLOTS:
            continue
        others = {other for other in end.moves - fixed if other.slot != move.slot}
        trial = advice.case.trials.attempt({*fixed, *others, move})
        if trial is not None and not trial.missed and goal.quality.allows(trial.price):
            # Half a hundredth of the plan before it may be a little more of the plan at its end.
            assert goal.gain(end.value, trial.value) <= 1.01, (move.name, end.names)


def test_a_plan_that_is_full_says_what_would_make_it_better() -> None:
    asked = request()
    trials = Trials(asked, Goal())
    plan = make_plan(trials, trials, moves(asked, *NAMES), depth=2)
    assert len(plan.steps) == 2
    left = re.fullmatch(
        r"the best remaining change, .+, gives (.+) times the objective, and a plan has at most 2 changes", plan.stopped
    )
    assert left is not None
    assert float(left[1]) > MIN_GAIN
    whole = make_plan(trials, trials, moves(asked, *NAMES))
    assert "at most" not in whole.stopped
    assert whole.steps[-1].trial.value < plan.steps[-1].trial.value


@pytest.mark.slow
def test_a_larger_budget_goes_on_from_the_best_of_a_smaller_one() -> None:
    """Alone neither eagle nor awq helps as much over four devices as both do: one is lossless, the other calibrated."""
    asked = Scenario("qwen3-30b-a3b", "h100-sxm")
    advice = advise(asked, Goal(limits=Limits(gpus=4)))
    end = advice.plan.end
    assert end is not None
    for move in advice.case.moves.values():
        if move.kind in (Kind.TECHNIQUE, Kind.PARALLELISM) and move.slot not in FACT_SLOTS:
            trial = advice.case.trials.attempt({*(other for other in end.moves if other.slot != move.slot), move})
            if trial is not None and not trial.missed and advice.case.goal.quality.allows(trial.price):
                assert advice.case.goal.gain(end.value, trial.value) <= MIN_GAIN, (move.name, end.names)


@pytest.mark.slow
@pytest.mark.parametrize("hw", ["h100-sxm", "rtx-4090"])
@pytest.mark.parametrize("engine", ["hf-eager", "gpt-fast", "vllm"])
def test_plans_change_to_engines_that_are_surely_better_and_run_all_of_the_plan(engine: str, hw: str) -> None:
    asked = Scenario("llama-3.1-8b", hw, engine=engine)
    advice = advise(asked)
    plan, goal = advice.plan, advice.case.goal
    assert plan.end is not None
    for single in advice.recommendations:
        assert goal.gain(single.trial.value, plan.end.value) >= 1 - 1e-12, single.move.name
        assert single.move.kind is not Kind.ENGINE or single.certain
    assert all(not found.certain for found in advice.engines)
    chosen = next((step.move.engine for step in plan.steps if step.move.kind is Kind.ENGINE), engine)
    assert (chosen != engine) == (engine == "hf-eager" and hw == "h100-sxm")
    for step in plan.steps:
        if step.move.engines is not None:
            assert chosen in step.move.engines
            assert runs(check_request(step.move.name).name, chosen, asked.hardware)


def test_techniques_of_another_engine_need_that_engine() -> None:
    asked = Scenario("llama-3.1-8b", "h100-sxm", engine="hf-eager")
    engines = {move.name: move for move in engine_moves(asked)}
    further = {move.name: move for move in elsewhere(asked, engines.values())}
    trials = Trials(asked, Goal())
    assert trials.refusal(further["eagle"]) == "hf-eager is not known to run eagle"
    assert trials.attempt([further["eagle"], engines["engine=vllm"]]) is not None
    assert trials.attempt([further["eagle-3"], engines["engine=tensorrt-llm"]]) is not None
    assert not {move.name for move in engine_techniques(asked)} & set(further)


def test_engines_without_a_technique_in_use_are_not_offered() -> None:
    asked = Scenario("llama-3.1-8b", "h100-sxm").with_(techniques="medusa")
    able = {name for name in SERVED_BY if runs("medusa", name, asked.hardware)} - {"vllm"}
    assert {move.engine for move in engine_moves(asked)} == able
    assert able < {move.engine for move in engine_moves(asked.with_(techniques=()))}


def test_an_older_version_runs_what_its_engine_runs_and_may_be_upgraded() -> None:
    newest, same, older = (
        Scenario("llama-3.1-8b", "h100-sxm", engine=name) for name in ("vllm", "vllm@0.24", "vllm@0.5")
    )
    techniques = [[(move.name, move.engines) for move in engine_techniques(asked)] for asked in (newest, same, older)]
    assert techniques[0] == techniques[1] == techniques[2]
    names = [{move.name for move in engine_moves(asked)} for asked in (newest, same, older)]
    assert names[0] == names[1] == names[2] - {"engine=vllm"}
    assert "engine=vllm" in names[2]


def test_what_does_not_fit_is_not_timed_until_it_is_asked_for() -> None:
    asked = Scenario("llama-3.1-70b", "a6000", prompt=512, generate=64)
    trials = Trials(asked, Goal(Objective.TOTAL))
    (eagle, awq) = (frozenset({move}) for move in moves(asked, "eagle", "awq")[:-1])
    trials.prefetch([eagle, awq])
    beyond, within = trials.fitting(eagle), trials.fitting(awq)
    assert beyond is not None
    assert beyond.analysis._expected is None
    assert beyond.scores[:3] == (np.inf,) * 3
    assert within is not None
    assert within.analysis._expected is not None
    assert trials.attempt(eagle) is beyond
    assert beyond.analysis._expected is not None


@pytest.mark.slow
def test_two_that_help_each_other_are_found_where_no_step_of_one_leads() -> None:
    """No change alone is within the limit: drafting, and what halves the weights, are together."""
    asked = Scenario("llama-3.1-8b", "h100-sxm", batch=4, prompt=16384, generate=256)
    advice = advise(asked, Goal(Objective.TTFT, Limits(tpot=0.004)), top=0)
    assert not [one for one in advice.recommendations if not one.trial.missed]
    assert {step.move.name for step in advice.plan.steps} == {"fp8", "eagle-3"}


def test_the_search_continues_from_the_best_of_the_combinations_that_do_not_fit() -> None:
    """No drafting makes room for a model; the best if there were any is tried with what does."""
    asked = Scenario("llama-3.1-70b", "a6000", prompt=512, generate=64)
    offered = [
        move
        for move in all_moves(asked, Goal(Objective.TPOT))
        if move.slot in ("speculative decoding", "weight format")
    ]
    trials = Trials(asked, Goal(Objective.TPOT))
    drafts = {
        move.name: trial.score_ignoring_memory
        for move in offered
        if move.slot == "speculative decoding" and (trial := trials.attempt([move])) is not None
    }
    assert not trials.base.fits.any()
    assert min(drafts, key=lambda name: (drafts[name], name)) in {move.name for move in _useful(trials, offered)}


def test_techniques_in_use_are_not_listed_as_remaining() -> None:
    asked = request(batch=4).with_(techniques="fp8-kv")
    assert "fp8-kv" not in advise(asked, moves=moves(asked, "fp8-kv")[:1]).plan.stopped
