"""One command for a GPU that is there for minutes: a plan of measurements, run and written down step by step.

In: a device and its minutes. Out: a folder with what each step found until it ended, and a summary in Markdown.
"""
