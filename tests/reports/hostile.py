"""Specs whose every text tries to become markup, a script, a path or a change of direction."""

from __future__ import annotations

from pathlib import Path

import yaml

NAMES = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"'`><svg/onload=alert(3)>",
    "../../etc/passwd",
    "مرحبا שלום",
    "{{ 7*7 }}${7*7}<!--",
)


def hostile_specs(folder: Path) -> tuple[Path, Path]:
    """A model of 10,000 layers of six makes, and hardware, in files of this folder."""
    model = {
        "name": "</script><script>alert('model')</script>/../..",
        "title": "<img src=x onerror=alert(4)>",
        "source": "javascript:alert(5)\u202e<b>",
        "dtype": "bf16",
        "hidden": 64,
        "vocabulary": 1000,
        "max_context": 4096,
        "layers": {"count": 10_000, "pattern": list(NAMES)},
        "blocks": {name: {} for name in NAMES},
        "attention": {"heads": 4, "kv_heads": 2},
        "mlp": {"width": 128, "gated": True, "activation": "silu"},
        "norm": {"kind": "rmsnorm"},
    }
    hardware = {
        "name": '<b onmouseover=alert(6)>chip<b> & "co"',
        "title": "<script>alert(7)</script>",
        "vendor": "]](javascript:alert(8))",
        "family": "<u>family<u>",
        "kind": "gpu",
        "memory": {"capacity": "80 GB [<i>sheet</i>]", "bandwidth": "2 TB/s"},
        "sources": {"<i>sheet</i>": "</p><script>alert(9)</script> javascript:alert(10)"},
        "compute": {"tensor": {"bf16": "300 TFLOP/s"}, "vector": {"fp32": "20 TFLOP/s"}},
    }
    paths = folder / "model <b>.yaml", folder / "hardware '\"&.yaml"
    for path, content in zip(paths, (model, hardware), strict=True):
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return paths
