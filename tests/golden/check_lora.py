"""Adapters in PEFT: what `smelt convert adapter=true` writes must give, beside the base in transformers, the logits of the merged folder that `smelt convert` writes;
and what PEFT saves then must be merged by `smelt convert` to the same.

Needs torch, transformers 5 and peft. Usage, from the repository after `make`:  python tests/golden/check_lora.py [BUILD [MODEL...]]
Exits with 1 when a logit differs by more than 1e-4 in fp32, or the adapters change no logit.
"""
import os
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

TEXT = "The quick brown fox jumps over the lazy dog.\n"
COMMON = ["steps=6", "precision=fp32", "data.length=64", "batch.sequences=4", "batch.tokens=256", "eval.sequences=4", "tensorboard=false"]
SMALL = ["model.width=64", "model.ffn=96", "model.layers=2", "model.heads=4"]
MODELS = {
    "llama": ["model.family=llama", "model.kv_heads=2", "model.tied=false"],
    "mistral": ["model.family=llama", "model.kv_heads=2", "model.window=11"],
    "mixtral": ["model.family=llama", "model.kv_heads=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "optimizer.balance_lr=0"],
    "qwen2": ["model.family=llama", "model.kv_heads=2", "model.qkv_bias=true"],
    "qwen3": ["model.family=llama", "model.kv_heads=2", "model.qk_norm=true"],
    "qwen3_moe": ["model.family=llama", "model.kv_heads=2", "model.qk_norm=true", "model.experts=3", "model.experts_per_token=2", "optimizer.balance_lr=0"],
    "qwen3_moe, MLPs between": ["model.family=llama", "model.kv_heads=2", "model.qk_norm=true", "model.experts=3", "model.experts_per_token=2",
                                "optimizer.balance_lr=0", "model.experts_first=1"],
    "olmoe": ["model.family=olmo", "model.kv_heads=2", "model.experts=3", "model.experts_per_token=2", "optimizer.balance_lr=0"],
    "gpt_oss": ["model.family=gpt_oss", "model.kv_heads=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "model.qkv_bias=true",
                "optimizer.balance_lr=0"],
    "mpt": ["model.family=mpt", "model.kv_heads=4", "model.ffn=256"],
    "gpt2": ["model.family=gpt2", "model.kv_heads=4"],
    "gpt2, attention alone": ["model.family=gpt2", "model.kv_heads=4"],
    "zaya": ["model.family=zaya", "model.kv_heads=2", "model.experts=3", "model.rope_fraction=0.5"],
    "zaya, attention alone": ["model.family=zaya", "model.kv_heads=2", "model.experts=3", "model.rope_fraction=0.5"],
    "zaya, shared": ["model.family=zaya", "model.kv_heads=2", "model.experts=3", "model.rope_fraction=0.5"],
    "llama, tables": ["model.family=llama", "model.kv_heads=2", "model.tied=false"],
    "qwen2, tables": ["model.family=llama", "model.kv_heads=2", "model.qkv_bias=true"],
    "gpt2, tables": ["model.family=gpt2", "model.kv_heads=4"],
    "zaya, tables": ["model.family=zaya", "model.kv_heads=2", "model.experts=3", "model.rope_fraction=0.5"],
    "llama, rows": ["model.family=llama", "model.kv_heads=2", "model.tied=false"],
    "qwen2, rows": ["model.family=llama", "model.kv_heads=2", "model.qkv_bias=true"],
    "gpt2, rows": ["model.family=gpt2", "model.kv_heads=4"],
    "zaya, rows": ["model.family=zaya", "model.kv_heads=2", "model.experts=3", "model.rope_fraction=0.5"],
    "zaya, some": ["model.family=zaya", "model.kv_heads=2", "model.experts=3", "model.rope_fraction=0.5"],
    "mixtral, some": ["model.family=llama", "model.kv_heads=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "optimizer.balance_lr=0"],
}


def has_experts(name):
    return name.startswith(("zaya", "mixtral", "qwen3_moe", "olmoe", "gpt_oss"))


def logits_of(model):
    with torch.no_grad():
        return model.eval()(torch.tensor([list(TEXT.encode())])).logits


def check(name, settings, smelt, scratch):
    base, run, merged, adapter = (os.path.join(scratch, name.replace(", ", "_").replace(" ", "_") + end) for end in (".base", ".run", ".merged", ".adapter"))
    text = os.path.join(scratch, "text")
    with open(text, "w") as file:
        file.write(TEXT * 200)

    def call(*words):
        subprocess.run([smelt, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    call("train", "run=" + base + ".run", "data.train=" + text, *SMALL, *settings, *COMMON)
    call("convert", base + ".run", base)
    targets = "attention" if "attention" in name else "attention,experts,router" if "between" in name else "layers.1.mlp.experts.down_proj,q_proj,router" if "some" in name else "all,router" if has_experts(name) else "all"
    more = ["lora.tokens=32,97-101,116"] if "rows" in name else ["lora.experts=shared"] if "shared" in name else ["lora.modules_to_save=lm_head,wte" if "gpt2" in name else "lora.modules_to_save=embed_tokens,lm_head"] if "tables" in name else []
    call("train", "run=" + run, "init=" + base, "data.train=" + text, "lora.rank=4", "lora.alpha=12", "lora.targets=" + targets, *more, "optimizer.lr=2e-2", *COMMON)
    call("convert", run, merged)
    call("convert", run, adapter, "adapter=true")
    before = logits_of(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    ours = logits_of(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    theirs = logits_of(model)
    halves = sum("lora_" in key for key in model.state_dict())
    model.save_pretrained(adapter + ".again")
    again = merged + ".again"
    call("convert", adapter + ".again@" + base, again)
    ours_again = logits_of(AutoModelForCausalLM.from_pretrained(again, dtype=torch.float32))
    back = (ours_again - theirs).abs().max().item()
    difference, change = (ours - theirs).abs().max().item(), (ours - before).abs().max().item()
    print(f"{name:22s} {halves:3d} matrices in PEFT  max change by adapters {change:.3f}  max difference {difference:.2e}  and back {back:.2e}")
    return difference < 1e-4 and back < 1e-4 and change > 0.05


def main():
    smelt = os.path.join(sys.argv[1] if len(sys.argv) > 1 else "build", "smelt")
    with tempfile.TemporaryDirectory() as scratch:
        results = [check(name, MODELS[name], smelt, scratch) for name in sys.argv[2:] or MODELS]
    sys.exit(0 if all(results) else 1)


main()
