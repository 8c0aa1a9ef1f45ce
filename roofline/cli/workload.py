"""The command `roofline workload`: recorded requests as a workload of sessions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from roofline.cli.options import OutputOption, emit


def workload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded requests, or a server's /metrics.")],
    characters: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.1, help="Characters of a token, where the file has texts.")
    ] = None,
    pools: Annotated[
        str | None,
        typer.Option(metavar="TOKENS,...", help="Instead: the hit rate of caches of so many tokens, by block hashes."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Turn recorded requests into a workload of sessions, for `serve --profile FILE`.

    Reads request logs with sessions, Mooncake's and Weka's traces, AIPerf's records and sessions, vLLM's multi-turn
    and ShareGPT conversations, and vLLM's or SGLang's /metrics. Only distributions are written: no text, no name.
    """
    from roofline.serving.options import load_values
    from roofline.serving.sessions.options import SESSION_OPTIONS
    from roofline.serving.sessions.recorded import as_text, hit_rates, read_recorded

    if pools is not None:
        sizes = [*load_values(SESSION_OPTIONS["pool"], pools), math.inf]
        rates = hit_rates(file, sizes)
        rows = [
            f"{'endless' if math.isinf(size) else f'{size:,.0f}':>15}  {rate:8.1%}"
            for size, rate in zip(sizes, rates, strict=True)
        ]
        emit("\n".join([f"{'tokens':>15}  hit rate", *rows]) + "\n", output)
        return
    found = read_recorded(file, characters)
    emit(as_text(found.workload), output)
    typer.echo(f"roofline: {found.note}", err=True)
