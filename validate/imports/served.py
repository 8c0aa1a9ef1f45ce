"""Results of load generators and of MLPerf's as means over requests; each reader says where its fields are described.

vLLM's `latency` and `throughput` state neither model nor lengths. AIPerf and its predecessor GenAI-Perf name the unit
of each metric, and hold the options of the run in the nesting of their version. MLPerf's summary states neither model,
engine nor lengths: the benchmark of the submission does.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.validate.imports.fields import Content, Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.serving import benchmark_load

ENGINES = {"vllm": "vLLM", "openai": "vLLM", "openai-chat": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}
"""The engine by the endpoint type of vLLM's client; servers with an OpenAI endpoint are vLLM itself by default."""

SGLANG_ENGINES = {
    **dict.fromkeys(("sglang", "sglang-native", "sglang-oai", "sglang-oai-chat"), "SGLang"),
    "vllm": "vLLM",
    "vllm-chat": "vLLM",
    "trt": "TensorRT-LLM",
    "lmdeploy": "LMDeploy",
}
"""The engine by the backend of SGLang's client."""

ALGORITHMS = {"NVFP4": "nvfp4", "FP8": "fp8", "FP8_BLOCK_SCALES": "fp8_block", "W4A16_AWQ": "awq", "W4A16_GPTQ": "gptq"}
"""Schemes by TensorRT-LLM's names; others are as released."""

OPTIONS = {
    "model": ("endpoint.model_names", "model_names", "model", "models.items.name", "models"),
    "concurrency": (
        *("loadgen.concurrency", "concurrency", "perf_analyzer.stimulus.concurrency"),
        "phases.profiling.concurrency",
    ),
    "rate": ("loadgen.request_rate", "request_rate", "perf_analyzer.stimulus.request_rate", "phases.profiling.rate"),
}
"""Where AIPerf's `input_config` has an option of the run, by its versions."""


def _means(*figures: float | None) -> dict[str, float | None]:
    """Means of TTFT, TPOT and E2E latency in milliseconds, and the output tokens/s of all requests."""
    return dict(zip(("ttft_mean", "tpot_mean", "e2e_mean", "output_throughput_total"), figures, strict=True))


def _completed(fields: Fields) -> int:
    if (completed := fields.count("completed")) is None:
        raise SpecError(fields.where, "'completed': no request succeeded")
    return completed


def vllm_serve(fields: Fields) -> Result:
    """`vllm bench serve --save-result` (https://docs.vllm.ai/en/latest/benchmarking/cli/ and vllm/benchmarks/)."""
    completed = _completed(fields)
    names = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput")
    return Result(
        "vllm bench serve",
        _means(*map(fields.number, names)),
        model=fields.text("model_id"),
        engine=ENGINES.get(fields.text("backend", "endpoint_type"), ""),
        batch=benchmark_load(fields.rate("request_rate"), fields.count("max_concurrency"), completed),
        prompt=fields.mean("total_input_tokens", "completed"),
        output=fields.mean("total_output_tokens", "completed"),
    )


def vllm_embeddings(fields: Fields) -> Result:
    """`vllm bench serve --backend openai-embeddings`, whose requests have one answer, of no tokens."""
    requests = fields.number("request_throughput")
    return replace(vllm_serve(fields), output=1.0, engine="vLLM", requests_per_s=requests)


def vllm_latency(fields: Fields) -> Result:
    """`vllm bench latency --output-json`: a static batch, of which the median is the figure."""
    seconds = fields.number("percentiles.50", "avg_latency")
    return Result("vllm bench latency", {"batch_latency": seconds and 1e3 * seconds}, engine="vLLM")


def vllm_throughput(fields: Fields) -> Result:
    """`vllm bench throughput --output-json`: all at once. Its tokens/s are of prompts and outputs together."""
    return Result(
        "vllm bench throughput",
        {},
        engine="vLLM",
        requests_per_s=fields.number("requests_per_second"),
        batch=benchmark_load(None, None, fields.count("num_requests")),
    )


def sglang(fields: Fields) -> Result:
    """A line of `python -m sglang.bench_serving --output-file` (python/sglang/bench_serving.py of its repository).

    Recent versions add what the server says of itself under `server_info`.
    """
    completed, engine = _completed(fields), SGLANG_ENGINES.get(fields.text("backend"), "")
    names = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2e_latency_ms", "output_throughput")
    return Result(
        "sglang.bench_serving",
        _means(*map(fields.number, names)),
        model=fields.text("server_info.model_path", "model"),
        engine=f"{engine} {fields.text('server_info.version')}".rstrip(),
        gpus=fields.count("server_info.tp_size"),
        batch=benchmark_load(fields.rate("request_rate"), fields.count("max_concurrency"), completed),
        prompt=fields.mean("total_input_tokens", "completed"),
        output=fields.mean("total_output_tokens", "completed"),
    )


def trtllm(fields: Fields) -> Result:
    """`trtllm-bench --report_json` (tensorrt_llm/bench/dataclasses/reporting.py of its repository).

    All requests are sent at once unless a concurrency is set, which the report does not state: --batch 'closed loop 64'
    gives it.
    """
    names = (
        *("streaming_metrics.avg_ttft_ms", "streaming_metrics.avg_tpot_ms", "performance.avg_request_latency_ms"),
        "performance.system_output_throughput_tok_s",
    )
    return Result(
        "trtllm-bench",
        _means(*map(fields.number, names)),
        model=fields.text("engine.model"),
        engine=f"TensorRT-LLM {fields.text('engine.version')}",
        hardware=fields.text("machine.name"),
        gpus=fields.count("world_info.world_size"),
        weights=ALGORITHMS.get(fields.text("engine.quantization"), ""),
        kv={"FP8": "fp8", "NVFP4": "nvfp4"}.get(fields.text("engine.kv_cache_dtype"), ""),
        batch=benchmark_load(None, None, fields.count("request_info.num_requests")),
        prompt=fields.number("request_info.avg_input_length"),
        output=fields.number("request_info.avg_output_length"),
    )


def aiperf(fields: Fields) -> Result:
    """profile_export_aiperf.json (https://docs.nvidia.com/aiperf/reference/json-export-schema), or GenAI-Perf's."""
    places = {name: [f"input_config.{path}" for path in paths] for name, paths in OPTIONS.items()}
    concurrency, rate = fields.number(*places["concurrency"]), fields.number(*places["rate"])
    requests = fields.count("request_count.avg")
    batch = ""
    if concurrency or rate:
        batch = benchmark_load(rate, int(concurrency) if concurrency else None, requests)
    times = (_milliseconds(fields, name) for name in ("time_to_first_token", "inter_token_latency", "request_latency"))
    return Result(
        "AIPerf" if fields.has("aiperf_version") else "GenAI-Perf",
        _means(*times, fields.number("output_token_throughput.avg")),
        model=fields.text(*places["model"]),
        batch=batch,
        prompt=fields.number("input_sequence_length.avg"),
        output=fields.number("output_sequence_length.avg"),
    )


def _milliseconds(fields: Fields, metric: str) -> float | None:
    number, unit = fields.number(f"{metric}.avg"), fields.text(f"{metric}.unit")
    if number is None:
        return None
    try:
        return 1e3 * number * parse_quantity(f"1 {unit}", Dimension.TIME).value
    except RooflineError:
        raise SpecError(fields.where, f"'{metric}.unit' must be a unit of time, got {quote(unit)}") from None


def guidellm(fields: Fields) -> list[Result]:
    """The benchmarks.json of `guidellm benchmark`, with a benchmark for each load; means over successful requests.

    Fields: https://github.com/vllm-project/guidellm, docs/guides/outputs.md and src/guidellm/benchmark/schemas/.
    """
    entries = fields.value("benchmarks")[1]
    parts = [
        fields.within(entry) for entry in (entries if isinstance(entries, list) else []) if isinstance(entry, dict)
    ]
    if not parts or not all(part.has("metrics.time_to_first_token_ms", "metrics.request_latency") for part in parts):
        raise SpecError(fields.where, "'benchmarks' must be benchmarks of GuideLLM, with their metrics")
    return [_guidellm_benchmark(part) for part in parts]


def _guidellm_benchmark(fields: Fields) -> Result:
    def mean(metric: str) -> float | None:
        return fields.number(f"metrics.{metric}.successful.mean")

    latency = mean("request_latency")
    # Its time_per_output_token counts the first token, too.
    times = mean("time_to_first_token_ms"), mean("inter_token_latency_ms"), latency and 1e3 * latency
    return Result(
        "GuideLLM",
        _means(*times, mean("output_tokens_per_second")),
        model=fields.text("config.backend.model", "benchmarker.backend.model", "worker.backend_model"),
        batch=_guidellm_load(fields),
        prompt=mean("prompt_token_count"),
        output=mean("output_token_count"),
    )


def _guidellm_load(fields: Fields) -> str:
    """The load of a strategy: synchronous, concurrent, throughput, or a rate."""

    def paths(name: str) -> tuple[str, ...]:
        return tuple(f"{path}.strategy.{name}" for path in ("config", "scheduler", "args"))

    kind, requests = fields.text(*paths("type_")), fields.count("metrics.request_totals.successful")
    match kind:
        case "synchronous":
            return benchmark_load(None, 1, requests)
        case "concurrent":
            return benchmark_load(None, fields.count(*paths("streams")), requests)
        case "throughput":
            return benchmark_load(None, fields.count(*paths("max_concurrency")), requests)
        case "poisson" | "constant" | "async":
            return benchmark_load(fields.number(*paths("rate")), None, requests)
    raise SpecError(fields.where, f"'config.strategy.type_': {quote(kind)} is no load that is known")


_LINE = re.compile(r"^([^:=\n]{1,80}?)\s*:\s*(.{0,200})$", re.MULTILINE)


def mlperf(content: Content) -> Result:
    """mlperf_log_summary.txt of the Offline or the Server scenario; a run that is not valid is an error.

    Fields: https://docs.mlcommons.org/inference/ and loadgen/results.cc of its repository.
    """
    fields = Fields({name.strip(): value.strip() for name, value in _LINE.findall(content.text)}, content.where)
    scenario, valid = fields.text("Scenario"), fields.text("Result is")
    if valid != "VALID":
        raise SpecError(content.where, f"'Result is' must be VALID, got {quote(valid)}")
    match scenario:
        case "Offline":
            batch, latency = benchmark_load(None, None, None), None
        case "Server":
            batch = benchmark_load(fields.number("Scheduled samples per second", "target_qps"), None, None)
            latency = fields.number("Mean latency (ns)")
        case _:
            raise SpecError(content.where, f"'Scenario' must be Offline or Server, got {quote(scenario)}")
    times = (*map(fields.number, ("Mean First Token latency (ns)", "Mean Time to Output Token (ns)")), latency)
    tokens = fields.number("Tokens per second", "Completed tokens per second")
    requests = fields.number("Samples per second", "Completed samples per second", "Scheduled samples per second")
    means = _means(*(time and 1e-6 * time for time in times), tokens)
    return Result(f"MLPerf {scenario}", means, batch=batch, requests_per_s=None if tokens else requests)
