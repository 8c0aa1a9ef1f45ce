"""What the tokens of a load cost on rented devices: prompt, cached and output tokens apart.

All devices are billed while they are rented. A request's share of the rent is divided over its tokens by the seconds
that the devices spend on them: a prompt token in a full pass of prefill, a cached one in the time that its keys and
values add to such a pass, an output token in a decode step of the sequences that run. Where prefill and decode have
devices of their own, each pays for its tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.core.units import MONTH
from roofline.scenario.analysis import analyze
from roofline.scenario.cost import HOUR, MILLION, price, rent
from roofline.scenario.fields import takes_prefix
from roofline.serving.curve import Deployment
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome
from roofline.serving.pools import Tandem
from roofline.serving.replica import budget_of


class Money(Struct, frozen=True):
    """USD per million tokens of prompts, of cached prefixes and of outputs, and USD a month of all devices.

    `cached` is NaN where the model's prompts cannot start from a cached prefix.
    """

    prompt: float
    cached: float
    output: float
    month: float


def money(
    deployment: Deployment, load: Load, outcome: Outcome, hours: float = MONTH, copies: int = 1, busy: float = 1.0
) -> Money | None:
    """The cost of a load's tokens on one of `copies` equal deployments that are rented for some hours a month.

    `busy`: how much of the outcome the copies have on average.
    None where a device has no price, or where the load is more than the deployment serves.
    """
    hourly, rate = rent(deployment.pools, deployment.scenario.price), outcome.requests_per_second
    if hourly is None or not rate or not outcome.stable:
        return None
    seconds = _seconds(deployment, load, outcome)
    prompt, output = load.means
    counts = np.array([prompt * (1 - load.hits), prompt * load.hits, output])
    usd = hourly / HOUR / (rate * busy)
    first, cached, last = (float(each) for each in usd * seconds / float(counts @ seconds) * MILLION)
    cached = cached if takes_prefix(deployment.scenario.model) else math.nan
    return Money(first, cached, last, hourly * copies * hours)


def _seconds(deployment: Deployment, load: Load, outcome: Outcome) -> Any:
    """Seconds of devices that a prompt token, a cached one and an output token take, in any unit of rent."""
    prefill, decode = (
        (deployment.prefill, deployment.decode) if isinstance(deployment, Tandem) else (deployment, deployment)
    )
    running, tokens = max(outcome.running, 1.0), round(load.means[0])
    computed = max(round(tokens * (1 - load.hits)), 1)
    budget = budget_of(prefill.scenario, prefill.scheduler) or computed
    fill = max(budget // computed, 1) * prefill.data  # the prompts of a pass that is full, on all ranks
    # What a cached prefix of the prompt's length would cost, without hits too.
    cached = (tokens - computed or tokens) if takes_prefix(prefill.scenario.model) else 0
    scenario = prefill.scenario.without("max_num_batched_tokens") if prefill.scenario.asked else prefill.scenario
    passes = analyze(scenario.at(batch=fill, prompt=computed, prefix=np.array([0, cached]))).prefill.expected.mid
    step = analyze(decode.scenario.at(batch=max(round(running), 1), prompt=tokens, context=round(load.held)))
    assert step.decode is not None
    seconds = np.array(
        [
            passes[0] / fill / computed,
            max(passes[1] - passes[0], 0.0) / fill / max(cached, 1),
            float(step.decode.expected.mid) / running / step.tokens_per_iteration,
        ]
    )
    if isinstance(deployment, Tandem):  # what each pool is rented for, whatever it does
        rents = [
            (price(hardware, deployment.scenario.price) or 0.0) * devices for hardware, devices in deployment.pools
        ]
        prompt = load.means[0]
        seconds[:2] *= rents[0] / (prompt * (1 - load.hits) * seconds[0] + prompt * load.hits * seconds[1])
        seconds[2] = rents[1] / load.means[1]
    return seconds
