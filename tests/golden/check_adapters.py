#!/usr/bin/env python3
"""Compares greedy texts of several adapters in one batch with those of PEFT, on small random models, and prints a line for each.

    check_adapters.py SMELT [PROMPTS]

PEFT loads the same folders beside the same base, and set_adapter chooses one; disable_adapter gives the base. Texts must be equal, and
log-probabilities within 1e-4. Needs torch, transformers and peft.
"""
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config

TOKENS, VOCABULARY = 24, 200
SIZES = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
MODELS = {
    "llama": (LlamaConfig(**SIZES), ["q_proj", "v_proj"], ["gate_proj", "up_proj", "down_proj"]),
    "qwen3": (Qwen3Config(head_dim=16, **SIZES), ["q_proj", "o_proj"], ["up_proj"]),
    "gpt2": (GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3, bos_token_id=None,
                        eos_token_id=None), ["c_attn"], ["c_fc"]),
}


def write_adapters(config, few, others, folder):
    """Writes the base, and adapters of different ranks, factors and modules with random B; returns their names."""
    base = folder + "/base"
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    kinds = {"few": dict(r=3, lora_alpha=7, target_modules=few), "others": dict(r=16, lora_alpha=4, use_rslora=True, target_modules=others),
             "all": dict(r=8, lora_alpha=8, target_modules=few + others)}
    for name, settings in kinds.items():
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), LoraConfig(**settings, lora_dropout=0.0,
                               fan_in_fan_out=isinstance(config, GPT2Config), task_type="CAUSAL_LM"))
        with torch.no_grad():
            for key, value in model.named_parameters():
                if "lora_" in key:
                    value.normal_(std=0.3)
        model.save_pretrained(f"{folder}/{name}")
    return list(kinds)


def text_of(model, prompt, adapter):
    if adapter:
        model.set_adapter(adapter)
    with torch.no_grad(), contextlib.nullcontext() if adapter else model.disable_adapter():
        ids = model.generate(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=TOKENS, do_sample=False,
                             pad_token_id=0)
        scores = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=-1)
    drawn = ids[0, len(prompt):].tolist()
    return drawn, [scores[len(prompt) + i - 1, token].item() for i, token in enumerate(drawn)]


def check(name, smelt, prompts):
    rng = random.Random(1)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        names = write_adapters(*MODELS[name], folder)
        lines = [{"tokens": [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40))], "adapter": rng.choice([None, *names])} for _ in range(prompts)]
        with open(folder + "/p.jsonl", "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        words = [smelt, "generate", folder + "/base", folder + "/p.jsonl", "text=false", "temperature=0", f"tokens={TOKENS}", "precision=fp32",
                 "device=cpu", "slots=16", "adapters=" + json.dumps({adapter: f"{folder}/{adapter}" for adapter in names})]
        results = [json.loads(line) for line in subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()]
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder + "/base", dtype=torch.float32), f"{folder}/{names[0]}", names[0])
        for adapter in names[1:]:
            model.load_adapter(f"{folder}/{adapter}", adapter)
        differing, worst, same_as_base = 0, 0.0, 0
        for line, result in zip(lines, results, strict=True):
            drawn, scores = text_of(model.eval(), line["tokens"], line["adapter"])
            differing += drawn != result["ids"]
            if drawn == result["ids"]:
                worst = max(worst, max(abs(a - b) for a, b in zip(scores, result["logprobs"])))
            same_as_base += line["adapter"] is not None and drawn == text_of(model, line["tokens"], None)[0]
        print(f"{name}: {prompts} texts of {TOKENS} tokens, {differing} differ; log-probabilities within {worst:.1e}; {same_as_base} texts of adapters "
              "are the base's")
        return not differing and worst < 1e-4 and same_as_base < prompts / 4


def main():
    smelt, prompts = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    return 0 if all([check(name, smelt, prompts) for name in MODELS]) else 1


sys.exit(main())
