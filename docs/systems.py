"""The table of docs/theory/systems.md: what systems of the papers published, and what is simulated of them.

    python -m docs.systems    # run every command, and write the table into the page: about two minutes

A row has the command, the figure that it is about, and the command without the system where the published effect is a
ratio. `low` and `high` are what the paper allows for the effect, which `tests/test_systems.py` holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).resolve().parent / "theory" / "systems.md"
BEGIN, END = "<!-- table: {} (python -m docs.systems) -->", "<!-- end of the table -->"

Document = dict[str, Any]
Tell = Callable[[float], str]


class Figure(NamedTuple):
    """A number of a document: where, how it is told, whether more is better, and whether it is the rate of a time.

    `of_device`: that rate for the whole batch, over the devices.
    """

    name: str
    path: str
    tell: Tell
    more: bool = False
    of_time: bool = False
    of_device: bool = False

    def of(self, document: Document) -> float:
        """The number."""
        found: Any = document
        for key in self.path.split("/"):
            found = found[int(key) if key.isdigit() else key]
        share = document["scenario"]["batch"] / document["parallelism"]["devices"] if self.of_device else 1.0
        return share / float(found) if self.of_time else float(found)


def seconds(value: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def plain(value: float) -> str:
    """Three digits."""
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _of_points(name: str, path: str, tell: Tell = seconds, more: bool = False) -> Figure:
    return Figure(name, f"points/0/{path}", tell, more)


SPEED = Figure("tokens/s", "generation/expected_tpot_s/mid", plain, more=True, of_time=True)
DEVICE = Figure("tokens/s a GPU", "generation/expected_tpot_s/mid", plain, more=True, of_time=True, of_device=True)
BATCH = Figure("tokens/s", "generation/expected_tokens_per_s/mid", plain, more=True)
TPOT = Figure("TPOT", "generation/expected_tpot_s/mid", seconds)
RATE = _of_points("tokens/s", "output_tokens_per_s", plain, more=True)
GOOD = _of_points("requests/s in time", "goodput_requests_per_s", plain, more=True)
MEAN, LAST = _of_points("mean latency", "e2e_s/mean/mid"), _of_points("P99 latency", "e2e_s/p99/mid")
FIRST, TOKEN = _of_points("P99 TTFT", "ttft_s/p99/mid"), _of_points("P99 TPOT", "tpot_s/p99/mid")
TENANT = _of_points("TTFT of the first tenant", "tenants/0/ttft_s/mean/mid")


class Row(NamedTuple):
    """A system: what it published, the load, its command and figure, and the one without it (`than`: in words).

    `low` and `high` bound the effect, how many times better the figure is, or the figure itself where there is no other
    command.
    """

    system: str
    published: str
    load: str
    command: str
    figure: Figure
    low: float
    high: float
    other: str = ""
    than: str = ""

    def measured(self, run: Callable[[str], Document]) -> tuple[float, float | None]:
        """The figure, and that without the system."""
        return self.figure.of(run(self.command)), self.figure.of(run(self.other)) if self.other else None

    def effect(self, found: float, other: float | None) -> float:
        """How many times better it is, or the figure itself."""
        if other is None:
            return found
        return found / other if self.figure.more else other / found


LLUMNIX = "quantiles:p30=15,p50=30,p80=163,p90=502,p95=1285,p99=4576"
"""Llumnix's lengths of mean 256: ranks of a Zipf law of exponent 1.5, scaled, at most 6,144 (benchmark_serving.py)."""

_FAST = "serve opt-13b --hw a100-sxm-40gb --prompt 200 --generate lognormal:mean=250,p95=900 --rate {} --simulate 1500"
_FAIR = "serve llama-2-7b --hw a10g --prompt 256 --generate 256 --rate 6 --simulate 1500 --tenants 1,3"
_MOVE = f"serve llama-7b --hw a10 --dp 4 --prompt {LLUMNIX} --generate {LLUMNIX} --rate 2.25 --simulate 5000"
_MODELS = "--prompt 2047 --generate 1 --burstiness 0.0625 --simulate 2000 --ttft 780ms --tenants " + ",".join("1" * 16)
_SPOT = "serve gpt-neox-20b --hw t4 --dp 2 --pp 3 --tp 4 --rate 0.5 --burstiness 0.028 --simulate 600 --loss 2"
_PETALS = "llama-2-70b --hw t4 --quant nf4 --engine hf-eager --with petals"
_BLOOM = "analyze bloom-176b --hw a100-sxm-80gb --engine hf-eager --with llm-int8 --with petals"
_HEX = "--prompt 128 --generate 64 --rate 4 --simulate 1000 --policy balanced"
_POOL = "--prompt 128 --generate 64 --rate 8 --simulate 1000 --policy balanced"
_STEP = "analyze step-3 --hw h800-sxm --quant fp8 --kv fp8 --prompt 4096 --generate 2"
_MANY = "analyze qwen3-235b-a22b --hw a100-sxm-80gb --prompt 571 --generate 159"
_LORA = "serve llama-7b --hw a100-sxm-80gb --prompt uniform:8:512 --generate uniform:8:512 --rate 10 --simulate 1200"
_ROLL = "serve qwen2.5-7b --hw h100-sxm --prompt 512 --generate lognormal:mean=2000,p95=3500 --offline 256"
_MASK = "analyze llama-3.1-8b --hw h100-sxm --batch 32"

TABLES: dict[str, tuple[Row, ...]] = {
    "accelerators": (
        Row("Cerebras WSE-3", "1,837 [1]", "Llama 3.1 8B", "analyze llama-3.1-8b --hw wse-3", SPEED, 900, 3700),
        Row("4 WSE-3", "445 [1]", "Llama 3.1 70B", "analyze llama-3.1-70b --hw 4xwse-3 --pp 4", SPEED, 300, 1300),
        Row(
            "Groq, 64 chips",
            "750 [2]",
            "Llama 2 7B",
            "analyze llama-2-7b --hw 64xgroq-lpu --tp 8 --pp 8 --quant int8",
            SPEED,
            350,
            1500,
        ),
        Row(
            "Groq, 640 chips",
            "300 on 576 chips [2]",
            "Llama 2 70B",
            "analyze llama-2-70b --hw 640xgroq-lpu --tp 8 --pp 80 --quant int8",
            SPEED,
            150,
            600,
        ),
        Row(
            "SambaNova SN40L, a socket",
            "1,042 on 16 sockets [1]",
            "Llama 3.1 8B",
            "analyze llama-3.1-8b --hw sn40l",
            SPEED,
            40,
            130,
        ),
        Row(
            "Tenstorrent, 32 Wormhole",
            "72.5 of each of 32 users [17]",
            "Llama 3.3 70B",
            "analyze llama-3.3-70b --hw 32xwormhole-n150 --network nvl32 --tp 32 --batch 32 --prompt 128 --quant fp8",
            SPEED,
            36,
            145,
        ),
        Row(
            "Tenstorrent, 8 Wormhole",
            "15.4 of each of 32 users [17]",
            "Qwen2.5 72B",
            "analyze qwen2.5-72b --hw 8xwormhole-n150 --batch 32 --prompt 128 --quant fp8",
            SPEED,
            7.7,
            31,
        ),
        Row(
            "DFX, 4 FPGAs",
            "5.58 times 4 V100 [3]",
            "GPT-2 1.5B",
            "analyze gpt2-xl --hw 4xdfx --pp 4",
            SPEED,
            1,
            12,
            "analyze gpt2-xl --hw 4xv100-sxm2-32gb --pp 4 --engine hf-eager",
            "4 V100, Transformers",
        ),
        Row(
            "FlightLLM, VHK158",
            "1.2 times an A100 [4]",
            "Llama 2 7B, 4 bits",
            "analyze llama-2-7b --hw flightllm --quant w4a8",
            SPEED,
            0.8,
            2.4,
            "analyze llama-2-7b --hw a100-sxm-80gb --quant int8 --enforce-eager",
            "A100, INT8, vLLM without graphs",
        ),
        Row(
            "Allo, U280",
            "1.7 times an A100 [5]",
            "GPT-2 355M, W4A8",
            "analyze gpt2-medium --hw allo --quant w4a8",
            SPEED,
            0.8,
            6,
            "analyze gpt2-medium --hw a100-sxm-80gb --engine hf-eager",
            "A100, Transformers",
        ),
    ),
    "schedulers": (
        Row(
            "FastServe",
            "up to 6.1 times vLLM's throughput at the same latency [6]",
            "OPT-13B, 4 requests/s",
            f"{_FAST.format(4)} --policy fastserve",
            MEAN,
            2,
            31,
            _FAST.format(4),
            "in order of arrival",
        ),
        Row(
            "VTC",
            "a tenant within its share is not delayed [7]",
            "Llama 2 7B, overloaded by the second tenant",
            f"{_FAIR} --policy vtc",
            TENANT,
            5,
            100,
            _FAIR,
            "in order of arrival",
        ),
        Row(
            "priority classes",
            "(vLLM, SGLang)",
            "the same",
            f"{_FAIR} --policy priority",
            TENANT,
            20,
            1000,
            _FAIR,
            "in order of arrival",
        ),
    ),
    "fleets": (
        Row(
            "Llumnix",
            "P99 of the first token up to 15 times lower [8]",
            "Llama 7B on 4 A10, lengths of mean 256",
            f"{_MOVE} --policy llumnix",
            FIRST,
            2,
            30,
            f"{_MOVE} --policy balanced",
            "fewest requests first",
        ),
        Row(
            "AlpaServe",
            "10 times the rate within targets for 99% [9]",
            "16 models of 2.7B on 16 V100",
            f"serve opt-2.7b --hw 16xv100-sxm2-16gb {_MODELS} --rate 32 --policy placement",
            GOOD,
            3,
            12,
            f"serve opt-2.7b --hw v100-sxm2-16gb --dp 16 {_MODELS} --rate 4 --policy alpaserve --models-per-replica 2",
            "two models a GPU, 4 requests/s",
        ),
        Row(
            "SpotServe",
            "P99 latency 2.4 to 9.1 times lower [10]",
            "GPT-NeoX 20B, each instance lost twice an hour",
            f"{_SPOT} --policy spotserve",
            LAST,
            2.4,
            12,
            f"{_SPOT} --policy reroute",
            "requests begin anew",
        ),
        Row(
            "Petals",
            "1.57 steps/s at 100 ms [11]",
            "Llama 2 70B on 3 T4",
            f"analyze {_PETALS}",
            SPEED,
            0.8,
            3.2,
        ),
        Row(
            "Petals, LAN",
            "2.29 steps/s at 5 ms [11]",
            "the same",
            f"analyze {_PETALS}:rtt=5ms",
            SPEED,
            1.15,
            4.6,
        ),
        Row(
            "Petals, 3 servers",
            "1.71 steps/s at 5 ms [18]",
            "BLOOM-176B in LLM.int8 on 3 A100",
            f"{_BLOOM}:rtt=5ms",
            SPEED,
            0.85,
            3.4,
        ),
        Row(
            "Petals, churn",
            "(a session goes on when a machine leaves [11])",
            "the same, each lost twice an hour",
            f"serve {_PETALS} --rate 0.02 --simulate 100 --policy petals --loss 2",
            MEAN,
            1.0,
            50,
            f"serve {_PETALS} --rate 0.02 --simulate 100 --policy reroute --loss 2",
            "begun anew",
        ),
    ),
    "unequal devices": (
        Row(
            "HexGen",
            "up to 4 times the peak rate at the same budget [12]",
            "Llama 2 70B, 4 requests/s, 43 USD/h",
            f"serve llama-2-70b --hw 4xa6000+4xrtx-3090-ti --with hexgen --dp 10 {_HEX} --max-num-seqs 2",
            RATE,
            1.5,
            5,
            f"serve llama-2-70b --hw a100-sxm-40gb --tp 8 --dp 2 {_HEX} --max-num-seqs 1",
            "16 A100 40GB, one request each",
        ),
        Row(
            "HexGen, unequal replicas",
            "up to 1.8 times lower deadlines than symmetric on the same GPUs [19]",
            "Llama 2 70B, 8 A6000, 8 A5000, 16 RTX 3090 Ti, 8 requests/s",
            f"serve llama-2-70b --hw a6000 --tp 4 --dp 2 --beside 8xa5000,2*8xrtx-3090-ti {_POOL}",
            LAST,
            1.1,
            1.9,
            f"serve llama-2-70b --hw 2xa6000+2xa5000+4xrtx-3090-ti --with hexgen --dp 4 {_POOL}",
            "four equal replicas of all kinds",
        ),
    ),
    "attention and experts apart": (
        Row(
            "Step-3",
            "4,039 within 50 ms a token [23]",
            "Step-3 in FP8 on 40 H800, contexts of 4K",
            f"{_STEP} --dp 24 --batch 6144 --with attention-ffn-disaggregation:devices=16,micro_batches=2",
            DEVICE,
            2000,
            8000,
        ),
        Row(
            "MegaScale-Infer",
            "up to 1.9 times vLLM and TensorRT-LLM [24]",
            "Qwen3 235B, 24 A100, within 150 ms a token",
            f"{_MANY} --dp 8 --batch 3072 --with attention-ffn-disaggregation:devices=16",
            DEVICE,
            1.1,
            1.95,
            f"{_MANY} --tp 16 --batch 1280",
            "16 A100, tensor-parallel",
        ),
    ),
    "adapters": (
        Row(
            "Punica",
            "12 times the throughput of a model for each adapter [13]",
            "Llama 2 7B, 32 adapters",
            "analyze llama-2-7b --hw a100-sxm-80gb --batch 32 --with punica",
            BATCH,
            8,
            16,
            "analyze llama-2-7b --hw a100-sxm-80gb",
            "one sequence at a time",
        ),
        Row(
            "S-LoRA",
            "up to 4 times vLLM with packed models [14]",
            "Llama 7B, 5 adapters, its load",
            f"{_LORA} --with punica:adapters=5,rank=8,skew=1",
            RATE,
            2,
            6,
            f"{_LORA} --policy alpaserve --tenants 60,30,20,15,12",
            "five models on the GPU",
        ),
        Row(
            "S-LoRA, 2,000 adapters",
            "thousands with a small overhead [14]",
            "the same",
            f"{_LORA} --with s-lora:adapters=2000,rank=8,skew=1",
            RATE,
            0.9,
            1.01,
            f"{_LORA} --with punica:adapters=5,rank=8,skew=1",
            "5 adapters",
        ),
    ),
    "rollouts and masks": (
        Row(
            "APRIL",
            "22.5% more throughput, up to 44% [15]",
            "Qwen2.5 7B, 256 rollouts a step",
            *(
                f"{_ROLL} --rollouts steps=20,over=1.5",
                RATE,
                1.1,
                1.6,
                f"{_ROLL} --rollouts steps=20",
                "all waited for",
            ),
        ),
        Row(
            "XGrammar",
            "masks in 40 us, hidden by the pass [16]",
            "Llama 3.1 8B, batch of 32",
            f"{_MASK} --with structured-output:overlap=1",
            TPOT,
            0.95,
            1.02,
            _MASK,
            "no masks",
        ),
    ),
}
"""The rows by table."""


def command_line(command: str) -> Document:
    """The JSON document of a command of `roofline`."""
    words = [sys.executable, "-m", "roofline", *command.split(), "--format", "json"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - of this table
    if found.returncode:
        raise SystemExit(f"{command}: {found.stderr}")
    document: Document = json.loads(found.stdout)
    return document


def table(rows: tuple[Row, ...], run: Callable[[str], Document]) -> Iterator[str]:
    """The lines of a table, each row of which is run."""
    compared = any(row.other for row in rows)
    yield f"| system | published | load | simulated |{' without it | effect |' if compared else ''} command |"
    yield f"|---|---|---|---|{'---|---|' if compared else ''}---|"
    for row in rows:
        found, other = row.measured(run)
        cells = [row.system, row.published, row.load, f"{row.figure.name} {row.figure.tell(found)}"]
        if compared:
            cells += (
                [f"{row.figure.tell(other)} ({row.than})", f"{row.effect(found, other):.2g}"] if other else ["", ""]
            )
        yield f"| {' | '.join([*cells, f'`{row.command}`'])} |"


def main() -> None:
    """Write all tables into the page."""
    text = PAGE.read_text()
    for name, rows in TABLES.items():
        begin = BEGIN.format(name)
        before, rest = text.split(begin)
        after = rest.split(END, 1)[1]
        text = f"{before}{begin}\n\n" + "\n".join(table(rows, command_line)) + f"\n\n{END}{after}"
        sys.stdout.write(f"{name}\n")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
