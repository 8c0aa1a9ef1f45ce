"""Gemma 3n and the small Gemma 4 models: embeddings for each layer, and layers that read the keys of others."""

from __future__ import annotations

from roofline.specs.huggingface.config import WINDOWED, Config, Spec, base_spec, layer_types, spec_with_pattern


class _Shape:
    """What the layers of a file share: its sizes, the kind of each layer, and which layers read others' keys."""

    def __init__(self, config: Config, vocabulary: int) -> None:
        config.reject("attention_bias")
        self.hidden = config.integer("hidden_size")
        self.layers = config.layers()
        self.width = config.integer("hidden_size_per_layer_input", default=256)
        self.rows = config.integer("vocab_size_per_layer_input", default=vocabulary)
        self.heads = config.integer("num_attention_heads")
        self.kv_heads = config.integer("num_key_value_heads", default=self.heads)
        self.window = config.window()
        self.activation = config.activation("hidden_activation", default="gelu")
        self.kinds = layer_types(config, WINDOWED) or [
            "global" if (index + 1) % 5 == 0 else "local" for index in range(self.layers)
        ]
        first = self.layers - config.natural("num_kv_shared_layers")
        self.reads = ["reads" if index >= first > 0 else "keeps" for index in range(self.layers)]

    def modules(self, kind: str, head_dim: int, reads: bool, mlp: int, further: list[Spec], norms: int) -> Spec:
        """One layer: attention, an MLP, the `further` linear layers and so many further norms of the hidden size."""
        keys = self.kv_heads * head_dim
        projected = [("q_proj", self.heads * head_dim), *([] if reads else [("k_proj", keys), ("v_proj", keys)])]
        linears = [_linear(f"self_attn.{name}", self.hidden, width) for name, width in projected]
        linears += [
            _linear("self_attn.o_proj", self.heads * head_dim, self.hidden),
            _linear("mlp.gate_proj", self.hidden, mlp),
            _linear("mlp.up_proj", self.hidden, mlp),
            _linear("mlp.down_proj", mlp, self.hidden),
            *further,
            _linear("per_layer_input_gate", self.hidden, self.width),
            _linear("per_layer_projection", self.width, self.hidden),
        ]
        attention = {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": head_dim,
            **({"window": self.window} if kind == "local" and self.window else {}),
            **({"kv_shared": True} if reads else {}),
        }
        heads = [
            {"width": head_dim, "rows": self.heads},
            *([] if reads else [{"width": head_dim, "rows": self.kv_heads}]),
        ]
        return {
            "linears": linears,
            "norms": [*heads, *({"width": self.hidden} for _ in range(norms))],
            "attention": attention,
            "before": len(projected),
            "tables": [{"rows": self.rows, "width": self.width}],
        }

    def pattern(self, base: Spec, names: list[str], layers: list[Spec], streams: int = 1) -> Spec:
        """The spec of layers by name; the first one also projects the inputs of all layers, and of further streams."""
        joined = [_linear("model.per_layer_model_projection", self.hidden, self.layers * self.width)]
        joined += [_linear("model.altup_projections", self.hidden, self.hidden)] * (2 * (streams - 1))
        normed = {"width": self.width, "rows": self.layers}
        first = {**layers[0], "linears": [*layers[0]["linears"], *joined], "norms": [*layers[0]["norms"], normed]}
        parts = {
            name: {"modules": made} for name, made in zip(["first", *names[1:]], [first, *layers[1:]], strict=True)
        }
        return spec_with_pattern(base, parts, ["first", *names[1:]])


def _linear(name: str, inputs: int, outputs: int) -> Spec:
    return {"name": name, "inputs": inputs, "outputs": outputs}


def gemma3n_text(config: Config) -> Spec:
    """AltUp keeps several streams, of which a layer computes one; LAuReL is a low-rank path around attention."""
    shape = _Shape(config, 262144)
    head_dim, streams = config.integer("head_dim", default=256), config.integer("altup_num_inputs", default=4)
    rank = config.integer("laurel_rank", default=64)
    widths = config.each("intermediate_size", shape.layers, "layers")
    further = [
        _linear("altup.correction_coefs", streams, streams),
        _linear("altup.prediction_coefs", streams, streams * streams),
        _linear("altup.modality_router", shape.hidden, streams),
        _linear("laurel.linear_left", shape.hidden, rank),
        _linear("laurel.linear_right", rank, shape.hidden),
    ]
    kinds = list(zip(shape.kinds, shape.reads, widths, strict=True))
    layers = [
        # `weights`: the scale of AltUp's output
        shape.modules(kind, head_dim, reads == "reads", width, further, norms=6) | {"weights": shape.hidden}
        for kind, reads, width in kinds
    ]
    names = [f"{kind}_{reads}_{width}" for kind, reads, width in kinds]
    return shape.pattern(base_spec(config, tied=True), names, layers, streams)


def gemma4_per_layer(config: Config) -> Spec:
    """Gemma 4 E2B and E4B: heads of layers without a window are wider; layers that read keys may have wider MLPs."""
    shape = _Shape(config, config.integer("vocab_size"))
    wide = 2 if config.flag("use_double_wide_mlp", False) else 1
    config.reject("attention_k_eq_v", "enable_moe_block")
    mlp = config.integer("intermediate_size")
    sizes = {"local": config.integer("head_dim", default=256), "global": config.integer("global_head_dim", default=512)}
    shape.kinds[-1] = "global"
    widths = {"keeps": mlp, "reads": mlp * wide}
    kinds = list(zip(shape.kinds, shape.reads, strict=True))
    layers = [shape.modules(kind, sizes[kind], reads == "reads", widths[reads], [], norms=4) for kind, reads in kinds]
    return shape.pattern(base_spec(config, tied=True), [f"{kind}_{reads}" for kind, reads in kinds], layers)
