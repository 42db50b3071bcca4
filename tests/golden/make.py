"""Writes the models of tests/model/test_golden.c: small random models of every family as transformers saves them, and what PyTorch makes of them in float32.

    python tests/golden/make.py [FAMILY ...]

FOLDER/config.json and model.safetensors are what save_pretrained writes. expected.safetensors holds tokens [sequences, length + 1], of which all but the
last are read and all but the first are targets; logits; the loss; with multi-token prediction its loss, of weight PREDICTION_WEIGHT; gradient/NAME; and the losses before each of ten steps on the same tokens, with AdamW
and with Muon (hidden matrices; AdamW for the rest). Decay is for matrices; routers' balancing biases stay as they are. Muon
orthogonalises in float32 here, which its module calls bfloat16.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import delta_rule

HERE = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, LENGTH, STEPS, LR, DECAY = 2, 24, 10, 0.003, 0.1
COMMON = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.15)
OWN_NAMES = ("mpt", "gpt2")  # which call sizes otherwise
SCALED = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
FAMILIES = {
    "zaya": dict(model_type="zaya", head_dim=8, moe_intermediate_size=20, num_experts=3, router_hidden_size=12),
    "llama": dict(model_type="llama", intermediate_size=40, rope_parameters=SCALED),
    "mistral": dict(model_type="mistral", intermediate_size=40, head_dim=12, sliding_window=7, tie_word_embeddings=True),
    "qwen2": dict(model_type="qwen2", intermediate_size=40, tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", intermediate_size=40, head_dim=12),
    "qwen3_moe": dict(model_type="qwen3_moe", intermediate_size=40, moe_intermediate_size=20, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                      decoder_sparse_step=2, head_dim=12),
    "olmo2": dict(model_type="olmo2", intermediate_size=40),
    "olmo3": dict(model_type="olmo3", intermediate_size=40, num_hidden_layers=4, sliding_window=6,
                  rope_parameters={"sliding_attention": dict(rope_type="default", rope_theta=1e4),
                                   "full_attention": dict(rope_type="yarn", rope_theta=5e5, factor=4.0, original_max_position_embeddings=16)}),
    "gemma2": dict(model_type="gemma2", intermediate_size=40, num_hidden_layers=3, head_dim=12, sliding_window=6, query_pre_attn_scalar=20,
                   attn_logit_softcapping=1.5, final_logit_softcapping=2.5, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0)),
    "gemma3_text": dict(model_type="gemma3_text", intermediate_size=40, num_hidden_layers=4, head_dim=12, sliding_window=6, query_pre_attn_scalar=20,
                        layer_types=["sliding_attention"] * 3 + ["full_attention"],
                        rope_parameters={"sliding_attention": dict(rope_type="default", rope_theta=1e4),
                                         "full_attention": dict(rope_type="linear", rope_theta=1e6, factor=8.0)}),
    "smollm3": dict(model_type="smollm3", intermediate_size=40, num_hidden_layers=3, no_rope_layer_interval=2,
                    use_sliding_window=True, sliding_window=6),
    "phi3": dict(model_type="phi3", intermediate_size=40, sliding_window=9, original_max_position_embeddings=16, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75, short_factor=[1.0, 1.25, 1.5], long_factor=[1.0, 3.0, 12.0])),
    "granite": dict(model_type="granite", intermediate_size=40, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=1.5),
    "granitemoe": dict(model_type="granitemoe", intermediate_size=20, num_local_experts=3, num_experts_per_tok=2, embedding_multiplier=3.0,
                       residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=1.5),
    "olmoe": dict(model_type="olmoe", intermediate_size=20, num_experts=3, num_experts_per_tok=2, clip_qkv=2.5),
    "deepseek_v2": dict(model_type="deepseek_v2", num_key_value_heads=4, intermediate_size=40, moe_intermediate_size=12, n_routed_experts=6,
                        num_experts_per_tok=2, n_shared_experts=2, first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=3, topk_group=2,
                        routed_scaling_factor=1.5, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=6,
                        rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, mscale=0.707,
                                             mscale_all_dim=0.707)),
    "deepseek_v3": dict(model_type="deepseek_v3", num_key_value_heads=4, intermediate_size=40, moe_intermediate_size=12, n_routed_experts=8,
                        num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2, q_lora_rank=12, kv_lora_rank=16,
                        qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=6),
    "glm4_moe": dict(model_type="glm4_moe", intermediate_size=40, moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=3, head_dim=12,
                     first_k_dense_replace=1, n_group=4, topk_group=2, routed_scaling_factor=1.5, attention_bias=True, use_qk_norm=True),
    "minimax_m2": dict(model_type="minimax_m2", intermediate_size=20, num_local_experts=4, num_experts_per_tok=2, head_dim=12, rotary_dim=6),
    "glm4_moe_lite": dict(model_type="glm4_moe_lite", num_key_value_heads=4, intermediate_size=40, moe_intermediate_size=12, n_routed_experts=6,
                          num_experts_per_tok=2, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=6,
                          rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, mscale_all_dim=0.7)),
    "qwen3_5_text": dict(model_type="qwen3_5_text", intermediate_size=40, head_dim=16, layer_types=["linear_attention", "full_attention"],
                         linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=8),
    "qwen3_5_moe_text": dict(model_type="qwen3_5_moe_text", num_hidden_layers=3, rms_norm_eps=1e-2, head_dim=16, full_attention_interval=2, moe_intermediate_size=12,
                             shared_expert_intermediate_size=24, num_experts=4, num_experts_per_tok=2, linear_num_key_heads=2, linear_num_value_heads=2,
                             linear_key_head_dim=16, linear_value_head_dim=16),
    "qwen3_next": dict(model_type="qwen3_next", num_hidden_layers=4, rms_norm_eps=1e-2, head_dim=16, layer_types=["linear_attention", "full_attention"] * 2, intermediate_size=40,
                       moe_intermediate_size=12, shared_expert_intermediate_size=24, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=2, linear_num_key_heads=2,
                       linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=8),
    "ministral3": dict(model_type="ministral3", intermediate_size=40, head_dim=12, sliding_window=9, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)),
    "mpt": dict(model_type="mpt", d_model=32, n_layers=2, n_heads=4, max_seq_len=64, attn_config=dict(alibi=True, clip_qkv=2.0, softmax_scale=0.3)),
    "gpt2": dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
    "zaya-window": dict(model_type="zaya", head_dim=8, moe_intermediate_size=20, num_experts=3, router_hidden_size=12, sliding_window=6,
                        layer_types=["hybrid", "hybrid_sliding"],
                        rope_parameters={"hybrid": dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5),
                                         "hybrid_sliding": dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)}),
    "gpt_oss": dict(model_type="gpt_oss", intermediate_size=20, head_dim=12, num_local_experts=3, num_experts_per_tok=2, sliding_window=6, swiglu_limit=1.4,
                    rope_parameters=dict(rope_type="yarn", rope_theta=1.5e5, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16)),
    "mixtral": dict(model_type="mixtral", intermediate_size=20, num_local_experts=3, num_experts_per_tok=2),
}
for family in ("deepseek_v3", "glm4_moe"):
    FAMILIES[family + "-mtp"] = FAMILIES[family] | dict(num_nextn_predict_layers=1)
PREDICTION_WEIGHT = 0.3
# bf16 chooses the same experts as fp32: with these seeds the scores of chosen experts, and of chosen groups, are at least 0.006 above those of others
# in all rows. Scores in bf16 are off by 0.0017 on average.
SEEDS = {"deepseek_v3-mtp": 143, "glm4_moe-mtp": 164}
QUANTIZED = {"qwen3_moe-fp8": dict(model_type="qwen3_moe", hidden_size=256, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                                   moe_intermediate_size=16, num_experts=2, num_experts_per_tok=1)}


def randomise(model):
    """Norms, biases and scales start where they would hide mistakes."""
    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        if tensor.dim() == 1 and "inv_freq" not in name:
            noise = torch.randn_like(tensor) * (0.02 if "balancing_biases" in name else 0.2)
            tensor.data += noise
        elif tensor.dim() >= 2 and tensor.requires_grad and not tensor.data.any():
            tensor.data = torch.randn_like(tensor) * 0.15


def build(settings, seed=1):
    torch.manual_seed(seed)
    common = {k: v for k, v in COMMON.items() if not (settings["model_type"] in OWN_NAMES and k.startswith(("hidden", "num_", "max_")))}
    settings = common | settings
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32, attn_implementation="eager")
    if predicts(model):
        add_prediction(model)
    randomise(model)
    return model


def predicts(model):
    return getattr(model.config, "num_nextn_predict_layers", 0) == 1 and model.config.model_type in ("deepseek_v3", "glm4_moe")


def add_prediction(model):
    """Adds the module for multi-token prediction of arXiv 2412.19437, section 2.2, under DeepSeek's names. transformers does not run layers after
    num_hidden_layers."""
    config, norm = model.config, type(model.model.norm)
    layer = type(model.model.layers[-1])(config, config.num_hidden_layers)
    layer.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    layer.enorm, layer.hnorm = norm(config.hidden_size, config.rms_norm_eps), norm(config.hidden_size, config.rms_norm_eps)
    layer.shared_head = torch.nn.Module()
    layer.shared_head.norm = norm(config.hidden_size, config.rms_norm_eps)
    layer.apply(model._init_weights)
    model.model.layers.append(layer)


def prediction_loss(model, tokens):
    """L_MTP of depth 1: token i + 2 from the main model's representation of token i and the embedding of token i + 1, over as many tokens as the main loss."""
    layer, hidden = model.model.layers[-1], model.model(tokens[:, :-1], use_cache=False).last_hidden_state[:, :-1]
    x = layer.eh_proj(torch.cat([layer.enorm(model.model.embed_tokens(tokens[:, 1:-1])), layer.hnorm(hidden)], dim=-1))
    places = torch.arange(x.shape[1])[None]
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype).triu(1)[None, None]
    x = layer(x, attention_mask=mask, position_ids=places, position_embeddings=model.model.rotary_emb(x, places))
    logits = model.lm_head(layer.shared_head.norm(x))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten(), reduction="sum") / tokens[:, 1:].numel()


def loss_of(model, tokens):
    logits = model(tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), logits


def total_of(model, tokens, loss):
    return loss + PREDICTION_WEIGHT * prediction_loss(model, tokens) if predicts(model) else loss


def is_table(name):
    return "embed" in name or "lm_head" in name or ".wte." in name or ".wpe." in name


def is_vector(name):
    """Experts' biases are stacked."""
    return name.endswith("_bias")


def projections_of(name, tensor, interleaved=False):
    """Views of a matrix, or of each of a stack, one for each projection that it holds."""
    if tensor.dim() == 3:
        return [part for matrix in tensor for part in projections_of(name, matrix, interleaved)]
    if "gate_up_proj" in name and interleaved:  # [in, out]
        return [tensor[:, 0::2], tensor[:, 1::2]]
    if "gate_up_proj" in name:
        return list(tensor.chunk(2))
    if "qkv_proj" in name:  # COMMON's heads
        return list(tensor.split([32, 16, 16]))
    if "c_attn" in name:  # [in, out]
        return list(tensor.chunk(3, dim=1))
    return list(tensor.chunk(3)) if "Wqkv" in name or "in_proj_qkv." in name else [tensor]


def optimizers(model, muon):
    """AdamW in two groups, and Muon on each projection, which share their memory with the parameters."""
    decayed, plain, matrices, interleaved = [], [], [], model.config.model_type == "gpt_oss"
    for name, p in model.named_parameters():
        if muon and p.dim() >= 2 and not is_table(name) and not is_vector(name) and "conv" not in name:
            matrices.append((name, p))
        else:
            (plain if p.dim() < 2 or is_vector(name) else decayed).append(p)
    adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    views = [torch.nn.Parameter(view) for name, p in matrices for view in projections_of(name, p.data, interleaved)]
    orthogonal = torch.optim.Muon(views, lr=LR, weight_decay=DECAY, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw") if views else None

    def step():
        for view, gradient in zip(views, [part for name, p in matrices for part in projections_of(name, p.grad, interleaved)]):
            view.grad = gradient
        adamw.step()
        if orthogonal:
            orthogonal.step()
    return step


def train(settings, tokens, muon, seed):
    model = build(settings, seed)
    step, losses = optimizers(model, muon), []
    for _ in range(STEPS):
        model.zero_grad()
        loss, _ = loss_of(model, tokens)
        total_of(model, tokens, loss).backward()
        losses.append(loss.detach())
        step()
    return torch.stack(losses)


def write(name, settings):
    folder = os.path.join(HERE, name)
    if settings["model_type"].startswith(("qwen3_5", "qwen3_next")):
        delta_rule.widen(settings["model_type"])
    seed = SEEDS.get(name, 1)
    model = build(settings, seed)
    tokens = torch.randint(0, COMMON["vocab_size"], (SEQUENCES, LENGTH + 1))
    loss, logits = loss_of(model, tokens)
    total_of(model, tokens, loss).backward()
    expected = {"tokens": tokens.int(), "logits": logits.detach().flatten(0, 1), "loss": loss.detach().reshape(1),
                "adamw_losses": train(settings, tokens, False, seed), "muon_losses": train(settings, tokens, True, seed)}
    if predicts(model):
        expected["prediction_loss"] = prediction_loss(model, tokens).detach().reshape(1)
    expected |= {"gradient/" + key: p.grad for key, p in model.named_parameters()}
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    save_file({key: value.contiguous() for key, value in expected.items()}, os.path.join(folder, "expected.safetensors"))
    print(f"{name:10s} {sum(p.numel() for p in model.parameters()):7d} parameters, loss {loss:.5f}, AdamW {expected['adamw_losses'][-1]:.5f}, "
          f"Muon {expected['muon_losses'][-1]:.5f}")


def quantize(name, tensors):
    """DeepSeek's layout of FP8, in which the matrices of linear layers have a scale for each block of 128 x 128."""
    for key in [key for key in tensors if key.endswith("proj.weight")]:
        rows, columns = tensors[key].shape
        blocks = tensors[key].reshape(-(-rows // 128), min(rows, 128), -(-columns // 128), min(columns, 128))
        scales = blocks.abs().amax(dim=(1, 3)) / 448
        tensors[key] = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).reshape(rows, columns)
        tensors[key + "_scale_inv"] = scales
    return tensors


def write_fp8(name, settings):
    folder = os.path.join(HERE, name)
    build(settings).save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    weights, path = os.path.join(folder, "model.safetensors"), os.path.join(folder, "config.json")
    save_file(quantize(name, load_file(weights)), weights, metadata={"format": "pt"})
    with open(path) as file:
        config = json.load(file)
    with open(path, "w") as file:
        json.dump(config | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}, file, indent=2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")  # dequantizes without a GPU
    tokens = torch.randint(0, COMMON["vocab_size"], (SEQUENCES, LENGTH + 1))
    save_file({"tokens": tokens.int(), "logits": model(tokens[:, :-1], use_cache=False).logits.detach().flatten(0, 1)}, os.path.join(folder, "expected.safetensors"))


def main():
    bfloat16, torch.bfloat16 = torch.bfloat16, torch.float32
    for name in sys.argv[1:] or [*FAMILIES, *QUANTIZED]:
        if name in QUANTIZED:
            write_fp8(name, QUANTIZED[name])
        else:
            write(name, FAMILIES[name])
    torch.bfloat16 = bfloat16


main()
