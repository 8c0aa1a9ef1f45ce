"""Rows of formats that the hardware does not compute in: its kernels convert the weights, and multiply in 16 bits."""

from __future__ import annotations

from roofline.specs.hardware import Hardware
from roofline.timing.kernels.formats import FORMATS
from roofline.validate.tables.rows import Measurements

WEIGHT_ONLY = {1: "int8_wo", 0: "int4_wo"}
"""The weight-only format by the whole bytes of a weight."""


def as_computed(part: Measurements, hardware: Hardware) -> Measurements:
    """Rows of GEMMs and experts of one op and format with the format that `hardware` runs them in.

    FP8 GEMMs on GPUs without FP8 read weights of a byte and multiply in BF16; activations stay in 16 bits.
    """
    if part.op not in ("gemm", "moe"):
        return part
    dtype = str(part.frame["dtype"].iloc[0])
    form = FORMATS.get(dtype)
    if form is None or not form.quantizes or hardware.supports(form.arithmetic) or not hardware.supports("bf16"):
        return part
    return Measurements(part.op, part.frame.assign(dtype=WEIGHT_ONLY[int(form.bytes)]), part.where, part.empty)
