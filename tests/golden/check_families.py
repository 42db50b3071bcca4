"""Families in transformers: random models, straight from smelt's checkpoints, must give smelt's logits there.

Needs torch, transformers 5 and safetensors. Usage, from the repository after `make`:  python tests/golden/check_families.py [BUILD]
Exits with 1 when a logit differs by more than 1e-4 in fp32.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open

import random_run

TEXT = "The quick brown fox jumps over the lazy dog, éàü: 東京! A second sentence makes it longer than one block of 64 keys."
COMMON = ["data.length=256", "model.init_std=0.1", "precision=fp32"]
LLAMA = dict(vocab_size=320, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0)


class GroupedMpt(transformers.MptForCausalLM):
    """What llm-foundry's MPT has and transformers' lacks: LayerNorm over all queries and all keys (qk_ln), and kv_n_heads, here 2."""

    def __init__(self, config):
        super().__init__(config)
        width, head = config.d_model, config.d_model // config.n_heads
        for block in self.transformer.blocks:
            block.attn.Wqkv = torch.nn.Linear(width, width + 4 * head, bias=False)
            block.attn.q_ln, block.attn.k_ln = (torch.nn.LayerNorm(size, bias=False) for size in (width, 2 * head))
            block.attn.Wqkv.register_forward_hook(lambda _, __, qkv, attention=block.attn: self.norm_and_repeat(attention, qkv))

    def norm_and_repeat(self, attention, qkv):
        q, k, v = qkv.split([attention.hidden_size, 2 * attention.head_dim, 2 * attention.head_dim], dim=-1)
        k, v = (x.unflatten(-1, (2, attention.head_dim)).repeat_interleave(attention.n_heads // 2, dim=-2).flatten(-2) for x in (attention.k_ln(k), v))
        return torch.cat([attention.q_ln(q), k, v], dim=-1)


MODELS = {
    "gpt2": (["model.family=gpt2", "model.heads=3", "model.kv_heads=3", "model.width=48", "model.ffn=100", "model.layers=3"],
             transformers.GPT2LMHeadModel,
             transformers.GPT2Config(vocab_size=320, n_positions=256, n_embd=48, n_layer=3, n_head=3, n_inner=100)),
    "mpt": (["model.family=mpt", "model.heads=4", "model.kv_heads=4", "model.width=64", "model.ffn=256", "model.layers=3"],
            transformers.MptForCausalLM, transformers.MptConfig(vocab_size=320, d_model=64, n_heads=4, n_layers=3, max_seq_len=256)),
    "mpt, 6 heads, clip_qkv, softmax_scale": (
        ["model.family=mpt", "model.heads=6", "model.kv_heads=6", "model.width=48", "model.ffn=192", "model.layers=2", "model.clip_qkv=0.7",
         "model.softmax_scale=0.4"],
        transformers.MptForCausalLM,
        transformers.MptConfig(vocab_size=320, d_model=48, n_heads=6, n_layers=2, max_seq_len=256,
                               attn_config=dict(clip_qkv=0.7, softmax_scale=0.4))),
    "mpt, qk_ln, grouped queries": (
        ["model.family=mpt", "model.heads=6", "model.kv_heads=2", "model.width=48", "model.ffn=192", "model.layers=2", "model.qk_norm=true"],
        GroupedMpt, transformers.MptConfig(vocab_size=320, d_model=48, n_heads=6, n_layers=2, max_seq_len=256)),
    "mistral": (["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=64", "model.head_dim=24", "model.ffn=96", "model.layers=3",
                 "model.window=11", "model.tied=false"],
                transformers.MistralForCausalLM,
                transformers.MistralConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                           head_dim=24, sliding_window=11, tie_word_embeddings=False, **LLAMA)),
    "qwen2": (["model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=48", "model.ffn=96", "model.layers=3", "model.qkv_bias=true",
               "model.rope_theta=1000000", "model.norm_epsilon=1e-6"],
              transformers.Qwen2ForCausalLM,
              transformers.Qwen2Config(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
                                       tie_word_embeddings=True, **{**LLAMA, "rope_theta": 1e6, "rms_norm_eps": 1e-6})),
    "qwen3": (["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=48", "model.head_dim=20", "model.ffn=96", "model.layers=3",
               "model.qk_norm=true"],
              transformers.Qwen3ForCausalLM,
              transformers.Qwen3Config(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                       head_dim=20, tie_word_embeddings=True, **LLAMA)),
    "qwen3_moe": (["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=48", "model.head_dim=20", "model.ffn=24", "model.layers=5",
                   "model.qk_norm=true", "model.experts=6", "model.experts_per_token=3", "model.experts_first=1", "model.experts_period=2",
                   "model.dense_ffn=96", "model.window=11"],
                  transformers.Qwen3MoeForCausalLM,
                  transformers.Qwen3MoeConfig(hidden_size=48, intermediate_size=96, moe_intermediate_size=24, num_hidden_layers=5, num_attention_heads=4,
                                              num_key_value_heads=2, head_dim=20, num_experts=6, num_experts_per_tok=3, decoder_sparse_step=2,
                                              use_sliding_window=True, sliding_window=11, tie_word_embeddings=True, **LLAMA)),
    "olmo2": (["model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=48", "model.ffn=96", "model.layers=3", "model.tied=false"],
              transformers.Olmo2ForCausalLM,
              transformers.Olmo2Config(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                       tie_word_embeddings=False, **LLAMA)),
    "olmoe": (["model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=48", "model.ffn=24", "model.layers=3", "model.tied=false", "model.experts=6",
               "model.experts_per_token=3", "model.clip_qkv=1.5"],
              transformers.OlmoeForCausalLM,
              transformers.OlmoeConfig(hidden_size=48, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, num_experts=6,
                                       num_experts_per_tok=3, clip_qkv=1.5, tie_word_embeddings=False, **LLAMA)),
    "gpt_oss": (["model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=48", "model.head_dim=20", "model.ffn=24", "model.layers=3", "model.tied=false",
                 "model.experts=6", "model.experts_per_token=3", "model.renormalise=true", "model.qkv_bias=true", "model.window=11", "model.window_period=2"],
                transformers.GptOssForCausalLM,
                transformers.GptOssConfig(hidden_size=48, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=20,
                                          num_local_experts=6, num_experts_per_tok=3, sliding_window=11, tie_word_embeddings=False,
                                          **{**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})),
}


def read_checkpoint(run):
    """The parameters of the one checkpoint of a run; each is one interval."""
    folder, = glob.glob(os.path.join(run, "checkpoints", "step-*"))
    manifest = json.load(open(os.path.join(folder, "manifest.json")))
    shapes = {interval["tensor"]: interval["shape"] for interval in manifest["intervals"]}
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                name = key.rsplit("[", 1)[0]
                tensors[name] = file.get_tensor(key).reshape(shapes[name])
    return tensors


def load(model, tensors):
    """Fills the model; GPT-2's Conv1D and the experts of gpt-oss hold [in, out]."""
    for name, module in model.named_modules():
        if type(module).__name__ == "Conv1D":
            tensors[name + ".weight"] = tensors[name + ".weight"].T.contiguous()
        if type(module).__name__ == "GptOssExperts":  # [in, out]; columns of gate and up in turn
            for key in ("gate_up_proj", "gate_up_proj_bias"):
                tensors[f"{name}.{key}"] = torch.stack(tensors[f"{name}.{key}"].chunk(2, dim=1), dim=2).flatten(1, 2)
            for key in ("gate_up_proj", "down_proj"):
                tensors[f"{name}.{key}"] = tensors[f"{name}.{key}"].transpose(1, 2).contiguous()
    report = model.load_state_dict(tensors, strict=False)
    unexpected = [key for key in report.unexpected_keys if not key.endswith("balancing_biases")]  # zeros
    missing = [key for key in report.missing_keys if not (key == "lm_head.weight" and model.config.tie_word_embeddings)]
    if missing or unexpected:
        raise SystemExit(f"missing {missing}, unexpected {unexpected}")
    return model.float().eval()


def check(name, settings, architecture, config, program, scratch):
    run = os.path.join(scratch, name.replace(" ", "_").replace(",", ""))
    config._attn_implementation = "eager"
    config.bos_token_id = config.eos_token_id = None
    subprocess.run([program, "make", run, *COMMON, *settings], check=True)
    model = load(architecture(config), read_checkpoint(run))
    worst = 0
    for end in (1, 2, 17, 64, 65, len(TEXT)):
        text = TEXT[:end]
        lines = subprocess.run([program, "logits", run, text], check=True, capture_output=True, text=True).stdout.split()
        ours = torch.tensor([float(line) for line in lines])
        with torch.no_grad():
            theirs = model(torch.tensor([list(text.encode())])).logits[0, -1]
        worst = max(worst, (ours - theirs).abs().max().item())
    print(f"{name:40s} {architecture.__name__:20s} max |logit| {theirs.abs().max():7.3f}  max difference {worst:.2e}", flush=True)
    return worst < 1e-4


def main():
    build_folder = sys.argv[1] if len(sys.argv) > 1 else "build"
    with tempfile.TemporaryDirectory() as scratch:
        program = random_run.build(build_folder, scratch)
        results = [check(name, *model, program, scratch) for name, model in MODELS.items()]
    sys.exit(0 if all(results) else 1)


main()
