"""Names of models that people type: Hugging Face repositories, Ollama tags, and other spellings of a spec's name.

A model is known by its spec's name, by the repository that the spec's `source` names, and by the spec's `repositories`.
A name consists of the words of one of these, then optionally of a size, which must be that of the model, and of a
quantization scheme; a repository that the spec lists with changes is known by its whole name, before a scheme if there
is one. `TUNED` words do not count: Llama-3.1-8B-Instruct has the architecture of Llama-3.1-8B.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.documents import bundled, read_mapping
from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote
from roofline.specs.library import File, spec_files, spec_path
from roofline.specs.model_index import TUNED, UNSAID, Entry, Words, index, words
from roofline.specs.names import PLAIN, Files, Named, record, undescribed
from roofline.specs.precision import SCHEMES, scheme_formats
from roofline.specs.schemes import GGUF_SCHEMES, MXFP4_EXPERTS

Repositories = Mapping[str, Mapping[str, Any]]
"""Repositories by name, each with what it changes of a spec's model."""

MISSPELT = 0.9
"""Likeness from which a name is a misspelling of another, and no name of something else."""

NEAREST = 4
"""The most models of a family that an error names."""

LONGEST = 100
"""Characters of a text that a repository's name may continue (96 are the most of the hub): more are no pattern's."""

FORMAT_KEYS = frozenset({"quantization", "dtype", "gguf"})
"""What a name changes that says a format."""

_HUB = re.compile(r"^(?:https?://)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_PLUS = re.compile(r"(?<=[A-Za-z])\+(?![A-Za-z\d])")
_SERVED = re.compile(
    r"^(?:https?://)?(?:ollama\.com|openrouter\.ai)/|(?<=:)cloud$|(?<=\w)-cloud$|\s*\(free\)$"
    r"|:(?:free|batch|thinking|extended|nitro|floor|exacto|online)$",
    re.IGNORECASE,
)
"""What services add to a model's name: their own address, Ollama to models on its own servers, OpenRouter its variants.

https://openrouter.ai/docs/guides/routing/model-variants
"""
_MAKER = re.compile(r"[\w. ]+:\s+(?=\w)")
"""The maker before a model's name, as OpenRouter lists it: `OpenAI: gpt-oss-20b`."""
_REPOSITORY = re.compile(r"[\w.-]+/([\w.-]+(?::[\w.-]+)?)", re.ASCII)


TAGS = "specs/ollama.yaml"
"""The table of Ollama's tags, and the repositories of their makers."""


def read_model(text: str) -> Named:
    """The model that `text` names; raises UnknownNameError with the candidates."""
    return record(text, _read(text, tuple(spec_files("modelspecs").items())))


def library_format(text: str) -> str | None:
    """The scheme in which Ollama's library has the model that `text` names; None where it is stored as released.

    None also for a file, and for a name that says a format. Raises UnknownNameError.
    """
    path, files = spec_path(text, "modelspecs"), tuple(spec_files("modelspecs").items())
    if path is not None and path not in (file for _, file in files):
        return None
    named = _read(text, files)
    entry = next(entry for entry in index(files)[0] if entry.name == named.name)
    return None if FORMAT_KEYS & named.changes.keys() else entry.tag


def made_name(text: str) -> str:
    """The name of a model without what services add to it; of a tag of Ollama's library, that of its maker."""
    name = _SERVED.sub("", text.strip())
    found: str = bundled(TAGS).get(name.lower(), name)
    return found


@lru_cache(maxsize=256)
def _read(text: str, files: Files, *, with_maker: bool = True) -> Named:
    entries, makers = index(files)
    may_name = PLAIN.fullmatch(text) is not None
    bare = _HUB.sub("", _SERVED.sub("", text.strip()))
    if (listing := _MAKER.match(bare)) is not None:
        with suppress(UnknownNameError):  # llama3.1: 8b is a family and a size
            return _read(bare[listing.end() :], files, with_maker=with_maker)
    plain = _PLUS.sub("-plus", bare)  # Command R+
    if may_name and (listed := _listed(plain.lower(), entries)) is not None:
        return listed
    if (model := bundled(TAGS).get(plain.lower())) is not None:
        meant = _read(model, files)
        tag = next(entry.tag for entry in entries if entry.name == meant.name)
        if ":" not in plain and begins(plain, meant.name):  # mistral-nemo: its maker's name, too, which says no format
            tag = None
        return Named(meant.name, meant.path, {**meant.changes, **({} if tag is None else {"quantization": tag})})
    if "mlx" in plain.lower():
        plain = _MLX_BITS.sub(r"affine\1_g64", plain)
    repository = _REPOSITORY.fullmatch(plain)
    plain = repository[1] if repository else plain
    owner, _, rest = plain.partition("_")  # bartowski/Qwen_Qwen3.6-27B-GGUF
    plain = rest if rest and any(entry.owner == owner.lower() for entry in entries) else plain
    found = words(plain) if may_name else []
    named = []
    for cut in range(len(found), 0, -1):
        tail = _tail(plain[found[cut].start() :]) if cut < len(found) else _Tail()
        if tail is not None:
            named.append((cut, _without_maker(tuple(match[1] for match in found[:cut]), makers), tail))
    for cut, spellings, tail in named:
        if tail.scheme and (listed := _listed(plain[: found[cut - 1].end()].lower(), entries)) is not None:
            return _quantized(bare, listed, tail, entries)
        fitting = [entry for entry in entries if any(_fits(own, entry, tail) for own in spellings)]
        if len(fitting) == 1:
            return _named(bare, fitting[0], tail)
    if may_name and (listed := _listed(plain.lower(), entries, _ENDING)) is not None:
        return listed
    if (revision := _REVISION.search(text)) is not None:
        with suppress(UnknownNameError):
            word = revision[0].strip("- ")
            meant = _read(text[: revision.start()] + text[revision.end() :], files, with_maker=False)
            return meant if word[-1].isdigit() else replace(meant, without=word)  # a date has the same architecture
    for _, spellings, tail in named:
        if (only := _only(spellings, tail, entries)) is not None:
            return _quantized(bare, only, tail, entries)
    for start in [match.start() for match in found[1:3] if with_maker]:
        own = {entry.name for entry in entries if begins(plain[:start], entry.owner)}
        with suppress(RooflineError):  # Google Gemma 3, Z.AI GLM, Moonshot Kimi: the beginning of the owner's name
            if (made := _read(plain[start:], files, with_maker=False)).name in own:
                return made
    head, _, file_type = text.rpartition(":")
    if GGUF in head.lower():
        with suppress(UnknownNameError):
            raise UnsupportedError(f"unknown file type {quote(file_type)} of GGUF for {_read(head, files).name}")
    raise _unknown(text, _without_maker(tuple(match[1] for match in found), makers), entries)


def _quantized(text: str, listed: Named, tail: _Tail, entries: tuple[Entry, ...]) -> Named:
    """A model with what differs in a repository, in the scheme that follows it in a name."""
    named = _named(text, next(entry for entry in entries if entry.name == listed.name), tail)
    return Named(listed.name, listed.path, {**listed.changes, **named.changes})


def _only(spellings: Iterable[Words], tail: _Tail, entries: tuple[Entry, ...]) -> Named | None:
    """The one model or listed repository that begins with the words of a name; None for none and for several.

    After a version only sizes, dates and `TUNED` words may be missing: GLM-5.3 is not GLM-5.3-Flash.
    """
    begun: list[Named] = []
    for own, entry in product(spellings, entries):
        stripped = entry.stripped(own)
        missing = _SIZES if any(word[0].isdigit() for word in stripped) else _ANY
        names = [*((known, "") for known in entry.known if _sized(entry, tail)), *entry.differing]
        for known, repository in names if len("".join(stripped)) > SHORT else ():
            if known[: len(stripped)] == stripped and missing.fullmatch("-".join(known[len(stripped) :])):
                listed = _listed(repository, entries) if repository else None
                begun.append(listed or Named(entry.name, entry.path))
    own_specs = {named.name for named in begun if not named.changes}
    begun = [named for named in begun if not (named.changes and named.name in own_specs)]
    return begun[0] if begun and all(named == begun[0] for named in begun) else None


def _without_maker(own: Words, makers: Iterable[Words]) -> list[Words]:
    """The words of a name, and those that follow a maker's name, if it begins with one."""
    return [own, *(own[len(maker) :] for maker in makers if own[: len(maker)] == maker)]


def _listed(repository: str, entries: tuple[Entry, ...], ending: str = "") -> Named | None:
    """The model whose spec lists a repository, by its id or its name without the owner, and before an `ending`."""
    for entry in entries:
        if (found := _found(repository, entry, ending)) is not None:
            changes = {key: tuple(value) if isinstance(value, list) else value for key, value in found[1].items()}
            return Named(entry.name, entry.path, changes)
    return None


def _found(repository: str, entry: Entry, ending: str = "") -> tuple[str, Mapping[str, Any]] | None:
    """The repository that a spec lists under an id or a name without the owner, and what it changes of the model."""
    owner = "" if "/" in repository else r"[^/\s]+/"
    found = re.search(rf"^ +({owner}{re.escape(repository)}{ending}):", entry.repositories, re.M)
    if found is None:
        return None
    listed = _repositories(File.at(entry.path))
    return next(each for each in listed.items() if each[0].lower() == found[1])


_ENDING = rf"(?:-(?:{'|'.join(sorted(TUNED))}|\d{{4}}|a\d+b))+"
"""What people leave out at the end of a repository's name: -Instruct, its month and the active parameters."""

_REVISION = re.compile(r"[- ](?:think(?:ing)?|preview|exp)(?![\w.])|(?<=b)(?:-[a-z]+)*-\d{4}(?![\w.])", re.IGNORECASE)
"""What tells a revision of a checkpoint from another: what it was trained for, or a date behind a size.

Mistral-Small-Instruct-2409, without a size, is another model than that of 2501.
"""


def listed_repository(name: str) -> str:
    """The repository that a spec lists and `name` is without its owner, -Instruct or a month; "" for none."""
    plain = name.strip().lower()
    entries, _ = index(tuple(spec_files("modelspecs").items()))
    for ending, entry in product(("", _ENDING), entries if PLAIN.fullmatch(plain) else ()):
        if (found := _found(plain, entry, ending)) is not None:
            return found[0]
    return ""


def begun_repository(model: str, name: str) -> str:
    """The one unquantized repository of a model's bundled spec that a name begins or is: qwen3.8; "" for none."""
    plain = [each for each, changes in _repositories_of(model).items() if not changes]
    begun = [each for each in plain if letters(each.rpartition("/")[2]).startswith(letters(name))]
    return begun[0] if len(begun) == 1 else ""


def quantized_repositories(model: str, repository: str = "") -> dict[str, str]:
    """The repositories of a model that its bundled spec lists, by the quantization scheme that is all they change.

    They are those of a `repository`, by default of the spec's name: others of the architecture have other weights.
    """
    listed = _repositories_of(model)
    own, found = letters(repository.rpartition("/")[2] or model).removesuffix("bf16"), dict[str, str]()
    for name in sorted(listed, key=len):  # a model itself before its -Instruct
        other = listed[name]
        scheme = other.get("quantization") if len(other) == 1 else None
        if scheme is not None and own in letters(name):
            found.setdefault(scheme, name)
    return found


def published_in(model: str) -> frozenset[str]:
    """The quantization schemes of the repositories that a model's bundled spec lists, whatever else they change."""
    return frozenset(other["quantization"] for other in _repositories_of(model).values() if other.get("quantization"))


def _repositories_of(model: str) -> Repositories:
    """The repositories that a model's spec lists, each with what it changes; none of a model without a spec."""
    path = spec_files("modelspecs").get(model)
    return {} if path is None else _repositories(File.at(path))


@lru_cache(maxsize=256)
def _repositories(spec: File) -> Repositories:
    found: Repositories | None = read_mapping(spec.path).get("repositories")
    return found or {}


def begins(written: str, owner: str) -> bool:
    """Whether a maker is written by the beginning of its name on the hub: Z.AI is zai-org."""
    return letters(owner).startswith(letters(written))


def letters(name: str) -> str:
    """A name in small letters, without what stands between words."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class _Tail(Struct, frozen=True):
    """What follows the model's words: its size in parameters, and a quantization scheme."""

    size: float | None = None
    scheme: str | None = None


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bm])(?![a-z0-9])[^a-z0-9]*", re.IGNORECASE | re.ASCII)
SIZE_TOLERANCE = 0.03
"""Of a size in a tag, which is rounded and may count what inference does not touch: deepseek-r1:671b."""

GGUF = "gguf"
FILLERS = frozenset({GGUF, "quantized", "dynamic", "static", "qat", "kv", "ct", "preview", "v2", "ud", "unsloth"})
"""Words around a scheme that do not change what is stored, or little; FP8-KV also has scales for a cache in FP8."""

_LARGER = re.compile(r"(q\d)_k_x?l")
"""File types with more bits in some tensors than llama.cpp's, which stand for them: Unsloth's (UD-Q4_K_XL: Q4_K_M)."""

SPELLINGS = {"fp4": "nvfp4", "f16": "fp16", "bnb": "nf4", "bitsandbytes": "nf4"}
"""Schemes under another name: NVIDIA's FP4 repositories are NVFP4; bitsandbytes quantizes to NF4 with double scales."""

AUTOROUND = (["autoround"], ["int4", "autoround"], ["autoround", "int4"])
"""Of Intel's AutoRound, which stores four bits in GPTQ's layout with groups of 128 unless told otherwise."""

OWNERS = {"qwen": {"fp8": "fp8_block"}}
"""What an owner's repositories mean by a scheme: Qwen's FP8 has a scale for 128 x 128 weights (its config.json)."""

PLAIN_FORMATS = ("fp32", "bf16", "fp16")
"""The formats of checkpoints that are not quantized."""

_MLX_BITS = re.compile(r"(?:mlx[-_])?([2-8])bit(?:-dwq(?:-\w+)?)?$", re.IGNORECASE)
"""The end of a repository for MLX: weights in groups of 64, with which mlx_lm.convert quantizes."""

_BITS = re.compile(r"(?:int|w)?([48])(?:bit)?")


def _tail(text: str) -> _Tail | None:
    """The size and scheme at the end of a name; None for any other text."""
    size = _SIZE.match(text)
    rest = text[size.end() :] if size else text
    value = float(size[1]) * (1e9 if size[2].lower() == "b" else 1e6) if size else None
    scheme = _scheme(rest) if rest else None
    return None if rest and scheme is None else _Tail(value, scheme)


def _scheme(text: str) -> str | None:
    """The quantization scheme in the end of a name, such as AWQ, GPTQ-Int4, FP8-dynamic, quantized.w4a16, Q4_K_M."""
    every = [part for part in re.split(r"[^a-z0-9_]+", text.lower()) if part and part not in TUNED]
    parts = [SPELLINGS.get(part, part) for part in every if part not in FILLERS]
    if not parts:  # QAT files of Gemma that name no format, at Ollama and LM Studio, are in Google's
        return "q4_0" if "qat" in every else GGUF if GGUF in every else None
    if parts in AUTOROUND:
        return "gptq"
    if len(parts) == 2 and (bits := _BITS.fullmatch(parts[1])):  # a method and its bits
        own = {"awq": 4, "gptq": 4, "nf4": 4, "fp8": 8, "int8": 8}.get(parts[0])
        if parts[0] == "gptq" and bits[1] == "8":
            return "int8_g128"
        return parts[0] if own == int(bits[1]) else None
    scheme = "_".join(parts)
    if scheme not in GGUF_SCHEMES and (larger := _LARGER.fullmatch(scheme)):
        scheme = next(name for end in ("k_m", "k", "0") if (name := f"{larger[1]}_{end}") in GGUF_SCHEMES)
    if scheme in PLAIN_FORMATS:
        return scheme
    try:
        scheme_formats(scheme)
    except RooflineError:
        return None
    return scheme


def spelled_scheme(text: str) -> str:
    """A quantization scheme as it is typed, by the name that the tables have where it is one of a repository's.

    UD-Q4_K_XL, FP8-dynamic and bnb-4bit are spelled as repositories spell them; any other text is returned as it is.
    """
    plain = text.strip().lower().replace("-", "_")
    if plain in SCHEMES:
        return plain
    try:
        scheme_formats(text)
    except RooflineError:
        found = _scheme(text)
        return text if found in (None, GGUF) else str(found)
    return text


_ACTIVE = re.compile(r"(a-[\d.]+-[bm])?")
"""What a name may leave out at its end: active parameters (qwen3-30b)."""

_SIZES, _ANY = re.compile(r"((^|-)((a-)?[\d.]+-[bm]|\d{4}))*"), re.compile(r".*")
"""What a name may leave out at its end where one model alone begins with it, with a version in it and without one."""

SHORT = 2
"""Characters of a name that is too short to be the beginning of another."""


def _fits(own: Words, entry: Entry, tail: _Tail) -> bool:
    """Whether the words are a model's, but for the active parameters."""
    stripped = entry.stripped(own)
    rests = ("-".join(known[len(stripped) :]) for known in entry.known if known[: len(stripped)] == stripped)
    return any(map(_ACTIVE.fullmatch, rests)) and _sized(entry, tail)


def _sized(entry: Entry, tail: _Tail) -> bool:
    return tail.size is None or abs(tail.size - entry.parameters) <= SIZE_TOLERANCE * entry.parameters


def _named(text: str, entry: Entry, tail: _Tail) -> Named:
    """The model of an entry in the scheme that its name ends in, or that Ollama stores a tag without one in."""
    owner, told, _ = _HUB.sub("", text.strip()).lower().partition("/")
    owner = owner if told else entry.owner
    scheme = OWNERS.get(owner, {}).get(tail.scheme or "", tail.scheme)
    if scheme is None and ":" in _HUB.sub("", text):
        scheme = entry.tag
    if scheme == GGUF and entry.tag is None and entry.quantization:  # converted as it was released
        return Named(entry.name, entry.path, {"gguf": True})
    scheme = UNSAID if scheme == GGUF else scheme
    if scheme is None or (entry.quantization and entry.quantization.startswith(scheme)):
        return Named(entry.name, entry.path)
    gguf = GGUF in re.split(r"[^a-z0-9]+", text.lower())
    if gguf and scheme in PLAIN_FORMATS and entry.tag is None and entry.quantization:
        return Named(entry.name, entry.path, {"dtype": scheme, "gguf": True})  # files in 16 bits keep its experts
    changes: dict[str, Any] = {"quantization": scheme, **_parts(scheme, entry)}
    if scheme in PLAIN_FORMATS:
        changes = {"dtype": scheme, **({"quantization": None} if entry.quantization else {})}
    return Named(entry.name, entry.path, {**changes, **({"gguf": True} if gguf else {})})


def _parts(scheme: str, entry: Entry) -> dict[str, Any]:
    """What a checkpoint in a scheme has in place of the formats that its spec gives to single components."""
    own = read_mapping(entry.path) if entry.mixed else {}
    formats: Mapping[str, Any] = own.get("formats") or {}
    if scheme in GGUF_SCHEMES:  # of single formats only those of experts in FP4 may stay (`roofline.specs.checkpoint`)
        fp4 = entry.quantization == "mxfp4" or formats.get("expert_up_proj") == "mxfp4"
        return {"formats": dict.fromkeys(MXFP4_EXPERTS, "mxfp4") if fp4 else None, "unquantized": ()} if own else {}
    if scheme.startswith("affine"):
        return {"formats": None, "unquantized": ()} if own else {}
    experts = {part: scheme if part.startswith("expert_") else kept for part, kept in formats.items()}
    return {"formats": experts} if formats else {}


def _unknown(text: str, spellings: Sequence[Words], entries: tuple[Entry, ...]) -> UnknownNameError:
    """The error for a name that no model has: those it begins, else the one in it, else the nearest of its family.

    Raises UnsupportedError for a model that a spec cannot express.
    """
    if (facts := undescribed(text, "inexpressible")) is not None:
        raise UnsupportedError(f"{quote(text)} {facts}, which no spec describes")
    if (facts := undescribed(text, "without_source")) is not None:
        return UnknownNameError("model", text, (), (), f", which {facts}")
    last = text.strip().lower().rpartition("/")[2][:LONGEST]
    plain = r"[-_]".join(map(re.escape, re.split(r"[\s:_-]+", last)))
    started = re.compile(rf"^ +[^/\s]+/({plain}\b[^:\s]*):", re.M)
    named = [entry for entry in entries if _begun(spellings, entry.spelled[:1])]
    begun = [entry.name for entry in sorted(named, key=lambda entry: -_version(entry.spelled[0]))]
    begun += [found for entry in entries for found in started.findall(entry.repositories) if entry.name not in begun]
    begun = begun or [entry.name for entry in entries if _begun(spellings, entry.spelled)]
    inside = [
        entry.name
        for entry in entries
        if len(entry.known[0]) > 1 and any(_dashed(entry.known[0]) in _dashed(entry.stripped(own)) for own in spellings)
    ]
    ranked = sorted(((_likeness(spellings, entry), entry) for entry in entries), key=lambda pair: -pair[0])
    family = [entry.name for _, entry in ranked if any(own[:2] == entry.spelled[0][:2] for own in spellings)]
    near = [ranked[0][1].name] if ranked[0][0] >= MISSPELT else family[:NEAREST]
    parts = [entry.name for entry in entries if any(_in_order(own, iter(entry.spelled[0])) for own in spellings)]
    candidates = begun or ([max(inside, key=len)] if inside else parts or near)
    hint = "; 'roofline specs list models' lists all; name another by its config.json, or its repository with --hub"
    # The nearest of all names is another model's, unless the text is no name as it stands.
    known = () if PLAIN.fullmatch(text) else [entry.name for entry in entries]
    return UnknownNameError("model", text, known, candidates, "" if candidates else hint)


def _version(own: Words) -> float:
    """The version among a name's words: its first number that is neither a size (8b) nor a date; 0 without one."""
    found = (word for word, unit in pairwise((*own, "")) if unit not in ("b", "m"))
    return next((float(word) for word in found if re.fullmatch(r"\d{1,2}(\.\d+)?", word)), 0.0)


def _likeness(spellings: Sequence[Words], entry: Entry) -> float:
    """How alike the words and a model's name are, 0 to 1."""
    return max(SequenceMatcher(None, "-".join(own), "-".join(entry.spelled[0])).ratio() for own in spellings)


def _begun(spellings: Iterable[Words], known: Iterable[Words]) -> bool:
    return any(own and name[: len(own)] == own for own, name in product(spellings, known))


def _in_order(own: Words, known: Iterator[str]) -> bool:
    """Whether a name has all these words, with others between them: nemotron super 49b."""
    return len("".join(own)) > SHORT and all(word in known for word in own)


def _dashed(words: Words) -> str:
    return f"-{'-'.join(words)}-"
