"""A whole model beside its prediction: a real decoder of its architecture, prefill and a step of decode."""

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
from roofline.specs.engine import Engine, load_engine
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.library import SEARCH_PATH
from roofline.specs.model import Model
from roofline.specs.modelspec import load_model
from roofline.specs.precision import parse_precision
from roofline.timing.calibration import load_calibration
from roofline.timing.kernels.common import numbers
from roofline.validate.loop.host import preferred
from roofline.validate.measure.decoder import Decoder, check, decode_step, layers_that_fit, prefill, with_layers
from roofline.validate.measure.device import Device, is_memory, open_device
from roofline.validate.measure.machine import examine


class Beside(Struct, frozen=True):
    """One time of a model, predicted and measured, in seconds."""

    name: str
    bound: float
    low: float
    mid: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, as a fraction of what was measured."""
        return self.mid / self.measured - 1.0

    @property
    def inside(self) -> bool:
        """Whether the interval has the measured time."""
        return self.low <= self.measured <= self.high


class ModelRun(Struct, frozen=True):
    """A model that was run beside its prediction."""

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
    times: tuple[Beside, ...]

    @property
    def lines(self) -> list[str]:
        """For a person."""
        cut = f", {self.layers} of {self.model.layers} layers" if self.layers < self.model.layers else ""
        lines = [
            f"{self.model.name}{cut} on {self.hardware.name}, {self.dtype}, batch {self.batch},"
            f" prompt {self.prompt}, generate {self.generate}; {self.basis}"
        ]
        for time in self.times:
            where = "in" if time.inside else "outside of"
            lines.append(
                f"  {time.name}: expected {shown_time(time.mid)} ({shown_time(time.low)} to {shown_time(time.high)}),"
                f" measured {shown_time(time.measured)}: {100 * time.error:+.1f}%, {where} the interval;"
                f" the bound is {shown_time(time.bound)}"
            )
            if time.measured < time.bound:
                lines.append("  faster than the bound: the spec was measured on a busy machine; calibrate again")
        if self.weights < 2 * self.cache:
            lines.append(
                f"  its weights ({si(self.weights, 'B')}) stay in part in the cache ({si(self.cache, 'B')});"
                " predictions take them for cold"
            )
        return lines


@contextmanager
def overlay(folder: Path) -> Iterator[None]:
    """Specs and calibrations of `folder` before all others, while it lasts."""
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


def model_run(
    model: str,
    device: str = "cuda",
    folder: Path = Path("specs"),
    dtype: str | None = None,
    batch: int = 1,
    prompt: int = 128,
    generate: int = 32,
    layers: int | None = None,
    threads: int | None = None,
    longest: float = 5.0,
) -> ModelRun:
    """Run a decoder of the model's architecture, and predict it with the calibration of `folder`.

    Without `layers`, as many as fit the memory and keep the expected prefill below `longest` seconds. Raises
    UnsupportedError for architectures other than dense Llama-like ones.
    """
    described = load_model(model)
    check(described)
    if generate < 2:
        raise RooflineError("--generate must be at least 2: the first token is prefill's")
    with overlay(folder):
        opened = open_device(device, threads)
        calibrated = _calibrated_hardware(opened, folder, threads)
        if calibrated is not None and opened.state.get("threads") != str(calibrated.units):
            opened = open_device(device, calibrated.units)  # with as many threads as it was calibrated with
        hardware = calibrated or examine(opened).hardware
        chosen = dtype or preferred((), hardware)
        engine = _engine(folder, hardware)

        def predicted(count: int) -> Any:
            return analyze(
                Scenario(
                    with_layers(described, count),
                    hardware,
                    batch=batch,
                    prompt=prompt,
                    generate=generate,
                    precision=parse_precision(chosen),
                    engine=engine,
                )
            )

        if layers is None:
            layers = layers_that_fit(described, 0.5 * opened.memory, round(numbers(chosen).bytes))
            while layers > 1 and float(predicted(layers).expected.ttft.mid) > longest:
                layers -= 1
        elif not 1 <= layers <= described.layers:
            raise RooflineError(f"--layers must be from 1 to {described.layers}, as {described.name} has them")
        answer = predicted(layers)
        basis = load_calibration(hardware).basis
        # Answers are computed when they are read: here, where the overlay's calibration is found.
        promised = (
            ("TTFT", float(answer.prefill.bound_time), answer.expected.ttft),
            ("TPOT", float(answer.decode.bound_time), answer.expected.tpot),
        )
        weights = float(answer.memory.weights)
    capacity = prompt + generate
    try:
        decoder = Decoder(with_layers(described, layers), chosen, opened.name)
        first = opened.time([prefill(decoder, batch, prompt, capacity)], cold=False).median
        step = opened.time([decode_step(decoder, batch, prompt + (generate - 1) // 2, capacity)], cold=False).median
    except (RuntimeError, MemoryError) as error:
        if not is_memory(error):
            raise
        raise RooflineError(f"{described.name} with {layers} layers does not fit in memory: ask for fewer") from None
    times = tuple(
        Beside(name, bound, float(time.low), float(time.mid), float(time.high), taken)
        for (name, bound, time), taken in zip(promised, (first, step), strict=True)
    )
    grounds = {"calibrated": "calibrated on this machine"}.get(basis, f"no calibration of this machine: {basis}")
    return ModelRun(
        described,
        layers,
        hardware,
        chosen,
        batch,
        prompt,
        generate,
        weights,
        opened.cache,
        grounds,
        times,
    )


def _calibrated_hardware(device: Device, folder: Path, threads: int | None) -> Hardware | None:
    """The processors of the machine as the overlay folder has them, with the threads asked for, or with any."""
    for path in sorted(folder.glob("calibration/*.yaml")) if folder.is_dir() and device.name == "cpu" else ():
        spec = folder / f"{path.stem}.yaml"
        if spec.is_file():
            hardware = load_hardware(str(spec))
            same = hardware.kind == "cpu" and hardware.title.startswith(device.state["device"])
            if same and threads in (None, hardware.units):
                return hardware
    return None


def _engine(folder: Path, hardware: Hardware) -> Engine:
    path = folder / "engines" / f"{hardware.name}.yaml"
    return load_engine(str(path)) if path.is_file() else load_engine("hf-eager")
