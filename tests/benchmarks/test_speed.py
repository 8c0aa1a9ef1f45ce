"""How fast the simulator answers: `make bench`. Figures, not assertions; machines are noisy."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from typing import Any

import numpy as np
import pytest

from roofline import Analysis, Scenario, analyze, load_hardware, load_model
from roofline.advisor import Goal, Objective, advise
from roofline.advisor.sizing.sizing import size
from roofline.advisor.sizing.workload import Service
from roofline.cli.scenario_options import parse_scenarios
from roofline.whatif.solve import Targets, max_batch
from roofline.whatif.study import make_study
from roofline.whatif.sweeps import answers

MODEL, HARDWARE = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
VARIED = count()


def scenario() -> Scenario:
    """A workload that differs from the last, so that nothing is answered from a cache of results."""
    step = next(VARIED)
    return Scenario(MODEL, HARDWARE, batch=1 + step % 64, prompt=1000 + step % 5000)


def totals(answer: Analysis) -> Any:
    return answer.prefill.bound_time, answer.decode.bound_time


def test_the_largest_batch_for_a_target(benchmark: Any) -> None:
    targets = count(1)

    def run() -> Any:
        request = Scenario(MODEL, HARDWARE, prompt=2048, generate=256)
        return max_batch(request, Targets(tpot=10e-3 + 1e-5 * next(targets)))

    benchmark(run)


def test_both_phases_totals(benchmark: Any) -> None:
    benchmark(lambda: totals(analyze(scenario())))


def test_both_phases_with_every_operator(benchmark: Any) -> None:
    def run() -> Any:
        answer = analyze(scenario())
        return answer.prefill.ops, answer.decode.ops

    benchmark(run)


def test_generation_and_memory(benchmark: Any) -> None:
    def run() -> Any:
        answer = analyze(scenario())
        return answer.generation.total, answer.memory.fits

    benchmark(run)


def test_grid_of_a_million_points(benchmark: Any) -> None:
    grid = Scenario(MODEL, HARDWARE, batch=np.arange(1, 1001)[:, None], prompt=8 * np.arange(1, 1001)[None, :])
    benchmark.pedantic(lambda: totals(analyze(grid)), rounds=3)


def expected(answer: Analysis) -> Any:
    assert answer.decode is not None
    return answer.prefill.expected, answer.decode.expected


def test_both_phases_at_expected_times(benchmark: Any) -> None:
    benchmark(lambda: expected(analyze(scenario())))


def test_a_generation_at_expected_times(benchmark: Any) -> None:
    benchmark(lambda: analyze(scenario()).expected)


def test_grid_of_a_million_points_at_expected_times(benchmark: Any) -> None:
    grid = Scenario(MODEL, HARDWARE, batch=np.arange(1, 1001)[:, None], prompt=8 * np.arange(1, 1001)[None, :])
    benchmark.pedantic(lambda: expected(analyze(grid)), rounds=3)


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "analyze llama-3.1-8b --hw h100-sxm",
        "size llama-2-13b --prompt 200 --generate 1000 --hw rtx-4090,rtx-5090,m4-max",
        "choose hardware llama-3.1-70b --hw h100-sxm,h200-sxm,b200-sxm --users 64",
        "choose layout llama-3.1-70b --hw 8xh100-sxm --users 64 --prompt 2000 --generate 300",
        "advise llama-3.1-8b --hw h100-sxm --prompt 1024 --objective goodput --concurrency 64 --ttft 1s --tpot 30ms",
    ],
)
def test_command_line(benchmark: Any, command: str) -> None:
    line = [sys.executable, "-c", "from roofline.cli import main; main()", *command.split()]
    benchmark.pedantic(lambda: subprocess.run(line, check=True, capture_output=True), rounds=5)


@pytest.mark.parametrize("at", ["bound", "expected"])
def test_sweep_of_a_million_points(benchmark: Any, at: str) -> None:
    """Batch x prompt x quantization x hardware with TTFT, TPOT, throughput, memory and bounds; about 1e6 points."""
    over = {"hw": "h100-sxm,h200-sxm,mi300x", "quant": "W16,W8A8,W4,W4KV8", "batch": "1:64", "prompt": "16:20832:16"}
    study = make_study(over, at=at, model="llama-3.1-8b")

    def run() -> int:
        return sum(answer.rows.count for answer in answers(study))

    assert benchmark.pedantic(run, rounds=3 if at == "bound" else 1, warmup_rounds=1) == study.points


@pytest.mark.parametrize(
    "text",
    [
        "llama-3.1-8b --hw h100-sxm --batch 8 --prompt 2048",
        "llama-3.1-70b --hw h100-sxm --tp 4 --batch 16 --prompt 2048",
        "deepseek-v3 --hw h200-sxm --tp 8 --prompt 2048",
    ],
)
def test_advice_with_a_plan(benchmark: Any, text: str) -> None:
    (request,) = parse_scenarios([text])
    benchmark(lambda: advise(request, Goal(Objective.TOTAL)).plan)


@pytest.mark.parametrize(
    ("model", "service"),
    [
        ("llama-3.1-8b", Service(5, 2000, 300, ttft=2, tpot=0.05)),
        ("llama-3.1-8b", Service(None, 2000, 300, ttft=2, tpot=0.05, concurrency=100)),
        ("llama-3.1-70b", Service(5, 2000, 300, ttft=2, tpot=0.05)),
        ("qwen3-30b-a3b", Service(20, 2000, 300, ttft=2, tpot=0.03)),
    ],
)
def test_sizing_over_all_hardware(benchmark: Any, model: str, service: Service) -> None:
    """Every bundled device, degrees and formats, with the text of the answer: of a dense model and of experts."""
    assert benchmark.pedantic(lambda: str(size(model, service)), rounds=1)
