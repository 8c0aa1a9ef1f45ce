"""Links between cards: NVLink bridges between pairs, the host link beyond them, and meshes."""

from __future__ import annotations

import numpy as np
import pytest

from roofline import Analysis, Scenario, analyze, list_hardware, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.hardware import Span
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_bound

A6000, H100 = load_hardware("a6000"), load_hardware("h100-sxm")
BRIDGE, PCIE = 56.25e9, 32e9


def run(model: str = "llama-2-13b", **degrees: int) -> Analysis:
    settings = Settings(parallel=Parallelism(**degrees))
    return analyze(Scenario(load_model(model), A6000, batch=8, prompt=100, settings=settings))


@pytest.mark.parametrize(
    ("degrees", "bandwidth"),
    [
        ({"tensor": 2}, BRIDGE),
        ({"tensor": 2, "data": 2}, BRIDGE),
        ({"tensor": 4}, PCIE),
        ({"tensor": 8}, PCIE),
    ],
)
def test_all_reduce_takes_the_link_of_its_reach(degrees, bandwidth) -> None:
    answer, ranks = run(**degrees), degrees["tensor"]
    op = next(op for op in answer.prefill.ops if op.name == "attn_all_reduce")
    sequences = 8 / degrees.get("data", 1)
    assert op.link_bytes == 2 * (ranks - 1) / ranks * sequences * 100 * 5120 * 2
    assert op.bound_time == pytest.approx(op.link_bytes / bandwidth)
    assert float(answer.prefill.expected.mid) > answer.prefill.bound_time


def test_send_receive_between_pairs_takes_the_host_link() -> None:
    answer = run(tensor=2, pipeline=2)
    found = {op.name: op.link_bytes / op.bound_time for op in answer.prefill.ops if op.link_bytes}
    assert found["attn_all_reduce"] == pytest.approx(BRIDGE)
    assert found["send_receive"] == pytest.approx(PCIE)


def test_one_of_three_send_receives_leaves_its_bridge() -> None:
    answer = run(pipeline=4)
    found = {op.name: (op.count, op.link_bytes / op.bound_time) for op in answer.prefill.ops if op.link_bytes}
    assert found["send_receive"] == (2, pytest.approx(BRIDGE))
    assert found["send_receive_far"] == (1, pytest.approx(PCIE))


def test_all_to_all_reaches_all_expert_ranks() -> None:
    """Two expert ranks of two devices each: tokens go to the other pair, over PCIe."""
    answer = run("qwen3-30b-a3b", tensor=2, data=2, expert=2)
    dispatch = next(op for op in answer.prefill.ops if op.name == "dispatch_all_to_all")
    assert dispatch.bound_time == pytest.approx(dispatch.link_bytes / PCIE)
    columns = {"collective": "alltoall", "ranks": 2.0, "bytes": 1e6}
    assert kernel_bound("collective", columns, A6000) == pytest.approx(0.5e6 / BRIDGE)
    assert kernel_bound("collective", {**columns, "reach": 4.0}, A6000) == pytest.approx(0.5e6 / PCIE)
    both = kernel_bound("collective", {**columns, "ranks": np.array([2.0, 4.0])}, A6000)
    assert list(both) == pytest.approx([0.5e6 / BRIDGE, 0.75e6 / PCIE])


def test_devices_per_node() -> None:
    nodes = {name: load_hardware(name).node_devices for name in ("a6000", "h100-pcie", "mi210", "rtx-4090", "h100-sxm")}
    assert set(nodes.values()) == {8}
    assert load_hardware("gb200").node_devices == 72
    for name in list_hardware():
        hardware = load_hardware(name)
        for span in (Span(2, across_nodes=False), Span(8, across_nodes=False)):
            if any(link.scope != "network" for link in hardware.interconnects):
                assert hardware.link(span).bandwidth <= hardware.link(Span(2, across_nodes=False)).bandwidth


def test_requested_nodes_within_an_nvlink_domain() -> None:
    for reach in (2, 8, 16):
        assert H100.link(Span(reach, across_nodes=False)).scope == "node"
    assert H100.link(Span(16, across_nodes=True)).scope == "network"
    assert [A6000.link(Span(reach, across_nodes=False)).scope for reach in (2, 3, 8, 16)] == ["node", *["host"] * 3]


def test_mesh_bandwidth_grows_with_the_devices() -> None:
    """Seven links of 64 GB/s per device: two devices use one of them, four use three each, eight all seven."""
    device, model = load_hardware("mi300x"), load_model("llama-3.1-8b")
    for ranks, links in ((2, 1), (4, 3), (8, 7)):
        settings = Settings(parallel=Parallelism(tensor=ranks))
        answer = analyze(Scenario(model, device, batch=8, prompt=100, settings=settings))
        op = next(op for op in answer.prefill.ops if op.name == "attn_all_reduce")
        assert op.bound_time == pytest.approx(op.link_bytes / (links * 64e9))
        columns = {"collective": "all_reduce", "ranks": float(ranks), "bytes": 7e6}
        sent = 2 * (ranks - 1) / ranks * 7e6
        assert float(kernel_bound("collective", columns, device)) == pytest.approx(sent / (links * 64e9))
    far = {"collective": "all_reduce", "ranks": np.array([2.0, 2.0]), "reach": np.array([2.0, 8.0]), "bytes": 7e6}
    assert np.ptp(kernel_bound("collective", far, device)) == 0, "any two are neighbours"


def test_send_receive_on_a_mesh_takes_one_link() -> None:
    settings = Settings(parallel=Parallelism(pipeline=4))
    scenario = Scenario(load_model("llama-3.1-8b"), load_hardware("mi300x"), batch=8, prompt=100, settings=settings)
    op = next(op for op in analyze(scenario).prefill.ops if op.name == "send_receive")
    assert op.bound_time == pytest.approx(op.link_bytes / 64e9)


@pytest.mark.parametrize(
    ("name", "ranks", "measured"),
    # torch.distributed over RCCL, BF16, 128 MiB: 2,328, 1,208 and 659 us (AMD's Primus, reports of MI355X nodes);
    # rccl-tests, 128 MiB among eight MI300X: 797 us (ROCm blog on RCCL over xGMI).
    [("mi355x", 2, 2328), ("mi355x", 4, 1208), ("mi355x", 8, 659), ("mi300x", 8, 797)],
)
def test_published_all_reduce_bandwidth_of_a_mesh(name: str, ranks: int, measured: float) -> None:
    device = load_hardware(name)
    columns = {"collective": "all_reduce", "ranks": float(ranks), "bytes": float(1 << 27)}
    found = load_calibration(device).expected("collective", columns, device)
    assert float(found.mid) * 1e6 == pytest.approx(measured, rel=0.1)
