"""Configs of tiny models of every class of transformers: each family has its own names for the same few sizes."""

import copy
from pathlib import Path
from typing import Any

from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.image_processor import ImageInput
from algorun_train.models.token_input import TokenInput

MOST = 3_000_000  # weights: a class with more needs a row in OWN
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
SIZES: dict[int | None, str] = {  # size: keys that get it
    64: "vocab_size decoder_vocab_size output_vocab_size max_position_embeddings n_positions max_seq_len n_ctx max_sequence_length",
    32: "hidden_size d_model n_embd dim emb_dim embedding_size embedding_dim word_embed_proj_dim d_embed "
    "lru_width d_inner",
    48: "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim dim_ff dff ffn_hidden_size "
    "dense_intermediate_size feed_forward_size mlp_intermediate_size intermediate_size_mlp",
    16: "shared_intermediate_size moe_intermediate_size shared_expert_intermediate_size "
    "moe_shared_expert_intermediate_size expert_ffn_hidden_size mamba_d_head mamba_head_dim image_size "
    "num_image_tokens",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers num_blocks num_decoder_layers "
    "num_key_value_heads num_experts_per_tok moe_topk moe_k top_k_experts type_vocab_size mamba_expand "
    "index_n_heads linear_num_key_heads",
    1: "encoder_layers num_encoder_layers n_group topk_group num_expert_group first_k_dense_replace "
    "num_dense_layers eos_token_id max_window_layers",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads num_experts num_local_experts n_routed_experts "
    "moe_num_experts qk_rope_head_dim qk_nope_head_dim mamba_n_heads mamba_num_heads index_topk "
    "linear_num_value_heads patch_size",
    8: "head_dim global_head_dim dim_head attention_head_size d_kv q_lora_rank kv_lora_rank qk_head_dim "
    "v_head_dim o_lora_rank mamba_d_state mamba_chunk_size chunk_size state_size ssm_state_size rotary_dim "
    "sliding_window index_head_dim linear_key_head_dim linear_value_head_dim block_size",
    0: "bos_token_id decoder_start_token_id",
    None: "pad_token_id",
}
NAMED = {key: size for size, keys in SIZES.items() for key in keys.split()}
PADDED = {"pad_token_id": 0}
ALL_HEADS = {"num_key_value_heads": 4}
OWN: dict[str, dict[str, Any]] = {  # what a family needs besides
    "camembert": PADDED,
    "data2vec-text": PADDED,
    "emu3": PADDED,
    "modernbert-decoder": PADDED,
    "roberta": PADDED,
    "roberta-prelayernorm": PADDED,
    "xlm-roberta": PADDED,
    "xlm-roberta-xl": PADDED,
    "prophetnet": PADDED,
    "xlm": PADDED,
    "xmod": {"pad_token_id": 0, "default_language": "en_XX"},
    "axk1": ALL_HEADS,
    "axk2": ALL_HEADS,
    "deepseek_v3": ALL_HEADS,
    "deepseek_v32": ALL_HEADS,
    "glm_moe_dsa": ALL_HEADS,
    "youtu": ALL_HEADS,
    "longcat_flash": ALL_HEADS,
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "blt": {"encoder_hash_byte_group_vocab": 50, "vocab_size": 260},
    "bailing_hybrid": {
        "topk_group": 1,
        "num_experts_per_token": 2,
        "num_key_value_heads": 4,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1, "num_hidden_layers": 4},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "xlnet": {"d_head": 8},
    "roc_bert": {
        "pronunciation_embed_dim": 16,
        "shape_embed_dim": 16,
        "pronunciation_vocab_size": 64,
        "shape_vocab_size": 64,
    },
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "zaya": {"num_experts_per_tok": 1},
    "dbrx": {"rope_theta": 10000.0},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "lfm2_moe": {"num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    "kimi_linear": {"linear_head_dim": 8, "linear_num_heads": 4, "linear_attn_config": None},
    "inkling2_text": {"unpadded_vocab_size": 64},
    "inkling2_loop_text": {"unpadded_vocab_size": 64},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "gemma3n": {
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "gemma4_text": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8},
    "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention"], "num_hidden_layers": 2, "n_groups": 1},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "mamba_dt_rank": 2,
        "num_key_value_heads": 4,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "hybrid_layer_ids": [1],
        "num_key_value_heads": 4,
    },
}
INNER = ("rope", "id2label", "label2id")  # inner values that are no config


def tiny_config(kind: str, **changes: object) -> Any:
    """The config of a model type with tiny sizes; `changes` are keys with other values."""
    from transformers import CONFIG_MAPPING

    values = CONFIG_MAPPING[kind]().to_dict()
    for key in ("architectures", "transformers_version"):
        values.pop(key, None)
    own = OWN.get(kind, {}) | changes
    return CONFIG_MAPPING[kind].from_dict(_small(values, own) | own)


def _small(values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    depth = next((values[key] for key in DEPTH if type(values.get(key)) is int), None)
    small = {}
    for key, value in values.items():
        if key in own:
            value = own[key]
        elif key == "per_layer_config" and isinstance(value, dict):
            value = {layer: each for layer, each in value.items() if int(layer) < 2}
        elif isinstance(value, dict) and not any(word in key for word in INNER):
            value = _small(value, own)
        elif isinstance(value, list) and len(value) == depth:
            value = [NAMED[key] if key in NAMED and type(each) is int else each for each in value[:2]]
        elif key in NAMED and (type(value) is int or key.endswith("_token_id")):
            value = NAMED[key]
        small[key] = value
    return small


def tiny_model(kind: str, architecture: str, **changes: object) -> Any:
    """A model with random weights, in eval mode. Raises whatever transformers raises for a config of nonsense."""
    import torch
    import transformers

    config = tiny_config(kind, **changes)
    built = getattr(transformers, architecture)
    with torch.device("meta"):
        weights = sum(parameter.numel() for parameter in built(copy.deepcopy(config)).parameters())
    if weights > MOST:
        raise ValueError(f"{weights} weights")
    torch.manual_seed(1)
    return built(config).eval()


def write_tiny(folder: Path, model: Any, images: ImageInput | None = None) -> ModelFolder:
    """Saves a model; returns its folder as `read_folder` would read it with a tokenizer, or an image processor, beside it."""
    model.save_pretrained(folder)
    config = type(model.config).get_config_dict(folder)[0]
    tokens = None if images else TokenInput(None)
    return ModelFolder(str(folder), "option --model", type(model).__name__, config, "model.safetensors", images, tokens)
