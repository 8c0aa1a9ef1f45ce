"""llama.cpp started from our command, and measured by our benchmark; needs a `llama-server` on the path."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.llama_cpp.random_model import write_random_model
from roofline.launch import Launch, launch
from roofline.specs.modelspec import load_model
from roofline.techniques import Scenario
from tests.cli.test_cli import Run

PORT = 8080

pytestmark = pytest.mark.skipif(shutil.which("llama-server") is None, reason="no llama-server on the path")


@contextmanager
def started(bundle: Launch, folder: Path) -> Iterator[None]:
    """The server of a launch, once it answers."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(shlex.split(bundle.command), stdout=log, stderr=log)
        try:
            for _ in range(600):
                assert process.poll() is None, (folder / "log").read_text(errors="replace")
                try:
                    with urllib.request.urlopen(f"http://localhost:{PORT}/health") as answer:
                        if answer.status == 200:
                            break
                except OSError:
                    time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def test_the_server_has_the_settings_and_the_benchmark_measures_what_is_predicted(run: Run, tmp_path: Path) -> None:
    file = write_random_model(load_model("qwen2.5-0.5b"), "q8_0", tmp_path / "model.gguf")
    scenario = Scenario(str(file), "ryzen-9-7950x", prompt=64, generate=8, max_num_seqs=2)
    bundle = launch(scenario, concurrency=1)
    with started(bundle, tmp_path):
        with urllib.request.urlopen(f"http://localhost:{PORT}/props") as answer:
            props = json.load(answer)
        words = shlex.split(bundle.benchmark)[1:]
        status, out, err = run(*words, "--output", tmp_path / "rows.csv")
    assert status == 0, err
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 256  # of each slot: 64 + 8 tokens, rounded up
    with (tmp_path / "rows.csv").open(encoding="utf-8") as opened:
        measured = {row["metric"] for row in csv.DictReader(opened)}
    assert {"ttft", "tpot"} <= measured or {"ttft_mean", "tpot_mean"} <= measured, measured
    assert "inside" in out
