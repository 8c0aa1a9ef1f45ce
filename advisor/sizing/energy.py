"""Joules a generated token of a service, in two readings.

    at most     devices x TDP x time
    modelled    what prefill and decode draw (`roofline.scenario.energy`), and the static power of the time that is left

The time is all of it: a service's devices are on whether requests come or not, so that a token takes 1 / (rate x
tokens of an answer) seconds; one user's device is on from the question to the end of the answer. At most is known
wherever a spec has a TDP, modelled where it has energy figures as well. Configurations are ranked by the former only:
a model of one device beside an upper end of another would favour whichever has more documents, and an order among the
modelled ones alone would leave out most hardware, and change with what else there is to choose from.
"""

from __future__ import annotations

import numpy as np

from roofline.advisor.sizing.configurations import Simulated
from roofline.advisor.sizing.queueing import Replica
from roofline.advisor.sizing.workload import Service
from roofline.scenario.analysis import analyze
from roofline.scenario.energy import consumption, known, most_joules, static_power
from roofline.specs.hardware import Hardware
from roofline.timing.estimate import Reading


def token_time(service: Service, replica: Replica) -> float:
    """Seconds from one generated token of the service to the next, of all its devices."""
    if service.rate is not None:
        return 1 / (service.rate * service.answers.mean)
    return float(replica.prefill.mean + service.steps * replica.step[0]) / service.answers.mean


def at_most(hardware: Hardware, devices: int, service: Service, replica: Replica) -> float | None:
    """Joules a token of so many devices at their TDP all of the time; None where it is unknown."""
    found: float | None = most_joules([hardware], devices, token_time(service, replica))
    return found


def modelled(simulated: Simulated, at: Reading, replicas: int, batch: int) -> float | None:
    """Joules a token of so many replicas that decode `batch` sequences at once; None without energy figures.

    Of a replica with a share L of the rate, whose prefill and decoding draw E_p and E_d J a request on top of the
    static power:

        W = static power + L (E_p + E_d)
    """
    prospect = simulated.prospect
    configuration, service, lengths = prospect.configuration, prospect.service, prospect.counted.lengths
    hardware = configuration.hardware
    if not known([hardware]):
        return None
    prompts = analyze(configuration.prefill.with_options(prompt=lengths, generate=1).scenario())
    answers = simulated.alone(batch)
    first, rest = consumption(prompts, at), consumption(answers, at)
    assert first is not None
    assert rest is not None
    each = service.steps / (answers.scenario.generate - 1) / batch
    prefills = np.interp(service.prompts.sample, lengths, first.prefill.total - first.prefill.static)
    worked = float(prefills.mean()) + (rest.decode.total - rest.decode.static) * each
    replica, devices = simulated.replica(at), configuration.devices * replicas
    static = static_power([hardware]) * devices * token_time(service, replica)
    joules = static + worked / service.answers.mean
    most = at_most(hardware, devices, service, replica)
    return float(joules if most is None else min(joules, most))
