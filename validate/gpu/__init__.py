"""One command for a GPU that is there for minutes: a plan of measurements, run and written down step by step."""
