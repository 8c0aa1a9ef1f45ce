"""Triton kernels are interpreted here as in the tests of `validate`."""

import tests.validate.conftest  # noqa: F401
