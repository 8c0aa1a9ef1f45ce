"""The one list of layouts: each uses all devices, none comes twice, and answer and choice take theirs of it."""

from __future__ import annotations

from typing import Any

import pytest

from roofline import Scenario, answer, choose
from roofline.serving.layouts import Layout, layouts_on, servers
from tests.cases import sampled

SHAPES = [
    ("llama-3.3-70b", "h100-sxm", 8),
    ("deepseek-r1", "h200-sxm", 16),
    ("deepseek-r1", "gb200", 72),
    ("qwen3-32b", "rtx-4090", 3),
    ("gpt-oss-120b", "mi300x", 6),
]


@pytest.mark.parametrize(("model", "hardware", "devices"), SHAPES)
def test_layouts_use_all_devices_once(model: str, hardware: str, devices: int) -> None:
    scenario = Scenario(model, hardware)
    found = list(layouts_on(scenario, devices))
    assert all(layout.devices * layout.copies == devices for layout in found)
    assert len({layout.label for layout in found}) == len(set(found)) == len(found)
    experts = bool(scenario.model.experts)
    assert any(layout.expert > 1 for layout in found) is experts
    assert Layout(copies=devices) in found


def test_layouts_are_within_what_links_and_engines_join() -> None:
    """Eight ranks of a node come before more of several; llama.cpp divides layers alone."""
    first, *_ = servers(*_of("deepseek-r1", "h200-sxm"), 16)
    assert first == Layout(8, 2)
    assert list(servers(*_of("qwen3-32b", "rtx-4090", engine="llama.cpp"), 2)) == [Layout(pipeline=2)]


def test_servers_have_room_on_the_machines_of_a_rack() -> None:
    """An engine places equally many ranks on each tray of 4: a server of 6 takes two trays, of which 18 hold nine."""
    sizes = {layout.devices for layout in layouts_on(Scenario("deepseek-r1", "gb200"), 72)}
    assert sizes == {1, 2, 4, 8, 12, 24, 36, 72}
    assert {layout.devices for layout in layouts_on(Scenario("gpt-oss-120b", "mi300x"), 6)} == {1, 2, 3, 6}


def test_one_scenario_has_all_copies_of_a_layout() -> None:
    for name, devices in (("qwen3-235b-a22b", 8), ("llama-3.3-70b", 8)):
        scenario = Scenario(name, "8xh200-sxm")
        for layout in layouts_on(scenario, devices):
            if (options := layout.options(scenario.model)) is not None:
                parallel = scenario.with_(**options).settings.parallel
                assert (parallel.devices, parallel.pipeline) == (devices, layout.pipeline)
                assert parallel.data == layout.data * layout.copies
                assert parallel.expert == layout.expert


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "hardware", "users"),
    sampled([("gpt-oss-120b", "8xmi300x", 32), ("llama-3.3-70b", "8xh100-sxm", 16)], 1),
)
def test_the_layout_of_an_answer_is_that_of_a_choice(model: str, hardware: str, users: int) -> None:
    """But for copies that divide experts, and pipelines within a node, of which none is measured."""
    first = choose("layout", model, hardware, users).best
    parallel = answer(model, hardware, users=users).scenario.settings.parallel
    assert first.alternative.scenario is not None
    asked = first.alternative.scenario.settings.parallel
    assert (parallel.tensor, parallel.pipeline) == (asked.tensor, asked.pipeline)
    assert parallel.devices == asked.devices * first.alternative.copies


def test_a_pipeline_within_a_node_is_chosen_where_it_is_better_by_more_than_its_error() -> None:
    found = answer("llama-3.3-70b", "2x8xa100-sxm-80gb", users=300)
    parallel = found.scenario.settings.parallel
    assert parallel.pipeline == 1
    assert found.plan.rival is not None


def _of(model: str, hardware: str, **options: Any) -> tuple[Any, ...]:
    scenario = Scenario(model, hardware, **options)
    return scenario.model, scenario.hardware, scenario.profile
