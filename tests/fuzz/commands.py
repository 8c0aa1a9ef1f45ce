"""Command lines that `make fuzz` mutates, and the files that they name."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import sys
from pathlib import Path

from roofline import cli
from tests.fuzz.files import STUDY, raws, write_mutant
from tests.fuzzing import damaged, disordered, dumped, hostile, mutated

COMMANDS = tuple(
    tuple(shlex.split(line))
    for line in """\
llama-3.2-1b a6000 --format json
answer qwen3-8b 2xrtx-4090 --users 4 --prompt 512 --generate 64
qwen3:4b q4_k_m m4-max --images 2
analyze llama-3.2-1b --hw h100-sxm --batch 2 --prompt 64 --generate 4 --format json
analyze qwen3-30b-a3b --hw b200-sxm --tp 2 --ep 2 --quant nvfp4 --engine sglang --format json
analyze deepseek-v3.2 --hw rtx-5090 --batch 17 --prompt 1 --quant nvfp4 --offload weights=1,kv=1 --format json
analyze model.yaml --hw hw.yaml --pp 4 --micro-batches 2 --batch 4 --format csv
analyze llama-2-7b --hw a6000 --convention llm-viewer --quant W4 --format markdown
analyze gemma-3-4b --hw m2-ultra --kv int8 --context 900 --prefix 100 --phase decode
explain tpot llama-3.2-1b --hw a6000 --format json
explain --definitions --format json
compare 'llama-3.2-1b --hw a6000 --with awq' '--with none' '--hw h100-sxm' --format json
sensitivity llama-3.2-1b --hw a6000 --format json
techniques eagle --format json
launch qwen3-8b --hw h100-sxm --kv fp8 --tp 2 --with eagle-3 --concurrency 4 --as kubernetes
launch model.yaml --hw hw.yaml --engine llama.cpp --quant q4_k_m --concurrency 2 --as compose
solve max-batch llama-3.2-1b --hw a6000 --tpot 20ms --format json
solve max-context llama-3.2-1b --hw a6000 --batch 4
solve break-even llama-3.2-1b --hw a6000 --with prompt-lookup:accept=2 --against none
sweep llama-3.2-1b --hw a6000 --over batch=1:4 --metrics ttft,tpot,fits --format csv
sweep llama-3.2-1b --over hw=a6000,h100-sxm --over batch=1,2 --where fits --top 2 --by tpot
sweep study.yaml --format jsonl
sweep llama-3.2-1b --hw a6000 --over quant=W16,W4 --over prompt=1:9:log3 -o answer.parquet --resume
specs show llama-3.2-1b --format json
specs list hardware
specs check model.yaml
specs import config.json -o imported.yaml
validate score rows.csv --hw h100-sxm --format json
validate import result.json --hw h100-sxm --model llama-3.1-8b
""".splitlines()
)
"""Commands that answer within a second or so."""

SLOW = tuple(
    tuple(shlex.split(line))
    for line in """\
advise llama-3.2-1b --hw a6000 --batch 2 --prompt 64 --format json
size llama-3.2-1b --hw a6000 --rate 1 --prompt 100 --generate 20 --format json
serve llama-3.2-1b --hw a6000 --rate 1 --prompt 100 --generate 20 --format json
choose engine llama-3.2-1b --hw a6000 --users 2 --format json
serve llama-3.2-1b --hw a6000 --sessions 4 --profile chat --simulate 40 --format json
serve llama-3.2-1b --hw a6000 --concurrency 2 --simulate 20 --seed 3
plot batch llama-3.2-1b --hw a6000 -o figure.svg
report llama-3.2-1b --hw a6000 --no-advice -o report.md
plot measured rows.csv --hw h100-sxm
""".splitlines()
)

ARGUMENTS = (
    *("--batch", "--prompt", "--generate", "--tp", "--pp", "--ep", "--dp", "--sp", "--nodes", "--quant", "--weights"),
    *("--kv", "--with", "--engine", "--host", "--offload", "--convention", "--at", "--format", "--price", "--tpot"),
    *("--over", "--metrics", "--where", "--top", "--by", "--pareto", "--phase", "--context", "--prefix", "-o", "--hw"),
    *("-1", "0", "1e99", "nan", "32k", "1:3", "all", "8xH200", "model.yaml", "hw.yaml", "engine.yaml", "rows.csv", "-"),
)

_FORBIDDEN = frozenset({"--workers", "--dask", "server", "measure", "calibrate", "drift", "demo"})
"""Processes, networks and benchmarks: not of the input."""


def command_line(generator: random.Random, folder: Path) -> None:
    """A command with words deleted, replaced, repeated and added: an answer in order, or one sentence."""
    words = list(generator.choice(SLOW if generator.random() < 0.03 else COMMANDS))
    for _ in range(generator.choice((0, 1, 1, 2, 3))):
        at = generator.randrange(len(words) + 1)
        word = generator.choice(ARGUMENTS)
        if generator.random() < 0.4:
            word = dumped(hostile(generator), str).replace("/", "_")[:400]
        match generator.randrange(4):
            case 0:
                del words[at : at + 1]
            case 1:
                words[at : at + 1] = [word]
            case 2:
                words.insert(at, word)
            case 3:
                words[at:at] = words[at : at + 2]
    if _FORBIDDEN & set(words) or any("://" in word for word in words):
        return
    _files(generator, folder)
    status, out, err = _run(words, folder)
    assert status in (0, 1, 2), (words, status)
    assert "Traceback" not in err, words
    if status == 2:
        assert err.rstrip("\n").rpartition("\n")[2].startswith("roofline: "), (words, err)
    if status == 0 and "json" in words and out.startswith("{"):
        assert not (wrong := disordered(json.loads(out))), (words, wrong[:3])


def _files(generator: random.Random, folder: Path) -> None:
    """The files that commands name, mutated in one of two cases."""
    sources = {
        "model.yaml": "modelspecs/llama-3.2-1b.yaml",
        "hw.yaml": "hwspecs/a6000.yaml",
        "engine.yaml": "roofline/specs/engines/sglang.yaml",
        "config.json": "tests/data/configs/*.json",
        "rows.csv": "validate/measurements/epyc-2-threads.csv",
        "result.json": "tests/data/benchmarks/vllm-serve.json",
    }
    for name, pattern in sources.items():
        raw = generator.choice(raws(pattern))[1][:6000]
        (folder / name).write_bytes(damaged(raw, generator) if generator.random() < 0.2 else raw)
    content = mutated(dict(STUDY), generator) if generator.random() < 0.5 else dict(STUDY)
    write_mutant(folder / "study.yaml", content, generator)


def _run(words: list[str], folder: Path) -> tuple[int, str, str]:
    """`roofline WORDS` in this process, in a folder."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2))
    argv, here, stdin = sys.argv, Path.cwd(), sys.stdin
    os.chdir(folder)
    sys.argv, sys.stdin = ["roofline", *words], io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
            except SystemExit as stop:
                status = stop.code if isinstance(stop.code, int) else 0
    finally:
        os.chdir(here)
        sys.argv, sys.stdin = argv, stdin
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.detach().getvalue().decode("utf-8", "replace"))  # type: ignore[attr-defined]
    return status, texts[0], texts[1]
