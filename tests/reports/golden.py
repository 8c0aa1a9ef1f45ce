"""Reports whose Markdown is committed in tests/golden: `make golden` writes them anew, and a person reads the diff."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "golden"

REPORTS: Mapping[str, tuple[str, tuple[str, ...], dict[str, Any], bool]] = {
    "report-dense": ("llama-3.1-8b", (), {"hw": "h100-sxm", "batch": 8, "prompt": 2048}, True),
    "report-experts": (
        "deepseek-v3",
        (),
        {"hw": "h200-sxm", "batch": 64, "prompt": 1024, "tp": 8, "quant": "fp8_block"},
        False,
    ),
    "report-beside": ("llama-2-13b", ("hw=a6000,rtx-4090",), {"quant": "W4A16", "flash": False}, False),
}
"""Source, axes, options and whether advice is asked for."""


def report(name: str) -> str:
    """The Markdown of a report as it is today; its figures are not drawn."""
    from roofline.reports.pages.content import content
    from roofline.reports.pages.figures import of_accuracy, of_scenarios
    from roofline.reports.pages.markdown import markdown_page
    from roofline.reports.pages.subjects import subjects

    source, over, options, advice = REPORTS[name]
    found = subjects(source, over, options)
    said = content(found, None, advice, lambda _: None)
    return markdown_page(said, [*of_scenarios(found), *of_accuracy(found)], f"{name}-figures", None)


if __name__ == "__main__":
    for name in REPORTS:
        (FOLDER / f"{name}.md").write_text(report(name), encoding="utf-8")
