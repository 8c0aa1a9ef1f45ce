"""`vllm bench serve`, `latency` and `throughput`: the files of --save-result and --output-json.

Fields: https://docs.vllm.ai/en/latest/benchmarking/cli/ and vllm/benchmarks/ of its repository. Files of `latency` and
`throughput` state neither model nor lengths. A load with both a rate and a limit of requests in flight has no model.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core.errors import SpecError
from roofline.validate.imports.fields import Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.loads import benchmark_load

ENGINES = {"vllm": "vLLM", "openai": "vLLM", "openai-chat": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}
"""The engine by the endpoint type that the client used; servers with an OpenAI endpoint are vLLM itself by default."""


def serve(fields: Fields) -> Result:
    """A document of `vllm bench serve`."""
    completed = fields.count("completed")
    if completed is None:
        raise SpecError(fields.where, "'completed': no request succeeded")
    return Result(
        "vllm bench serve",
        {
            "ttft_mean": fields.number("mean_ttft_ms"),
            "tpot_mean": fields.number("mean_tpot_ms"),
            "e2e_mean": fields.number("mean_e2el_ms"),
            "output_throughput_total": fields.number("output_throughput"),
        },
        model=fields.text("model_id"),
        engine=ENGINES.get(fields.text("backend", "endpoint_type"), ""),
        batch=benchmark_load(fields.rate("request_rate"), fields.count("max_concurrency"), completed),
        prompt=fields.mean("total_input_tokens", "completed"),
        output=fields.mean("total_output_tokens", "completed"),
    )


def embeddings(fields: Fields) -> Result:
    """A document of `vllm bench serve --backend openai-embeddings`, whose requests have one answer, of no tokens."""
    found = serve(fields)
    return replace(found, output=1.0, engine="vLLM", requests_per_s=fields.number("request_throughput"))


def latency(fields: Fields) -> Result:
    """A document of `vllm bench latency`: a static batch, of which the median is the figure."""
    seconds = fields.number("percentiles.50", "avg_latency")
    return Result("vllm bench latency", {"batch_latency": seconds and 1e3 * seconds}, engine="vLLM")


def throughput(fields: Fields) -> Result:
    """A document of `vllm bench throughput`: all requests at once. Its tokens/s are of prompts and outputs together."""
    return Result(
        "vllm bench throughput",
        {},
        engine="vLLM",
        requests_per_s=fields.number("requests_per_second"),
        batch=benchmark_load(None, None, fields.count("num_requests")),
    )
