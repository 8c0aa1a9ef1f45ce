"""Time of the routed experts of one layer: two grouped GEMMs over the experts that tokens reach, and token permutation.

One device holds E' = experts / ep experts of width I' = intermediate / tp. The router sends P = tokens top_k / ep pairs
of a token and an expert here; n_j of them are of expert j. With gates (three matrices) the up GEMM multiplies (n_j,
hidden) by (hidden, 2 I'), the down GEMM (n_j, I') by (I', hidden), each in tiles of b_m tokens of one expert and b_n
columns of its output, on S multiprocessors:

    row tiles     R   = sum over experts reached of ceil(n_j / b_m)
    waves         w_g = R ceil(columns_g / b_n) / S,    columns: 2 I' (up), hidden (down)
    one tile      T_g = depth_g max(2 b_m b_n S / (compute_efficiency peak), (b_m + b_n) bytes / tile_bandwidth)
                        + tile_prologue,                depth: hidden (up), I' (down)
    units         T_S = min over (b_m, b_n) of the sum over g of rounds(w_g) T_g
    weights       W   = experts reached x matrices x hidden I' bytes,    matrices: 2, or with gates 3
    memory        T_M = (cold W + inputs and outputs of both GEMMs) / (memory_efficiency bandwidth)
    permutation   T_P = P' (4 hidden + (4 or, with gates, 6) I') / min(permute_bandwidth, bandwidth)
    sorting       T_E = expert x experts of the layer
    time          t   = launch (1 - 4 few_tokens / (tokens + 3)) + (T_S^p + T_M^p)^(1/p) + T_P + T_E

rounds(w) = (1 - q) max(1, w) + q ceil(w) with q = `wave_quantization`: a kernel of less than one wave takes one. p is
`sharpness`; efficiencies are fractions of the datasheet's peak and bandwidth, `tile_bandwidth` is of one
multiprocessor. `bytes` are those of an element of the weights; `cold` is 1, but for benchmarks whose weights a cache
holds. T_S is 1 + `unaligned` times as long where I' is no multiple of 16. The peak of Marlin's experts (`MARLIN`) is
that of its instructions, at most MMA S clock.

Permutation gathers the rows of each expert, applies the activation (I', with gates 2 I', read and I' written, in 16
bits) and adds the experts' results, at 1 to 2 TB/s on A100 to B200 alike where the memory allows it: small kernels,
whose operands are in the L2; llama.cpp's operators move more (`GGML`). Some kernels go through the pairs of all tokens,
on whichever device their experts are: P' = (1 - whole_batch) P + whole_batch tokens top_k. The kernels that sort pairs
by expert keep a count of every expert of the layer (`expert`). The launch is shorter for a few tokens: one token saves
the fraction `few_tokens`, five save half as much.

Routing is uniform unless loads are given (`Loads`): with n pairs an expert on average, 1 - e^-n of the experts are
reached. Tiles are the best of TILES, or those that vLLM's Triton kernels have by default (`BEFORE_0_17`, `SINCE_0_17`).
Those read k in blocks; a block of a row that takes less than FETCHED bytes is read as FETCHED.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import ggml
from roofline.timing.kernels.common import ceil_div, rounds, unit_clocks, units
from roofline.timing.kernels.formats import Numbers, storage
from roofline.timing.kernels.model import (
    Array,
    Bound,
    Flags,
    Parameters,
    Row,
    Shape,
    Term,
    Terms,
    aligned,
    column,
    flags,
    one_flag,
    text,
)

TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
"""Tiles of grouped GEMMs: tokens of one expert, columns."""

BEST, BEFORE_0_17, SINCE_0_17, VECTORS = 0.0, 1.0, 2.0, 3.0
"""Where tiles are from, as numbers of a column: the best of TILES, vLLM's default tables before and since pull request
34846 (0.17), or the best of TILES and of single tokens (llama.cpp's mul_mat_id multiplies an expert's matrix by vectors
of few tokens)."""

VECTOR = (1, 128)
"""The tile of a single token."""

GGML, TO_INT8 = (20.0, 12.0), (10.0, 5.0)
"""Bytes that llama.cpp moves for a pair between its GEMMs, for a column of the hidden state and of an expert.

Operators in FP32 that nothing fuses (build_moe_ffn in src/llama-graph.cpp): up times gate (8 + 4), outputs by the
router's weights (4 + 4), and a sum for each expert of a token (8 + 4). Where the GEMMs multiply in 8 bits, rows become
that for up, for gate, and for down (4 + 1 each).
"""

FETCHED = 64.0
"""Bytes that an L2 of NVIDIA fetches by default, however few are wanted (cudaLimitMaxL2FetchGranularity)."""

MARLIN, MMA = ("int4_wo", "int8_wo", "w4a16_mxfp4"), 2048.0
"""Formats whose experts are Marlin's on NVIDIA, and FLOP in a clock of a multiprocessor of its instructions, Ampere's.

Frantar et al., "MARLIN", 2024; NVIDIA A100 whitepaper: 1,024 dense FP16 FMA. Its experts reach 1,000 to 1,200 on A100,
H100, H200, B200 and GB200, whose own instructions do 2,048, 4,096 and 8,192; 500 to 700 of 1,024 on L40S and RTX PRO
6000."""

FEW = 4.0
"""Tokens beyond the first at which the launch is shortened by half as much as with a single token."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 150e-6, 25e-6, "launch of all kernels of the layer"),
    Parameter("compute_efficiency", Unit.RATIO, 0.05, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.1, 1.0, 0.8, "achievable fraction of memory bandwidth"),
    Parameter("tile_bandwidth", Unit.BANDWIDTH, 5e9, 1000e9, 100e9, "operands into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.01e-6, 30e-6, 2e-6, "filling the pipeline and writing one tile"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 2.0, "exponent of the smooth maximum of units and memory"),
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.3, "fraction of the kernel that runs in whole waves"),
    Parameter("permute_bandwidth", Unit.BANDWIDTH, 0.1e12, 10e12, 1.5e12, "permuting tokens, whatever the memory"),
    Parameter("whole_batch", Unit.RATIO, 0.001, 1.0, 0.1, "fraction of the permutation done for all devices' pairs"),
    Parameter("unaligned", Unit.RATIO, 0.001, 2.0, 0.1, "slowdown of units where the width is no multiple of 16"),
    Parameter("few_tokens", Unit.RATIO, 1e-3, 0.9, 1e-3, "fraction of the launch that one token saves", start=0.2),
    Parameter("expert", Unit.SECONDS, 1e-12, 1e-6, 1e-12, "sorting pairs: time of an expert of the layer", start=10e-9),
)


MARLIN_READS = 25e9
"""Bytes a second into a multiprocessor from which fits of Marlin's experts start.

From more, where no tile waits for its operands, rows of all devices together do not lead back."""


def instructions(format: str) -> float:
    """The most FLOP in a cycle of a multiprocessor that experts in a format reach."""
    return MMA if format in MARLIN else np.inf


def parameters(format: str) -> tuple[Parameter, ...]:
    """The parameters of experts in a format."""
    if format not in MARLIN:
        return PARAMETERS
    return tuple(replace(one, default=MARLIN_READS) if one.name == "tile_bandwidth" else one for one in PARAMETERS)


class Loads(NamedTuple):
    """How pairs spread over a device's experts: the experts in groups of equally many, (groups, rows) arrays.

    `reached` is the fraction of a group's experts that any token reaches, `tokens` the mean number at such an expert:
    128 experts in 16 groups of 8, of which the busiest has 40 tokens at each of its 8, are `tokens[0] == 40` and
    `reached[0] == 1`. Uniform routing is one group.
    """

    tokens: Array
    reached: Array


class Experts(Shape, frozen=True):
    """The routed experts of a layer on one device; arrays of one shape, a kernel a row.

    `tokens` are those of the batch; `experts` are those of the layer, of `intermediate` columns each, divided over `ep`
    and `tp` devices (None: `experts` and `intermediate` are this device's already, as in the graph of a rank). `gated`
    is 1 for experts of three matrices, 0 for two. `among`: where `top_k` are a token's pairs on this device, as in the
    graph of a rank, the devices whose pairs the kernel is handed, 1 if tokens are sent to those of their experts.
    `tiles` says where the tiles are from (`BEST`).

    The others are as below in a served model; benchmarks that deal tokens themselves, or time a part, differ.
    `arriving` tokens are handed to the kernel: all of the batch. `loads` that are `counted` are those of one batch,
    others expected ones, which bound nothing. `elsewhere` are pairs whose expert is on another device and that the
    kernel multiplies all the same, with an expert that it has read anyway: none. `cold` is the fraction of the weights'
    bytes that come from memory, not from a cache: all. `bare` kernels neither sort nor permute. `slower` kernels take
    so many times as long as their constants say, which are those of another kernel.
    """

    tokens: Array
    hidden: Array
    intermediate: Array
    top_k: Array
    experts: Array
    gated: Array
    loads: Loads
    dtype: str
    form: Numbers
    arriving: Array
    counted: Flags = False
    elsewhere: Array | float = 0.0
    cold: Array | float = 1.0
    tiles: Array | float = BEST
    bare: Flags = False
    tp: Array | None = None
    ep: Array | None = None
    among: Array | float = 1.0
    slower: Array | float = 1.0

    @property
    def width(self) -> Array:
        """Columns of an expert on this device."""
        return self.intermediate if self.tp is None else self.intermediate / self.tp

    @property
    def local(self) -> Array:
        """Experts of this device."""
        return np.maximum(self.experts if self.ep is None else self.experts / self.ep, 1.0)

    @property
    def pairs(self) -> Array:
        """Pairs of a token and an expert that the kernel multiplies."""
        return np.asarray((self.loads.tokens * self.loads.reached).mean(axis=0) * self.local + self.elsewhere)

    @property
    def weight_bytes(self) -> Array:
        """Bytes of the weights of the experts that tokens reach."""
        matrices, reached = 2.0 + self.gated, self.loads.reached.mean(axis=0) * self.local
        return np.asarray(reached * matrices * self.hidden * self.width * self.form.bytes)

    @property
    def activation_bytes(self) -> Array:
        """Bytes of the inputs and outputs of both GEMMs, in 16 bits."""
        return 2.0 * self.pairs * (2.0 * self.hidden + (2.0 + self.gated) * self.width)


OPTIONAL = ("gated", "touched", "tp", "ep")
"""Columns of sizes that rows may leave out."""


def shape(row: Row) -> Experts:
    """The experts of rows with `dtype, tokens, hidden, intermediate, top_k, experts` and optional columns.

    `tp`, `ep` are 1 by default, `touched` overrides the number of experts that uniform routing reaches; see `storage`
    for unmeasured formats.
    """
    given = [name for name in ("tokens", "hidden", "intermediate", "top_k", "experts", *OPTIONAL) if name in row]
    row = {**row, **dict(zip(given, aligned(*(column(row, name) for name in given)), strict=True))}
    tokens, top_k, experts = (column(row, name) for name in ("tokens", "top_k", "experts"))
    local = np.maximum(experts / column(row, "ep", 1.0), 1.0)
    return Experts.of(
        {"gated": 1.0, **row},
        loads=uniform(tokens * top_k / experts, column(row, "touched", np.nan) / local),
        dtype=text(row, "dtype"),
        form=storage(row),
        arriving=tokens,
        tiles=column(row, "tiles", BEST),
        bare=flags(row, "bare"),
        tp=column(row, "tp") if "tp" in row else None,
        ep=column(row, "ep") if "ep" in row else None,
        among=column(row, "among", 1.0),
        slower=column(row, "slower", 1.0),
    )


def uniform(mean: Array, reached: Array | float = np.nan) -> Loads:
    """The loads of experts drawn at random, `mean` pairs each; `reached` overrides the fraction that is reached."""
    given = np.isfinite(reached)
    drawn = np.where(given, np.clip(np.where(given, reached, 1.0), 1e-9, 1.0), -np.expm1(-mean))
    return Loads(np.array([np.maximum(mean / drawn, 1.0)]), np.array([drawn]))


def bound(experts: Experts, hardware: Hardware) -> Bound:
    """FLOPs at the peak, and the weights that must be read: of one token's experts at least, or of counted loads."""
    matrices, pairs = 2.0 + experts.gated, experts.tokens * experts.top_k * experts.local / experts.experts
    peak = hardware.matrix_peak(experts.form.arithmetic)
    elements = matrices * experts.hidden * experts.width  # of one expert
    one_token = np.maximum(pairs / np.maximum(experts.tokens, 1.0), 1.0)
    reached = np.minimum(experts.local, one_token)
    if np.any(experts.counted):
        known = experts.loads.reached.mean(axis=0) * experts.local
        reached = np.where(experts.counted, np.maximum(reached, known), reached)
    return Bound(2.0 * pairs * elements / peak, reached * elements * experts.form.bytes / hardware.memory_bandwidth)


def terms(experts: Experts, hardware: Hardware, parameters: Parameters) -> Terms:
    """The launch, both GEMMs on the multiprocessors and over memory, and the permutation of tokens."""
    if experts.dtype.startswith(ggml.PREFIX):
        return _on_cpu(experts, hardware, parameters)
    bandwidth = hardware.memory_bandwidth
    few = 1.0 - parameters.get("few_tokens", 0.0) * FEW / (experts.arriving + FEW - 1.0)
    launch = Term("launch", "launch (1 - few_tokens 4 / (tokens + 3))", parameters["launch"] * few)
    multiplied = Term(
        "units",
        "both GEMMs: min over tiles of rounds(waves) x tile, (1 + unaligned)",
        _on_units(experts, hardware, parameters),
    )
    memory = Term(
        "memory",
        "(cold weights of the experts reached + inputs and outputs) / (memory_efficiency bandwidth)",
        experts.cold * experts.weight_bytes + experts.activation_bytes,
        parameters["memory_efficiency"] * bandwidth,
    )
    if one_flag(experts.bare, "bare"):
        return Terms((launch,), multiplied, memory, parameters["sharpness"], experts.slower)
    share, of_batch = parameters["whole_batch"], experts.arriving * experts.top_k * experts.among
    moved = (1.0 - share) * experts.pairs + share * of_batch  # P'
    unfused, to_int8 = np.asarray(experts.tiles) == VECTORS, float(experts.form.arithmetic == "int8")
    of_hidden = np.where(unfused, GGML[0] + to_int8 * TO_INT8[0], 4.0)
    of_width = np.where(unfused, GGML[1] + to_int8 * TO_INT8[1], 2.0 * (2.0 + experts.gated))
    permutation = Term(
        "permutation",
        "P' (4 hidden + 2 (2 + gated) width) / min(permute_bandwidth, bandwidth)",
        moved * (of_hidden * experts.hidden + of_width * experts.width),
        min(parameters["permute_bandwidth"], bandwidth),
    )
    sorting = Term("sorting", "expert x experts", parameters.get("expert", 0.0) * experts.experts)
    return Terms((launch, permutation, sorting), multiplied, memory, parameters["sharpness"], experts.slower)


def _on_cpu(experts: Experts, hardware: Hardware, parameters: Parameters) -> Terms:
    """llama.cpp's experts, one after the other: GEMMs of the rows of each, with barriers between the matrices alone."""
    loads, reached = experts.loads
    each = reached / reached.shape[0] * experts.local
    many = ggml.terms(loads, experts.width, (2.0 + experts.gated) * experts.hidden, experts.form, hardware, parameters)
    barrier = many["barriers"].amount
    spent = ((many.seconds - barrier) * each).sum(axis=0)
    barriers = Term("barriers", "barrier x threads x matrices", barrier * (2.0 + experts.gated))
    return Terms((barriers, Term("experts", "sum over experts of their GEMMs (roofline.timing.kernels.ggml)", spent)))


def _on_units(experts: Experts, hardware: Hardware, parameters: Parameters) -> Array:
    """T_S, seconds on the multiprocessors for both GEMMs, with the best tile: tiles are along the first axis."""
    count, peak = units(hardware), hardware.matrix_peak(experts.form.arithmetic)
    if experts.dtype in MARLIN and hardware.vendor == "NVIDIA":
        peak = min(peak, MMA * unit_clocks(hardware))
    b_m, b_n, read = _tiles(experts)  # (tiles, rows), and the bytes of an element
    tokens, reached = experts.loads  # (groups, rows): the mean over groups times the experts is the sum over experts
    row_tiles = (reached * ceil_div(tokens, b_m[:, None])).mean(axis=1) * experts.local + experts.elsewhere / b_m
    multiply = 2.0 * b_m * b_n * count / (parameters["compute_efficiency"] * peak)
    one_deep = np.maximum(multiply, (b_m + b_n) * read / parameters["tile_bandwidth"])  # a tile, for each of its depth
    up, down = (experts.hidden, (1.0 + experts.gated) * experts.width), (experts.width, experts.hidden)
    total = np.zeros(np.shape(row_tiles))
    for depth, columns in (up, down):
        waves = row_tiles * ceil_div(columns, b_n) / count
        tile = one_deep * depth + parameters["tile_prologue"]
        total = total + rounds(waves, parameters["wave_quantization"]) * tile
    unaligned = 1.0 + parameters["unaligned"] * (experts.width % 16 != 0)
    return np.asarray(np.min(total, axis=0) * unaligned)


def _tiles(experts: Experts) -> tuple[Array, Array, Array]:
    """Rows and columns of tiles, (tiles, rows), and the bytes that an element of an operand takes to read.

    vLLM's are those of `get_default_config` in its fused_moe.py.
    """
    size = experts.form.bytes
    kind = np.asarray(experts.tiles)
    vectors = bool(np.any(kind == VECTORS))
    best = np.asarray((VECTOR, *TILES) if vectors else TILES, dtype=np.float64).T
    best = best.reshape(*best.shape, *(1 for _ in np.shape(experts.tokens)))
    if vectors or not np.any(kind):
        return best[0], best[1], np.asarray(size)
    tokens = experts.tokens
    before, few, small = kind == BEFORE_0_17, tokens <= experts.local, tokens <= 64
    if experts.dtype.startswith("fp8_block"):
        rows = np.where(before | np.logical_not(small), 64.0, 16.0)
        columns, depth = np.full(np.shape(kind), 128.0), np.asarray(128.0)
    else:
        since = np.array((16.0, 32.0, 64.0, 128.0))[np.searchsorted((32, 96, 512), tokens)]
        rows = np.where(before, np.where(few, 16.0, 64.0), since)
        columns = np.where(before, np.where(few, 32.0, 64.0), np.where(small, 64.0, 128.0))
        depth = np.where(before & np.logical_not(few), 32.0, 64.0)
    read = np.where(kind > 0, np.maximum(size, FETCHED / depth), size)
    return np.where(kind > 0, rows, best[0]), np.where(kind > 0, columns, best[1]), read
