"""llama.cpp's products of a quantised matrix and a few vectors on NVIDIA's GPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.vectors import constants


def step(hardware: str | Hardware, batch: int = 1, model: str = "llama-2-7b", quant: str = "q4_0") -> float:
    """Seconds of a decode step from an empty cache."""
    scenario = Scenario(model, hardware, engine="llama.cpp", quant=quant, batch=batch, prompt=1, generate=129)
    found = analyze(scenario).expected.tpot
    assert found is not None
    return float(found.mid)


@pytest.mark.parametrize(("name", "gain"), [("h100-sxm", 1.0), ("rtx-4060-ti-16gb", 1.4)])
def test_bandwidth_helps_as_far_as_threads_keep_bytes_in_flight(name: str, gain: float) -> None:
    """25 GB/s for each multiprocessor of an H100 are more than its threads ask for, 8.5 of a 4060 Ti are not."""
    hardware = load_hardware(name)
    faster = replace(hardware, memory_bandwidth=1.5 * hardware.memory_bandwidth)
    assert step(hardware) / step(faster) == pytest.approx(gain, abs=0.08)


def test_memory_that_stays_below_its_bandwidth_is_as_fast_as_it_was_measured() -> None:
    """A T4's bandwidth of 320 GB/s is 220 in a microbenchmark (Jia et al. 2019), 0.69 of it."""
    card = load_hardware("t4")
    assert card.achieved == pytest.approx(220 / 320)
    streamed = analyze(Scenario("llama-2-7b", card, engine="llama.cpp", quant="q4_0")).memory.weights
    assert float(streamed) / step(card) < 220e9 < float(streamed) / step(replace(card, achieved=None))


@pytest.mark.parametrize(
    ("hardware", "measured"),
    [
        ("h100-sxm", 280.74),
        ("rtx-5090", 300.4),
        ("rtx-5080", 184.68),
        ("titan-v", 112.17),
        ("v100-sxm2-16gb", 134.76),
    ],
)
def test_a_step_on_gpus_of_families_that_chose_no_constant(hardware: str, measured: float) -> None:
    """Llama 2 7B in Q4_0 (ggml-org/llama.cpp, discussion 15013): Ada and Ampere on cards chose the constants."""
    assert measured * step(hardware) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("hardware", "measured"), [("a4000", 149.4), ("rtx-2080-ti", 180.4), ("dgx-spark", 97.93)])
def test_small_models_do_not_pay_for_tiles(hardware: str, measured: float) -> None:
    """Llama 3.2 3B in Q4_K_M (geerlingguy/ai-benchmarks); keys and values are matrices of 1,024 rows."""
    assert measured * step(hardware, model="llama-3.2-3b", quant="q4_k_m") == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("hardware", ["rtx-4090", "t4", "h100-sxm", "dgx-spark"])
def test_more_sequences_never_take_less_time(hardware: str) -> None:
    """Nine and more are multiplied in tiles."""
    steps = [step(hardware, batch, "llama-3.2-1b", "q4_k_m") for batch in (1, 2, 4, 7, 8, 9, 12, 16, 17, 32)]
    assert steps == sorted(steps)


@pytest.mark.parametrize("name", ["radeon-rx-7900-xtx", "m4-max", "gtx-1080-ti", "arc-b580", "epyc-9654"])
def test_other_vendors_and_older_families_run_other_kernels(name: str) -> None:
    assert not constants(load_hardware(name), 1e-6, 1e-6, 0.9)
