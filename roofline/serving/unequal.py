"""Unequal replicas of one model: a pool of devices of several kinds in replicas, each with a layout of its own.

HexGen (Jiang et al. 2024) divides such a pool. The router of balanced sends a request to the replica with the shortest
expected delay: requests there and this one, over the rate of the replica where it is full (`Replica.pace`).
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from roofline.core.errors import RooflineError, quote
from roofline.scenario.question import UNEQUAL
from roofline.scenario.scenario import Scenario
from roofline.serving.layouts import laid_out
from roofline.serving.load import Load
from roofline.serving.replica import Replica, replica_of
from roofline.specs.hardware_names import joined_devices
from roofline.specs.scheduler import Scheduler

PART = re.compile(r"(?:(?P<count>[1-9]\d{0,3})\*)?(?P<hardware>[^*]+)")


def replicas_beside(
    scenario: Scenario, written: str, load: Load, scheduler: Scheduler | None = None
) -> tuple[Replica, ...]:
    """The replicas of a text such as 2*8xa5000,4xa6000+4xrtx-3090-ti; those joined by a plus are HexGen's stages.

    Model, formats, engine and limits are the scenario's; the devices of each are laid out as those of hardware that is
    named with its count. Raises RooflineError where the model does not fit on one of them.
    """
    plain, replicas = laid_out(scenario), list[Replica]()
    for part in written.split(","):
        found = PART.fullmatch(part.strip())
        if found is None:
            raise RooflineError(
                f"replicas are devices, and how many of them, such as 2*8xa5000,4xa6000: got {quote(part)}",
                options=["beside"],
            )
        hardware = found["hardware"].strip()
        stages = [UNEQUAL] if len(joined_devices(hardware)) > 1 and not scenario.profile.split_layers else None
        one = replica_of(plain.with_(hw=hardware, techniques=stages), load, scheduler)
        replicas.append(replace(one, copies=int(found["count"] or 1)))
    return tuple(replicas)
