"""A running live page for tests: its server on a thread, questions to it over HTTP, and the page in a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from roofline.core.options import Kind
from roofline.reports.view.server import Server
from roofline.reports.view.setups import setup_of
from roofline.scenario.options import OPTIONS, read_options
from roofline.scenario.scenario import Scenario
from tests.browser import Opened

BASE = {"model": "llama-3.1-70b", "hw": "h100-sxm", "tp": "4", "batch": "8", "prompt": "2048"}
VIEWS = ("overview", "network", "operators", "compare", "advice", "load", "run")


@contextmanager
def serving(options: Mapping[str, Any] = BASE, port: int = 0) -> Iterator[Server]:
    """The server of a page that opens with these options."""
    server = Server(setup_of(Scenario(**read_options(options))), port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stop(server)
        thread.join(10)


def stop(server: Server) -> None:
    """End the server as Ctrl-C does."""
    server.uvicorn.should_exit = True


def request(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of a response; underscores in names of headers are dashes."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
    response = connection.getresponse()
    found = response.status, {name.lower(): text for name, text in response.getheaders()}, response.read()
    connection.close()
    return found


def ask(server: Server, name: str, *setups: Mapping[str, str], **more: object) -> tuple[int, dict[str, Any]]:
    """Status and document of the answer to a question."""
    body = json.dumps({"setups": setups, **more}).encode()
    status, _, text = request(server, "POST", f"/{server.token}/ask/{name}", body)
    return status, json.loads(text)


def figures_of(analysis: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an analysis by their key on the page: expected ones, or those at the bound."""
    generation, energy, cost = analysis["generation"], analysis["energy"], analysis["cost"] or {}
    encodes = generation["tokens_per_s"] is None
    rate = "sequences_per_s" if encodes else "tokens_per_s"
    paid = "usd_per_million_processed_tokens" if encodes else "usd_per_million_tokens"
    joules = "prefill_j_per_prompt_token" if encodes else "j_per_token"
    metered = energy[joules] is not None
    readings = {"ttft": (generation, "ttft_s"), rate: (generation, rate), "cost": (cost, paid)}
    readings |= {"energy": (energy, joules)} if metered else {"energy_tdp": (energy, f"tdp_{joules}")}
    readings |= {} if encodes else {"tpot": (generation, "tpot_s"), "total": (generation, "time_s")}
    found = {"fits": analysis["memory"]["total_bytes"]}
    for key, (source, name) in readings.items():
        bound = source.get("total_s" if key == "total" else name)
        value = (source.get(f"expected_{name}") or {}).get("mid", bound)
        found |= {} if value is None else {key: value}
    return found


def words(setup: Mapping[str, str]) -> list[str]:
    """The set-up as arguments of a command."""
    found = [setup["model"]]
    for name, text in setup.items():
        flag = name.replace("_", "-")
        if OPTIONS[name].kind is Kind.LIST:
            found += [word for one in text.split("+") for word in (f"--{flag}", one)]
        elif OPTIONS[name].kind is Kind.SWITCH:
            found.append(f"--{flag}" if text == "true" else f"--no-{flag}")
        elif name != "model":
            found += [f"--{flag}", text]
    return found


SETTLED = """async () => {
  const { dataset } = document.body;
  while (dataset.drawn === undefined || dataset.drawn !== dataset.state) await new Promise(requestAnimationFrame);
}"""


FOLLOWED = """(text) => new Promise((resolve) => {
  addEventListener("popstate", () => resolve(), { once: true });
  location.hash = text;
})"""


class Live(Opened):
    """An open live page."""

    def __init__(self, browser: Any, address: str, width: int = 1280, **options: Any) -> None:
        super().__init__(browser, address, width, **options)
        self.settle()

    def open(self, address: str) -> None:
        """Open an address anew."""
        self.page.goto("about:blank")
        self.page.goto(address)
        self.settle()

    def show(self, fragment: str) -> None:
        """Show another state in the open page, as a link within it does."""
        self.page.evaluate(FOLLOWED, fragment)
        self.settle()

    def turn(self, name: str, text: str) -> None:
        """Set a field as a person does, also that of techniques."""
        if name != "with":
            return self.write(name, text)
        field = self.page.get_by_role("combobox", name="Add a technique")
        field.fill(text)
        field.press("Enter")
        return self.settle()

    def settle(self) -> None:
        """Wait until the present state is drawn."""
        self.page.evaluate(SETTLED)

    def write(self, name: str, text: str) -> None:
        """Set a field as a person does."""
        field = self.page.locator(f"[id='text-{name}']")
        field.evaluate(
            "element => { for (let e = element; e; e = e.parentElement) if (e.tagName === 'DETAILS') e.open = true; }"
        )
        if field.evaluate("element => element.tagName") == "SELECT":
            field.select_option(text)
        else:
            field.fill(text)
            field.press("Escape")
            field.fill(text)
            field.press("Tab")
        self.settle()

    def click(self, selector: str) -> None:
        self.page.locator(selector).first.click()
        self.settle()

    @property
    def setups(self) -> list[dict[str, str]]:
        """The set-ups in the address."""
        return [dict(parse_qsl(part)) for part in urlsplit(self.page.url).fragment.split(";")]

    def figures(self, row: int = 0) -> dict[str, float]:
        found: dict[str, float] = self.page.evaluate(
            "(row) => Object.fromEntries("
            "[...document.querySelectorAll('#answer dl')[row].querySelectorAll('[data-value]')]"
            ".map((cell) => [cell.dataset.key, Number(cell.dataset.value)]))",
            row,
        )
        return found
