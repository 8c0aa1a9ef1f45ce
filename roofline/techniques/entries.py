"""The entries of the catalogue, read from catalogue/*.yaml and from the folder `techniques` of `ROOFLINE_SPECS`.

A file has three keys. `techniques` has the entries by name, in the order in which they apply, with the keys of
`Technique`; parameters are a mapping by name. Entries that differ in constants alone name a `mechanism`, which has the
keys that they share: an entry's own keys come before those, and before the `defaults` of the file. Parameters are
merged one by one, and a parameter with a single value, such as `bits: 4`, takes the rest from the mechanism.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import asdict, replace

from roofline.core.documents import bundled_path, read_mapping
from roofline.core.errors import SpecError, quote, suggest, visible
from roofline.scenario.scenario import Scenario
from roofline.specs.library import File, as_mapping, check_keys
from roofline.specs.records import record
from roofline.techniques.acceptance import as_published
from roofline.techniques.base import Function, Registered, Technique, check_entry

MODEL = ("structure", "attention", "quantization", "compression", "conditional")
SYSTEM = ("kernels", "serving", "speculation", "placement", "scheduling")
FILES = (*MODEL, "data", *SYSTEM)
"""In the order in which techniques apply; distillation comes first, since it replaces the model."""


def bundled_entries() -> Iterator[Technique]:
    """The bundled entries in the order of application."""
    for path in (bundled_path(f"techniques/catalogue/{name}.yaml") for name in FILES):
        yield from read_entries(read_mapping(path), str(path))


def own_entries(files: Iterable[File], functions: Collection[str]) -> Iterator[Technique]:
    """The entries of a user's files, which name no other functions than these; raises SpecError."""
    for path in (file.path for file in files):
        for entry in read_entries(read_mapping(path), str(path)):
            key = f"techniques.{entry.name}"
            if entry.function and entry.function not in functions:
                problem = f"unknown function {quote(entry.function)}{suggest(entry.function, functions)}"
                raise SpecError(str(path), f"{quote(key)}: {problem}")
            check_entry(entry, str(path), key)
            yield Registered(**asdict(entry), own=_guarded(entry, str(path), key)) if entry.function else entry


def _guarded(entry: Technique, where: str, key: str) -> Function:
    """The function of an entry, with a SpecError where it cannot compute with the file's values."""

    def apply(*arguments: Any, **values: Any) -> Scenario:
        try:
            return entry.applied_by(*arguments, **values)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"its function cannot compute with its constants and parameters: {visible(str(error))}"
            raise SpecError(where, f"{quote(key)}: {problem}") from error

    return apply


def read_entries(content: Mapping[str, Any], where: str) -> Iterator[Technique]:
    """The entries in the content of a file; `where` names it in errors. Raises SpecError."""
    check_keys(content, ("defaults", "mechanisms", "techniques"), where)
    defaults, mechanisms, entries = (
        as_mapping(content.get(key, {}), where, key) for key in ("defaults", "mechanisms", "techniques")
    )
    for name, body in entries.items():
        place = f"techniques.{name}"
        own = dict(as_mapping(body, where, place))
        mechanism = own.pop("mechanism", None)
        if mechanism is not None and (not isinstance(mechanism, str) or mechanism not in mechanisms):
            problem = f"unknown mechanism {quote(mechanism)}{suggest(mechanism, mechanisms)}"
            raise SpecError(where, f"{quote(place)}: {problem}")
        shared = as_mapping(mechanisms[mechanism], where, f"mechanisms.{mechanism}") if mechanism else {}
        for layer in (defaults, shared, own):
            as_mapping(layer.get("parameters", {}), where, f"{place}.parameters")
        entry = record(Technique, {"name": name, **_merged(defaults, shared, own)}, where, place)
        # A mechanism names the entry that its others equal, which is not compared with itself.
        same_as = "" if entry.same_as == name else entry.same_as
        yield replace(entry, same_as=same_as, published=(*entry.published, *as_published(name)))


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of all layers, of which later ones take precedence."""
    merged: dict[str, Any] = {}
    parameters: dict[str, dict[str, Any]] = {}
    for layer in layers:
        merged.update(layer)
        for name, body in layer.get("parameters", {}).items():
            given = body if isinstance(body, Mapping) else {"default": body}
            parameters[name] = {**parameters.get(name, {}), **given}
    return {**merged, "parameters": [{"name": name, **body} for name, body in parameters.items()]}
