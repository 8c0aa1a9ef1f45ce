"""The table of docs/theory/systems.md: what systems of the papers published, and what is simulated of them.

    python -m lab.systems    # run every command, and write the table into the page: about two minutes

lab/systems.yaml has the rows: the command, the figure that it is about, the command without the system where the
published effect is a ratio, and what the paper allows for the effect, which `tests/lab/test_systems.py` holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from msgspec import Struct, convert

PAGE = Path(__file__).resolve().parents[1] / "docs" / "theory" / "systems.md"
ROWS = Path(__file__).resolve().with_suffix(".yaml")
BEGIN, END = "<!-- table: {} (python -m lab.systems) -->", "<!-- end of the table -->"

Document = dict[str, Any]
Tell = Callable[[float], str]


class Figure(NamedTuple):
    """A number of a document: where, how it is told, whether more is better, and whether it is the rate of a time.

    `of_device`: that rate for the whole batch, over the devices.
    """

    name: str
    path: str
    tell: Tell
    more: bool = False
    of_time: bool = False
    of_device: bool = False

    def of(self, document: Document) -> float:
        """The number."""
        found: Any = document
        for key in self.path.split("/"):
            found = found[int(key) if key.isdigit() else key]
        share = document["scenario"]["batch"] / document["parallelism"]["devices"] if self.of_device else 1.0
        return share / float(found) if self.of_time else float(found)


def seconds(value: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def plain(value: float) -> str:
    """Three digits."""
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _of_points(name: str, path: str, tell: Tell = seconds, more: bool = False) -> Figure:
    return Figure(name, f"points/0/{path}", tell, more)


FIGURES = {
    "speed": Figure("tokens/s", "generation/expected_tpot_s/mid", plain, more=True, of_time=True),
    "device": Figure(
        "tokens/s a GPU", "generation/expected_tpot_s/mid", plain, more=True, of_time=True, of_device=True
    ),
    "batch": Figure("tokens/s", "generation/expected_tokens_per_s/mid", plain, more=True),
    "tpot": Figure("TPOT", "generation/expected_tpot_s/mid", seconds),
    "rate": _of_points("tokens/s", "output_tokens_per_s", plain, more=True),
    "good": _of_points("requests/s in time", "goodput_requests_per_s", plain, more=True),
    "mean": _of_points("mean latency", "e2e_s/mean/mid"),
    "last": _of_points("P99 latency", "e2e_s/p99/mid"),
    "first": _of_points("P99 TTFT", "ttft_s/p99/mid"),
    "tenant": _of_points("TTFT of the first tenant", "tenants/0/ttft_s/mean/mid"),
}
"""The figures that rows name."""


class Row(Struct, frozen=True):
    """A system: what it published, the load, its command and figure, and the one without it (`than`: in words).

    `effect` is the range of how many times better the figure is, or of the figure itself where there is no other
    command.
    """

    system: str
    published: str
    load: str
    command: str
    figure: str
    effect: tuple[float, float]
    other: str = ""
    than: str = ""

    def measured(self, run: Callable[[str], Document]) -> tuple[float, float | None]:
        """The figure, and that without the system."""
        of = FIGURES[self.figure].of
        return of(run(self.command)), of(run(self.other)) if self.other else None

    def ratio(self, found: float, other: float | None) -> float:
        """How many times better it is, or the figure itself."""
        if other is None:
            return found
        return found / other if FIGURES[self.figure].more else other / found


def _tables() -> dict[str, tuple[Row, ...]]:
    content = yaml.safe_load(ROWS.read_text())
    words: dict[str, str] = {}
    for name, text in content["words"].items():
        words[name] = text.format(**words)
    for row in (row for rows in content["tables"].values() for row in rows):
        row.update({key: row[key].format(**words) for key in ("command", "other") if key in row})
    return convert(content["tables"], dict[str, tuple[Row, ...]])


TABLES = _tables()
"""The rows by table."""


def command_line(command: str) -> Document:
    """The JSON document of a command of `roofline`."""
    words = [sys.executable, "-m", "roofline", *command.split(), "--format", "json"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - of this table
    if found.returncode:
        raise SystemExit(f"{command}: {found.stderr}")
    document: Document = json.loads(found.stdout)
    return document


def table(rows: tuple[Row, ...], run: Callable[[str], Document]) -> Iterator[str]:
    """The lines of a table, each row of which is run."""
    compared = any(row.other for row in rows)
    yield f"| system | published | load | simulated |{' without it | effect |' if compared else ''} command |"
    yield f"|---|---|---|---|{'---|---|' if compared else ''}---|"
    for row in rows:
        (found, other), figure = row.measured(run), FIGURES[row.figure]
        cells = [row.system, row.published, row.load, f"{figure.name} {figure.tell(found)}"]
        if compared:
            cells += [f"{figure.tell(other)} ({row.than})", f"{row.ratio(found, other):.2g}"] if other else ["", ""]
        yield f"| {' | '.join([*cells, f'`{row.command}`'])} |"


def main() -> None:
    """Write all tables into the page."""
    text = PAGE.read_text()
    for name, rows in TABLES.items():
        begin = BEGIN.format(name)
        before, rest = text.split(begin)
        after = rest.split(END, 1)[1]
        text = f"{before}{begin}\n\n" + "\n".join(table(rows, command_line)) + f"\n\n{END}{after}"
        sys.stdout.write(f"{name}\n")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
