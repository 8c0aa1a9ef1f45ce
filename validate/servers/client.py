"""Requests to an OpenAI-compatible endpoint: completions and chat, streamed, within limits.

Only the named host is contacted: redirects are refused, and no proxy, certificate or password is taken from the
environment. An answer is bounded in time, bytes and tokens. Every failure is a ServerError of one sentence without the
API key. The protocol is that of https://platform.openai.com/docs/api-reference (server-sent events, `usage`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from roofline.core.errors import RooflineError, needs_extra, quote

APIS = ("completions", "chat")
PATHS = {"completions": "completions", "chat": "chat/completions"}

MAX_BYTES_PER_TOKEN = 16 << 10
"""Bytes of one event; some servers send log probabilities with each token."""

OVERHEAD_BYTES = 1 << 20
"""Bytes of an answer beside its tokens, and of the list of models."""

SPARE_TOKENS = 8
"""Events beyond the tokens that were asked for: roles, usage, the end."""


class ServerError(RooflineError):
    """A server that cannot be measured; the message says what it did."""


class Timing(Struct, frozen=True):
    """One answer: seconds from its request to the first token and to the last, and tokens of prompt and output.

    `prompt` is None where the server does not report `usage`.
    """

    ttft: float
    e2e: float
    output: int
    prompt: int | None

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None for a single token."""
        return (self.e2e - self.ttft) / (self.output - 1) if self.output > 1 else None


class Address(Struct, frozen=True):
    """A checked base URL (`.../v1`), and the host with its port for messages."""

    base: str
    host: str


def read_address(url: str) -> Address:
    """The address of a URL; raises RooflineError for one that is not plain http or https."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise RooflineError(f"{quote(url)} is no URL such as http://localhost:8000/v1") from None
    if parts.username is not None or parts.password is not None:
        raise RooflineError(
            "the URL must not hold a password: name the environment variable of a key", options=["key_env"]
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or not url.isprintable():
        raise RooflineError(f"{quote(url)} is no URL such as http://localhost:8000/v1")
    return Address(
        f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}/", f"{host}:{port}" if port else host
    )


class Client:
    """A client of one server, to be used as an asynchronous context.

    `timeout` is the most seconds without a byte, `api` one of APIS. The key is only in the headers of requests.
    """

    def __init__(self, address: Address, api: str, key: str | None, timeout: float, proxy: str | None = None) -> None:
        with needs_extra("server"):
            import httpx
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._httpx, self._host, self._path, self._key = httpx, address.host, PATHS[api], key
        self.api, self.timeout, self.extensions = api, timeout, True
        try:
            self._client = httpx.AsyncClient(
                base_url=address.base,
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0), pool=None),
                limits=httpx.Limits(max_connections=None),
                follow_redirects=False,
                trust_env=False,
                proxy=proxy,
            )
        except (ValueError, httpx.InvalidURL, UnicodeError):
            raise RooflineError("the URL, the key or the proxy is not valid") from None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def models(self) -> list[str]:
        """The names of the served models."""
        found = await self._document("GET", "models", None)
        entries = found.get("data")
        names = [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        if not names or not all(isinstance(name, str) and 0 < len(name) <= 500 for name in names):
            raise ServerError(f"{self._host} lists no models: name the served one", options=["served_model"])
        return [str(name).replace(self._key or "\0", "") for name in names]

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        """The tokens of a prompt, from the `usage` of an answer that is not streamed."""
        try:
            found = await self._document("POST", self._path, self._body(body))
        except _RefusedError:
            self.extensions = False
            found = await self._document("POST", self._path, self._body(body))
        usage = found.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if not isinstance(tokens, int) or not 0 < tokens < 10**7:
            raise ServerError(f"{self._host} reports no 'usage.prompt_tokens', so that the prompt's length is unknown")
        return tokens

    async def stream(self, body: Mapping[str, Any], most: int) -> Timing:
        """The times of one streamed answer of at most `most` tokens."""
        request = {**self._body(body), "stream": True, "stream_options": {"include_usage": True}}
        events, usage = list[float](), dict[str, Any]()
        start = time.perf_counter()
        async with aclosing(self._events(request, OVERHEAD_BYTES + most * MAX_BYTES_PER_TOKEN)) as answer:
            async for event in answer:
                usage = event["usage"] if isinstance(event.get("usage"), dict) else usage
                if _has_token(event):
                    events.append(time.perf_counter() - start)
                if len(events) > most + SPARE_TOKENS:
                    raise ServerError(f"{self._host} sends more than the {most} tokens that it was asked for")
        if not events:
            raise ServerError(f"{self._host} streams no tokens")
        output, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
        return Timing(
            events[0],
            events[-1],
            output if isinstance(output, int) and 0 < output <= most + SPARE_TOKENS else len(events),
            prompt if isinstance(prompt, int) and 0 < prompt < 10**7 else None,
        )

    def _body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request with the extension that keeps a generation from ending early, until a server refuses it."""
        return {**body, **({"ignore_eos": True} if self.extensions else {})}

    async def _document(self, method: str, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        async with aclosing(self._chunks(method, path, body, OVERHEAD_BYTES)) as chunks:
            return self._parsed(b"".join([chunk async for chunk in chunks]))

    async def _events(self, body: Mapping[str, Any], most: int) -> AsyncGenerator[Mapping[str, Any], None]:
        """The server-sent events of an answer, read to its end so that the connection serves the next request."""
        rest, done = b"", False
        async with aclosing(self._chunks("POST", self._path, body, most)) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    content = line.strip().removeprefix(b"data:").strip()
                    done = done or content == b"[DONE]"
                    if content and not done and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                        yield self._parsed(content)
        if not done and rest.strip() not in (b"", b"data: [DONE]"):
            yield self._parsed(rest.strip().removeprefix(b"data:"))

    def _parsed(self, content: bytes) -> Mapping[str, Any]:
        found = _mapping(content)
        if found is None:
            raise ServerError(f"{self._host} answers with {self._shown(content.decode('utf-8', 'replace'))}, not JSON")
        if found.get("error") is not None:
            raise ServerError(f"{self._host} answers with an error: {self._reason(content)}")
        return found

    async def _chunks(
        self, method: str, path: str, body: Mapping[str, Any] | None, most: int
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of an answer of status 200, at most `most`."""
        size = 0
        try:
            async with self._client.stream(method, path, json=body) as response:
                await self._check(response)
                async for chunk in response.aiter_raw():
                    size += len(chunk)
                    if size > most:
                        raise ServerError(f"{self._host} answers with more than {most >> 20} MiB")
                    yield chunk
        except self._httpx.ConnectError:
            raise ServerError(f"{self._host} does not accept connections") from None
        except self._httpx.TimeoutException:
            raise ServerError(f"{self._host} sent nothing for {self.timeout:g} s", options=["timeout"]) from None
        except self._httpx.HTTPError:
            raise ServerError(f"{self._host} ended the connection within an answer, or does not speak HTTP") from None
        except (ValueError, UnicodeError):  # what h11 and httpx raise for some malformed headers
            raise ServerError(f"{self._host} does not speak HTTP") from None

    async def _check(self, response: Any) -> None:
        status = response.status_code
        if 300 <= status < 400:
            where = response.headers.get("location", "another address")
            raise ServerError(
                f"{self._host} redirects to {self._shown(where)}, which is not followed: name that address"
            )
        if status == 200:
            return
        content = b""
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > OVERHEAD_BYTES:
                break
        hint = "" if status != 404 else f"; the path is {response.url.path}, --api selects another"
        kind = _RefusedError if status in (400, 422) and self.extensions else ServerError
        raise kind(f"{self._host} answers with status {status}: {self._reason(content)}{hint}")

    def _reason(self, content: bytes) -> str:
        """The message in an error document, or the start of other content."""
        found = _mapping(content)
        error = None if found is None else found.get("error", found)
        message = error.get("message") if isinstance(error, dict) else error
        return self._shown(message if isinstance(message, str) else content.decode("utf-8", "replace"))

    def _shown(self, text: str) -> str:
        """The start of what a server sent, quoted, without the key that it may echo."""
        return quote(text.replace(self._key, "[key]") if self._key else text, 100)


class _RefusedError(ServerError):
    """A refused request, maybe for a field that is not in OpenAI's protocol."""


def _mapping(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _has_token(event: Mapping[str, Any]) -> bool:
    """Whether an event carries a token: text, or empty text of an unfinished character, but no role or end alone."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta: Mapping[str, Any] = choice["delta"] if isinstance(choice.get("delta"), dict) else {}
    texts = [choice.get("text"), delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning")]
    if any(isinstance(text, str) and text for text in texts):
        return True
    return "" in texts and choice.get("finish_reason") is None and "role" not in delta


async def bounded(answer: Any, seconds: float, host: str) -> Any:
    """The result of an awaitable; raises ServerError where it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise ServerError(f"{host} did not finish an answer within {seconds:.0f} s") from None
