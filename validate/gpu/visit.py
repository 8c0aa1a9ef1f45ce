"""What every step of a visit shares: where results go, the device, the machine, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from roofline.core.inputs import read_bytes
from roofline.specs.hardware import load_hardware
from roofline.specs.hardware_files import parse_hardware
from roofline.specs.model import Model
from roofline.validate.gpu.network import PASSES
from roofline.validate.gpu.network import Step as Pass
from roofline.validate.gpu.shapes import FULL, Sizes
from roofline.validate.measure.device import Device, open_device, other_gpu_processes
from roofline.validate.measure.host import available_cores
from roofline.validate.measure.machine import Machine, examine
from roofline.validate.tables.text import MAX_BYTES

ROWS, VERDICTS, NETWORK = "measured.csv", "correctness.csv", "network.csv"
"""Files of a visit that grow row by row: kernel timings, correctness, passes of a network."""

LOG, SUMMARY, PARQUET, CALIBRATION = "steps.jsonl", "summary.md", "measured.parquet", "calibration.yaml"
"""Files that are written whole: a line for each step that ended, and what is made of all rows."""


class Bench(Struct, frozen=True):
    """The device that a visit measures, and how: replaced in tests by kernels in an interpreter and a clock of theirs.

    `device` is PyTorch's name of it. `sizes` bounds the shapes, `large` adds correctness at sizes that need a GPU.
    Isolated steps run in processes of their own, which can be stopped. `further` is the number of shapes of each op
    that the general design adds.
    """

    device: str = "cuda"
    find_device: Callable[[], Device] = lambda: free_gpu()
    examine: Callable[[Device], Machine] = examine
    sizes: Sizes = FULL
    large: bool = True
    workers: int = field(default_factory=lambda: max(1, min(14, available_cores() - 1)))
    isolated: bool = True
    model: Model | None = None
    passes: tuple[Pass, ...] = PASSES
    further: int = 60
    clock: Callable[[], float] = time.monotonic


FREED = 20.0
"""Seconds within which a driver frees the GPU of a process that was stopped."""


def free_gpu() -> Device:
    """The CUDA device, once the process of the step before has left it.

    Raises RooflineError where there is none, or another program keeps using it.
    """
    deadline = time.monotonic() + FREED
    while other_gpu_processes() and time.monotonic() < deadline:
        time.sleep(0.5)
    return open_device("cuda")


class Visit(Struct):
    """A visit to one GPU: `deadline` is when the step that runs now must have ended, by the bench's clock."""

    folder: Path
    bench: Bench
    deadline: float = float("inf")
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def left(self) -> float:
        return self.deadline - self.bench.clock()

    @property
    def machine(self) -> Machine:
        """The machine as the first step found it; raises KeyError before."""
        return machine_from(self.facts["machine"])


def machine_facts(machine: Machine, device: Device) -> dict[str, Any]:
    """A machine as data that JSON holds."""
    return {
        "hardware": machine.hardware.name,
        "bundled": machine.bundled,
        "title": machine.title,
        "bandwidth": machine.bandwidth,
        "peaks": dict(machine.peaks),
        "spec": machine.spec,
        "software": device.software,
        "state": dict(device.state),
    }


def machine_from(facts: Mapping[str, Any]) -> Machine:
    """The machine of `machine_facts`."""
    import yaml

    name = str(facts["hardware"])
    hardware = load_hardware(name) if facts["bundled"] else parse_hardware(yaml.safe_load(facts["spec"]), name)
    return Machine(
        hardware, bool(facts["bundled"]), str(facts["title"]), facts["bandwidth"], facts["peaks"], facts["spec"]
    )


class Result(Struct, frozen=True):
    """How a step ended: `done`, `failed`, `stopped` at its time limit, or `skipped`; a sentence, seconds and facts."""

    step: str
    status: str
    sentence: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        return f"{self.step:<12}{self.status:<8}{self.seconds:6.1f} s  {self.sentence}"


def read_results(folder: Path) -> list[Result]:
    """The steps that ended, from the log; a line that a kill cut short is left out."""
    path = folder / LOG
    found = []
    for line in read_bytes(path, MAX_BYTES).split(b"\n") if path.is_file() else ():
        try:
            found.append(msgspec.json.decode(line, type=Result))
        except (msgspec.DecodeError, RecursionError):
            continue
    return found
