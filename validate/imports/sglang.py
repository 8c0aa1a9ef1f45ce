"""`python -m sglang.bench_serving`: the JSONL of --output-file, one run a line.

Fields: https://docs.sglang.ai/developer_guide/bench_serving.html and python/sglang/bench_serving.py of its repository.
Recent versions add what the server says of itself under `server_info`.
"""

from __future__ import annotations

from roofline.core.errors import SpecError
from roofline.validate.imports.fields import Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.loads import benchmark_load

ENGINES = {"sglang": "SGLang", "sglang-native": "SGLang", "sglang-oai": "SGLang", "sglang-oai-chat": "SGLang"}
ENGINES |= {"vllm": "vLLM", "vllm-chat": "vLLM", "trt": "TensorRT-LLM", "lmdeploy": "LMDeploy"}


def run(fields: Fields) -> Result:
    """A run of `sglang.bench_serving`."""
    completed = fields.count("completed")
    if completed is None:
        raise SpecError(fields.where, "'completed': no request succeeded")
    engine = ENGINES.get(fields.text("backend"), "")
    return Result(
        "sglang.bench_serving",
        {
            "ttft_mean": fields.number("mean_ttft_ms"),
            "tpot_mean": fields.number("mean_tpot_ms"),
            "e2e_mean": fields.number("mean_e2e_latency_ms"),
            "output_throughput_total": fields.number("output_throughput"),
        },
        model=fields.text("server_info.model_path", "model"),
        engine=f"{engine} {fields.text('server_info.version')}".rstrip(),
        gpus=fields.count("server_info.tp_size"),
        batch=benchmark_load(fields.rate("request_rate"), fields.count("max_concurrency"), completed),
        prompt=fields.mean("total_input_tokens", "completed"),
        output=fields.mean("total_output_tokens", "completed"),
    )
