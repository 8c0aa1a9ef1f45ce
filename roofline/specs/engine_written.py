"""Engine profiles as the text of YAML files, which `roofline.specs.engine_files` reads back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from msgspec import Struct, to_builtins

from roofline.core.parameters import Parameter, Unit
from roofline.core.units import GIB
from roofline.specs.engine import PARAMETERS, Engine
from roofline.specs.reserve import NO_RESERVE, SIZES
from roofline.specs.scheduler import PLAIN_SCHEDULER, TIMES

PLAIN = Engine("plain")

_ALWAYS = ("name", "title", "fusions", "graphs")
_APART = ("parameters", "vendors", "mixers", "spread", "sources", "handled", "version", "starts")


def render(engine: Engine) -> str:
    """The YAML text of a profile; `parse_engine` reads it back."""
    own = {key: value for key, value in _differing(engine, PLAIN, _ALWAYS).items() if key not in _APART}
    memory, policy = _differing(engine.memory, NO_RESERVE), _differing(engine.scheduler, PLAIN_SCHEDULER)
    memory |= {name: _rounded(memory[name] / GIB) for name in memory.keys() & set(SIZES)}
    if engine.memory.large_device is not None:
        memory["large_device"]["memory"] = _rounded(engine.memory.large_device.memory / GIB)
    policy |= {name: _microseconds(policy[name]) for name in policy.keys() & set(TIMES)}
    ends: dict[str, Any] = {
        key: {
            name: {each.name: _shown(each, own[each.name]) for each in PARAMETERS if each.name in own}
            for name, own in getattr(engine, key).items()
        }
        for key in ("vendors", "mixers")
    }
    ends |= {"spread": list(map(_rounded, engine.spread)), "sources": list(engine.sources)}
    rows = (f"  {each.name}: {_shown(each, engine[each.name])}  # {each.meaning}\n" for each in PARAMETERS)
    return "".join(
        (_dumped(own | _some(memory=memory, scheduler=policy)), "parameters:\n", *rows, _dumped(_some(**ends)))
    )


def _differing(found: Struct, usual: Struct, always: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that differ from the usual ones, as a file has them."""
    values = ((name, getattr(found, name)) for name in found.__struct_fields__)
    changed = {name: value for name, value in values if name in always or value != getattr(usual, name)}
    written: dict[str, Any] = to_builtins(changed, enc_hook=_plain)
    return written


def _plain(value: Any) -> Any:
    """A mapping that is no dictionary, or a number of NumPy that a fit yields."""
    return dict(value) if isinstance(value, Mapping) else float(value)


def _some(**sections: Any) -> dict[str, Any]:
    return {key: section for key, section in sections.items() if section}


def _dumped(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=10**6, default_flow_style=None, allow_unicode=True)


def _shown(parameter: Parameter, value: float) -> float | str:
    return _rounded(value) if parameter.unit is Unit.RATIO or value == 0 else _microseconds(value)


def _microseconds(value: float) -> str:
    return f"{value * 1e6:.4g} us"


def _rounded(value: float) -> float:
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded
