"""Instance types of clouds, with their devices: `hwspecs/instances/instances.yaml`."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from roofline.specs.records import bundled_record


class _Cloud(Struct, frozen=True, forbid_unknown_fields=True):
    """A cloud's instance types by device and, under each device, by the number of them."""

    source: str
    devices: dict[str, dict[str, tuple[str, ...]]]


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    clouds: dict[str, _Cloud]


def instance_devices(text: str) -> tuple[str, int] | None:
    """The device of an instance type and how many it has: p5.48xlarge, a3-highgpu-8g, Standard_ND96isr_H100_v5.

    SageMaker's are EC2's after ml.: ml.p5.48xlarge.
    """
    return _devices().get(_plain(text))


def instances_of(family: str) -> list[str]:
    """The instance types of a family, as of p5: p5.4xlarge and p5.48xlarge."""
    begun = re.compile(rf"{re.escape(family.strip().lower())}[.-]")
    return [name for name in _names() if begun.match(name.lower())]


@lru_cache(maxsize=1)
def _names() -> list[str]:
    clouds = bundled_record(_Table, "hwspecs/instances/instances.yaml").clouds.values()
    return [
        name for cloud in clouds for counts in cloud.devices.values() for names in counts.values() for name in names
    ]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.strip().lower().removeprefix("standard_").removeprefix("ml."))


@lru_cache(maxsize=1)
def _devices() -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for cloud in bundled_record(_Table, "hwspecs/instances/instances.yaml").clouds.values():
        for device, counts in cloud.devices.items():
            for count, names in counts.items():
                for name in names:
                    found[_plain(name)] = device, int(count)
    return found
