"""The engine profile of eager PyTorch on this machine: the host time of a kernel launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Layer, LayerGroup, Model, Norm, Positions
from roofline.specs.sublayers import Attention, Mlp
from roofline.validate.kernels.benchmark import Benchmark
from roofline.validate.kernels.work import Case
from roofline.validate.measure.bench import measure_case
from roofline.validate.measure.decoder import FUSIONS, Decoder, decode_step
from roofline.validate.measure.device import Device

BACKEND = "torch"
"""The backend that calibrations are fitted to: eager PyTorch."""

ENGINE_NAME = "plain-pytorch"

SPREAD = (0.85, 1.18)
"""The interval of effects outside of kernels: allocation, warm caches, other programs."""

TINY = Model(
    name="tiny",
    hidden=64,
    vocabulary=64,
    groups=(
        LayerGroup("layer", 8, Layer(Norm("rmsnorm"), Attention(4, 2, 16), Mlp(128, gated=True, activation="silu"))),
    ),
    pattern=("layer",) * 8,
    norm=Norm("rmsnorm"),
    positions=Positions(),
)
"""A network whose kernels compute next to nothing: its time is launch time."""

TINY_CONTEXT = 16
"""Cached tokens of its decode step."""

TINY_KERNELS: Sequence[tuple[str, Mapping[str, int], int]] = (
    ("gemm", {"m": 1, "n": 64, "k": 64}, 8 * 7 + 1),
    ("rope", {"rows": 1, "columns": 96}, 8),
    (
        "attention_decode",
        {"batch": 1, "q_len": 1, "kv_len": TINY_CONTEXT + 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "window": 0},
        8,
    ),
    ("norm", {"rows": 1, "columns": 64}, 8 * 2 + 1),
    ("activation", {"rows": 1, "columns": 128}, 8),
    ("copy", {"rows": 1, "columns": 64}, 1),
)
"""The kernels of one of its decode steps: op, shape and count."""


def default_dtype(dtypes: Sequence[str], hardware: Hardware) -> str:
    """The format of a model by default: bf16 on a GPU, fp32 on a CPU."""
    order = ("fp32", "bf16", "fp16") if hardware.kind == "cpu" else ("bf16", "fp16", "fp32")
    return next((name for name in order if hardware.supports(name) and (not dtypes or name in dtypes)), "fp32")


def engine_profile(device: Device, known: Mapping[str, Benchmark], dtype: str) -> Engine:
    """The profile of eager PyTorch: `issue` is the time of a step of the tiny model over its number of kernels.

    On a CPU, where launches do not overlap kernels, `gap` is the part of it that exceeds the kernels' own times.
    """
    decoder = Decoder(TINY, dtype, device.name)
    step = decode_step(decoder, 1, TINY_CONTEXT, TINY_CONTEXT + 1)
    step_time = device.time([step], cold=False).median
    count = sum(number for _, _, number in TINY_KERNELS)
    issue = min(step_time / count, 1e-3)
    gap = 0.0
    if device.name == "cpu":
        kernels = 0.0
        for op, shape, number in TINY_KERNELS:
            kv_dtype = {"kv_dtype": dtype} if op.startswith("attention") else {}
            case = Case(op, {"dtype": dtype, **kv_dtype, **shape})
            sample = measure_case(case, BACKEND, device, known[op], cold=False)
            kernels += number * (sample.median if not isinstance(sample, str) else issue)
        gap = min(max(0.0, (step_time - kernels) / count), 100e-6)
    return Engine(
        ENGINE_NAME,
        "PyTorch, eager",
        fusions=FUSIONS,
        graphs=(),
        parameters={"issue": issue, "gap": gap},
        spread=SPREAD,
        sources=(f"measured by roofline validate calibrate: {device.software}",),
    )
