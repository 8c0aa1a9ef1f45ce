"""The live page of `roofline view`: a local server that answers with the documents of the other commands, and a page.

`setups.py` reads the set-ups of the page's address, `documents.py` answers questions about them and writes files,
`catalogue.py` lists what its fields offer, and `page/` draws. `server.py` serves all of it to this machine,
`hosted.py` to a team, and `recorded.py` answers in advance, for reports. The page computes nothing but its layout.
"""
