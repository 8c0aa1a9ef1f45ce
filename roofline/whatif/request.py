"""A request: the parts of a scenario before techniques, each of which can be changed.

Techniques apply to a complete scenario. To change a batch, device or format, change the request: its techniques are
applied again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.graph.parallel import Parallelism
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import MAX_BATCH, Scenario
from roofline.scenario.settings import Settings
from roofline.specs.checkpoint import RELEASED_OVERRIDES, precision_of
from roofline.specs.engine import Engine, default_engine, resolve_engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import PLAIN, Precision
from roofline.techniques import apply_techniques, check_request


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


class Request(Struct, frozen=True, dict=True):
    """The parts of a scenario before techniques.

    `formats` are arguments of `parse_precision` besides the base format, which follows from model and hardware;
    `degrees` those of `Parallelism`, `settings` further ones of `Settings`, `options` the other fields of `Scenario`.
    `techniques` are arguments of `apply_techniques`. `written` has the name or path of model and hardware, if it is not
    the name in their specs. `limits` are vLLM's `max_model_len`, the most tokens of a sequence, which the model has as
    its maximum context, and `max_num_seqs`, the most sequences of a data-parallel rank.
    """

    model: Model
    hardware: Hardware
    formats: Mapping[str, str | None] = field(default_factory=_nothing)
    degrees: Mapping[str, Any] = field(default_factory=_nothing)
    settings: Mapping[str, Any] = field(default_factory=_nothing)
    techniques: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=_nothing)
    written: Mapping[str, str] = field(default_factory=_nothing)
    limits: Mapping[str, int] = field(default_factory=_nothing)

    @property
    def model_name(self) -> str:
        """The name or path of the model."""
        return self.written.get("model", self.model.name)

    @property
    def hardware_name(self) -> str:
        """The name or path of the hardware."""
        return self.written.get("hardware", self.hardware.name)

    @property
    def engine_name(self) -> str:
        """The name (with a version) or path of the engine; by default that of the hardware and the model."""
        return str(self.options.get("engine") or default_engine(self.hardware, self.model))

    @property
    def engine(self) -> Engine:
        """The engine's profile."""
        return resolve_engine(self.hardware, self.options.get("engine"), self.model)

    def scenario(self, **changes: Any) -> Scenario:
        """The scenario, with some of the `options` changed. Raises RooflineError if it is invalid."""
        if not changes:
            return self._scenario
        return apply_techniques(replace(self._plain, **changes), self.techniques)

    def deployment(self) -> Scenario:
        """The scenario for a load, which replaces the workload: the load's requests, not it, are held to the limits."""
        return apply_techniques(self._unchecked, self.techniques)

    @cached_property
    def _unchecked(self) -> Scenario:
        settings = Settings(
            parallel=Parallelism(**self.degrees),
            sequences=self.limits.get("max_num_seqs"),
            longest=self.limits.get("max_model_len"),
            **self.settings,
        )
        return Scenario(self.model, self.hardware, precision=self.precision, settings=settings, **self.options)

    @cached_property
    def _plain(self) -> Scenario:
        if self.limits:
            self._check_limits(self._unchecked)
        return self._unchecked

    @property
    def max_batch(self) -> int:
        """The most sequences in the batch, of all data-parallel ranks."""
        return min(MAX_BATCH, self.limits.get("max_num_seqs", MAX_BATCH) * Parallelism(**self.degrees).data)

    def _check_limits(self, scenario: Scenario) -> None:
        """Raise RooflineError for what vLLM refuses, or runs in turns."""
        if (batch := int(np.max(scenario.batch))) > self.max_batch:
            raise RooflineError(f"a batch of {batch} is more than --max-num-seqs allows at once, {self.max_batch}")
        longest = self.limits.get("max_model_len")
        if longest is None:
            return
        if (tokens := int(np.max(scenario.first_cached + scenario.generate))) > longest:
            raise RooflineError(f"a sequence of {tokens} tokens is longer than --max-model-len {longest}")
        ranks = Parallelism(**self.degrees).data
        whole = replace(scenario, batch=ranks, prompt=longest, generate=1, prefix=0, images=0, context=None)
        if np.all(analyze(scenario).memory.fits) and not analyze(whole).memory.fits:
            raise RooflineError(f"vLLM does not start: a sequence of --max-model-len {longest} does not fit in memory")

    @cached_property
    def _scenario(self) -> Scenario:
        return apply_techniques(self._plain, self.techniques)

    @property
    def precision(self) -> Precision:
        """The formats on this hardware, before techniques.

        With a technique that sets the weight format, a quantized checkpoint counts as 16 bits.
        """
        formats = self.formats
        if self.model.quantization is not None and not self.as_released:
            formats = {**formats, "scheme": formats.get("scheme") or PLAIN}
        return precision_of(self.model, self.hardware, self.options.get("engine"), **formats)

    @property
    def as_released(self) -> bool:
        """Whether a quantized checkpoint keeps its released format: no option or technique sets another."""
        if self.model.quantization is None or any(self.formats.get(part) for part in RELEASED_OVERRIDES):
            return False
        return all(check_request(name).slot != "weight format" for name in self.techniques)

    def on(self, hardware: Hardware) -> Request:
        """The request on other hardware, in the model's default format there."""
        return replace(self, hardware=hardware, written={**self.written, "hardware": hardware.name})

    def quantized(self, scheme: str) -> Request:
        """The request with a named quantization scheme; formats set one by one stay."""
        return self.with_formats(scheme=scheme)

    def with_formats(self, **formats: str) -> Request:
        """The request with other formats, as arguments of `parse_precision`."""
        return replace(self, formats={**self.formats, **formats})

    def spread(self, **degrees: int) -> Request:
        """The request with other degrees of parallelism."""
        return replace(self, degrees={**self.degrees, **degrees})

    def with_options(self, **options: Any) -> Request:
        """The request with other fields of the scenario, such as its batch or engine."""
        return replace(self, options={**self.options, **options})

    def using(self, *techniques: str) -> Request:
        """The request with other techniques; both share the scenario before techniques."""
        changed = replace(self, techniques=techniques)
        if self.model.quantization is None and "_plain" in vars(self):
            vars(changed)["_plain"] = self._plain
        return changed
