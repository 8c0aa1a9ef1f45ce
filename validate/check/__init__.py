"""`roofline validate check`, which CI runs: committed predictions of published figures and measured kernels.

In: anchors (published figures with their conditions) and this project's kernel rows. Out: the change of each prediction
since it was committed, its error, and an exit status.
"""
