"""Calibrate this machine, run a model on it, detect its drift: a module each, whose results have `lines` of text."""
