"""The page without a server: the answers to what it asks of some set-ups, for a file that draws them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from roofline import analyze
from roofline.core.errors import RooflineError
from roofline.reports.output.export import printable
from roofline.reports.view.catalogue import load_fields
from roofline.reports.view.documents import ANSWERS
from roofline.reports.view.graph import kept
from roofline.reports.view.questions import Question
from roofline.reports.view.setups import Setup, Specs

OF_EACH = ("answer", "verdict", "better", "curves", "advice", "run")
OF_ALL = ("load", "compare")
"""Questions about each set-up, and about all of them; the operators of each are explained, too."""


def recorded(setups: Sequence[Setup], specs: Specs, advice: bool = True) -> str:
    """What the page asks of these set-ups with the answers, as JSON without <, > and &."""
    answers = [
        [name, question, _answer(name, question, specs)]
        for name, question in _questions(setups, specs)
        if advice or name != "advice"
    ]
    views = ["overview", "network", "operators", "load", "run"]
    views += [*(["compare"] if len(setups) > 1 else []), *(["advice"] if advice else [])]
    found = {"setups": list(setups), "views": views, "load": load_fields(), "answers": answers}
    text = specs.plain(json.dumps(found, separators=(",", ":")))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _questions(setups: Sequence[Setup], specs: Specs) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in OF_ALL:
        yield name, {"setups": list(setups)}
    for setup in setups:
        asked = {"setups": [setup]}
        yield from ((name, asked) for name in OF_EACH)
        analysis = analyze(specs.read(setup).scenario)
        for phase in filter(None, (analysis.prefill, analysis.decode)):
            for place in kept(phase):
                yield "explain", {**asked, "phase": phase.name, "place": place}


def _answer(name: str, question: dict[str, Any], specs: Specs) -> Any:
    try:
        return _shown(ANSWERS[name](Question(**question), specs))
    except RooflineError as error:
        return {"error": printable(" ".join(str(error).split()))}


def _shown(value: Any) -> Any:
    """A document with unprintable and bidirectional characters replaced."""
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, (list, tuple)) else value
