"""Constants of llama.cpp on CPUs: recovered from simulated passes; messages where the library is missing."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import gguf
import pytest
from msgspec.structs import replace

from lab.llama_cpp import demo
from lab.llama_cpp.fit import Timed, fit, with_fits
from lab.llama_cpp.random_model import library, write_random_model
from roofline import load_hardware, load_model
from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Calibration
from roofline.timing.calibration_files import parse_calibration, render
from roofline.timing.chains import load_calibration
from roofline.validate.servers.measure import WORDS

CPU = load_hardware("ryzen-9-7950x")
MODEL = load_model("qwen2.5-0.5b")


def simulated(changes: dict[str, float], prompts: tuple[int, ...] = (64, 512), hardware: Hardware = CPU) -> list[Timed]:
    """Passes as they take with other constants of Q8_0 than the shipped ones."""
    chain = load_calibration(hardware, engine="llama.cpp", kind=False)
    match = chain.find("gemm", "ggml_q8_0")
    assert match is not None
    moved = replace(match.fit, parameters=MappingProxyType({**match.fit.parameters, **changes}))
    calibrate = with_fits({hardware: chain}, {("gemm", "ggml_q8_0"): moved})
    rows = [Timed(MODEL, hardware, phase, prompt, 1.0, "q8_0") for prompt in prompts for phase in ("prefill", "decode")]
    return [replace(row, seconds=float(row.expected(calibrate).mid)) for row in rows]


def test_a_fit_recovers_other_constants() -> None:
    changes = {"compute_efficiency": 0.6, "memory_efficiency": 0.6}
    fits = fit(simulated(changes))
    found = fits["gemm", "ggml_q8_0"].parameters
    assert {name: found[name] for name in changes} == pytest.approx(changes, rel=0.05)
    calibrate = with_fits({CPU: load_calibration(CPU, engine="llama.cpp", kind=False)}, fits)
    for row in simulated(changes, (200,)):
        assert float(row.expected(calibrate).mid) == pytest.approx(row.seconds, rel=0.03)


def test_a_fit_leaves_a_prior_above_the_bound() -> None:
    # One thread: Q8_0's 1.32 of this FP32 peak is above the bound at every length.
    thread = replace(CPU, name="thread", units=1, vector={"fp32": 93e9}, memory_bandwidth=22e9)
    fits = fit(simulated({"compute_efficiency": 0.6}, hardware=thread))
    assert fits["gemm", "ggml_q8_0"].parameters["compute_efficiency"] == pytest.approx(0.6, rel=0.1)


def test_fitted_constants_are_written_as_a_calibration_of_the_engine() -> None:
    fits = fit(simulated({"compute_efficiency": 0.6}))
    import yaml

    text = render(Calibration("here", "calibrated", fits, engine="llama.cpp"))
    read = parse_calibration(yaml.safe_load(text), "here.yaml")
    assert read.engine == "llama.cpp"
    expected = fits["gemm", "ggml_q8_0"].parameters
    assert read.fits["gemm", "ggml_q8_0"].parameters == pytest.approx(expected, rel=1e-3)


def test_errors_are_those_of_models_that_the_fit_did_not_see() -> None:
    rows = simulated({"compute_efficiency": 0.6})
    other = [replace(row, model=replace(MODEL, name="other")) for row in rows]
    compared, _ = demo.compare([*rows, *other], MODEL.name)
    assert [row.fitted for row in compared] == [True] * 4 + [False] * 4
    lines = list(demo.summary(compared))
    assert lines[0].startswith("prefill: before the fit median")
    assert "after it, on other models, median 0." in lines[0]


def test_passes_during_which_others_had_a_core_are_left_out() -> None:
    rows = simulated({})
    mixed = [replace(row, busy=busy) for row, busy in zip(rows, (1.0, 0.95, 0.6, 0.89), strict=True)]
    assert demo.undisturbed(mixed) == mixed[:2]
    with pytest.raises(RooflineError, match="other processes had the cores during all passes"):
        demo.undisturbed(mixed[2:])


def test_rows_of_an_earlier_run_are_not_measured_again(tmp_path: Path) -> None:
    older = "qwen2.5-0.5b,q8_0,ryzen-9-7950x,64,0.7,0.03\n"
    (tmp_path / "rows.csv").write_text(
        f"{older}qwen2.5-0.5b,q8_0,ryzen-9-7950x,64,0.5,0.97,0.02,0.8\n", encoding="utf-8"
    )
    write_random_model(demo.load_model("llama-68m"), "q8_0", tmp_path / "qwen2.5-0.5b-q8_0.gguf")
    found = list(demo.measure(["qwen2.5-0.5b"], ["q8_0"], [CPU], [64], tmp_path))
    assert [(row.phase, row.prompt, row.seconds, row.busy) for row in found] == [
        ("prefill", 64, 0.5, 0.97),
        ("decode", 64, 0.02, 0.8),
    ]


def test_a_missing_library_is_one_sentence() -> None:
    with pytest.raises(RooflineError, match=r"nothing_here is not installed: .*pip install '.*\[llama-cpp\]'"):
        library("nothing_here")


def test_words_of_measured_prompts_are_tokens_of_a_random_model(tmp_path: Path) -> None:
    path = write_random_model(load_model("llama-68m"), "q4_0", tmp_path / "a.gguf")
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(set(tokens)) == 32000
    for word in WORDS.split():
        assert {f"\u2581{word[:end]}" for end in range(1, len(word) + 1)} <= set(tokens)
    rare = {fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("unknown", "bos", "eos")}
    assert rare == {31997, 31998, 31999}  # ties among logits go to plain text
    assert tokens[31741:31744] == ["<0x00>", "<0x01>", "<0x02>"]


def test_only_dense_models_and_known_formats_are_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        write_random_model(load_model("mixtral-8x7b"), "q8_0", tmp_path / "a.gguf")
    with pytest.raises(UnknownNameError, match="format 'q4_k'"):
        write_random_model(MODEL, "q4_k", tmp_path / "a.gguf")
