"""What the models of specs are known by: names, repositories, sizes and formats, read off the text of the specs."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from pathlib import Path

from msgspec import Struct

from roofline.core.documents import MAX_BYTES
from roofline.core.inputs import read_text
from roofline.specs.names import Files, top_level

TUNED = frozenset({"base", "chat", "hf", "instruct", "it", "pt", "reasoning"})
"""What a checkpoint was trained for, or how it is stored; the architecture is the same."""

UNSAID = "q4_k_m"
"""What a tag of Ollama's library that names no scheme is stored in, and llama.cpp takes from a repository of GGUF files
without one (its README: `-hf <user>/<model>[:quant]`, "default to Q4_K_M")."""

Words = tuple[str, ...]

_SOURCE = re.compile(r"https://huggingface\.co/([^/\s]+)/([^/\s]+)")
_REPOSITORIES = re.compile(r"^repositories:.*\n((?: +.*\n)+)", re.MULTILINE)
_SAME = re.compile(r"^ +[^/\s]+/(\S+): \{\}", re.MULTILINE)
_DIFFERS = re.compile(r"^ +([^/\s]+/[^:\s]+): (?!\{\})", re.MULTILINE)


class Entry(Struct, frozen=True, dict=True):
    """What a model spec is known by.

    `tag`: the scheme of a tag of Ollama's library that names none; None of models that are stored there as they were
    released, gpt-oss and encoders. `mixed`: released files have formats by component.
    """

    name: str
    path: Path
    spelled: tuple[Words, ...]
    tuned: frozenset[str]
    parameters: float
    quantization: str
    repositories: str
    tag: str | None
    mixed: bool
    owner: str

    @cached_property
    def differing(self) -> tuple[tuple[Words, str], ...]:
        """The repositories that differ from the spec, after the stripped words of their names."""
        found = _DIFFERS.findall(self.repositories)
        return tuple((self.stripped(spell(each.partition("/")[2])), each) for each in found)

    def stripped(self, spelled: Words) -> Words:
        """The words without those that do not tell architectures apart."""
        return tuple(word for word in spelled if word not in self.tuned)

    @cached_property
    def known(self) -> tuple[Words, ...]:
        """The stripped words of the name and of the source's repository."""
        return tuple(map(self.stripped, self.spelled))


def _entry(name: str, path: Path) -> Entry:
    text = read_text(path, MAX_BYTES)
    own, more, top = spell(name), _REPOSITORIES.search(text), top_level(text)
    source, quantization = _SOURCE.match(top.get("source", "")), top.get("quantization", "")
    released = quantization.startswith("mxfp4") or top.get("task") == "encode"
    return Entry(
        name,
        path,
        (own, *map(spell, [*([source[2]] if source else []), *_SAME.findall(more[1] if more else "")])),
        TUNED.difference(own),
        float((re.match(r"\d+", top.get("parameters", "")) or "0")[0]),
        quantization,
        more[1].lower() if more else "",
        None if released else UNSAID,
        not top.keys().isdisjoint(("formats", "unquantized")),
        source[1].lower() if source else "",
    )


def words(text: str) -> list[re.Match[str]]:
    """The words of a name, runs of letters or of digits: llama, 3.1, 8, b; stablelm-2-1_6b has 1.6, and 4.0 is 4."""
    plain = re.sub(r"(?<=\d)_(?=\d)", ".", text.lower())
    return list(re.finditer(r"([a-z]+|\d+(?:\.(?!0(?![\d.]))\d+)*)(?:\.0(?![\d.]))?", plain))


def spell(text: str) -> Words:
    """The words of a name, as texts."""
    return tuple(match[1] for match in words(text))


@lru_cache(maxsize=4)
def index(files: Files) -> tuple[tuple[Entry, ...], frozenset[Words]]:
    """Every model, and the makers' names that repositories begin with where the specs' names do not: Meta, NVIDIA."""
    entries = tuple(_entry(name, path) for name, path in files)
    makers = (
        source[: len(source) - len(own)]
        for own, *sources in (entry.known for entry in entries)
        for source in sources
        if own and source[-len(own) :] == own
    )
    return entries, frozenset(makers) - {()}
