"""Joules per generated token of a service, modelled: energy of prefill and decode, and static power of the idle time.

Devices of a service are always on. Deployments are ranked by energy at TDP only, the upper bound: comparing a model of
one device with the upper bound of another would favour the better documented one, and ranking modelled energies alone
would exclude most hardware.
"""

from __future__ import annotations

from roofline.advisor.sizing.configurations import Configuration
from roofline.advisor.sizing.workload import Service
from roofline.scenario.analysis import analyze
from roofline.scenario.energy import batch_energy, static_power, tdp_energy
from roofline.serving.outcome import Outcome


def modelled_energy_per_token(
    configuration: Configuration, service: Service, outcome: Outcome, batch: int
) -> float | None:
    """Modelled joules per token of a replica that decodes `batch` sequences; None without energy figures.

    At a rate L, with prefill and decode of E_p and E_d J per request on top of static power, it draws

        W = static power + L (E_p + E_d)
    """
    hardware, devices, rate = configuration.hardware, configuration.devices, outcome.requests_per_second
    alone, together = (analyze(configuration.scenario.at(batch=count)) for count in (1, batch))
    first, rest = batch_energy(alone, "mid"), batch_energy(together, "mid")
    if first is None or rest is None or not service.steps:
        return None
    decode = (rest.decode.total - rest.decode.static) / batch * service.steps / (together.scenario.generate - 1)
    token = 1 / (rate * service.answers.mean)
    joules = static_power([hardware]) * devices * token
    joules += (first.prefill.total - first.prefill.static + decode) / service.answers.mean
    most = tdp_energy([hardware], devices, token)
    return float(joules if most is None else min(joules, most))
