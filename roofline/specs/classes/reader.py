"""The reader of last resort: a config.json of any `model_type` that the installed Transformers has a class of.

The class is built without weights in a process of its own, which has a time and a memory limit, no network and no code
of a repository. What the process answers is a model spec like any other reader's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from roofline.core.errors import SpecError, install, quote
from roofline.core.inputs import read_text

PROCESSOR_SECONDS = 60
"""The most processor time that a class may take; importing Transformers takes 3 to 6 s of it."""

SECONDS = 300
"""The longest that a class may take, also on a machine that others use."""

MEMORY = 4 * 1024**3
"""The address space of the process in bytes, most of it the libraries' own."""


SWITCH = "ROOFLINE_TRANSFORMERS"
"""Environment variable: 0 leaves Transformers alone, even where it is installed."""


MOST_TABLES = 16 << 20
"""Bytes of a table of Transformers' model types."""


def has_classes() -> bool:
    """Whether Transformers and torch are installed, and may be used."""
    return os.environ.get(SWITCH, "1") != "0" and all(map(importlib.util.find_spec, ("transformers", "torch")))


def knows_class(model_type: str) -> bool:
    """Whether the installed Transformers lists a `model_type`, by the text of its tables: it is slow to import."""
    found = importlib.util.find_spec("transformers") if has_classes() else None
    if found is None or found.origin is None:
        return False
    tables = Path(found.origin).parent / "models" / "auto"
    return any(f'"{model_type}"' in _text(tables / name) for name in ("auto_mappings.py", "configuration_auto.py"))


@lru_cache(maxsize=4)
def _text(path: Path) -> str:
    return read_text(path, MOST_TABLES) if path.is_file() else ""


def without_classes(joint: str) -> str:
    """The end of a refusal, after `joint`, where Transformers is not installed: what it would read."""
    if has_classes() or os.environ.get(SWITCH) == "0":
        return ""
    return f"{joint}install Transformers, whose classes are read ({install('transformers')})"


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """What the process writes: a spec with what it rests on, or why there is none."""

    spec: dict[str, Any] | None = None
    notes: list[str] = []
    version: str = ""
    refused: str = ""


def read_class(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The model spec of a config.json, read off the class in Transformers; its `rests_on` says what that covers.

    Raises SpecError where the class does not fit a spec.
    """
    answer = _asked(json.dumps(content, sort_keys=True), where)
    if answer.spec is None:
        kind = quote(content.get("model_type"))
        raise SpecError(where, f"the class that Transformers has of model_type {kind} is not read: {answer.refused}")
    return answer.spec | {
        "rests_on": [f"its layers are read off the class of Transformers {answer.version}", *answer.notes]
    }


@lru_cache(maxsize=32)
def _asked(config: str, where: str) -> Answer:
    environment = {
        **os.environ,
        **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"), "1"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TRANSFORMERS_VERBOSITY": "error",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-m", "roofline.specs.classes"]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter and a module of this package
            command, input=config, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
        )
        return msgspec.json.decode(done.stdout.rpartition("\n")[2], type=Answer)
    except subprocess.TimeoutExpired:
        raise SpecError(where, f"its class in Transformers was not built within {SECONDS} s") from None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        limits = f"{PROCESSOR_SECONDS} s and {MEMORY >> 30} GiB"
        raise SpecError(where, f"its class in Transformers was not built within {limits}") from None
