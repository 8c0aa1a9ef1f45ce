"""Results of static batches: `llama-bench -o json`, `jsonl` or `csv`, and the tables of TGI's benchmark.

llama-bench (https://github.com/ggml-org/llama.cpp, tools/llama-bench/README.md): a generation runs on `n_depth` tokens
of context. The model is recognised by its file's name, and the file type by the type's text.
`text-generation-benchmark` of TGI (https://github.com/huggingface/text-generation-inference, benchmark/README.md)
prints Markdown when it ends: its parameters state model and lengths, the latency table the average of prefill and
decode for each batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.validate.imports.fields import Content, Fields
from roofline.validate.imports.result import Result

FILE_TYPE = re.compile(r"(?:I?Q\d_?\w*|F16|BF16|F32|MXFP4\w*)", re.IGNORECASE)
_MIX = re.compile(r"\b(I?Q\d)_K - (Small|Medium|Large)\b", re.IGNORECASE)


def llama_bench(fields: Fields) -> Result:
    """A test of `llama-bench`: tokens/s of a prompt, of a generation, or of a prompt and a generation together."""
    prompt, generated = fields.count("n_prompt"), fields.count("n_gen")
    depth, rate = fields.count("n_depth"), fields.number("avg_ts")
    if prompt and generated:
        seconds = (prompt + generated) / rate if rate else None
        figures = {"batch_latency": seconds and 1e3 * seconds}
    elif prompt:
        if depth:
            return Result("llama-bench", {}, left_out="a prompt behind cached tokens (n_depth)")
        figures = {"prefill_throughput": rate}
    else:
        figures = {"decode_throughput": rate}
    on_gpu = fields.text("n_gpu_layers") != "0" and fields.text("backends") != "CPU"
    return Result(
        "llama-bench",
        figures,
        model=_model_of(fields.text("model_filename")),
        engine=f"llama.cpp b{fields.text('build_number')}",
        hardware=fields.text("gpu_info" if on_gpu else "cpu_info").split(",")[0],
        gpus=1,
        weights=_file_type(fields.text("model_type")),
        kv="" if fields.text("type_k") in ("f16", "f32", "bf16") else fields.text("type_k"),
        batch="1",
        prompt=float(prompt or depth or 0) or None,
        output=float(generated) if generated else None,
    )


def _model_of(filename: str) -> str:
    """The name of a GGUF file without its folder, file type and part."""
    name = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", filename.replace("\\", "/").rsplit("/", 1)[-1], flags=re.IGNORECASE)
    return re.sub(rf"[-._]{FILE_TYPE.pattern}$", "", name, flags=re.IGNORECASE)


def _file_type(text: str) -> str:
    """The scheme in a model type: `llama 7B Q4_K - Medium` is q4_k_m."""
    if found := _MIX.search(text):
        return f"{found[1]}_k_{found[2][0]}".lower()
    words = [word for word in text.split() if FILE_TYPE.fullmatch(word)]
    return words[-1].lower() if words else ""


METRICS = {"Prefill": "ttft", "Decode (token)": "tpot", "Decode (total)": None}


def tgi(content: Content) -> Iterator[Result]:
    """The latencies of TGI's benchmark, one result a batch and step."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in content.text.splitlines()]
    parameters = {row[0]: row[1] for row in rows if len(row) == 2}
    lengths = [_count(parameters, name, content.where) for name in ("Sequence Length", "Decode Length")]
    step = ""
    for row in rows:
        if len(row) != 8 or not row[1].isdigit():
            continue
        step = row[0] or step  # cells of a column that repeat are merged
        metric = METRICS.get(step)
        if metric is not None:
            yield Result(
                "TGI benchmark",
                {metric: _milliseconds(row[2], content.where)},
                model=parameters.get("Model", ""),
                engine="TGI",
                batch=row[1],
                prompt=float(lengths[0]),
                output=float(lengths[1]),
            )


def _count(parameters: dict[str, str], name: str, where: str) -> int:
    text = parameters.get(name, "")
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise SpecError(where, f"{quote(name)} must be a number of tokens, got {quote(text)}")
    return int(text)


def _milliseconds(text: str, where: str) -> float:
    try:
        return 1e3 * parse_quantity(text, Dimension.TIME).value
    except RooflineError:
        raise SpecError(where, f"'Average' must be a time such as 12.34 ms, got {quote(text)}") from None
