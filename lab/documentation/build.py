"""The generated parts of the documentation, and the hooks of MkDocs.

    python -m docs.build             # write every generated part into the pages
    python -m docs.build --check     # name the pages that are stale; exit status 1 if there are any

Generated text is committed, so that pages read the same in the repository and on the built site; a test checks that it
is fresh. In a page, text between `<!-- from: MODULE -->` and `<!-- end -->` is the docstring of the module, after
`<!-- constants: MODULE.NAME -->` a table of kernel parameters, after `<!-- summary: check -->` the errors against
published figures. The pages of GENERATED are written whole.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from lab.documentation.api import documented, literal, python_page

DOCS = Path(__file__).resolve().parents[2] / "docs"

GALLERY = "gallery"
"""The folder of figures, with their studies and data, that the page of the gallery shows."""


def commands_page() -> str:
    """Every command with its arguments and options, from the Typer application."""
    from roofline import cli
    from roofline.cli.scenario_options import SCENARIO_OPTIONS

    root: Any = typer.main.get_command(cli.app)
    shared = tuple(name for name in SCENARIO_OPTIONS if name not in ("model", "hw"))
    scenario = [param for param in root.commands["analyze"].params if param.name in shared]
    lines = ["# Commands", "", str(root.help), "", "This page is made from the program itself.", ""]
    lines += ["## Options of a scenario", "", "Commands that take a scenario take all of these.", ""]
    lines += [*_options(scenario), ""]
    for path, command in _commands("roofline", root):
        told = [literal(paragraph) + "\n" for paragraph in inspect.cleandoc(command.help or "").split("\n\n")]
        usage = [path, *(_name(param) for param in command.params if _is_argument(param)), "[OPTIONS]"]
        lines += [f"## {path}", "", *told, "", f"    {' '.join(usage)}", ""]
        own = [param for param in command.params if param.name not in shared and not getattr(param, "hidden", False)]
        lines += [*_options(own), ""] if own else []
        if {param.name for param in command.params} >= set(shared):
            lines += ["And the [options of a scenario](#options-of-a-scenario).", ""]
    return "\n".join(lines)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its full name."""
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from _commands(f"{path} {name}", child)
        else:
            yield f"{path} {name}", child


def _name(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _options(params: Iterable[Any]) -> list[str]:
    rows = ["| | what | default |", "|---|---|---|"]
    for param in params:
        if _is_argument(param):
            name = f"`{_name(param)}`"
        else:
            long = " / ".join(", ".join(flags) for flags in (param.opts, param.secondary_opts) if flags)
            switch = param.is_flag or param.secondary_opts
            kind = "" if switch else f" {param.metavar or _kind(param)}"
            name = f"`{long}{kind}`"
        told, _, default = _described(param).partition(" [default: ")
        default = default.removesuffix("]")
        default = f"`{default}`" if default and " " not in default else literal(default)
        rows.append(f"| {name} | {literal(told)} | {default or _default(param)} |")
    return rows


def _kind(param: Any) -> str:
    """What an option takes: its choices, or the name of its type. Where that stands depends on the version of Typer."""
    annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return f"[{'|'.join(str(choice.value) for choice in annotation)}]"
    if annotation is not None:
        return {int: "INTEGER", float: "FLOAT", Path: "PATH"}.get(annotation, "TEXT")
    choices = getattr(param.type, "choices", ())
    return (
        f"[{'|'.join(getattr(choice, 'value', choice) for choice in choices)}]" if choices else param.type.name.upper()
    )


def _is_argument(param: Any) -> bool:
    return not param.opts[0].startswith("-")


def _described(param: Any) -> str:
    text = " ".join((param.help or "").split())
    return f"{text} Repeatable." if param.multiple and "repeatable" not in text else text


def _default(param: Any) -> str:
    if param.required:
        return "required"
    value = param.default
    plain = isinstance(value, (str, int, float, Path)) and not isinstance(value, bool)
    return f"`{getattr(value, 'value', value)}`" if plain else ""


@cache
def gallery_files() -> Mapping[str, bytes]:
    """The page of the gallery, and what it shows and links to: figures, studies and data, by their place in the pages.

    A figure, too wide for a telephone, opens alone when it is chosen.
    """
    from lab.gallery.build import FOLDER, INDEX, build

    files = dict(build())
    index = re.sub(r"\]\(([\w.-]+)\)", rf"]({GALLERY}/\1)", files.pop(INDEX).decode())
    page = re.sub(r"^(!\[.+\]\((.+)\))$", r"[\1](\2)", index, flags=re.MULTILINE)
    files |= {path.name: path.read_bytes() for path in FOLDER.glob("*.yaml")}
    return {f"{GALLERY}.md": page.encode(), **{f"{GALLERY}/{name}": content for name, content in files.items()}}


def formulas(name: str) -> str:
    """The docstring of a module: its formulas and their sources."""
    return "\n".join(documented(inspect.getdoc(import_module(name)) or ""))


def constants(name: str) -> str:
    """A table of the parameters that `MODULE.NAME` lists: unit, plausible range, value before any data, meaning."""
    module, _, attribute = name.rpartition(".")
    rows = ["| constant | unit | range | before any data | meaning |", "|---|---|---|---|---|"]
    for found in getattr(import_module(module), attribute):
        limits = f"{found.low:g} to {found.high:g}"
        cells = (f"`{found.name}`", str(found.unit), limits, f"{found.default:g}", literal(found.meaning))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def check_summary(_: str = "") -> str:
    """Errors of today's predictions against the published figures, by source and metric, and for measured kernels."""
    from roofline.reports.documents import check as page
    from roofline.reports.output.cells import table_of
    from roofline.reports.output.export import escape, markdown_table
    from roofline.validate.check.check import check

    document = check()
    lines = [*markdown_table(*table_of(page.SUMMARY, document["summary"])), "", page.READING, ""]
    return page.quiet("\n".join([*lines, *(escape(page.kernels_line(file)) + "\n" for file in document["kernels"])]))


_DIRECTIVES: Mapping[str, Callable[[str], str]] = {"from": formulas, "constants": constants, "summary": check_summary}
_KINDS = "|".join(_DIRECTIVES)
_DIRECTIVE = re.compile(
    rf"^<!-- (?P<kind>{_KINDS}): (?P<name>\S+) -->$(?:\n(?:(?!<!-- (?:{_KINDS}): ).*\n)*?<!-- end -->$)?", re.MULTILINE
)


def gpu_page() -> str:
    """What was measured on GPUs, from the published files."""
    from lab.publish import pages

    return pages()


def options_page() -> str:
    """Every option of a scenario and of a load, by group, from the tables of options."""
    from roofline.scenario.options import OPTIONS
    from roofline.serving.options import LOAD_OPTIONS
    from roofline.serving.sessions.options import SESSION_OPTIONS

    options = (*OPTIONS.values(), *LOAD_OPTIONS.values(), *SESSION_OPTIONS.values())
    lines = ["# Options", "", "What can be varied, from the tables that everything else is made from.", ""]
    lines += [literal(paragraph) + "\n" for paragraph in _OPTIONS_TEXT.split("\n\n")]
    groups = dict.fromkeys(option.group for option in options)
    for group in groups:
        lines += [f"## {group}", "", "| option | engines' names | takes | default | what |", "|---|---|---|---|---|"]
        for option in options:
            if option.group == group:
                lines.append(f"| {' | '.join(_option_cells(option))} |")
        lines.append("")
    return "\n".join(lines)


_OPTIONS_TEXT = """\
An option is `--tp` on the command line, `tp` as a keyword of `Scenario` and as a key or an axis of a study, and a field
of the live page. The names that engines have for it are read in its place, on the command line and in studies. Options
of a load are keywords of `serve`, those of sessions, too. `roofline schema` prints the same as a JSON
Schema.

Counts may be written like 32k (32,000) or 128K (131,072); `none` stands for an option that is not set."""


def _option_cells(option: Any) -> tuple[str, ...]:
    """A row: names, engines' names, type with unit and range, default, help."""
    flag = f"`{option.flag}`" if option.name != "model" else "`MODEL`"
    own = flag if option.keyword == option.name else f"{flag}, in Python `{option.keyword}`"
    takes = f"{option.kind.value} ({option.unit})" if option.unit else option.kind.value
    if option.kind.ranged:
        takes += f", {_count(option.low)} to {_count(option.high)}"
    elif option.example and option.kind.name != "SWITCH":
        takes += f": {_code(option.choices)}" if option.choices else f" such as `{option.example}`"
    default = f"`{option.default}`" if option.default else literal(option.otherwise)
    return own, _code(option.flags), takes, default, literal(option.help)


def _count(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _code(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


GENERATED: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": commands_page,
    "reference/options.md": options_page,
    "reference/api.md": python_page,
    "gpu.md": gpu_page,
}
"""Pages that are generated whole."""


def filled(markdown: str) -> str:
    """A page with its generated parts written anew."""

    def fill(found: re.Match[str]) -> str:
        content = _DIRECTIVES[found["kind"]](found["name"]).strip()
        return f"<!-- {found['kind']}: {found['name']} -->\n\n{content}\n\n<!-- end -->"

    return _DIRECTIVE.sub(fill, markdown)


def generated() -> dict[Path, str]:
    """The content that every page of the documentation should have, by its file."""
    whole = {DOCS / name: f"{write().rstrip()}\n" for name, write in GENERATED.items()}
    pages = (path for path in sorted(DOCS.rglob("*.md")) if path not in whole)
    return {**{path: filled(path.read_text(encoding="utf-8")) for path in pages}, **whole}


def stale() -> dict[Path, str]:
    """The pages whose generated parts differ from the code, with the content that they should have."""
    return {
        path: content
        for path, content in generated().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != content
    }


class _Loaded(HTMLParser):
    """Collects what a page loads when it is opened: scripts, styles, images, fonts, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = ("src", "srcset", "data", "poster") if tag != "link" else ("href",)
        if tag == "link" and given.get("rel") in ("canonical", "next", "prev", "alternate"):
            return
        self.found += [value for name in loads if (value := given.get(name))]
        self.found += re.findall(r"url\(([^)]+)\)", given.get("style") or "")


def outside(page: str) -> list[str]:
    """What an HTML page or a style sheet loads from elsewhere."""
    loaded = _Loaded()
    loaded.feed(page)
    found = [*loaded.found, *re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", page)]
    return [address for address in found if re.match(r"\s*(https?:)?//", address)]


def on_files(files: Any, config: Any) -> Any:
    """Add the page and the files of the gallery, which are built with the documentation."""
    from mkdocs.structure.files import File

    for path, content in gallery_files().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - the hook's arguments
    """Typeset the formulas of the theory."""
    from lab.documentation.formulas import typeset

    return typeset(markdown) if page.file.src_uri.startswith("theory/") else markdown


def on_post_build(config: Any) -> None:
    """Fail where a built page or style sheet loads anything from another site."""
    from mkdocs.exceptions import PluginError

    for path in Path(config.site_dir).rglob("*"):
        if path.suffix in (".html", ".css") and (found := outside(path.read_text(encoding="utf-8"))):
            raise PluginError(f"{path}: loads {found[0]} from another site")


def main(arguments: list[str]) -> int:
    """Write the generated parts, or with `--check` name the pages where they are stale."""
    found = stale()
    for path, content in found.items():
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(DOCS.parent)}: {'stale' if '--check' in arguments else 'written'}\n")
    return int(bool(found) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
