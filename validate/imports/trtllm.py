"""`trtllm-bench throughput` and `latency`: the JSON of --report_json.

Fields: https://nvidia.github.io/TensorRT-LLM/commands/trtllm-bench.html and
tensorrt_llm/bench/dataclasses/reporting.py of its repository. All requests are sent at once unless a concurrency is
set, which the report does not state: --batch 'closed loop 64' gives it.
"""

from __future__ import annotations

from roofline.validate.imports.fields import Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.loads import benchmark_load

ALGORITHMS = {"NVFP4": "nvfp4", "FP8": "fp8", "FP8_BLOCK_SCALES": "fp8_block", "W4A16_AWQ": "awq", "W4A16_GPTQ": "gptq"}
"""Schemes by TensorRT-LLM's names; others are as released."""


def report(fields: Fields) -> Result:
    """A report of `trtllm-bench`."""
    return Result(
        "trtllm-bench",
        {
            "ttft_mean": fields.number("streaming_metrics.avg_ttft_ms"),
            "tpot_mean": fields.number("streaming_metrics.avg_tpot_ms"),
            "e2e_mean": fields.number("performance.avg_request_latency_ms"),
            "output_throughput_total": fields.number("performance.system_output_throughput_tok_s"),
        },
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
