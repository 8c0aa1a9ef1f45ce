"""The fit of schedulers to serving benchmarks."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from lab.fit import serving as fitting
from lab.score.serving import Predictor
from lab.tables.closed_loop import to_case
from roofline.validate.tables.text import Line
from tests.lab.test_closed_loop import line


def test_a_fit_finds_the_parameters_that_made_its_times() -> None:
    made = {"latency": 0.03, "request": 2e-3, "prompt_token": 1e-6, "dispatch": 40e-6, "step": 1e-3, "sequence": 20e-6}
    sizes = [(count, tokens) for count in (1, 2, 4, 8, 16, 32, 64) for tokens in (256, 1024, 2048)]
    rows = [line(concurrency=count, batch_size=count, osl=128, isl=tokens) for count, tokens in sizes]
    cases = [to_case(Line(number, row.file, row.cells)) for number, row in enumerate(rows)]
    logs, labels, _ = fitting.logarithms(cases, {"vllm": made}, Predictor())
    times = {
        (id(case), metric): getattr(case, metric) * float(np.exp(value))
        for value, (case, metric) in zip(logs, labels, strict=True)
    }
    truth = [replace(case, ttft=times[id(case), "ttft"], tpot=times[id(case), "tpot"]) for case in cases]
    values, found = fitting.fitted(truth)
    assert np.abs(found.value).mean() < 0.05
    assert values["vllm"]["latency"] == pytest.approx(0.03, rel=0.3)
    assert "all" in "\n".join(fitting.report(found))
