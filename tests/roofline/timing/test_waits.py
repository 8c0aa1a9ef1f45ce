"""What devices that work together wait for."""

import numpy as np
import pytest

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.timing.waits import SLOWER_RANK, waited


def placement(**degrees):
    """Where the first pass of a mixture of experts runs."""
    settings = Settings(parallel=Parallelism(**degrees))
    return (
        analyze(Scenario(load_model("qwen3-30b-a3b"), load_hardware("h100-sxm"), settings=settings))
        .prefill.passes[0]
        .placement
    )


@pytest.mark.parametrize(
    ("ranks", "degrees"),
    [(1, {"pipeline": 4}), (1, {"data": 2}), (2, {"tensor": 2, "data": 4}), (8, {"data": 8, "expert": 8})],
)
def test_the_slowest_of_the_devices_that_wait_for_each_other_decides(ranks, degrees) -> None:
    slowest = np.random.default_rng(0).normal(1.0, SLOWER_RANK, (20000, ranks)).max(axis=1).mean()
    assert waited(placement(**degrees)) == pytest.approx(float(slowest), abs=0.002)


def test_waits_over_nodes_are_those_of_the_network() -> None:
    across, within = placement(data=16, expert=16, nodes=2), placement(tensor=4, pipeline=4, nodes=2)
    assert waited(across) == 1.0 < waited(within)
