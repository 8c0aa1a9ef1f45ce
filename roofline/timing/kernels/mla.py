"""Time of MLA (multi-head latent attention): prefill over the keys and values of all heads, decode over latents.

Prefill is that of other attention over keys and values that are expanded to all heads, or over latents with one KV head
(SGLang's tables of Hopper), with 3.4 times the FLOPs. In decode (absorbed) one latent a token serves as KV of all query
heads.

A latent has d_c + d_r elements (512 and 64 of DeepSeek); scores use all of it, the weighted sum its first d_c. Tiles
have R rows of query heads, full or not, and m multiprocessors share the reading of the latents of one. The keys of a
sequence are split in s parts that are combined afterwards. S is the number of multiprocessors, L the keys rounded up to
blocks of 64, b the bytes of a latent's element:

    tiles      U   = batch ceil(q_len heads / R)
    one key    T_k = max(2 R (2 d_c + d_r) S / rate, (d_c + d_r) b / (m unit_bandwidth))
    units      T_S = min over s of  w(U s) (T_k L / s + tile_prologue) + combine log2(s) / 3
                                    + 8 s batch q_len heads d_c / bw
    memory     T_M = r batch keys (d_c + d_r) b (1 / (e_B bw) + 1 / (S conversion))
                                    + batch q_len heads (b_q (d_c + d_r) + 2 d_c) / bw
    time       t   = launch + (T_S^p + T_M^p)^(1/p)                  with p sqrt(1 + max(T_S, T_M) / overlap) for p

with w(N) = (1 - q) max(1, N / S) + q ceil(N / S), as in `roofline.timing.kernels.attention_decode`. q is
`wave_quantization`, e_F `compute_efficiency`, e_B `memory_efficiency`, p `sharpness`, bw the memory bandwidth. Queries
are read and results written in 16 bits (b_q = 2); for products in 8 bits queries are converted before, which reads,
writes and reads them again (b_q = 4). Some libraries convert latents of 8 bits for products in 16, on the
multiprocessors (`conversion`): SGLang's and vLLM 0.14's on Hopper take as long on H100 as on H200.

Hopper and Blackwell with HBM have kernels of their own, which all engines run: FlashMLA's and FlashAttention-3's with
R = 64, and those of trtllm-gen. These have tiles of 16 heads for up to 32, and for more where so many tiles are on the
multiprocessors at once with at most 1024 keys each, otherwise of 64, and m = 2 with 128 heads
(selectMlaGenerationKernel in fmhaKernels.h of NVIDIA/TensorRT-LLM and of FlashInfer). There the rate is e_F peak, and s
any.

NVIDIA's other GPUs multiply `mma_rate` FLOP in a clock of a multiprocessor, whatever their peak: 200 in Triton's
kernels and 600 to 1000 in TensorRT-LLM's, on A100, L40S and RTX PRO 6000; other vendors' GPUs no more than that, nor
than e_F peak. `rows` and `split` say which kernel. TensorRT-LLM's never splits the keys. SGLang's in Triton makes up to
eight parts, vLLM's four, and since 0.20 the next power of two of keys / 512, up to two a multiprocessor
(vllm-project/vllm, pull request 33529). Triton's blocks start with those of the first heads of all sequences: tiles of
other heads that start later read the latents again,

    rereads    r   = min(max(U / S, 1), ceil(q_len heads / R)),     R = 16

FlashMLA's kernel for Hopper is told beforehand which keys each multiprocessor takes. A single thread plans that, once a
step, but in TensorRT-LLM before 1.3.0rc8 in every layer (`scheduled`; NVIDIA/TensorRT-LLM, pull request 12161). It
goes through P parts of the multiprocessors and the sequences, and longer where a part has keys at all:

    plan       t_P = 1.7 us + 80 ns P + 45 ns batch + 60 ns min(P, batch L / 64),      P = S / ceil(q_len heads / 64)

which is the time that 1.2.0rc5 takes beyond 1.3.0rc10 in public tables, on H100 and H200, with caches in 16 and 8 bits.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import attention, attention_prefill
from roofline.timing.kernels.attention import Attention, Cache, cache_of
from roofline.timing.kernels.attention_decode import KEY_BLOCK, SPLITS, best_split
from roofline.timing.kernels.common import OVERLAP, ceil_div, overlapping, rounds, unit_clocks, units
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Shape, Term, Terms, column

VLLM_PARTS, SGLANG_MOST_PARTS = 4.0, 8.0
"""Parts of the keys in Triton's kernels: of vLLM before 0.20 (`four`), and the most that SGLang makes (its default of
`--triton-attention-num-kv-splits`)."""

PART_KEYS, MOST_PARTS_PER_UNIT = 512.0, 2.0
"""Keys of a part in vLLM's kernel since 0.20, and the most parts on a multiprocessor."""

ROWS = (16.0, 64.0)
"""Query heads of a tile: of Triton's kernel; of FlashMLA's, and of a warp group in FlashAttention-3 and FlashInfer."""

GEN_STEP, GEN_KEYS = 256.0, 1024.0
"""Keys of a step of trtllm-gen's kernels, and the most of one multiprocessor with tiles of 16 query heads for any."""

LAUNCH = 5e-6
"""Seconds of launch before any data (other decode attention takes 4 to 6 us in a step)."""

PLAN, PLAN_PART, PLAN_SEQUENCE, PLAN_WORK = 1.7e-6, 80e-9, 45e-9, 60e-9
"""Seconds of FlashMLA's plan: in all, a part of the multiprocessors, a sequence, and a part with keys.

From the short and the long contexts of TensorRT-LLM's BF16 tables on H100; on the others the median error is the same,
1% of 1.2.0rc5's time.
"""

CONVERSION = Parameter(
    "conversion", Unit.BANDWIDTH, 1e9, 1e13, 1e13, "cached latents that a multiprocessor converts", 300e9, local=True
)

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, LAUNCH, "launch of the kernel"),
    Parameter("compute_efficiency", Unit.RATIO, 0.02, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("mma_rate", Unit.RATIO, 20, 4096, 4096, "FLOP in a clock of a multiprocessor of other GPUs", start=400),
    Parameter("memory_efficiency", Unit.RATIO, 0.6, 1.0, 0.85, "achievable fraction of memory bandwidth"),
    Parameter("unit_bandwidth", Unit.BANDWIDTH, 2e9, 1500e9, 60e9, "latents into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.05e-6, 20e-6, 2e-6, "start and end of one work item"),
    Parameter("combine", Unit.SECONDS, 0.05e-6, 40e-6, 3e-6, "combining eight splits (three doublings)"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of units and memory"),
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.3, "fraction of the kernel that runs in whole waves"),
    Parameter("rows", Unit.CHOICE, 0, 1, 1, "query heads of other GPUs' tiles: 0 16 (Triton), 1 64", start=1),
    Parameter("split", Unit.CHOICE, 0, 3, 1, "their parts of the keys: 0 one, 1 any, 2 vLLM's, 3 up to 8", start=1),
)


def parameters(format: str) -> tuple[Parameter, ...]:
    """The parameters of decode: with a cache in another format, such as bf16/fp8, `CONVERSION`, otherwise `OVERLAP`."""
    return (*PARAMETERS, CONVERSION if "/" in format else OVERLAP)


PREFILL = (
    *(
        one for one in attention_prefill.PARAMETERS if one.name not in ("pack_single", "softmax", "other_dim")
    ),  # heads of one size
    Parameter("absorbed", Unit.CHOICE, 0, 1, 0, "1: queries attend to latents, as in decode", start=0),
)

SOFTMAX = 0.05
"""Clocks of a multiprocessor for one score's softmax in prefill, which heads of one size do not tell from the products.

The constants hold it; GPUs with more exponentials a clock save a part. TensorRT-LLM's FP8 prefill on B200 takes 0.097
in all, and half of these less where exponentials take half the time: the 1.35 times that NVIDIA publishes for
DeepSeek-V3 on GB300 over GB200 ("Making Softmax More Efficient with NVIDIA Blackwell Ultra"). Other attention there
takes 0.03 to 0.06.
"""

MLA_DIMS, LATENT_DIMS = (128 + 64 + 128) / 2, (512 + 64 + 512) / 2
"""Mean dimension of DeepSeek's keys and values: of each head's expanded ones, and of the latents of all heads."""


def prefill_shape(row: Row) -> Attention:
    """The attention of rows with `dtype, batch, q_len, kv_len, heads`, over keys and values of every head."""
    return attention.shape({**row, "kv_heads": row["heads"], "head_dim": MLA_DIMS})


def attended(shape: Attention, parameters: Parameters) -> Attention:
    """Attention over expanded keys and values, or `absorbed`: all heads attend to latents, with 3.4 times the FLOPs."""
    if parameters.get("absorbed", 0.0) <= 0:
        return shape
    return replace(shape, kv_heads=np.ones_like(shape.heads), head_dim=np.full_like(shape.heads, LATENT_DIMS))


def prefill_terms(shape: Attention, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of prefill over what it attends to."""
    return attention_prefill.terms(attended(shape, parameters), hardware, parameters, SOFTMAX)


class LatentAttention(Shape, frozen=True):
    """Decode of `q_len` new tokens of `batch` sequences over `kv_len` latents; arrays of one shape, a kernel a row.

    A latent has `latent` elements and a rotary key of `rope`. `planned` kernels (the column `scheduled`) plan their
    work on Hopper in every layer; `four`: vLLM's Triton kernel has four parts of the keys. `cold` is the time over
    memory relative to that of latents that no cache holds: 1 in a served model.
    """

    batch: Array
    q_len: Array
    kv_len: Array
    heads: Array
    latent: Array
    rope: Array
    cache: Cache
    planned: Array | float = 0.0
    four: Array | float = 0.0
    cold: Array | float = 1.0

    @property
    def latent_bytes(self) -> Array:
        """Bytes of the latents of all sequences."""
        return self.batch * self.kv_len * (self.latent + self.rope) * self.cache.bytes

    def activation_bytes(self, hardware: Hardware) -> Array:
        """Bytes of queries read, and converted where products are in the cache's format, and of results written."""
        query = 2.0 if self.cache.arithmetic(hardware) == self.cache.computed.arithmetic else 4.0
        return self.batch * self.q_len * self.heads * (query * (self.latent + self.rope) + 2.0 * self.latent)


def shape(row: Row) -> LatentAttention:
    """The kernels of rows with `dtype, batch, q_len, kv_len, heads, latent, rope` and optional columns."""
    planned, four = (column(row, name, 0.0) for name in ("scheduled", "four"))
    return LatentAttention.of(row, cache=cache_of(row), planned=planned, four=four)


def bound(shape: LatentAttention, hardware: Hardware) -> Bound:
    """The FLOPs of all heads; the latents read once."""
    peak = hardware.matrix_peak(shape.cache.arithmetic(hardware))
    compute = 2.0 * shape.batch * shape.q_len * shape.heads * shape.kv_len * (2.0 * shape.latent + shape.rope) / peak
    # Under a causal mask, earlier ones of several queries see fewer keys.
    fewer = (shape.kv_len - (shape.q_len - 1.0) / 2.0) / shape.kv_len
    return Bound(np.where(shape.q_len > 1, compute * fewer, compute), shape.latent_bytes / hardware.memory_bandwidth)


def has_own_kernels(hardware: Hardware) -> bool:
    """Whether there are kernels for the matrix instructions of such GPUs: FlashMLA's and trtllm-gen's."""
    return hardware.family == "hopper" or hardware.has_tensor_memory


def terms(shape: LatentAttention, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, tiles on the multiprocessors, latents and their conversion, and on Hopper the plan."""
    count, bandwidth = units(hardware), hardware.memory_bandwidth
    rows, sharing = _tiles(shape, hardware, parameters)
    tiles = ceil_div(shape.q_len * shape.heads, rows)
    moved = shape.latent_bytes * shape.cold
    if not has_own_kernels(hardware) and int(parameters.get("rows", 1.0)) == 0:
        moved = moved * np.clip(shape.batch * tiles / count, 1.0, tiles)
    conversion = parameters.get("conversion", CONVERSION.default) * count
    rate = 1.0 / (parameters["memory_efficiency"] * bandwidth) + 1.0 / conversion
    serial = [Term("launch", "launch", parameters["launch"])]
    if hardware.family == "hopper" and np.any(np.asarray(shape.planned)):
        planning = shape.planned * _plan(shape, hardware)
        serial.append(Term("plan", "1.7 us + 80 ns P + 45 ns batch + 60 ns min(P, batch L / 64)", planning))
    return overlapping(
        tuple(serial),
        Term(
            "units",
            "min over splits of waves x (keys x max(GEMMs, loads) + prologue) + combining",
            _on_units(shape, rows, sharing, tiles, hardware, parameters),
        ),
        Term(
            "memory",
            "latents (1 / (memory_efficiency bandwidth) + 1 / (S conversion)) + (queries + results) / bandwidth",
            moved * rate + shape.activation_bytes(hardware) / bandwidth,
        ),
        parameters,
    )


def _on_units(
    shape: LatentAttention, rows: Array, sharing: Array, tiles: Array, hardware: Hardware, parameters: Parameters
) -> Array:
    """Seconds of all tiles on the multiprocessors with the fastest split of the keys."""
    count, bandwidth = units(hardware), hardware.memory_bandwidth
    splits = _splits(shape, hardware, int(parameters.get("split", 1.0)))
    multiply = 2.0 * rows * (2.0 * shape.latent + shape.rope) * count
    multiply = multiply / _rate(shape.cache.arithmetic(hardware), hardware, parameters)
    loads = (shape.latent + shape.rope) * shape.cache.bytes / (sharing * parameters["unit_bandwidth"])
    keys = KEY_BLOCK * ceil_div(shape.kv_len, KEY_BLOCK * splits)
    one = keys * np.maximum(multiply, loads) + parameters["tile_prologue"]
    partial = 8.0 * splits * shape.batch * shape.q_len * shape.heads * shape.latent / bandwidth
    waves = rounds(shape.batch * tiles * splits / count, parameters["wave_quantization"])
    return best_split(waves * one, partial, splits, parameters)


def _tiles(shape: LatentAttention, hardware: Hardware, parameters: Parameters) -> tuple[Array, Array]:
    """Query heads of a tile, and the multiprocessors that share the reading of its latents."""
    few, many = ROWS
    if hardware.family == "hopper":
        return np.asarray(many), np.asarray(1.0)
    if not hardware.has_tensor_memory:
        return np.asarray(ROWS[int(parameters.get("rows", 1.0))]), np.asarray(1.0)
    tiles = shape.batch * shape.q_len * ceil_div(shape.heads, few)
    splits = np.minimum(ceil_div(shape.kv_len, GEN_STEP), np.maximum(np.floor(units(hardware) / tiles), 1.0))
    small = (shape.heads <= 2 * few) | ((tiles <= units(hardware)) & (shape.kv_len <= splits * GEN_KEYS))
    return np.where(small, few, many), np.where(small | (shape.heads < 2 * many), 1.0, 2.0)


def _splits(shape: LatentAttention, hardware: Hardware, rule: int) -> Array:
    """The numbers of parts that the keys may be in, by the choice `split`, along the first axis."""
    every = SPLITS.reshape(-1, *(1 for _ in np.shape(shape.kv_len)))
    if has_own_kernels(hardware):
        return every
    match rule:
        case 0:
            return every[:1]
        case 2:
            parts = 2.0 ** np.ceil(np.log2(np.maximum(np.floor(shape.kv_len / PART_KEYS), 1.0)))
            parts = np.minimum(parts, MOST_PARTS_PER_UNIT * units(hardware))
            return np.array([np.where(np.asarray(shape.four) > 0, VLLM_PARTS, parts)])
        case 3:
            return every[every.ravel() <= SGLANG_MOST_PARTS]
    return every


def _plan(shape: LatentAttention, hardware: Hardware) -> Array:
    """Seconds of the kernel that plans FlashMLA's work."""
    parts = units(hardware) / ceil_div(shape.q_len * shape.heads, ROWS[1])
    busy = np.minimum(parts, shape.batch * ceil_div(shape.kv_len, KEY_BLOCK))
    return np.asarray(PLAN + PLAN_PART * parts + PLAN_SEQUENCE * shape.batch + PLAN_WORK * busy)


def _rate(arithmetic: str, hardware: Hardware, parameters: Parameters) -> float:
    """FLOP/s of the products of all multiprocessors."""
    peak = hardware.matrix_peak(arithmetic)
    if has_own_kernels(hardware) or hardware.kind != "gpu":
        return parameters["compute_efficiency"] * peak
    if hardware.vendor != "NVIDIA":
        peak *= parameters["compute_efficiency"]
    return min(peak, parameters["mma_rate"] * unit_clocks(hardware))
