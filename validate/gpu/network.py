"""A real network on the GPU: a Llama-like model of about 1B parameters in PyTorch, replayed from CUDA graphs.

Weights are random; prefill at three lengths and decode steps at three batches are timed beside `analyze`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.modelspec import load_model
from roofline.specs.precision import parse_precision
from roofline.validate.loop.host import SPREAD
from roofline.validate.measure.decoder import FUSIONS, Decoder, decode_step, prefill
from roofline.validate.measure.device import Device

MODEL = "llama-3.2-1b"

COLUMNS = (
    *("hardware", "model", "dtype", "phase", "batch", "context", "latency_us", "latency_p10_us", "latency_p90_us"),
    *("samples", "timing", "low_us", "expected_us", "high_us", "bound_us", "software"),
)
"""Columns of a row: what was timed, and what the simulator says of it."""


class Step(Struct, frozen=True):
    """A forward pass: `prefill` of `context` tokens, or one `decode` step after them, of a batch."""

    phase: str
    batch: int
    context: int


PASSES = (
    *(Step("prefill", 1, length) for length in (128, 1024, 4096)),
    *(Step("decode", batch, 1024) for batch in (1, 8, 64)),
)
"""The passes to time."""


def captured_engine() -> Engine:
    """PyTorch's kernels replayed from CUDA graphs, without any host time."""
    return Engine(
        "captured-pytorch",
        "PyTorch in CUDA graphs",
        fusions=FUSIONS,
        graphs=("prefill", "decode"),
        parameters={},
        spread=SPREAD,
        sources=("the functions of roofline.validate.measure.decoder",),
    )


def predicted(model: Model, step: Step, hardware: Hardware, dtype: str) -> Mapping[str, float]:
    """Microseconds of a pass by the simulator: the bound, the expected time, and the interval."""
    scenario = Scenario(
        model,
        hardware,
        batch=step.batch,
        prompt=step.context,
        generate=2,
        precision=parse_precision(dtype),
        engine=captured_engine(),
    )
    analysis = analyze(scenario)
    phase, time = (
        (analysis.prefill, analysis.expected.ttft)
        if step.phase == "prefill"
        else (analysis.decode, analysis.expected.tpot)
    )
    assert phase is not None
    assert time is not None
    values = {"low_us": time.low, "expected_us": time.mid, "high_us": time.high, "bound_us": phase.bound_time}
    return {name: 1e6 * float(value) for name, value in values.items()}


def timed(
    device: Device, hardware: Hardware, dtype: str, model: Model | None = None, passes: Sequence[Step] = PASSES
) -> Iterator[dict[str, object]]:
    """The row of each pass, as it is measured; `model` defaults to the one of 1B."""
    network = load_model(MODEL) if model is None else model
    decoder = Decoder(network, dtype, device.name)
    for step in passes:
        capacity = step.context + 1
        run = (
            prefill(decoder, step.batch, step.context, capacity)
            if step.phase == "prefill"
            else decode_step(decoder, step.batch, step.context, capacity)
        )
        sample = device.time([run], cold=False, replayed=True)
        yield {
            "hardware": hardware.name,
            "model": network.name,
            "dtype": dtype,
            "phase": step.phase,
            "batch": step.batch,
            "context": step.context,
            "latency_us": f"{sample.median * 1e6:.5g}",
            "latency_p10_us": f"{sample.percentile(0.1) * 1e6:.5g}",
            "latency_p90_us": f"{sample.percentile(0.9) * 1e6:.5g}",
            "samples": len(sample.seconds),
            "timing": sample.method,
            **{name: f"{value:.5g}" for name, value in predicted(network, step, hardware, dtype).items()},
            "software": device.software,
        }
        del run
        device.release()
