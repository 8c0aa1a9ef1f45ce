"""A server on the loopback interface that speaks OpenAI's protocol, or misbehaves in one way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFILL, STEP = 4e-3, 1e-3
"""Seconds before the first token, and before each further one."""

SLOW = 2.0
"""Seconds before the first token of the third stream of a server that is slow once."""


class Stub(ThreadingHTTPServer):
    """A server in a `mode`; after `breaks` streamed answers it drops connections. `seen` are its requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, mode: str = "ok", breaks: int = 10**9) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode, self.breaks, self.seen = mode, breaks, list[tuple[str, dict[str, str], dict[str, Any]]]()
        self.streams = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.note({})
        if self.failing():
            return
        names = ["a", "b"] if self.server.mode == "two models" else ["tiny"]
        self.document({"data": [{"id": name} for name in names]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.note(body)
        if self.failing():
            return
        if "ignore_eos" in body and self.server.mode == "strict":
            self.document({"error": {"message": "unknown field ignore_eos"}}, 400)
        elif body.get("stream"):
            self.stream(body)
        else:
            tokens = len(body["prompt"]) if self.server.mode == "letters" else words(body) + 1
            usage = {} if self.server.mode == "no usage" else {"usage": {"prompt_tokens": tokens}}
            self.document({"choices": [{"text": "x"}], **usage})

    def note(self, body: dict[str, Any]) -> None:
        self.server.seen.append((self.path, {name.lower(): text for name, text in self.headers.items()}, body))

    def failing(self) -> bool:
        """Answers as the mode says, where it is none of a working server."""
        match self.server.mode:
            case "500":
                self.document({"error": {"message": f"no\nwith {self.headers.get('authorization')}"}}, 500)
            case "redirect":
                self.send_response(307)
                self.send_header("location", "http://203.0.113.7/v1/models")
                self.send_header("content-length", "0")
                self.end_headers()
            case "garbage":
                self.wfile.write(b"\x00\x01\x02 what\r\n\r\n")
            case "html":
                self.raw(b"<html>\x1b[31mhello</html>")
            case "hang":
                time.sleep(1.0)
            case "large":
                self.raw(b"x" * (3 << 20))
            case "list":
                self.raw(b"[1, 2]")
            case "compressed":
                self.raw(b"\x1f\x8b\x08\x00garbage", encoding="gzip")
            case _:
                return False
        self.close_connection = True
        return True

    def raw(self, content: bytes, encoding: str = "identity") -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.send_header("content-encoding", encoding)
        self.end_headers()
        self.wfile.write(content)

    def document(self, content: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self, body: dict[str, Any]) -> None:
        self.server.streams += 1
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if self.server.streams > self.server.breaks:
            return
        chat, mode = "messages" in body, self.server.mode
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(SLOW if mode == "one slow" and self.server.streams == 3 else PREFILL)
        tokens = 10**6 if mode == "endless" else body["max_tokens"] // (2 if mode == "brief" else 1)
        try:
            for index in range(tokens):
                text = {"delta": {"content": "a"}} if chat else {"text": "" if index == 2 else "a"}
                self.event({"choices": [{**text, "finish_reason": None}]})
                if mode == "half" and index == 1:
                    self.wfile.write(b"data: {not json\n\n")
                    return
                if mode == "stalls" and index == 1:
                    time.sleep(1.0)
                time.sleep(STEP)
            if mode == "drip":
                for _ in range(1000):
                    self.wfile.write(b": wait\n\n")
                    time.sleep(0.01)
            if mode not in ("no stream usage", "letters"):
                self.event({"choices": [], "usage": {"prompt_tokens": words(body) + 1, "completion_tokens": tokens}})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # the client has gone

    def event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
        self.wfile.flush()


def words(body: dict[str, Any]) -> int:
    """The words of a prompt, which are its tokens."""
    return len((body["prompt"] if "prompt" in body else body["messages"][0]["content"]).split())


@contextmanager
def serving(mode: str = "ok", breaks: int = 10**9) -> Iterator[Stub]:
    """A running server."""
    server = Stub(mode, breaks)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
