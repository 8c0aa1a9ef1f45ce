"""The command `roofline mcp`."""

from __future__ import annotations

from roofline.core.errors import needs_extra


def mcp() -> None:
    """Answer an assistant's questions: the verbs as tools of the Model Context Protocol.

    Serves standard input and output. The tools are answer, choose, launch, size, analyze, explain and names; they read
    bundled specs and those in ROOFLINE_SPECS, and no other files.
    """
    with needs_extra("mcp"):
        from roofline.reports.protocol import server
    server().run("stdio")
