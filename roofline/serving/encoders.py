"""Encoders of images on devices of their own (EPD), before a deployment that prefills and decodes.

vLLM ("disaggregated encoder"), SGLang (--encoder-only) and TensorRT-LLM (its multimodal encoder server) send images to
encoders in turn, of one device each, which send embeddings to the devices of prefill. Of n encoders that take D seconds
for the images of a request, requests leave every D / n seconds at most: they are a front end with that service.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.graph.parallel import SINGLE
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load
from roofline.serving.pools import Pools, over_link
from roofline.specs.hardware import NETWORK, Hardware
from roofline.specs.scheduler import Scheduler

ENGINES = ("vllm", "sglang", "tensorrt-llm")
"""Engines that have encoders apart (docs.vllm.ai, features/disagg_encoder; SGLang, EPD disaggregation; TensorRT-LLM,
examples/disaggregated)."""

EMBEDDING = 2
"""Bytes of an element of an embedding that is sent: 16 bits."""


def encoder_of(scenario: Scenario, pools: Pools) -> Hardware:
    """The hardware of the encoders; raises RooflineError where the engine has none apart, or prompts have no images."""
    if scenario.profile.name not in ENGINES:
        raise RooflineError(f"{scenario.profile.heading} has no encoders apart: {', '.join(ENGINES)} have")
    if scenario.tower_step is None or scenario.model.tower_kind == "encoder":
        raise RooflineError("encoders apart are of images: say how many a prompt has", options=["images"])
    return pools.encoder or scenario.hardware


def seconds_of(scenario: Scenario, pools: Pools) -> tuple[float, float]:
    """Seconds in which an encoder encodes the images of a request, and in which their embeddings are sent."""
    hardware = encoder_of(scenario, pools)
    settings = replace(scenario.settings, parallel=SINGLE, decode_hardware=None)
    one = analyze(scenario.changed(hardware=hardware, batch=1, prompt=1, generate=1, prefix=0, settings=settings))
    run = next(run for run in one.prefill.passes if run.label == "encoder")
    timing = one.prefill.timed(run)
    encoded = float(np.sum(timing.spent(timing.detail(run.step))))
    sizes = scenario.images * scenario.image_tokens * scenario.model.hidden * EMBEDDING
    links = [over_link(end, pools.link).link(NETWORK) for end in (hardware, scenario.hardware)]
    return encoded, max(float(sizes) / link.bandwidth + (link.latency or 0.0) for link in links)


def behind_encoders(scenario: Scenario, load: Load, pools: Pools, policy: Scheduler) -> tuple[Scenario, Scheduler]:
    """The deployment behind encoders, whose prompts have embeddings for images, and its policy with their front end."""
    encoded, sent = seconds_of(scenario, pools)
    own, each = policy.front(load.means[0]), encoded / pools.encoders
    slowest = max(own, each)
    latency = policy.latency + own + encoded + sent - slowest
    return scenario.changed(images=0), replace(policy, request=policy.request + slowest - own, latency=latency)
