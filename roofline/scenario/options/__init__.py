"""The table of options: everything that a person can vary of a scenario, one entry each.

The entries are the keywords of `Scenario`. Commands, axes and keys of studies, the page's fields, the JSON schema and
the reference pages are made from them, and the names that engines have for an option are spellings of its entry.
"""

from collections.abc import Collection, Mapping
from typing import Any

from roofline.core.documents import bundled
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.options import Option, read_table
from roofline.scenario.options.keywords import Options

__all__ = ["FORMATS", "KERNELS", "OPTIONS", "Options"]

FORMATS, KERNELS = "Formats", "Kernels and techniques"
"""Groups of the options whose members are asked for."""

OPTIONS: Mapping[str, Option] = read_table("scenario/options/options.yaml")
"""The options by name: the keywords of `Scenario`, and with dashes the command line's."""

DEGREES: Mapping[str, str] = {
    option.target[1]: option.name for option in OPTIONS.values() if option.target[0] == "degrees"
}
"""The options of the degrees of parallelism, by field of `Parallelism`."""

STATIC = tuple(option.name for option in OPTIONS.values() if option.static)
"""Options of a static batch, which a load has not."""


def of_group(*groups: str) -> tuple[str, ...]:
    """The options of some groups."""
    return tuple(option.name for option in OPTIONS.values() if option.group in groups)


NEEDED = tuple(option.name for option in OPTIONS.values() if option.needed)
"""Options without which there is no scenario."""


MEANT: Mapping[str, str] = {
    name: text for text, names in bundled("scenario/options/meant.yaml").items() for name in names
}
"""What to write for names that are no option, in words."""

OF_A_LOAD = frozenset(
    {"concurrency", "max_concurrency", "rate", "request_rate", "offline", "trace", "burstiness", "prefix_hits"}
    | {"users", "rounds", "policy", "tenants", "simulate", "num_prompts", "seed", "disaggregation", "ttft", "tpot"}
    | {"loss", "startup", "rollouts", "models", "models_per_replica", "beside"}
)
"""Names of the options of a load and of targets, which are in a later room."""


def option_key(text: object) -> str:
    """A name with underscores, without leading dashes."""
    return str(text).strip().lstrip("-").replace("-", "_").removesuffix("_")


SPELLINGS: Mapping[str, str] = {option_key(flag): option.name for option in OPTIONS.values() for flag in option.flags}
"""The options by the names that engines have for them, without dashes."""


def missing(name: str) -> str:
    """The sentence of an error about a missing option of NEEDED."""
    return f"{'a model' if name == 'model' else 'hardware'} is missing: name {OPTIONS[name].needed}"


def find_option(name: object) -> Option:
    """The option called `name`; raises UnknownNameError with the nearest name.

    Dashes and underscores are alike. Names that engines have for an option are known, too.
    """
    key = option_key(name)
    key = key if key in OPTIONS else SPELLINGS.get(key, key)
    if key in MEANT:
        raise UnknownNameError("option of a scenario", name, (), hint=f"; {MEANT[key]}")
    if key in OF_A_LOAD:
        raise UnknownNameError("option of a scenario", name, (), hint="; a load or its targets have it, as of serve")
    if key not in OPTIONS:
        raise UnknownNameError("option of a scenario", name, [*OPTIONS, *SPELLINGS])
    return OPTIONS[key]


def read_options(values: Mapping[str, object]) -> dict[str, Any]:
    """Option values from text or YAML values, by option name, without those that are not set. Raises RooflineError."""
    found = {name: OPTIONS[name].read(value) for name, value in by_name(values).items()}
    return {
        name: value
        for name, value in found.items()
        if value is not None and not (isinstance(value, list) and not value)
    }


def by_name(values: Mapping[str, Any], others: Collection[str] = ()) -> dict[str, Any]:
    """Values by the names of their options, or of `others`; raises RooflineError where one is given by two names."""
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = given if given in others else find_option(given).name
        if name in found:
            raise RooflineError(f"{given} and another name of {name} are given: give one of them")
        found[name] = value
    return found
