"""A running live page for tests: its server on a thread, and questions to it over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from roofline.cli.view import option_help
from roofline.reports.view.server import Server
from roofline.reports.view.setups import first_setup
from roofline.whatif.options import read_options

BASE = {"model": "llama-3.1-70b", "hw": "h100-sxm", "tp": "4", "batch": "8", "prompt": "2048"}


@contextmanager
def serving(options: Mapping[str, Any] = BASE, port: int = 0) -> Iterator[Server]:
    """The server of a page that opens with these options."""
    server = Server(first_setup(read_options(options)), option_help(), port)
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
