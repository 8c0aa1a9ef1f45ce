"""Kernel models of one's own: in place of a shipped one, and of a further kind."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import RooflineError, Scenario, UnknownNameError, analyze, load_hardware, load_model
from roofline.timing.calibration import Calibration
from roofline.timing.calibration_files import render
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel, kernel_time, register
from roofline.whatif.explanation import explain
from roofline.whatif.study import make_study
from tests.extensions.conftest import LoadModule, decode_time, put

PAGED = """
from msgspec.structs import replace
from roofline.timing.kernels import Parameter, Term, Unit, kernel

SHIPPED = kernel("attention_decode")
LOOKUP = Parameter("page_lookup", Unit.SECONDS, 0.0, 1e-3, 20e-6, "time to look up the pages of a sequence")

def terms(shape, hardware, parameters):
    found = SHIPPED.terms(shape, hardware, parameters)
    lookup = Term("page lookup", "page_lookup batch", parameters["page_lookup"] * shape.batch)
    return replace(found, serial=(*found.serial, lookup))

def parameters(format):
    return (*SHIPPED.parameters(format), LOOKUP)

MODEL = replace(SHIPPED, terms=terms, parameters=parameters)
"""

SCAN = """
import numpy as np
from msgspec import Struct
from roofline.timing.kernels import Array, Bound, Kernel, Parameter, Regimes, Term, Terms, Unit, column

class Scan(Struct, frozen=True):
    tokens: Array

def shape(row):
    return Scan(column(row, "tokens"))

def bound(scan, hardware):
    return Bound(np.zeros_like(scan.tokens), scan.tokens * 2 / hardware.memory_bandwidth)

def terms(scan, hardware, parameters):
    start = Term("start", "start", parameters["start"])
    rate = parameters["share"] * hardware.memory_bandwidth
    return Terms((start, Term("memory", "2 tokens / (share bandwidth)", 2 * scan.tokens, rate)))

def parameters(format):
    return (
        Parameter("start", Unit.SECONDS, 1e-7, 1e-4, 5e-6, "launch"),
        Parameter("share", Unit.RATIO, 0.05, 1.0, 0.8, "achieved fraction of the bandwidth"),
    )

MODEL = Kernel(
    "prefix_scan", shape, bound, terms, parameters, Regimes(lambda scan: scan.tokens, (), ("all",)),
    columns=("tokens",), ranged=("tokens",), held_out=("tokens",), formatted=(),
)
"""


@pytest.fixture
def paged(module: LoadModule) -> ModuleType:
    return module(PAGED)


LAYERS, BATCH = 32, 8


def test_a_model_in_place_of_a_shipped_one_changes_predictions_and_their_explanation(paged: ModuleType) -> None:
    shipped = decode_time()
    with register(paged.MODEL, replace=True):
        assert decode_time() == pytest.approx(shipped + LAYERS * BATCH * 20e-6, rel=1e-6)
        assert kernel("attention_decode").terms is paged.terms
        answer = analyze(Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), batch=BATCH))
        document = str(explain(answer, "fused_attention", "decode").to_dict())
        assert "kernel: page lookup" in document
        assert "page_lookup batch" in document
    assert decode_time() == shipped
    assert kernel("attention_decode") == paged.SHIPPED


def test_a_calibration_file_may_have_its_constant(paged: ModuleType, specs: Path) -> None:
    known = decode_time()
    match = load_calibration(load_hardware("h100-sxm")).find("attention_decode", "bf16")
    assert match is not None

    def text(lookup: float) -> str:
        fit = replace(match.fit, parameters={**match.fit.parameters, "page_lookup": lookup})
        return render(Calibration("h100-sxm", "calibrated", {("attention_decode", "bf16"): fit}))

    with register(paged.MODEL, replace=True):
        path = put(specs / "calibration" / "h100-sxm.yaml", text(50e-6))
        assert decode_time() == pytest.approx(known + LAYERS * BATCH * 50e-6, rel=1e-3)
        path.write_text(text(10e-6), encoding="utf-8")
        assert decode_time() == pytest.approx(known + LAYERS * BATCH * 10e-6, rel=1e-3)
    with pytest.raises(RooflineError, match="unknown key 'page_lookup'"):
        decode_time()
    path.unlink()
    assert decode_time() == known


def test_a_further_kind_has_constants_of_files(module: LoadModule, specs: Path) -> None:
    scan, hardware = module(SCAN), load_hardware("h100-sxm")
    columns = {"tokens": np.array([1e3, 1e9])}
    with register(scan.MODEL):
        own = {"start": 1e-6, "share": 0.5}
        expected = [1e-6 + 2 * bytes * 2 / hardware.memory_bandwidth for bytes in columns["tokens"]]
        assert kernel_time("prefix_scan", columns, hardware, own) == pytest.approx(expected)
        text = "name: h100-sxm\nkernels: {prefix_scan: {any: {parameters: {start: 1 us, share: 0.5}}}}\n"
        put(specs / "calibration" / "h100-sxm.yaml", text)
        found = load_calibration(hardware).expected("prefix_scan", columns, hardware)
        assert found.basis == "calibrated"
        assert found.mid == pytest.approx(expected)
    with pytest.raises(UnknownNameError, match="unknown kernel 'prefix_scan'"):
        kernel_time("prefix_scan", columns, hardware, own)


def test_a_taken_kind_is_replaced_on_request_only(paged: ModuleType) -> None:
    with pytest.raises(RooflineError, match=r"^the kernel 'attention_decode' exists already; replace=True"):
        register(paged.MODEL)
    assert kernel("attention_decode") == paged.SHIPPED


def key() -> str:
    return make_study({"batch": "1,2"}, model="llama-3.1-8b", hw="h100-sxm").key


def test_results_of_studies_have_another_key(module: LoadModule, paged: ModuleType) -> None:
    plain = key()
    with register(paged.MODEL, replace=True):
        registered = key()
    with register(module(PAGED).MODEL, replace=True):
        assert key() == registered != plain
    with register(module(PAGED.replace("20e-6", "30e-6")).MODEL, replace=True):
        assert key() not in (registered, plain)
    assert key() == plain
