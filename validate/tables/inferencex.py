"""Rows of InferenceX runs as cases: one deployment, or pools of prefill and decode, at a number of requests in flight.

Columns state the layout: framework, hardware, model, checkpoint, precision, speculation, disaggregated, isl, osl,
concurrency, tp, ep, dp_attention, and of pools prefill_ and decode_ tp, ep, dp_attention, num_workers and gpus. Times
are seconds, mean or median. What the columns leave open is read from the benchmark's scripts
(SemiAnalysisAI/InferenceX, benchmarks/ and runners/):

* layout      With data-parallel attention every device of a worker is a rank of it, and the experts are divided among
              all; a worker is the pool's devices over its workers, also where its tp is written as 1.
* requests    Lengths from 0.8 to 1 of those written, ten requests for each in flight. Medians are taken where a row has
              both: kernels that compile for the first requests take up to 80 s, which means of TTFT contain.
* version     Of the image, else of the one that ran on the date. Dynamo's images have TensorRT-LLM inside.
* drafts      MTP has two draft tokens with SGLang; with TensorRT-LLM three, and one with data-parallel attention.
* throughput  Output tokens/s a GPU count the devices of decode where pools are apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Settings
from roofline.serving.load import Load
from roofline.serving.pools import Pools
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.techniques import apply_techniques
from roofline.validate.tables.harness import profile_of, scheduler_of
from roofline.validate.tables.names import Unmapped, find_hardware, find_model
from roofline.validate.tables.serving import (
    MTP_TECHNIQUES,
    RATIO,
    ROUNDS,
    ServingCase,
    find_profile,
    precision_in,
)
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

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "70b": "llama-3.3-70b",
        "dsr1": "deepseek-r1",
        "gptoss": "gpt-oss-120b",
        "dsv4": "deepseek-v4-pro",
        "glm5": "glm-5",
        "glm5.2": "glm-5.2",
        "kimik2.5": "kimi-k2.5",
        "kimik2.6": "kimi-k2.6",
        "kimik3": "kimi-k3",
        "minimaxm2.5": "minimax-m2.5",
        "minimaxm3": "minimax-m3",
        "qwen3.5": "qwen3.5-397b-a17b",
    }
)
"""Models by their short names in its configurations (nvidia-master.yaml, amd-master.yaml: model-prefix)."""

BACKENDS: Mapping[str, str] = MappingProxyType(
    {"trt": "trtllm", "trtllm": "trtllm", "sglang": "sglang", "vllm": "vllm"}
)
"""Backends by the part of a framework's name that is one (dynamo-trt, mori-sglang, sglang-disagg)."""

RAN: tuple[tuple[str, str, str], ...] = (
    ("trtllm", "2026-05-01", "1.3.0rc14"),
    ("trtllm", "2026-01-27", "1.2.0rc6.post2"),
    ("trtllm", "2025-01-01", "1.1.0rc2.post2"),
    ("sglang", "2026-05-01", "0.5.12"),
    ("sglang", "2026-03-01", "0.5.9"),
    ("sglang", "2026-01-27", "0.5.8"),
    ("sglang", "2025-12-10", "0.5.6"),
    ("sglang", "2025-01-01", "0.5.5"),
)
"""Backend, first date, and version of the images that ran then (perf-changelog.yaml and the runs that state both)."""

DYNAMO: Mapping[str, str] = MappingProxyType({"0.5": "1.1.0rc5", "0.8": "1.2.0rc6"})
"""TensorRT-LLM in the images of Dynamo's releases (ai-dynamo/dynamo, release notes)."""

SGLANG_MTP = "multi-token-prediction:length=2,acceptance=0.72"
"""speculative-num-steps in InferenceX's scripts of SGLang; the acceptance is between those of three drafts and one."""

_VERSION = re.compile(r"(?<![\d.])v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:rc|post)\d+)*)")


class Deployment(Struct, frozen=True):
    """What a row states: a model on hardware, the engine, formats of weights, and the layouts of its workers.

    `layout` is that of the deployment, or of a worker of prefill where `pools` are apart.
    """

    model: Model
    hardware: Hardware
    backend: str
    version: str
    modes: frozenset[str]
    layout: Parallelism
    pools: Pools | None = None
    mtp: bool = False

    @property
    def decoding(self) -> tuple[Parallelism, int]:
        """The layout of what decodes, and how many of it there are."""
        if self.pools is None or self.pools.parallel is None:
            return self.layout, 1
        return self.pools.parallel, self.pools.decodes

    def case(self, line: Line, prompt: int, output: int, concurrency: int) -> ServingCase:
        """The deployment under a number of requests in flight with lengths up to these, without times."""
        engine = find_profile(self.backend, self.version)
        if (
            engine == "sglang" and self.hardware.vendor == "AMD" and self.version
        ):  # elsewhere its profile is of no version
            engine = f"sglang@{self.version}"
        precision = precision_in(self.modes, self.model, self.hardware, engine)
        profile, parallel = profile_of(engine, precision, drawn=True), Settings(parallel=self.layout)
        scenario = Scenario(self.model, self.hardware, precision=precision, settings=parallel, engine=profile)
        if self.mtp:
            few = self.decoding[0].data > 1
            drafts = MTP_TECHNIQUES[few] if self.backend == "trtllm" else SGLANG_MTP
            scenario = apply_techniques(scenario, (drafts,))
        prompts, outputs = (f"uniform:{RATIO * tokens:.0f}:{tokens}" for tokens in (prompt, output))
        load = Load(prompts, outputs, concurrency=concurrency, rounds=ROUNDS)
        # Medians of TTFT say that no first token waits for further ones of its stream.
        scheduler = replace(scheduler_of(profile.scheduler, scenario, load, concurrency, self.version), stream=1)
        scenario = scenario.changed(engine=replace(profile, scheduler=scheduler))
        return ServingCase(line, scenario, load, scheduler, None, None, pools=self.pools)


def to_case(line: Line) -> ServingCase:
    """A row as a deployment under a load; raises RooflineError, mostly Unmapped, with the reason where it cannot be."""
    cells = line.cells
    model, hardware = _model(cells), find_hardware(cells["hardware"]).hardware
    drafts = cells["speculation"].strip().lower()
    if drafts not in ("", "none", "mtp"):
        raise Unmapped("drafts other than MTP are stated without their number")
    if _truth(cells["disaggregated"]):
        layout, prefills = _worker(cells, "prefill_", model)
        parallel, decodes = _worker(cells, "decode_", model)
        pools = Pools(prefills, decodes, parallel=parallel)
    else:
        layout, pools = _layout(cells, "", count(cells, "tp"), model), None
    backend = _backend(cells["framework"])
    asked = Deployment(
        model,
        hardware,
        backend,
        _version(backend, cells.get("image", ""), cells.get("date", "")),
        frozenset({cells["precision"].strip().lower()}),
        layout,
        pools,
        drafts == "mtp",
    )
    case = asked.case(line, count(cells, "isl"), count(cells, "osl"), count(cells, "concurrency"))
    median = positive(cells["median_tpot"]) is not None
    statistic = "median" if median else "mean"
    ttft, tpot, e2e = (positive(cells[f"{statistic}_{metric}"]) for metric in ("ttft", "tpot", "e2el"))
    rate, (decoding, decoders) = positive(cells["output_tokens_per_s_per_gpu"]), asked.decoding
    throughput = 1 / (rate * decoding.devices * decoders) if rate else None
    return replace(case, ttft=ttft, tpot=tpot, e2e=e2e, throughput=throughput, median=median)


def _model(cells: Mapping[str, str]) -> Model:
    """The model of a row, by the short name of its configuration, else by its checkpoint; raises Unmapped."""
    short = cells["model"].strip().lower()
    return find_model(MODELS.get(short) or cells["checkpoint"].strip() or short)


def _backend(framework: str) -> str:
    parts = framework.strip().lower().split("-")
    found = next((BACKENDS[part] for part in parts if part in BACKENDS), None)
    if found is None:
        raise Unmapped(f"no engine profile is for {framework.strip()[:40]!r}")
    return found


def _version(backend: str, image: str, date: str) -> str:
    """The version in the tag of a container image, else that of the date; "" where the row states neither."""
    found = _VERSION.search(image.rsplit(":", 1)[-1])
    if found is None:
        return next((version for name, first, version in RAN if name == backend and date.strip() >= first), "")
    release = ".".join(found[1].split(".")[:2])
    return DYNAMO.get(release, found[1]) if backend == "trtllm" else found[1]


def _worker(cells: Mapping[str, str], pool: str, model: Model) -> tuple[Parallelism, int]:
    """The layout of a worker of a pool, and the number of workers; raises Unmapped."""
    workers, devices = count(cells, f"{pool}num_workers"), count(cells, f"{pool}gpus")
    if devices % workers:
        raise Unmapped(f"the {devices} devices of a pool are not those of {workers} equal workers")
    return _layout(cells, pool, devices // workers, model), workers


def _layout(cells: Mapping[str, str], pool: str, devices: int, model: Model) -> Parallelism:
    expert = parse_count(cells[f"{pool}ep"].partition(".")[0].strip()) or 1
    if _truth(cells[f"{pool}dp_attention"]):
        return Parallelism(data=devices, expert=devices if model.experts else 1)
    return Parallelism(tensor=devices, expert=expert if devices % expert == 0 and model.experts else 1)


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
