"""llama.cpp on this CPU beside its prediction, where its Python binding is installed (`make engine-demo`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lab.llama_cpp.fit import Timed
from lab.llama_cpp.measure import time_passes
from lab.llama_cpp.random_model import write_random_model
from roofline import load_hardware, load_model
from roofline.validate.measure.decoder import with_layers


def test_passes_of_a_small_model(benchmark: Any, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama.cpp's Python binding is not installed", exc_type=ImportError)
    model = replace(with_layers(load_model("qwen2.5-0.5b"), 4), vocabulary=4096)
    path = write_random_model(model, "q8_0", tmp_path / "model.gguf")
    (found,) = benchmark.pedantic(lambda: list(time_passes(path, 1, [64])), rounds=1)
    read = load_model(str(path))
    hardware = load_hardware("ryzen-9-7950x")
    for phase, measured in (("prefill", found.prefill.seconds), ("decode", found.decode.seconds)):
        expected = Timed(read, hardware, phase, 64, measured).expected()  # type: ignore[arg-type]
        assert 0 < expected.mid < 20 * measured  # one thread here against sixteen there
