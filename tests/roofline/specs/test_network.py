"""Networks between nodes: bundled, named by speed and kind, from files, and what is wrong with a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline import Scenario, load_hardware
from roofline.core.errors import RooflineError, SpecError, UnsupportedError
from roofline.specs.hardware import NETWORK, list_hardware, networked
from roofline.specs.network import Fabric, list_networks, load_fabric, parse_network


@pytest.mark.parametrize("name", list_networks())
def test_bundled_networks_have_sources(name: str) -> None:
    network = load_fabric(name).network
    assert network is not None
    assert network.name == name
    assert all(network.sources.values())
    assert network.spread[0] < 1 < network.spread[1]


@pytest.mark.parametrize(
    ("text", "bandwidth", "kind"),
    [
        ("400G", 50e9, "unknown"),
        ("400G-ib", 50e9, "infiniband"),
        ("8x400G-ib", 50e9, "infiniband"),
        ("4x400G-roce", 25e9, "roce"),
        ("efa", 50e9, "efa"),
        ("100g-tcp", 12.5e9, "ethernet"),
    ],
)
def test_a_name_gives_the_bandwidth_of_a_device(text: str, bandwidth: float, kind: str) -> None:
    found = networked(load_hardware("h100-sxm"), load_fabric(text))
    assert found.link(NETWORK).bandwidth == pytest.approx(bandwidth)
    assert found.crossing.name == kind


def test_the_ports_of_a_node_are_shared_by_its_devices() -> None:
    found = networked(load_hardware("gb200"), load_fabric("nvl8,8x800G-ib"))
    assert found.node_devices == 8
    assert found.nodes(72) == 9
    assert found.link(NETWORK).bandwidth == pytest.approx(100e9)
    assert networked(load_hardware("gb200"), load_fabric("nvl32")).crossing.name == "infiniband"


@pytest.mark.parametrize(
    "text",
    [
        "400",
        "8x",
        "x400G",
        "0x400G",
        "0G",
        "ibb",
        "400G-",
        "nvl",
        "nvl0",
        "-1G",
        "4e2G",
        "400G,spine=0",
        "nvl8,spine=2",
    ],
)
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(RooflineError):
        load_fabric(text)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nbandwidth: 10 GB/s\nhop: 3 us\nspine: 2\nspine_hop: 1 us\n", encoding="utf-8")
    network = load_fabric(file).network
    assert network is not None
    assert load_fabric(f"nvl4,{file}") == Fabric(network, 4)
    assert (network.bandwidth, network.hop) == (10e9, pytest.approx(3e-6))
    assert (network.spine, network.spine_hop) == (2, pytest.approx(1e-6))
    with pytest.raises(SpecError, match="'hop' is missing"):
        parse_network({"name": "mine", "bandwidth": "10 GB/s"}, "mine.yaml")
    with pytest.raises(SpecError, match="cites the unknown source 'nobody'"):
        parse_network({"name": "mine", "bandwidth": "10 GB/s [nobody]", "hop": "3 us"}, "mine.yaml")


def test_hardware_without_a_network_asks_for_one() -> None:
    with pytest.raises(UnsupportedError, match="name a network"):
        load_hardware("rtx-4090").link(NETWORK)
    alone = Scenario("llama-3.1-8b", "rtx-4090", tp=16, nodes=2, network="100G-tcp")
    assert alone.hardware.link(NETWORK).bandwidth == pytest.approx(12.5e9)


def test_accelerators_of_servers_have_a_network() -> None:
    for name in ("h20", "l40s", "mi300x", "mi325x", "mi355x", "rtx-pro-6000-server", "h200-nvl"):
        assert name in list_hardware()
        assert load_hardware(name).link(NETWORK).bandwidth > 0
