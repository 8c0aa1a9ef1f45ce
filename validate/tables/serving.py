"""Rows of serving benchmarks (a fixed number of requests in flight) as a scenario, a load and a scheduler.

The columns are those of AIConfigurator's validation data: backend, backend_version, model_path, system, precision, isl,
osl, concurrency, batch_size, tp_size, pp_size, attention_dp_size, moe_tp_size, moe_ep_size, gemm_quant_mode,
moe_quant_mode. What they leave open is read from how the benchmarks run:

* layout      moe_tp_size = moe_ep_size = n > 1 is n devices with the experts divided among all; tp_size = data
              ranks = n likewise (their products, as written, are of two readings of the same n). Attention data
              parallelism that is not written is the ranks that the experts have beyond tp_size.
* requests    InferenceX (1024 or 8192 to 1024 or 8192 tokens) draws lengths from 0.8 to 1 of those written and sends
              ten requests for each in flight; others send the written lengths, with vLLM and lengths in thousands
              the same 100 prompts again, of which the prefix cache has the KV cache.
* steps       `roofline.validate.tables.harness`
* cache       FP8 where the weights are quantized, with vLLM, TensorRT-LLM, and SGLang on Blackwell; of gpt-oss on
              Blackwell alone.
* formats     FP4 is NVFP4, and on AMD's devices MXFP4 with inputs in it.
* MTP         DeepSeek-R1 on the versions of TensorRT-LLM whose TPOT is half of DeepSeek-V3's in the same rows.
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
from roofline.techniques import apply_techniques
from roofline.validate.tables.harness import NODE, profile_of, scheduler_of
from roofline.validate.tables.loads import parse_load
from roofline.validate.tables.names import (
    NVFP4_BLOCKS,
    Unmapped,
    find_engine,
    find_hardware,
    find_model,
    find_precision,
)
from roofline.validate.tables.text import Line, parse_count, parse_number

COLUMNS = (
    *("backend", "backend_version", "model_path", "system", "precision", "isl", "osl", "concurrency", "batch_size"),
    *("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "gemm_quant_mode", "moe_quant_mode"),
    *("silicon_ttft_ms", "silicon_tpot_ms"),
)

NAMED = re.compile(r"(?<=-)(?:nvfp4|fp4|fp8|mxfp4|int4)(?=-|$)")
"""Formats in the name of a repository, where no column states one."""

INFERENCEX = frozenset({(1024, 1024), (1024, 8192), (8192, 1024)})
"""Prompt and output lengths of InferenceX's benchmarks."""

RAMP, RAMPS = 0.04, 1.0
"""Seconds between the first requests of benchmarks of constant lengths, and of all of them at most, from their TTFT
(SGLang batches them again)."""

PROMPTS, THOUSAND = 100, 1000
"""Distinct prompts of AIPerf by default (--num-dataset-entries), which vLLM's prefix cache has after these, and the
unit of prompt lengths in the benchmarks that leave the cache on (their TTFT and TPOT are below the bound without)."""

RATIO, ROUNDS = 0.8, 10.0
"""Shortest length over the longest, and requests over the concurrency (its benchmark_serving.py and scripts)."""

MTP: frozenset[tuple[str, str]] = frozenset({("trtllm", "1.1.0rc2.post2"), ("trtllm", "1.2.0rc6.post3")})
"""Versions whose rows of DeepSeek-R1 are of speculative decoding."""

MTP_TECHNIQUES = ("multi-token-prediction:length=3,acceptance=0.69", "multi-token-prediction:length=1,acceptance=0.75")
"""Three draft tokens with tensor parallelism, one with data-parallel attention (InferenceX's scripts). An iteration of
three has 2.5 tokens (SemiAnalysisAI/InferenceX, pull request 649)."""

SQUARED = 4
"""Least n of rows that state n devices as n squared."""


NAMED_BY = (("backend", "backend_version"), ("framework", "image"), ("engine",))
"""Columns that name the engine and its version in tables of each kind."""


class Agents(Struct, frozen=True):
    """Sessions of a profile, as many as a load's requests in flight, with tiers of the cache and the devices' pool.

    A run lasts a `duration` of seconds, or as the profile says.
    """

    profile: str
    tiers: str = ""
    pool: float | None = None
    duration: float | None = None


class ServingCase(Struct, frozen=True):
    """A row as a scenario under a load, and its measured mean times in seconds (None: not measured).

    `throughput` is a time, too: the reciprocal of the output tokens/s of all requests. `decode` is the deployment and
    the load of decode alone, where it has devices of its own: TPOT is that of it. `pools` are the replicas of prefill
    and decode where a row states both. `median`: the times are medians, not means. `agents`: of turns of sessions.
    """

    line: Line
    scenario: Scenario
    load: Load
    scheduler: Scheduler
    ttft: float | None
    tpot: float | None
    assumed: str = ""
    decode: tuple[Scenario, Load] | None = None
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
        cells = self.line.cells
        stated = next(names for names in NAMED_BY if names[0] in cells)
        return {
            "engine": self.scenario.profile.profile,
            "version": " ".join(cells[name].strip() for name in stated).strip(),
            "model": self.scenario.model.name,
            "hardware": self.scenario.hardware.name,
            "format": (cells.get("precision") or cells.get("weights") or "").strip() or "as released",
            "lengths": self.agents.profile if self.agents else self._lengths,
            "deployment": self.deployment,
        }

    @property
    def _lengths(self) -> str:
        cells, (prompt, output) = self.line.cells, self.load.means
        return f"{cells['isl']}/{cells['osl']}" if "isl" in cells else f"{prompt:.0f}/{output:.0f}"

    @property
    def deployment(self) -> str:
        """Devices apart or together, on a node (or NVLink domain) or several, and drafts."""
        scenario = self.scenario
        apart = self.pools is not None or self.decode is not None
        nodes = scenario.settings.parallel.on(scenario.hardware).nodes or 1
        together = "several nodes" if nodes > 1 else "one node"
        drafts = " with drafts" if scenario.settings.speculation is not None else ""
        return f"{'disaggregated' if apart else together}{drafts}"


LOAD_COLUMNS = ("model", "hardware", "gpus", "engine", "weights", "kv", "batch", "input_len", "output_len", "metric")
"""Columns of rows under a load, as of whole-model figures; `batch` states it (`roofline.validate.tables.loads`)."""

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
        seconds = {"us": 1e-6, "ms": 1e-3, "s": 1.0}.get(unit)
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
    match backend.strip().lower():
        case "trtllm" | "tensorrt-llm":
            stated = re.match(r"1\.(\d+)", version.strip())
            return "tensorrt-llm@1.1" if stated is not None and int(stated[1]) <= 1 else "tensorrt-llm"
        case "sglang":
            return "sglang"
        case "vllm":
            old = re.match(r"0\.(\d+)", version.strip())
            return "vllm-sync" if old is not None and 8 <= int(old[1]) <= 13 else "vllm"
    raise Unmapped(f"no engine profile is for {quote(backend)}")


def layout(line: Line, model: Model) -> Parallelism:
    """The parallelism of a row; raises Unmapped for counts that are none."""
    tp, pp, data, wide, expert = (
        _count(line, name) for name in ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    written = data > 1
    if wide == expert >= SQUARED and tp * data == wide * expert and not (tp * data <= NODE and written):
        devices, ranks = expert, expert if written else 1
    elif tp == data > 1:
        devices, ranks = tp, tp
    else:
        missing = max(wide * expert // tp, 1) if data == 1 and model.experts else data
        devices, ranks = tp * missing, missing
    expert = min(devices, devices if wide == expert > 1 or written else expert)
    tensor = devices // ranks
    if expert == 1 and ranks > 1 and model.experts:
        expert = devices
    return Parallelism(tensor=tensor, data=ranks, expert=expert if model.experts else 1, pipeline=pp)


WORKER = 8
"""Devices of a decode worker of TensorRT-LLM in the rows of several nodes."""

FEW = 32
"""Requests in flight of such a worker up to which it is tensor-parallel, beyond with data-parallel attention."""

CACHED = 0.9999
"""Prefix hits that stand for a prompt whose KV cache another device has computed."""


def wide(devices: int, model: Model) -> Parallelism:
    """Half of the devices, as a power of two, with data-parallel attention and wide expert parallelism."""
    ranks = 1 << (max(devices // 2, 1).bit_length() - 1)
    return Parallelism(tensor=1, data=ranks, expert=ranks if model.experts else 1)


def decode_workers(scenario: Scenario, load: Load, devices: int) -> tuple[Scenario, Load]:
    """Decode on devices of its own, in rows that state all devices of prefill and decode together.

    TensorRT-LLM has workers of eight devices beside a prefill worker of four; SGLang one that is wide.
    """
    assert load.concurrency is not None
    parallel, each = scenario.settings.parallel, load.concurrency
    if scenario.profile.name == "tensorrt-llm":
        each = max(1, round(load.concurrency / max((devices - WORKER // 2) // WORKER, 1)))
        expert = WORKER if scenario.model.experts else 1
        parallel = Parallelism(tensor=WORKER) if each <= FEW else Parallelism(data=WORKER, expert=expert)
    settings = replace(scenario.settings, parallel=parallel)
    return scenario.changed(settings=settings), replace(load, concurrency=each, hits=CACHED)


def formats(line: Line, model: Model, hardware: Hardware, engine: str) -> Precision:
    """The formats of a row; raises Unmapped."""
    cells = line.cells
    path = cells["model_path"].lower()
    modes = {cells[name].strip().lower() for name in ("gemm_quant_mode", "moe_quant_mode", "precision")} - {""}
    return precision_in(modes or set(NAMED.findall(path)), model, hardware, engine, path)


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


def _count(line: Line, name: str) -> int:
    """A count of a row; 1 where it is empty or 0."""
    text = line.cells[name].strip()
    if not text:
        return 1
    try:
        return max(int(float(text)), 1)
    except (ValueError, OverflowError):
        raise Unmapped(f"{name} is no count ({quote(text)})") from None


def to_case(line: Line) -> ServingCase:
    """A row as a scenario under a load; raises RooflineError, mostly Unmapped, with the reason where it cannot be."""
    cells = line.cells
    model, engine = find_model(cells["model_path"]), find_profile(cells["backend"], cells["backend_version"])
    hardware = find_hardware(cells["system"].replace("_", "-")).hardware
    parallel, assumed = layout(line, model), ""
    apart = parallel.devices if parallel.tensor > NODE else 0
    if apart:
        parallel, assumed = (
            wide(apart, model),
            "more devices than a node: prefill and decode apart, decode with wide EP",
        )
    concurrency, load = _load(line, parallel)
    precision = formats(line, model, hardware, engine)
    profile = profile_of(engine, precision, load.prompts.varies)
    scenario = Scenario(model, hardware, precision=precision, settings=Settings(parallel=parallel), engine=profile)
    backend, version = cells["backend"].strip().lower(), cells["backend_version"].strip()
    if model.name == "deepseek-r1" and (backend, version) in MTP:
        scenario = apply_techniques(scenario, (MTP_TECHNIQUES[parallel.data > 1],))
        assumed = "speculative decoding with MTP, which no column states"
    scheduler = scheduler_of(profile.scheduler, scenario, load, concurrency, version)
    scenario = scenario.changed(engine=replace(profile, scheduler=scheduler))
    ttft, tpot = _milliseconds(line, "silicon_ttft_ms"), _milliseconds(line, "silicon_tpot_ms")
    decode = decode_workers(scenario, load, apart) if apart else None
    return ServingCase(line, scenario, load, scheduler, ttft, tpot, assumed, decode)


def _load(line: Line, parallel: Parallelism) -> tuple[int, Load]:
    """The requests in flight of the replica, and its load.

    `batch_size` is of one replica of attention: with fewer in all replicas than stated, there are several deployments.
    """
    prompt, output = (parse_count(line.cells[name]) for name in ("isl", "osl"))
    if not prompt or not output:
        raise Unmapped("the lengths of prompt and output are not stated")
    text, each = line.cells["concurrency"].strip(), line.cells["batch_size"].strip()
    stated, each_own = ((parse_number(cell) if cell else 0.0) for cell in (text, each))
    if stated is None or each_own is None:
        raise Unmapped("the concurrency is no number")
    own = each_own * parallel.data if each else stated
    concurrency = round(stated if stated and (parallel.data > 1 or not each) else own)
    if concurrency < 1:
        raise Unmapped("the concurrency is not stated")
    if (prompt, output) in INFERENCEX:
        prompts, outputs = (f"uniform:{RATIO * tokens:.0f}:{tokens}" for tokens in (prompt, output))
        return concurrency, Load(prompts, outputs, concurrency=concurrency, rounds=ROUNDS)
    backend = line.cells["backend"].strip().lower()
    ramp = 0.0 if backend == "sglang" else min(RAMP, RAMPS / concurrency)
    cached = backend == "vllm" and prompt % THOUSAND == 0
    hits = max(1 - PROMPTS / (ROUNDS * concurrency), 0.0) if cached else 0.0
    return concurrency, Load(
        prompt=prompt, generate=output, concurrency=concurrency, rounds=ROUNDS, ramp=ramp, hits=hits
    )


def _milliseconds(line: Line, name: str) -> float | None:
    """Seconds of a measured time; None where it is missing, or no time."""
    value = parse_number(line.cells[name])
    return value * 1e-3 if value is not None and 0 < value < 1e9 else None
