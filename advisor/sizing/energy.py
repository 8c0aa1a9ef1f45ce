"""Joules per generated token of a service, in two readings.

    at TDP      devices x TDP x time
    modelled    energy of prefill and decode (`roofline.scenario.energy`) and static power of the idle time

Devices of a service are always on, so a token takes 1 / (rate x mean output tokens) seconds; one user's device is on
from prompt to end of answer. Energy at TDP needs a TDP, modelled energy needs energy figures as well. Deployments are
ranked by energy at TDP only: comparing a model of one device with the upper bound of another would favour the better
documented one, and ranking modelled energies alone would exclude most hardware.
"""

from __future__ import annotations

import numpy as np

from roofline.advisor.sizing.configurations import Simulated
from roofline.advisor.sizing.queueing import Replica
from roofline.advisor.sizing.workload import Service
from roofline.scenario.analysis import analyze
from roofline.scenario.energy import batch_energy, has_energy_figures, static_power, tdp_energy
from roofline.specs.hardware import Hardware
from roofline.timing.intervals import Reading


def token_time(service: Service, replica: Replica) -> float:
    """Seconds of the service per generated token, of all its devices together."""
    if service.rate is not None:
        return 1 / (service.rate * service.answers.mean)
    return float(replica.prefill.mean + service.steps * replica.step[0]) / service.answers.mean


def tdp_energy_per_token(hardware: Hardware, devices: int, service: Service, replica: Replica) -> float | None:
    """Joules per token with all devices at TDP all the time; None without a TDP."""
    found: float | None = tdp_energy([hardware], devices, token_time(service, replica))
    return found


def modelled_energy_per_token(simulated: Simulated, at: Reading, replicas: int, batch: int) -> float | None:
    """Modelled joules per token of some replicas that decode `batch` sequences; None without energy figures.

    A replica with rate L, whose prefill and decode take E_p and E_d J per request on top of static power, draws

        W = static power + L (E_p + E_d)
    """
    candidate = simulated.candidate
    configuration, service, lengths = candidate.configuration, candidate.service, candidate.counted.lengths
    hardware = configuration.hardware
    if not has_energy_figures([hardware]):
        return None
    prompts = analyze(configuration.prefill.with_options(prompt=lengths, generate=1).scenario())
    answers = simulated.alone(batch)
    first, rest = batch_energy(prompts, at), batch_energy(answers, at)
    assert first is not None
    assert rest is not None
    each = service.steps / (answers.scenario.generate - 1) / batch
    prefills = np.interp(service.prompts.sample, lengths, first.prefill.total - first.prefill.static)
    worked = float(prefills.mean()) + (rest.decode.total - rest.decode.static) * each
    replica, devices = simulated.replica(at), configuration.devices * replicas
    static = static_power([hardware]) * devices * token_time(service, replica)
    joules = static + worked / service.answers.mean
    most = tdp_energy_per_token(hardware, devices, service, replica)
    return float(joules if most is None else min(joules, most))
