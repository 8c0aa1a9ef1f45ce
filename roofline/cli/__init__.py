"""The command line: a command parses its options, calls the library and prints the result.

In: arguments. Out: a table, JSON, CSV, Markdown or a file, and an exit status. Commands do no arithmetic.
"""

from roofline.cli.program import app, main

__all__ = ["app", "main"]
