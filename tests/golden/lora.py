"""Writes what tests/model/test_lora.c compares with: adapters that PEFT trains beside models of tests/golden, in float32.

    python tests/golden/lora.py            needs torch, transformers and peft

lora/FAMILY.safetensors holds tokens [sequences, length + 1] as in make.py; start/NAME, the adapters before the first step (B is not zero, so that both halves
have gradients from the first step on); gradient/NAME there; trained/NAME after ten steps with AdamW, whose losses before each are `losses`; and the logits
after them.
"""
import os

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, LENGTH, STEPS, LR, DECAY, RANK, ALPHA = 2, 24, 10, 0.003, 0.1, 3, 8
TARGETS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "zaya": ["q_proj", "k_proj", "v_proj_current", "v_proj_delayed", "o_proj"],
}


def loss_of(model, tokens):
    logits = model(tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), logits.flatten(0, 1)


def adapters(model):
    """By the names that smelt gives them."""
    return {name.replace("base_model.model.", "").replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}


def write(family):
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, family), dtype=torch.float32, attn_implementation="eager")
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2", task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    for name, p in adapters(model).items():
        if "lora_B" in name:
            p.data = torch.randn_like(p) * 0.1
    expected = {"start/" + name: p.detach().clone() for name, p in adapters(model).items()}
    tokens = torch.randint(0, base.config.vocab_size, (SEQUENCES, LENGTH + 1))
    optimizer = torch.optim.AdamW(adapters(model).values(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = loss_of(model, tokens)
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            expected |= {"gradient/" + name: p.grad.clone() for name, p in adapters(model).items()}
        optimizer.step()
    expected |= {"trained/" + name: p.detach() for name, p in adapters(model).items()}
    expected |= {"tokens": tokens.int(), "losses": torch.stack(losses), "logits": loss_of(model, tokens)[1].detach()}
    folder = os.path.join(HERE, "lora")
    os.makedirs(folder, exist_ok=True)
    save_file({key: value.contiguous() for key, value in expected.items()}, os.path.join(folder, family + ".safetensors"))
    print(f"{family:6s} {sum(p.numel() for p in adapters(model).values()):6d} trained parameters, losses {losses[0]:.5f} to {losses[-1]:.5f}")


for name in TARGETS:
    write(name)
