"""What is chosen where it is not said, by every answer: engine, formats, memory and layout, until the model fits.

As released, also in more of the memory than the engine's default, then fewer bits, each on every layout of the devices;
on the default engine of the checkpoint and the hardware, then on that of GGUF files where nothing fits. Where requests
of all users do not fit at once as released, formats in which some queue are compared under the load. Of the layouts
that fit, one that meets the targets is chosen: with the most tokens/s of users, or the least latency at a rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from roofline.advisor.formats import NARROWER, weight_bits
from roofline.advisor.judged import handicap, judged, unready
from roofline.advisor.planned import CONVERTED, LAYOUT, Candidate, Plan, by_engine
from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.configurations import formats_for
from roofline.core.errors import RooflineError
from roofline.launch.bundle import refused
from roofline.launch.forecast import with_slots
from roofline.launch.repository import repository_of
from roofline.scenario.engine_options import ranks_together
from roofline.scenario.kv_capacity import startable, startable_sequences
from roofline.scenario.memory import more_memory
from roofline.scenario.options import FORMATS, of_group
from roofline.scenario.scenario import Scenario
from roofline.serving.layouts import layouts_on, wide_exchange
from roofline.serving.load import Load
from roofline.serving.outcome import NO_TARGETS, Targets, targets_or_usual
from roofline.specs.checkpoint import released_scheme
from roofline.specs.engine import GGUF_ENGINE, load_engine
from roofline.specs.model_names import quantized_repositories
from roofline.specs.precision import PLAIN
from roofline.specs.schemes import GGUF_SCHEMES
from roofline.specs.servers import SERVERS, Server, server_of
from roofline.techniques import check_request
from roofline.techniques.base import Price
from roofline.techniques.support import is_documented, runs, runs_gguf
from roofline.techniques.unsupported import not_whole, unsupported

WEIGHT_OPTIONS = tuple(name for name in of_group(FORMATS) if name not in ("kv", "dtype"))
"""Options that say in which format the weights are."""

UNDOCUMENTED = "w8a16"
"""The scheme that is tried on engines whose formats no document states: 8-bit weights, computed as released."""

LENGTHS = ("prompt", "generate", "context")
"""Options that say how long a sequence is."""


def plan_for(asked: Scenario, load: Load | None = None, targets: Targets = NO_TARGETS) -> Plan:
    """The first candidate of a scenario that fits with the sequences of all users, or else with one of a useful length.

    `load` are users or a rate, None for a single user; the `targets` of a load are the usual ones where none is given.
    Candidates that the engine is documented to run come first, and under a load the layout that serves it best. Raises
    RooflineError where none can be simulated.
    """
    if (server := own_server(asked)) is not None:
        server.check_vendor(asked.hardware.vendor)
    _check_released(asked)
    asked = _under(asked, load)
    targets = targets_or_usual(*targets, load is not None, asked.model.task == "generate")
    users = (load.concurrency if load is not None else None) or 1
    changes = list(_changes(asked, load is not None, () if server is None else server.loads))
    here = _candidates(asked, [each for each in changes if "engine" not in each], users, load)
    if more := more_memory(asked):
        here = _with_headroom(asked, here, users, more, load)
    tried = [*here, *_candidates(asked, [each for each in changes if "engine" in each], users, load)]
    if not tried:
        Candidate(asked.with_(**changes[0]), changes[0]).memory(1)  # raises why there is no way to run it
        raise RooflineError("there is no way to run it")
    unsaid = load is None and all(asked.given(name) is None for name in LENGTHS)
    known = [each for each in tried if not unsupported(each.scenario)]
    others = tried if tried[0] not in known else known  # of what runs here and lacks memory no "as if it ran"
    for documented, roomy in product((True, False), (True, False) if unsaid else (False,)):
        running = tuple(each for each in others if each.supported or not documented)
        for own in by_engine(running):
            if fitting := [each for each in own if each.memory(1).fits and (each.roomy or not roomy)]:
                chosen = _alone(fitting) if load is None else _serving(fitting, users, load, targets)
                return Plan(chosen, fits=True, tried=tuple(tried), load=load, targets=targets)
    tried = known or tried
    roomiest = max(tried, key=lambda each: each.memory(1).headroom)
    return Plan(roomiest, fits=False, tried=tuple(tried), load=load, targets=targets)


def settled(
    asked: Scenario, load: Load | None = None, targets: Targets = NO_TARGETS, decided: Sequence[str] = ()
) -> Candidate:
    """The scenario with what an answer chooses where it is not said; as it is where nothing fits, or none is simulated.

    Options that are `decided` elsewhere stay as they were asked.
    """
    with suppress(RooflineError):  # why it is refused is for who runs it to say
        plan = plan_for(asked, load, targets)
        if plan.fits:
            options = {name: value for name, value in plan.candidate.options.items() if name not in decided}
            return Candidate(_told(_under(asked, load).with_(**options), load), options)
    return Candidate(asked, {})


def _under(asked: Scenario, load: Load | None) -> Scenario:
    """The scenario with the layout of counted devices for a load."""
    return asked if load is None else asked.laid_out_for(load.concurrency or math.inf)


def _told(scenario: Scenario, load: Load | None) -> Scenario:
    """The scenario with as many slots as its command tells the engine for a load."""
    return scenario if load is None or scenario.draft_limit else with_slots(scenario, load.concurrency)


def own_server(scenario: Scenario) -> Server | None:
    """The server of an engine that runs on the devices of a vendor alone (MLX); None for others.

    It reads some schemes besides the formats as released, where the engine's documents name none.
    """
    name = scenario.profile.name
    server = server_of(name) if name in SERVERS else None
    return server if server is not None and server.vendors else None


def _check_released(asked: Scenario) -> None:
    """Raise RooflineError for a checkpoint in MLX's groups where MLX does not run: converting it back is no answer."""
    stored = asked.precision.weights.name
    if (
        asked.question.as_released
        and stored.startswith("affine")
        and asked.given("engine") is None
        and unsupported(asked)
    ):
        name, hardware = asked.model.name, asked.hardware.name
        raise RooflineError(
            f"weights in {stored} are for MLX, which does not run on {hardware}: name the model as it was released,"
            f" {name}, or one in a format of {asked.profile.name}"
        )


def _with_headroom(
    asked: Scenario, here: list[Candidate], users: int, wider: dict[str, Any], load: Load | None
) -> list[Candidate]:
    """Candidates, with those of more of the memory: as released where all users fit in it, all where nothing fits."""
    released = [each for each in here if each.released]
    if any(each.supported and each.memory(users).fits for each in released):
        return here
    more = _candidates(asked, [{**each.options, **wider} for each in here], users, load)
    others = [each for each in here if not each.released]
    found = [*released, *(each for each in more if each.released and each.memory(users).fits), *others]
    return found if any(each.supported and each.memory(1).fits for each in found) else [*found, *more]


def _as_wide(fitting: Sequence[Candidate], chosen: Candidate) -> list[Candidate]:
    """The candidates in the formats of the chosen one, then other formats as wide on layouts that those do not fit.

    Tensor parallelism cuts blocks of FP8 where it leaves rows whole. Formats as released are not exchanged for others.
    """
    own = [each for each in fitting if each.unlaid == chosen.unlaid]
    if chosen.released:
        return own
    laid_out = [each.scenario.settings.parallel for each in own]
    kind = round(chosen.bits), chosen.options.get("kv")
    others = [each for each in fitting if not each.released and (round(each.bits), each.options.get("kv")) == kind]
    return [*own, *(each for each in others if each.scenario.settings.parallel not in laid_out)]


def _alone(fitting: Sequence[Candidate]) -> Candidate:
    """What answers one user fastest of the first formats that fit and others as wide, each on its first layout."""
    firsts = {str(each.unlaid): each for each in reversed(_as_wide(fitting, fitting[0]))}
    return _best(list(reversed(firsts.values())), None, NO_TARGETS)


def _serving(fitting: Sequence[Candidate], users: int, load: Load, targets: Targets) -> Candidate:
    """What serves a load best of an engine's candidates that fit one sequence, in the order in which they are tried.

    Released formats in which all users fit at once; or else the formats that serve the load best with a queue, among
    them the widest in which all fit; and of these, and of formats as wide, the layout.
    """
    together = next((each for each in fitting if each.memory(users).fits), None)
    if together is not None and load.rate is not None:
        same = _best([each for each in fitting if each.unlaid == together.unlaid], load, targets)
        sustained = judged(same.scenario, load, targets).sustained  # else a smaller cache may
        contenders = [together] if sustained else [together, *(each for each in fitting if each.released)]
    elif together is not None:
        contenders = [together] if together.released else [*(each for each in fitting if each.released), together]
    else:
        contenders = list(fitting)
    firsts: list[Candidate] = []
    for each in contenders:
        if all(each.unlaid != other.unlaid for other in firsts):
            firsts.append(each)
    best = _best(firsts, load, targets)
    if not best.released and not judged(best.scenario, load, targets).served:  # fewer bits still may meet them
        best = _best(list({str(each.unlaid): each for each in reversed(fitting)}.values()), load, targets)
    at_once = users if best.memory(users).fits else 1
    laid_out = [each for each in _as_wide(fitting, best) if each.memory(at_once).fits]
    return _best(laid_out, load, targets)


def _candidates(asked: Scenario, changes: Iterable[dict[str, Any]], users: int, load: Load | None) -> list[Candidate]:
    """The candidates of some changes that can be simulated."""
    found = []
    for options in changes:
        with suppress(RooflineError):
            candidate = _starting(Candidate(_told(asked.with_(**options), load), options), users)
            candidate.memory(1)
            found.append(candidate)
    return found


def _starting(candidate: Candidate, users: int) -> Candidate:
    """With fewer sequences than the engine's own, where the states of those leave no room for all users.

    As many as it starts with, or else as many as there are users.
    """
    scenario, name = candidate.scenario, "max_num_seqs"
    if startable_sequences(scenario) is None or candidate.memory(users).fits:
        return candidate
    own = startable(scenario)
    starts = Candidate(own, {**candidate.options, name: own.given(name)})
    if own.max_batch >= users and starts.memory(users).fits:
        return starts
    parallel = scenario.settings.parallel
    each = -(-users // parallel.data) * ranks_together(scenario.profile.name, name, parallel)
    served = Candidate(scenario.with_(max_num_seqs=each), {**candidate.options, name: each})
    return served if served.memory(users).fits else starts


def _best(some: Sequence[Candidate], load: Load | None, targets: Targets) -> Candidate:
    """The candidate that serves a load best; the first of equal ones."""

    def key(each: Candidate) -> tuple[bool, int, float]:
        sustained, met, value, _ = judged(each.scenario, load, targets)
        if value > 0:  # not where the load cannot be served at all, whose value is -1
            value /= handicap(each.scenario) * unready(each.scenario)
        return sustained, met, value

    return max(some, key=key) if len(some) > 1 else some[0]


def relaid(chosen: Scenario, load: Load, targets: Targets) -> Candidate | None:
    """The scenario on the layout of its devices that serves a load best; None where it has that layout."""
    devices, plain = chosen.settings.parallel.devices, dict.fromkeys(LAYOUT)
    found, users = [Candidate(chosen, {})], load.concurrency or 1
    at_once = users if found[0].memory(users).fits else 1
    for layout in layouts_on(chosen, devices):
        own = layout.options(chosen.model)
        for options in () if own is None else (own, *_exchanged(chosen, {**plain, **own})):
            with suppress(RooflineError):
                changed = Candidate(chosen.with_(**{**plain, **options}), options)
                if changed.memory(at_once).fits and changed.supported and not refused(changed.scenario):
                    found.append(changed)
    best = _best(found, load, targets)
    return None if best is found[0] else best


def _changes(asked: Scenario, loaded: bool, schemes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The options of the candidates, in the order in which they are tried; the first changes nothing."""
    said = any(asked.given(name) is not None for name in WEIGHT_OPTIONS) or any(
        check_request(name).slot == "weight format" for name in asked.techniques
    )
    engines: list[str | None] = [None]
    if asked.given("engine") is None and asked.precision.weights.name in GGUF_SCHEMES:
        engines = [GGUF_ENGINE]
    elif asked.given("engine") is None and asked.profile.name != GGUF_ENGINE and not said:
        runs_more = not asked.techniques or bool(_lacking(asked, asked.profile.name) - _lacking(asked, GGUF_ENGINE))
        engines += [GGUF_ENGINE] if runs_more and asked.hardware.kind in ("gpu", "soc") else []
    for engine in engines:
        own = {"engine": engine} if engine else {}
        for formats in _formats(asked, engine, said, schemes):
            for layout in _layouts(asked, engine, loaded):
                yield {**own, **formats, **layout}


def _lacking(asked: Scenario, engine: str) -> set[str]:
    """The techniques of a scenario that an engine is not known to run on its hardware."""
    names = (check_request(written).name for written in asked.techniques)
    return {name for name in names if not runs(name, engine, asked.hardware)}


def _formats(asked: Scenario, engine: str | None, said: bool, schemes: Sequence[str]) -> list[dict[str, Any]]:
    """As released, then narrower formats, the widest first; those that were said alone.

    Of formats as wide, those in which the model has a repository come first.
    """
    profile = asked.profile if engine is None else load_engine(engine)
    offered = list(formats_for(asked.model, asked.hardware, profile, Quality.CALIBRATED, "" if said else None))
    if not said and not any(scheme for scheme, _, _ in offered):
        most = _bits(asked, engine, {}) - NARROWER
        own = ({"quant": scheme} for scheme in sorted(schemes, reverse=True))
        if narrower := [each for each in own if _bits(asked, engine, each) <= most]:
            return [{}, *narrower]
    if not said and not is_documented(profile.name):
        offered.append((UNDOCUMENTED, "", Price.CALIBRATION))
    reads = is_documented(profile.name) and not runs_gguf(profile.name) and not said
    listed = quantized_repositories(asked.model.name, repository_of(asked)) if reads else {}
    caches = dict.fromkeys(kv for _, kv, _ in offered)
    more = listed.keys() - {scheme for scheme, _, _ in offered}
    offered += [(scheme, kv, Price.CALIBRATION) for scheme in sorted(more) for kv in caches]
    kv_said = asked.given("kv") is not None
    found = [
        {name: value for name, value in (("quant", scheme), ("kv", kv)) if value}
        for scheme, kv, _ in offered
        if not (kv and kv_said)
    ]
    bits = {index: _bits(asked, engine, formats) for index, formats in enumerate(found)}
    released = max((bits[index] for index, formats in enumerate(found) if "quant" not in formats), default=math.inf)

    def width(index: int) -> tuple[bool, int, bool, float]:
        scheme = found[index].get("quant")
        return scheme is not None, -round(bits[index]), scheme not in listed, -bits[index]

    order = sorted(bits, key=width)
    stored = asked.model.quantization
    if stored is not None and asked.question.as_released and released_scheme(asked.model, profile) == PLAIN:
        # An engine that does not read the checkpoint has it in as many bits, and not in 16 again.
        most = CONVERTED * _bits(asked, engine, {"quant": stored})
        if as_many := [found[index] for index in order if "quant" in found[index] and bits[index] <= most]:
            return as_many
    return [found[index] for index in order if "quant" not in found[index] or bits[index] < released]


def _bits(asked: Scenario, engine: str | None, formats: dict[str, Any]) -> float:
    options: dict[str, Any] = {**formats, **({"engine": engine} if engine else {})}
    try:
        changed = asked.with_(**options)
    except RooflineError:
        return 0.0
    return weight_bits(changed.model, changed.run_precision)


def _layouts(asked: Scenario, engine: str | None, loaded: bool) -> Iterator[dict[str, Any]]:
    """As asked; and the layouts of devices that were named with their count, of one user those of one server alone.

    Where tensor parallelism as asked cuts blocks of experts' weights, whole experts are spread over its ranks, too.
    """
    asked = asked if engine is None else asked.with_(engine=engine)
    own, model = asked.settings.parallel, asked.model
    yield {}
    if not asked.counted:
        if loaded:
            yield from _exchanged(asked, {})
        if model.experts and asked.given("ep") is None and any(not_whole(asked)):
            yield {"ep": own.tensor * own.data}
        return
    for layout in layouts_on(asked, own.devices):
        degrees = (layout.tensor, layout.pipeline, layout.data * layout.copies, layout.expert)
        options = layout.options(model)
        asked_for = loaded or layout.data * layout.copies == 1
        if options is None or not asked_for:
            continue
        if degrees != (own.tensor, own.pipeline, own.data, own.expert):
            yield options
        yield from _exchanged(asked, options)


def _exchanged(asked: Scenario, layout: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A layout with the exchange of experts that people ask for on it (`wide_exchange`)."""
    with suppress(RooflineError):
        if (name := wide_exchange(asked.with_(**layout))) is not None:
            yield {**layout, "all_to_all": name}
