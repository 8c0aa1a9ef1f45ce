"""What would make a scenario fit in memory: narrower formats, more devices, less work; each option is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.configurations import formats_for
from roofline.core.errors import RooflineError
from roofline.core.search import last_before_failure
from roofline.scenario.analysis import analyze
from roofline.whatif.request import Request
from roofline.whatif.solve.counts import tensor_degrees


def what_fits(request: Request) -> Iterator[str]:
    """The options that make a request fit, one of each kind.

    The widest formats that the engine is known to run on this hardware (`formats_for`), the fewest devices, and the
    largest batch or else the longest prompt.
    """
    found = (_fitting_formats(request), _fitting_degree(request), _fitting_count(request))
    yield from (option for option in found if option is not None)


def _fitting_formats(request: Request) -> str | None:
    for scheme, kv, _ in formats_for(request.model, request.hardware, request.engine, Quality.CALIBRATED):
        chosen = {name: value for name, value in (("scheme", scheme), ("kv", kv)) if value}
        if chosen and _fits(narrower := request.with_formats(**chosen)) and _stores_no_more(narrower, request):
            return " ".join(f"--{'quant' if name == 'scheme' else name} {value}" for name, value in chosen.items())
    return None


def _fitting_degree(request: Request) -> str | None:
    present = request.degrees.get("tensor", 1)
    degrees = (degree for degree in tensor_degrees(request.model, request.degrees) if degree > present)
    return next((f"--tp {degree}" for degree in degrees if _fits(request.spread(tensor=degree))), None)


def _fitting_count(request: Request) -> str | None:
    """The largest batch that fits, or else the longest prompt."""
    scenario = request.scenario()
    for name, present in (("batch", scenario.batch), ("prompt", scenario.prompt)):
        try:
            fits = lambda counts, name=name: analyze(request.scenario(**{name: counts})).memory.fits  # noqa: E731
            most = last_before_failure(fits, 1, present)
        except RooflineError:
            continue
        if most:
            return f"--{name} {most}"
    return None


def _fits(request: Request) -> bool:
    """Whether a request can be simulated and fits."""
    try:
        return bool(analyze(request.scenario()).memory.fits)
    except RooflineError:
        return False


def _stores_no_more(request: Request, other: Request) -> bool:
    """Whether neither weights nor KV cache take more than those of another request."""
    memory, present = (analyze(one.scenario()).memory for one in (request, other))
    pairs: tuple[tuple[Any, Any], ...] = ((memory.weights, present.weights), (memory.kv_cache, present.kv_cache))
    return all(own <= before for own, before in pairs)
