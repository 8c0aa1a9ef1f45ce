"""Serving benchmarks as cases: a scenario under a load with its measured times; and what their rows state.

Rows under a load have the columns of whole-model figures; `batch` states the load: a number is a static batch, `closed
loop 8` has 8 requests in flight, `open loop 4 req/s` a rate of Poisson arrivals, and `all 1000 requests at once` is
offline. The first two may end with a remark: `closed loop 8; 80 requests` says how many were sent, others are not read.
Formats that a deployment states are read as engines run them: FP8 caches where the weights are quantized, with vLLM,
TensorRT-LLM, and SGLang on Blackwell (of gpt-oss on Blackwell alone); FP4 is NVFP4, and on AMD's devices MXFP4 with
inputs in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, quote
from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Settings
from roofline.serving.load import Load
from roofline.serving.pools import Pools
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import Engine, load_engine
from roofline.specs.formats import find_cache_format
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision, parse_precision
from roofline.specs.scheduler import Scheduler
from roofline.validate.tables.names import (
    NVFP4_BLOCKS,
    Unmapped,
    find_engine,
    find_hardware,
    find_model,
    find_precision,
)
from roofline.validate.tables.published import COLUMNS, SECONDS
from roofline.validate.tables.text import Line, parse_count, parse_number

REQUESTS = 500
"""Requests of a benchmark at a rate that does not say how many it sent. At an infinite one of TensorRT-LLM's documents,
more would take its prompts at over 90% of the peak of an H100; at 2 to 16 requests/s, its throughput over the offered
one says 400 to 900 with outputs of 256 tokens."""


CLOSED = re.compile(r"closed loop (\d{1,7})(?:; (\d{1,9}) requests)?(?:;.*)?")
OPEN = re.compile(r"open loop (\d+(?:\.\d+)?|INF) req/s(?:;.*)?")
OFFLINE = re.compile(r"all (\d{1,9}) requests at once")


def closed_loop(concurrency: int, requests: int | None = None) -> str:
    """The text of a fixed number of requests in flight."""
    return f"closed loop {concurrency}" + (f"; {requests} requests" if requests else "")


def benchmark_load(rate: float | None, concurrency: int | None, requests: int | None) -> str:
    """The text of a benchmark with a rate (None: infinite) and a limit of requests in flight (None: none).

    A benchmark with both is neither loop, and its text says so.
    """
    if rate is not None:
        return f"open loop {rate:g} req/s" + (f" with at most {concurrency} in flight" if concurrency else "")
    if concurrency is not None:
        return closed_loop(concurrency, requests)
    return f"all {requests} requests at once" if requests else "open loop INF req/s"


def is_load(text: str) -> bool:
    """Whether the text of a column `batch` is a load, not a static batch."""
    return text.startswith(("closed loop", "open loop", "all "))


def parse_load(text: str, prompt: float, output: float) -> Load:
    """The load of a text with mean lengths in tokens; raises Unmapped for a text that is none."""
    if found := CLOSED.fullmatch(text):
        concurrency = int(found[1])
        rounds = max(int(found[2]) / concurrency, 1.0) if found[2] and concurrency else ROUNDS
        return Load(prompt, output, concurrency=concurrency, rounds=rounds)
    if (found := OPEN.fullmatch(text)) and found[1] != "INF":
        return Load(prompt, output, rate=float(found[1]))
    if found or (found := OFFLINE.fullmatch(text)):
        return Load(prompt, output, offline=REQUESTS if found[1] == "INF" else int(found[1]))
    raise Unmapped(f"the load is not that of a closed loop, an open loop or offline ({quote(text)})")


RATIO, ROUNDS = 0.8, 10.0
"""Shortest length over the longest, and requests over the concurrency, where a benchmark does not say how many it sent
(InferenceX's benchmark_serving.py and scripts)."""


NAMED_BY = (("backend", "backend_version"), ("framework", "image"), ("engine",))
"""Columns that name the engine and its version in tables of each kind."""


class Agents(Struct, frozen=True):
    """Sessions of a profile, as many as a load's requests in flight, with tiers of the cache and the devices' pool.

    A run lasts a `duration` of seconds, or as the profile says; sessions of a random moment go on without end.
    """

    profile: str
    tiers: str = ""
    pool: float | None = None
    duration: float | None = None


class ServingCase(Struct, frozen=True):
    """A row as a scenario under a load, and its measured mean times in seconds (None: not measured).

    `throughput` is a time, too: the reciprocal of the output tokens/s of all requests. `pools` are the replicas of
    prefill and decode where a row states both. `median`: the times are medians, not means. `agents`: of turns of
    sessions.
    """

    line: Line
    scenario: Scenario
    load: Load
    scheduler: Scheduler
    ttft: float | None
    tpot: float | None
    assumed: str = ""
    e2e: float | None = None
    throughput: float | None = None
    pools: Pools | None = None
    median: bool = False
    agents: Agents | None = None

    def run_by(self, engine: Engine) -> ServingCase:
        """The case with another engine profile and its scheduler."""
        return replace(self, scenario=self.scenario.changed(engine=engine), scheduler=engine.scheduler)

    @property
    def labels(self) -> dict[str, str]:
        """The row's value of each grouping key."""
        cells, (prompt, output) = self.line.cells, self.load.means
        stated = next(names for names in NAMED_BY if names[0] in cells)
        lengths = f"{cells['isl']}/{cells['osl']}" if "isl" in cells else f"{prompt:.0f}/{output:.0f}"
        return {
            "engine": self.scenario.profile.profile,
            "version": " ".join(cells[name].strip() for name in stated).strip(),
            "model": self.scenario.model.name,
            "hardware": self.scenario.hardware.name,
            "format": (cells.get("precision") or cells.get("weights") or "").strip() or "as released",
            "lengths": self.agents.profile if self.agents else lengths,
            "deployment": self.deployment,
        }

    @property
    def deployment(self) -> str:
        """Devices apart or together, on a node (or NVLink domain) or several, and drafts."""
        scenario = self.scenario
        nodes = scenario.settings.parallel.on(scenario.hardware).nodes or 1
        together = "several nodes" if nodes > 1 else "one node"
        drafts = " with drafts" if scenario.settings.speculation is not None else ""
        return f"{together if self.pools is None else 'disaggregated'}{drafts}"


LOAD_COLUMNS = COLUMNS[:-3]
"""Columns of rows under a load, as of whole-model figures (but their value, unit and source); `batch` states it."""

LOAD_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "ttft_mean": "ttft",
        "itl_mean": "tpot",
        "tpot_mean": "tpot",
        "e2e_mean": "e2e",
        "output_throughput_total": "throughput",
    }
)
"""The time of a ServingCase for each metric of such rows."""


def loaded_cases(lines: Iterable[Line]) -> Iterator[ServingCase | tuple[Line, str]]:
    """The cases of rows under a load; of a group of rows that is none, the first row and the reason.

    Rows with the same conditions are one case with several metrics; metrics of no ServingCase are ignored.
    """
    gathered: dict[tuple[str, ...], dict[str, tuple[Line, float]]] = {}
    for line in lines:
        metric, unit = LOAD_METRICS.get(line.cells["metric"].strip()), line.cells["unit"].strip()
        seconds = SECONDS.get(unit)
        value = parse_number(line.cells["value"])
        if metric == "throughput":
            seconds, value = 1.0, 1 / value if value and unit == "tok/s" else None
        if metric is not None and seconds is not None:
            if value is None or value <= 0:
                yield line, "the value is no number above zero"
                continue
            key = tuple(line.cells[name] for name in LOAD_COLUMNS[:-1])
            gathered.setdefault(key, {})[metric] = line, value * seconds
    for metrics in gathered.values():
        line = next(iter(metrics.values()))[0]
        try:
            yield _loaded_case(line, {metric: seconds for metric, (_, seconds) in metrics.items()})
        except RooflineError as reason:
            yield line, str(reason)


def _loaded_case(line: Line, times: Mapping[str, float]) -> ServingCase:
    cells = line.cells
    model, hardware = find_model(cells["model"]), find_hardware(cells["hardware"]).hardware
    engine, gpus = find_engine(cells["engine"]), parse_count(cells["gpus"])
    prompt, generated = parse_number(cells["input_len"]), parse_number(cells["output_len"])
    if not gpus or not prompt or not generated:
        raise Unmapped("the number of devices, or a length, is not stated")
    precision = find_precision(cells["weights"], cells["kv"], model, hardware, cells["engine"])
    settings = Settings(parallel=Parallelism(tensor=gpus))
    scenario = Scenario(model, hardware, precision=precision, settings=settings, engine=engine)
    load = parse_load(cells["batch"].strip(), prompt, generated)
    return replace(ServingCase(line, scenario, load, load_engine(engine).scheduler, None, None), **times)


def find_profile(backend: str, version: str) -> str:
    """The engine profile of a backend's version; raises Unmapped."""
    stated = re.match(r"\d+(\.\d+)+(rc\d+)?", version.strip().removeprefix("v"))
    name = backend.strip().lower().replace("trtllm", "tensorrt-llm")
    if name not in ("sglang", "tensorrt-llm", "vllm"):
        raise Unmapped(f"no engine profile is for {quote(backend)}")
    return f"{name}@{stated[0]}" if stated is not None else name


def precision_in(modes: Set[str], model: Model, hardware: Hardware, engine: str, repository: str = "") -> Precision:
    """The formats of a deployment that states these formats of weights; those of the checkpoint where it states none.

    Raises Unmapped for a format that is none of weights.
    """
    if not modes:
        return precision_of(model, hardware, engine)
    released = precision_of(model, hardware, engine)
    mixed = released.weights.linear is not None and "/" in released.weights.name  # one release has both formats
    few = any("mxfp4" in mode or "int4" in mode or "w4a" in mode for mode in modes)
    if model.quantization == "mxfp4":  # gpt-oss, whose scripts set formats on Blackwell alone
        told = {"activations": "fp8", "kv": "fp8"} if hardware.has_tensor_memory else {}
        return precision_of(model, hardware, engine, **told)
    if mixed or (few and model.quantization is not None):
        chosen = released
    elif "fp4" in modes and hardware.vendor == "AMD":
        chosen = parse_precision("bf16", "mxfp4", activations="mxfp4")
    elif modes & {"nvfp4", "fp4"}:
        chosen = parse_precision("bf16", "nvfp4")
        chosen = replace(chosen, weights=NVFP4_BLOCKS) if model.uses_mla else chosen
    elif any("mxfp4" in mode for mode in modes):
        chosen = parse_precision("bf16", "mxfp4")
    elif few:
        chosen = parse_precision("bf16", "awq")
    elif any("int8" in mode for mode in modes):
        chosen = parse_precision("bf16", "int8")
    elif any(mode.startswith("fp8") for mode in modes):
        own = model.quantization == "fp8_block" or ("qwen3" in model.name and repository.endswith("-fp8"))
        chosen = parse_precision("bf16", "fp8_block" if own or "fp8_block" in modes else "fp8")
    elif modes <= {"bf16", "bfloat16", "fp16", "float16"}:
        chosen = parse_precision("bf16")
    else:
        raise Unmapped(f"no weight format is {quote(', '.join(sorted(modes)))}")
    blackwell = hardware.family == "blackwell"
    if chosen.weights.linear is not None and (not engine.startswith("sglang") or blackwell):
        return replace(chosen, kv=find_cache_format("fp8"))
    return chosen
