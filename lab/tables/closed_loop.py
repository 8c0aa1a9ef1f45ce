"""Serving benchmarks of a fixed number of requests in flight, in the columns of AIConfigurator's validation data.

Columns: backend, backend_version, model_path, system, precision, isl, osl, concurrency, batch_size, tp_size, pp_size,
attention_dp_size, moe_tp_size, moe_ep_size, gemm_quant_mode, moe_quant_mode. What they leave open is read from how the
benchmarks run:

* layout      moe_tp_size = moe_ep_size = n > 1 is n devices with the experts divided among all; tp_size = data
              ranks = n likewise (their products, as written, are of two readings of the same n). Attention data
              parallelism that is not written is the ranks that the experts have beyond tp_size.
* requests    InferenceX (1024 or 8192 to 1024 or 8192 tokens) draws lengths from 0.8 to 1 of those written and sends
              ten requests for each in flight; others send the written lengths, with vLLM and lengths in thousands
              the same 100 prompts again, of which the prefix cache has the KV cache.
* steps       Of drawn lengths as in `roofline.validate.tables.harness`; benchmarks of constant lengths run what
              AIConfigurator's generator writes: a budget of the prompt and 1,500 tokens (read of TensorRT-LLM and
              SGLang; vLLM's TTFT says the same), with TensorRT-LLM a token for each sequence more, and chunks in
              SGLang's decode steps since 0.5.3.
* MTP         DeepSeek-R1 on the versions of TensorRT-LLM whose TPOT is half of DeepSeek-V3's in the same rows.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from roofline.core.errors import quote
from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Settings
from roofline.serving.load import Load
from roofline.specs.engine import Engine, load_engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.scheduler import MIXED, Scheduler
from roofline.techniques import apply_techniques
from roofline.validate.tables.harness import as_scripted, numbers, profile_of, scheduler_of
from roofline.validate.tables.names import Unmapped, find_hardware, find_model
from roofline.validate.tables.serving import RATIO, ROUNDS, ServingCase, find_profile, precision_in
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

MTP: frozenset[tuple[str, str]] = frozenset({("trtllm", "1.1.0rc2.post2"), ("trtllm", "1.2.0rc6.post3")})
"""Versions whose rows of DeepSeek-R1 are of speculative decoding."""

MTP_TECHNIQUES = ("multi-token-prediction:length=3,acceptance=0.69", "multi-token-prediction:length=1,acceptance=0.75")
"""Three draft tokens with tensor parallelism, one with data-parallel attention (InferenceX's scripts). An iteration of
three has 2.5 tokens (SemiAnalysisAI/InferenceX, pull request 649)."""

SQUARED = 4
"""Least n of rows that state n devices as n squared."""

MARGIN = 1500
"""Tokens of a step's budget beyond the prompt in benchmarks of constant lengths (AIConfigurator's generator)."""

MIXED_CHUNKS = (0, 5, 3)
"""Version of SGLang from which these benchmarks set --enable-mixed-chunk."""


class DecodeApart(ServingCase, frozen=True):
    """A case that states the devices of prefill and decode together: `decode` is the deployment and load of decode."""

    decode: tuple[Scenario, Load] | None = None

    @property
    def apart(self) -> bool:
        return self.decode is not None


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


NODE = 8
"""Devices of a node, of which most rows have one."""

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


def constant_profile(name: str, precision: Precision) -> Engine:
    """The profile of an engine in a benchmark of constant lengths.

    FP8 is of TensorRT-LLM's dynamic kind there: a kernel of 10 us before each GEMM computes the scales of its input
    (linear.py; NVIDIA/TensorRT-LLM, pull request 16569), as its public timings do. Qwen3-32B says so.
    """
    engine = load_engine(name)
    if engine.name != "tensorrt-llm" or precision.weights.name != "fp8":
        return engine
    also = {
        family: {kind: other for kind, other in own.items() if kind != "gemm"} for family, own in engine.also.items()
    }
    return replace(engine, also=also, fusions=tuple(each for each in engine.fusions if each != "quantization"))


def constant_scheduler(policy: Scheduler, scenario: Scenario, load: Load, version: str) -> Scheduler:
    """The engine's policy, with the budget that a benchmark of constant lengths sets."""
    engine, prompt = scenario.profile.name, int(load.prompts.mean) + MARGIN
    if engine == "tensorrt-llm":
        return replace(policy, tokens=prompt + max(1, round((load.concurrency or 0) / scenario.settings.parallel.data)))
    if engine == "sglang":
        order = MIXED if numbers(version) >= MIXED_CHUNKS else policy.order
        return replace(policy, tokens=prompt, drafted=0, order=order)
    return replace(policy, tokens=prompt) if engine == "vllm" else policy


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
    load = _load(line, parallel)
    precision = formats(line, model, hardware, engine)
    drawn = load.prompts.varies
    profile = (
        profile_of(engine, precision, hardware, model, parallel.data) if drawn else constant_profile(engine, precision)
    )
    settings = Settings(parallel=as_scripted(parallel, engine, hardware, precision))
    scenario = Scenario(model, hardware, precision=precision, settings=settings, engine=profile)
    backend, version = cells["backend"].strip().lower(), cells["backend_version"].strip()
    if model.name == "deepseek-r1" and (backend, version) in MTP:
        scenario = apply_techniques(scenario, (MTP_TECHNIQUES[parallel.data > 1],))
        assumed = "speculative decoding with MTP, which no column states"
    schedules = scheduler_of if drawn else constant_scheduler
    scheduler = schedules(profile.scheduler, scenario, load, version)
    scenario = scenario.changed(engine=replace(profile, scheduler=scheduler))
    ttft, tpot = _milliseconds(line, "silicon_ttft_ms"), _milliseconds(line, "silicon_tpot_ms")
    decode = decode_workers(scenario, load, apart) if apart else None
    return DecodeApart(line, scenario, load, scheduler, ttft, tpot, assumed, decode=decode)


def _load(line: Line, parallel: Parallelism) -> Load:
    """The load of the replica.

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
        return Load(prompts, outputs, concurrency=concurrency, rounds=ROUNDS)
    backend = line.cells["backend"].strip().lower()
    ramp = 0.0 if backend == "sglang" else min(RAMP, RAMPS / concurrency)
    cached = backend == "vllm" and prompt % THOUSAND == 0
    hits = max(1 - PROMPTS / (ROUNDS * concurrency), 0.0) if cached else 0.0
    return Load(prompt=prompt, generate=output, concurrency=concurrency, rounds=ROUNDS, ramp=ramp, hits=hits)


def _milliseconds(line: Line, name: str) -> float | None:
    """Seconds of a measured time; None where it is missing, or no time."""
    value = parse_number(line.cells[name])
    return value * 1e-3 if value is not None and 0 < value < 1e9 else None
