"""A plan whose kernels run in Triton's interpreter and whose clock is made up.

As a program (`python interpreted.py FOLDER SECONDS`) it runs the plan in forked processes, as on a GPU; every timed
point takes the seconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roofline.specs.hardware import load_hardware
from roofline.validate.gpu.network import Step
from roofline.validate.gpu.shapes import Sizes
from roofline.validate.gpu.visit import Bench
from roofline.validate.loop.host import TINY
from roofline.validate.measure.device import Call, Device, Sample
from roofline.validate.measure.machine import Machine

H100 = load_hardware("h100-sxm")
SMALL = Sizes(rows=16, width=128, length=32, heads=4, experts=4)


class Clock:
    """Seconds that pass only when something is timed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Interpreted(Device):
    """Runs a call once, and says that it took ten microseconds."""

    name, memory, cache = "cpu", 4e9, 1e6

    def __init__(self, passed: Callable[[], object] = lambda: None) -> None:
        self.passed = passed

    @property
    def state(self) -> Mapping[str, str]:
        return {"device": "made up"}

    @property
    def software(self) -> str:
        return "torch made up"

    def time(self, calls: Sequence[Call], cold: bool, replayed: bool = False) -> Sample:
        calls[0]()
        self.passed()
        return Sample((1e-5, 1.1e-5, 1.2e-5), "clock")


def machine(_: Device) -> Machine:
    return Machine(H100, True, "made up", 3e12, {"bf16": 8e14})


def bench(**changes: Any) -> Bench:
    """Small shapes and a tiny network."""
    settings: dict[str, Any] = {
        "device": "cpu", "find_device": Interpreted, "examine": machine, "sizes": SMALL, "large": False, "workers": 2,
        "isolated": False, "model": TINY, "passes": (Step("prefill", 1, 8), Step("decode", 2, 8)),
        "further": 1,
    }  # fmt: skip
    return Bench(**{**settings, **changes})


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    torch.set_num_threads(1)
    from roofline.validate.gpu import runner

    seconds = float(sys.argv[2])
    slow = bench(isolated=True, find_device=lambda: Interpreted(lambda: time.sleep(seconds)))
    runner.run(Path(sys.argv[1]), 8.0, lambda line: print(line, flush=True), slow)  # noqa: T201


if __name__ == "__main__":
    main()
