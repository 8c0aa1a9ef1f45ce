"""`roofline validate model`: time prefill and a decode step of a real decoder, and compare with the prediction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from roofline.core.errors import RooflineError
from roofline.core.units import seconds as shown_time
from roofline.core.units import si
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import load_engine
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.library import SEARCH_PATH
from roofline.specs.model import Model
from roofline.specs.modelspec import load_model
from roofline.specs.precision import parse_precision
from roofline.timing.chains import load_calibration
from roofline.timing.kernels.formats import numbers
from roofline.validate.loop.host import default_dtype
from roofline.validate.measure.decoder import Decoder, check, decode_step, layers_that_fit, prefill, with_layers
from roofline.validate.measure.device import Device, is_out_of_memory, open_device
from roofline.validate.measure.machine import examine
from roofline.validate.score.errors import Predicted


class TimeComparison(Struct, frozen=True):
    """A predicted and a measured time, in seconds."""

    name: str
    predicted: Predicted
    measured: float

    @property
    def line(self) -> str:
        bound, low, mid, high = self.predicted
        inside = "in" if low <= self.measured <= high else "outside"
        return (
            f"  {self.name}: expected {shown_time(mid)} ({shown_time(low)} to {shown_time(high)}), measured"
            f" {shown_time(self.measured)}: {100 * (mid / self.measured - 1):+.1f}%, {inside} the interval;"
            f" the bound is {shown_time(bound)}"
        )


class ModelResult(Struct, frozen=True):
    """Predicted and measured times of a model; sizes of its weights and of the last-level cache in bytes."""

    model: Model
    layers: int
    hardware: Hardware
    dtype: str
    batch: int
    prompt: int
    generate: int
    weights: float
    cache: float
    basis: str
    times: tuple[TimeComparison, ...]

    @property
    def lines(self) -> list[str]:
        cut = f", {self.layers} of {self.model.layers} layers" if self.layers < self.model.layers else ""
        lines = [
            f"{self.model.name}{cut} on {self.hardware.name}, {self.dtype}, batch {self.batch},"
            f" prompt {self.prompt}, generate {self.generate}; {self.basis}"
        ]
        for time in self.times:
            lines.append(time.line)
            if time.measured < time.predicted.bound:
                lines.append("  faster than the bound: the spec was measured on a busy machine, calibrate again")
        if self.weights < 2 * self.cache:
            lines.append(
                f"  part of its weights ({si(self.weights, 'B')}) stays in the cache ({si(self.cache, 'B')});"
                " predictions assume cold caches"
            )
        return lines


@contextmanager
def overlay(folder: Path) -> Iterator[None]:
    """A context in which specs and calibrations of `folder` take precedence."""
    before = os.environ.get(SEARCH_PATH)
    if folder.is_dir():
        os.environ[SEARCH_PATH] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SEARCH_PATH, None)
        else:
            os.environ[SEARCH_PATH] = before


def run_model(
    model: str,
    device: str = "cuda",
    folder: Path = Path("specs"),
    dtype: str | None = None,
    batch: int = 1,
    prompt: int = 128,
    generate: int = 32,
    layers: int | None = None,
    threads: int | None = None,
    max_prefill: float = 5.0,
) -> ModelResult:
    """Run a decoder of the model's architecture, and predict it with the calibration of `folder`.

    Without `layers`, as many as fit the memory and keep the expected prefill below `max_prefill` seconds. Raises
    UnsupportedError for architectures other than dense Llama-like ones.
    """
    network = load_model(model)
    check(network)
    if generate < 2:
        raise RooflineError("at least 2 tokens must be generated: prefill yields the first", options=["generate"])
    if layers is not None and not 1 <= layers <= network.layers:
        raise RooflineError(
            f"the layers must be from 1 to {network.layers}, those of {network.name}", options=["layers"]
        )
    with overlay(folder):
        opened = open_device(device, threads)
        calibrated = _calibrated_hardware(opened, folder, threads)
        if calibrated is not None and opened.state.get("threads") != str(calibrated.units):
            opened = open_device(device, calibrated.units)  # the threads that it was calibrated with
        hardware = calibrated or examine(opened).hardware
        chosen, profile = dtype or default_dtype((), hardware), folder / "engines" / f"{hardware.name}.yaml"
        scenario = Scenario(
            network,
            hardware,
            batch=batch,
            prompt=prompt,
            generate=generate,
            precision=parse_precision(chosen),
            engine=load_engine(str(profile) if profile.is_file() else "hf-eager"),
        )
        count = layers or _fitting_layers(scenario, opened, round(numbers(chosen).bytes), max_prefill)
        analysis = _predicted(scenario, count)
        calibration = load_calibration(hardware).basis
        # Analyses are lazy: their times are read here, where the overlay's calibration is found.
        predicted = (
            ("TTFT", Predicted(float(analysis.prefill.bound_time), *map(float, analysis.expected.ttft))),
            ("TPOT", Predicted(float(analysis.decode.bound_time), *map(float, analysis.expected.tpot))),
        )
        weights = float(analysis.memory.weights)
    measured = _measured(with_layers(network, count), chosen, opened, batch, prompt, generate)
    times = tuple(TimeComparison(*one, seconds) for one, seconds in zip(predicted, measured, strict=True))
    machine = "calibrated on this machine" if calibration == "calibrated" else ""
    basis = machine or f"no calibration of this machine: {calibration}"
    return ModelResult(
        *(network, count, hardware, chosen, batch, prompt, generate), weights, opened.cache, basis, times
    )


def _predicted(scenario: Scenario, layers: int) -> Any:
    """The analysis of the scenario's model with fewer layers."""
    return analyze(scenario.changed(model=with_layers(scenario.model, layers)))


def _fitting_layers(scenario: Scenario, device: Device, element: int, max_prefill: float) -> int:
    """The most layers that fit the memory and whose expected prefill takes at most `max_prefill` seconds."""
    layers = layers_that_fit(scenario.model, 0.5 * device.memory, element)
    while layers > 1 and float(_predicted(scenario, layers).expected.ttft.mid) > max_prefill:
        layers -= 1
    return layers


def _measured(model: Model, dtype: str, device: Device, batch: int, prompt: int, generate: int) -> tuple[float, float]:
    """Seconds of a prefill and of the middle decode step."""
    capacity, context = prompt + generate, prompt + (generate - 1) // 2
    try:
        decoder = Decoder(model, dtype, device.name)
        ttft = device.time([prefill(decoder, batch, prompt, capacity)], cold=False).median
        return ttft, device.time([decode_step(decoder, batch, context, capacity)], cold=False).median
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RooflineError(
            f"{model.name} with {model.layers} layers does not fit in memory; take fewer layers"
        ) from None


def _calibrated_hardware(device: Device, folder: Path, threads: int | None) -> Hardware | None:
    """The spec of this CPU in the overlay folder, with the requested number of threads, or any."""
    for path in sorted(folder.glob("calibration/*.yaml")) if folder.is_dir() and device.name == "cpu" else ():
        spec = folder / f"{path.stem}.yaml"
        if spec.is_file():
            hardware = load_hardware(str(spec))
            same = hardware.kind == "cpu" and hardware.title.startswith(device.state["device"])
            if same and threads in (None, hardware.units):
                return hardware
    return None
