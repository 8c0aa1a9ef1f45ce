"""Prefill and decode apart for a service: the ratio on the fewest devices of the hardware that a sizing chose."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.sizing.deployments import At, Deployment
from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import outcomes_at
from roofline.serving.outcome import Outcome
from roofline.serving.pools import tandem_of
from roofline.serving.ratios import Ratio, ratios_for
from roofline.whatif.command_line import serve_command
from roofline.whatif.solve.load import missed

TRIED, ADDED = 4, 6
"""Pairs of layouts that are served, and replicas that are added until the targets are met."""


class Apart(Struct, frozen=True):
    """A ratio of prefill and decode that meets a service, under its load. `usd` an hour, None without a price."""

    ratio: Ratio
    outcome: Outcome
    usd: float | None
    command: str

    @property
    def devices(self) -> int:
        return self.ratio.devices


def apart_for(best: Deployment, at: At) -> Apart | None:
    """The pools on the fewest devices of a deployment's hardware, in its formats; None where none meets the service."""
    service = best.service
    if service.rate is None:
        raise RooflineError("prefill and decode apart are sized for a rate", options=["disaggregation"])
    scenario, load = best.configuration.scenario, service.load(1)
    targets = service.targets(at)
    found: list[tuple[Ratio, Outcome]] = []
    for ratio in ratios_for(scenario, load, service.rate, (service.ttft, service.tpot))[:TRIED]:
        for _ in range(ADDED):
            outcome = outcomes_at(tandem_of(scenario, load, ratio.pools), load, [service.rate])[0]
            late = missed(outcome, load, targets, service.quantile)
            if not late:
                found.append((ratio, outcome))
                break
            ratio = _larger(ratio, late)
    if not found:
        return None
    ratio, outcome = min(found, key=lambda each: each[0].devices)
    usd = None if best.price is None else best.price * ratio.devices
    return Apart(ratio, outcome, usd, _command(scenario, best, ratio))


def _larger(ratio: Ratio, late: tuple[str, ...]) -> Ratio:
    """The ratio with a replica more of what is late; of both where the load is not sustained."""
    both = late == ("saturation",)
    prefills, decodes = ratio.prefills + (both or "ttft" in late), ratio.decodes + (both or "tpot" in late)
    return replace(ratio, prefills=prefills, decodes=decodes)


def _command(scenario: Scenario, best: Deployment, ratio: Ratio) -> str:
    plain = scenario.without("tp", "pp", "ep", "dp", "micro_batches", "nodes")
    return f"{serve_command(plain, best.service.load(1))} --disaggregation {ratio.text}"
