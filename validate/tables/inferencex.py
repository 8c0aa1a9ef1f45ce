"""Rows of InferenceX runs as cases: one deployment, or pools of prefill and decode, at a number of requests in flight.

Columns state the layout: framework, hardware, model, checkpoint, precision, speculation, disaggregated, isl, osl,
concurrency, tp, ep, dp_attention, and of pools prefill_ and decode_ tp, ep, dp_attention, num_workers and gpus. Times
are seconds, mean or median. What the columns leave open is read from the benchmark's scripts
(SemiAnalysisAI/InferenceX, benchmarks/ and runners/):

* layout      With data-parallel attention every device of a worker is a rank of it, and the experts are divided among
              all; a worker is the pool's devices over its workers, also where its tp is written as 1. Such rows of
              GB200 say data-parallel attention of all: workers of four devices that decode, and prefill for them or
              in FP4 for 8192 tokens, are tensor-parallel (recipes/gb200-fp4 and -fp8 of NVIDIA/srt-slurm). Where ep is
              more than tp, ranks have tp devices each.
* sequences   TensorRT-LLM's pools decode 2^k sequences a rank, or 3 x 2^k, and 5 to 40% more are in flight, which wait
              (names of its recipes: batch32 on 16 ranks for 666; NVIDIA/srt-slurm, recipes/trtllm). SGLang's workers of
              H200 decode 16 with drafts after prompts of 8192 tokens (recipes/h200/8k1k/bs64-2p3d-mtp.yaml).
* requests    Lengths from 0.8 to 1 of those written, ten requests for each in flight. Medians are taken where a row has
              both: kernels that compile for the first requests take up to 80 s, which means of TTFT contain.
* version     Of the image, else of the one that ran on the date. Tags of Dynamo's images are Dynamo's releases.
* exchange    Ranks of experts in pools of AMD's devices exchange tokens by MoRI (benchmarks/multi_node/amd_utils).
* polls       SGLang's decode pools behind Dynamo look for requests and caches every ten steps.
* budget      A step of prefill has two prompts with TensorRT-LLM, and at least 8192 tokens.
* drafts      MTP has two draft tokens with SGLang, three on AMD (one in pools); with TensorRT-LLM three, and one with
              data-parallel attention, of pools from 70 sequences a rank (mtp1 and mtp3 in the names of recipes; in FP8
              on B200 always three). More of them are accepted in outputs of 8,192 tokens than in those of 1,024. On
              MI300X and MI325X launchers ran the script without drafts until June 2026.
* throughput  Output tokens/s a GPU count the devices of decode where pools are apart.
* sessions    Of a scenario agentic-coding, `concurrency` are sessions of its traces, at a time; times are of turns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Settings
from roofline.scenario.speculation import acceptance_rate
from roofline.serving.load import Load
from roofline.serving.pools import Pools
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.records import bundled_record
from roofline.techniques import apply_techniques
from roofline.validate.tables.harness import NODE, agents_profile_of, as_scripted, profile_of, scheduler_of
from roofline.validate.tables.names import Unmapped, find_hardware, find_model
from roofline.validate.tables.serving import RATIO, ROUNDS, Agents, ServingCase, find_profile, precision_in
from roofline.validate.tables.text import Line, parse_count, parse_number

COLUMNS = (
    *("framework", "hardware", "model", "checkpoint", "precision", "speculation", "disaggregated", "isl", "osl"),
    *("concurrency", "tp", "ep", "dp_attention", "output_tokens_per_s_per_gpu"),
    *(f"{statistic}_{metric}" for statistic in ("mean", "median") for metric in ("ttft", "tpot", "e2el")),
    *(
        f"{pool}_{name}"
        for pool in ("prefill", "decode")
        for name in ("tp", "ep", "dp_attention", "num_workers", "gpus")
    ),
)

AGENTIC = "agentic-coding"
"""The scenario of sessions, of the profile that was replayed on a row's date, or the newest one."""

AGENTIC_COLUMNS = (
    *("scenario", "host_gb_per_gpu", "pool_tokens", "hit_rate", "duration", "pp", "dcp_size"),
    *(f"{pool}_{name}" for pool in ("prefill", "decode") for name in ("pp", "dcp_size", "hardware")),
)
"""Further columns, of which a table may lack each: memory of the hosts and pool of the devices that hold the KV cache,
what was found there, seconds of the run, and layouts beyond those of `COLUMNS`."""


class Published(Struct, frozen=True):
    """What inferencex.yaml says of InferenceX's models, images and hosts, with its sources."""

    models: dict[str, str]
    ran: tuple[tuple[str, str, str], ...]
    dynamo: dict[str, dict[str, str]]
    acceptance: dict[str, tuple[float, float]]
    undrafted: dict[str, str]
    golden: dict[str, tuple[int, float]]
    fallbacks: tuple[tuple[str, str, str, dict[str, str], str], ...]
    replays: tuple[tuple[str, str], ...]
    hosts: dict[str, tuple[float, int]]
    stated: tuple[str, ...]
    results: dict[str, tuple[str, ...]]
    turns: dict[str, str]


PUBLISHED = bundled_record(Published, "validate/tables/inferencex.yaml")

BACKENDS: Mapping[str, str] = MappingProxyType(
    {"trt": "trtllm", "trtllm": "trtllm", "sglang": "sglang", "vllm": "vllm", "atom": "sglang"}
)
"""Backends by the part of a framework's name that is one (dynamo-trt, mori-sglang, sglang-disagg)."""

ATOM = "ATOM as SGLang's newest release, which runs the same library of kernels on AMD's devices (AITER)"
"""What is assumed of AMD's own engine (ROCm/ATOM), which has no profile."""

LONG_OUTPUT = 4096
"""Output tokens from which acceptance is that of outputs of 8,192."""

AMD_POOLS = "multi-token-prediction:length=1,acceptance=0.97"
"""Pools on MI355X: 1.97 tokens an iteration by the same measure, whatever the lengths."""

SMALL, LONG = 4, 4096
"""Devices of a worker, and tokens of prompts above which prefill is in FP4, that are tensor-parallel on GB200."""

LEAST_BUDGET, SLACK = 8192, 128
"""Tokens of the smallest budget of a step of TensorRT-LLM's prefill, and those beyond each of the two prompts that a
step has room for (max_num_tokens: 16640)."""

POLL, HANDSHAKE = 10, 0.08
"""Steps between looks for requests and caches of SGLang's decode pools behind Dynamo, and seconds of their handshake.

With 1 to 4 requests in flight, when no decode step is waited for, TTFT is 0.07 to 0.11 s beyond that of prefill alone
on GB200 and H200; beyond that it rises by 15 to 18 times the TPOT, whatever the devices, formats and ranks: a
look for the request, and one for its cache."""

EVERY_STEP = ("h100-sxm",)
"""Hardware whose recipes set no interval: the stream has a chunk an iteration there, and of ten or more elsewhere."""

MANY_EACH = 128
"""Sequences of a tensor-parallel worker from which TensorRT-LLM's sweeps ask for more than it decodes, too (564 on four
workers of GB200)."""

SWEPT = ("b200-sxm", "h200-sxm")
"""Hardware of which tensor-parallel decode in FP8 is swept by the number of its workers, as FP4 is."""

H200_DRAFTED = 16
"""Sequences of SGLang's workers of H200 that decode with drafts after long prompts."""

CROWDED = 70
"""Sequences of a rank from which TensorRT-LLM's pools draft one token."""

AGENTS_OUTPUT = 1024
"""Tokens of a turn of an agent, for the acceptance of its drafts."""

EAGLE_3 = "eagle-3:length=3,acceptance=0.79"
"""Drafts of "mtp" with a checkpoint that has no modules for it: three tokens, of which an iteration has 2.88 (its
golden_al_distribution/kimik2.5_eagle3.yaml)."""

_VERSION = re.compile(r"(?<![\d.])v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:rc|post)\d+)*)")


class Deployment(Struct, frozen=True):
    """What a row states: a model on hardware, the engine, formats of weights, and the layouts of its workers.

    `layout` is that of the deployment, or of a worker of prefill where `pools` are apart. `fallback`: by op what
    kernels cost that run in place of tuned ones.
    """

    model: Model
    hardware: Hardware
    backend: str
    version: str
    modes: frozenset[str]
    layout: Parallelism
    pools: Pools | None = None
    mtp: bool = False
    dynamo: bool = False
    fallback: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def decoding(self) -> tuple[Parallelism, int]:
        """The layout of what decodes, and how many of it there are."""
        if self.pools is None or self.pools.parallel is None:
            return self.layout, 1
        return self.pools.parallel, self.pools.decodes

    def drafts(self, output: int, concurrency: int) -> str:
        """The technique of MTP, with the draft tokens of its scripts (benchmarks/single_node, *_mtp.sh) and recipes."""
        if not self.model.mtp:
            return EAGLE_3
        if self.backend == "trtllm":
            ranks, decoders = self.decoding[0].data, self.decoding[1]
            three = self.hardware.name == "b200-sxm" and "fp8" in self.modes
            crowded = concurrency / (ranks * decoders) > CROWDED and not three
            length = 1 if ranks > 1 and (self.pools is None or crowded) else 3
        elif self.hardware.vendor == "AMD":
            if self.pools is not None:
                return AMD_POOLS
            length = 3
        else:
            length = 2
        acceptance = PUBLISHED.acceptance[str(length)][output >= LONG_OUTPUT]
        return f"multi-token-prediction:length={length},acceptance={acceptance}"

    def scenario(self, output: int, concurrency: int, golden: tuple[int, float] | None = None) -> Scenario:
        """The deployment, or a worker of prefill, with the formats and the drafts that it states.

        Drafts of a `golden` length of which so many tokens an iteration are accepted are forced to that.
        """
        engine = find_profile(self.backend, self.version)
        precision = precision_in(self.modes, self.model, self.hardware, engine)
        ranks = max(self.layout.data, self.decoding[0].data)
        profile = profile_of(engine, precision, self.hardware, self.model, ranks, together=self.pools is None)
        profile = replace(profile, told={**profile.told, **self.fallback})
        settings = Settings(parallel=as_scripted(self.layout, engine, self.hardware, precision))
        scenario = Scenario(self.model, self.hardware, precision=precision, settings=settings, engine=profile)
        if not self.mtp:
            return scenario
        if profile.name == "sglang":
            told = replace(profile.scheduler, drafted=0)  # its scripts say how many requests run
            scenario = scenario.changed(engine=replace(profile, scheduler=told))
        if golden is not None:
            name = "multi-token-prediction" if self.model.mtp else "eagle-3"
            rate = acceptance_rate(golden[1], golden[0])
            return apply_techniques(scenario, (f"{name}:length={golden[0]},acceptance={rate:.4f}",))
        scenario = apply_techniques(scenario, (self.drafts(output, concurrency),))
        drafts = scenario.settings.speculation
        assert drafts is not None
        drafts = replace(drafts, measured="the streams of other runs")
        return scenario.changed(settings=replace(scenario.settings, speculation=drafts))

    def case(self, line: Line, prompt: int, output: int, concurrency: int) -> ServingCase:
        """The deployment under a number of requests in flight with lengths up to these, without times."""
        scenario = self.scenario(output, concurrency)
        profile = scenario.profile
        prompts, outputs = (f"uniform:{RATIO * tokens:.0f}:{tokens}" for tokens in (prompt, output))
        load = Load(prompts, outputs, concurrency=concurrency, rounds=ROUNDS)
        # Medians of TTFT say that no first token waits for further ones of its stream.
        scheduler = replace(scheduler_of(profile.scheduler, scenario, load, self.version), stream=1)
        if self.pools is not None and self.backend == "trtllm":
            scheduler = replace(scheduler, tokens=max(LEAST_BUDGET, 2 * (prompt + SLACK)))
        if self.pools is not None and self.dynamo and self.backend == "sglang":
            poll = 1 if self.hardware.name in EVERY_STEP else POLL
            scheduler = replace(scheduler, poll=poll, latency=scheduler.latency + HANDSHAKE)
        scenario = scenario.changed(engine=replace(profile, scheduler=scheduler))
        pools = self.pools
        if pools is not None and self.hardware.node_devices <= NODE:  # recipes of GB200 decode with other experts
            layout = as_scripted(self.decoding[0], profile.name, self.hardware, scenario.run_precision)
            pools = replace(pools, parallel=layout)
        return ServingCase(line, scenario, load, scheduler, None, None, pools=pools)

    def agents(self, line: Line, sessions: int) -> ServingCase:
        """The deployment under sessions of coding agents, with the tiers and the pool that the row states."""
        names = ("host_gb_per_gpu", "pool_tokens", "duration")
        host, pool, duration = (positive(line.cells.get(name, "")) for name in names)
        devices = self.layout.devices * (1 if self.pools is None else self.pools.prefills)
        tiers = f"dram={host * devices:.6g}GB" if host else ""
        load = Load(prompt=1, generate=1, concurrency=sessions)
        date = line.cells.get("date", "")
        profile = next(name for since, name in PUBLISHED.replays if not date or date >= since)
        agents = Agents(profile, tiers, pool, duration)
        scenario = self.scenario(AGENTS_OUTPUT, sessions, PUBLISHED.golden.get(self.model.name))
        other = "atom" if _is_atom(line.cells) else ""
        scenario = scenario.changed(engine=agents_profile_of(scenario, self.version, other))
        policy = scenario.profile.scheduler
        return ServingCase(line, scenario, load, policy, None, None, pools=self.pools, agents=agents)


def to_case(line: Line) -> ServingCase:
    """A row as a deployment under a load; raises RooflineError, mostly Unmapped, with the reason where it cannot be."""
    cells, asked = line.cells, deployment_of(line.cells)
    number = count(cells, "concurrency")
    if cells.get("scenario") == AGENTIC:
        case = asked.agents(line, number)
    else:
        case = asked.case(line, count(cells, "isl"), count(cells, "osl"), number)
    median = positive(cells["median_tpot"]) is not None
    statistic = "median" if median else "mean"
    ttft, tpot, e2e = (positive(cells[f"{statistic}_{metric}"]) for metric in ("ttft", "tpot", "e2el"))
    rate, (decoding, decoders) = positive(cells["output_tokens_per_s_per_gpu"]), asked.decoding
    throughput = 1 / (rate * decoding.devices * decoders) if rate else None
    assumed = ATOM if _is_atom(cells) else ""
    return replace(case, ttft=ttft, tpot=tpot, e2e=e2e, throughput=throughput, median=median, assumed=assumed)


def deployment_of(cells: Mapping[str, str]) -> Deployment:
    """What a row's cells state of its deployment; raises RooflineError, mostly Unmapped."""
    model = _model(cells)
    hardware = find_hardware(cells.get("prefill_hardware") or cells["hardware"]).hardware
    drafts = cells["speculation"].strip().lower()
    if drafts not in ("", "none", "mtp"):
        raise Unmapped("drafts other than MTP are stated without their number")
    backend = _backend(cells["framework"])
    if _truth(cells["disaggregated"]):
        layout, prefills = _worker(cells, "prefill_", model)
        parallel, decodes = _worker(cells, "decode_", model)
        if hardware.vendor == "AMD":
            layout, parallel = (replace(each, exchange="mori" if each.data > 1 else "") for each in (layout, parallel))
        other = cells.get("decode_hardware")
        pools = Pools(prefills, decodes, find_hardware(other).hardware if other else None, parallel)
        if backend == "trtllm":
            pools = replace(pools, sequences=_sequences(cells, pools, hardware))
        elif hardware.name == "h200-sxm" and drafts == "mtp" and count(cells, "isl") > LONG:
            pools = replace(pools, sequences=H200_DRAFTED)
    else:
        layout, pools = _layout(cells, "", count(cells, "tp"), model), None
        if cells.get("date", "").strip() < PUBLISHED.undrafted.get(hardware.name, ""):
            drafts = "none"
    return Deployment(
        model,
        hardware,
        backend,
        "" if _is_atom(cells) else _version(backend, cells.get("image", ""), cells.get("date", "")),
        frozenset({cells["precision"].strip().lower()}),
        layout,
        pools,
        drafts == "mtp",
        "dynamo" in cells["framework"],
        fallback_of(cells)[0],
    )


def fallback_of(cells: Mapping[str, str]) -> tuple[Mapping[str, str], str]:
    """What a launcher sets in place of tuned kernels, and was never measured: what it costs by op, and a sentence."""
    for framework, hardware, model, costs, kernels in PUBLISHED.fallbacks:
        if framework in cells["framework"] and (hardware, model) == (cells["hardware"], cells["model"]):
            return (
                costs,
                f"the launcher sets kernels that were not measured, and may be several times slower: {kernels}",
            )
    return {}, ""


def _model(cells: Mapping[str, str]) -> Model:
    """The model of a row, by the short name of its configuration, else by its checkpoint; raises Unmapped."""
    short = cells["model"].strip().lower()
    return find_model(PUBLISHED.models.get(short) or cells["checkpoint"].strip() or short)


def _backend(framework: str) -> str:
    parts = framework.strip().lower().split("-")
    found = next((BACKENDS[part] for part in parts if part in BACKENDS), None)
    if found is None:
        raise Unmapped(f"no engine profile is for {framework.strip()[:40]!r}")
    return found


def _is_atom(cells: Mapping[str, str]) -> bool:
    return "atom" in cells["framework"].lower()


def _version(backend: str, image: str, date: str) -> str:
    """The version in the tag of a container image, else that of the date; "" where the row states neither.

    Tags of Dynamo's images are its own releases: of one without a row the version is that of the date.
    """
    found = _VERSION.search(image.rsplit(":", 1)[-1])
    stated = "" if found is None else found[1]
    if "dynamo" in image:
        stated = in_dynamo(backend, stated)
    ran = (version for engine, first, version in PUBLISHED.ran if engine == backend and date.strip() >= first)
    return stated or next(ran, "")


def in_dynamo(backend: str, release: str) -> str:
    """The version of a backend in the image of a release of Dynamo; "" for a release without a row."""
    return PUBLISHED.dynamo.get(".".join(release.split(".")[:2]), {}).get(backend, "")


def _worker(cells: Mapping[str, str], pool: str, model: Model) -> tuple[Parallelism, int]:
    """The layout of a worker of a pool, and the number of workers; raises Unmapped."""
    workers, devices = count(cells, f"{pool}num_workers"), count(cells, f"{pool}gpus")
    if devices % workers:
        raise Unmapped(f"the {devices} devices of a pool are not those of {workers} equal workers")
    devices //= workers
    if _unstated(cells, pool, devices):
        return Parallelism(tensor=devices), workers
    return _layout(cells, pool, devices, model), workers


def _unstated(cells: Mapping[str, str], pool: str, devices: int) -> bool:
    """Whether a worker is tensor-parallel although the row, which states no layout, says data-parallel attention."""
    if cells["framework"].strip() != "dynamo-sglang" or count(cells, f"{pool}tp") == devices or devices != SMALL:
        return False
    few = count(cells, "decode_gpus") == SMALL * count(cells, "decode_num_workers")
    return few or (pool == "prefill_" and "4" in cells["precision"] and count(cells, "isl") > LONG)


def _sequences(cells: Mapping[str, str], pools: Pools, hardware: Hardware) -> int | None:
    """The most sequences of a rank of TensorRT-LLM's decode pools by its recipes, None for as many as come."""
    layout = pools.parallel or Parallelism()
    asked = count(cells, "concurrency")
    each = asked / (pools.decodes * layout.data)
    swept = layout.data == 1 and ("4" in cells["precision"] or hardware.name in SWEPT)
    if each < 1 or (swept and asked % pools.decodes == 0 and each < MANY_EACH):
        return None
    least = 1 << math.floor(math.log2(each))
    if layout.data == 1 and each == least > 1:  # recipes ask for more than is decoded: two each are of one slot
        least //= 2
    return least * 3 // 2 if each >= 1.5 * least > 1 and layout.data > 1 else least


def _layout(cells: Mapping[str, str], pool: str, devices: int, model: Model) -> Parallelism:
    """The layout of so many devices, those of its pipeline stages included where a pool states them."""
    context = parse_count(cells.get(f"{pool}dcp_size", "")) or 1
    stages = parse_count(cells.get(f"{pool}pp", "")) or 1
    if pool and devices % stages:
        raise Unmapped(f"{devices} devices are not {stages} stages of equal size")
    devices //= stages if pool else 1
    expert = parse_count(cells[f"{pool}ep"].partition(".")[0].strip()) or 1
    if _truth(cells[f"{pool}dp_attention"]):
        tensor = parse_count(cells[f"{pool}tp"].partition(".")[0].strip()) or 1
        if 1 < tensor < expert:  # groups of ranks, and experts over all of them
            return Parallelism(tensor=tensor, data=expert // tensor, expert=expert, pipeline=stages)
        devices = devices if pool else max(devices, expert)
        return Parallelism(data=devices, expert=devices if model.experts else 1, pipeline=stages)
    expert = expert if devices % expert == 0 and model.experts else 1
    return Parallelism(tensor=devices, expert=expert, pipeline=stages, context=context)


def _truth(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "1.0")


def count(cells: Mapping[str, str], name: str) -> int:
    """A count of a row, at least 1; raises Unmapped."""
    value = parse_number(cells[name].strip()) if cells[name].strip() else None
    if value is None or not 1 <= value < 1e6 or value != int(value):
        raise Unmapped(f"{name} is not stated")
    return int(value)


def positive(text: str) -> float | None:
    """A time or a rate above zero; None where the cell has none."""
    value = parse_number(text.strip()) if text.strip() else None
    return value if value is not None and 0 < value < 1e9 else None
