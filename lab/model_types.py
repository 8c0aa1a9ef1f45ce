"""Every text-generating model type of the installed Transformers against its class on the meta device.

    python -m lab.model_types               # write docs/models.md, in five minutes
    python -m lab.model_types lfm2 mamba    # print the rows of some types

A row compares what is read of the file that the class writes with its defaults with the class itself: all parameters,
the FLOPs of linear layers and experts in a prompt, and the elements that a token keeps in the caches. `varied` makes
further files of a type by changing single keys.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from roofline.bound.memory import kv_bytes_per_token, parameters
from roofline.core.errors import RooflineError
from roofline.graph.extents import Step, extents
from roofline.graph.network import network
from roofline.graph.op import Kind
from roofline.specs.classes.block import is_linear
from roofline.specs.classes.build import ENCODING, GENERATING, build, without_scipy
from roofline.specs.classes.network import head_of, read
from roofline.specs.classes.trace import SOURCE, TOKENS, Trace, trace
from roofline.specs.huggingface import READERS, translate
from roofline.specs.model import Model
from roofline.specs.modelspec import load_model, parse_model
from roofline.specs.precision import parse_precision

NAMES = Path(__file__).parent / "data" / "vllm_names.txt"

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"

BF16 = parse_precision("bf16")


class Row(Struct):
    """One model type: by which way it is read, and what the class and the reading of it count.

    `routing`: elements of buffers that checkpoints store and that this program counts as parameters of the router.
    `way`: "native", "class", or "refused" with the reason; "no default" for a class that its own defaults do not make.
    Figures of the class are None where no pass of it ran without data.
    """

    kind: str
    way: str
    reason: str = ""
    parameters: int = 0
    routing: int = 0
    read: int = 0
    flops: float | None = None
    read_flops: float | None = None
    cached: float | None = None
    read_cached: float | None = None

    @property
    def exact(self) -> bool:
        """Whether the parameters are those of the class."""
        return self.way in ("native", "class") and self.read - self.parameters in (0, self.routing)

    @property
    def same_flops(self) -> bool | None:
        """Whether linear layers and experts do the same work; None where that is not known."""
        if self.flops is None or self.read_flops is None:
            return None
        return abs(self.flops - self.read_flops) <= 1e-6 * self.flops

    @property
    def same_cache(self) -> bool | None:
        """Whether a token keeps the same number of elements; None where that is not known."""
        return None if self.cached is None or self.read_cached is None else self.cached == self.read_cached


def known_types() -> list[str]:
    """Every text-generating `model_type` of the installed Transformers."""
    from transformers.models.auto import modeling_auto

    tasks = [task for task in GENERATING if task not in ENCODING]
    tables = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in tasks]
    return sorted({name for table in tables for name in table})


def compare(kind: str, changes: Mapping[str, Any] | None = None) -> Row:
    """The row of a model type, with its class's defaults but for `changes` of keys."""
    try:
        model = build({"model_type": kind, **(changes or {})})
    except Exception as error:
        return Row(kind, "no default", _first_line(error))
    made = trace(model)
    row = Row(kind, "", parameters=sum(value.numel() for value in model.parameters()))
    row.routing = sum(value.numel() for name, value in model.named_buffers() if "correction_bias" in name)
    native = kind in READERS
    try:
        if native:
            content = model.config.to_dict() | {"model_type": kind, "architectures": [type(model).__name__]}
            spec = translate(content, f"{kind}.json", kind)
        else:
            spec = {"name": kind, **read(model, made).spec}
        own = parse_model(spec, f"{kind}.json")
        row.read = parameters(own)
    except Exception as error:
        row.way, row.reason = "refused", _first_line(error).removeprefix(f"{kind}.json: ")
        return row
    row.way = "class" if own.rests_on or not native else "native"
    if own.task == "encode":  # read as the model without the heads of pre-training
        row.parameters = sum(value.numel() for value in _encoder(model.config).parameters())
        return row
    if not made.failed:
        encoded = model.main_input_name == "input_ids"
        row.flops, row.read_flops = _measured(model, made), _linear_flops(own, encoded)
        if made.cached:
            row.cached = float(sum(heads * (key + value) for heads, key, value in made.cached.values()))
            row.read_cached = kv_bytes_per_token(own, BF16) / BF16.kv.bytes
    return row


def _encoder(config: Any) -> Any:
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return AutoModel.from_config(config)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]


def _measured(model: Any, made: Trace) -> float | None:
    """Matrix FLOPs of linear layers, routers and experts, but for the output layer; None without calls of attention."""
    if not any(call.core is not None for call in made.calls):
        return None
    head = head_of(model)
    named = dict(model.named_modules())
    return sum(flops for path, flops in made.flops.items() if _is_linear(named[path]) and named[path] is not head)


def _is_linear(module: Any) -> bool:
    named = type(module).__name__
    return is_linear(module) or "Expert" in named or named.endswith(("Router", "Gate"))


def _linear_flops(model: Model, encoded: bool) -> float:
    """Matrix FLOPs of the graph's linear layers and experts in one prompt of `TOKENS`, without the output layer.

    The encoder of an encoder-decoder, if it ran (`encoded`), has `SOURCE` tokens.
    """
    found = _work(model, Step(1, TOKENS, 0, SOURCE, SOURCE))
    if model.tower is not None and model.tower_kind == "encoder" and encoded:
        found += _work(model.tower, Step(1, SOURCE, 0))
    return found


def _work(model: Model, step: Step) -> float:
    graph = network(model, BF16)
    values = extents(step, graph.rules)
    kinds = (Kind.GEMM, Kind.MOE)
    return float(
        sum(
            count * op.matrix_flops.evaluate(values)
            for op, count, _ in graph.ops
            if op.kind in kinds and op.name != "lm_head"
        )
    )


SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "qkv_bias", "use_qk_norm")
WIDTHS = ("intermediate_size", "moe_intermediate_size", "ffn_dim", "d_ff", "vocab_size")


def varied(kind: str, count: int, seed: int = 54) -> Iterator[dict[str, Any]]:
    """Up to `count` changes of a type's defaults: a switch turned, a width or a number of heads changed."""
    from transformers import AutoConfig

    chance = random.Random(f"{kind} {seed}")  # noqa: S311 - no secret
    try:
        config = AutoConfig.for_model(kind)
    except Exception:
        return
    text = config.get_text_config(decoder=True)
    if text is not config:
        return
    plain = config.to_dict()
    for _ in range(count):
        found: dict[str, Any] = {}
        for name in SWITCHES:
            if isinstance(value := plain.get(name), bool) and chance.random() < 0.5:
                found[name] = not value
        for name in WIDTHS:
            if type(value := plain.get(name)) is int and value > 64 and chance.random() < 0.5:
                found[name] = value // 2 + 64 * chance.randint(0, 8)
        heads = plain.get("num_attention_heads")
        if type(plain.get("num_key_value_heads")) is int and type(heads) is int:
            found["num_key_value_heads"] = chance.choice([n for n in (1, 2, 4, heads) if heads % n == 0])
        yield found


def page(rows: Iterable[Row], version: str) -> str:
    """The page of the documentation."""
    rows = list(rows)
    ways = Counter(row.way for row in rows)
    runnable = [row for row in rows if row.way != "no default"]
    exact = sum(row.exact for row in rows)
    known = [row.same_flops for row in rows if row.exact and row.same_flops is not None]
    lines = [
        "# Model types",
        "",
        "<!-- made by `python -m lab.model_types` -->",
        "",
        f"Every model type of Transformers {version} that generates text, read from the file that its class writes",
        "with its defaults, against the class itself on the meta device. `native`: a reader of this program; `class`:",
        "the [reader of last resort](howto/names.md#models-that-no-reader-knows), where Transformers is installed.",
        "",
        f"- {len(rows)} types, {len(runnable)} of which have defaults that make a model: {ways['native']} are read",
        f"  natively, {ways['class']} through their class, {ways['refused']} are refused.",
        f"- {exact} have the parameters of the class to the last one; of {len(known)} of these a pass shows the FLOPs",
        f"  of linear layers and experts, which are the same in {sum(known)}.",
        "",
        "Where a cache differs, the class keeps the keys of an indexer apart (DeepSeek sparse attention). Where linear",
        "FLOPs differ, the class runs every expert (Llama 4), multiplies by weights without calling their module",
        "(Jamba), has shared experts in one tensor (Inkling), or a router that is a network (Zaya). LongCat's class",
        "has weights for experts that return their input, which its checkpoints have not.",
        "",
        "| type | read | parameters | linear FLOPs | KV cache |",
        "|---|---|---|---|---|",
        *(
            f"| `{row.kind}` | {_way(row)} | {_counts(row)} | {_word(row.same_flops)} | {_word(row.same_cache)} |"
            for row in rows
        ),
        "",
    ]
    return "\n".join([*lines, *names_page()])


def names_page() -> list[str]:
    """The section on repositories that vLLM's recipes and its tables of supported models name."""
    names = NAMES.read_text(encoding="utf-8").split()
    unknown = [name for name in names if not _is_known(name)]
    return [
        "## Names",
        "",
        f"Of {len(names)} repositories that vLLM's recipes (vllm-project/recipes, 2026) and its list of supported",
        f"models name, {len(names) - len(unknown)} are known without the network; `--hub` reads those of the others",
        "that read or write text:",
        "",
        *(f"- `{name}`" for name in unknown),
        "",
    ]


def _is_known(name: str) -> bool:
    try:
        load_model(name)
    except RooflineError:
        return False
    return True


def _way(row: Row) -> str:
    escaped = row.reason.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    return f"{row.way}: {escaped}" if row.reason else row.way


def _counts(row: Row) -> str:
    if row.way not in ("native", "class"):
        return f"{row.parameters:,}" if row.parameters else ""
    return f"{row.read:,}" if row.exact else f"{row.read:,}, the class has {row.parameters:,}"


def _word(same: bool | None) -> str:
    return "" if same is None else "same" if same else "differs"


def main(kinds: list[str]) -> None:
    """Write the page, or print the rows of some types."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call, unused-ignore]
    without_scipy()
    rows = []
    for kind in kinds or known_types():
        rows.append(compare(kind))
        sys.stdout.write(f"{rows[-1]} exact={rows[-1].exact} {rows[-1].same_flops} {rows[-1].same_cache}\n")
        sys.stdout.flush()
    if not kinds:
        PAGE.write_text(page(rows, transformers.__version__), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
