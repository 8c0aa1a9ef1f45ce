"""Figure specifications: the section `figure` of a study file, or the options of `roofline plot`.

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
from roofline.core.options import names_in
from roofline.specs.library import as_mapping, check_keys

OF_SCENARIO = ("roofline", "batch", "prompt", "memory")
OF_SWEEP = ("heatmap", "pareto", "curves", "bars", "frontier")
KINDS = (*OF_SCENARIO, *OF_SWEEP, "roofs", "footprint", "measured")
"""Figures of a scenario; of a sweep; of hardware, of memory by phase, and of predictions against measurements."""

TAKES: Mapping[str, tuple[str, ...]] = {
    "heatmap": ("metric", "x", "y"),
    "pareto": ("metric",),
    "curves": ("metric", "x"),
    "bars": ("metric",),
    "frontier": ("metric",),
    "roofs": ("formats",),
}
"""The settings of each kind of figure besides its title."""

SECTION = "figure"
"""The key of the figure specification in a study file."""


class FigureSpec(Struct, frozen=True):
    """A kind of figure and its settings.

    `metric` are the metrics shown, `x` and `y` the axes, `formats` the formats of a roofline. `caption` and `source`
    are for the gallery; `source` describes the published figure that this one reproduces.
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

    def with_options(self, **given: Any) -> FigureSpec:
        """The same with `given` settings replaced, unless they are None or no names."""
        return replace(self, **{name: value for name, value in given.items() if value not in (None, ())})


def is_yaml(name: str) -> bool:
    """Whether a name ends like a YAML file."""
    return name.lower().endswith((".yaml", ".yml"))


def read_figure_spec(path: Path) -> tuple[FigureSpec | None, dict[str, Any]]:
    """The figure specification of a study file, None if it has none, and the rest of the file.

    Raises SpecError if the file cannot be read or the section is wrong.
    """
    content = read_mapping(path)
    if SECTION not in content:
        return None, content
    section = as_mapping(content.pop(SECTION), str(path), SECTION)
    check_keys(section, list(FigureSpec.__struct_fields__), str(path), SECTION)
    if "kind" not in section:
        raise SpecError(str(path), f"the section {quote(SECTION)} has no kind: one of {', '.join(KINDS)}")
    try:
        return FigureSpec(**{key: _value(key, value, path) for key, value in section.items()}), content
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


def figure_spec_for(figure: str, source: str | None) -> tuple[FigureSpec, str | None]:
    """The specification and the source of `roofline plot FIGURE [SOURCE]`; FIGURE is a kind or a study file.

    Raises RooflineError if it is neither.
    """
    if is_yaml(figure) and figure not in KINDS:
        spec, _ = read_figure_spec(Path(figure))
        if source is not None:
            raise RooflineError(f"{quote(figure, 200)} is a study with its own figure: remove {quote(source)}")
        if spec is None:
            raise SpecError(figure, f"has no section {quote(SECTION)}; name a figure: roofline plot heatmap {figure}")
        return spec, figure
    if figure not in KINDS:
        raise UnknownNameError("figure", figure, KINDS)
    if source is not None and figure != "measured" and is_yaml(source) and Path(source).is_file():
        spec, _ = read_figure_spec(Path(source))
        if spec is not None and spec.kind == figure:
            return spec, source
    return FigureSpec(figure), source


def scenario_options(source: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a scenario: from a study file without axes or a model's name, overridden by `given`."""
    from roofline.scenario.options import find_option

    values: dict[str, Any] = {}
    if source is not None and is_yaml(source) and SECTION in (content := read_mapping(Path(source))):
        values = {find_option(key).name: value for key, value in content.items() if key not in (SECTION, "at")}
    elif source is not None:
        values = {"model": source}
    values |= {find_option(key).name: value for key, value in given.items() if value is not None}
    return {key: find_option(key).read(value) for key, value in values.items()}
