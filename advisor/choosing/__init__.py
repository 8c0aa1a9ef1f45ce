"""Choosing: the alternatives of one decision, all of them under one load, and the verdict with what would flip it.

`alternatives` lists what may be chosen, `decision` serves each and ranks them.
"""
