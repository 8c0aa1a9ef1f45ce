"""Slices and power limits of hardware."""

import numpy as np
import pytest

from roofline import Scenario, analyze, load_hardware
from roofline.core.errors import RooflineError
from roofline.specs.hardware import load_devices
from roofline.specs.power import JOULES_PER_BYTE, clock_at, floor_of, static_power
from roofline.specs.states import profiles

H100, H200, A100 = map(load_hardware, ("h100-sxm", "h200-sxm", "a100-sxm-40gb"))


def test_slices_have_the_names_of_the_driver() -> None:
    assert list(profiles(H100)) == ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert list(profiles(H200)) == ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]
    assert list(profiles(A100)) == ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]


@pytest.mark.parametrize("name", ["h100-sxm-3g.40gb", "h100-sxm mig 3g.40gb", "H100-SXM-mig-3g.40gb"])
def test_a_slice_has_its_part_of_the_gpu(name: str) -> None:
    found = load_hardware(name)
    assert (found.units, found.memory_capacity) == (60, 40e9)
    assert found.memory_bandwidth == H100.memory_bandwidth / 2
    assert found.tensor["bf16"] == pytest.approx(H100.tensor["bf16"] * 60 / 132)
    assert [link.scope for link in found.interconnects] == ["host"]
    assert (found.price, found.tdp) == (None, None)


def test_slices_are_counted_like_devices() -> None:
    hardware, devices = load_devices("7xh100-sxm-1g.10gb")
    assert (hardware.name, devices) == ("h100-sxm-1g.10gb", 7)


@pytest.mark.parametrize(
    ("watts", "measured"), [(350, 1.0), (300, 0.943), (250, 0.853), (200, 0.601), (150, 0.258)], ids=str
)
def test_a_power_limit_costs_prefill_what_it_cost_on_an_rtx_3090(watts: float, measured: float) -> None:
    """Tokens/s of prefill on six RTX 3090 over those at 350 W (llmgarage.ai, February 2026)."""
    assert clock_at(load_hardware("rtx-3090"), watts, 1.0, 0.0) == pytest.approx(measured, abs=0.03)


@pytest.mark.parametrize(
    ("hardware", "watts", "model", "quant", "phase", "measured"),
    [
        ("rtx-4090", 300, "qwen3.6-27b", "q3_k_m", "decode", 0.965),
        ("rtx-4090", 260, "qwen3.6-27b", "q3_k_m", "decode", 0.929),
        ("rtx-3090", 210, "qwen3.6-35b-a3b", "q4_k_m", "decode", 0.837),
        ("rtx-3090", 250, "qwen3.6-27b", "q3_k_m", "prefill", 0.863),
        ("rtx-3090", 290, "qwen3.6-27b", "q3_k_m", "decode", 0.931),
        ("rtx-3090", 200, "qwen3.6-27b", "q4_k_m", "decode", 0.63),
        ("rtx-3090", 150, "qwen3.6-27b", "q4_k_m", "decode", 0.26),
        ("rtx-5060-ti-16gb", 150, "qwen2.5-coder-7b", "q4_k_m", "decode", 0.99),
    ],
)
def test_a_power_limit_costs_what_owners_of_cards_published(
    hardware: str, watts: int, model: str, quant: str, phase: str, measured: float
) -> None:
    """Rates in llama.cpp over those of cards without a limit, or nearly so.

    noonghunna/club-3090, docs/HARDWARE.md; jeanfbrito.github.io, April 2026 (200 and 150 W, over 275 W), and
    inventivehq.com (5060 Ti), which chose no constant.
    """
    free, limited = (
        analyze(Scenario(model, hw, engine="llama.cpp", quant=quant, prompt=2048))
        for hw in (hardware, f"{hardware}-{watts}w")
    )
    assert getattr(free, phase).expected.mid / getattr(limited, phase).expected.mid == pytest.approx(measured, abs=0.05)


def test_the_power_at_the_clock_of_a_limit_is_the_limit() -> None:
    activity, reached = np.array([0.5, 0.8, 1.0]), np.array([0.9, 0.5, 0.1])
    rest, tdp = static_power(H100), H100.tdp or 0.0
    for watts in (300.0, 450.0, 650.0):
        clock = clock_at(H100, watts, activity, reached)
        memory = JOULES_PER_BYTE["hbm"] * H100.memory_bandwidth * reached
        floor = floor_of(H100)
        rate = 1 / (reached + (1 - reached) / clock)
        power = rest + rate * (memory + activity * (tdp - rest) * np.maximum(clock, floor) ** 2)
        between = (clock < 1) & (clock != floor)
        assert power[between] == pytest.approx(watts, rel=1e-6)
        assert np.all(power <= watts * (1 + 1e-6))


def test_a_power_limit_slows_compute_and_not_the_memory() -> None:
    free, limited = (
        analyze(Scenario("llama-3.1-8b", hw, engine="vllm", batch=8, prompt=4096))
        for hw in ("h100-sxm", "h100-sxm-400w")
    )
    assert limited.prefill.expected.mid > 1.2 * free.prefill.expected.mid
    assert limited.decode.expected.mid < 1.1 * free.decode.expected.mid


def test_a_locked_clock_slows_compute_by_as_much_and_not_the_memory() -> None:
    assert H100.clock is not None
    half = round(H100.clock / 2e6)
    locked = load_hardware(f"h100-sxm-{half}mhz")
    assert locked.tensor["bf16"] == pytest.approx(H100.tensor["bf16"] * half * 1e6 / H100.clock)
    assert locked.memory_bandwidth == H100.memory_bandwidth
    assert static_power(H100) < (locked.tdp or 0.0) < (H100.tdp or 0.0)
    free, slow = (
        analyze(Scenario("llama-3.1-8b", hw, engine="vllm", batch=8, prompt=4096)) for hw in (H100.name, locked.name)
    )
    assert 1.6 < slow.prefill.expected.mid / free.prefill.expected.mid <= 2
    assert slow.decode.expected.mid < 1.25 * free.decode.expected.mid


def test_a_clock_locked_at_its_own_changes_nothing() -> None:
    assert H100.clock is not None
    whole = f"h100-sxm-{H100.clock / 1e6:g}mhz"
    one, other = (analyze(Scenario("llama-3.1-8b", hw, engine="vllm", batch=8)).expected for hw in (H100.name, whole))
    assert one.total.mid == pytest.approx(other.total.mid)


@pytest.mark.parametrize(
    "name",
    [
        *("h100-sxm-2g.10gb", "l40s-1g.6gb", "rtx-3090-80w", "rtx-3090-400w", "sn40l-400w"),
        *("h100-sxm-100mhz", "h100-sxm-2500mhz", "rtx-3090-250w-1400mhz"),
    ],
)
def test_states_that_do_not_exist_are_refused(name: str) -> None:
    with pytest.raises(RooflineError):
        load_hardware(name)


@pytest.mark.parametrize("degree", ["tp", "pp"])
def test_slices_have_no_links(degree: str) -> None:
    """Between instances of MIG there is no peer-to-peer (NVIDIA's MIG user guide); replicas need none."""
    with pytest.raises(RooflineError, match="no links to each other"):
        analyze(Scenario("llama-3.2-1b", "h100-sxm-1g.10gb", **{degree: 2}))
    assert analyze(Scenario("llama-3.2-1b", "h100-sxm-1g.10gb", dp=2)).memory.fits
