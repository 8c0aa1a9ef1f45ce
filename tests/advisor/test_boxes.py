"""Boxes of cards that bridges join in pairs are one node to `size` and to `advise`."""

from __future__ import annotations

import json

import pytest

from roofline import load_model
from roofline.advisor.search.goal import Quality
from roofline.advisor.search.moves import parallel_moves
from roofline.advisor.sizing.configurations import configurations
from roofline.advisor.sizing.sizing import size
from roofline.advisor.sizing.workload import Service
from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario


def test_a_box_is_offered_as_one_node() -> None:
    model, service = load_model("llama-3.1-70b"), Service(0.01, 1000, 200)
    made = list(configurations(model, service, ["a6000"], Quality.LOSSLESS, None))
    assert [entry.split for entry in made] == ["", "tp=2", "tp=4", "tp=8"]
    best = size(model, service, ["a6000"], Quality.LOSSLESS).choice("fewest").best
    assert (best.configuration.split, best.configuration.degrees.get("nodes", 1)) == ("tp=4", 1)


def test_moves_to_four_cards_stay_within_a_node() -> None:
    request = Scenario("llama-2-13b", "a6000")

    def nodes(count: int) -> set[int | None]:
        moved = (move(request) for move in parallel_moves(request, [count]))
        return {Parallelism(**asked.question.degrees).on(asked.hardware).nodes for asked in moved}

    assert nodes(4) == nodes(8) == {1}
    assert nodes(9) == nodes(16) == {2}


@pytest.mark.parametrize("degrees", [{"tp": 16}, {"tp": 16, "nodes": 2}, {"tp": 8, "pp": 2}])
def test_the_present_layout_over_nodes_is_no_change(degrees: dict[str, int]) -> None:
    request = Scenario("llama-3.1-405b", "h100-sxm", **degrees)
    present, hardware = request.settings.parallel, request.hardware
    offered = {move(request).settings.parallel.on(hardware) for move in parallel_moves(request, [16])}
    assert present.on(hardware) not in offered
    spread = Scenario("llama-3.1-405b", "h100-sxm", tp=16, nodes=4)
    assert len(list(parallel_moves(spread, [16]))) == len(offered) + 1


@pytest.mark.slow
def test_advice_over_four_gpus_names_their_link(run) -> None:
    asked = ("advise", "llama-2-13b", "--hw", "a6000", "--gpus", 4, "--objective", "tpot", "--format", "json")
    status, out, err = run(*asked)
    assert status == 0, err
    names = {entry["move"] for entry in json.loads(out)["recommendations"]}
    assert any("tp=4" in name for name in names)
    assert "nodes" not in out


def test_the_present_layout_is_no_change() -> None:
    for degrees, devices in (
        ({"tp": 8}, 8),
        ({"ep": 32, "dp": 32, "nodes": 4}, 32),
        ({"tp": 8, "pp": 2, "nodes": 2}, 16),
    ):
        request = Scenario("deepseek-v3", "h800-sxm", **degrees)
        present = request.settings.parallel
        after = [move(request).settings.parallel for move in parallel_moves(request, [devices])]
        assert after
        assert present not in after
