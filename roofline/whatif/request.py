"""A request: a scenario in the parts that it was asked for in, so that a question can change one of them.

Techniques change a scenario after all else is settled. Whoever asks for another batch, device or format therefore
changes the request, and the techniques are applied anew to what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Settings
from roofline.specs.checkpoint import SETTLED, precision_of
from roofline.specs.engine import default_engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import PLAIN, Precision
from roofline.techniques import apply_techniques, check_request


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


class Request(Struct, frozen=True, dict=True):
    """What a scenario is made of, before techniques.

    `formats` are arguments of `parse_precision` beside the base format, which follows from model and hardware;
    `degrees` those of `Parallelism`, `settings` further ones of `Settings`, `options` the other fields of `Scenario`.
    `techniques` are written as `apply_techniques` reads them. `written` holds what model and hardware were asked for
    by, a name or a path, where that is not the name that their specs give.
    """

    model: Model
    hardware: Hardware
    formats: Mapping[str, str | None] = field(default_factory=_nothing)
    degrees: Mapping[str, Any] = field(default_factory=_nothing)
    settings: Mapping[str, Any] = field(default_factory=_nothing)
    techniques: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=_nothing)
    written: Mapping[str, str] = field(default_factory=_nothing)

    @property
    def model_name(self) -> str:
        """The name or path by which the model can be asked for."""
        return self.written.get("model", self.model.name)

    @property
    def hardware_name(self) -> str:
        """The name or path by which the hardware can be asked for."""
        return self.written.get("hardware", self.hardware.name)

    @property
    def engine_name(self) -> str:
        """The name or path of the engine: as asked for, else that of its hardware."""
        return str(self.options.get("engine") or default_engine(self.hardware))

    def scenario(self, **changes: Any) -> Scenario:
        """The scenario, with some of the `options` changed. Raises RooflineError where it cannot be."""
        if not changes:
            return self._asked
        return apply_techniques(replace(self._plain, **changes), self.techniques)

    @cached_property
    def _plain(self) -> Scenario:
        settings = Settings(parallel=Parallelism(**self.degrees), **self.settings)
        return Scenario(self.model, self.hardware, precision=self.precision, settings=settings, **self.options)

    @cached_property
    def _asked(self) -> Scenario:
        return apply_techniques(self._plain, self.techniques)

    @property
    def precision(self) -> Precision:
        """The formats on this hardware, before techniques.

        A technique that settles the weights' format starts from the model in 16 bits, as if that had been asked for.
        """
        formats = self.formats
        if self.model.quantization is not None and not self.as_released:
            formats = {**formats, "scheme": formats.get("scheme") or PLAIN}
        return precision_of(self.model, self.hardware, self.options.get("engine"), **formats)

    @property
    def as_released(self) -> bool:
        """Whether a checkpoint that was released quantised runs so: nothing else is asked for its weights."""
        if self.model.quantization is None or any(self.formats.get(part) for part in SETTLED):
            return False
        return all(check_request(name).slot != "weight format" for name in self.techniques)

    def on(self, hardware: Hardware) -> Request:
        """The same on other hardware, in the format that the model runs in there."""
        return replace(self, hardware=hardware, written={**self.written, "hardware": hardware.name})

    def quantised(self, scheme: str) -> Request:
        """The same under a named scheme; formats that were asked for one by one stay."""
        return replace(self, formats={**self.formats, "scheme": scheme})

    def spread(self, **degrees: int) -> Request:
        """The same with other degrees of parallelism."""
        return replace(self, degrees={**self.degrees, **degrees})

    def with_options(self, **options: Any) -> Request:
        """The same with other fields of the scenario, such as its batch or its engine."""
        return replace(self, options={**self.options, **options})

    def using(self, *techniques: str) -> Request:
        """The same with other techniques; what does not hang on them is worked out once for both."""
        changed = replace(self, techniques=techniques)
        if self.model.quantization is None and "_plain" in vars(self):
            vars(changed)["_plain"] = self._plain
        return changed
