"""Writes configs.jsonl for tests/formats/test_hf_configs.c: what transformers makes of edited config.json files.

    python tests/golden/configs.py [FOLDER ...]

With folders, only their lines are made anew. Needs torch and transformers 5. The models are those of make.py: each FOLDER/config.json is edited field by field and loaded with the same weights. The
first line is the version of transformers. Then comes, for each class, one line with FOLDER as its "model", the numbers of the folder as it is, and the
fields: those that its configuration class declares, with their defaults, and those that configuration and model read while a model is loaded and trained; and
one line for each edit:

    {"set": {FIELD: VALUE}, "delete": [FIELD], "scale": {PART: FACTOR}, "verdict": V}

With "scale", parameters with PART in their names are multiplied with FACTOR after loading.

V is "same" where logits and gradients are those of the folder as it is; "refused" where loading or running fails, or the weights do not fit; else the
numbers: the loss over FOLDER's tokens, with the router's loss where it counts; the norm of all gradients; the norm of the gradient of the embedding's row of
the first token; and the logits at SPOTS.
"""
import contextlib
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = ("zaya", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "mpt", "gpt2", "olmo2", "olmoe", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "smollm3", "phi3", "granite", "granitemoe", "glm4_moe", "minimax_m2", "glm4_moe_lite", "ministral3", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
SPOTS = [(47, 3), (47, 40), (40, 11), (33, 60), (29, 7), (23, 22), (23, 55), (17, 31), (9, 1), (5, 18)]  # (row, token)
PADDING = object()  # stands for the first of a folder's tokens
TYPED = ("hidden_act", "hidden_activation", "activation_function", "norm_type", "attn_type")

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
# Of a later field in the same object, one value each; `...` deletes a field.
ROPES = [
    LINEAR, LLAMA3, YARN, DYNAMIC, LINEAR | {"factor": 1.0}, LINEAR | {"factor": 0.5}, LINEAR | {"factor": ...}, LINEAR | {"rope_theta": ...},
    LINEAR | {"type": "linear", "rope_type": ...}, LINEAR | {"rope_type": "su"}, LINEAR | {"rope_type": "longrope"}, LINEAR | {"mscale": 2.0},
    LINEAR | {"partial_rotary_factor": 0.5}, LLAMA3 | {"original_max_position_embeddings": ...}, LLAMA3 | {"low_freq_factor": ...},
    LLAMA3 | {"high_freq_factor": 2.0}, LLAMA3 | {"factor": 1.0}, YARN | {"original_max_position_embeddings": ...}, YARN | {"factor": ...},
    YARN | {"factor": None}, YARN | {"factor": 1.0}, YARN | {"attention_factor": 0.7}, YARN | {"attention_factor": 1.0}, YARN | {"attention_factor": None},
    YARN | {"beta_fast": 4.0}, YARN | {"beta_slow": 0.25}, YARN | {"beta_fast": 2, "beta_slow": 0.5}, YARN | {"truncate": False},
    YARN | {"truncate": False, "beta_fast": 6}, YARN | {"beta_fast": None, "beta_slow": None}, YARN | {"mscale": 2.0}, YARN | {"mscale": 2.0, "mscale_all_dim": 1.0},
    YARN | {"mscale": 0.5, "mscale_all_dim": 0.9}, YARN | {"mscale_all_dim": 1.0}, YARN | {"original_max_position_embeddings": 4}, YARN | {"rope_theta": 300.0},
    YARN | {"original_max_position_embeddings": 1000}, YARN | {"factor": 40.0}, YARN | {"partial_rotary_factor": 1.0}, YARN | {"type": "linear"},
    {"rope_type": "default", "rope_theta": 77.0}, {"rope_type": "default"}, {"rope_theta": 77.0}, {"rope_type": "default", "partial_rotary_factor": 0.5}, {},
    {"rope_type": "default", "rope_theta": None}, {"rope_type": None}, {"rope_type": "default", "factor": 9.0}, {"rope_type": "proportional", "factor": 2.0},
    {"full_attention": {"rope_type": "default", "rope_theta": 99.0}}, {"full_attention": {"rope_theta": 99.0}, "rope_type": "default"}, {"unheard_of": 3},
]
SHORT = {"max_position_embeddings": 12}  # so that dynamic scaling begins inside of the sequence


def longrope_edits():
    """Heads of 8 channels have 4 pairs, heads of 12 have 6; sequences have 48 tokens."""
    for pairs in (4, 6):
        rope = LONGROPE | {"short_factor": [1 + 0.25 * i for i in range(pairs)], "long_factor": [1 + 1.5 * i for i in range(pairs)]}
        for more in ({}, {"original_max_position_embeddings": 47}, {"original_max_position_embeddings": 48}, {"original_max_position_embeddings": ...},
                     {"original_max_position_embeddings": ..., "factor": ...}, {"factor": ...}, {"factor": None}, {"factor": 1.0}, {"factor": 0.5},
                     {"attention_factor": 0.7}, {"attention_factor": None}, {"attention_factor": -1.0}, {"long_factor": ...}, {"short_factor": [2]},
                     {"long_factor": [2] * 129}, {"long_factor": "x"}, {"long_factor": [1, 2, 3, None]}, {"rope_type": ..., "type": "longrope"}):
            yield {"rope_parameters": {key: value for key, value in (rope | more).items() if value is not ...}}
        yield {"rope_parameters": ..., "rope_scaling": rope, "original_max_position_embeddings": 8}


def rope_edits():
    for rope in ROPES:
        rope = {key: value for key, value in rope.items() if value is not ...}
        yield {"rope_parameters": rope, "rope_scaling": ...}
    for rope in (LINEAR, YARN, DYNAMIC, LLAMA3, {"type": "linear", "factor": 3.0}, {}, False, None, [], "linear"):
        yield {"rope_parameters": ..., "rope_scaling": rope, "rope_theta": 700.0}
        yield {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "rope_scaling": rope}
    for rope in (DYNAMIC, DYNAMIC | {"factor": 4.0}, DYNAMIC | {"factor": 1.0}, DYNAMIC | {"rope_theta": 500.0}):
        yield SHORT | {"rope_parameters": rope}
    yield {"rope_parameters": LLAMA3, "original_max_position_embeddings": 8}
    yield {"rope_parameters": YARN, "original_max_position_embeddings": 8}
    yield {"rope_parameters": LINEAR, "original_max_position_embeddings": 8}
    yield {"rope_parameters": DYNAMIC, "original_max_position_embeddings": 8}
    yield {"rope_parameters": YARN, "original_max_position_embeddings": None}
    yield {"rope_parameters": ..., "rope_theta": 321.0}
    yield {"rope_parameters": ..., "rope_theta": None}
    yield {"rope_parameters": {"rope_type": "default"}, "rope_theta": 321.0}
    yield {"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}, "rope_theta": 321.0}
    yield {"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}, "partial_rotary_factor": 0.5}
    yield {"rope_parameters": ..., "partial_rotary_factor": 0.5}
    yield {"rope_parameters": LINEAR, "partial_rotary_factor": 0.5}
    yield from longrope_edits()


def window_edits():
    full, sliding = ["full_attention"] * 2, ["sliding_attention"] * 2
    for layers in (full, sliding, full[:1] + sliding[:1], full[:1], ["chunked_attention"] * 2, ["linear_attention"] * 2, None):
        for window in ({}, {"sliding_window": 5}, {"sliding_window": None}, {"use_sliding_window": True, "sliding_window": 5},
                       {"use_sliding_window": True}, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}):
            yield {"layer_types": layers} | window
    for first in (0, 1, 2, 3, -1):
        yield {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": first, "layer_types": ...}
    yield {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0, "layer_types": ...}


def zaya_edits():
    hybrid, sliding = ["hybrid"] * 2, ["hybrid_sliding"] * 2
    own = {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.5}
    for layers in (hybrid, sliding, hybrid[:1] + sliding[:1], hybrid[:1], ["full_attention"] * 2, None, ...):
        for more in ({}, {"sliding_window": 5}, {"rope_parameters": ...}, {"sliding_window": 5, "rope_parameters": ...}, {"rope_parameters": None},
                     {"sliding_window": 5, "rope_parameters": {"hybrid": own, "hybrid_sliding": own | {"rope_theta": 20.0}}}):
            yield {"layer_types": layers} | more
    for rope in ([own, own | {"partial_rotary_factor": ...}, own | {"rope_theta": ...}, own | {"rope_type": ...}, own | {"partial_rotary_factor": 1.0}]
                 + [own | r for r in (LINEAR, LLAMA3, YARN, DYNAMIC, YARN | {"attention_factor": 1.0}, YARN | {"attention_factor": 1.0, "truncate": False})]):
        rope = {key: value for key, value in rope.items() if value is not ...}
        yield {"rope_parameters": {"hybrid": rope}}
        yield {"rope_parameters": {"hybrid": rope, "rope_type": "default"}}
        yield {"rope_parameters": rope}
        yield {"rope_parameters": {"hybrid": rope}} | SHORT
    yield {"rope_parameters": {"hybrid": own}, "rope_theta": 5.0}
    yield {"rope_parameters": {"hybrid": own}, "partial_rotary_factor": 1.0}
    yield {"rope_parameters": {"hybrid": own}, "rope_scaling": LINEAR}
    yield {"rope_parameters": {"hybrid": own}, "rope_scaling": {"hybrid": own | LINEAR}}
    yield {"rope_parameters": {"hybrid": own}, "rope_scaling": None}


def moe_edits():
    for k in (1, 2, 3):
        for weight in (0.02, 0.5, 0.0, -0.1, ...):
            yield {"num_experts_per_tok": k, "output_router_logits": True, "router_aux_loss_coef": weight}
    yield {"output_router_logits": False, "router_aux_loss_coef": 0.5}
    yield {"num_experts": 3}
    yield {"num_experts": 2, "num_local_experts": 3}
    yield {"num_experts": 3, "num_local_experts": 2}
    yield {"num_experts": 3, "num_local_experts": ...}


def qwen3_moe_edits():
    for k in (1, 2, 3):
        for norm in (True, False, ...):
            yield {"num_experts_per_tok": k, "norm_topk_prob": norm, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    for weight in (0.02, 0.0, -0.1, ...):
        yield {"output_router_logits": True, "router_aux_loss_coef": weight}
    for step in (1, 2, 3, 0, -1, -2, ...):
        for layers in ([], [0], [1], [0, 1], [0, 0, 7, -1], [-1], [0.0], [True], "0", 0, None, ...):
            yield {"decoder_sparse_step": step, "mlp_only_layers": layers}
    for window in (5, None, 0, ...):
        for use in (True, False, 1, ...):
            for types in (["full_attention"] * 2, ["sliding_attention"] * 2, None):
                yield {"sliding_window": window, "use_sliding_window": use, "layer_types": types}
    yield {"num_local_experts": 3, "num_experts": 4}
    yield {"num_local_experts": 4, "num_experts": 3}
    yield {"num_local_experts": 4, "num_experts": ...}
    yield {"num_local_experts": ..., "num_experts": 4}
    yield {"num_local_experts": 3, "num_experts": ...}
    yield {"intermediate_size": 48, "mlp_only_layers": []}
    yield {"attention_bias": True}


def olmoe_edits():
    for k in (1, 2, 3):
        for norm in (True, False, ...):
            yield {"num_experts_per_tok": k, "norm_topk_prob": norm, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    for weight in (0.02, 0.0, -0.1, ...):
        yield {"output_router_logits": True, "router_aux_loss_coef": weight}
    for bound in (0.5, 1, 100.0, 0.0, -1.0, None, ...):
        yield {"clip_qkv": bound}
    for size in (8, 12, None, ...):
        yield {"head_dim": size}
    for window in (5, None):
        yield {"sliding_window": window}
    yield {"num_local_experts": 3, "num_experts": 4}
    yield {"num_local_experts": 4, "num_experts": 3}
    yield {"num_local_experts": 4, "num_experts": ...}
    yield {"attention_bias": True}


def olmo3_edits():
    base = {"rope_type": "default", "rope_theta": 900.0}
    factors = {"short_factor": [1.0, 1.25, 1.5, 1.75], "long_factor": [1.0, 2.5, 4.0, 5.5]}
    for rope in (base, {"rope_type": "default"}, {"rope_theta": 900.0}, {}, None, ..., 3, base | {"rope_theta": None}, LINEAR, LLAMA3, DYNAMIC, YARN,
                 YARN | {"truncate": False}, YARN | {"attention_factor": 0.7}, YARN | {"factor": 1.0}, YARN | {"mscale": 2.0, "mscale_all_dim": 1.0},
                 {key: value for key, value in YARN.items() if key != "original_max_position_embeddings"}, LONGROPE | factors, LINEAR | {"rope_type": "other"}):
        for types in ({"full_attention": rope, "sliding_attention": base}, {"full_attention": base, "sliding_attention": rope},
                      {"full_attention": rope, "sliding_attention": rope}):
            yield {"rope_parameters": {key: value for key, value in types.items() if value is not ...}}
        if rope is not ...:
            yield {"rope_parameters": rope}
            yield {"rope_scaling": rope}
            yield {"rope_parameters": ..., "rope_scaling": rope, "rope_theta": 700.0}
    nested = {"full_attention": YARN, "sliding_attention": base}
    yield {"rope_parameters": nested, "original_max_position_embeddings": 8}
    yield {"rope_parameters": nested, "partial_rotary_factor": 0.5}
    yield {"rope_parameters": nested, "rope_theta": 700.0}
    yield {"rope_parameters": nested | {"rope_type": "default"}}
    yield SHORT | {"rope_parameters": {"full_attention": DYNAMIC, "sliding_attention": base}}
    for theta in (700.0, None, "1"):
        yield {"rope_parameters": ..., "rope_theta": theta}
    full, sliding = "full_attention", "sliding_attention"
    for types in ([full] * 4, [sliding] * 4, [full, sliding] * 2, [sliding, full] * 2, [sliding, full, full, full], [full, sliding, sliding, sliding],
                  [full, sliding, sliding, full], [sliding, full, full, sliding], [sliding] * 2 + [full] * 2, [full], ["chunked_attention"] * 4,
                  [sliding] * 3 + [None], "full_attention", None, ...):
        for window in ({}, {"sliding_window": 5}, {"sliding_window": None}, {"sliding_window": ...}):
            yield {"layer_types": types} | window


def gpt_oss_edits():
    for k in (1, 2, 3, 4):
        yield {"num_experts_per_tok": k, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    for weight in (0.02, 0.0, -0.1, ...):
        yield {"output_router_logits": True, "router_aux_loss_coef": weight}
    yield {"num_local_experts": 4, "num_experts": 3}
    yield {"num_local_experts": 3, "num_experts": 4}
    yield {"num_local_experts": ..., "num_experts": 3}
    for name in ("swiglu_limit", "swiglu_alpha"):
        for value in (0.3, 1, 100.0, 0, -0.5, 1e-9, None):
            yield {name: value}
    full, sliding = "full_attention", "sliding_attention"
    for types in ([full] * 2, [sliding] * 2, [sliding, full], [full, sliding], [full], ["chunked_attention"] * 2, [sliding, None], full, None, ...):
        for window in ({}, {"sliding_window": 3}, {"sliding_window": None}, {"sliding_window": ...}):
            yield {"layer_types": types} | window
    for rope in (None, {}, ...):
        for theta in (700.0, None, ...):
            yield {"rope_parameters": rope, "rope_theta": theta}
    yield {"experts_per_token": 3, "initial_context_length": 7}
    for method in ("mxfp4", "other", None):
        yield {"quantization_config": {"quant_method": method} if method else None}


def deepseek_edits(family):
    for groups in (1, 2, 3, 4, 6, 8, 0, None, ...):
        for chosen in (1, 2, 3, 5, None, ...):
            for method in (("greedy", "group_limited_greedy") if family == "deepseek_v2" else ("noaux_tc",)):
                yield {"n_group": groups, "topk_group": chosen, "topk_method": method}
    for k in (1, 2, 3, 4, 5, 8, 9, None, ...):
        for norm in (True, False, ...):
            yield {"num_experts_per_tok": k, "norm_topk_prob": norm}
    for dense in (0, 1, 2, 5, -1, None, ...):
        yield {"first_k_dense_replace": dense}
    for method in ("greedy", "group_limited_greedy", "noaux_tc", "", None, ...):
        yield {"topk_method": method}
    for scaling in (YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, YARN | {"mscale_all_dim": 1.0, "factor": None}, LINEAR | {"mscale_all_dim": 1.0},
                    LLAMA3 | {"mscale_all_dim": 0.5}, YARN | {"mscale_all_dim": -1.0}, YARN | {"mscale_all_dim": 1.0, "factor": 1.0},
                    {"rope_type": "default", "rope_theta": 1e4, "mscale_all_dim": 1.0, "factor": 4.0}, YARN | {"mscale_all_dim": "1"}):
        yield {"rope_parameters": scaling}
    for size in (8, 16, 4, None, ...):
        yield {"head_dim": size}
        yield {"qk_head_dim": size}
    for name in ("num_experts", "num_local_experts"):
        yield {name: 3}
        yield {name: 8, "n_routed_experts": 3}
        yield {name: 6, "n_routed_experts": ...}
    for edit in ({"attention_bias": True}, {"mlp_bias": True}, {"rope_interleave": False}, {"scoring_func": "sigmoid"}, {"scoring_func": "softmax"},
                 {"moe_layer_freq": 2}, {"moe_layer_freq": 1}, {"num_nextn_predict_layers": 1}, {"num_mtp_layers": 2}, {"output_router_logits": True},
                 {"q_lora_rank": 12}, {"q_lora_rank": None}, {"num_key_value_heads": 2}, {"num_key_value_heads": None}, {"n_shared_experts": 0}):
        yield edit


def gemma_edits():
    for name in ("hidden_activation", "hidden_act"):
        for act in ("silu", "gelu_pytorch_tanh", "gelu", "relu", None):
            yield {name: act}
    for scalar in (12, 20, 256, 0.25, 0, -1, None, "1", ...):
        yield {"query_pre_attn_scalar": scalar}
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        for cap in (30.0, 0.5, 3, 0.0, -2.0, None, "1", ...):
            yield {name: cap}
    for both in (True, False, None, ...):
        yield {"use_bidirectional_attention": both}


def gemma2_edits():
    yield from gemma_edits()
    yield from rope_edits()
    full, sliding = "full_attention", "sliding_attention"
    for types in ([full] * 3, [sliding] * 3, [full, sliding, full], [sliding, full, full], [full] * 2, ["chunked_attention"] * 3, full, None, ...):
        for window in ({}, {"sliding_window": 5}, {"sliding_window": None}, {"sliding_window": ...}):
            yield {"layer_types": types} | window
    yield {"num_attention_heads": 3, "num_key_value_heads": 1}


def gemma3_edits():
    yield from gemma_edits()
    yield from olmo3_edits()
    for theta in (300.0, None, "1"):
        yield {"rope_local_base_freq": theta}
        yield {"rope_parameters": ..., "rope_local_base_freq": theta, "rope_theta": 5000.0}
    for pattern in (1, 2, 4, 6, 0, None, 1.5):
        yield {"sliding_window_pattern": pattern, "layer_types": ...}


def smollm3_edits():
    for interval in (1, 2, 3, 4, 0, -2, None, 1.5, ...):
        yield {"no_rope_layer_interval": interval, "no_rope_layers": ..., "layer_types": ...}
    for layers in ([1, 1, 1], [0, 0, 0], [1, 1, 0], [1, 0, 1, 0], [0, 1, 0], [1, 0], [1, 2, 0], [1, 0, -1], [True, False, True], [1.0, 0, 1], None, "1"):
        yield {"no_rope_layers": layers, "layer_types": ...}
        yield {"no_rope_layers": layers}
    full, sliding = "full_attention", "sliding_attention"
    for types in ([full] * 3, [sliding] * 3, [full, sliding, full], [sliding, full, full], [sliding, full, sliding], [full] * 2, ["chunked_attention"] * 3, full, None, ...):
        for window in ({}, {"sliding_window": 5}, {"sliding_window": None}, {"use_sliding_window": False}, {"use_sliding_window": ...}):
            yield {"layer_types": types} | window
    yield {"attention_bias": False}
    yield {"head_dim": 8}
    yield {"num_attention_heads": 3, "num_key_value_heads": 1}


def phi3_edits():
    factors = {"short_factor": [1.0, 1.25, 1.5], "long_factor": [1.0, 3.0, 12.0]}
    part = {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 16} | factors
    for more in ({}, {"rope_type": "su"}, {"rope_type": "yarn"}, {"rope_type": "linear"}, {"rope_type": "llama3"}, {"rope_type": "dynamic"}, {"factor": 3.0},
                 {"attention_factor": 0.7}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}, {"partial_rotary_factor": 0.3},
                 {"partial_rotary_factor": ...}, {"short_factor": [1.0]}, {"rope_theta": 300.0}, {"original_max_position_embeddings": 8}):
        rope = {key: value for key, value in (LONGROPE | part | more).items() if value is not ...}
        for original in (16, 47, 48, 4096, ...):
            yield {"rope_parameters": rope, "original_max_position_embeddings": original}
        yield {"rope_parameters": ..., "rope_scaling": rope, "rope_theta": 500.0, "partial_rotary_factor": 0.75}
        old = {key: value for key, value in rope.items() if key != "partial_rotary_factor"}
        yield {"rope_parameters": ..., "rope_scaling": {"type": old.pop("rope_type")} | old, "rope_theta": 500.0, "partial_rotary_factor": 0.75}
    for fraction in (0.5, 0.25, 1.0, None, ...):
        yield {"rope_parameters": ..., "partial_rotary_factor": fraction}
        yield {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "partial_rotary_factor": fraction}
    for window in (5, None, ...):
        yield {"sliding_window": window}


def granite_edits():
    for name in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"):
        for value in (2, 0.25, 0.0, -1.0, True, "1", None, ...):
            yield {name: value}
    for bias in ("attention_bias", "mlp_bias"):
        yield {bias: True}
    for size in (8, 16, ...):
        yield {"head_dim": size}


def granitemoe_edits():
    yield from granite_edits()
    yield from moe_edits()


def rotary_edits():
    for fraction in (0.25, 0.5, 0.75, 1.0, 0.3, 0.0, None, "1", ...):
        yield {"rope_parameters": ..., "partial_rotary_factor": fraction}
        yield {"rope_parameters": ..., "partial_rotary_factor": fraction, "rotary_dim": ...}
        yield {"rope_parameters": ..., "rope_scaling": YARN, "partial_rotary_factor": fraction}
        yield {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "partial_rotary_factor": fraction}
        for rope in (YARN, LINEAR, DYNAMIC, {"rope_type": "default", "rope_theta": 300.0}):
            yield {"rope_parameters": rope | ({} if fraction is ... else {"partial_rotary_factor": fraction})}
    for rotated in (2, 4, 5, 6, 12, 14, 0, None, 6.0, ...):
        yield {"rope_parameters": ..., "rotary_dim": rotated}
        yield {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "rotary_dim": rotated}


def glm_edits():
    yield from rotary_edits()
    yield from deepseek_edits("glm4_moe")
    for edit in ({"use_qk_norm": False}, {"attention_bias": False}, {"head_dim": 8}, {"head_dim": ..., "hidden_size": 32}, {"num_key_value_heads": 1}):
        yield edit


def minimax_edits():
    yield from rotary_edits()
    yield from moe_edits()
    for edit in ({"router_jitter_noise": 0.1}, {"head_dim": 8}, {"num_key_value_heads": 1}, {"scoring_func": "sigmoid"}, {"use_qk_norm": True}):
        yield edit


def lite_edits():
    yield from deepseek_edits("glm4_moe_lite")
    dense, sparse = "dense", "sparse"
    for types in ([dense, sparse], [sparse] * 2, [dense] * 2, [sparse, dense], [dense], [dense, "other"], [dense, sparse, sparse], dense, [], None, ...):
        yield {"mlp_layer_types": types}
    for fraction in (0.5, 1.0, None):
        yield {"rope_parameters": ..., "partial_rotary_factor": fraction}


def ministral3_edits():
    own = YARN | {"llama_4_scaling_beta": 0.4}
    for more in ({}, {"llama_4_scaling_beta": 0.1}, {"llama_4_scaling_beta": 0.0}, {"llama_4_scaling_beta": -0.1}, {"llama_4_scaling_beta": None}, {"llama_4_scaling_beta": "1"},
                 {"original_max_position_embeddings": 5}, {"original_max_position_embeddings": ...}, {"max_position_embeddings": 99}, {"mscale": 1.0, "mscale_all_dim": 1.0},
                 {"factor": 1.0}, {"rope_type": "default"}, {"rope_type": "linear"}, {"rope_type": "dynamic"}):
        rope = {key: value for key, value in (own | more).items() if value is not ...}
        yield {"rope_parameters": rope}
        yield {"rope_parameters": ..., "rope_scaling": rope, "rope_theta": 700.0}
    yield {"rope_parameters": LLAMA3 | {"llama_4_scaling_beta": 0.4}}
    yield {"rope_parameters": ..., "rope_theta": 5.0}
    for window in (5, 48, None, ...):
        for types in (["full_attention"] * 2, ["sliding_attention", "full_attention"], ...):
            yield {"sliding_window": window, "layer_types": types}
    for size in (8, 12, None, ...):
        yield {"head_dim": size}


def qwen3_5_edits():
    for rope in (YARN, LINEAR, DYNAMIC, LLAMA3, {"rope_type": "default", "rope_theta": 300.0}):
        for more in ({}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}, {"mrope_section": [1, 1, 0]}, {"mrope_interleaved": True}):
            yield {"rope_parameters": rope | more}
            yield {"rope_parameters": ..., "rope_scaling": rope | more, "rope_theta": 700.0}
    for fraction in (0.25, 0.5, 1.0, 0.3, 0.0, None, "1", ...):
        yield {"rope_parameters": ..., "partial_rotary_factor": fraction}
        yield {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "partial_rotary_factor": fraction}
    linear, full = "linear_attention", "full_attention"
    for types in ([linear, full], [full, linear], [linear] * 2, [full] * 2, [linear, full, linear], [full, linear, full], [linear], [linear, "other"], [], full, None, ...):
        for interval in (1, 2, 4, 0, None, ...):
            yield {"layer_types": types, "full_attention_interval": interval}
    for name in ("linear_num_value_heads", "linear_num_key_heads"):
        for heads in (1, 2, 3, 4, 0):
            yield {name: heads}
    for edit in ({"attn_output_gate": False}, {"mamba_ssm_dtype": "bfloat16"}, {"mtp_num_hidden_layers": 1}, {"attention_bias": True}, {"sliding_window": 5}):
        yield edit


def qwen3_5_moe_edits():
    yield from qwen3_5_edits()
    yield from moe_edits()
    for width in (12, 24, 36, 13, 0, None, ...):
        yield {"shared_expert_intermediate_size": width}


def qwen3_next_edits():
    yield from qwen3_5_moe_edits()
    yield from qwen3_moe_edits()


def mpt_edits():
    for edit in ({"clip_qkv": 0.5}, {"clip_qkv": 0.0}, {"clip_qkv": None}, {"clip_qkv": -1.0}, {"softmax_scale": 0.0}, {"softmax_scale": 0.1}, {"softmax_scale": None},
                 {"softmax_scale": -0.3}, {"alibi": False}, {"alibi_bias_max": 4}, {"prefix_lm": True}, {"qk_ln": True}, {"attn_uses_sequence_id": True},
                 {"attn_impl": "flash"}, {"attn_pdrop": 1}, {"attn_type": "multiquery_attention"}, {"attn_type": "none"}, {"kv_n_heads": 2}, {"qk_gn": True},
                 {"attn_logit_softcapping": 30.0}, {"rope": True}, {"sliding_window_size": 4}, {"rope": False}, {"unheard_of": 1}):
        yield {"attn_config": {"alibi": True, "clip_qkv": 2.0, "softmax_scale": 0.3} | edit}
    for value in (None, ..., {}, [], 3, "multihead_attention"):
        yield {"attn_config": value}
    for key, value in (("logit_scale", 0.5), ("logit_scale", "inv_sqrt_d_model"), ("logit_scale", 0), ("ffn_config", {"ffn_type": "mptglu"}),
                       ("num_attention_heads", 2), ("hidden_size", 16), ("num_hidden_layers", 1), ("fc_type", "torch")):
        yield {key: value}
    yield {"n_heads": 2, "num_attention_heads": 4}
    yield {"n_heads": 4, "num_attention_heads": 2}


def gpt2_edits():
    for value in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu", "relu", "quick_gelu", "gelu_10", "relu2", "silu"):
        yield {"activation_function": value}
    yield {"n_head": 2, "num_attention_heads": 4}
    yield {"n_head": 4, "num_attention_heads": 2}
    yield {"n_head": ..., "num_attention_heads": 2}
    yield {"n_positions": ..., "max_position_embeddings": 64}
    yield {"n_inner": 128}
    yield {"n_inner": 64}
    yield {"n_inner": 0}
    yield {"n_ctx": 32}


OWN_EDITS = {"zaya": zaya_edits, "olmo3": olmo3_edits, "gemma2": gemma2_edits, "gemma3_text": gemma3_edits}  # instead of rope_edits


def own_edits(family):
    """Fields that decide something together."""
    if family == "mpt":
        return mpt_edits()
    if family == "gpt2":
        return gpt2_edits()
    edits = [{"hidden_act": act} for act in ("silu", "swish", "gelu", "relu", "SiLU", "gelu_pytorch_tanh")]
    edits += [{"pad_token_id": token} for token in (0, PADDING, 63, 64, -1, -64, -65, 1.5, None, ...)]
    edits += list(OWN_EDITS.get(family, rope_edits)())
    if family == "mixtral":  # whose YaRN and dynamic scaling need it
        edits += [edit | {"head_dim": 8} for edit in rope_edits()]
    if family in ("mistral", "qwen2", "qwen3", "llama", "mixtral"):
        edits += list(window_edits()) if family in ("mistral", "qwen2", "qwen3") else [e for e in window_edits() if "use_sliding_window" not in e]
    if family == "mixtral":
        edits += list(moe_edits())
    if family == "qwen3_moe":
        edits += list(qwen3_moe_edits())
    if family == "olmoe":
        edits += list(olmoe_edits())
    if family == "gpt_oss":
        edits += list(gpt_oss_edits())
    edits += list({"smollm3": smollm3_edits, "phi3": phi3_edits, "granite": granite_edits, "granitemoe": granitemoe_edits,
                   "glm4_moe": glm_edits, "minimax_m2": minimax_edits, "glm4_moe_lite": lite_edits,
                   "ministral3": ministral3_edits, "qwen3_5_text": qwen3_5_edits, "qwen3_5_moe_text": qwen3_5_moe_edits, "qwen3_next": qwen3_next_edits}.get(family, tuple)())
    if family.startswith("deepseek"):
        edits += list(deepseek_edits(family))
    return edits


def values_of(name, value):
    """Other values of a field that has `value`."""
    if name in TYPED or name in ("rope_parameters", "layer_types", "attn_config"):
        return [..., None]
    if name.endswith("_token_id"):
        return [..., None, PADDING]
    if isinstance(value, bool):
        return [..., None, not value, 1]
    if isinstance(value, int):
        return [..., None, value * 2, value + 1, 0, -value, float(value), True]
    if isinstance(value, float):
        return [..., None, value * 2 + 0.25, 0.0, "1"]
    if isinstance(value, str):
        return [..., None, "", "other"]
    return [..., None, 3, True, "other"]


def fields_of(family):
    cls = CONFIG_MAPPING[family]
    declared = {field.name: None if field.default is dataclasses.MISSING else field.default for field in dataclasses.fields(cls)}
    read, plain = set(), cls.__getattribute__

    def watch(self, name):
        read.add(name)
        return plain(self, name)
    cls.__getattribute__ = watch
    run(os.path.join(HERE, family))
    cls.__getattribute__ = plain
    constant = lambda name: name.startswith("_") or callable(getattr(cls, name, None)) or name in ("sub_configs", "sub_configs_defaults", "is_heterogeneous",
        "default_theta", "default_rope_type", "output_loading_info", "ignore_keys_at_rope_validation", "attribute_map") or name.startswith("base_model_")
    extra = {"rope_scaling", "torch_dtype", "per_layer_config"} | {name for name in read if not constant(name)}
    return declared, sorted(extra - set(declared) | set(cls.attribute_map))


def tokens_of(family):
    with safe_open(os.path.join(HERE, family, "expected.safetensors"), "pt") as file:
        return file.get_tensor("tokens").long()


def run(folder, scale=None):
    """The numbers of a folder's model on its own tokens; raises where it does not load or run, or the weights do not fit."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    unfit = [key for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in report[kind]]
    if unfit:
        raise ValueError(f"weights do not fit: {unfit[:2]}")
    for part, factor in (scale or {}).items():
        for name, parameter in model.named_parameters():
            parameter.data *= factor if part in name else 1
    tokens = tokens_of(os.path.basename(folder).split("-")[0])
    output = model.eval()(tokens[:, :-1], use_cache=False)
    logits = output.logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    if getattr(output, "aux_loss", None) is not None:
        loss = loss + model.config.router_aux_loss_coef * output.aux_loss
    loss.backward()
    table = model.get_input_embeddings().weight
    gradient = torch.sqrt(sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None))
    numbers = [loss.item(), gradient.item(), table.grad[tokens[0, 0]].double().norm().item(), *(logits[row, token].item() for row, token in SPOTS)]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("numbers are not finite")
    return numbers, logits.detach()


def verdict_of(folder, base):
    try:
        with open(os.devnull, "w") as null, contextlib.redirect_stderr(null), contextlib.redirect_stdout(null):
            numbers, logits = run(folder)
    except Exception as error:  # whatever transformers raises
        return "refused", f"{type(error).__name__}: {error}".splitlines()[0][:90]
    theirs, plain = base
    close = logits.shape == plain.shape and (logits - plain).abs().max() < 1e-6
    if close and all(abs(a - b) < 1e-6 * max(1, b) for a, b in zip(numbers[:3], theirs)):
        return "same", ""
    return rounded(numbers), ""


def scale_weights(file):
    """Queries and keys so small that the least norm that ZAYA divides by shows, 2^-23 in float32."""
    for factor in (1e-3, 1e-5, 1e-6, 3e-7, 1e-7, 1e-8):
        scale = {"q_proj": factor, "k_proj": factor, "conv_qk_grouped": factor}
        numbers, _ = run(os.path.join(HERE, "zaya"), scale)
        print(json.dumps({"set": {}, "scale": scale, "verdict": rounded(numbers)}), file=file)


def rounded(numbers):
    return [float(f"{x:.7g}") for x in numbers[:3]] + [float(f"{x:.6g}") for x in numbers[3:]]


def edits_of(family, config, declared, read):
    seen = set()
    single = [{name: value} for name in [*declared, *read] for value in values_of(name, config.get(name, declared.get(name)))]
    first = tokens_of(family)[0, 0].item()
    for edit in [*single, {"unheard_of": 1}, *own_edits(family)]:
        edit = {name: first if value is PADDING else value for name, value in edit.items()}
        if edit.keys() <= {"model_type", "architectures", "transformers_version"}:
            continue
        if all(value is ... and name not in config for name, value in edit.items()):
            continue
        key = json.dumps({name: repr(value) for name, value in edit.items()}, sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield edit


def write(family, scratch, file):
    with open(os.path.join(HERE, family, "config.json")) as source:
        config = json.load(source)
    declared, read = fields_of(family)
    plain = {name: value if isinstance(value, (bool, int, float, str, type(None))) else str(value) for name, value in declared.items()}
    base, counts = run(os.path.join(HERE, family)), {}
    print(json.dumps({"model": family, "numbers": rounded(base[0]), "declared": plain, "read": read}), file=file)
    if family == "zaya":
        scale_weights(file)
    for edit in edits_of(family, config, declared, read):
        changed = {name: value for name, value in (config | edit).items() if value is not ...}
        folder = os.path.join(scratch, family + "-edited")
        os.makedirs(folder, exist_ok=True)
        shutil.copy(os.path.join(HERE, family, "model.safetensors"), folder)
        with open(os.path.join(folder, "config.json"), "w") as target:
            json.dump(changed, target)
        verdict, reason = verdict_of(folder, base)
        line = {"set": {name: value for name, value in edit.items() if value is not ...}}
        deleted = [name for name, value in edit.items() if value is ... and name in config]
        line |= ({"delete": deleted} if deleted else {}) | {"verdict": verdict}
        if os.environ.get("REASONS"):
            line["reason"] = reason
        print(json.dumps(line, separators=(",", ":")), file=file)
        counts[verdict if isinstance(verdict, str) else "numbers"] = counts.get(verdict if isinstance(verdict, str) else "numbers", 0) + 1
    print(family, counts)


def lines_of(path):
    """The lines of each folder, of the versions that are installed."""
    lines = open(path).readlines()
    versions = {key: json.loads(lines[0])[key] for key in ("transformers", "torch")}
    if versions != {"transformers": transformers.__version__, "torch": torch.__version__}:
        raise SystemExit(f"{path} is of {versions}: make all folders anew")
    families = {}
    for line in lines[1:]:
        if line.startswith('{"model"'):
            family = families.setdefault(json.loads(line)["model"], [])
        family.append(line)
    return families


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    path = os.path.join(HERE, "configs.jsonl")
    kept = lines_of(path) if sys.argv[1:] else {}
    with tempfile.TemporaryDirectory() as scratch, open(path, "w") as file:
        print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "spots": SPOTS}), file=file)
        for family in FAMILIES:
            if family in sys.argv[1:] or family not in kept:
                write(family, scratch, file)
            else:
                file.writelines(kept[family])


main()
