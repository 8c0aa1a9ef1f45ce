"""The command line: a command parses its options, calls the library and prints the answer.

In: words of a command line. Out: a table, JSON, CSV, Markdown or a file, and an exit status. No arithmetic lives here.
"""

from roofline.cli.program import app, main

__all__ = ["app", "main"]
