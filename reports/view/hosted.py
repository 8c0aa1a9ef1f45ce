"""The page as a team hosts it: `roofline view --shared`, at any address, with a queue and bounds on each client.

Questions are answered in processes of their own, which end where an answer takes too long or too much memory. Nobody is
told apart but by address, and nothing is kept but the specs that were dropped last.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from ipaddress import ip_address, ip_network
from typing import ClassVar

import anyio
from anyio import BrokenWorkerProcess, CapacityLimiter, to_process
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from roofline.reports.view.limits import Client, Clients, TooMuchError
from roofline.reports.view.metrics import CONTENT_TYPE, Metrics
from roofline.reports.view.replies import CHECKPOINT, Reply, refusal, reply
from roofline.reports.view.server import (
    LOOPBACK,
    OTHER_PAGE,
    Listening,
    Patient,
    body_of,
    guarded,
    page_routes,
    response_of,
)
from roofline.reports.view.setups import Specs

PORT = 8000
"""The usual port of web servers that are run without privileges."""

EVERYWHERE = "0.0.0.0"  # noqa: S104 - a team reaches it

TIME = 15.0
"""Seconds in which a question is answered once its turn has come."""

START = 60.0
"""Seconds in which a process starts."""

WAIT = 30.0
"""Seconds that a question waits for its turn."""

MEMORY = 4 << 30
"""Bytes of address space of a process that answers."""

QUEUE = 400
"""Questions of all clients that may wait."""

QUESTION, HEAD = 1 << 20, 32 << 20
"""Bytes of a question, and of the head of a checkpoint."""

UPLOADS = 4
"""Heads of checkpoints that arrive at once."""

HELD = 512 << 20
"""Bytes of specs and heads of checkpoints that are held."""

CONNECTIONS, EACH = 2000, 64
"""Connections that are open at once, and those of an address that is no proxy (FORWARDED_ALLOW_IPS)."""

ANSWERS, LARGEST = 512, 1 << 20
"""Answers that are remembered, and bytes of the largest of them."""


@cache
def _specs(folder: str) -> Specs:
    """The specs of this process, whose memory is bounded from now on."""
    with suppress(ImportError, ValueError, OSError):  # no such limits on this system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return Specs(folder, HELD)


def work(folder: str, name: str, body: bytes, query: Mapping[str, str]) -> tuple[Reply, float]:
    """Answer a question in this process; also the seconds that it took."""
    specs, start = _specs(folder), time.perf_counter()
    return reply(specs, name, body, query), time.perf_counter() - start


class Workers:
    """The processes that answer, the queue before them, and the answers that were given last."""

    def __init__(self, count: int, folder: str) -> None:
        self.count, self.folder, self.metrics = count, folder, Metrics()
        self._free = asyncio.Semaphore(count)
        self._limiter = CapacityLimiter(count)
        self._answers: OrderedDict[bytes, Reply] = OrderedDict()

    async def start(self) -> None:
        """Start all processes, which import what answers need."""
        async with anyio.create_task_group() as group:
            for _ in range(self.count):
                group.start_soon(self._warm)

    async def _warm(self) -> None:
        """Start a process, if none is idle."""
        with suppress(TimeoutError, BrokenWorkerProcess):
            await self._run("answer", b'{"setups": [{"model": "llama-3.1-8b", "hw": "h100-sxm"}]}', {}, START)

    @property
    def full(self) -> bool:
        """Whether no question may wait."""
        return self.metrics.waiting >= QUEUE

    async def answer(self, client: Client, name: str, body: bytes, query: Mapping[str, str]) -> Reply:
        """The answer to a question of a client, when its turn has come. Raises TooMuchError."""
        key = hashlib.sha256(name.encode() + b"\0" + body).digest()
        if self.full and key not in self._answers:
            raise TooMuchError("the server has no room for another question: ask again", 503, 5)
        async with self._turn(client.turn), self._turn(self._free):
            if (known := self._answers.get(key)) is not None:
                self._answers.move_to_end(key)
                return known
            found = await self._worked(client, name, body, query)
        if found.status == 200 and name != CHECKPOINT and len(found.text) <= LARGEST:
            self._answers[key] = found
            while len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        return found

    @asynccontextmanager
    async def _turn(self, turn: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait for a turn, and have it within the block. Raises TooMuchError."""
        self.metrics.waiting += 1
        try:
            async with asyncio.timeout(WAIT):
                await turn.acquire()
        except TimeoutError:
            raise TooMuchError("the server is busy: ask again", 503, 5) from None
        finally:
            self.metrics.waiting -= 1
        try:
            yield
        finally:
            turn.release()

    async def _worked(self, client: Client, name: str, body: bytes, query: Mapping[str, str]) -> Reply:
        """The answer of a process, charged to the client."""
        self.metrics.running += 1
        start = time.perf_counter()
        try:
            found, taken = await self._run(name, body, query, TIME)
        except (TimeoutError, BrokenWorkerProcess) as error:
            late = isinstance(error, TimeoutError)
            taken = time.perf_counter() - start
            why = f"takes longer than {TIME:g} s" if late else "takes more memory than the server has"
            found = refusal(f"the answer {why}: ask for less, or run roofline view on your computer", 503)
            await self._warm()  # so that the next question has its whole time
        finally:
            self.metrics.running -= 1
        client.work.take(taken)
        self.metrics.seconds[name] += taken
        return found

    async def _run(self, name: str, body: bytes, query: Mapping[str, str], limit: float) -> tuple[Reply, float]:
        with anyio.fail_after(limit):  # a process that is not done then is killed
            return await to_process.run_sync(
                work, self.folder, name, body, dict(query), cancellable=True, limiter=self._limiter
            )


class Counted(Patient):
    """A connection that is closed where its address has too many."""

    _open: ClassVar[Counter[str]] = Counter()
    _address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, and close it if it is one too many."""
        super().connection_made(transport)
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self._open[self._address] += 1
        if self._open[self._address] > EACH and not _is_proxy(self._address):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        super().connection_lost(exc)
        self._open[self._address] -= 1
        if not self._open[self._address]:
            del self._open[self._address]


def _is_proxy(address: str) -> bool:
    """Whether an address is among those whose X-Forwarded-For uvicorn believes."""
    for text in os.environ.get("FORWARDED_ALLOW_IPS", LOOPBACK).split(","):
        with suppress(ValueError):
            if text.strip() == "*" or ip_address(address) in ip_network(text.strip(), strict=False):
                return True
    return False


def hosted(workers: Workers, setup: Mapping[str, str]) -> ASGIApp:
    """The application of a team's page, which opens with `setup` where an address has none.

    It answers at any Host; another site's page may not ask, as its Origin differs.
    """
    clients, uploads = Clients(), asyncio.Semaphore(UPLOADS)

    def refused(request: Request) -> str | None:
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        return OTHER_PAGE if origin is not None and origin.partition("://")[2] != host else None

    async def answering(request: Request, name: str) -> Response:
        client = clients.of(request.client.host if request.client else "")
        length = request.headers.get("content-length", "")
        try:
            unknown = HEAD if name == CHECKPOINT else QUESTION  # of a body in chunks
            with client.asking(int(length) if length.isdecimal() and len(length) < 16 else unknown):
                found = await answered(request, name, client)
        except TooMuchError as error:
            workers.metrics.requests[name, error.status] += 1
            told = response_of(refusal(str(error), error.status))
            told.headers["retry-after"] = str(error.wait)
            return told
        workers.metrics.requests[name, found.status] += 1
        return response_of(found)

    async def answered(request: Request, name: str, client: Client) -> Reply:
        query = dict(request.query_params)
        if name != CHECKPOINT:
            return await workers.answer(client, name, await body_of(request, QUESTION), query)
        if uploads.locked():
            raise TooMuchError("other files are arriving: drop it again", 503, 5)
        async with uploads:
            return await workers.answer(client, name, await body_of(request, HEAD), query)

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        return PlainTextResponse("full\n" if workers.full else "ok\n", status_code=503 if workers.full else 200)

    async def metrics(_: Request) -> Response:
        return Response(workers.metrics.text(len(clients.known)), media_type=CONTENT_TYPE)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await workers.start()
        yield

    own = [Route("/healthz", health), Route("/readyz", ready), Route("/metrics", metrics)]
    options = {"shared": True, "head": HEAD, "opening": dict(setup)}
    return guarded(Starlette(routes=[*own, *page_routes("", answering, options)], lifespan=lifespan), refused)


class SharedServer(Listening):
    """The server of a team's page."""

    def __init__(self, setup: Mapping[str, str], host: str = EVERYWHERE, port: int = PORT, count: int | None = None):
        """`count`: processes that answer, by default one for each core. Raises RooflineError if the port is taken."""
        super().__init__(host, port)
        shown = "localhost" if host in (EVERYWHERE, "::") else f"[{host}]" if ":" in host else host
        app = hosted(Workers(count or os.cpu_count() or 1, self.specs.folder), setup)
        settings = {"http": Counted, "lifespan": "on", "limit_concurrency": CONNECTIONS, "timeout_graceful_shutdown": 5}
        self._serve(app, f"{shown}:{self.port}", setup, **settings)
