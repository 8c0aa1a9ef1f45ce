"""Named workloads of sessions, from published distributions: the files of `profiles`, as `roofline workload` writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from roofline.core.errors import UnknownNameError
from roofline.serving.sessions.workload import Workload

FOLDER = Path(__file__).with_name("profiles")

CHAT = "chat"
"""The profile of sessions on a page where none is chosen."""

PROFILES: Mapping[str, Path] = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
"""The files by name; each is read where it is asked for. One is `like` another but for its own entries."""


def profile(name: str) -> Workload:
    """The workload of a name, or of a file (.json, .yaml); raises UnknownNameError with the nearest, or SpecError."""
    if Path(name).suffix.lower() in (".json", ".yaml", ".yml"):
        return _read(Path(name))
    if name not in PROFILES:
        raise UnknownNameError("profile of sessions", name, PROFILES)
    return _bundled(name)


@cache
def _bundled(name: str) -> Workload:
    return replace(_read(PROFILES[name]), name=name)


def _read(path: Path) -> Workload:
    from roofline.core.documents import read_mapping  # few ask for a profile
    from roofline.serving.sessions.recorded import workload_in

    content = read_mapping(path)
    if path.parent == FOLDER and (base := content.pop("like", None)):
        content = {**read_mapping(PROFILES[base]), **content}
    return workload_in(content, str(path))
