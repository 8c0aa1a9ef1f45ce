"""The repository of a scenario's model, and the name that it has there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from roofline.scenario.scenario import Scenario
from roofline.specs.model_names import (
    begins,
    begun_repository,
    letters,
    listed_repository,
    made_name,
    quantized_repositories,
)
from roofline.specs.records import bundled_record

HUB = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)(?:/.*)?", re.ASCII)
_REPOSITORY = re.compile(r"(?:(?:https?://)?(?:huggingface\.co|hf\.co)/)?([\w.-]+/[\w.-]+)", re.ASCII)


def repository_of(scenario: Scenario) -> str:
    """The repository of the model: as the user named it, as the spec lists it, or of the spec's source; "" for none."""
    name, source = made_name(scenario.model_name), HUB.fullmatch(scenario.model.source or "")
    own = "" if source is None else source[1]
    maker, _, plain = own.rpartition("/")
    found = _REPOSITORY.fullmatch(name)
    if found and name == scenario.model_name.strip():
        given, _, model = found[1].partition("/")
        same = model.lower() == plain.lower() and begins(given, maker)  # z-ai/glm-4.6
        return "" if Path(name).exists() else own if same else found[1]
    name = name.rpartition("/")[2]
    written, known = letters(name), letters(scenario.model.name)
    # A name that is cut short (qwen3-235b) means the model of the spec, with its maker's before it too (Google Gemma 3
    # 27B); one with words more (-instruct) means another.
    if own and any(begins(written[:cut], maker) and known.startswith(written[cut:]) for cut in range(len(written))):
        return own
    if written == known and own:
        return found[1] if found else ""
    return (
        listed_repository("-".join(name.split()))
        or begun_repository(scenario.model.name, name)
        or (found[1] if found else "")
    )


def name_of(scenario: Scenario) -> str:
    """The model's name, or that of its own repository where the spec describes several models."""
    name, repository = scenario.model.name, repository_of(scenario).rpartition("/")[2].lower()
    return name if re.search(rf"{re.escape(name)}(?![\d.])", repository or name) else repository


def quantized(scenario: Scenario, scheme: str) -> str:
    """The listed repository of the scenario's model in a scheme, or that of its devices' vendor; "" for none."""
    listed = quantized_repositories(scenario.model.name, repository_of(scenario)).get(scheme, "")
    return listed or _of_vendor(scenario, scheme)


MAKERS = "launch/makers.yaml"


class _Makers(Struct, frozen=True, forbid_unknown_fields=True):
    published: Mapping[str, Mapping[str, tuple[str, ...]]]
    makers: Mapping[str, Mapping[str, str]]


def _of_vendor(scenario: Scenario, scheme: str) -> str:
    """The repository of the model in a scheme that the vendor of the devices publishes for them; "" for none."""
    listed = bundled_record(_Makers, MAKERS).published.get(scenario.hardware.vendor, {}).get(scheme, ())
    own = letters(repository_of(scenario).rpartition("/")[2] or scenario.model.name)
    plain = [own + ending + letters(scheme) for ending in ("", "instruct")]
    return next((each for each in listed if letters(each.rpartition("/")[2]).startswith(tuple(plain))), "")


def maker(scenario: Scenario, scheme: str) -> str:
    """What makes a checkpoint in a scheme for the vendor's devices; "" where no document names it."""
    return bundled_record(_Makers, MAKERS).makers.get(scenario.hardware.vendor, {}).get(scheme, "")


def released_in(scenario: Scenario, scheme: str) -> str:
    """The listed repository that has the very weights of the scenario's own in a scheme; "" for none.

    Its name is that of the scenario's repository and the scheme: Instruct has other weights than a base model.
    """
    listed, own = quantized(scenario, scheme), letters(repository_of(scenario).rpartition("/")[2])
    begun = own and own + letters(scheme.partition("_")[0])
    return listed if begun and begun in letters(listed.rpartition("/")[2]) else ""


def published(scenario: Scenario, scheme: str) -> tuple[str, str] | None:
    """The scheme and the listed repository of the model in a kind of a scheme (fp8_block of fp8); None for none."""
    listed = quantized_repositories(scenario.model.name, repository_of(scenario)).items()
    return next(((name, found) for name, found in listed if name.startswith(f"{scheme}_")), None)
