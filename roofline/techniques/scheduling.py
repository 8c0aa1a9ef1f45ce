"""Scheduling over a stream of requests, over instances, and over machines that come and go (Miao et al. 2023, 3.2).

Of these only the time of an iteration is a scenario. Which request runs next, and where, changes no iteration: entries
without a `change` say which command shows what they would change.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.units import Dimension, parse_quantity
from roofline.graph.parallel import SINGLE, rank_model
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Interconnect
from roofline.techniques.base import Parameter, Published, Technique, Values, system_technique
from roofline.techniques.changes import require_generation, with_settings

_QUEUE = "`roofline size` shows the waiting time of first come, first served"


def _over_the_internet(scenario: Scenario, values: Values) -> Scenario:
    """Pipeline stages on machines of their own; raises RooflineError for a scenario with other parallelism.

    A token passes from the client through all stages and back: stages + 1 hops of half a round trip each, which the
    stages - 1 transfers between stages carry here.
    """
    require_generation(scenario, "petals")
    if scenario.settings.parallel != SINGLE:
        raise RooflineError(
            "petals conflicts with the parallelism of the scenario: each of its machines has one device"
        )
    stages = values["stages"]
    parallel = replace(SINGLE, pipeline=stages, nodes=stages)
    rank_model(scenario.model, parallel)
    link = Interconnect(
        kind="Internet",
        scope="network",
        bandwidth=parse_quantity(values["bandwidth"], Dimension.BANDWIDTH).value,
        latency=parse_quantity(values["rtt"], Dimension.TIME).value / 2 * (stages + 1) / (stages - 1),
    )
    local = tuple(other for other in scenario.hardware.interconnects if other.scope != "network")
    hardware = replace(scenario.hardware, interconnects=(*local, link))
    return with_settings(replace(scenario, hardware=hardware), parallel=parallel)


TECHNIQUES: tuple[Technique, ...] = (
    system_technique(
        "fastserve",
        "FastServe: preemption after every token, short requests first",
        "Wu et al. 2023, FastServe",
        "Requests return to a queue of lower priority when their time is up, so that short ones need not wait.",
        "request order",
        None,
        published=(
            Published(
                "up to 6.1 times the throughput of vLLM (31.4 in the preprint)",
                "the same average latency",
                "Wu et al. 2026, NSDI; arXiv 2305.05920",
            ),
        ),
        caveat=f"an iteration takes as long, and who waits depends on all requests: {_QUEUE}, and"
        " `--offload kv=FRACTION` the transfer of a preempted request's KV cache",
    ),
    system_technique(
        "vtc",
        "VTC: fair shares of service by counting each client's tokens",
        "Sheng et al. 2023, VTC",
        "The client with the fewest tokens served so far is next; no device idles for it.",
        "request order",
        None,
        covers=("Virtual Token Counter",),
        published=(
            Published(
                "two waiting clients differ by a bounded service, within twice the least possible bound",
                "proven for any work-conserving scheduler",
                "Sheng et al. 2023, arXiv 2401.00588",
            ),
        ),
        caveat=f"throughput stays the same, and fairness is a property of clients over time: {_QUEUE} of all clients"
        " together",
    ),
    system_technique(
        "llumnix",
        "Llumnix: running requests migrate between instances",
        "Sun et al. 2024, Llumnix",
        "Requests move with their KV cache to another instance, to balance load and make room for long ones.",
        "instances",
        None,
        published=(
            Published(
                "tail latency lower by up to an order of magnitude, costs by up to 36%",
                "several instances on 16 GPUs",
                "Sun et al. 2024, OSDI, abstract",
            ),
        ),
        caveat="when and where requests move depends on all of them: `roofline size` shares the load evenly among"
        " instances, and `--with disaggregation` shows the transfer of a KV cache over the network",
    ),
    system_technique(
        "alpaserve",
        "AlpaServe: several models share the devices of one pipeline or tensor-parallel group",
        "Li et al. 2023, AlpaServe",
        "A burst for one model uses the devices of all, at the price of parallel overheads for every request.",
        "instances",
        None,
        published=(
            Published(
                "10 times the request rate, or 6 times the burstiness, within the latency target for 99%",
                "traces of production workloads",
                "Li et al. 2023, OSDI, abstract",
            ),
        ),
        caveat="a scenario has one model: `roofline sweep --over tp=...` and `--over pp=...` show the overheads that it"
        " trades for sharing, `roofline size --tp N` the waiting time of one model",
    ),
    system_technique(
        "spotserve",
        "SpotServe: serving on preemptible instances",
        "Miao et al. 2023, SpotServe",
        "When an instance is taken away, the others regroup, and requests resume from their KV cache.",
        "instances",
        None,
        published=(
            Published(
                "p99 latency 2.4 to 9.1 times lower than with other systems on such instances, costs 54% lower than on"
                " demand",
                "traces of preemptible instances",
                "Miao et al. 2023, arXiv 2311.15566, abstract",
            ),
        ),
        caveat="when instances are lost is not known: `--price USD` takes the price of a preemptible device, and"
        " `roofline sweep --over tp=...` shows each group that may be left",
    ),
    system_technique(
        "petals",
        "Petals: pipeline stages on machines across the Internet",
        "Borzunov et al. 2022, Petals",
        "Every machine holds consecutive layers; a token passes from the client through all of them and back.",
        "pipeline-parallelism",
        _over_the_internet,
        Parameter("stages", 3, "machines, each with one device (a setting of the paper)", 2, 10_000),
        Parameter("bandwidth", "12.5 MB/s", "bandwidth of a machine's connection (100 Mbit/s, a setting of the paper)"),
        Parameter("rtt", "100 ms", "round-trip time between machines (a setting of the paper)"),
        covers=("Petals", "decentralized inference"),
        published=(
            Published(
                "2.29 steps/s with 5 ms or less, 1.57 with 100 ms between machines",
                "Llama 2 70B",
                "Borzunov et al. 2023, arXiv 2312.08361",
            ),
            Published("0.83 steps/s", "BLOOM-176B, 14 machines on two continents", "Borzunov et al. 2023, the same"),
        ),
        caveat="Machines are alike and stay; the prompt is sent as 16-bit activations.",
    ),
)
