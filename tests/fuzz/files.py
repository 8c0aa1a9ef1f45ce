"""Files that `make fuzz` mutates, and everything that reads them: each function takes one input from a generator.

It raises where a promise is broken. A refusal in one sentence (RooflineError) is an answer like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from roofline import Scenario, analyze, list_hardware, list_models, load_hardware, load_model
from roofline.core.documents import read_mapping
from roofline.reports.documents.analysis import analysis_document
from roofline.reports.output.export import as_json
from roofline.reports.tables.resumable import Spool
from roofline.scenario.options import OPTIONS
from roofline.specs.engine import load_engine
from roofline.specs.hardware import Hardware
from roofline.specs.huggingface import translate
from roofline.specs.model import Model
from roofline.specs.modelspec import parse_model
from roofline.techniques import find_technique
from roofline.timing.intervals.levels import parse_levels
from roofline.validate.check.anchor import read_anchors
from roofline.validate.check.check import read_predictions
from roofline.whatif.study import assemble
from roofline.whatif.sweeps import sweep
from tests.fuzzing import attempt, damaged, disordered, dumped, hostile, mutated
from tests.paths import ROOT

MAX_POINTS = 2000
"""Points up to which a mutated study is swept."""


def _dump(content: Any) -> str:
    """The YAML of a document, by libyaml unless a text has half a surrogate pair."""
    try:
        return yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), allow_unicode=True)
    except UnicodeEncodeError:
        return yaml.safe_dump(content)


@cache
def documents(pattern: str) -> tuple[Any, ...]:
    """The bundled documents of some files."""
    return tuple(read_mapping(path) for path in sorted(ROOT.glob(pattern)))


@cache
def raws(pattern: str) -> tuple[tuple[str, bytes], ...]:
    """The endings and contents of some files."""
    return tuple((path.suffix, path.read_bytes()) for path in sorted(ROOT.glob(pattern)))


def write_mutant(path: Path, content: Any, generator: random.Random) -> Path:
    """A mutated document as a file, in one of four damaged as text as well."""
    raw = dumped(content, _dump).encode("utf-8", "surrogatepass")
    path.write_bytes(damaged(raw, generator) if generator.random() < 0.25 else raw)
    return path


def _check(model: Model, hardware: Hardware, **options: Any) -> None:
    """No figure of an analysis is out of order, and its document is JSON."""
    document = attempt(lambda: analysis_document(analyze(Scenario(model, hardware, generate=4, **options))))
    if document is not None and attempt(lambda: as_json(document)) is not None:
        assert not (wrong := disordered(document)), wrong[:3]


def hardware(generator: random.Random, folder: Path) -> None:
    """A hardware file, and an analysis on it."""
    path = write_mutant(
        folder / "hw.yaml", mutated(generator.choice(documents("hwspecs/*.yaml")), generator), generator
    )
    if (found := attempt(lambda: load_hardware(str(path)))) is not None:
        _check(load_model("llama-3.2-1b"), found, batch=2, prompt=64)


def model(generator: random.Random, folder: Path) -> None:
    """A model file, and its analysis."""
    path = write_mutant(
        folder / "model.yaml", mutated(generator.choice(documents("modelspecs/*.yaml")), generator), generator
    )
    if (found := attempt(lambda: load_model(str(path)))) is not None:
        _check(found, load_hardware("h100-sxm"), batch=2, prompt=64)


def config(generator: random.Random, folder: Path) -> None:
    """A config.json of Hugging Face, and the analysis of its model."""
    content = mutated(generator.choice(documents("tests/data/configs/*.json")), generator)
    path = folder / "config.json"
    raw = dumped(content, partial(json.dumps, default=str)).encode("utf-8", "surrogatepass")
    path.write_bytes(damaged(raw, generator) if generator.random() < 0.25 else raw)
    spec = attempt(lambda: translate(read_mapping(path), "config.json", "own"))
    if spec is not None and (found := attempt(lambda: parse_model(spec, "own.yaml"))) is not None:
        _check(found, load_hardware("h100-sxm"), batch=2, prompt=64)


def engine(generator: random.Random, folder: Path) -> None:
    """An engine profile, and an analysis with it."""
    bundled = documents("roofline/specs/engines/*.yaml")
    path = write_mutant(folder / "engine.yaml", mutated(generator.choice(bundled), generator), generator)
    name = f"{path}@{generator.choice(('0.8', '1', 'x'))}" if generator.random() < 0.1 else str(path)
    if (found := attempt(lambda: load_engine(name))) is not None:
        _check(load_model("llama-3.2-1b"), load_hardware("h100-sxm"), batch=2, prompt=64, engine=found)


def calibration(generator: random.Random, folder: Path) -> None:
    """A calibration on the search path, and an analysis with it."""
    content = generator.choice(documents("hwspecs/calibration/*.yaml"))
    (folder / "calibration").mkdir(exist_ok=True)
    if kernels := content.get("kernels"):
        name = generator.choice(sorted(kernels))
        content = {**content, "kernels": {name: kernels[name]}}
    changed = mutated(content, generator)
    write_mutant(folder / "calibration" / "own.yaml", {**changed, "name": changed.get("name", "own")}, generator)
    hardware = yaml.safe_load((ROOT / "hwspecs" / "a100-sxm-80gb.yaml").read_text("utf-8"))
    (folder / "own.yaml").write_text(_dump({**hardware, "name": "own"}))
    with _searched(folder):
        device = load_hardware(str(folder / "own.yaml"))
        _check(load_model("llama-3.2-1b"), device, batch=2, prompt=64)
        attempt(lambda: parse_levels(folder / "calibration" / "own.yaml"))


def catalogue(generator: random.Random, folder: Path) -> None:
    """Entries of techniques on the search path, of which one is applied."""
    content = generator.choice(documents("roofline/techniques/catalogue/*.yaml"))
    name = generator.choice(sorted(content["techniques"]))
    changed = mutated({**content, "techniques": {name: content["techniques"][name]}}, generator)
    (folder / "techniques").mkdir(exist_ok=True)
    write_mutant(folder / "techniques" / "own.yaml", changed, generator)
    with _searched(folder):
        if attempt(lambda: find_technique(name)) is not None:
            model, hardware = load_model("llama-3.2-1b"), load_hardware("h100-sxm")
            attempt(lambda: Scenario(model, hardware, batch=2, prompt=64, techniques=(name,)))


@contextlib.contextmanager
def _searched(folder: Path) -> Any:
    os.environ["ROOFLINE_SPECS"] = str(folder)
    try:
        yield
    finally:
        del os.environ["ROOFLINE_SPECS"]


def anchors(generator: random.Random, folder: Path) -> None:
    """A file of published figures, or of committed predictions."""
    content = generator.choice(documents("validate/anchors/*.yaml"))
    content = {**content, "anchors": generator.sample(content["anchors"], k=1)}
    attempt(lambda: read_anchors(write_mutant(folder / "a.yaml", mutated(content, generator), generator)))
    committed = documents("tests/golden/predictions.yaml")[0]
    some = {key: dict(list((value or {}).items())[:3]) for key, value in committed.items()}
    attempt(lambda: read_predictions(write_mutant(folder / "p.yaml", mutated(some, generator), generator)))


SETTINGS: Mapping[str, Sequence[object]] = {
    "batch": (1, 2, 3, 17, 64, 1000),
    "prompt": (1, 7, 14, 100, 1024, 30_000),
    "generate": (1, 2, 3, 100, 5000),
    "quant": ("nvfp4", "fp8", "awq", "W8A8", "mxfp4", "q4_k_m", "int8", "KV8"),
    "offload": ("weights=1,kv=1", "weights=0.5", "kv=0.3"),
    "tp": (2, 4, 8),
    "pp": (2, 4),
    "ep": (2, 8),
    "dp": (2, 8),
    "engine": ("sglang", "hf-eager", "tensorrt-llm", "llama.cpp", "vllm@0.8", "ideal"),
    "with": ("eagle", "awq", "prompt-lookup", "chunked-prefill", "disaggregated", "eagle+awq", "two-batch-overlap"),
    "context": (1, 100, 8000),
    "prefix": (1, 1000),
    "price": (2.5,),
}


@cache
def names(kind: str) -> tuple[str, ...]:
    """The names of the bundled hardware or models."""
    return tuple(list_hardware() if kind == "hw" else list_models())


def scenario(generator: random.Random, folder: Path) -> None:
    """Any model on any hardware with any options: no figure out of order."""
    chosen: dict[str, object] = {"model": generator.choice(names("model")), "hw": generator.choice(names("hw"))}
    for name in generator.sample(sorted(SETTINGS), k=generator.randrange(2, 6)):
        chosen[name] = generator.choice(SETTINGS[name])
    read = attempt(lambda: {name: OPTIONS[name].read(value) for name, value in chosen.items()})
    if read is not None:
        document = attempt(lambda: analysis_document(analyze(Scenario(**read))))
        if document is not None and attempt(lambda: as_json(document)) is not None:
            assert not (wrong := disordered(document)), (chosen, wrong[:3])


STUDY: Mapping[str, Any] = {
    "model": "llama-3.2-1b",
    "generate": 4,
    "engine": "vllm",
    "quant": "fp8",
    "over": {"hw": ["h100-sxm", "a6000"], "batch": "1:4:log2", "prompt": [64, 100]},
    "metrics": ["ttft", "tpot", "ttft.low", "ttft.high", "ttft.bound", "power", "power.low", "power.high"],
    "where": "fits and ttft < 500ms",
    "top": 2,
    "by": "tpot",
    "invalid": "keep",
}


def study(generator: random.Random, folder: Path) -> None:
    """A study file, and its sweep if it has few points."""
    names = ("flash", "offload", "convention", "tp", "pp", "host", "with", "context", "prefix", "kv", "price", "draft")
    content = {**STUDY, generator.choice(names): hostile(generator)} if generator.random() < 0.5 else dict(STUDY)
    path = write_mutant(folder / "study.yaml", mutated(content, generator), generator)
    found = attempt(lambda: assemble(str(path), (), {}, {}))
    if found is None or found.points > MAX_POINTS:
        return
    answer = attempt(lambda: sweep(found))
    if answer is not None:
        columns = answer.columns
        for low, high in (("ttft.bound", "ttft.low"), ("ttft.low", "ttft.high"), ("power.low", "power.high")):
            if low in columns and high in columns:
                assert not (columns[low] > columns[high]).any(), low


def manifest(generator: random.Random, folder: Path) -> None:
    """The files of an interrupted sweep: what is believed of them is what was written, from the first chunk on."""
    output = folder / "answer.csv"
    chunks = [(os.urandom(generator.randrange(50)), index, 7, index % 3, {"odd": index % 2}) for index in range(5)]
    with Spool(output, "key", b"head\n") as spool:
        for chunk in chunks:
            spool.append(*chunk)
    data, log = spool.path.read_bytes(), spool.manifest.read_bytes()
    if generator.random() < 0.5:
        records = [json.loads(line) for line in log.splitlines()]
        changed = generator.choice(records)
        changed[generator.choice(list(changed))] = hostile(generator)
        spool.manifest.write_text("".join(dumped(each, partial(json.dumps, default=str)) + "\n" for each in records))
    else:
        spool.manifest.write_bytes(damaged(log, generator))
    if generator.random() < 0.3:
        spool.path.write_bytes(damaged(data, generator))

    def resumed() -> None:
        with Spool(output, "key", b"head\n") as again:
            told = [(entry.number, entry.points, entry.rows, dict(entry.reasons)) for entry in again.done]
            assert told == [chunk[1:] for chunk in chunks[: len(told)]]
            assert list(again.pieces()) == [chunk[0] for chunk in chunks[: len(told)]]

    attempt(resumed)


def aliases(generator: random.Random, folder: Path) -> None:
    """Nested aliases at any key of any document, read by every reader of documents."""
    kind = generator.choice(("hwspecs/*.yaml", "modelspecs/*.yaml", "roofline/specs/engines/*.yaml"))
    content = generator.choice(documents(kind)) if generator.random() < 0.8 else dict(STUDY)
    levels, wide = generator.randint(2, 40), generator.randint(1, 4)
    lines = ["x0: &x0 [word]", *(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * wide)}]" for n in range(1, levels))]
    key = generator.choice(list(content))
    body = {name: value for name, value in content.items() if name != key}
    raw = "\n".join((*lines, dumped(body, _dump), f"{key}: *x{levels - 1}", ""))
    path = folder / "a.yaml"
    path.write_text(raw if generator.random() < 0.5 else raw.partition("\nname")[0] + f"\n{key}: *x{levels - 1}\n")
    for read in (load_hardware, load_model, load_engine, lambda name: assemble(name, (), {}, {})):
        attempt(lambda read=read: read(str(path)))  # type: ignore[misc, operator]
