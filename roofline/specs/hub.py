"""Models by repository from the Hugging Face hub: configuration, formats and the headers of the weights, on request.

Nothing here runs unless the person asks for it (`--hub`, or `ROOFLINE_HUB=1`). Addresses, token, cache folder and the
offline switch are those of `huggingface_hub`. What a server answers is hostile: every answer has a limit of bytes and
of time, weights are never read, and files get their names from here or from an index that is checked.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from roofline.core.documents import MAX_BYTES, parse_json
from roofline.core.errors import RooflineError, needs_extra, quote
from roofline.core.files import whole_file
from roofline.core.inputs import check_allowed, read_bytes
from roofline.specs.library import ADAPTER, CONFIG, FORMAT_FILES
from roofline.specs.weight_files.safetensors import INDEX, MAX_HEADER, file_names, header_length
from roofline.specs.weight_files.stored import REMOTE, Remote

SWITCH = "ROOFLINE_HUB"
"""Environment variable: 1 reads repositories that no bundled spec names from the hub, as `--hub` does."""

SECONDS = 60.0
"""The longest that the headers of a repository may take in all; those of 163 files take a few seconds."""

SILENCE = 10.0
"""The longest that a server may be silent, in seconds."""

MAX_FILES = 2000
"""Most files of weights; the largest checkpoints have some hundred."""

FIRST = 1 << 17
"""Bytes of a file that are asked for at first: most headers are shorter."""

SINGLE = "model.safetensors"

_REPOSITORY = re.compile(
    r"(?:https?://)?(?:huggingface\.co/|hf\.co/)?([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})"
    r"(?:(?:@|/tree/)([\w.-]{1,100}))?/?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Repository(NamedTuple):
    """A repository of the hub at a revision: a branch, a tag or a commit."""

    name: str
    revision: str

    def __str__(self) -> str:
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


def repository(text: str) -> Repository | None:
    """The repository that a text names, as owner/name, its address, or either with a revision; None for other texts."""
    found = _REPOSITORY.fullmatch(text.strip())
    if found is None or ".." in text or found[1].endswith((".git", ".json", ".yaml", ".gguf", ".safetensors")):
        return None
    return Repository(found[1], found[2] or "main")


def is_on() -> bool:
    """Whether the person lets the program read the hub."""
    return os.environ.get(SWITCH, "0") not in ("", "0")


def folder_of(wanted: Repository) -> Path:
    """The folder with a repository's configuration and the headers of its weights, read from the hub if need be.

    Raises RooflineError, in one sentence, for a repository that does not exist or is not open to the token, for a
    server that does not answer in time, and for answers that are not what they should be.
    """
    with needs_extra("hub"):
        from huggingface_hub import constants
    root = Path(constants.HF_HOME) / "roofline" / f"models--{wanted.name.replace('/', '--')}"
    check_allowed(root)
    if constants.HF_HUB_OFFLINE:
        return _held(root, wanted)
    server = _Server(wanted)
    config, commit = server.config()
    target = root / commit
    if not (target / REMOTE).is_file():
        server.revision = commit
        _write(target, server, config)
    with suppress(OSError), whole_file(root / f"revision-{wanted.revision}") as file:
        file.write(commit.encode())
    return target


def _held(root: Path, wanted: Repository) -> Path:
    """What an earlier run has read of a repository, without the network."""
    try:
        commit = wanted.revision
        if not _COMMIT.fullmatch(commit):
            commit = read_bytes(root / f"revision-{wanted.revision}", 40).decode("ascii", "replace")
    except RooflineError:
        commit = ""
    if not _COMMIT.fullmatch(commit) or not (root / commit / REMOTE).is_file():
        raise RooflineError(f"{wanted} was not read from the hub before, and HF_HUB_OFFLINE is set")
    return root / commit


def _write(target: Path, server: _Server, config: bytes) -> None:
    """Write what is read of a repository; `REMOTE` comes last, so that a folder without it is not complete."""
    wanted = server.wanted
    index = server.file(INDEX, MAX_HEADER)
    names = [SINGLE] if index is None else file_names(parse_json(_text(index, wanted), str(wanted)), str(wanted))
    if len(names) > MAX_FILES:
        raise RooflineError(f"the index of {wanted} names {len(names)} files, more than {MAX_FILES}")
    with ThreadPoolExecutor(8) as pool:
        headers = dict(zip(names, pool.map(server.header, names), strict=True))
        formats = pool.map(lambda name: server.file(name, MAX_BYTES), FORMAT_FILES)
        beside = dict(zip(FORMAT_FILES, formats, strict=True))
    if index is not None and (missing := [name for name, header in headers.items() if header is None]):
        raise RooflineError(f"the index of {wanted} names {quote(missing[0])}, which the hub does not have")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RooflineError(f"{quote(str(target), 200)} cannot be made ({error.strerror})") from None
    files = {CONFIG: config, INDEX: index, **beside}
    files |= {name: header and header[0] for name, header in headers.items()}
    sizes = {name: header[1] for name, header in headers.items() if header is not None}
    files[REMOTE] = msgspec.json.encode(Remote(str(wanted), server.revision, sizes))
    for name, content in files.items():
        if content is not None:
            with whole_file(target / name) as file:
                file.write(content)


def _text(content: bytes, wanted: Repository) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise RooflineError(f"a file of {wanted} is not UTF-8 text") from None


class _Server:
    """Requests for one repository; `revision` is its commit once it is known."""

    def __init__(self, wanted: Repository) -> None:
        self.wanted = wanted
        self.revision = wanted.revision
        self.until = time.monotonic() + SECONDS

    def config(self) -> tuple[bytes, str]:
        """The configuration, and the commit that the revision stands for."""
        found = self._get(CONFIG, MAX_BYTES)
        if found is None:
            self._refuse_adapter()
            raise RooflineError(f"the hub has no {CONFIG} of {self.wanted}: check the name, or give a GGUF file's path")
        content, headers = found
        commit = headers.get("x-repo-commit", "")
        if not _COMMIT.fullmatch(commit):
            raise RooflineError(f"the server does not say which commit {self.wanted} is: it is no Hugging Face hub")
        parse_json(_text(content, self.wanted), f"{CONFIG} of {self.wanted}")
        return content, commit

    def _refuse_adapter(self) -> None:
        """Raise RooflineError for a repository that has a LoRA adapter in place of a model."""
        content = self.file(ADAPTER, MAX_BYTES)
        about = {} if content is None else parse_json(_text(content, self.wanted), f"{ADAPTER} of {self.wanted}")
        if isinstance(about, dict) and about:
            base, rank = about.get("base_model_name_or_path"), about.get("r")
            with_rank = f", with --with lora:rank={rank}" if type(rank) is int else ""
            raise RooflineError(f"{self.wanted} is an adapter of {quote(base)}: name that model{with_rank}")

    def file(self, name: str, limit: int) -> bytes | None:
        """A whole small file; None if there is none."""
        found = self._get(name, limit)
        return None if found is None else found[0]

    def header(self, name: str) -> tuple[bytes, int] | None:
        """The header of a safetensors file with its length before it, and the size of the whole file."""
        found = self._get(name, FIRST, partial=True)
        if found is None:
            return None
        start, headers = found
        size = _size(headers, len(start))
        if size is None:
            raise RooflineError(f"the server does not say how large {quote(name)} of {self.wanted} is")
        length = header_length(start[:8], size, f"{name} of {self.wanted}")
        if len(start) < 8 + length:
            more = self._get(name, 8 + length, partial=True)
            start = b"" if more is None else more[0]
        if len(start) < 8 + length:
            raise RooflineError(f"the server ends {quote(name)} of {self.wanted} before the end of its header")
        return start[: 8 + length], size

    def _get(self, name: str, limit: int, partial: bool = False) -> tuple[bytes, Mapping[str, str]] | None:
        """At most `limit` bytes of a file, and the headers of the answer; None if the hub has no such file.

        A whole file that is longer is an error; of a `partial` one no more is read, whatever the server sends.
        """
        from huggingface_hub import get_token, hf_hub_url
        from huggingface_hub.utils import get_session

        url = hf_hub_url(self.wanted.name, name, revision=self.revision)
        # The library's own headers would tell what is installed here.
        asked = {"User-Agent": "llm-roofline", "Accept-Encoding": "identity"}
        if token := get_token():
            asked["Authorization"] = f"Bearer {token}"
        if partial:
            asked["Range"] = f"bytes=0-{limit - 1}"
        try:
            with get_session().stream("GET", url, headers=asked, timeout=SILENCE) as answer:
                if answer.status_code == 404 and answer.headers.get("x-error-code") != "RepoNotFound":
                    return None
                self._check(answer.status_code, answer.headers.get("x-error-code", ""))
                body = self._body(answer.iter_raw(), name, limit, partial)
                # Redirects drop the commit, which the hub's own answer has.
                own = [*answer.history, answer]
                commit = next((one.headers["x-repo-commit"] for one in own if "x-repo-commit" in one.headers), "")
                return body, {**{key.lower(): value for key, value in answer.headers.items()}, "x-repo-commit": commit}
        except RooflineError:
            raise
        except Exception as error:  # of the HTTP library, which differs between releases of huggingface_hub
            problem = " ".join(str(error).split())[:120] or type(error).__name__
            raise RooflineError(f"{quote(name)} of {self.wanted} cannot be read from the hub: {problem}") from None

    def _body(self, pieces: Iterable[bytes], name: str, limit: int, partial: bool) -> bytes:
        body = b""
        for piece in pieces:
            body += piece
            if time.monotonic() > self.until:
                raise RooflineError(f"the hub took longer than {SECONDS:.0f} s for {self.wanted}")
            if len(body) >= limit and partial:
                return body[:limit]
            if len(body) > limit:
                raise RooflineError(f"{quote(name)} of {self.wanted} is larger than {limit >> 20} MiB")
        return body

    def _check(self, status: int, code: str) -> None:
        wanted = self.wanted
        if status in (401, 403) or code in ("RepoNotFound", "GatedRepo"):
            gated = (
                "it is gated: accept its terms on its page, and log in"
                if code == "GatedRepo"
                else ("it does not exist, or is private: check the name, or log in")
            )
            raise RooflineError(f"the hub does not open {wanted}: {gated} ('hf auth login', or HF_TOKEN)")
        if status == 429:
            raise RooflineError(f"the hub answers too many requests: wait before asking for {wanted} again")
        if status not in (200, 206):
            raise RooflineError(f"the hub answers {wanted} with status {status}")


def _size(headers: Mapping[str, str], read: int) -> int | None:
    """The size of a whole file by the headers of an answer for its beginning."""
    ranged = re.fullmatch(r"bytes \d+-\d+/(\d{1,18})", headers.get("content-range", ""))
    if ranged:
        return int(ranged[1])
    whole = headers.get("x-linked-size") or headers.get("content-length") or ""
    return max(int(whole), read) if re.fullmatch(r"\d{1,18}", whole) else None
