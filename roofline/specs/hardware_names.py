"""Names of hardware that people type: H200, A100 80GB SXM, 4090, NVIDIA A100-SXM4-80GB, 8xH200, p5.48xlarge.

Every word must be in the spec's name or title, or be its memory (80GB, HBM3) or a line of its vendor (GeForce). Words
of the spec's name may be missing where they are its line (rtx), form factor or memory. A 4070 is no rtx-4070-ti. The
size of a memory that Apple sells with a chip may follow its name: m4-max-64gb. An H100 is the SXM module, an A100 that
of 80 GB, an MI300 an MI300X: what most clouds rent. A DGX H100 has eight of them, and a GB200 NVL72 is a rack of 72,
but 8xGB200 NVL72 are eight GPUs of one, which is said. What is announced without the figures of a spec is refused with
what is known (`announced.yaml`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.documents import MAX_BYTES, bundled
from roofline.core.errors import MAX_COMPLETIONS, RooflineError, UnknownNameError, alternatives, quote
from roofline.core.inputs import read_text
from roofline.specs.instances import instance_devices, instances_of
from roofline.specs.library import spec_files
from roofline.specs.names import PLAIN, Files, Named, record, top_level
from roofline.specs.prices import bundled_price

MISSPELT = 0.85
"""Similarity from which a name is a misspelling of another, and no name of something else."""

FORM_FACTORS = frozenset({"oam", "pcie", "server", "sxm", "workstation"})

KINDS = frozenset({"cpu", "gpu", "npu"})
KIND_EXAMPLES = 3
"""Names that are kinds of hardware, and how many of a kind an error lists."""

ALWAYS_SAID = frozenset({"nvl", "max", "laptop", "sff"})
"""Words of variants that a name must contain: an H200 is not an H200 NVL, an RTX PRO 6000 not a Max-Q."""

_DEVICE = r"(?P<device>\d{3,}|.*[a-z].*)"
"""A device has a letter in its name, or at least three digits: of 2x4090 the 2 is none."""

_COUNTED = (
    re.compile(rf"(?P<count>\d{{1,4}})\s*[x×*]\s*{_DEVICE}", re.IGNORECASE),
    re.compile(rf"{_DEVICE}\s*[x×*:]\s*(?P<count>\d{{1,4}})", re.IGNORECASE),
)
"""8xH100, 8 x H100, 2x4090, and H100 x8, H100:8, 4090x2; 2x8xH100 are two servers of eight."""

_BOX = re.compile(r"(?:nvidia\s+)?dgx[\s-]+(?P<device>[abh]\d{2,3}\b.*)", re.IGNORECASE)
BOX_DEVICES = 8
"""NVIDIA's DGX servers of A100 to B300, and their GPUs (nvidia.com/en-us/data-center/dgx-h100)."""

_RACK = re.compile(r"nvl(\d{1,3})")
"""The number of GPUs in a rack: NVL72. Vera Rubin NVL144 counts the two dies of each."""

_NUMBERS = {"dual": 2, "two": 2, "three": 3, "four": 4, "quad": 4, "six": 6, "eight": 8, "sixteen": 16}

_SAID = re.compile(rf"(?P<count>\d{{1,2}}|{'|'.join(_NUMBERS)})\s+(?P<device>\S.*?)(?<=[\dx])s?", re.IGNORECASE)
"""Two 4090s, 8 H100: a number before the device, and its plural."""

_MACHINE = re.compile(
    r"\b(?:apple[\s-]+)?(?:macbook(?:[\s-]+(?:air|pro))?|mac[\s-]+(?:mini|pro|studio)|imac)\b", re.IGNORECASE
)
"""Apple's computers, which are known by their chip: MacBook Pro M3 Max."""

_EVERY = ("", "pro", "max", "ultra")

MACHINES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("apple", "applesilicon", "mac", "macbook"), _EVERY),
    **dict.fromkeys(("macbookair", "imac"), ("",)),
    "macbookpro": ("", "pro", "max"),
    "macmini": ("", "pro"),
    "macstudio": ("max", "ultra"),
    "macpro": ("ultra",),
}
"""Apple's computers without a chip, written together, and the variants of chips that they are sold with."""

_MEMORY_KIND = re.compile(r"^memory:\n(?:  .*\n)*?  kind: (\S+)", re.MULTILINE)
_NODE = re.compile(r"^  - kind: .*\n    scope: node\n(?:    .*\n)*?    devices: (\d+)", re.MULTILINE)
_CAPACITY = re.compile(r"^memory:\n(?:  .*\n)*?  capacity: ([\d.]+) ([GT])i?B", re.MULTILINE)
_GIGABYTES = re.compile(r"\b(\d+)\s*g(?:i?b)?\b")


class _Entry(Struct, frozen=True):
    """What a hardware spec is known by: the words of its name, all words for it, and its vendor with the line.

    `also`: other names, such as that of the chip in a computer, written together. `joined`: the devices of a node.
    """

    name: str
    path: Path
    own: tuple[str, ...]
    words: frozenset[str]
    vendor: str
    kind: str
    line: frozenset[str]
    also: frozenset[str]
    joined: int


def _spell(text: str) -> tuple[str, ...]:
    plain = _GIGABYTES.sub(r"\1gb", text.lower())
    return tuple("sxm" if re.fullmatch(r"sxm\d", word) else word for word in re.findall(r"[a-z0-9]+", plain))


def _joined(words: tuple[str, ...]) -> dict[str, range]:
    """The words, and neighbours written together (rtx4090, h100sxm), with their places."""
    ends = ((at, end) for at in range(len(words)) for end in range(at + 1, min(at + 4, len(words)) + 1))
    return {"".join(words[at:end]): range(at, end) for at, end in ends}


def _entry(name: str, path: Path) -> _Entry:
    text = read_text(path, MAX_BYTES)
    storage, size, top = _MEMORY_KIND.search(text), _CAPACITY.search(text), top_level(text)
    own, titled = _spell(name), _spell(top.get("title", name))
    memory = [*([storage[1].lower()] if storage else []), *([f"{size[1]}{size[2].lower()}b"] if size else [])]
    before = next((at for at, word in enumerate(titled) if word in _joined(own)), 0)
    every = frozenset({*_joined(own), *_joined(titled), *memory})
    also = frozenset(filter(None, ("".join(_spell(other)) for other in top.get("also", "").split(","))))
    joined, made = _NODE.search(text), (top.get("vendor", ""), top.get("kind", ""))
    return _Entry(name, path, own, every, *made, frozenset(titled[:before]), also, int(joined[1]) if joined else 1)


@lru_cache(maxsize=4)
def _index(files: Files) -> tuple[tuple[_Entry, ...], dict[str, frozenset[str]]]:
    """All hardware, and the names of the lines of each vendor, such as GeForce and Tesla."""
    entries = tuple(_entry(name, path) for name, path in files)
    lines: dict[str, frozenset[str]] = {}
    for entry in entries:
        lines[entry.vendor] = lines.get(entry.vendor, frozenset()) | entry.line
    return entries, lines


def read_hardware(text: str) -> Named:
    """The hardware that `text` names, and its count; raises UnknownNameError with the candidates."""
    found = _read(text, tuple(spec_files("hwspecs").items()))
    if text.rstrip().endswith("+") and "plus" not in found.name:
        raise RooflineError(f"{quote(text)}: a plus joins devices, and none follows it")
    return record(text, replace(found, server=server_devices(text)))


def joined_devices(text: str) -> list[str]:
    """The devices that a plus joins, of rtx-4090+2xrtx-3090 two.

    A plus that ends a word is of a name: Xeon 8592+, Ryzen AI Max+ 395.
    """
    return [part.strip() for part in re.split(r"\s\+\s*(?=\S)|\+(?=[^\s-])", text)]


def server_devices(text: object) -> int:
    """The devices of each server of a text that counts servers and their devices, 8 of 2x8xH100; 0 of all else.

    A device's own name may look like a count: 2x7900xtx are two devices.
    """
    if not isinstance(text, str):
        return 0
    for pattern in _COUNTED:
        servers = pattern.fullmatch(text.strip())
        each = servers and pattern.fullmatch(servers["device"].strip())
        if servers and each:
            found = _read(text, tuple(spec_files("hwspecs").items()))
            return int(each["count"]) if found.devices == int(servers["count"]) * int(each["count"]) else 0
    return 0


@lru_cache(maxsize=256)
def _read(text: str, files: Files) -> Named:
    entries, lines = _index(files)
    names, near, misspelt = [entry.name for entry in entries], list[str](), list[str]()
    if (kind := text.strip().lower()) in KINDS:
        all_kind = sorted(entry.name for entry in entries if entry.kind == kind and entry.vendor != "Apple")
        example = alternatives(all_kind[:: -(-len(all_kind) // KIND_EXAMPLES)])  # spread over the list
        raise RooflineError(f"{quote(text)} is a kind of hardware: name one, such as {example}")
    if len(parts := joined_devices(text)) > 1:
        with suppress(UnknownNameError):
            kinds = "+".join(_read(part, files).name for part in parts)
            raise RooflineError(
                f"{quote(text)}: cards of different kinds are for analyze, serve and the answer, 'roofline MODEL"
                f" {kinds}'; name hardware of one kind here"
            )
    chip = _MACHINE.sub(" ", text).strip()
    typed = chip if re.search(r"m\d", chip, re.IGNORECASE) else text
    for device, count in _counted(typed) if PLAIN.fullmatch(text) else ():
        given = _spell(device)
        if (sized := _sized(given, entries, count)) is not None:
            return sized
        made = [entry for entry in entries if _spell(entry.vendor) == given or _bare(given, entry) in entry.also]
        if len(made) == 1:
            return _of_rack(made[0], given, count)
        among = [entry for entry in entries if given and entry.words | lines[entry.vendor] >= set(given)]
        among = [entry for entry in among if ALWAYS_SAID & set(entry.own) <= set(given)] or among
        named = [entry for entry in among if _is_named(entry, given)]
        if not among and (lettered := [entry for entry in entries if _without_letter(entry) == given]):
            first = max(lettered, key=_offers)
            others = tuple(entry.name for entry in lettered if entry is not first)
            return Named(first.name, first.path, devices=count, others=others)
        chosen = [entry for entry in named if all(each.words >= set(entry.own) for each in among)]
        if len(named) == len(among) == 1 or len(chosen) == 1:
            return _of_rack((chosen or named)[0], given, count)
        if len(named) == len(among) and (usual := _usual(named)) is not None:
            others = tuple(entry.name for entry in named if entry is not usual)
            return Named(usual.name, usual.path, devices=count, others=others)
        names = [entry.name for entry in entries if _may_mean(given, entry)]
        misspelt = misspelt or get_close_matches(device.lower(), names, n=1, cutoff=MISSPELT)
        found = _sold_in(given, entries) or _most_rented(among)
        found = found or [entry for entry in entries if _is_near(entry, given) and not misspelt]
        if not found and not misspelt:  # h1000
            numbered = {word for entry in entries for word in entry.own if word[-1].isdigit() and not word.isdigit()}
            words = get_close_matches("".join(given), numbered, n=1, cutoff=MISSPELT)
            found = _most_rented([entry for entry in entries if words and words[0] in entry.own])
        # Of a text that counts, the candidates are as many of each.
        near = [f"{count}x{entry.name}" if count > 1 else entry.name for entry in found] or near
    for device, count in _counted(text) if PLAIN.fullmatch(text) else ():
        if (instance := instance_devices(device)) is not None:
            name, each = instance
            return Named(name, dict(files)[name], devices=each * count)
    for name, facts in bundled("specs/announced.yaml").items():
        if "".join(_spell(name)) in _joined(_spell(text)):
            raise RooflineError(f"{facts}: a spec file with figures of your own is analysed")
    near = near or instances_of(text)
    hint = "" if near or misspelt else "; 'roofline specs list hardware' lists all, and a spec file describes any other"
    if hint:
        names = []  # far from the text: a list in the order of the alphabet helps nobody
    raise UnknownNameError("hardware", text, names, near, hint)


def _of_rack(entry: _Entry, given: tuple[str, ...], count: int) -> Named:
    """The device, or where a rack is named alone all of its own; of several with a rack's name as many devices."""
    racks = [int(match[1]) for word in given if (match := _RACK.fullmatch(word)) and word not in entry.own]
    size = min(racks[0], entry.joined) if racks else 1
    others = (f"racks, {count * size}x{entry.name}",) if count > 1 and size > 1 else ()
    return Named(entry.name, entry.path, devices=count if others else count * size, others=others)


def _bare(given: tuple[str, ...], entry: _Entry) -> str:
    """Words written together, without those of the vendor."""
    return "".join(word for word in given if word not in _spell(entry.vendor))


def _without_letter(entry: _Entry) -> tuple[str, ...]:
    """The name of a spec of one word without the letter after its number: MI300 of MI300X and MI300A; () of others."""
    return (entry.own[0][:-1],) if len(entry.own) == 1 and re.fullmatch(r"[a-z]+\d{3,}[a-z]", entry.own[0]) else ()


def _sold_in(given: tuple[str, ...], entries: tuple[_Entry, ...]) -> list[_Entry]:
    """The chips that a computer of Apple is sold with, the newest first."""
    variants = MACHINES.get("".join(word for word in given if not _GIGABYTES.fullmatch(word)), ())
    return [each for each in reversed(entries) if each.vendor == "Apple" and "".join(each.own[1:]) in variants]


def _most_rented(among: list[_Entry]) -> list[_Entry]:
    """More entries than an error lists, the most rented first, and GPUs before others."""
    if len(among) <= MAX_COMPLETIONS:
        return among
    return sorted(among, key=lambda entry: (-_offers(entry), entry.kind != "gpu"))


def _usual(named: list[_Entry]) -> _Entry | None:
    """Of entries that differ in form factor and memory alone the one that most clouds rent; None of others."""
    if len({tuple(word for word in entry.own if not _may_be_left_out(word)) for entry in named}) > 1:
        return None
    return max(filter(_offers, named), key=_offers, default=None)


def _offers(entry: _Entry) -> int:
    """How many public lists of prices have a device for rent."""
    price = bundled_price(entry.name)[0]
    return 0 if price is None else len(price.offers)


def _counted(text: str) -> Iterator[tuple[str, int]]:
    """The text as one device, and the devices and their numbers of a text that counts; a DGX H100 is eight."""
    for device, count in _numbered(text):
        if box := _BOX.fullmatch(device.strip()):
            yield box["device"], BOX_DEVICES * count
        yield device, count


def _numbered(text: str) -> Iterator[tuple[str, int]]:
    yield text, 1
    for pattern in _COUNTED:
        match = pattern.fullmatch(text.strip())
        if match and (count := int(match["count"])):
            yield match["device"].strip(), count
            if nodes := pattern.fullmatch(match["device"].strip()):
                yield nodes["device"].strip(), count * int(nodes["count"])
    if said := _SAID.fullmatch(text.strip()):
        number = said["count"].lower()
        yield said["device"], _NUMBERS.get(number) or int(number)


def _is_named(entry: _Entry, given: tuple[str, ...]) -> bool:
    """Whether words name a spec: what they leave out of its name is its line, form factor or memory."""
    places = _joined(entry.own)
    covered = {place for word in given if word in places for place in places[word]}
    if not any(any(map(str.isdigit, entry.own[place])) for place in covered):
        return len(covered) == len(entry.own)
    after = [word for place, word in enumerate(entry.own) if place > min(covered) and place not in covered]
    return all(map(_may_be_left_out, after))


def _may_be_left_out(word: str) -> bool:
    return word in FORM_FACTORS or word == "rx" or re.fullmatch(r"\d+gb", word) is not None


APPLE_SIZES = (8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)
"""Sizes of unified memory in GB with which Apple has sold its chips; a spec has the largest of its own."""


MACOS = re.compile(r"macos(1[1-5]|2[6-9])")
"""A version of macOS, from the first that runs on Apple's chips on."""


def _sized(given: tuple[str, ...], entries: tuple[_Entry, ...], count: int) -> Named | None:
    """A chip of Apple with a memory of its own size, or a macOS, which its name ends in; None for any other name."""
    changes = {}
    if given and (macos := MACOS.fullmatch(given[-1])):
        changes["macos"], given = int(macos[1]), given[:-1]
    last = re.fullmatch(r"(.*?)(\d{1,3})gb", given[-1]) if given else None
    size = int(last[2]) if last else 0
    if last:
        changes["memory"], given = size, (*given[:-1], *filter(None, [last[1]]))
    apple = [entry for entry in entries if entry.vendor == "Apple"]
    sold = "".join(given) + f"{size}gb"  # sizes that are sold with fewer cores only, and are other names of that chip
    entry = next((entry for entry in apple if sold in entry.also), None)
    entry = entry or next((entry for entry in apple if "".join(entry.own) == "".join(given)), None)
    if entry is None or not changes or (size and (size not in APPLE_SIZES or size > max(_gigabytes(entry), default=0))):
        return None
    return Named(entry.name, entry.path, changes, count)


def _gigabytes(entry: _Entry) -> list[int]:
    return [int(word.removesuffix("gb")) for word in entry.words if re.fullmatch(r"\d+gb", word)]


def _may_mean(given: tuple[str, ...], entry: _Entry) -> bool:
    """Whether a spec is one that words may misspell: with its numbers, or with its letters and a digit too many or few.

    P40 and L40 are two cards, and so are RTX 3050 and RTX 3090.
    """
    if {word for word in given if any(map(str.isdigit, word))} <= entry.words:
        return True
    text, own = "".join(given), "".join(entry.own)
    letters = ["".join(filter(str.isalpha, each)) for each in (text, own)]
    return letters[0] == letters[1] and len(text) != len(own)


def _is_near(entry: _Entry, given: tuple[str, ...]) -> bool:
    """Whether a word with a digit, but for a memory size, is the beginning of a word for the spec."""
    told = [word for word in given if any(map(str.isdigit, word)) and not word.endswith("gb")]
    told = [word for word in told if len(word) > 2 or not word.isdigit()]
    return any(word.startswith(each) for each in told for word in entry.own)
