"""Collectives over PCIe: the host's fraction of the link, intervals with and without a named host, published times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.graph.parallel import Parallelism
from roofline.scenario.analysis import Analysis
from roofline.scenario.notes import notes
from roofline.scenario.settings import Settings
from roofline.specs.engine import load_engine
from roofline.specs.hardware import hosted
from roofline.specs.host import Host, list_hosts, load_host
from roofline.timing.calibration import Expected
from roofline.timing.chains import link_of, load_calibration
from roofline.timing.collectives import on_host
from roofline.whatif.explanation.assumptions import assumptions

LARGE = 2.0**29


def test_constants_of_unmeasured_devices_are_of_such_links() -> None:
    for name, link in (("rtx-3090", "pcie"), ("h20", "nvlink")):
        device = load_hardware(name)
        assert link_of(device) == link
        match = load_calibration(device).find("collective", "all_reduce")
        assert match is not None
        assert (match.calibration == link) == (name == "rtx-3090"), "the family of H20 is measured"


def reduced(hardware: str, host: Host | str | None, ranks: int, size: float = LARGE) -> Expected:
    device = load_hardware(hardware)
    if host is not None:
        device = hosted(device, load_host(host) if isinstance(host, str) else host)
    match = load_calibration(device).find("collective", "all_reduce")
    assert match is not None
    columns = {"collective": "all_reduce", "ranks": np.array([ranks]), "bytes": np.array([size])}
    return on_host(match, device).expected(columns, device)


@pytest.mark.parametrize("hardware", ["l40s", "rtx-pro-6000-server", "a10", "t4", "rtx-4090"])
@pytest.mark.parametrize("name", list_hosts())
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_large_message_takes_the_fraction_of_the_link(hardware: str, name: str, ranks: int) -> None:
    sent = 2 * (ranks - 1) / ranks * LARGE
    seconds = sent / (load_host(name).all_reduce[ranks] * load_hardware(hardware).host_bandwidth)
    assert reduced(hardware, name, ranks).mid.item() == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("name", list_hosts())
def test_the_host_does_not_change_the_latency(name: str) -> None:
    plain = reduced("l40s", None, 8, 64.0).mid.item()
    assert reduced("l40s", name, 8, 64.0).mid.item() == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(("ranks", "bus"), [(2, 39.1e9), (4, 26.4e9), (8, 24.7e9)])
def test_the_default_host_covers_the_rtx_pro_6000_server(ranks: int, bus: float) -> None:
    """Bus bandwidths of ai-dynamo/aiconfigurator at 095f58a."""
    found = reduced("rtx-pro-6000-server", "pcie-server", ranks)
    measured = 2 * (ranks - 1) / ranks * LARGE / bus
    assert found.low.item() <= measured <= found.high.item()


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_without_a_host_the_interval_covers_all(ranks: int) -> None:
    unnamed = reduced("l40s", None, ranks)
    assert unnamed.mid == reduced("l40s", "pcie-server", ranks).mid
    for name in list_hosts():
        named = reduced("l40s", name, ranks)
        assert unnamed.low.item() <= named.low.item() * (1 + 1e-9)
        assert named.high.item() <= unnamed.high.item() * (1 + 1e-9)


def test_a_host_that_was_measured_has_the_kernels_interval() -> None:
    ours = Host("ours", all_reduce={2: 0.6, 4: 0.5, 8: 0.4})
    found = reduced("l40s", ours, 8)
    assert found.high.item() < 1.3 * found.mid.item()
    assert found.low.item() > 0.7 * found.mid.item()


def analysis(hardware: str, tensor: int, model: str = "llama-2-70b", **given: Any) -> Analysis:
    settings = Settings(parallel=Parallelism(tensor=tensor))
    return analyze(Scenario(load_model(model), load_hardware(hardware), settings=settings, **given))


@pytest.mark.parametrize(
    ("hardware", "tensor", "moves"),
    [("l40s", 8, True), ("h100-pcie", 4, True), ("h100-pcie", 2, False), ("l40s", 1, False)],
)
def test_a_host_matters_to_collectives_over_pcie_alone(hardware: str, tensor: int, moves: bool) -> None:
    plain, slow = (analysis(hardware, tensor, host=host, prompt=2048) for host in (None, "pcie-isolated"))
    assert (slow.expected.ttft.mid > 1.5 * plain.expected.ttft.mid) is moves
    assert any("name one with --host" in note for note in notes(plain)) is moves
    assert ("--host pcie-isolated has no effect: no devices communicate over PCIe" in notes(slow)) is not moves
    assert not any("name one with --host" in note for note in notes(slow))


def test_the_sources_of_a_named_host_are_told() -> None:
    said = "\n".join(assumptions(analysis("l40s", 8, host="pcie-switch")))
    assert "host PCIe server: peer-to-peer among all devices" in said
    assert "hardware/pcie-bandwidth.md" in said


@pytest.mark.parametrize(
    ("model", "tensor", "prompt", "seconds"),
    [
        ("llama-2-70b", 8, 128, 0.0709),
        ("llama-2-70b", 8, 2048, 0.7087),
        ("llama-2-70b", 4, 2048, 0.6733),
        ("falcon-180b", 8, 128, 0.0934),
        ("falcon-180b", 8, 2048, 0.7698),
        ("mixtral-8x7b", 4, 2048, 0.1656),
    ],
)
def test_published_first_tokens_of_l40s_servers(model: str, tensor: int, prompt: int, seconds: float) -> None:
    """FP8, batch 1 (TensorRT-LLM 0.8 and 0.9, docs/source/performance.md): 2 to 17 times too slow before."""
    given: dict[str, Any] = {"prompt": prompt, "generate": 1, "engine": "tensorrt-llm"}
    found = analysis("l40s", tensor, model, precision=parse_precision("fp16", "fp8", kv="fp8"), **given).expected.ttft
    assert found.mid == pytest.approx(seconds, rel=0.35)
    assert found.low <= seconds <= found.high


@pytest.mark.parametrize(("hardware", "rate"), [("rtx-pro-6000-server", 15e9), ("l40s", 18e9)])
def test_two_peers_exchange_small_messages_with_the_kernel_of_the_engine(hardware: str, rate: float) -> None:
    """vLLM's kernel reads 15 and 18 GB/s of the peer (SGLang 0.5.10, aiconfigurator at 095f58a); NCCL has the rest."""

    def reduced(prompt: int, device: str = hardware, ranks: int = 2, **engine: object) -> float:
        settings = Settings(parallel=Parallelism(tensor=ranks))
        profile = replace(load_engine("vllm"), **engine)
        model = load_model("llama-3.1-8b")
        phase = analyze(
            Scenario(model, load_hardware(device), prompt=prompt, settings=settings, engine=profile)
        ).prefill
        times = zip(phase.ops, phase.expected_ops, strict=True)
        return next(float(found.time.mid) for op, found in times if op.name == "attn_all_reduce")

    small, large = 512, 2048  # tokens of 8 KiB: 4 and 16 MiB
    assert small * 8192 / reduced(small) == pytest.approx(rate, rel=0.1)
    assert reduced(small, all_reduce={}) < reduced(small)
    assert reduced(large, all_reduce={}) == reduced(large)
    assert reduced(small, ranks=4, all_reduce={}) == reduced(small, ranks=4)
    assert reduced(small, "rtx-4090", all_reduce={}) == reduced(small, "rtx-4090"), "GeForce cards are no peers"
