"""Recognise the result files of benchmarks by their content, and convert them to rows of whole-model figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from roofline.core.errors import RooflineError, SpecError
from roofline.validate.imports import tools
from roofline.validate.imports.fields import Content, Fields, read_content
from roofline.validate.imports.result import Given, Result, rows_of
from roofline.validate.tables.published import COLUMNS
from roofline.validate.tables.text import csv_text

Read = Callable[[Fields], Result | Iterable[Result]]
ReadText = Callable[[Content], Result | Iterable[Result]]

READERS: tuple[tuple[Read, tuple[str, ...]], ...] = (
    *((one.read, one.marks) for one in tools.FORMATS),
    (tools.llama_bench, ("build_number", "model_type", "n_prompt", "n_gen", "avg_ts")),
)
"""Readers of documents, each with the fields by which one is recognised."""

TEXT_READERS: tuple[tuple[ReadText, tuple[str, ...]], ...] = (
    (tools.tgi, ("| Sequence Length", "| Decode (token)")),
    (tools.mlperf, ("MLPerf Results Summary",)),
)
"""Readers of texts that are neither JSON nor CSV, each with the words by which one is recognised."""

TOOLS = (
    "vllm bench serve, latency and throughput, sglang.bench_serving, GuideLLM, AIPerf, GenAI-Perf, trtllm-bench,"
    " llama-bench, TGI's benchmark and MLPerf's summary"
)


class Imported(NamedTuple):
    """Rows as CSV and by column, and one line a file that says what was read."""

    text: str
    notes: list[str]
    rows: list[dict[str, object]]


def import_files(paths: Sequence[Path], given: Given) -> Imported:
    """The rows of result files; raises SpecError for one that is not recognised or lacks what is not `given`."""
    if not paths:
        raise RooflineError("name at least one result file")
    rows, notes = [], []
    for path in paths:
        content = read_content(path)
        everything = list(_results(content))
        found = [result for result in everything if not result.left_out]
        _check_given(found, given, content.where)
        own = [row for result in found for row in rows_of(result, given, content.where)]
        left_out = Counter(result.left_out for result in everything if result.left_out)
        if not own:
            raise SpecError(content.where, f"has no results but of {next(iter(left_out), 'nothing')}")
        names = ", ".join(Counter(result.tool for result in found))
        notes.append(f"{content.where}: {names}, {len(own)} row{'s' * (len(own) > 1)}")
        notes += [f"{content.where}: {count} left out: {reason}" for reason, count in left_out.items()]
        rows += own
    return Imported(csv_text(rows, COLUMNS), notes, rows)


def _check_given(results: Sequence[Result], given: Given, where: str) -> None:
    """Raise SpecError where an option would replace several different values of one file."""
    for option, name in (("batch", "batch"), ("prompt", "prompt"), ("generate", "output")):
        if getattr(given, option) is not None and len({getattr(result, name) for result in results}) > 1:
            raise SpecError(where, f"states several values that --{option} would replace: leave it out")


def _results(content: Content) -> Iterator[Result]:
    for read_text, words in TEXT_READERS:
        if all(word in content.text for word in words):
            yield from _several(read_text(content))
            return
    for index, document in enumerate(content.documents, 1):
        where = content.where if len(content.documents) == 1 else f"{content.where}: result {index}"
        fields = Fields(document, where)
        reader = next((read for read, names in READERS if fields.has(*names)), None)
        if reader is None:
            raise SpecError(where, f"is no result of {TOOLS}")
        yield from _several(reader(fields))
    if not content.documents:
        raise SpecError(content.where, f"is no result of {TOOLS}")


def _several(found: Result | Iterable[Result]) -> Iterable[Result]:
    return [found] if isinstance(found, Result) else found
