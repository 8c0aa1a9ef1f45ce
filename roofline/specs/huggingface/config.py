"""Typed access to a config.json, and the spec sections that most model families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from roofline.core.documents import bundled
from roofline.core.errors import InexpressibleError, SpecError, quote, suggest
from roofline.specs.library import as_mapping

Spec: TypeAlias = dict[str, Any]
_REQUIRED: Any = object()

RMS: Spec = {"kind": "rmsnorm"}

ACTIVATIONS: Mapping[str, str] = {
    # Kimi K3's situ and swigluoai of MiniMax-M3 are SiLU, shifted and clamped
    **dict.fromkeys(("silu", "swish", "situ", "swigluoai"), "silu"),
    "relu": "relu",
    **dict.fromkeys(("relu2", "sqrelu", "xielu"), "relu2"),  # Apertus's xIELU is a parabola on one side
    **dict.fromkeys(("gelu", "gelu_pytorch_tanh", "quick_gelu"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast"), "gelu_new"),
}

NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})

SIZES = frozenset(
    {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}
    | {"d_model", "ffn_dim", "n_embd", "n_head", "n_heads", "n_layer", "n_layers"}
)
"""Keys that a model's own file must have; sections leave out those that are as in their class."""


def rows(table: str) -> Mapping[str, Any]:
    """The rows of a table of this package."""
    return bundled(f"specs/huggingface/{table}")


def class_defaults(model_type: str, section: bool = False) -> Mapping[str, Any]:
    """What the class of a `model_type` takes for missing keys, for its file or for a section; see the YAML file."""
    found: Mapping[str, Any] = rows("class_defaults.yaml").get(model_type, NO_DEFAULTS)
    return found if section else {key: value for key, value in found.items() if key not in SIZES}


WINDOWED: Mapping[str, str] = {"sliding_attention": "local", "full_attention": "global"}
"""The entries of `layer_types` in models with sliding windows."""

FORMATS: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""The formats of tensors that no scheme quantizes."""

PER_LAYER = "per_layer_config"
"""Keys that differ in single layers, by the layers' numbers (Transformers 5)."""


class Config:
    """Typed access to a config.json: the first of several key spellings, else a default, else an error.

    A missing key has the value of the class in Transformers (`defaults`), a null the reader's own default. `read`: the
    keys read so far, of all sections of the file together.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        where: str,
        read: set[str] | None = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
        called: Mapping[str, str] = NO_DEFAULTS,
    ) -> None:
        self.content = content
        self.where = where
        self.read: set[str] = set() if read is None else read
        self.defaults = defaults
        self.called = called

    def replaced(self, content: Mapping[str, Any]) -> Config:
        return Config(content, self.where, self.read, self.defaults, self.called)

    def having(self, changes: Mapping[str, Any]) -> Config:
        """The file with these keys in place of its own."""
        return self.replaced({**self.content, **changes})

    def renamed(self, **own: str) -> Config:
        """The file with the values of its `own` keys, or those of its class, under the usual names."""
        known = {**self.defaults, **self.content}
        content = {**self.content, **{to: known[key] for to, key in own.items() if key in known}}
        called = {to: key for to, key in own.items() if key in known or to not in content}
        return Config(content, self.where, self.read, self.defaults, {**self.called, **called})

    def _named(self, name: str) -> str:
        return quote(self.called.get(name, name))

    def _find(self, names: tuple[str, ...], default: Any, kinds: tuple[type, ...], expected: str) -> Any:
        self.read.update(names)
        for name in names:
            value = self.content.get(name)
            if value is None:
                continue
            if type(value) not in kinds:
                raise SpecError(self.where, f"{self._named(name)} must be {expected}, got {quote(value)}")
            return value
        if not any(name in self.content for name in names):
            default = next((self.defaults[name] for name in names if name in self.defaults), default)
        if default is _REQUIRED:
            raise SpecError(self.where, f"the key {self._named(names[0])} is missing")
        return default

    def has(self, *names: str) -> bool:
        """Whether the file has one of the keys, or leaves all out and its class has one."""
        self.read.update(names)
        found = [name for name in names if name in self.content]
        return any(self.content[name] is not None for name in found) or (
            not found and any(name in self.defaults for name in names)
        )

    def integer(self, *names: str, default: Any = _REQUIRED, least: int = 1, most: int = 10**7) -> Any:
        """An integer of `least` to `most`; a missing key is an error without a default."""
        value = self._find(names, default, (int,), "a whole number")
        if value is not None and not least <= value <= most:
            name = next((name for name in names if self.content.get(name) is not None), names[0])
            raise SpecError(self.where, f"{self._named(name)} must be between {least} and {most}, got {quote(value)}")
        return value

    def tokens(self, *names: str, default: Any = None) -> Any:
        """A length in tokens; null or a missing key is the default."""
        return self.integer(*names, default=default, most=10**9)

    def window(self, *names: str) -> int | None:
        """A window in tokens, by default `sliding_window`; null, and the 0 that Transformers 5 writes, are none."""
        return self.integer(*(names or ("sliding_window",)), default=None, least=0, most=10**9) or None

    def natural(self, *names: str, default: int = 0) -> int:
        return int(self.integer(*names, default=default, least=0))

    def layers(self, *names: str) -> int:
        return int(self.integer(*(names or ("num_hidden_layers",)), most=10**5))

    def factor(self, name: str, default: Any = _REQUIRED) -> float:
        value = float(self._find((name,), default, (int, float), "a number"))
        if not 1e-3 <= value <= 1e3:
            raise SpecError(self.where, f"{quote(name)} must be between 0.001 and 1000, got {value}")
        return value

    def integers(self, name: str) -> list[int]:
        return self._list(name, int, "a list of whole numbers")

    def each(self, name: str, count: int, places: str, default: Any = _REQUIRED) -> list[int]:
        """A number for each of so many `places`, which the file gives once for all or in a list."""
        listed = isinstance(self.content.get(name), list)
        found = self.integers(name) if listed else [self.integer(name, default=default)] * count
        if len(found) != count:
            raise SpecError(self.where, f"{quote(name)} must have one entry for each of {count} {places}")
        return found

    def same(self, name: str, default: int, problem: str = "layers that differ in it are not supported") -> int:
        """A number, which the file may give in a list that has no other."""
        listed = isinstance(self.content.get(name), list)
        found = set(self.integers(name)) if listed else {self.tokens(name, default=default)}
        if len(found) != 1:
            raise SpecError(self.where, f"{quote(name)}: {problem}")
        return int(found.pop())

    def flags(self, name: str) -> list[bool]:
        return self._list(name, bool, "a list of true and false")

    def texts(self, name: str) -> list[str]:
        return self._list(name, str, "a list of texts")

    def _list(self, name: str, kind: type, expected: str) -> list[Any]:
        given = self._find((name,), [], (list,), expected)
        if any(type(value) is not kind for value in given):
            raise SpecError(self.where, f"{quote(name)} must be {expected}")
        return list(given)

    def sections(self, name: str) -> list[Config]:
        return [Config(entry, self.where, self.read) for entry in self._list(name, dict, "a list of mappings")]

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._find((name,), default, (bool,), "true or false"))

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        return self._find((name,), default, (str,), "text")

    def activation(self, *names: str, default: str) -> str:
        """The activation function, as named in specs."""
        for name in names:
            given = self.text(name, None)
            if given is not None:
                if given not in ACTIVATIONS:
                    raise SpecError(
                        self.where, f"{quote(name)}: unsupported activation {quote(given)}{suggest(given, ACTIVATIONS)}"
                    )
                return ACTIVATIONS[given]
        return default

    def format(self, *names: str) -> str | None:
        """The format that the first of the keys names, as named in specs."""
        name = next(filter(self.has, names), None)
        if name is None:
            return None
        if (given := self.text(name)) not in FORMATS:
            raise SpecError(self.where, f"{quote(name)}: unknown format {quote(given)}{suggest(given, FORMATS)}")
        return FORMATS[given]

    def section(self, name: str) -> Config:
        self.read.add(name)
        value = self.content.get(name)
        value = as_mapping({} if value is None else value, self.where, name)
        return Config(value, self.where, self.read, self.defaults.get(name, NO_DEFAULTS) if value else NO_DEFAULTS)

    def reject(self, *names: str, reason: str = "is not supported") -> None:
        """Raise InexpressibleError for a key that enables a feature that specs cannot express."""
        self.read.update(names)
        for name in names:
            if self.content.get(name):
                model_type = self.text("model_type", None)
                owner = f" of {model_type}" if model_type else ""
                raise InexpressibleError(self.where, f"{quote(name)}{owner} {reason}")


Reader: TypeAlias = Callable[[Config], Spec]


def base_spec(config: Config, *, tied: bool = False, **parts: Any) -> Spec:
    """The top-level keys that nearly all files share, and `parts`; `tied` is the class default of tied embeddings."""
    return {
        "hidden": config.integer("hidden_size"),
        "vocabulary": config.integer("vocab_size"),
        "layers": config.integer("num_hidden_layers", most=10**5),
        "max_context": config.tokens("max_position_embeddings"),
        "tied_embeddings": config.flag("tie_word_embeddings", tied),
        "norm": RMS,
        **parts,
    }


ATTENTION_BIAS = ("attention_bias", False)
"""The usual key of the biases of all four projections, and its class default."""


def attention_section(
    config: Config, bias: tuple[str, bool] | None = None, head_dim: int | None = None, **parts: Any
) -> Spec:
    """The attention section: the sizes of the file, and `parts`.

    Without `head_dim`, that of a file that gives none, heads have hidden / heads elements; without KV heads there are
    as many as query heads. `bias`: the key of the biases of all four projections, and its default.
    """
    heads = config.integer("num_attention_heads")
    width = config.integer("head_dim", default=head_dim)
    return {
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", default=heads),
        **({"head_dim": width} if width else {}),
        **({} if bias is None else dict.fromkeys(("qkv_bias", "output_bias"), config.flag(*bias))),
        **parts,
    }


def gated_mlp(config: Config, bias: bool = False) -> Spec:
    """A gated MLP (SwiGLU, GeGLU)."""
    return {
        "width": config.integer("intermediate_size"),
        "gated": True,
        "activation": config.activation("hidden_act", "hidden_activation", default="silu"),
        "bias": bias,
    }


def plain_mlp(config: Config, width: int, bias: bool = True) -> Spec:
    """An MLP of two matrices."""
    return {
        "width": width,
        "gated": False,
        "activation": config.activation("activation_function", "hidden_act", default="gelu"),
        "bias": bias,
    }


def layer_types(config: Config, names: Mapping[str, str]) -> list[str] | None:
    """The explicit list of layer types in newer files, translated with `names`."""
    config.read.add("layer_types")
    given = config.content.get("layer_types")
    if given is None:
        return None
    layers = config.layers("num_hidden_layers", "num_layers", "n_layer")
    if (
        not isinstance(given, list)
        or len(given) != layers
        or not all(isinstance(entry, str) and entry in names for entry in given)
    ):
        raise SpecError(config.where, f"'layer_types' must name {layers} layers, each one of {', '.join(names)}")
    return [names[entry] for entry in given]


def of_each_layer(config: Config, given: list[Any], name: str, default: list[Any]) -> list[Any]:
    """A list under the key `name` with an entry for each layer, or the default where it is empty."""
    if len(given or default) != len(default):
        raise SpecError(config.where, f"'{name}' must have an entry for each of {len(default)} layers")
    return given or default


def sparse_layers(config: Config, otherwise: list[bool]) -> list[bool]:
    """Which layers have experts as `mlp_layer_types` lists them, which files of Transformers 5 do; else `otherwise`."""
    named = config.texts("mlp_layer_types")
    if named and (len(named) != len(otherwise) or not set(named) <= {"dense", "sparse"}):
        raise SpecError(config.where, f"'mlp_layer_types' must say dense or sparse of each of {len(otherwise)} layers")
    return [name == "sparse" for name in named] or otherwise


def read_layers(config: Config, reader: Reader) -> Spec:
    """The spec that a reader makes of a file, with the keys of single layers under `per_layer_config`.

    A layer is what the reader makes of the whole file with that layer's keys. Raises SpecError for keys that it does
    not read, and for those that are not a layer's.
    """
    spec, changes = reader(config), config.section(PER_LAYER)
    if not changes.content:
        return spec
    names = expanded(spec)
    blocks = {name: spec.get("blocks", {}).get(name, {}) for name in names}
    for key in changes.content:
        layer = int(key) if key.isdecimal() and len(key) < 7 else len(names)
        given = changes.section(key).content
        unread = [name for name in given if name not in config.read or name == "num_hidden_layers"]
        if layer >= len(names) or unread:
            raise SpecError(config.where, f"'{PER_LAYER}': {quote(unread[0] if unread else key)} is not read")
        other = reader(config.having(given))
        changed = {part: value for part, value in other.items() if value != spec.get(part) and part != "blocks"}
        if expanded(other) != expanded(spec) or not all(isinstance(value, dict) for value in changed.values()):
            raise SpecError(config.where, f"'{PER_LAYER}': layer {key} differs in more than its own parts")
        block = _merged(changed, other.get("blocks", {}).get(names[layer], {}))
        name = next((name for name, known in blocks.items() if known == block), f"{names[layer]}_{key}")
        blocks[name] = block
        names[layer] = name
    used = {name: blocks[name] for name in dict.fromkeys(names)}
    return {**spec, "layers": {"count": len(names), "pattern": names}, "blocks": used}


def expanded(spec: Spec) -> list[str]:
    """The block of every layer of a spec."""
    if isinstance(spec["layers"], int):
        return ["layer"] * spec["layers"]
    period: list[str] = []
    for entry in spec["layers"]["pattern"]:
        times, _, name = entry.rpartition(" x ")
        period += [name] * (int(times) if times else 1)
    count: int = spec["layers"]["count"]
    return (period * -(-count // len(period)))[:count]


def spec_with_pattern(base: Spec, parts: Mapping[str, Spec], *axes: Sequence[str]) -> Spec:
    """A spec whose layers differ along `axes` (mixer, feed-forward block), each a list of the kind of every layer.

    `parts` has the sections of each kind. Kinds that all layers share go to the top level, the others into blocks.
    """
    varied = [axis for axis in axes if len(set(axis)) > 1]
    spec = _merged(base, *(parts[axis[0]] for axis in axes if axis not in varied))
    if not varied:
        return {**spec, "layers": len(axes[0])}
    layers = list(zip(*varied, strict=True))
    blocks = {"_".join(kinds): _merged(*(parts[kind] for kind in kinds)) for kinds in dict.fromkeys(layers)}
    pattern = ["_".join(kinds) for kinds in layers]
    return {**spec, "layers": {"count": len(pattern), "pattern": pattern}, "blocks": blocks}


def _merged(*specs: Spec) -> Spec:
    merged: Spec = {}
    for spec in specs:
        for key, value in spec.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **value} if both else value
    return merged
