"""Names that people type, read as bundled specs: repository ids, tags, market names.

    meta-llama/Llama-3.1-8B-Instruct    llama-3.1-8b         H200                 h200-sxm
    Qwen/Qwen3-32B-AWQ                  qwen3-32b in AWQ     A100 80GB SXM        a100-sxm-80gb
    llama3.1:8b                         llama-3.1-8b, Q4_K_M 8xH200               eight h200-sxm

A name is read only where every word of it says so, and one spec alone fits. Otherwise the error names the candidates.
`taken` tells what was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from roofline.core.documents import bundled
from roofline.core.errors import alternatives, quote

Files = tuple[tuple[str, Path], ...]
"""Every spec by name, as of `roofline.specs.library.spec_files`."""


_TOP = re.compile(r"^(\w+):(?: +(.*?))?(?: +#.*)?$", re.MULTILINE)


def top_level(text: str) -> dict[str, str]:
    """The top-level keys of a spec with what stands beside them, as text: parsing every spec takes half a second."""
    return dict(_TOP.findall(text))


PLAIN = re.compile(r"[\w .:/+(),;*×-]{1,300}")
"""Texts that may be a name."""


class Named(Struct, frozen=True):
    """What a name stands for: a spec, other values of the model's fields (a quantization), and a number of devices.

    `others` are further specs that it may mean, less usual; `server` are the devices of each server, 0 if unsaid.
    `without` is a word of the text that no spec has, and that was left out.
    """

    name: str
    path: Path
    changes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    devices: int = 1
    others: tuple[str, ...] = ()
    server: int = 0
    without: str = ""

    def __str__(self) -> str:
        count = f"{self.devices} x " if self.devices > 1 else ""
        if self.server and self.devices > self.server:
            count = f"{self.devices // self.server} servers of {self.server} x "
        changed = ", ".join(f"{key} {value}" for key, value in self.changes.items() if type(value) in (str, int))
        return f"{count}{self.name}{f' ({changed})' if changed else ''}"


_TAKEN: dict[str, Named] = {}


def record(text: str, named: Named) -> Named:
    """Remember, for `taken`, what was read from `text`, but for a spec's own name with a count before it."""
    if text != f"{named.devices}x{named.name}":
        _TAKEN[text] = named
    return named


def taken(ambiguous: bool = False) -> tuple[str, ...]:
    """What was read from names other than those of specs since the last call, a sentence each.

    With `ambiguous` only what may have meant others.
    """
    found = {text: named for text, named in _TAKEN.items() if named.others or named.without or not ambiguous}
    _TAKEN.clear()
    return tuple(
        f"{quote(text)} is taken as {named}"
        + (f", as most are (not {alternatives(named.others)})" if named.others else "")
        + (f": no {named.without!r} of it is known" if named.without else "")
        for text, named in found.items()
    )


def undescribed(text: str, kind: str) -> str | None:
    """What is known of a name that nothing describes, in a section of `undescribed.yaml`; None of any other."""
    plain = text.strip().lower().rpartition("/")[2]
    known: Mapping[str, str] = bundled("specs/undescribed.yaml")[kind]
    found = (facts for names, facts in known.items() if plain.startswith(tuple(names.split(", "))))
    return next(found, None)
