"""What the server says to a question: a status, and a JSON document or an error of one sentence."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from roofline import analyze
from roofline.core.errors import RooflineError, needs_extra, system_error
from roofline.reports.documents.analysis import analysis_document, as_csv
from roofline.reports.output.export import as_json
from roofline.reports.view.documents import ANSWERS
from roofline.reports.view.questions import Question, first
from roofline.reports.view.setups import Specs


def _report(question: Question, specs: Specs, ending: str) -> dict[str, str]:
    with needs_extra("report"):
        from roofline.reports.pages.content import content
        from roofline.reports.pages.figures import of_accuracy
        from roofline.reports.pages.subjects import Subject
        from roofline.reports.pages.web import web_page
        from roofline.reports.pages.write import markdown_page
    setups = question.setups or [{}]
    requests = [specs.read(setup).scenario for setup in setups]
    labels = [chr(ord("A") + place) for place in range(len(requests))] if len(requests) > 1 else [""]
    found = list(map(Subject, requests, labels))
    sections = content(found, None, advice=True, progress=lambda _: None)
    if ending == ".html":
        return {"name": "report.html", "text": web_page(setups, specs, sections, list(of_accuracy(found)), None)}
    return {"name": "report.md", "text": markdown_page(sections, (), "", None)}


EXPORTS: Mapping[str, Callable[[Question, Specs], dict[str, str]]] = {
    "html": lambda question, specs: _report(question, specs, ".html"),
    "markdown": lambda question, specs: _report(question, specs, ".md"),
    "csv": lambda question, specs: {
        "name": "operators.csv",
        "text": as_csv(analysis_document(analyze(first(question, specs).scenario))),
    },
}
"""Files that the page offers: name and text."""


REFUSED, FAILED = 422, 500


class Reply(Struct, frozen=True):
    """The status of a response, its JSON, and what is for the operator of the server alone."""

    status: int
    text: str
    trouble: str = ""


def refusal(message: str, status: int = REFUSED) -> Reply:
    """An error that the page shows."""
    return Reply(status, json.dumps({"error": message}))


def _asked(found: Callable[[Question, Specs], Any]) -> Callable[[bytes, Mapping[str, str], Specs], Any]:
    return lambda body, _, specs: found(msgspec.json.decode(body, type=Question), specs)


def _checkpoint(body: bytes, query: Mapping[str, str], specs: Specs) -> dict[str, str]:
    name, size = (query.get(key, "") for key in ("name", "size"))
    return specs.checkpoint(name, int(size) if size.isdecimal() and len(size) < 20 else 0, body)


CHECKPOINT = "checkpoint"

QUESTIONS: Mapping[str, Callable[[bytes, Mapping[str, str], Specs], Any]] = {
    **{name: _asked(found) for name, found in {**ANSWERS, **EXPORTS}.items()},
    CHECKPOINT: _checkpoint,
}
"""What may be asked, by name."""


def reply(specs: Specs, name: str, body: bytes, query: Mapping[str, str]) -> Reply:
    """The answer to a question; a user error is a sentence with status 422."""
    try:
        with specs.guarded():
            return Reply(200, _json(QUESTIONS[name](body, query, specs)))
    except RooflineError as error:
        return refusal(" ".join(specs.plain(str(error)).split()))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return refusal(f"this is not a question: {error}")
    except OSError as error:
        return refusal(specs.plain(system_error(error)))
    except MemoryError:
        return refusal("the answer takes more memory than the server has", FAILED)
    except Exception:
        told = refusal("an error of the program; the terminal shows it", FAILED)
        return msgspec.structs.replace(told, trouble=traceback.format_exc())


def _json(answer: dict[str, Any]) -> str:
    try:
        return json.dumps(answer, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return as_json(answer)  # raises the error that names the figure
