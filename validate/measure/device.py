"""What kernels are timed on: a CUDA device or the processors, behind one small interface.

A device runs calls whose operands its caches do not hold: each call of a sample works on a set of buffers of its own,
and before every sample the last-level cache is read full of something else (read, not written: lines that have to be
written back would slow the kernel down). `warm` leaves both out.

CUDA: events around a kernel; kernels under `GRAPHED` are captured in a CUDA graph, several in a row, so that the host's
time does not count. Processors: the clock around a call. On one thread, what the call waited for a processor that
another program had is not counted; on several, samples during which the scheduler took one away are left out while
others remain.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from roofline.core.errors import RooflineError, UnknownNameError

DEVICES = ("cuda", "cpu")

GRAPHED = 50e-6
"""Seconds: shorter kernels are timed in a CUDA graph."""

GRAPH_CALLS = 20
"""Calls in a CUDA graph at most."""

FEWEST_SAMPLES, MOST_SAMPLES = 5, 30

SAMPLING = 0.2
"""Seconds spent on the samples of one point, where the fewest do not take longer."""

FLUSHED = {"cuda": 4.0, "cpu": 1.25}
"""Bytes between two uses of a buffer, over the last-level cache."""

INSTALL = "pip install 'llm-roofline[validate]'"

Call = Callable[[], None]


class Sample(Struct, frozen=True):
    """Seconds of one call, over the samples: sorted; `method` is how they were taken."""

    seconds: tuple[float, ...]
    method: str

    def percentile(self, share: float) -> float:
        """The time that `share` of the samples do not exceed."""
        position = share * (len(self.seconds) - 1)
        below = int(position)
        above = min(below + 1, len(self.seconds) - 1)
        return self.seconds[below] + (position - below) * (self.seconds[above] - self.seconds[below])

    @property
    def median(self) -> float:
        """The middle of the samples."""
        return self.percentile(0.5)


class Device(ABC):
    """Something that kernels run on and are timed on.

    `memory` is the bytes that measurements may use, `cache` the last-level cache.
    """

    name: str
    memory: float
    cache: float

    @property
    @abstractmethod
    def state(self) -> Mapping[str, str]:
        """Provenance columns of a row measured now."""

    @property
    @abstractmethod
    def software(self) -> str:
        """The libraries behind the kernels, with versions."""

    @abstractmethod
    def time(self, calls: Sequence[Call], cold: bool) -> Sample:
        """Seconds of one call; `calls` do the same on different buffers."""

    def sets(self, bytes: float, cold: bool) -> int:
        """How many sets of buffers of `bytes` a point needs."""
        if not cold:
            return 1
        room = max(1, int(0.8 * self.memory / max(bytes, 1.0)))
        rotating = 1 + int(FLUSHED[self.name] * self.cache / max(bytes, 1.0))
        return min(MOST_SAMPLES if self.name == "cpu" else GRAPH_CALLS, max(2, rotating), room)

    def release(self) -> None:
        """Give memory back after a point."""
        return


def torch_module() -> Any:
    """PyTorch; raises RooflineError with how to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise RooflineError(f"measuring kernels needs PyTorch: {INSTALL}") from None


def open_device(name: str, threads: int | None = None) -> Device:
    """The device called `cuda` or `cpu`; raises RooflineError where there is none, or another program uses it."""
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    torch = torch_module()
    if name == "cpu":
        return Processors(torch, threads)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as nvidia-smi counts them
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda or torch.version.hip else f"; this PyTorch ({torch.__version__}) has no CUDA"
        raise RooflineError(f"there is no CUDA device that PyTorch can use{built}; --device cpu measures the processor")
    others = occupants()
    if others:
        raise RooflineError(f"other programs use the card (process {', '.join(others)}): timings would be theirs too")
    return Cuda(torch)


# --- CUDA ---


def visible_card() -> str:
    """The first visible card, as nvidia-smi names it."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"


def nvidia_smi(*query: str) -> list[str]:
    """The lines that nvidia-smi answers for the first visible card; none where it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "-i", visible_card(), *query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def occupants() -> list[str]:
    """Processes other than this one that compute on the first visible card; ask before this one does."""
    found = (line.split(",")[0].strip() for line in nvidia_smi("--query-compute-apps=pid"))
    return [process for process in found if process.isdigit() and int(process) != os.getpid()]


class _Readings(Struct):
    """Clocks and temperature, asked for at most every few seconds: the question itself takes a while."""

    age: float = 5.0
    taken: float = -1e9
    values: dict[str, str] = field(default_factory=dict)

    def now(self) -> Mapping[str, str]:
        if time.monotonic() - self.taken > self.age:
            names = ("clock_mhz", "memory_clock_mhz", "temperature_c", "driver")
            lines = nvidia_smi("--query-gpu=clocks.sm,clocks.mem,temperature.gpu,driver_version")
            parts = [part.strip() for part in lines[0].split(",")] if lines else []
            self.values = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}
            self.taken = time.monotonic()
        return self.values


class Cuda(Device):
    """The first visible CUDA device (or ROCm's, which PyTorch calls by the same name)."""

    name = "cuda"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        free, _ = torch.cuda.mem_get_info(0)
        self.title = str(properties.name)
        self.cache = float(getattr(properties, "L2_cache_size", 0) or 64e6)
        self.memory = 0.9 * free
        self._readings = _Readings()
        self._eviction: Any = None

    @property
    def state(self) -> Mapping[str, str]:
        """Clocks, temperature and driver."""
        return {"device": self.title, **self._readings.now()}

    @property
    def software(self) -> str:
        """PyTorch, the CUDA runtime, cuDNN, Triton."""
        version = self.torch.version
        parts = [f"torch {self.torch.__version__}"]
        parts += [f"CUDA {version.cuda}"] if version.cuda else []
        parts += [f"ROCm {version.hip}"] if getattr(version, "hip", None) else []
        return "; ".join(parts + triton_version())

    def time(self, calls: Sequence[Call], cold: bool) -> Sample:
        """Events around a call, or around a CUDA graph of many short ones."""
        for call in calls[:2]:
            call()  # compiles, chooses algorithms, allocates
        self.torch.cuda.synchronize()
        rough = self._rough(calls)
        graph = self._captured(calls) if rough < GRAPHED else None
        if graph is not None:
            many = _rounds(rough * len(calls) + self._flush_time(cold))
            seconds = [self._between(graph.replay, cold) / len(calls) for _ in range(many)]
            return Sample(tuple(sorted(seconds)), "graph")
        many = _rounds(rough + self._flush_time(cold))
        seconds = [self._between(calls[index % len(calls)], cold) for index in range(many)]
        return Sample(tuple(sorted(seconds)), "events")

    def _rough(self, calls: Sequence[Call]) -> float:
        return min(self._between(calls[index % len(calls)], cold=False) for index in range(3))

    def _flush_time(self, cold: bool) -> float:
        return FLUSHED["cuda"] * self.cache / 1e12 if cold else 0.0

    def _between(self, call: Call, cold: bool) -> float:
        """Seconds between two events around `call`.

        The eviction before it keeps the device busy while the host issues the rest, whose time does not count then.
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

    def _evict(self) -> None:
        if self._eviction is None:
            count = int(FLUSHED["cuda"] * self.cache) // 4
            self._eviction = self.torch.zeros(count, dtype=self.torch.float32, device="cuda")
        self._eviction.sum()

    def _captured(self, calls: Sequence[Call]) -> Any:
        """A CUDA graph of all calls; None for kernels that cannot be captured (they allocate, or wait for the host)."""
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
            if is_memory(error) or is_broken(error):
                raise
            cuda.synchronize()
            return None
        return graph

    def release(self) -> None:
        """Give the allocator's cached blocks back."""
        self.torch.cuda.empty_cache()


def triton_version() -> list[str]:
    """Triton's version in a list, or nothing where it is not installed."""
    try:
        return [f"triton {importlib.import_module('triton').__version__}"]
    except ImportError:
        return []


def is_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def is_broken(error: BaseException) -> bool:
    """Whether an error leaves the device unusable for this process: every later call would fail with it."""
    text = str(error).lower()
    words = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address")
    return any(word in text for word in words)


def _rounds(seconds: float) -> int:
    """How many samples of `seconds` each are taken."""
    return max(FEWEST_SAMPLES, min(MOST_SAMPLES, int(SAMPLING / max(seconds, 1e-7))))


# --- processors ---


class Processors(Device):
    """The processors of this machine, with PyTorch's threads on those that no other program keeps busy."""

    name = "cpu"

    def __init__(self, torch: Any, threads: int | None = None) -> None:
        self.torch = torch
        available = processors()
        self.busy = 0.0 if threads else busy_processors()
        self.threads = min(threads or max(1, available - round(self.busy)), available)
        torch.set_num_threads(self.threads)
        self.cache = last_level_cache()
        self.memory = 0.6 * free_memory()
        self._eviction: Any = None

    @property
    def state(self) -> Mapping[str, str]:
        """The processor, its threads in use and its clock."""
        clock = cpu_field("cpu MHz")
        return {"device": processor_name(), "threads": str(self.threads), **({"clock_mhz": clock} if clock else {})}

    @property
    def software(self) -> str:
        """PyTorch and the vector extension that its kernels use."""
        return f"torch {self.torch.__version__} {self.torch.backends.cpu.get_cpu_capability()}"

    def time(self, calls: Sequence[Call], cold: bool) -> Sample:
        """The clock around each call."""
        calls[0]()
        evicting = cold and len(calls) > 2  # two sets in turn are larger than the cache
        if evicting:
            self._evict()
        deadline = time.monotonic() + SAMPLING
        samples: list[tuple[float, bool]] = []
        while len(samples) < MOST_SAMPLES and (time.monotonic() < deadline or len(samples) < _fewest(samples)):
            index = len(samples) + 1
            if evicting and index % len(calls) == 0:
                self._evict()
            samples.append(self._timed(calls[index % len(calls)]))
        calm = [seconds for seconds, disturbed in samples if not disturbed]
        chosen = calm if len(calm) >= 3 else [seconds for seconds, _ in samples]
        return Sample(tuple(sorted(chosen)), "clock")

    def _timed(self, call: Call) -> tuple[float, bool]:
        """Seconds of a call, and whether the scheduler interrupted it."""
        interrupted, cpu, start = _interruptions(), time.thread_time_ns(), time.perf_counter_ns()
        call()
        wall, used = time.perf_counter_ns() - start, time.thread_time_ns() - cpu
        disturbed = _interruptions() > interrupted
        # A call on one thread never sleeps: what it did not compute, it waited for another program.
        return (min(wall, used) if self.threads == 1 and disturbed else wall) * 1e-9, disturbed and self.threads > 1

    def _evict(self) -> None:
        if self._eviction is None:
            self._eviction = self.torch.zeros(int(FLUSHED["cpu"] * self.cache) // 4)
        self._eviction.sum()

    def sets(self, bytes: float, cold: bool) -> int:
        """As many as there are samples of a short call; of what the cache cannot hold, two in turn."""
        if cold and bytes > FLUSHED["cpu"] * self.cache / 2:
            return 2
        return min(super().sets(bytes, cold), 8)


def _fewest(samples: Sequence[tuple[float, bool]]) -> int:
    """The samples to take even where they take longer than planned: three where the first took long already."""
    return 3 if samples and samples[0][0] > SAMPLING / 5 else FEWEST_SAMPLES


def _interruptions() -> int:
    """How often the scheduler took a processor away from this process."""
    try:
        import resource
    except ImportError:  # pragma: no cover - not a Unix
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def processors() -> int:
    """The processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover - not Linux
        return os.cpu_count() or 1


def busy_processors(seconds: float = 0.5) -> float:
    """How many processors other programs keep busy, over a moment in which this one sleeps; 0 where unknown."""
    before = _jiffies()
    time.sleep(seconds)
    after = _jiffies()
    if before is None or after is None or after[1] <= before[1]:
        return 0.0
    return (os.cpu_count() or 1) * (after[0] - before[0]) / (after[1] - before[1])


def _jiffies() -> tuple[int, int] | None:
    """Ticks of all processors since the start: busy ones, and all."""
    try:
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


def cpu_field(name: str) -> str | None:
    """A field of /proc/cpuinfo, of its first processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else None


def processor_name() -> str:
    """The processor's name as its maker writes it."""
    name = cpu_field("model name") or platform.processor() or platform.machine() or "processor"
    return " ".join(re.sub(r"\((R|TM|tm|r)\)", "", name).split())


def last_level_cache() -> float:
    """Bytes of the last-level cache of the first processor; 64 MiB where the system does not tell."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            found = re.fullmatch(r"(\d+)([KMG]?)", entry.read_text().strip())
        except OSError:
            continue
        if found:
            sizes.append(int(found.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found.group(2)])
    return float(max(sizes, default=64 * 2**20))


def total_memory() -> float:
    """Bytes of memory that this process may have: the machine's, or its control group's."""
    try:
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):  # pragma: no cover - not a Unix
        total = 8e9
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, float(limit)) if limit.isdigit() else total


def free_memory() -> float:
    """Bytes that programs can still get."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
    except OSError:
        found = None
    available = float(found.group(1)) * 1024 if found else 0.5 * total_memory()
    try:
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return max(0.0, min(available, total_memory() - used))
