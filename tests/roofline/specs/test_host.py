"""Hosts of PCIe devices: bundled, from files, in hardware specs, and invalid."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline import Scenario, load_hardware, load_model
from roofline.core.errors import SpecError, UnknownNameError
from roofline.specs.hardware import list_hardware
from roofline.specs.host import DEFAULT_HOST, RANKS, list_hosts, load_host, parse_host
from roofline.specs.library import spec_files

FRACTIONS = {"2": 0.6, "4": 0.5, "8": 0.4}


@pytest.mark.parametrize("name", list_hosts())
def test_bundled_hosts_have_sources(name: str) -> None:
    host = load_host(name)
    assert host.name == name
    assert host.title
    assert all(host.sources)
    assert host.sources
    assert set(host.all_reduce) == set(RANKS)


def test_hosts_are_ordered_by_what_reaches_what() -> None:
    switch, server, isolated = (load_host(name) for name in ("pcie-switch", DEFAULT_HOST, "pcie-isolated"))
    for ranks in RANKS:
        assert switch.all_reduce[ranks] >= server.all_reduce[ranks] >= isolated.all_reduce[ranks]
    assert switch.all_reduce[2] == server.all_reduce[2] == isolated.all_reduce[2], "pairs are peers on all of them"


@pytest.mark.parametrize(
    ("hardware", "reach", "over"),
    [
        ("l40s", 2, True),
        ("rtx-pro-6000-server", 8, True),
        ("h100-pcie", 2, False),  # an NVLink bridge
        ("h100-pcie", 4, True),
        ("h100-sxm", 8, False),
        ("dgx-spark", 2, False),  # its host link is NVLink-C2C
        ("mi300x", 8, False),
    ],
)
def test_devices_that_communicate_over_pcie(hardware: str, reach: int, over: bool) -> None:
    assert load_hardware(hardware).over_host(reach) is over


def test_no_hardware_fails_to_say_whether_it_uses_its_host() -> None:
    for name in list_hardware():
        load_hardware(name).over_host(8)


def test_a_host_in_a_hardware_spec_and_in_a_scenario(tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text(spec_files("hwspecs")["l40s"].read_text() + "host: pcie-switch\n", encoding="utf-8")
    hardware = load_hardware(str(spec))
    assert hardware.host == load_host("pcie-switch")
    assert load_hardware("l40s").host is None
    scenario = Scenario(load_model("llama-3.1-8b"), hardware, host="pcie-isolated")
    assert scenario.hardware.host == load_host("pcie-isolated")
    spec.write_text(spec.read_text().replace("pcie-switch", "pcie-swich"), encoding="utf-8")
    with pytest.raises(SpecError, match=r"mine\.yaml: 'host': unknown host 'pcie-swich'; did you mean 'pcie-switch'"):
        load_hardware(str(spec))


def test_a_host_from_a_file_and_from_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hosts" / "ours.yaml"
    path.parent.mkdir()
    path.write_text("name: ours\nall_reduce: {'2': 0.6, '4': 0.5, '8': 0.4}\n", encoding="utf-8")
    assert load_host(str(path)).all_reduce == {2: 0.6, 4: 0.5, 8: 0.4}
    monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path))
    assert load_host("ours") == load_host(str(path))
    with pytest.raises(UnknownNameError, match="did you mean 'pcie-server'"):
        load_host("pcie-sever")
    with pytest.raises(UnknownNameError, match="unknown host"):
        load_host("..")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"all_reduce": FRACTIONS}, "'name' is missing"),
        ({"name": "x", "all_reduce": {**FRACTIONS, "3": 0.5}}, "unknown key '3' in 'all_reduce'"),
        ({"name": "x", "all_reduce": {**FRACTIONS, "8": 24.7}}, "'all_reduce.8' must be a number <= 1"),
        ({"name": "x", "all_reduce": FRACTIONS, "spread": [1.1, 1.2]}, "'spread.0' must be a number <= 1"),
        ({"name": "x", "all_reduce": FRACTIONS, "sources": "me"}, "'sources' must be a list"),
        ({"name": "x", "reduce": FRACTIONS}, "unknown key 'reduce'"),
    ],
)
def test_invalid_hosts_are_rejected(content: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_host(content, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
