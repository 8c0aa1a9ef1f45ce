"""Engines' options of drafts and adapters as techniques: vLLM's JSON and SGLang's five options of speculative decoding.

SGLang counts the last verified token among `--speculative-num-draft-tokens` (sgl-project/sglang, server_args.py), so
that 3 steps with topk 4 and 16 of them verify a tree of 15 draft tokens, 3 deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json import JSONDecodeError, loads
from types import MappingProxyType
from typing import Any

from roofline.core.errors import RooflineError, UnknownNameError, quote

CONFIG, SGLANG = "--speculative-config", "--speculative-"
ALGORITHM, DRAFT, STEPS, TOPK, TOKENS = (
    f"{SGLANG}{name}" for name in ("algorithm", "draft-model-path", "num-steps", "eagle-topk", "num-draft-tokens")
)
SPELLINGS = MappingProxyType({f"{SGLANG}algo": ALGORITHM, f"{SGLANG}draft": DRAFT, "--spec-config": CONFIG})
READ = (CONFIG, ALGORITHM, DRAFT, STEPS, TOPK, TOKENS)

ALGORITHMS: Mapping[str, str] = MappingProxyType(
    {"eagle": "eagle-2", "eagle3": "eagle-3", "nextn": "multi-token-prediction", "dspark": "dspark", "dflash": "dflash"}
)
"""SGLang's algorithms; EAGLE without a draft is the checkpoint's MTP, and as a chain EAGLE."""

METHODS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("mtp", "deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp"), "multi-token-prediction"),
        "eagle": "eagle",
        "eagle3": "eagle-3",
        "dspark": "dspark",
        "dflash": "dflash",
        "ngram": "prompt-lookup",
    }
)
"""vLLM's methods."""


ADAPTERS: Mapping[str, str] = MappingProxyType(
    {
        "--adapters": "adapters",
        **dict.fromkeys(("--ranks", "--rank", "--max-lora-rank"), "rank"),
        **dict.fromkeys(("--max-loras", "--max-loras-per-batch"), "slots"),
    }
)
"""Options of adapters, ours and those of vLLM and SGLang, and the parameters of the technique."""


def as_technique(words: Iterable[str]) -> list[str]:
    """The words of a command with options of drafts and of adapters as `--with NAME:...`; raises RooflineError."""
    rest, drafts = _taken(words, {**{flag: flag for flag in READ}, **SPELLINGS})
    plain = [word for word in rest if word != "--enable-lora"]
    enabled = len(plain) < len(rest)
    rest, adapters = _taken(plain, ADAPTERS)
    if CONFIG in drafts and len(drafts) > 1:
        raise RooflineError(f"{CONFIG} is vLLM's, and the others are SGLang's: give those of one engine")
    techniques = [_of_adapters(adapters)] if adapters or enabled else []
    if drafts:
        techniques.append(_of_vllm(drafts[CONFIG]) if CONFIG in drafts else _of_sglang(drafts))
    place = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:place], *(word for each in techniques for word in ("--with", each)), *rest[place:]]


def _taken(words: Iterable[str], names: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The other words of a command, and the values of options by the name that each flag stands for."""
    rest, given, following = list[str](), dict[str, str](), iter(words)
    for word in following:
        if word == "--":
            rest += [word, *following]
            break
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag not in names:
            rest.append(word)
            continue
        name = names[flag]
        if name in given:
            raise RooflineError(f"{flag} is given twice")
        given[name] = value if equals else next(following, "")
        if not given[name] or given[name].startswith("--"):
            raise RooflineError(f"{flag} takes a value")
    return rest, given


def _of_adapters(given: Mapping[str, str]) -> str:
    ranks = [_count("rank", each) for each in given.get("rank", "16").split(",")]
    values = {"rank": round(sum(ranks) / len(ranks)), "largest": max(ranks) if len(ranks) > 1 else 0}
    counts = {name: _count(name, given[name]) for name in ("adapters", "slots") if name in given}
    values |= {"adapters": counts.get("adapters", counts.get("slots", 1)), **counts}
    return f"lora:{','.join(f'{name}={value}' for name, value in values.items() if value)}"


def _of_vllm(text: str) -> str:
    try:
        config: Any = loads(text)
    except (JSONDecodeError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise RooflineError(f"{CONFIG} takes a JSON object, got {quote(text)}")
    method, tokens = config.get("method"), config.get("num_speculative_tokens")
    if not isinstance(method, str) or method not in METHODS:
        raise UnknownNameError("speculative method", str(method), METHODS)
    chosen = [] if tokens is None else [f"length={_count('num_speculative_tokens', str(tokens))}"]
    if (accept := config.get("synthetic_acceptance_length")) is not None:
        chosen.append(f"accept={accept}")
    return ":".join([METHODS[method], ",".join(chosen)]).rstrip(":")


def _of_sglang(given: Mapping[str, str]) -> str:
    if ALGORITHM not in given:
        raise RooflineError(f"{next(iter(given))} needs {ALGORITHM}")
    if (algorithm := given[ALGORITHM].lower()) not in ALGORITHMS:
        raise UnknownNameError("speculative algorithm", given[ALGORITHM], map(str.upper, ALGORITHMS))
    name = ALGORITHMS[algorithm]
    if name == "eagle-2" and DRAFT not in given:
        name = "multi-token-prediction"
    counts = {flag: _count(flag, given[flag]) for flag in (STEPS, TOPK, TOKENS) if flag in given}
    steps, topk, tokens = counts.get(STEPS), counts.get(TOPK, 1), counts.get(TOKENS)
    if topk > 1 and name in ("eagle-2", "eagle-3"):
        if steps is None or tokens is None or tokens <= steps:
            raise RooflineError(f"a tree takes {STEPS}, and more than as many {TOKENS}")
        return f"{name}:length={steps},topk={topk},tree={tokens - 1}"
    if topk > 1:
        raise RooflineError(f"{name} drafts a chain: {TOPK} is 1")
    length = steps if steps is not None else None if tokens is None else tokens - 1
    if length is not None and tokens is not None and tokens != length + 1:
        raise RooflineError(f"a chain of {length} steps verifies {length + 1} tokens, not {tokens} ({TOKENS})")
    name = "eagle" if name == "eagle-2" else name
    return name if not length else f"{name}:length={length}"


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 10_000):
        raise RooflineError(f"{name} is a whole number from 1 to 10,000, got {quote(text)}")
    return int(text)
