"""Results of each tool: means over requests, most by their fields in formats.yaml, and static batches.

MLPerf's summary states neither model, engine nor lengths: the benchmark of the submission does. llama-bench (`-o json`,
`jsonl` or `csv`; https://github.com/ggml-org/llama.cpp, tools/llama-bench/README.md): a generation runs on `n_depth`
tokens of context. The model is recognised by its file's name, and the file type by the type's text.
`text-generation-benchmark` of TGI (https://github.com/huggingface/text-generation-inference, benchmark/README.md)
prints Markdown when it ends: its parameters state model and lengths, the latency table the average of prefill and
decode for each batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, field

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.records import bundled_record
from roofline.validate.imports.fields import Content, Fields
from roofline.validate.imports.result import Result
from roofline.validate.tables.serving import benchmark_load

Paths = tuple[str, ...]
"""Places of a field in a document, of which the first with a value is read; none of what a format does not state."""


class Named(Struct, frozen=True):
    """A text: a `name`, or that of `names` for the text of a field, with the version of another field."""

    name: str = ""
    by: Paths = ()
    names: dict[str, str] = field(default_factory=dict)
    version: Paths = ()

    def of(self, fields: Fields) -> str:
        """The text of a document; empty for what it does not name."""
        name = self.names.get(fields.text(*self.by), "") if self.by else self.name
        return f"{name} {fields.text(*self.version)}".rstrip()


class Format(Struct, frozen=True):
    """The fields of a tool's documents, as formats.yaml describes them."""

    tool: str
    marks: Paths
    figures: dict[str, str | Paths] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    some: str = ""
    model: Paths = ()
    engine: Named = Named()
    hardware: Paths = ()
    gpus: Paths = ()
    weights: Named = Named()
    kv: Named = Named()
    within: str = ""
    needs: Paths = ()
    strategy: Paths = ()
    strategies: dict[str, Literal["single", "concurrency", "rate"]] = field(default_factory=dict)
    loop: bool = False
    rate: Paths = ()
    concurrency: Paths = ()
    requests: Paths = ()
    prompt: Paths = ()
    output: Paths = ()
    one_output: bool = False
    per: str = ""
    requests_per_s: Paths = ()

    def read(self, fields: Fields) -> list[Result]:
        """The results of a document; raises SpecError for one without successful requests, or with other parts."""
        if not self.within:
            return [self._result(fields)]
        entries = fields.value(self.within)[1]
        parts = [
            fields.within(each) for each in (entries if isinstance(entries, list) else []) if isinstance(each, dict)
        ]
        if not parts or not all(part.has(*self.needs) for part in parts):
            raise SpecError(fields.where, f"{quote(self.within)} must be benchmarks of {self.tool}, with their metrics")
        return [self._result(part) for part in parts]

    def _result(self, fields: Fields) -> Result:
        if self.some and fields.count(self.some) is None:
            raise SpecError(fields.where, f"{quote(self.some)}: no request succeeded")
        return Result(
            next((name for mark, name in self.renamed.items() if fields.has(mark)), self.tool),
            {metric: self._figure(fields, metric) for metric in self.figures},
            model=fields.text(*self.model),
            engine=self.engine.of(fields),
            hardware=fields.text(*self.hardware),
            gpus=fields.count(*self.gpus),
            weights=self.weights.of(fields),
            kv=self.kv.of(fields),
            batch=self._load(fields),
            prompt=self._tokens(fields, self.prompt),
            output=1.0 if self.one_output else self._tokens(fields, self.output),
            requests_per_s=fields.number(*self.requests_per_s),
        )

    def _figure(self, fields: Fields, metric: str) -> float | None:
        """A time in milliseconds, or a rate."""
        paths, unit = self.figures[metric], self.units.get(metric)
        number = fields.number(*((paths,) if isinstance(paths, str) else paths))
        if number is None or unit is None:
            return number
        text = fields.text(unit) if "." in unit else unit
        try:
            return 1e3 * number * parse_quantity(f"1 {text}", Dimension.TIME).value
        except RooflineError:
            raise SpecError(fields.where, f"'{unit}' must be a unit of time, got {quote(text)}") from None

    def _load(self, fields: Fields) -> str:
        """The load as the text of a row; empty where it is not stated."""
        rate, concurrency = fields.rate(*self.rate), fields.count(*self.concurrency)
        if self.strategy:
            kind = fields.text(*self.strategy)
            if kind not in self.strategies:
                raise SpecError(fields.where, f"{quote(self.strategy[0])}: {quote(kind)} is no load that is known")
            known = self.strategies[kind]
            rate = rate if known == "rate" else None
            concurrency = {"single": 1, "concurrency": concurrency}.get(known)
        if not self.requests or (self.loop and not (rate or concurrency)):
            return ""
        return benchmark_load(rate, concurrency, fields.count(*self.requests))

    def _tokens(self, fields: Fields, paths: Paths) -> float | None:
        """Mean tokens of a request."""
        number = fields.number(*paths)
        if not self.per or number is None:
            return number
        requests = fields.number(self.per)
        return number / requests if requests else None


class Formats(Struct, frozen=True):
    """The content of formats.yaml."""

    formats: tuple[Format, ...]


FORMATS = bundled_record(Formats, "validate/imports/formats.yaml").formats


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
    means = {
        name: time and 1e-6 * time for name, time in zip(("ttft_mean", "tpot_mean", "e2e_mean"), times, strict=True)
    }
    means["output_throughput_total"] = tokens
    return Result(f"MLPerf {scenario}", means, batch=batch, requests_per_s=None if tokens else requests)


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
