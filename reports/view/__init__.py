"""The live page of `roofline view`: a local server that answers with the documents of the other commands, and a page.

`setups.py` reads the set-ups of the page's address, `documents.py` answers questions about them, `exports.py` writes
files, `catalogue.py` lists what its fields offer, `server.py` serves all of it, and `page/` draws. The page computes
nothing but its layout.
"""
