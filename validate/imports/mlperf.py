"""MLPerf Inference: the mlperf_log_summary.txt of its load generator, with token latencies or without.

Fields: https://docs.mlcommons.org/inference/ and loadgen/results.cc of its repository. A summary states neither model,
engine nor lengths: the benchmark of the submission does.
"""

from __future__ import annotations

import re

from roofline.core.errors import SpecError, quote
from roofline.validate.imports.fields import Content, Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.loads import benchmark_load

_LINE = re.compile(r"^([^:=\n]{1,80}?)\s*:\s*(.{0,200})$", re.MULTILINE)


def summary(content: Content) -> Result:
    """A summary of the Offline or the Server scenario; a run that is not valid is an error."""
    fields = Fields({name.strip(): value.strip() for name, value in _LINE.findall(content.text)}, content.where)
    scenario, valid = fields.text("Scenario"), fields.text("Result is")
    if valid != "VALID":
        raise SpecError(content.where, f"'Result is' must be VALID, got {quote(valid)}")
    figures = {
        "ttft_mean": fields.number("Mean First Token latency (ns)"),
        "tpot_mean": fields.number("Mean Time to Output Token (ns)"),
        "e2e_mean": fields.number("Mean latency (ns)") if scenario == "Server" else None,
    }
    milliseconds = {name: value and 1e-6 * value for name, value in figures.items()}
    tokens = fields.number("Tokens per second", "Completed tokens per second")
    requests = fields.number("Samples per second", "Completed samples per second", "Scheduled samples per second")
    match scenario:
        case "Offline":
            batch = benchmark_load(None, None, None)
        case "Server":
            batch = benchmark_load(fields.number("Scheduled samples per second", "target_qps"), None, None)
        case _:
            raise SpecError(content.where, f"'Scenario' must be Offline or Server, got {quote(scenario)}")
    return Result(
        f"MLPerf {scenario}",
        {**milliseconds, "output_throughput_total": tokens},
        batch=batch,
        requests_per_s=None if tokens else requests,
    )
