"""Estimate the variance components of the levels between measured constants and their use (`timing.intervals.levels`).

What a step to a new version, device or engine costs is what such steps have cost: every version on a device is
predicted from constants that existed before it (forward in time), with those of the newest older version of its engine,
of the same version on a device of the family that is no younger, of another engine on the device, of the engine on
devices of other families that are no younger, of other tables of a kernel that engines share, and of a related format.
A version whose device no older one was measured on is predicted from the newest older version on a device of the
family, a step of releases that has the component of the family besides.
The standard deviation that makes the interval of these constants hold 80% of the rows, each version on a device
counting the same, is s. There are few such steps n (releases of an engine, pairs of devices), so that a kind of kernel
is pooled with all kinds, and a format with its kind, and the interval is that of Student's t (Gelman et al., "Bayesian
Data Analysis", 3rd edition, section 2.6: a normal distribution of unknown variance):

    component^2 = (n s^2 + 3 s_all^2) / (n + 3) (t(n + 2) / 1.2816)^2         t: its 90th percentile

The measured devices of a family are of one chip each, so that the component of a family has three further steps of a
standard deviation of `TWINS`.
Kernels of few releases and devices are pulled towards the components of all kinds, which have t in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from lab.fit.hierarchy import Node, fit_elsewhere, fit_shared_kernel, outside
from lab.fit.rows import GRAPHED, Data, Key, Place, Table, tables_left_out
from lab.fit.shared import drawn
from lab.observation.collector import NO_HOST
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.version import Version
from roofline.timing.calibration import RELATIVES, SHARED, Calibration, Fit, for_other_engine, launched
from roofline.timing.chains import families
from roofline.timing.intervals.kernels import TO_P90
from roofline.timing.intervals.levels import LEVELS, Level, parse_levels
from roofline.timing.kernels import Array, launch_factor
from roofline.validate.tables.rows import Measurements, Origin

SAMPLE = 250
"""Rows of a version on a device that are predicted."""

TABLES = 3
"""Tables of a shared kernel on a device that are predicted from the others: each takes a fit."""

COVERAGE = 0.8
"""Fraction of the rows that an interval is to hold."""

LEAST, MOST = 0.02, 1.5
"""Smallest and largest component."""

TWINS = 0.08
"""Standard deviation of another device of the family in WIDER_STEPS steps that count beside the measured ones: these
(H100 and H200, B200 and GB200) are of one chip with other memories or clocks, which says little about members with
fewer units or other peaks."""

FEWEST_FREE = 2
"""Degrees of freedom of the interval of a level that hardly anything is known of."""

WIDER_STEPS = 3
"""Steps that all kinds of kernels count as in the component of one, and a kind in that of a format."""


class Crossing(NamedTuple):
    """The errors of constants that crossed a level, in logarithms, and the ends of their interval.

    `step` names what was crossed: of a new release all devices, and all formats, err together. `sibling` says that
    the constants crossed the family as well.
    """

    key: Key
    place: Place
    level: Level
    step: tuple[str, ...]
    errors: Array
    below: Array
    above: Array
    sibling: bool = False

    def wider(self, spread: float) -> Crossing:
        """The crossing with an interval that has a further standard deviation."""
        extra = TO_P90 * spread
        return self._replace(below=np.hypot(self.below, extra), above=np.hypot(self.above, extra))

    def covered(self, spread: float) -> float:
        """The fraction of rows inside the interval with this standard deviation added."""
        ends = self.wider(spread)
        return float(np.mean((self.errors >= -ends.below) & (self.errors <= ends.above)))


def crossings(
    data: Data, found: Mapping[Key, Sequence[Node]], run: Callable[..., Iterable[list[Crossing]]] = map
) -> Iterator[Crossing]:
    """The predictions of every version on a device across each level; `run` is a map, such as that of a pool."""
    for part in run(partial(_of_table, found=found), data.tables.keys(), data.tables.values()):
        yield from part


def _of_table(key: Key, table: Table, found: Mapping[Key, Sequence[Node]], seed: int = 1) -> list[Crossing]:
    """The crossings of one op and format."""
    leaves = {key: {(node.place, node.origin): node.fit for node in nodes} for key, nodes in found.items()}
    own = {place: fit for place, fit in leaves.get(key, {}).items() if place in table}
    together = {node.origin.engine: node.fit for node in found.get(key, ()) if node.place == "pooled"}
    elsewhere: dict[tuple[str, str], Fit | None] = {}
    crossed = []
    for place, fitted in own.items():
        rows, device = drawn(table[place], SAMPLE, seed), load_hardware(place[0])
        for level, step, fit, sibling in _across(key, place, own, leaves):
            known = for_other_engine(fit) if level == "engine" else fit
            one = _crossing(key, place, level, step, with_host_of(known, fitted, level), rows)
            crossed.append(one._replace(sibling=sibling))
        if key in SHARED:
            crossed += _of_tables(key, place, table[place], found[key])
        engine, family = place[1].engine, families(device)[0]
        if (engine, family) not in elsewhere:
            start, far = together.get(engine, fitted), outside(key[0], place[0])
            before = [other for other in table if far(other) and _is_older(other, device)]
            elsewhere[engine, family] = fit_elsewhere(key, table, engine, start, before.__contains__)
        if (pooled := elsewhere[engine, family]) is not None:
            known = launched(with_host_of(pooled, fitted), launch_factor(device))
            crossed.append(_crossing(key, place, "pooled", (engine, family), known, rows))
    return crossed


def _is_older(place: Place, device: Hardware) -> bool:
    """Whether a place's device was on the market when this one came out."""
    year, other = device.released, load_hardware(place[0]).released
    return year is None or other is None or other <= year


def _of_tables(key: Key, place: Place, rows: Measurements, nodes: Sequence[Node], seed: int = 1) -> Iterator[Crossing]:
    """Each table of a kernel that engines share on one device, with constants fitted to the others."""
    device = load_hardware(place[0])
    for origin, part, rest in list(tables_left_out(rows))[-TABLES:]:
        fit = fit_shared_kernel(key, rest, device, nodes)
        yield _crossing(key, (place[0], origin), "table", tuple(origin), fit, drawn(part, SAMPLE, seed))


def _across(
    key: Key, place: Place, own: Mapping[Place, Fit], leaves: Mapping[Key, Mapping[Place, Fit]]
) -> Iterator[tuple[Level, tuple[str, ...], Fit, bool]]:
    """The constants one level away from a place, that existed before it, with the level and the step.

    Those of an older version are of another device of the family (the last value) where its own device has none.
    """
    (op, format), (name, (engine, version)) = key, place
    device = load_hardware(name)
    near = [at for at in own if families(load_hardware(at[0]))[0] == families(device)[0] and _is_older(at, device)]
    for names in ([name], [at for at, _ in near]):
        older = [at for at in near if at[0] in names and _is_before(at[1], place[1])]
        if older:
            last = max(older, key=lambda at: Version(at[1].version))
            level: Level = "release" if Version(last[1].version).is_far(Version(version)) else "version"
            yield level, (engine, last[1].version, version), own[last], last[0] != name
            break
    others: dict[str, Place] = {}
    for at, origin in own:
        if at == name and origin.engine != engine:
            newest = others.get(origin.engine)
            if newest is None or Version(newest[1].version) < Version(origin.version):
                others[origin.engine] = at, origin
        sibling = at != name and origin == place[1] and families(load_hardware(at))[0] == families(device)[0]
        if sibling and _is_older((at, origin), device):
            yield "family", (at, name), own[at, origin], False
    yield from (("engine", (other, engine), own[at], False) for other, at in others.items())
    for other in (RELATIVES.get(f"{op} {format}") or RELATIVES.get(format, ()))[:1]:
        if (related := leaves.get((op, other), {}).get(place)) is not None:
            yield "format", (other, format, engine), related, False


def _is_before(one: Origin, other: Origin) -> bool:
    """Whether an engine's version came before another one of it."""
    known = one.engine == other.engine and one.version and other.version
    return bool(known) and Version(one.version) < Version(other.version)


def _crossing(key: Key, place: Place, level: Level, step: tuple[str, ...], fit: Fit, rows: Measurements) -> Crossing:
    hardware = load_hardware(place[0])
    calibration = Calibration("", "calibrated", {key: replace(fit, op=key[0], format=key[1])})
    expected = GRAPHED.expected(GRAPHED.rows(rows), hardware, calibration)
    ends = (np.log(np.maximum(one, 1e-12)) for one in (expected.low, expected.mid, expected.high))
    low, mid, high = ends
    return Crossing(key, place, level, step, np.log(rows.seconds) - mid, mid - low, high - mid)


def with_host_of(fit: Fit, other: Fit, level: Level = "pooled") -> Fit:
    """The fit with the host time of another one, where it has none: another engine's is not the table's."""
    own = {} if level == "engine" else fit.observed
    if own.get("host", 0.0) > NO_HOST:
        return fit
    hosts = {name: value for name, value in other.observed.items() if name.startswith("host")}
    return replace(fit, observed={**{k: v for k, v in fit.observed.items() if not k.startswith("host")}, **hosts})


def components(found: Sequence[Crossing], known: Mapping[Level, float] | None = None) -> dict[str, dict[Level, float]]:
    """The component of every level by kind of kernel and format, by kind, and under `other` over all kinds.

    Where those over all kinds are `known`, `found` is of some kinds only, and Student's t is in what is known.
    """
    first = _components([one for one in found if not one.sibling], known)

    def family(one: Crossing) -> float:
        op, format = one.key
        own = first.get(f"{op} {format}") or first.get(op, first["other"])
        return own["family"]

    return _components([one.wider(family(one)) if one.sibling else one for one in found], known)


def _components(found: Sequence[Crossing], known: Mapping[Level, float] | None) -> dict[str, dict[Level, float]]:
    """The components of crossings of one level each."""
    before = {"family": Deviation(TWINS, WIDER_STEPS)}
    every = {
        level: deviation(found, level, before.get(level)) if known is None else Deviation(known[level], WIDER_STEPS)
        for level in LEVELS
    }
    widened = partial(_widened, student=known is None)
    estimated = {"other": widened(every) if known is None else dict(known)}
    for op in dict.fromkeys(one.key[0] for one in found):
        own = [one for one in found if one.key[0] == op]
        kind = {level: deviation(own, level, every[level]) for level in LEVELS}
        estimated[op] = widened(kind)
        for key in dict.fromkeys(one.key for one in own):
            of_format = [one for one in own if one.key == key]
            finer = widened({level: deviation(of_format, level, kind[level]) for level in LEVELS})
            if finer != estimated[op]:
                estimated[" ".join(key)] = finer
    return estimated


class Deviation(NamedTuple):
    """A standard deviation, and from how many steps it is known."""

    value: float
    steps: int


def deviation(found: Sequence[Crossing], level: Level, wider: Deviation | None) -> Deviation:
    """The standard deviation of a level, pooled with that of `wider` kinds."""
    at = [one for one in found if one.level == level]
    steps = len({one.step for one in at})
    if wider is None:
        return Deviation(component(at), steps)
    own = component(at) if at else wider.value
    square = (steps * own**2 + WIDER_STEPS * wider.value**2) / (steps + WIDER_STEPS)
    return Deviation(math.sqrt(square), steps + WIDER_STEPS)


def _widened(known: Mapping[Level, Deviation], student: bool = True) -> dict[Level, float]:
    """The components: versions several releases apart differ at least as much as near ones."""
    from scipy.stats import t  # type: ignore[import-untyped,unused-ignore]

    wider = {level: float(t.ppf(0.9, max(one.steps - 1, FEWEST_FREE))) / TO_P90 for level, one in known.items()}
    found = {level: one.value * (wider[level] if student else 1.0) for level, one in known.items()}
    found["release"] = max(found["release"], found["version"])
    return {level: float(f"{value:.2g}") for level, value in found.items()}


def component(found: Sequence[Crossing]) -> float:
    """The standard deviation with which the mean coverage is 80% (bisection)."""
    low, high = LEAST, MOST
    if not found:
        return high / 2
    for _ in range(30):
        middle = (low + high) / 2
        if np.mean([one.covered(middle) for one in found]) < COVERAGE:
            low = middle
        else:
            high = middle
    return high


def render(estimated: Mapping[str, Mapping[Level, float]], command: str, path: Path) -> str:
    """The text of the file of components at a path, which keeps what it has of other kinds of kernels."""
    ops = {name.partition(" ")[0] for name in estimated}
    known = parse_levels(path) if path.is_file() else {}
    estimated = {**{name: own for name, own in known.items() if name.partition(" ")[0] not in ops}, **estimated}
    lines = [f"# Standard deviations of log(measured / predicted) that each level adds: {command}", "components:"]
    for op in sorted(estimated, key=lambda name: (name == "other", name)):
        values = ", ".join(f"{level}: {estimated[op][level]:g}" for level in LEVELS)
        lines.append(f"  {op}: {{{values}}}")
    return "\n".join(lines) + "\n"
