"""The check of CI: committed predictions of published figures and measured kernels."""
