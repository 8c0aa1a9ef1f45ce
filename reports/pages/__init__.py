"""Reports: one page about a scenario, or several side by side, as a self-contained HTML file or as Markdown.

`subjects.py` says what is reported, `knobs.py` what can be turned, `grid.py` works it all out, `content.py` writes what
both pages say, `web.py` and `markdown.py` are the pages.
"""
