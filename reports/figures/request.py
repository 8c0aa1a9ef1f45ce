"""What a figure is to show: the section `figure` of a study file, or the options of `roofline plot`.

model: llama-3.1-8b
hw: h100-sxm
over:
  batch: 1:256:log9
  prompt: 512,2048,8192
figure:
  kind: heatmap
  metric: tpot
  title: Interactivity of Llama-3.1-8B
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote
from roofline.specs.library import as_mapping, check_keys
from roofline.whatif.options import names_in

OF_SCENARIO = ("roofline", "batch", "prompt", "memory")
OF_SWEEP = ("heatmap", "pareto", "curves", "bars")
KINDS = (*OF_SCENARIO, *OF_SWEEP, "roofs", "footprint", "measured")
"""Figures of a scenario; of a sweep; of hardware, of the memory of phases, and of predictions beside measurements."""

TAKES: Mapping[str, tuple[str, ...]] = {
    "heatmap": ("metric", "x", "y"),
    "pareto": ("metric",),
    "curves": ("metric", "x"),
    "bars": ("metric",),
    "roofs": ("formats",),
}
"""The settings that a kind of figure has beside its title."""

SECTION = "figure"
"""The key of a study file under which it says what is drawn of it."""


class Wish(Struct, frozen=True):
    """A kind of figure and its settings.

    `metric` are the metrics drawn, `x` and `y` the axes that run across and up, `formats` those whose roofs are drawn.
    `caption` and `source` are for the gallery: what one sees, and what a published figure of the same shows.
    """

    kind: str
    metric: tuple[str, ...] = ()
    x: str | None = None
    y: str | None = None
    formats: tuple[str, ...] = ()
    title: str | None = None
    caption: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownNameError("figure", self.kind, KINDS)
        for name in ("metric", "x", "y", "formats"):
            if getattr(self, name) and name not in TAKES.get(self.kind, ()):
                raise RooflineError(f"the figure {self.kind} takes no {name}")

    def with_options(self, **given: Any) -> Wish:
        """The same with the settings that are given (not None, not empty) in place of its own."""
        return replace(self, **{name: value for name, value in given.items() if value})


def is_yaml(name: str) -> bool:
    """Whether a name is that of a YAML file, by its ending."""
    return name.lower().endswith((".yaml", ".yml"))


def read_wish(path: Path) -> tuple[Wish | None, dict[str, Any]]:
    """What a study file says of a figure, None where it says nothing, and the rest of the file.

    Raises SpecError where the file cannot be read or the section is wrong.
    """
    content = read_mapping(path)
    if SECTION not in content:
        return None, content
    section = as_mapping(content.pop(SECTION), str(path), SECTION)
    check_keys(section, list(Wish.__struct_fields__), str(path), SECTION)
    if "kind" not in section:
        raise SpecError(str(path), f"the section {quote(SECTION)} says no kind: one of {', '.join(KINDS)}")
    try:
        return Wish(**{key: _value(key, value, path) for key, value in section.items()}), content
    except SpecError:
        raise
    except RooflineError as error:
        raise SpecError(str(path), str(error)) from None


def _value(key: str, value: object, path: Path) -> Any:
    listed = key in ("metric", "formats")
    if listed and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    if not isinstance(value, str):
        raise SpecError(str(path), f"{quote(f'{SECTION}.{key}')} must be text{' or a list of names' if listed else ''}")
    return names_in(value) if listed else " ".join(value.split())


def wish_for(figure: str, source: str | None) -> tuple[Wish, str | None]:
    """What `roofline plot FIGURE [SOURCE]` asks for, and its source: a kind of figure, or a study file that names one.

    Raises RooflineError where it is neither.
    """
    if is_yaml(figure) and figure not in KINDS:
        wish, _ = read_wish(Path(figure))
        if source is not None:
            raise RooflineError(f"{quote(figure, 200)} is drawn as it says itself: {quote(source)} has no place beside")
        if wish is None:
            raise SpecError(figure, f"has no section {quote(SECTION)}; name a figure: roofline plot heatmap {figure}")
        return wish, figure
    if figure not in KINDS:
        raise UnknownNameError("figure", figure, KINDS)
    if source is not None and figure != "measured" and is_yaml(source) and Path(source).is_file():
        wish, _ = read_wish(Path(source))
        if wish is not None and wish.kind == figure:
            return wish, source
    return Wish(figure), source


def scenario_options(source: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a scenario: those of a study file without axes, or a model's name, and those `given` beside it."""
    from roofline.whatif.options import find_option

    values: dict[str, Any] = {}
    if source is not None and is_yaml(source) and SECTION in (content := read_mapping(Path(source))):
        values = {find_option(key).name: value for key, value in content.items() if key not in (SECTION, "at")}
    elif source is not None:
        values = {"model": source}
    values |= {find_option(key).name: value for key, value in given.items() if value is not None}
    return {key: find_option(key).read(value) for key, value in values.items()}
