"""One module per command: its JSON document, and that document as blocks or tables.

In: an answer of the library. Out: a mapping of plain values, whose keys are those of `--format json`, and `Block`s that
`reports.output` renders for the terminal, Markdown and HTML.
"""
