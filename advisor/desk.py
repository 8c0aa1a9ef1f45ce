"""What is sold to put on a desk: computers for one user, and the cards in them."""

from __future__ import annotations

from roofline.specs.hardware import Hardware

CONSUMER = ("apple", "core", "rdna3", "battlemage")
"""Families of desktop computers and their cards; NVIDIA's are known by name, since families have both."""
CONSUMER_NAMES = ("rtx-", "dgx-spark", "jetson")


def consumer(hardware: Hardware) -> bool:
    """Whether it is sold to put on a desk."""
    named = hardware.name.startswith(CONSUMER_NAMES) and not hardware.name.endswith("-server")
    return hardware.family in CONSUMER or named
