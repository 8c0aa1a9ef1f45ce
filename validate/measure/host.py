"""The machine as the operating system describes it: cores, caches, memory, and what other programs use of them."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path


def context_switches() -> int:
    """The number of involuntary context switches of this process."""
    try:
        import resource
    except ImportError:  # pragma: no cover - not a Unix
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def available_cores() -> int:
    """The number of logical cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover - not Linux
        return os.cpu_count() or 1


def busy_cores(seconds: float = 0.5) -> float:
    """The mean number of cores that other programs keep busy while this one sleeps; 0 where unknown."""
    before = _jiffies()
    time.sleep(seconds)
    after = _jiffies()
    if before is None or after is None or after[1] <= before[1]:
        return 0.0
    return (os.cpu_count() or 1) * (after[0] - before[0]) / (after[1] - before[1])


def _jiffies() -> tuple[int, int] | None:
    """Busy ticks and all ticks of all cores since boot."""
    try:
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


def cpu_field(name: str) -> str | None:
    """A field of the first core in /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else None


def cpu_name() -> str:
    """The vendor's name of the CPU."""
    name = cpu_field("model name") or platform.processor() or platform.machine() or "CPU"
    return " ".join(re.sub(r"\((R|TM|tm|r)\)", "", name).split())


def last_level_cache() -> float:
    """Bytes of the last-level cache of the first core; 64 MiB where the system does not report it."""
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
    """Bytes of memory that this process may use: the machine's, or its cgroup's limit."""
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
    """Bytes of available memory, within the cgroup's limit."""
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
