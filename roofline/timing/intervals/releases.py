"""How young an engine's support of a model and of a device was: releases by month (`releases.yaml`).

The first releases that run an architecture take up to several times as long as later ones: they lack its kernels, or
CUDA graphs, or run it on other paths. How much longer is not known beforehand, so that the interval has it, not the
expected time. With the months m from the architecture's release to that of the engine's version, and the months d from
the version to the oldest one that the engine's times were fitted to, the factor of p90 on that of the engine's own
spread is, in logarithms,

    young = log 3  exp(-m / 5) (1 + d / 36)              p90' = exp(hypot(log p90, young))

from DeepSeek-V3 with SGLang 0.4.3 to 0.4.10, vLLM 0.11 and TensorRT-LLM 0.21, and gpt-oss with vLLM 0.10 and 0.11: 1
to 2.7 times as long as expected, most with m = 0 and d = 3. The first releases on a family of devices are as
uncertain: with two B200, Llama 3.3 70B in FP8 took 2.6 times as long on vLLM 0.9 (vllm-project/vllm, issue 20710). The
younger of both counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.records import bundled_record
from roofline.specs.version import Version
from roofline.timing.intervals.deployments import Errors, farther, network_errors

FIRST_FACTOR, FADING_MONTHS, DOUBLING_MONTHS = 3.0, 5.0, 36.0
"""Factor of p90 on the expected time in the month of an architecture's release, months until its logarithm has fallen
by a factor of e, and months before the oldest fitted version that double it.

TPOT of 59 rows of SGLang 0.5.5 to 0.5.7 on AMD (InferenceX), 5 to 12 months after DeepSeek-R1 or the device, is above
p90 in 10% with four months and in 7% with five, that of 59 rows of TensorRT-LLM 1.0 and 1.1 in 24 and 14%, of 27 later
ones of SGLang in 7%; with nine it was in 2% of all. Of nine rows 3 to 9 months before the oldest fitted versions, the
module's cases, as many are above p90 with 12 months as without any growth, so that it is slow: 36 months.
"""

ELSEWHERE = (0.88, 1.4)
"""p10 and p90 of the measured time of a pass over the expected one, on a vendor's devices of which no step of the
engine was measured.

vLLM on MI300X takes 0.81 to 1.15 times the expected time of Llama 3.1 70B and 405B in FP8 (12 rows), and took 1.6
times that of gpt-oss-120b until its experts were known there; SGLang, whose times on AMD are those of DeepSeek-R1,
takes 1.1 to 1.4 times that of Gemma 4 31B and GLM-5.2 (validate/anchors).
"""

FEW = (0.87, 1.15)
"""p10 and p90 of the measured time of a pass over the expected one, on families of devices whose kernels are known from
a few published figures alone, all or those of some models.

TPOT of DeepSeek-R1 on MI325X, in whose family the gap between kernels was chosen on two rows, is inside in 82% of 33
rows of InferenceX; the kernels' own errors, which are of those figures, have half of the distances of B200's. The same
is assumed of gpt-oss on Blackwell, whose steps nobody measured here: on Hopper and MI300X the first predictions of its
experts were 1.4 to 1.6 times off.
"""

Month = Annotated[str, Meta(pattern=r"^20\d\d-\d\d$")]


class _Dates(Struct, frozen=True):
    engines: dict[str, dict[str, Month]]
    models: dict[str, Month]
    families: dict[str, Month]
    fitted: dict[str, Month]
    unmeasured: dict[str, tuple[str, ...]]
    few: dict[str, tuple[str, ...]]


def _releases() -> _Dates:
    return bundled_record(_Dates, "specs/releases.yaml")


class Support(NamedTuple):
    """Months of a version's support of an architecture and a device, and before the oldest version that was fitted."""

    months: float
    before: float


def support(engine: Engine, model: Model, hardware: Hardware | None = None) -> Support | None:
    """The support of an architecture, or of a device's family if that is younger, by a version; None if not known.

    Versions before the first of the table are as old as it.
    """
    known = _releases()
    names = [name for name in known.models if engine.version and model.name.startswith(name)]
    versions: Mapping[str, str] = known.engines.get(engine.name, {})
    began = [known.models[max(names, key=len)]] if names else []
    if hardware is not None and hardware.family in known.families and engine.version:
        began.append(known.families[hardware.family])
    if not began or not versions:
        return None
    named = [Version(text) for text in versions]
    older = [version for version in named if version <= Version(engine.version)]
    released = _month(versions[max(older, default=min(named)).text])
    fitted = _month(known.fitted[engine.name]) if engine.name in known.fitted else released
    return Support(max(released - _month(max(began)), 0.0), max(fitted - released, 0.0))


def _month(day: str) -> float:
    """Months since the year 0 of a date "YYYY-MM"."""
    return 12.0 * int(day[:4]) + int(day[5:])


def young_error(engine: Engine, model: Model, hardware: Hardware | None = None) -> float:
    """The logarithm of the factor on p90 of a version whose support was young; 0 where none is known."""
    if (found := support(engine, model, hardware)) is None:
        return 0.0
    fading = math.exp(-found.months / FADING_MONTHS)
    return math.log(FIRST_FACTOR) * fading * (1.0 + found.before / DOUBLING_MONTHS)


def unsure(engine: Engine, model: Model, hardware: Hardware, parallel: Parallelism) -> Errors:
    """The errors of a pass that no kernel has: of a young support, of several nodes, of unmeasured devices."""
    known, (below, above) = _releases(), network_errors(parallel, hardware)
    above = math.hypot(above, young_error(engine, model, hardware))
    if hardware.vendor in known.unmeasured.get(engine.name, ()):
        low, high = ELSEWHERE
    elif engine.name in known.fitted and model.name.startswith(known.few.get(hardware.family, ())):
        low, high = FEW
    else:
        return below, above
    return math.hypot(below, math.log(low)), math.hypot(above, math.log(high))


@lru_cache(maxsize=256)
def with_errors(engine: Engine, model: Model, hardware: Hardware, parallel: Parallelism) -> Engine:
    """The engine whose spread has those errors."""
    errors = unsure(engine, model, hardware, parallel)
    return replace(engine, spread=farther(engine.spread, errors)) if any(errors) else engine
