"""The process that builds a class: a config.json on standard input, an `Answer` as JSON on standard output."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys

import msgspec

from roofline.specs.classes.reader import MEMORY, PROCESSOR_SECONDS, Answer


def main() -> None:
    """Read a configuration, build its class, and write what was read off it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    gc.disable()  # a short process of many imports
    content = json.loads(sys.stdin.read())
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        answer = _answer(content)
    sys.stdout.write(msgspec.json.encode(answer).decode())


def _answer(content: dict[str, object]) -> Answer:
    import transformers

    from roofline.specs.classes.build import build, without_scipy
    from roofline.specs.classes.network import read
    from roofline.specs.classes.trace import trace

    without_scipy()
    try:
        model = build(content)
        found = read(model, trace(model))
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        return Answer(refused=text[0][:200])
    return Answer(found.spec, found.notes, transformers.__version__)


if __name__ == "__main__":
    main()
