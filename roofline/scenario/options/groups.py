"""The groups of the options, in the words of the table."""

FORMATS, KERNELS = "Formats", "Kernels and techniques"
