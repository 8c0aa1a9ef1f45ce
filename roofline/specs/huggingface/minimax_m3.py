"""The decoder of MiniMax-M3: block-sparse attention after the first layers, experts beside a shared one."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.specs.huggingface.config import (
    Config,
    Reader,
    Spec,
    attention_section,
    base_spec,
    gated_mlp,
    layer_types,
    of_each_layer,
    spec_with_pattern,
)
from roofline.specs.huggingface.moe import moe_section, sparse_layers

LAYERS: Mapping[str, str] = {"minimax_m3_sparse": "sparse", "full_attention": "full"}


def _minimax_m3_text(config: Config) -> Spec:
    """The blocks nearest to a query are among the selected ones. An indexer's values are disabled in all layers."""
    config.reject("attention_output_gate")
    layers, sparse = config.layers(), config.section("sparse_attention_config")
    block = sparse.integer("sparse_block_size", default=config.integer("index_block_size", default=128))
    chosen = sparse.integer("sparse_topk_blocks", default=config.integer("index_topk_blocks", default=16))
    indexer = {
        "heads": sparse.integer("sparse_num_index_heads", default=config.integer("index_n_heads", default=4)),
        "head_dim": sparse.integer("sparse_index_dim", default=config.integer("index_head_dim", default=128)),
        "selected": chosen * block,
        "block": block,
    }
    shared = config.natural("n_shared_experts", default=1)
    shared *= config.integer("shared_intermediate_size", default=config.integer("intermediate_size"))
    experts = moe_section(
        config, experts=128, top_k=4, shared_width=shared, router_bias=config.flag("use_routing_bias", True)
    )
    dense = {**gated_mlp(config), "width": config.integer("dense_intermediate_size", default=12288)}
    parts: dict[str, Spec] = {
        "sparse": {"attention": {"indexer": indexer}},
        "full": {},
        "moe": {"moe": experts},
        "dense": {"mlp": dense},
    }
    listed = of_each_layer(config, config.integers("moe_layer_freq"), "moe_layer_freq", [1] * layers)
    mixers = layer_types(config, LAYERS)
    if mixers is None:
        attends = sparse.integers("sparse_attention_freq")
        given = of_each_layer(config, attends, "sparse_attention_freq", [0] * layers)
        mixers = ["sparse" if each else "full" for each in given]
    feeds = ["moe" if each else "dense" for each in sparse_layers(config, [bool(each) for each in listed])]
    base = base_spec(
        config,
        attention=attention_section(config, head_dim=128, qk_norm=config.flag("use_qk_norm", True)),
        mtp=config.natural("num_mtp_modules", "num_nextn_predict_layers"),
    )
    return spec_with_pattern(base, parts, mixers, feeds)


READERS: Mapping[str, Reader] = {"minimax_m3": _minimax_m3_text, "minimax_m3_vl_text": _minimax_m3_text}
