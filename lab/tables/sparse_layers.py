"""Whole layers of sparse attention (DSA, CSA, HCA, MSA) in public tables, as rows of their attention with its indexer.

The tables (ai-dynamo/aiconfigurator, collector/) time a layer from the normalised input to the output projection,
without norms around it and without the all-reduce, on one rank's heads. A row here is of the indexer and attention;
projections, norms and selections take the `rest` of the layer, as predicted with their own constants. Rows of unknown
models or formats, of heads that are not those of a rank, and of layers that cannot be predicted are left out, which
standard error says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lab.observation.selecting import comparisons
from lab.tables.attention_layers import software
from roofline.core.errors import RooflineError, SpecError
from roofline.graph.extents import Step, extents
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.modelspec import load_model
from roofline.timing.kernels import Array
from roofline.timing.kernels.shapes import DECODE_QUERIES, kernel_shape
from roofline.timing.kernels.sparse import WINDOW
from roofline.timing.launches import INDEXED
from roofline.timing.passes import Timing
from roofline.validate.tables.rows import Measurements, origin

if TYPE_CHECKING:
    import pandas as pd

MODELS: Mapping[str, tuple[str, int]] = {
    "DeepSeek-V3.2": ("deepseek-v3.2", 128),
    "GLM-5": ("glm-5", 64),
    "DeepSeek-V4-Flash": ("deepseek-v4-flash", 64),
    "DeepSeek-V4-Pro": ("deepseek-v4-pro", 128),
    "MiniMax-M3": ("minimax-m3", 64),
}
"""The bundled model and its attention heads, by the beginning of a repository's name."""

SECTIONS: Mapping[str, str] = {"csa": "csa_routed", "hca": "hca_routed", "dsa": "moe", "msa": "sparse_moe"}
"""The group of layers whose attention a table times."""

AROUND = ("attn_norm", "attn_all_reduce", "attn_add", "attn_hc_pre", "attn_hc_post")
"""Operators of the attention sub-layer outside of what is timed; the feed-forward block has other prefixes."""

AFTER = re.compile(r"mlp|router|expert|shared|dispatch|combine")

FORMATS: Mapping[str, str] = {"bfloat16": "bf16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}

RELEASED: Mapping[tuple[str, str], str] = {("sglang", "deepseek-v3.2"): "fp8_block"}
"""Formats of projections in rows that say BF16, for which SGLang's collector asks for no quantization: DeepSeek's file
has its own. These rows take 0.97 to 1.02 of the time of those in FP8 on H200 and B200 (GLM-5's 0.7 to 1.6), and 944
TFLOP/s in the projections of an H200, more than kernels in BF16 reach."""

HOST_BOUND = 400.0
"""Microseconds of the shortest rows of a table beyond which its layers were launched without a CUDA graph.

Layers with graphs take 20 to 250 us; vLLM's, SGLang's and TensorRT-LLM's eager prompts 450 to 2,200, whatever their
length (`collect_mla_module.py` and `collect_msa_module.py` of the collectors).
"""

SKIPPED = "index_q_proj", "index_weights_proj", "index_top_k"
"""Operators of an indexer that dense attention goes without; its keys are cached for later (SGLang, nsa_indexer.py)."""

UNTIMED = ("q_a_proj",)
"""Kernels that SGLang's collector of DSA replaces by random numbers: the projections to latents
(`dummy_qkv_latent_func` in collect_mla_module.py)."""

LAUNCHED = ["model", "gemm_type", "kv_cache_dtype"]
"""What the host time of an eager layer depends on, beside its table: formats of projections and cache have kernels of
their own (vLLM 0.22 on B200 takes 1.1 ms in BF16 and 2.1 in NVFP4), and GLM-5's has parts in CUDA graphs in SGLang
(`_enable_glm5_dsa_piecewise_graph`)."""

HOST_TIME = 0.02
"""Quantile of such rows that is their host time."""

DEVICE_BOUND = 1.25
"""Rows of eager layers that take less than so many times their host's time say nothing of the kernels: left out."""

HAPHAZARD = "msa", "context", "trtllm"
"""TensorRT-LLM's prompts of MSA take 3 to 270 ms, neither monotonic in batch nor in length (1.3.0rc23, B200)."""

MOST_BLOCKS = 65535.0
"""Blocks of a grid in y and z at most (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"):
kernels with a block a token do not start for more tokens, and nobody looks."""

MISSING = 0.8
"""Time of a token in calls of more tokens, over that in the largest one of fewer, below which such a kernel is missing.

The median of a number of heads is 0.88 to 1.17 in other tables, 0.45 to 0.55 (0.78 of three rows) in vLLM's of B200
with 16-bit caches and 16 heads at most, 0.19 and 0.22 alike, and 0.61 to 0.71 in SGLang's with FP8 caches and 32 heads
at most.
"""

RATIOS: Mapping[str, float] = {"csa": 4.0, "dsa": 1.0}
"""Tokens of a score, by layers whose keys are selected one by one."""

FILE = re.compile(r"([^.]+)\.(?:dsv4_)?(csa|hca|dsa|msa)_(context|generation)_module\.(.+)\.parquet")


def read(folder: Path, most: int = 1000) -> list[Measurements]:
    """The rows of a folder's tables of layers, at most so many random ones of each.

    Raises SpecError where a file of the predictions, such as a calibration, cannot be read.
    """
    import pandas as pd

    found: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for path in sorted(folder.glob("*_module.*.parquet")):
        name = FILE.fullmatch(path.name)
        if name is None or (name[2], name[3], name[4].partition("-")[0]) == HAPHAZARD:
            continue
        frame = pd.read_parquet(path)
        eager = frame["latency_us"].quantile(0.05) > HOST_BOUND
        frame = frame.astype(dict.fromkeys(frame.select_dtypes("number").columns, float)).assign(host=0.0)
        if eager:
            host = frame.groupby(LAUNCHED)["latency_us"].transform("quantile", HOST_TIME)
            frame = frame.assign(host=host / 1e6)[frame["latency_us"] > DEVICE_BOUND * host]
        frame = whole_layers(frame, name[3] == "context")
        frame = frame.sample(min(most, len(frame)), random_state=0)
        for op, rows in _layers(frame, name[2], name[3] == "generation"):
            found.setdefault((op, str(rows["variant"].iloc[0])), []).append(rows.assign(graph=1.0 - eager))
    return [Measurements(op, pd.concat(parts, ignore_index=True), op) for (op, _), parts in found.items()]


def whole_layers(frame: pd.DataFrame, prompts: bool) -> pd.DataFrame:
    """The rows without those of layers of which a kernel did not start, since the call has too many tokens."""
    tokens = frame["batch_size"] * frame["isl"]
    frame = frame.assign(tokens=tokens, token_us=frame["latency_us"] / tokens)
    alike, fewer = ["kv_cache_dtype", "num_heads"], tokens <= MOST_BLOCKS
    if not prompts or fewer.all():
        return frame
    shapes = [*alike, "model", "gemm_type", "op_name", "isl", "step"]
    filling = frame[fewer & (tokens > MOST_BLOCKS / 3.0)].sort_values("tokens")
    largest = filling.groupby(shapes)["token_us"].last().rename("usual")
    beyond = frame[~fewer].join(largest, on=shapes).assign(part=lambda one: one["token_us"] / one["usual"])
    parts = frame.join(beyond.groupby(alike)["part"].median(), on=alike)["part"]
    return frame[fewer | ~(parts < MISSING)]


def _layers(frame: pd.DataFrame, kind: str, decode: bool) -> Iterator[tuple[str, pd.DataFrame]]:
    keys = ["hardware", "model", "gemm_type", "kv_cache_dtype", "software", "num_heads"]
    frame = frame.assign(software=software(frame))
    few = frame["isl"] <= DECODE_QUERIES  # which engines give to their kernels of decode, in tables of prompts, too
    frame = frame[~frame["op_name"].str.contains("skip") & (few == decode)]
    for values, part in frame.groupby(keys):
        hardware, repository, gemm, cache, ran = map(str, values[:5])
        base, heads, engine = repository.rpartition("/")[2], float(str(values[5])), ran.partition(" ")[0]
        known = next((one for name, one in sorted(MODELS.items(), reverse=True) if base.startswith(name)), None)
        table = f"{repository} in {gemm} with {heads:g} heads and a cache in {cache} of {ran} on {hardware}"
        if known is None or gemm not in FORMATS or known[1] % heads:
            _say_left_out(part, table, "the model, the format or such a rank is not known")
            continue
        model, every = known
        form = RELEASED.get((origin(ran).engine, model), FORMATS[gemm])
        options: dict[str, Any] = {} if model.startswith("deepseek-v4") else {"quant": form}
        if cache.startswith("fp8") and options:
            options["kv"] = "fp8"
        place, without = load_hardware(hardware), UNTIMED if (kind, engine) == ("dsa", "SGLang") else ()
        try:
            layer = _layer(model, place, every // int(heads), origin(ran).engine, kind, decode, options, without)
        except SpecError:
            raise  # such as a calibration that cannot be read: no fault of these rows
        except RooflineError as error:
            _say_left_out(part, table, str(error))
            continue
        step = Step(*(part[name].to_numpy() for name in ("batch_size", "isl", "step")))
        columns, rest, skipped = layer.rows(step)
        given = {name: np.broadcast_to(value, len(part)) for name, value in columns.items()}
        timed: dict[str, Any] = {
            "software": ran,
            "kernel": part["kernel_source"],
            "latency_us": part["latency_us"],
        }
        compared = 0.0 if decode else _compared(kind, origin(ran).engine, part, given)
        timed |= {"rest": rest, "skipped": skipped, "compared": compared}
        op = "sparse_decode" if decode else "sparse_prefill"
        yield op, part[["hardware", "host"]].assign(op=op, **timed, **given)


def _say_left_out(part: pd.DataFrame, table: str, reason: str) -> None:
    sys.stderr.write(f"rows left out: {len(part):,} of {table}, since {reason}\n")


def _compared(kind: str, engine: str, part: pd.DataFrame, given: Mapping[str, Array]) -> Array | float:
    """Comparisons of scores that are alike in the selections of prompts."""
    if kind not in RATIOS:
        return 0.0
    batch, tokens, cached = (part[name].to_numpy() for name in ("batch_size", "isl", "step"))
    kept = given["slots"] - (WINDOW if kind == "csa" else 0.0)
    return comparisons(engine, batch, tokens, cached, kept, RATIOS[kind])


class Layer(NamedTuple):
    """A layer in the timing of a pass: its kernels, of which one is its sparse attention."""

    timing: Timing
    kernels: list[int]
    attention: int

    def names(self, row: int) -> list[str]:
        """The operators of a kernel."""
        return [self.timing.placement.ops[index][0].name for index in self.timing.kernels[row].parts]

    def rows(self, step: Step) -> tuple[dict[str, Any], Array, Array]:
        """The columns of its sparse attention, the seconds of all other kernels, and of those of the indexer."""
        parts = [self.timing.placement.ops[index][0] for index in self.timing.kernels[self.attention].parts]
        shape = kernel_shape(tuple(parts), None)
        assert shape is not None
        extent = extents(step, self.timing.placement.network.rules)
        sizes = {name: size.evaluate(extent) for name, size in shape.sizes.items()}
        sizes["kv_len"] = sizes.pop("pairs") / sizes["batch"]
        others = [row for row in self.kernels if row != self.attention]
        indexer = [row for row in others if self.names(row)[0] in SKIPPED]
        seconds = self.timing.detail(step).mid
        return {**shape.texts, **sizes}, seconds[others].sum(axis=0), seconds[indexer].sum(axis=0)


def _layer(
    model: str,
    place: Hardware,
    ranks: int,
    engine: str,
    kind: str,
    decode: bool,
    options: Mapping[str, Any],
    without: tuple[str, ...] = (),
) -> Layer:
    """A layer of a model as an engine launches it, but for the kernels of some operators."""
    scenario = Scenario(load_model(model), place, tp=ranks, prompt=64, generate=2, engine=engine, **options)
    answer = analyze(scenario)
    phase = answer.decode if decode and answer.decode is not None else answer.prefill
    timing = phase.timed(phase.passes[-1])
    chosen, own = [], 0
    for row, entry in enumerate(timing.kernels):
        names = [timing.placement.ops[index][0].name for index in entry.parts]
        if entry.section == SECTIONS[kind] and not AFTER.match(names[0]) and names[0] not in (*AROUND, *without):
            chosen.append(row)
            own = row if INDEXED[-1] in names else own
    return Layer(timing, chosen, own)
