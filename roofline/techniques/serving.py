"""Serving techniques: KV cache allocation, prefix caching, batching, chunked prefill, beam search."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.core.errors import UnsupportedError
from roofline.core.units import Dimension, parse_quantity
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Fetch
from roofline.techniques.changes import with_cached_prefix, with_settings


def set_settings(scenario: Scenario, _: str, **settings: Any) -> Scenario:
    """The scenario with other settings, named as the fields of `Settings`."""
    return with_settings(scenario, **settings)


def static_batch(scenario: Scenario, _: str, *, utilisation: float) -> Scenario:
    """A batch that runs until its longest sequence ends; `utilisation`: mean over longest output."""
    return with_settings(scenario, useful=scenario.settings.useful * utilisation)


def in_beams(scenario: Scenario, _: str, *, beams: int) -> Scenario:
    """Every sequence decoded as `beams` beams."""
    return with_settings(scenario, beams=scenario.settings.beams * beams)


def in_chunks(scenario: Scenario, _: str, *, block: int) -> Scenario:
    """Prefill in passes of `block` tokens of all sequences."""
    return with_settings(scenario, chunk=block)


def in_blocks(scenario: Scenario, _: str, *, block: int) -> Scenario:
    """The KV cache in blocks of `block` tokens."""
    return with_settings(scenario, kv_block=block, kv_reserved=None)


def reserved_length(scenario: Scenario, name: str, *, length: int) -> Scenario:
    """The KV cache of `length` tokens reserved for every sequence; 0: of the model's maximum context."""
    reserved = length or scenario.model.max_context
    if reserved is None:
        raise UnsupportedError(f"{name} needs length: {scenario.model.name} states no maximum context")
    return with_settings(scenario, kv_reserved=reserved, kv_block=1)


def predicted_length(scenario: Scenario, _: str, *, bucket: int, excess: float) -> Scenario:
    """The KV cache reserved up to the end of the bucket that the predicted length of the output falls into."""
    output = np.ceil(scenario.generate * excess / bucket) * bucket
    return with_settings(scenario, kv_reserved=scenario.first_cached + output, kv_block=1)


def cached_prefix(scenario: Scenario, _: str, *, hit: float) -> Scenario:
    """A fraction of each prompt is in the KV cache at the start, stored once for all sequences."""
    return with_settings(with_cached_prefix(scenario, hit), shared_prefix=True)


def fetched_prefix(scenario: Scenario, _: str, *, hit: float, ratio: float, bandwidth: str) -> Scenario:
    """The KV cache of a fraction of each prompt is loaded over a network, `ratio` times smaller."""
    cached = with_cached_prefix(scenario, hit)
    rate = parse_quantity(bandwidth, Dimension.BANDWIDTH).value
    return with_settings(cached, fetch=Fetch(scenario.prompt - cached.prompt, ratio, rate))
