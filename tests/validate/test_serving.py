"""Serving benchmarks: rows under a load, and scores."""

import pytest

from roofline.core.errors import SpecError
from roofline.validate.score.serving import Predictor, read_cases, rows_of, summarise


def test_a_file_of_something_else_is_refused(tmp_path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SpecError, match="lacks the columns"):
        read_cases(path)


def test_benchmarks_at_a_rate(tmp_path) -> None:
    path = tmp_path / "open.csv"
    header = "model,hardware,gpus,engine,weights,kv,batch,input_len,output_len,metric,value,unit,source\n"
    row = "llama-3.1-8b,h100-sxm,1,TensorRT-LLM v0.14,bf16,bf16,open loop 2 req/s; x,467,256"
    path.write_text(f"{header}{row},ttft_mean,40,ms,s\n{row},itl_mean,8,ms,s\n{row},total_throughput,9,tok/s,s\n")
    (case,), _ = read_cases(path)
    assert (case.load.rate, case.ttft, case.tpot) == (2.0, 0.04, 0.008)
    outcome = Predictor()(case)
    (ttft, tpot) = summarise(rows_of([(case, outcome)]), ("metric",))
    assert ttft.mape < 1
    assert tpot.mape < 1
