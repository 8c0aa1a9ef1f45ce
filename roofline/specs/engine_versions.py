"""Versions of an engine: how they are requested, and how an engine's file describes them.

A file describes the newest version. Under `versions` it has the keys in which older ones differ, by the version from
which they hold; `parameters` are merged key by key, other keys replaced. `aliases` are names for a version, and
`spellings` are other names of the engine:

    name: vllm
    overlap: true
    parameters: {step: 0.5 ms, sequence: 15 us}
    versions:
      '0.14': {}
      '0.8': {overlap: false, parameters: {step: 1 ms}}
    aliases: {vllm-sync: '0.11'}
    spellings: [vllm-gaudi]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from roofline.core.documents import scalar_text
from roofline.core.errors import RooflineError, SpecError, located, quote
from roofline.specs.library import as_mapping
from roofline.specs.version import Version

KEYS = ("versions", "aliases", "spellings")
"""The keys of a file that this module reads; those of a version are the file's other ones."""


MAX_VERSIONS = 100
"""Most versions of a file: each is a profile of its own."""


def split_name(text: str) -> tuple[str, str]:
    """Name or path, and version or "" of `vllm@0.11`, `vllm==0.11` or `vllm 0.11`; raises RooflineError for `vllm@`."""
    text = text.strip()
    name, separator, version = re.sub(r"\s*(?:==|[:@\s])\s*(?=[bv]?\d[\w.]*$)", "@", text).rpartition("@")
    if not separator or "/" in version or version.endswith((".yaml", ".yml")):
        return text, ""
    if not name or not version.strip():
        raise RooflineError(f"{quote(text)} lacks {'a version' if name else 'an engine'}; write it like vllm@0.11")
    return name, version


def versions_of(content: Mapping[str, Any], where: str) -> Mapping[Version, Mapping[str, Any]]:
    """The keys in which versions differ from the newest, by the version from which they hold, oldest first."""
    given = as_mapping(content.get("versions", {}), where, "versions")
    found = {}
    if len(given) > MAX_VERSIONS:
        raise SpecError(where, f"'versions' has {len(given)} versions; at most {MAX_VERSIONS} are read")
    for text, changes in given.items():
        version = version_in(text, "versions", where)
        if version in found:
            raise SpecError(where, f"'versions' has {quote(text)} twice")
        found[version] = as_mapping(changes, where, f"versions.{text}")
        for key in ("name", *KEYS):
            if key in changes:
                raise SpecError(where, f"'versions.{text}' cannot have the key {quote(key)}")
    if found and found[max(found)]:
        raise SpecError(where, f"'versions.{max(found)}' must be empty: the file describes the newest version")
    return dict(sorted(found.items()))


def merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file with the changes of a version."""
    ours, theirs = content.get("parameters", {}), changes.get("parameters", {})
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return {**content, **changes}
    return {**content, **changes, "parameters": {**ours, **theirs}}


def aliases_of(content: Mapping[str, Any], where: str) -> dict[str, str]:
    """The names that a file gives to versions, `{"vllm-sync": "0.11"}`, and to the engine, `{"vllm-gaudi": ""}`."""
    given, spellings = as_mapping(content.get("aliases", {}), where, "aliases"), content.get("spellings", [])
    if not isinstance(spellings, list) or not all(isinstance(name, str) for name in spellings):
        raise SpecError(where, f"'spellings' must be a list of names, got {quote(spellings)}")
    versions = {name: version_in(text, "aliases", where).text for name, text in given.items()}
    return {**dict.fromkeys(spellings, ""), **versions}


def version_in(text: object, key: str, where: str) -> Version:
    """The version in a text or number of a file; raises SpecError."""
    with located(where, key):
        return Version(scalar_text(text) or "")
