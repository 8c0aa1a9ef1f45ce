"""The documentation: every example runs, every link leads somewhere, and what is generated is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import roofline
import roofline.advisor as advisor
from lab.documentation.api import MODULES, documented, literal, python_page
from lab.documentation.build import commands_page, filled, options_page, outside, stale
from lab.examples import ROOT, Command, ExampleError, Session, blocks, furnish, pages, parse
from roofline import cli, list_hardware, list_models, load_model
from roofline.scenario.options import OPTIONS
from roofline.serving.options import LOAD_OPTIONS
from tests.conftest import Run

PAGES = [path.relative_to(ROOT).as_posix() for path in pages()]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page(page: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    furnish(tmp_path)
    session = Session(tmp_path, run)
    for block in blocks(ROOT / page):
        session.do(block)


def do(text: str, folder: Path, run: Run) -> Session:
    """Run a page of this text."""
    page = folder / "page.md"
    page.write_text(text)
    session = Session(folder, run)
    for block in blocks(page):
        session.do(block)
    return session


def fenced(language: str, text: str, above: str = "") -> str:
    return f"{above}\n\n```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (fenced("sh", "roofline analyse llama-2-7b"), "No such command"),
        (fenced("sh", "roofline specs show nothing-of-the-kind"), "unknown"),
        (fenced("sh", "nvidia-smi"), "mark the block as not run"),
        (fenced("sh", "make nothing"), "no target nothing"),
        (fenced("sh", "pip install 'llm-roofline[nothing]'"), "no extra nothing"),
        (fenced("console", "$ roofline --version\nroofline 99"), "does not print 'roofline 99'"),
        (fenced("sh", "roofline analyze a --nothing", "<!-- not run: needs a GPU -->"), "nothing"),
        (fenced("sh", "roofline nothing", "<!-- not run: needs a GPU -->"), "no command nothing"),
        (fenced("sh", "roofline --version", "<!-- not run: slow -->"), "needs a reason"),
    ],
)
def test_errors_in_examples_are_reported(text: str, message: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match=message):
        do(text, tmp_path, run)


def test_files_and_python_of_a_page_go_together(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = fenced('yaml title="deep/file.yaml"', "a: 1") + fenced(
        "python", "from pathlib import Path\nx = Path('deep/file.yaml').read_text()"
    )
    assert do(text + fenced("python", "y = x + '!'"), tmp_path, run).namespace["y"] == "a: 1\n!"
    with pytest.raises(ZeroDivisionError):
        do(fenced("python", "1 / 0"), tmp_path, run)


def test_shown_output_is_found_in_order(run: Run, tmp_path: Path) -> None:
    do(fenced("console", "$ roofline specs --help\n...\nCommands:\n...\n$ roofline --version"), tmp_path, run)


# --- links ------------------------------------------------------------------------------------------------------------

MARKDOWN = [
    path
    for folder in (ROOT, *(ROOT / name for name in ("docs", "hwspecs", "modelspecs", "reports", "validate")))
    for path in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and code hosts make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?)(?: *\{#([\w-]+)\})?$", text, re.MULTILINE)
    return {given or slug(title) for title, given in headings}


def slug(title: str) -> str:
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower())


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"(?<!\\)\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        if found == ROOT / "docs" / "gallery.md":
            continue  # made from lab/gallery when the site is built
        assert found.exists(), f"{path}: {target}"
        assert not anchor or anchor in anchors(found), f"{path}: {target}"


# --- what is made from the code ---------------------------------------------------------------------------------------


def leaves(path: str, command: Any) -> dict[str, Any]:
    """The commands of the program by their full names."""
    children = getattr(command, "commands", None)
    if children is None:
        return {path: command}
    return {name: leaf for key, child in children.items() for name, leaf in leaves(f"{path} {key}", child).items()}


def test_every_command_and_option_is_in_the_reference() -> None:
    page = commands_page()
    sections = dict(re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    shared = sections["Options of a scenario"]
    for name, command in leaves("roofline", typer.main.get_command(cli.app)).items():
        for param in command.params:
            if getattr(param, "hidden", False):
                continue
            words = param.opts if param.opts[0].startswith("-") else [param.metavar or param.name.upper()]
            for word in words:
                assert f"{word}" in sections[name] + shared, f"{name} {word}"
        assert literal(" ".join(command.help.split())[:40]) in " ".join(sections[name].split())
    model = "A model: its name, a Hugging Face repository, a spec file, config.json or checkpoint."
    assert f"| `MODEL` | {model} | required |" in sections["roofline analyze"]
    assert "`--phase [prefill|decode|both]` | Phases to show. | `both`" in sections["roofline analyze"]
    assert "`--tp" not in sections["roofline analyze"]


def test_every_option_with_its_names_and_range_is_in_the_reference() -> None:
    page = options_page()
    for option in (*OPTIONS.values(), *LOAD_OPTIONS.values()):
        name = "MODEL" if option.name == "model" else option.flag
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        assert all(f"`{flag}`" in row for flag in option.flags)
        assert literal(option.help) in row
        assert (f"`{option.default}`" if option.default else literal(option.otherwise)) in row
    assert "whole number (tokens), 1 to 1,000,000,000" in page
    assert "in Python `techniques`" in page


def test_every_public_name_is_in_the_reference() -> None:
    page = python_page()
    for module in MODULES:
        assert f"\n## {module}\n" in page
    for name in (*roofline.__all__, *advisor.__all__):
        assert re.search(rf"^### (class )?{name}$", page, re.MULTILINE), name
    assert not re.search(r" object at 0x|<factory>|<function", page), "the same on every machine"


def test_every_example_of_the_reference_runs_alone() -> None:
    examples = re.findall(r"```pycon\n(.*?)```", python_page(), re.DOTALL)
    assert len(examples) > 10
    for example in examples:
        typed = "\n".join(line for line in example.splitlines() if line.startswith((">>>", "...")))
        for name in set(re.findall(r"\b(\w+)\(", typed)) & set(roofline.__all__):
            assert re.search(rf"import .*\b{name}\b", example), f"{name} is not imported:\n{example}"


def test_docstrings_become_markdown() -> None:
    lines = documented("A `x_y` of a_b <z>.\n\n    t = a * b\n\n>>> 1 + 1\n2\n\n* one\n* two_three\n")
    assert lines[0] == "A `x_y` of a\\_b \\<z\\>."
    assert "    t = a * b" in lines
    assert lines[lines.index("```pycon") + 1] == ">>> 1 + 1\n2"
    assert "* two\\_three" in lines


@pytest.mark.slow
def test_generated_parts_of_pages_are_fresh() -> None:
    assert not [str(path) for path in stale()], "run `python -m docs.build`"


def test_a_directive_is_filled_in_once() -> None:
    text = "# A page\n\n<!-- from: roofline.whatif.odds -->\n\nAnd more.\n"
    once = filled(text)
    assert once.count("<!-- end -->") == 1
    assert once.endswith("<!-- end -->\n\nAnd more.\n")
    assert filled(once) == once


def test_the_theory_has_every_form_of_a_kernel() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "theory").glob("*.md"))
    kernels = [path.stem for path in (ROOT / "roofline" / "timing" / "kernels").glob("[a-z]*.py")]
    assert "gemm" in kernels
    for name in kernels:
        if name not in ("common", "formats", "shapes"):
            assert f"<!-- from: roofline.timing.kernels.{name} -->" in text
    names = ("bound.roof", "specs.engine", "scenario.generation", "scenario.energy", "scenario.cost", "whatif.odds")
    timing = ("passes", "corrections", "intervals", "calibration")
    for name in (*names, *(f"timing.{part}" for part in timing), "whatif.sensitivities"):
        assert f"<!-- from: roofline.{name} -->" in text


def table_rows(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cell."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    return {first: rest for first, *rest in rows}


def test_the_accuracy_of_the_readme_is_that_of_its_page() -> None:
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/accuracy.md"))
    shown, known = table_rows(readme.partition("## How accurate")[2].partition("\n## ")[0]), table_rows(page)
    assert len(shown) > 8
    for name, cells in shown.items():
        if name:
            assert set(cells) <= set(known[name]), f"README and docs/accuracy.md differ in {name}"


def test_pages_count_the_bundled_specs_right() -> None:
    readme, accuracy, numbers = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("README.md", "docs/accuracy.md", "docs/numbers.md")
    )
    models, published = list_models(), [name for name in list_models() if load_model(name).parameters]
    assert f"YAML specs of {len(models)} models and {len(list_hardware())} devices" in readme
    for page in (accuracy, numbers):
        assert f"{len(published)} of the {len(models)} bundled models" in page


def test_the_workflow_runs_what_the_page_says() -> None:
    text = next(
        block for block in blocks(ROOT / "docs" / "howto" / "ci.md") if (block.title or "").startswith(".github")
    )
    workflow = yaml.safe_load("\n".join(text.lines))
    job = workflow["jobs"]["check"]
    runs = [step["run"].replace("$ANCHORS", job["env"]["ANCHORS"]) for step in job["steps"] if "run" in step]
    commands = [line for run in runs for line in run.splitlines() if line.startswith("roofline ")]
    assert len(commands) == 3
    for line in commands:
        parse(Command(tuple(shlex.split(line.removesuffix(" || true"))), {}), "ci.md")


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<a href="https://example.org">link</a> <img src="figure.svg">', []),
        ('<link rel="canonical" href="https://example.org/">', []),
        ('<script src="https://example.org/a.js"></script>', ["https://example.org/a.js"]),
        ('<link rel="stylesheet" href="//example.org/a.css">', ["//example.org/a.css"]),
        ("@font-face{src:url(https://example.org/a.woff2)}", ["https://example.org/a.woff2"]),
        ('@import "https://example.org/a.css";', ["https://example.org/a.css"]),
    ],
)
def test_external_resources_of_a_page_are_found(page: str, found: list[str]) -> None:
    assert outside(page) == found
