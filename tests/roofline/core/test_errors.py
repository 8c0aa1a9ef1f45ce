"""Suggestions for unknown names."""

import pytest

from roofline import list_hardware, list_models
from roofline.core.errors import suggest

HARDWARE, MODELS = list_hardware(), list_models()


@pytest.mark.parametrize(
    ("name", "known", "suggestion"),
    [
        ("h100", HARDWARE, "; did you mean 'h100-nvl', 'h100-pcie' or 'h100-sxm'?"),
        ("b200", HARDWARE, "; did you mean 'b200-sxm'?"),
        ("MI300", HARDWARE, "; did you mean 'mi300a' or 'mi300x'?"),
        ("4090", HARDWARE, "; did you mean 'rtx-4090'?"),
        (
            "llama31",
            MODELS,
            "; did you mean 'llama-3.1-405b', 'llama-3.1-70b', 'llama-3.1-8b' or 'llama-3.1-nemotron-ultra-253b'?",
        ),
        ("lama-3.1-8b", MODELS, "; did you mean 'llama-3.1-8b'?"),
        ("zzz", ["one", "two"], "; known: one, two"),
        ("zzz", MODELS, ""),
        ("", MODELS, ""),
        ("-", MODELS, ""),
    ],
)
def test_completions_come_before_close_names(name: str, known: list[str], suggestion: str) -> None:
    assert suggest(name, known) == suggestion


def test_listed_completions_are_limited() -> None:
    assert suggest("llama-3", MODELS).endswith("or others?")
    assert "llama-30b" not in suggest("llama-3", MODELS)  # another number, not a completion
