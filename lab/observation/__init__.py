"""What public collectors timed: from the kernel of an engine to the number in their tables.

In: kernel models and rows of public tables. Out: the seconds that a collector would have measured. One module a cause:
`routing` deals tokens to experts, `quantizing` runs PyTorch's operators, `collector` has the rest (graphs of one
kernel, host time, padding, differences of two times) and puts all together as a harness for fits and scores.
"""
