"""Choices: the table, its order, the verdict, flips, money, and the answers that public reports give."""

from __future__ import annotations

import math
from typing import Any

import pytest

from roofline import Decision, RooflineError, Scenario, answer, choose, serve, size
from roofline.advisor.choosing.alternatives import Decided
from roofline.advisor.choosing.rows import parse_api_price, rival_of
from roofline.advisor.search.moves import context_moves, exchange_moves
from roofline.core.units import MONTH
from roofline.reports.documents.choose import decision_document
from tests.cases import sampled

SMALL: dict[str, Any] = {"prompt": 256, "generate": 64}


def labels(found: Decision) -> list[str]:
    return [row.label for row in found.rows]


def test_rows_are_those_of_serve_in_the_order_of_the_objective() -> None:
    found = choose("format", "llama-3.2-1b", "l4", 16, **SMALL)
    values = [row.outcome.output_per_device for row in found.rows if row.outcome and not row.missed]
    assert values == sorted(values, reverse=True)
    best = found.best
    assert best.alternative.scenario is not None
    assert best.outcome is not None
    curve = serve(best.alternative.scenario, concurrency=16)
    assert curve.outcomes[0].output_per_device == pytest.approx(best.outcome.output_per_device, rel=0.02)


DECIDED = [each for each in Decided if each not in (Decided.API, Decided.HARDWARE)]


@pytest.mark.parametrize("decided", sampled(DECIDED, 1))
def test_every_decision_has_alternatives(decided: Decided) -> None:
    found = choose(decided, "llama-3.2-1b", "2xl4" if decided == "disaggregation" else "l4", 4, **SMALL)
    assert len(found.rows) > 1
    assert len(set(labels(found))) == len(found.rows)
    assert all(row.rank <= other.rank for row, other in zip(found.rows, found.rows[1:], strict=False))
    assert str(found)


def test_an_engine_with_slots_has_as_many_as_its_command_says() -> None:
    """Ollama takes one request at a time unless it is told how many, as the answer's command does."""
    options: dict[str, Any] = {"engine": "ollama", **SMALL}
    best = choose("format", "llama-3.2-1b", "l4", 8, **options).best.outcome
    answered = answer("llama-3.2-1b", "l4", users=8, **options).outcome
    assert best is not None
    assert answered is not None
    assert best.output_tokens_per_second >= answered.output_tokens_per_second


def test_engines_are_compared_each_as_its_answer_runs_it() -> None:
    """llama.cpp splits layers over devices that have no server each; Ollama has one slot unless it is told more."""
    asked = Scenario("llama-3.2-1b", "2xl4", **SMALL)
    for row in choose("engine", asked, concurrency=8).rows:
        told = row.alternative.scenario
        if row.outcome is None or told is None or row.unknown:
            continue
        answered = answer(asked.with_(engine=told.profile.name), users=8).scenario.settings.parallel
        assert told.settings.parallel == answered, row.label


@pytest.mark.parametrize(("decided", "model"), [("offload", "gpt-oss-120b"), ("engine", "qwen3-32b")])
def test_distributions_of_lengths_have_the_alternatives_of_their_means(decided: str, model: str) -> None:
    found = [choose(decided, model, "rtx-4090", prompt=prompt) for prompt in ("uniform:400:600", 500)]
    assert sorted(labels(found[0])) == sorted(labels(found[1]))


@pytest.mark.slow
def test_layouts_use_all_devices() -> None:
    found = choose("layout", "gpt-oss-20b", "4xh100-sxm", 16, **SMALL)
    assert all(row.devices == 4 for row in found.rows if row.fits)
    assert {"TP 4", "TP 2, 2 replicas", "TP 1, 4 replicas", "attention DP, EP 4", "TP 4 EP 4"} <= set(labels(found))


@pytest.mark.slow
def test_a_cache_that_tensor_ranks_copy_may_be_divided() -> None:
    """Latents are of one head: eight ranks have eight copies of them, and attention to a long context is the first.

    TensorRT-LLM's server is not told so, and 8 KV heads on 8 ranks have no copies.
    """
    long = {"prompt": 32768, "generate": 512}
    found = {row.label: row for row in choose("layout", "deepseek-r1", "8xh200", 16, **long).rows}
    whole, divided = found["TP 8"].outcome, found["TP 8 DCP 8"].outcome
    assert whole is not None
    assert divided is not None
    assert divided.kv_use < whole.kv_use / 4
    assert "DCP" not in " ".join(labels(choose("layout", "deepseek-r1", "8xh200", 1, engine="tensorrt-llm", **SMALL)))
    assert "DCP" not in " ".join(labels(choose("layout", "llama-3.1-8b", "8xh200", 1, **SMALL)))


@pytest.mark.slow
def test_wide_ranks_are_compared_with_the_exchange_that_people_run() -> None:
    """vLLM gathers all tokens by default; over an NVL72 its guide has NVLink's one-sided exchange."""
    found = {row.label: row for row in choose("layout", "deepseek-r1", "32xgb200", 2048, engine="vllm", **SMALL).rows}
    own, other = found["attention DP, EP 32"].outcome, found["attention DP, EP 32, nvlink_one_sided"].outcome
    assert own is not None
    assert other is not None
    assert other.tpot.mean.mid < own.tpot.mean.mid
    asked = Scenario("deepseek-r1", "gb200", ep=72, batch=2304, engine="vllm")
    assert "all-to-all=nvlink_one_sided" in [move.name for move in exchange_moves(asked)]
    assert [move.name for move in context_moves(Scenario("deepseek-r1", "h200-sxm", tp=8))] == ["dcp=8"]
    assert not list(context_moves(Scenario("llama-3.1-8b", "h200-sxm", tp=8)))


def test_money_adds_up_to_the_rent() -> None:
    """All tokens of a month at their prices are what the devices cost in it, with and without cached prefixes."""
    for hits in (None, 0.5):
        found = choose("layout", "llama-3.2-1b", "l4", 8, prefix_hits=hits, price=0.9, hours=100, **SMALL)
        row = found.best
        assert row.money is not None
        share = hits or 0.0
        prompt, output = found.load.means
        tokens = (prompt * (1 - share), prompt * share, output)
        prices = (row.money.prompt, row.money.cached, row.money.output)
        request = sum(count * price for count, price in zip(tokens, prices, strict=True)) / 1e6
        assert row.requests_per_second * 3600 * 100 * request == pytest.approx(row.money.month)
        assert row.money.month == pytest.approx(0.9 * row.devices * 100)
        assert row.money.cached < row.money.prompt < row.money.output


def test_tokens_of_audio_have_no_price_of_a_cached_prefix() -> None:
    """Whisper's encoder reads all of its input: no prompt starts from a prefix."""
    found = choose("format", "whisper-tiny", "l4")
    assert all(row.money is not None and math.isnan(row.money.cached) for row in found.rows)
    assert decision_document(found)["rows"][0]["usd_per_million_tokens"]["cached"] is None
    assert str(found)


def test_an_api_breaks_even_where_the_rent_buys_its_requests() -> None:
    found = choose("api", "llama-3.2-1b", "l4", 8, api_price="0.1/0.4", price=1.0, **SMALL)
    assert "API" in labels(found)
    assert found.break_even == pytest.approx(MONTH / (256 * 0.1 + 64 * 0.4) * 1e6)
    rented = next(row for row in found.rows if row.label != "API")
    cheaper = rented.requests_per_second * 3600 * MONTH > found.break_even
    assert (found.best.label != "API") is cheaper
    assert str(found).count("API") >= 1
    assert parse_api_price("1/0.1/2").cached == 0.1


def test_without_a_price_nothing_costs_and_it_says_so() -> None:
    found = choose("layout", "llama-3.2-1b", "m3-max", **SMALL)
    assert all(row.money is None for row in found.rows)
    assert "rent unknown" in str(found.to_dict()["prices"]) or found.to_dict()["prices"][0]["usd_per_hour"] is None


@pytest.mark.slow
def test_a_flip_is_the_load_from_which_another_is_first() -> None:
    found = choose("format", "llama-3.1-8b", "l40s", 32)
    assert found.flips
    for flip in found.flips:
        there = choose("format", "llama-3.1-8b", "l40s", round(flip.load))
        assert there.best.label != found.best.label


RANKS: dict[str, Any] = {"engine": "sglang", "dp": 16, "ep": 16, "sequences": 512}


@pytest.mark.slow
def test_drafts_are_compared_with_none_as_where_lengths_vary() -> None:
    """Ranks that compute their prompts together wait least for each other: of equal outputs, and without drafts."""
    gains = []
    for outputs in (1000, "uniform:800:1200"):
        found = choose("speculation", "deepseek-r1", "h20-141gb", 512, prompt=2000, generate=outputs, **RANKS)
        tokens = {row.label: row.outcome.output_per_device for row in found.rows if row.outcome is not None}
        gains.append([tokens[f"multi-token-prediction:length={drafts}"] / tokens["none"] for drafts in (1, 2, 3)])
    assert gains[0] == pytest.approx(gains[1], rel=0.05)


def test_what_is_compared_is_what_the_commands_serve() -> None:
    found = choose("speculation", "llama-3.1-8b", "h100-sxm", 16, prompt=200, generate=100)
    assert found.load.outputs.mean == 100
    assert found.best.outcome is not None
    assert found.best.alternative.scenario is not None
    deployed = found.best.alternative.scenario.with_(generate=found.load.outputs.written)
    (outcome,) = serve(deployed, concurrency=16).outcomes
    assert outcome.output_per_device == pytest.approx(found.best.outcome.output_per_device)


def test_a_flip_is_told_of_what_is_likely_better_at_more_load() -> None:
    """Of a load at which two are too close to call; what leads at more load is then compared with a pipeline."""
    near, many = (
        choose("layout", "llama-3.1-8b", "2xh100-sxm", users, prompt=1024, generate="fixed:512") for users in (150, 300)
    )
    assert near.verdict is not None
    assert near.verdict.confidence == "open"
    (flip,) = near.flips
    assert 150 < flip.load < 300
    assert flip.label == many.best.label != near.best.label
    staged = next(row for row in many.rows if row.label == "PP 2")
    assert staged.value < 1.05 * many.best.value  # as fast, but pipelines within a node are not measured
    assert staged is not many.best
    assert many.verdict is not None
    assert (many.verdict.confidence, many.verdict.doubts) == ("open", ("pipelines",))


@pytest.mark.slow
def test_the_verdict_on_disaggregation_is_between_apart_and_together() -> None:
    found = choose("disaggregation", "llama-3.1-8b", "4xh100-sxm", 16, **SMALL)
    rival = rival_of(found.rows)
    assert rival is not None
    assert rival.is_apart is not found.best.is_apart
    labels_of = {row.label: row.is_apart for row in found.rows}
    assert all(labels_of[flip.label] is rival.is_apart for flip in found.flips)


@pytest.mark.slow
def test_a_count_of_devices_leaves_formats_free() -> None:
    counted = choose("hardware", "llama-3.3-70b", "2x4090,h100-sxm", users=4).best
    assert counted.label == "2x4090, awq, KV fp8"
    assert counted.devices == 2


@pytest.mark.slow
def test_hardware_is_that_of_size() -> None:
    found = choose("hardware", "llama-3.2-1b", "l4,h100-sxm", 8, **SMALL)
    assert len(found.rows) == 2
    assert found.objective == "cost"
    costs = [row.value for row in found.rows]
    assert costs == sorted(costs)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("colour", "llama-3.2-1b", "l4"), "unknown choice 'colour'"),
        (("api", "llama-3.2-1b", "l4"), "compares with a price"),
        (("layout", "llama-3.2-1b", "l4,h100-sxm"), "takes one kind of hardware"),
        (("hardware", "llama-3.2-1b", "l4"), "hardware to choose from"),
        (("disaggregation", "llama-3.2-1b", "l4"), "at least two devices"),
        (("layout", "bert-base", "l4"), "only encodes"),
        (("layout", "llama-3.1-405b", "rtx-3060"), "none of the alternatives runs"),
    ],
)
def test_mistakes(asked: tuple[str, str, str], said: str) -> None:
    with pytest.raises(RooflineError, match=said):
        choose(*asked, **SMALL)


@pytest.mark.parametrize("text", ["1", "a/b", "-1/2", "nan/1", "1/2/3/4"])
def test_api_prices_are_checked(text: str) -> None:
    with pytest.raises(RooflineError, match="IN/OUT"):
        parse_api_price(text)


@pytest.mark.parametrize(
    ("asked", "options", "better", "worse"),
    sampled(
        [
            (("layout", "qwq-32b", "8xa100-pcie-80gb", 128), {}, "TP 4, 2 replicas", "TP 8"),
            (
                ("disaggregation", "gpt-oss-120b", "8xh200", 32),
                {"prompt": 1000, "generate": 500},
                "TP 8",
                "apart",
            ),
            (
                ("format", "qwen3-8b", "a100-sxm-80gb", 32),
                {"prompt": 1024, "generate": 512},
                "as released (bf16), KV fp8",
                "as released (bf16)",
            ),
            (("engine", "gpt-oss-120b", "ryzen-ai-max-395", 1), {}, "llama.cpp", "vllm"),
            (("layout", "deepseek-v3.2", "8xh200", 512), {}, "attention DP, EP 8", "TP 8"),
        ],
        1,
    ),
    ids=["vllm-16300", "dynamo-3774", "vllm-42058", "vllm-34578", "recipes-234"],
)
def test_public_answers(asked: tuple[Any, ...], options: dict[str, Any], better: str, worse: str) -> None:
    """What these reports measured: the first alternative is better than the second, or than all of the second kind."""
    found = labels(choose(*asked, **options))
    others = [place for place, label in enumerate(found) if label == worse or label.startswith(f"{worse}:")]
    assert found.index(better) < min(others)


@pytest.mark.parametrize(
    ("asked", "options"),
    sampled(
        [
            (("layout", "gpt-oss-120b", "a100-sxm-80gb", 1), {}),
            (("layout", "llama-3.1-405b", "8xh200", 512), {"quant": "fp8", "prompt": 128, "generate": 2048}),
            (("layout", "deepseek-r1", "16xh100-sxm", 1), {}),
        ],
        1,
    ),
)
def test_what_is_not_measured_is_not_certain(asked: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Layouts of experts, pipelines and several nodes: public reports contradict the order, and it is not sure."""
    found = choose(*asked, **options)
    assert found.verdict is not None
    assert found.verdict.confidence == "open"
    assert found.verdict.doubts


def test_an_engine_of_other_vendors_devices_is_no_alternative() -> None:
    """The answer refuses it."""
    assert "tensorrt-llm" not in labels(choose("engine", "llama-3.2-1b", "mi300x", 4, **SMALL))
    assert "tensorrt-llm" in labels(choose("engine", "llama-3.2-1b", "h100-sxm", 4, **SMALL))


def test_the_engines_of_a_mac_are_those_of_a_mac() -> None:
    rows = choose("engine", "llama-3.1-8b", "m3-ultra").rows
    assert {row.label for row in rows if not row.unknown} == {"llama.cpp", "mlx", "ollama"}


@pytest.mark.slow
def test_what_does_not_sustain_a_rate_says_what_it_does() -> None:
    found = choose("disaggregation", "llama-3.3-70b", "8xh100-sxm", rate=10, prompt=4000, generate=300)
    largest = [row.largest for row in found.rows if row.fits]
    assert largest == sorted(largest, reverse=True)
    assert 0 < largest[0] < 10
    assert f"at most {largest[0]:.3g}" in decision_document(found)["sentence"]


def test_a_count_that_is_what_the_hardware_needs_anyway_is_one_alternative() -> None:
    assert len(choose("hardware", "llama-3.3-70b", "4090,2x4090,2x5090", users=4).rows) == 2


def test_a_rate_that_none_sustains_has_the_one_that_comes_nearest() -> None:
    found = choose("layout", "llama-3.3-70b", "8xh100-sxm", rate=400)
    largest = [row.largest for row in found.rows if row.fits]
    assert largest == sorted(largest, reverse=True)
    assert f"{largest[0]:.3g}" in decision_document(found)["sentence"]


def test_a_scenario_is_asked_as_its_options_are() -> None:
    scenario = Scenario("llama-3.1-8b", "2xh100-sxm", prompt=256, generate=32, kv="fp8")
    named = choose("layout", "llama-3.1-8b", "2xh100-sxm", users=4, prompt=256, generate=32, kv="fp8")
    assert [row.outcome for row in choose("layout", scenario, users=4).rows] == [row.outcome for row in named.rows]
    with pytest.raises(RooflineError, match="tp is given beside a scenario"):
        choose("layout", scenario, tp=2)


def test_offloading_has_what_the_cpu_computes() -> None:
    """Experts on a CPU are several times as fast as weights that are streamed (llama.cpp's --n-cpu-moe)."""
    found = choose("offload", "gpt-oss-120b", "rtx-3090")
    assert "on the CPU (llama.cpp)" in found.best.label
    streamed = next(row for row in found.rows if row.label.startswith("75%"))
    assert streamed.value > 2 * found.best.value


@pytest.mark.slow
def test_formats_that_the_engine_runs_alike_are_one_choice() -> None:
    found = choose("format", "deepseek-v4-flash", "8xb200-sxm", users=4)
    assert len({row.alternative.scenario.precision for row in found.rows}) == len(found.rows)


def test_titles_have_the_name_that_was_asked_for() -> None:
    """Qwen3.6 27B has the shape of Qwen3.5 27B, whose spec stands for it."""
    assert decision_document(choose("format", "qwen3.6-27b", "h100-sxm"))["model"] == "qwen3.6-27b"
    assert size("qwen3.6-27b", rate=1, hw="h100-sxm").described.startswith("qwen3.6-27b")
