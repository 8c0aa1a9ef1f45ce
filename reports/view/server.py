"""The server of the live page: an ASGI application for this machine alone.

Every address begins with a random token. Requests with another Host or Origin are refused, so no other page in the
browser can ask, also not by DNS rebinding; the page itself may load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import quote as in_address
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from roofline.core.documents import MAX_BYTES
from roofline.core.errors import RooflineError
from roofline.reports.view.catalogue import catalogue
from roofline.reports.view.page import SCRIPTS, STYLES
from roofline.reports.view.replies import CHECKPOINT, QUESTIONS, Reply, refusal, reply
from roofline.reports.view.setups import Specs

LOOPBACK = "127.0.0.1"

MAX_HEAD = 64 << 20
"""Bytes of the beginning of a dropped checkpoint, which hold the header of a GGUF file with its vocabulary."""

PATIENCE = 30
"""Seconds for the head of a request, and for its body."""


ASSETS: Mapping[str, tuple[str, str]] = {
    "": ("view/page/view.html", "text/html"),
    **{f"{name}.css": (f"view/page/{name}.css", "text/css") for name in STYLES},
    **{f"{name}.js": (f"view/page/{name}.js", "text/javascript") for name in SCRIPTS},
}
"""The files of the page."""

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


OTHER_PAGE = "another page may not ask this server"


def guarded(inner: ASGIApp, refused: Callable[[Request], str | None]) -> ASGIApp:
    """`inner` for the requests that are not `refused` for a reason, with HEADERS on every response."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), text.encode()) for name, text in HEADERS.items()]
            await send(message)

        if scope["type"] == "http":
            reason = refused(Request(scope))
            answering = inner if reason is None else PlainTextResponse(reason, status_code=403)
            await answering(scope, receive, with_headers)
        elif scope["type"] == "lifespan":
            await inner(scope, receive, send)

    return guard


Answering = Callable[[Request, str], Awaitable[Response]]
"""What answers a request for the question of a name."""


def page_routes(prefix: str, answering: Answering, options: Mapping[str, Any]) -> list[Route]:
    """The routes of the page, its catalogue with further `options` of the server, and its questions."""

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", "")
        if name not in ASSETS:
            return PlainTextResponse("there is no such file", status_code=404)
        path, kind = ASSETS[name]
        return Response((files("roofline.reports") / path).read_bytes(), media_type=kind)

    async def offered(_: Request) -> Response:
        return JSONResponse({**await run_in_threadpool(catalogue), **options})

    async def asked(request: Request) -> Response:
        name = request.path_params.get("name", CHECKPOINT)
        if name not in QUESTIONS:
            return response_of(refusal("there is no such question", 404))
        try:
            return await answering(request, name)
        except ClientDisconnect:
            return Response(status_code=400)
        except RooflineError as error:
            return response_of(refusal(str(error)))

    return [
        Route(f"{prefix}/", asset),
        Route(f"{prefix}/catalogue", offered),
        Route(f"{prefix}/{CHECKPOINT}", asked, methods=["POST"]),
        Route(f"{prefix}/{{name}}", asset),
        Route(f"{prefix}/ask/{{name}}", asked, methods=["POST"]),
    ]


def application(token: str, port: int, specs: Specs) -> ASGIApp:
    """The application for this machine's own page alone: by Host, Origin and token."""
    hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    def refused(request: Request) -> str | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in hosts:
            return "this server answers only for this machine"
        if origin is not None and origin != f"http://{host}":
            return OTHER_PAGE
        if not secrets.compare_digest(request.url.path.split("/")[1].encode(), token.encode()):
            return "the address lacks the token that `roofline view` printed"
        return None

    async def answering(request: Request, name: str) -> Response:
        most = MAX_HEAD if name == CHECKPOINT else 2 * MAX_BYTES
        query = dict(request.query_params)
        return response_of(await run_in_threadpool(reply, specs, name, await body_of(request, most), query))

    routes = page_routes("/{token}", answering, {"shared": False, "head": MAX_HEAD})
    return guarded(Starlette(routes=routes), refused)


def response_of(found: Reply) -> Response:
    """The response of a reply; what is for the operator goes to the terminal."""
    if found.trouble:
        sys.stderr.write(found.trouble)
    return Response(found.text, status_code=found.status, media_type="application/json")


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request, of at most `most` bytes and in PATIENCE seconds; raises RooflineError."""
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


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises RooflineError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it; with Nagle's algorithm a body waits 40 ms for the ACK of its headers.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.bind((host, port))
        found.listen()  # a browser that opens now waits for the server
    except (OSError, OverflowError) as error:
        found.close()
        reason = error.strerror if isinstance(error, OSError) else "no port"
        raise RooflineError(f"cannot listen on port {port}: {reason}") from None
    return found


class Listening:
    """A server of the page on a port, bound and not yet serving."""

    def __init__(self, host: str, port: int) -> None:
        """Raises RooflineError if the port is taken."""
        self._socket = bound_socket(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.specs = Specs()

    def _serve(self, app: ASGIApp, at: str, setup: Mapping[str, str], **settings: Any) -> None:
        """What `run` serves, and the `address` of its page, which opens with the options of `setup`."""
        self.uvicorn = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, **settings))
        self.address = f"http://{at}/#{urlencode(setup, quote_via=in_address)}"

    def run(self) -> None:
        try:
            self.uvicorn.run(sockets=[self._socket])
        finally:
            self.specs.close()


class Server(Listening):
    """The server for this machine alone."""

    def __init__(self, setup: Mapping[str, str], port: int = 0) -> None:
        """`setup`: the options that the page opens with. Raises RooflineError if the port is taken."""
        super().__init__(LOOPBACK, port)
        self.token = secrets.token_urlsafe(24)
        app, at = application(self.token, self.port, self.specs), f"{LOOPBACK}:{self.port}/{self.token}"
        self._serve(app, at, setup, http=Patient, lifespan="off", timeout_graceful_shutdown=1)
