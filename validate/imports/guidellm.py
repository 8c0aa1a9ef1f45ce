"""GuideLLM: the benchmarks.json of `guidellm benchmark`, which holds a benchmark for each load.

Fields: https://github.com/vllm-project/guidellm, docs/guides/outputs.md and src/guidellm/benchmark/schemas/.
"""

from __future__ import annotations

from roofline.core.errors import SpecError, quote
from roofline.validate.imports.fields import Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.loads import benchmark_load


def report(fields: Fields) -> list[Result]:
    """The benchmarks of a report of GuideLLM; means over the successful requests."""
    entries = fields.value("benchmarks")[1]
    parts = [
        fields.within(entry) for entry in (entries if isinstance(entries, list) else []) if isinstance(entry, dict)
    ]
    if not parts or not all(part.has("metrics.time_to_first_token_ms", "metrics.request_latency") for part in parts):
        raise SpecError(fields.where, "'benchmarks' must be benchmarks of GuideLLM, with their metrics")
    return [_result(part) for part in parts]


def _result(fields: Fields) -> Result:
    def mean(metric: str) -> float | None:
        return fields.number(f"metrics.{metric}.successful.mean")

    latency = mean("request_latency")
    return Result(
        "GuideLLM",
        {
            "ttft_mean": mean("time_to_first_token_ms"),
            "tpot_mean": mean("inter_token_latency_ms"),  # its time_per_output_token counts the first token, too
            "e2e_mean": latency and 1e3 * latency,
            "output_throughput_total": mean("output_tokens_per_second"),
        },
        model=fields.text("config.backend.model", "benchmarker.backend.model", "worker.backend_model"),
        batch=_load(fields),
        prompt=mean("prompt_token_count"),
        output=mean("output_token_count"),
    )


def _load(fields: Fields) -> str:
    """The load of a strategy: synchronous, concurrent, throughput, or a rate."""
    paths = ("config.strategy", "scheduler.strategy", "args.strategy")
    kind = fields.text(*(f"{path}.type_" for path in paths))
    requests = fields.count("metrics.request_totals.successful")
    match kind:
        case "synchronous":
            return benchmark_load(None, 1, requests)
        case "concurrent":
            return benchmark_load(None, fields.count(*(f"{path}.streams" for path in paths)), requests)
        case "throughput":
            return benchmark_load(None, fields.count(*(f"{path}.max_concurrency" for path in paths)), requests)
        case "poisson" | "constant" | "async":
            return benchmark_load(fields.number(*(f"{path}.rate" for path in paths)), None, requests)
    raise SpecError(fields.where, f"'config.strategy.type_': {quote(kind)} is no load that is known")
