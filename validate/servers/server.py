"""`roofline validate server`: measure a live server, compare with the prediction, and fit a profile of its own."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, quote
from roofline.core.files import check_output, write_output
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load as ServingLoad
from roofline.specs.engine_written import render
from roofline.validate.fit.user_profile import OwnProfile, fit_own
from roofline.validate.measure.bench import Progress, bar
from roofline.validate.score.serving import METRICS, Predictor, estimate_of, read_cases
from roofline.validate.servers.client import APIS, Address, Client, ServerError, read_address
from roofline.validate.servers.measure import Ended, Limits, Load, Measured, check_limits, design, run
from roofline.validate.tables.published import COLUMNS
from roofline.validate.tables.rowfile import RowFile
from roofline.validate.tables.serving import ServingCase, closed_loop
from roofline.validate.tables.text import Line

DEFAULT_CONCURRENCY = 8
"""The most requests in flight without --concurrency, so as not to burden a server that others use."""


class Target(Struct, frozen=True):
    """A server to measure: its address, API and model, and the environment variable of its key."""

    url: str
    api: str = APIS[0]
    model: str | None = None
    key_env: str | None = None
    proxy: str | None = None


class Plan(Struct, frozen=True):
    """The load: prompt lengths, tokens of an output, most requests in flight, and the limits."""

    prompts: tuple[int, ...]
    output: int
    concurrency: int
    limits: Limits
    timeout: float


def measure_server(
    target: Target, scenario: Scenario, plan: Plan, output: Path, profile: Path | None = None
) -> Mapping[str, Any]:
    """Measure a server, append rows to `output`, and write a fitted profile to `profile`; the document of the command.

    The rows of a finished point are in the file whatever ends the run. Raises RooflineError where nothing could be
    measured, with the reason. The fit takes rows of earlier runs in `output` along, as far as they are of the same
    engine on the same hardware: loads of another model tell host times from those of kernels.
    """
    _checked(target, plan)
    if profile is not None and profile.suffix not in (".yaml", ".yml"):
        raise RooflineError(f"an engine profile is a YAML file, got {quote(str(profile))}", options=["fit"])
    if profile is not None:
        check_output(profile)  # before minutes of measuring
    measured: list[Measured] = []
    earlier = [] if profile is None else _earlier(output, scenario)
    with RowFile(output, COLUMNS) as file, bar() as progress:

        def keep(found: Measured) -> None:
            measured.append(found)
            for row in rows(found, scenario):
                file.append(row)

        try:
            name, ended = drive(target, plan, keep, progress)
        except KeyboardInterrupt:
            raise RooflineError(f"interrupted; {output} keeps the {len(file.rows)} rows measured so far") from None
        finally:
            if not file.rows:
                output.unlink(missing_ok=True)
    cases = [case_of(found, scenario, index) for index, found in enumerate(measured, 1)]
    known = [*cases, *earlier]
    fitted = None if profile is None else fit_own(known, f"roofline validate server: {len(known)} loads, {_today()}")
    if fitted is not None and profile is not None:
        write_output(profile, render(fitted.engine))
    document = _document(name, scenario, cases, ended, output, fitted, profile, len(earlier))
    return {**document, "asked_output": plan.output}


def _earlier(path: Path, scenario: Scenario) -> list[ServingCase]:
    """The loads in a file of rows that are of a scenario's engine and hardware; none where it is no such file.

    A row has the names of model and formats alone: for the scenario's own model, what its checkpoint says is meant.
    """
    try:
        found, _ = read_cases(path)
    except RooflineError:
        return []
    alike, own = (scenario.profile.label, scenario.hardware.name), columns_of(scenario)
    return [
        replace(case, scenario=scenario) if all(case.line.cells[key] == own[key] for key in own) else case
        for case in found
        if (case.scenario.profile.label, case.scenario.hardware.name) == alike
    ]


def drive(
    target: Target, plan: Plan, keep: Callable[[Measured], None], progress: Progress = lambda _fraction, _label: None
) -> tuple[str, Ended]:
    """Measure a server and `keep` each point; its model's name, and how the run ended. Raises RooflineError."""
    return asyncio.run(_run(target, *_checked(target, plan), plan, keep, progress))


def _checked(target: Target, plan: Plan) -> tuple[Address, str | None]:
    """The address and the key; raises RooflineError for a load that is not allowed, too."""
    check_limits(plan.concurrency, plan.prompts, plan.limits)
    return read_address(target.url), _key(target.key_env)


async def _run(
    target: Target, address: Address, key: str | None, plan: Plan, keep: Any, progress: Progress
) -> tuple[str, Ended]:
    async with Client(address, target.api, key, plan.timeout, target.proxy) as client:
        name = target.model or await _only_model(client, address.host)
        load = Load(client, name, address.host, plan.limits)
        points = design(plan.prompts, plan.output, plan.concurrency)
        return name, await run(load, points, plan.limits, keep, progress)


async def _only_model(client: Client, host: str) -> str:
    names = await client.models()
    if len(names) > 1:
        listed = ", ".join(quote(name) for name in names[:5])
        raise ServerError(f"{host} serves {len(names)} models: name one, such as {listed}", options=["served_model"])
    return names[0]


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key or not key.isprintable() or not key.isascii():
        raise RooflineError(f"the environment variable {quote(variable)} holds no API key")
    return key


def _today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def columns_of(scenario: Scenario) -> dict[str, str]:
    """The columns that name a deployment, with its values."""
    precision = scenario.precision
    assert precision is not None
    return {
        "model": scenario.model.name,
        "hardware": scenario.hardware.name,
        "gpus": str(scenario.settings.parallel.devices),
        "engine": scenario.profile.label,
        "weights": precision.weights.name if precision.weights.linear is not None else precision.base.name,
        "kv": precision.kv.name,
    }


def rows(found: Measured, scenario: Scenario) -> list[dict[str, object]]:
    """The rows of a point, as of other whole-model figures."""
    figures = {
        "ttft_mean": (1e3 * found.ttft, "ms"),
        "tpot_mean": (None if found.tpot is None else 1e3 * found.tpot, "ms"),
        "e2e_mean": (1e3 * found.e2e, "ms"),
        "output_throughput_total": (found.throughput, "tok/s"),
    }
    shared: dict[str, object] = {
        **columns_of(scenario),
        "batch": closed_loop(found.concurrency, found.requests),
        "input_len": f"{found.prompt:.6g}",
        "output_len": f"{found.output:.6g}",
        "source": f"roofline validate server, {_today()}",
    }
    return [
        {**shared, "metric": metric, "value": f"{value:.6g}", "unit": unit}
        for metric, (value, unit) in figures.items()
        if value is not None
    ]


def case_of(found: Measured, scenario: Scenario, number: int) -> ServingCase:
    """A point as the case of a scenario under a load."""
    load = ServingLoad(
        found.prompt, found.output, concurrency=found.concurrency, rounds=found.requests / found.concurrency
    )
    return ServingCase(
        Line(number, "", {}),
        scenario,
        load,
        scenario.profile.scheduler,
        found.ttft,
        found.tpot,
        e2e=found.e2e,
        throughput=1 / found.throughput,
    )


def _document(
    name: str,
    scenario: Scenario,
    cases: list[ServingCase],
    ended: Ended,
    output: Path,
    fitted: OwnProfile | None,
    profile: Path | None,
    earlier: int,
) -> Mapping[str, Any]:
    """What was measured beside what is predicted, by the scenario's profile and by the fitted one."""
    shipped, own = _predictions(cases, scenario), None
    if fitted is not None:
        own = _predictions(cases, scenario.changed(engine=fitted.engine))
    return {
        "schema": "roofline.server/1",
        "served_model": name,
        "model": scenario.model.name,
        "hardware": scenario.hardware.name,
        "engine": scenario.profile.label,
        "points": [_point(index, case, shipped, own) for index, case in enumerate(cases)],
        "rows": str(output),
        "left": ended.left,
        "ended": ended.reason,
        "profile": None if profile is None else str(profile),
        "fit": fitted
        and {
            "loads": len(cases) + earlier,
            "error_before": fitted.before,
            "error_after": fitted.after,
            "error_held_out": fitted.held_out,
            "changed": {key: {"from": old, "to": new} for key, (old, new) in fitted.changed.items()},
        },
    }


def _predictions(cases: list[ServingCase], scenario: Scenario) -> list[Mapping[str, tuple[float, float, float]]]:
    """Low, mid and high seconds of each metric of each case; none where the case cannot be simulated."""
    predictor, found = Predictor(), []
    for case in cases:
        try:
            outcome = predictor(replace(case, scenario=scenario, scheduler=scenario.profile.scheduler))
            found.append({metric: tuple(map(float, estimate_of(outcome, metric))) for metric in METRICS})
        except RooflineError:
            found.append({})
    return found  # type: ignore[return-value]


def _point(index: int, case: ServingCase, shipped: list[Any], own: list[Any] | None) -> Mapping[str, Any]:
    prompt, output = case.load.means
    figures = []
    for metric in METRICS:
        measured = getattr(case, metric)
        if measured is None:
            continue
        row = {"metric": metric, "measured_s": measured}
        for key, found in (("predicted_s", shipped[index]), ("fitted_s", own[index] if own else {})):
            row[key] = dict(zip(("low", "mid", "high"), found[metric], strict=True)) if metric in found else None
        figures.append(row)
    return {"concurrency": case.load.concurrency, "prompt": prompt, "output": output, "figures": figures}
