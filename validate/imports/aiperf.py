"""AIPerf and its predecessor GenAI-Perf: profile_export_aiperf.json and profile_export_genai_perf.json.

Fields: https://docs.nvidia.com/aiperf/reference/json-export-schema and the GenAI-Perf pages of Triton's documentation.
Each metric has its own unit. `input_config` holds the options of the run in the nesting of the tool's version.
"""

from __future__ import annotations

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.validate.imports.fields import Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.loads import benchmark_load

OPTIONS = {
    "model": ("endpoint.model_names", "model_names", "model", "models.items.name", "models"),
    "concurrency": (
        *("loadgen.concurrency", "concurrency", "perf_analyzer.stimulus.concurrency"),
        "phases.profiling.concurrency",
    ),
    "rate": ("loadgen.request_rate", "request_rate", "perf_analyzer.stimulus.request_rate", "phases.profiling.rate"),
}
"""Where `input_config` has an option of the run, by the versions of the tools."""


def profile(fields: Fields) -> Result:
    """An export of AIPerf or GenAI-Perf: means over the requests."""
    places = {name: [f"input_config.{path}" for path in paths] for name, paths in OPTIONS.items()}
    concurrency, rate = fields.number(*places["concurrency"]), fields.number(*places["rate"])
    requests = fields.count("request_count.avg")
    batch = ""
    if concurrency or rate:
        batch = benchmark_load(rate, int(concurrency) if concurrency else None, requests)
    return Result(
        "AIPerf" if fields.has("aiperf_version") else "GenAI-Perf",
        {
            "ttft_mean": _milliseconds(fields, "time_to_first_token"),
            "tpot_mean": _milliseconds(fields, "inter_token_latency"),
            "e2e_mean": _milliseconds(fields, "request_latency"),
            "output_throughput_total": fields.number("output_token_throughput.avg"),
        },
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
