"""The server of the live page: an ASGI application for this machine alone.

Every address begins with a random token. Requests with another Host or Origin are refused, so no other page in the
browser can ask, also not by DNS rebinding; the page itself may load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import quote as in_address
from urllib.parse import urlencode

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from roofline.core.documents import MAX_BYTES
from roofline.core.errors import RooflineError, system_error
from roofline.reports.output.export import as_json
from roofline.reports.view.catalogue import catalogue
from roofline.reports.view.documents import ANSWERS, Question
from roofline.reports.view.exports import EXPORTS
from roofline.reports.view.setups import Specs

LOOPBACK = "127.0.0.1"

MAX_HEAD = 64 << 20
"""Bytes of the beginning of a dropped checkpoint, which hold the header of a GGUF file with its vocabulary."""

PATIENCE = 30
"""Seconds for the head of a request, and for its body."""

SCRIPTS = ("fields", "charts", "answer", "panels", "view")

ASSETS: Mapping[str, tuple[str, str]] = {
    "": ("view/page/view.html", "text/html"),
    "view.css": ("view/page/view.css", "text/css"),
    **{f"{name}.js": (f"view/page/{name}.js", "text/javascript") for name in SCRIPTS},
    "drawing.css": ("pages/templates/drawing.css", "text/css"),
    "drawing.js": ("pages/templates/drawing.js", "text/javascript"),
    "network.js": ("pages/templates/network.js", "text/javascript"),
}
"""The files of the page; the last three are also those of reports."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Answers only requests from this machine's own page: by token, Host and Origin."""

    def __init__(self, inner: ASGIApp, token: str, port: int) -> None:
        self.inner, self.token = inner, token
        self.hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with HEADERS on its response, or refuse it."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), text.encode()) for name, text in HEADERS.items()]
            await send(message)

        if scope["type"] != "http":
            return
        refused = self._refused(Request(scope))
        inner = self.inner if refused is None else PlainTextResponse(refused, status_code=403)
        await inner(scope, receive, guarded)

    def _refused(self, request: Request) -> str | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts:
            return "this server answers only for this machine"
        if origin is not None and origin != f"http://{host}":
            return "another page may not ask this server"
        if not secrets.compare_digest(request.url.path.split("/")[1].encode(), self.token.encode()):
            return "the address lacks the token that `roofline view` printed"
        return None


def application(token: str, port: int, specs: Specs) -> ASGIApp:
    """The application."""

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", "")
        if name not in ASSETS:
            return PlainTextResponse("there is no such file", status_code=404)
        path, kind = ASSETS[name]
        return Response((files("roofline.reports") / path).read_bytes(), media_type=kind)

    async def options(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(catalogue))

    async def document(request: Request) -> Response:
        found = {**ANSWERS, **EXPORTS}.get(request.path_params["name"])
        if found is None:
            return JSONResponse({"error": "there is no such question"}, status_code=404)
        return await _answered(request, lambda body: found(msgspec.json.decode(body, type=Question), specs), specs)

    async def checkpoint(request: Request) -> Response:
        name, size = (request.query_params.get(key, "") for key in ("name", "size"))

        def held(head: bytes) -> dict[str, str]:
            return specs.checkpoint(name, int(size) if size.isdecimal() and len(size) < 20 else 0, head)

        return await _answered(request, held, specs, MAX_HEAD)

    routes = [
        Route("/{token}/", asset),
        Route("/{token}/catalogue", options),
        Route("/{token}/checkpoint", checkpoint, methods=["POST"]),
        Route("/{token}/{name}", asset),
        Route("/{token}/ask/{name}", document, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token, port)


async def _answered(
    request: Request, answer: Callable[[bytes], Any], specs: Specs, most: int = 2 * MAX_BYTES
) -> Response:
    """The answer to a body of at most `most` bytes as JSON; a user error is a sentence with status 422."""

    def guarded(body: bytes) -> Any:
        with specs.guarded():
            return answer(body)

    try:
        found = await run_in_threadpool(guarded, await _body(request, most))
        return Response(_json(found), media_type="application/json")
    except RooflineError as error:
        message = " ".join(specs.plain(str(error)).split())
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"this is not a question: {error}"
    except OSError as error:
        message = specs.plain(system_error(error))
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return JSONResponse({"error": "an error of the program; the terminal shows it"}, status_code=500)
    return JSONResponse({"error": message}, status_code=422)


def _json(answer: dict[str, Any]) -> str:
    try:
        return json.dumps(answer, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return as_json(answer)  # raises the error that names the figure


async def _body(request: Request, most: int) -> bytes:
    parts, length = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                parts.append(part)
                length += len(part)
                if length > most:
                    raise RooflineError("the question is too large")
    except TimeoutError:
        raise RooflineError(f"the question did not arrive in {PATIENCE} seconds") from None
    return b"".join(parts)


class Patient(H11Protocol):
    """A connection that is closed where no whole request begins in PATIENCE seconds."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request's head, where it is not complete."""
        super().data_received(data)
        self._wait()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        if self._idle and self._limit is None:
            self._limit = self.loop.call_later(PATIENCE, self._end)

    def _end(self) -> None:
        self._limit = None
        if self._idle:
            self.transport.close()


class Server:
    """The server on a port of this machine, bound and not yet serving."""

    def __init__(self, setup: Mapping[str, str], port: int = 0) -> None:
        """`setup`: the options that the page opens with. Raises RooflineError if the port is taken."""
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit it; with Nagle's algorithm a body waits 40 ms for the ACK of its headers.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.bind((LOOPBACK, port))
            self._socket.listen()  # a browser that opens now waits for the server
        except (OSError, OverflowError) as error:
            self._socket.close()
            reason = error.strerror if isinstance(error, OSError) else "no port"
            raise RooflineError(f"cannot listen on port {port}: {reason}") from None
        self.token = secrets.token_urlsafe(24)
        self.port = int(self._socket.getsockname()[1])
        self.specs = Specs()
        app = application(self.token, self.port, self.specs)
        self.uvicorn = uvicorn.Server(
            uvicorn.Config(
                app, http=Patient, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
        )
        self._setup = setup

    @property
    def address(self) -> str:
        """The address of the page with its set-up."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/#{urlencode(self._setup, quote_via=in_address)}"

    def run(self) -> None:
        """Serve until interrupted."""
        try:
            self.uvicorn.run(sockets=[self._socket])
        finally:
            self.specs.close()
