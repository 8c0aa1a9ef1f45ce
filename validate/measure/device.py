"""Devices that time kernels: a CUDA device or the CPU, behind one small interface.

Cold timing: each call of a sample has its own set of buffers, and before every sample the last-level cache is filled by
reading other memory (not by writing: dirty lines would have to be written back during the kernel). Warm timing does
neither.

CUDA: events around a kernel; calls shorter than `GRAPHED` are captured in a CUDA graph, several in a row, so that CPU
time does not count. CPU: the clock around a call. On one thread, time in which another program held the core is not
counted; on several threads, samples with involuntary context switches are dropped while others remain.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from roofline.core.errors import RooflineError, UnknownNameError, install
from roofline.validate.measure.host import (
    available_cores,
    busy_cores,
    context_switches,
    cpu_field,
    cpu_name,
    free_memory,
    last_level_cache,
)

DEVICES = ("cuda", "cpu")

GRAPHED = 1e-3
"""Seconds: shorter calls are timed in a CUDA graph. Launching a Triton kernel took the CPU 50 to 150 us (measured on an
H200), during which the device waits: events around such a call time the CPU."""

MAX_GRAPH_CALLS = 20
"""Calls in a CUDA graph."""

MIN_SAMPLES, MAX_SAMPLES = 5, 30
"""The fewest and the most samples of one point."""

SAMPLING_TIME = 0.2
"""Seconds for the samples of one point, unless `MIN_SAMPLES` take longer."""

FLUSH_FACTOR = {"cuda": 4.0, "cpu": 1.25}
"""Bytes read between two uses of a buffer, over the size of the last-level cache."""

Call = Callable[[], None]


class Sample(Struct, frozen=True):
    """Seconds of one call in each sample, sorted; `method` is how they were timed."""

    seconds: tuple[float, ...]
    method: str

    def percentile(self, fraction: float) -> float:
        """The percentile of the samples, interpolated: 0.5 is the median."""
        return float(np.quantile(self.seconds, fraction))

    @property
    def median(self) -> float:
        return self.percentile(0.5)


class Device(ABC):
    """A device that runs and times kernels.

    `memory` is the number of bytes that measurements may use, `cache` the size of the last-level cache in bytes.
    """

    name: str
    memory: float
    cache: float
    torch: Any
    _eviction: Any = None

    @property
    @abstractmethod
    def state(self) -> Mapping[str, str]:
        """Provenance columns of a row measured now."""

    @property
    @abstractmethod
    def software(self) -> str:
        """The libraries behind the kernels, with versions."""

    @abstractmethod
    def time(self, calls: Sequence[Call], cold: bool, replayed: bool = False) -> Sample:
        """Seconds of one call; `calls` compute the same on different buffers.

        With `replayed` a GPU replays them from a CUDA graph however long they take, where they can be captured.
        """

    def sets(self, bytes: float, cold: bool) -> int:
        """The number of sets of buffers of `bytes` that a point needs."""
        if not cold:
            return 1
        room = max(1, int(0.8 * self.memory / max(bytes, 1.0)))
        rotating = 1 + int(FLUSH_FACTOR[self.name] * self.cache / max(bytes, 1.0))
        return min(MAX_SAMPLES if self.name == "cpu" else MAX_GRAPH_CALLS, max(2, rotating), room)

    def release(self) -> None:
        """Free memory after a point."""
        return

    def _evict(self) -> None:
        """Fill the last-level cache with other memory."""
        if self._eviction is None:
            count = int(FLUSH_FACTOR[self.name] * self.cache) // 4
            self._eviction = self.torch.zeros(count, dtype=self.torch.float32, device=self.name)
        self._eviction.sum()


def torch_module() -> Any:
    """PyTorch; raises RooflineError with how to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise RooflineError(f"measuring kernels needs PyTorch: {install('validate')}") from None


def open_device(name: str, threads: int | None = None) -> Device:
    """The device called `cuda` or `cpu`; raises RooflineError where there is none, or another program uses it."""
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    torch = torch_module()
    if name == "cpu":
        return Cpu(torch, threads)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of nvidia-smi
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda or torch.version.hip else f"; this PyTorch ({torch.__version__}) has no CUDA"
        raise RooflineError(f"there is no CUDA device that PyTorch can use{built}; the device cpu measures the CPU")
    others = other_gpu_processes()
    if others:
        raise RooflineError(f"other programs use the GPU (process {', '.join(others)}) and would distort timings")
    return Cuda(torch)


# --- CUDA ---


def visible_gpu() -> str:
    """The first visible GPU, as an argument of nvidia-smi."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"


def nvidia_smi(*query: str) -> list[str]:
    """The output lines of nvidia-smi for the first visible GPU; none where it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "-i", visible_gpu(), *query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def other_gpu_processes() -> list[str]:
    """Other processes that compute on the first visible GPU; to be called before this one uses it."""
    found = (line.split(",")[0].strip() for line in nvidia_smi("--query-compute-apps=pid"))
    return [process for process in found if process.isdigit() and int(process) != os.getpid()]


class _GpuState(Struct):
    """Clocks and temperature, read every few seconds only, since nvidia-smi is slow."""

    max_age: float = 5.0
    read_at: float = -1e9
    values: dict[str, str] = field(default_factory=dict)

    def now(self) -> Mapping[str, str]:
        if time.monotonic() - self.read_at > self.max_age:
            names = ("clock_mhz", "memory_clock_mhz", "temperature_c", "driver")
            lines = nvidia_smi("--query-gpu=clocks.sm,clocks.mem,temperature.gpu,driver_version")
            parts = [part.strip() for part in lines[0].split(",")] if lines else []
            self.values = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}
            self.read_at = time.monotonic()
        return self.values


class Cuda(Device):
    """The first visible CUDA device (or ROCm device, which PyTorch calls cuda as well)."""

    name = "cuda"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        free, _ = torch.cuda.mem_get_info(0)
        self.title = str(properties.name)
        self.cache = float(getattr(properties, "L2_cache_size", 0) or 64e6)
        self.memory = 0.9 * free
        self._gpu_state = _GpuState()

    @property
    def state(self) -> Mapping[str, str]:
        return {"device": self.title, **self._gpu_state.now()}

    @property
    def software(self) -> str:
        version = self.torch.version
        parts = [f"torch {self.torch.__version__}"]
        parts += [f"CUDA {version.cuda}"] if version.cuda else []
        parts += [f"ROCm {version.hip}"] if getattr(version, "hip", None) else []
        return "; ".join(parts + triton_version())

    def time(self, calls: Sequence[Call], cold: bool, replayed: bool = False) -> Sample:
        for call in calls[:2]:
            call()  # compiles, chooses algorithms, allocates
        self.torch.cuda.synchronize()
        flush = FLUSH_FACTOR["cuda"] * self.cache / 1e12 if cold else 0.0
        rough = min(self._event_time(calls[index % len(calls)], cold=False) for index in range(3))
        graph = self._captured(calls) if rough < GRAPHED or replayed else None
        if graph is not None:
            count = _sample_count(rough * len(calls) + flush)
            seconds = [self._event_time(graph.replay, cold) / len(calls) for _ in range(count)]
            return Sample(tuple(sorted(seconds)), "graph")
        count = _sample_count(rough + flush)
        seconds = [self._event_time(calls[index % len(calls)], cold) for index in range(count)]
        return Sample(tuple(sorted(seconds)), "events")

    def _event_time(self, call: Call, cold: bool) -> float:
        """Seconds between two events around `call`.

        The eviction before it keeps the device busy while the CPU launches the rest: launch time does not count.
        """
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        if cold:
            self._evict()
        start.record()
        call()
        end.record()
        cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def _captured(self, calls: Sequence[Call]) -> Any:
        """A CUDA graph of all calls; None for kernels that cannot be captured (they allocate, or wait for the CPU)."""
        cuda = self.torch.cuda
        try:
            side = cuda.Stream()
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                for call in calls:
                    call()
            cuda.current_stream().wait_stream(side)
            cuda.synchronize()
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                for call in calls:
                    call()
            graph.replay()
            cuda.synchronize()
        except RuntimeError as error:
            if is_out_of_memory(error) or is_device_failure(error):
                raise
            cuda.synchronize()
            return None
        return graph

    def release(self) -> None:
        self.torch.cuda.empty_cache()


def triton_version() -> list[str]:
    """Triton's version in a list, or nothing where it is not installed."""
    try:
        return [f"triton {importlib.import_module('triton').__version__}"]
    except ImportError:
        return []


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is out of memory, on any device."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def is_device_failure(error: BaseException) -> bool:
    """Whether an error leaves the device unusable for this process, so that every later call fails."""
    text = str(error).lower()
    words = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address")
    return any(word in text for word in words)


def _sample_count(seconds: float) -> int:
    return max(MIN_SAMPLES, min(MAX_SAMPLES, int(SAMPLING_TIME / max(seconds, 1e-7))))


# --- CPU ---


class Cpu(Device):
    """The CPU of this machine; PyTorch runs on as many threads as there are idle cores, unless `threads` is given."""

    name = "cpu"

    def __init__(self, torch: Any, threads: int | None = None) -> None:
        self.torch = torch
        available = available_cores()
        self.busy = 0.0 if threads else busy_cores()
        self.threads = min(threads or max(1, available - round(self.busy)), available)
        torch.set_num_threads(self.threads)
        self.cache = last_level_cache()
        self.memory = 0.6 * free_memory()

    @property
    def state(self) -> Mapping[str, str]:
        clock = cpu_field("cpu MHz")
        return {"device": cpu_name(), "threads": str(self.threads), **({"clock_mhz": clock} if clock else {})}

    @property
    def software(self) -> str:
        return f"torch {self.torch.__version__} {self.torch.backends.cpu.get_cpu_capability()}"

    def time(self, calls: Sequence[Call], cold: bool, replayed: bool = False) -> Sample:
        del replayed
        calls[0]()
        evicting = cold and len(calls) > 2  # two alternating sets exceed the cache
        if evicting:
            self._evict()
        deadline = time.monotonic() + SAMPLING_TIME
        samples: list[tuple[float, bool]] = []
        least = MIN_SAMPLES
        while len(samples) < MAX_SAMPLES and (time.monotonic() < deadline or len(samples) < least):
            index = len(samples) + 1
            if evicting and index % len(calls) == 0:
                self._evict()
            samples.append(self._timed(calls[index % len(calls)]))
            least = 3 if samples[0][0] > SAMPLING_TIME / 5 else MIN_SAMPLES
        undisturbed = [seconds for seconds, disturbed in samples if not disturbed]
        kept = undisturbed if len(undisturbed) >= 3 else [seconds for seconds, _ in samples]
        return Sample(tuple(sorted(kept)), "clock")

    def _timed(self, call: Call) -> tuple[float, bool]:
        """Seconds of a call, and whether the scheduler interrupted it."""
        switches, cpu, start = context_switches(), time.thread_time_ns(), time.perf_counter_ns()
        call()
        wall, used = time.perf_counter_ns() - start, time.thread_time_ns() - cpu
        disturbed = context_switches() > switches
        # A call on one thread never sleeps: wall time beyond its CPU time was spent by another program.
        return (min(wall, used) if self.threads == 1 and disturbed else wall) * 1e-9, disturbed and self.threads > 1

    def sets(self, bytes: float, cold: bool) -> int:
        """The number of sets of buffers: at most 8, and 2 where one set is larger than the cache."""
        if cold and bytes > FLUSH_FACTOR["cpu"] * self.cache / 2:
            return 2
        return min(super().sets(bytes, cold), 8)
