"""`text-generation-benchmark` of TGI: the Markdown tables that it prints when it ends, saved to a file.

Fields: https://github.com/huggingface/text-generation-inference, benchmark/README.md. The parameters state model and
lengths, the latency table the average of prefill and decode for each batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.validate.imports.fields import Content
from roofline.validate.imports.result import Result

METRICS = {"Prefill": "ttft", "Decode (token)": "tpot", "Decode (total)": None}


def output(content: Content) -> Iterator[Result]:
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
