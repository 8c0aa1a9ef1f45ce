"""`roofline validate check`, which CI runs: committed predictions of published figures and measured kernels."""
