"""The options of `size` by keyword: a service, and what is fixed of its deployments."""

from __future__ import annotations

import os
from typing import Any

from roofline.advisor.options import requests
from roofline.advisor.sizing.configurations import Given
from roofline.advisor.sizing.workload import Service
from roofline.core.checked import object_of
from roofline.core.errors import RooflineError
from roofline.scenario.argument import beside
from roofline.scenario.fields import DEFAULT_PROMPT
from roofline.scenario.lengths import Lengths
from roofline.scenario.options import DEGREES, OPTIONS, STATIC, find_option, read_options
from roofline.scenario.options.engine import Deployment
from roofline.serving.options import LOAD_OPTIONS, by_own_name
from roofline.specs.model import Model

OF_A_SERVICE = ("rate", "concurrency", "prompt", "generate", "prefix_hits", "ttft", "tpot", "quantile")
"""Options that make a service; the others are options of a scenario."""

OF_A_SEARCH = ("model", "hw", "engine", "price", "prefix", *STATIC)
"""Options of a scenario that a sizing chooses itself, or has as arguments."""


class SizeOptions(Deployment, total=False):
    """A service: `rate` requests/s or `concurrency` requests in flight, else one user; lengths, and targets.

    `ttft` and `tpot` are seconds, or texts such as 30ms, of the `quantile`: 0.95, mean, ... Other options are those of
    a scenario, the same in all deployments.
    """

    prompt: int | str | Lengths
    generate: int | str | Lengths
    rate: float | str | None
    concurrency: int | None
    users: int | None
    prefix_hits: float | str | None
    ttft: float | str | None
    tpot: float | str | None
    quantile: str | float


def read_service(
    service: Service | None, given: Given | None, options: SizeOptions, model: str | os.PathLike[str] | Model
) -> tuple[Service, Given]:
    """The service and the fixed choices of keywords, or the objects in their place. Raises RooflineError."""
    asked = by_own_name(options)
    own = {name: asked.pop(name) for name in OF_A_SERVICE if name in asked}
    if own and service is not None:
        raise RooflineError(f"{beside(list(own))} a service: give one of them")
    if service is not None:
        object_of(service, Service, "a service is a Service, or keywords such as rate=4")
    else:
        ttft, tpot = (LOAD_OPTIONS[name].read(own.get(name)) for name in ("ttft", "tpot"))
        rate, users = requests(own.get("rate")), LOAD_OPTIONS["concurrency"].read(own.get("concurrency"))
        hits = LOAD_OPTIONS["prefix_hits"].read(own.get("prefix_hits") or 0.0)
        lengths = own.get("prompt", DEFAULT_PROMPT), own.get("generate", OPTIONS["generate"].usual)
        service = Service(rate, *lengths, ttft, tpot, str(own.get("quantile", "p95")), users, hits)
    if given is not None:
        if asked:
            raise RooflineError(f"{beside(list(asked))} fixed choices: give one of them")
        return service, given
    return service, _given(asked, None if isinstance(model, Model) else os.fspath(model))


def _given(asked: dict[str, Any], model: str | None) -> Given:
    for name in asked:
        if (found := find_option(name).name) in OF_A_SEARCH:
            raise RooflineError(f"{found} is no option that a sizing fixes")
    read = read_options(asked)
    ranks = {part: read.pop(name) for part, name in DEGREES.items() if name in read}
    return Given(ranks, read.pop("quant", None), tuple(read.pop("with", ())), model, read)
