"""The host's share: what issuing a kernel costs plain PyTorch here, as an engine's profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Attention, Layer, LayerGroup, Mlp, Model, Norm, Positions
from roofline.validate.kernels.benchmark import Benchmark
from roofline.validate.kernels.work import Case
from roofline.validate.measure.bench import point
from roofline.validate.measure.decoder import FUSIONS, Decoder, decode_step
from roofline.validate.measure.device import Device

OWN_WAY = "torch"
"""The way that calibrations are of: what plain code runs."""

ENGINE_NAME = "plain-pytorch"

SPREAD = (0.85, 1.18)
"""What an engine's profile leaves open beside its kernels: allocation, caches that are warm, other programs."""

TOY = Model(
    name="toy",
    hidden=64,
    vocabulary=64,
    groups=(LayerGroup("layer", 8, Layer(Norm("rmsnorm"), Attention(4, 2, 16), Mlp(128, True, "silu"))),),
    pattern=("layer",) * 8,
    norm=Norm("rmsnorm"),
    positions=Positions(),
)
"""A network whose kernels compute next to nothing: its time is that of issuing them."""

TOY_CONTEXT = 16

TOY_KERNELS: Sequence[tuple[str, Mapping[str, int], int]] = (
    ("gemm", {"m": 1, "n": 64, "k": 64}, 8 * 7 + 1),
    ("rope", {"rows": 1, "columns": 96}, 8),
    (
        "attention_decode",
        {"batch": 1, "q_len": 1, "kv_len": TOY_CONTEXT + 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "window": 0},
        8,
    ),
    ("norm", {"rows": 1, "columns": 64}, 8 * 2 + 1),
    ("activation", {"rows": 1, "columns": 128}, 8),
    ("copy", {"rows": 1, "columns": 64}, 1),
)
"""The kernels of a decode step of it as the schema knows them, and how many of each."""


def preferred(dtypes: Sequence[str], hardware: Hardware) -> str:
    """The format that a model runs in where none is named: bf16 on a GPU, fp32 on a processor."""
    order = ("fp32", "bf16", "fp16") if hardware.kind == "cpu" else ("bf16", "fp16", "fp32")
    return next((name for name in order if hardware.supports(name) and (not dtypes or name in dtypes)), "fp32")


def engine_profile(device: Device, known: Mapping[str, Benchmark], dtype: str) -> Engine:
    """The profile of plain PyTorch here: `issue` is a step of the toy over its kernels.

    On a processor, where nothing runs ahead, `gap` is what that takes beyond the kernels' own times.
    """
    decoder = Decoder(TOY, dtype, device.name)
    step = decode_step(decoder, 1, TOY_CONTEXT, TOY_CONTEXT + 1)
    whole = device.time([step], cold=False).median
    count = sum(number for _, _, number in TOY_KERNELS)
    issue = min(whole / count, 1e-3)
    gap = 0.0
    if device.name == "cpu":
        alone = 0.0
        for op, shape, number in TOY_KERNELS:
            stored = {"kv_dtype": dtype} if op.startswith("attention") else {}
            sample = point(Case(op, {"dtype": dtype, **stored, **shape}), OWN_WAY, device, known[op], cold=False)
            alone += number * (sample.median if not isinstance(sample, str) else issue)
        gap = min(max(0.0, (whole - alone) / count), 100e-6)
    return Engine(
        ENGINE_NAME,
        "Plain PyTorch, eager",
        fusions=FUSIONS,
        graphs=(),
        parameters={"issue": issue, "gap": gap},
        spread=SPREAD,
        sources=(f"measured by roofline validate calibrate: {device.software}",),
    )
