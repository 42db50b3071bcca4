"""Writes what tests/model/test_lora.c compares with: adapters that PEFT trains beside models of tests/golden, in float32.

    python tests/golden/lora.py [NAME...]  needs torch, transformers and peft (made with 2.15.0, 5.23.0 and 0.21.2; names with "-" with transformers 5.24.0)

lora/FAMILY.safetensors holds tokens [sequences, length + 1] as in make.py; start/NAME, the adapters before the first step (B is not zero, so that both halves
have gradients from the first step on); gradient/NAME there; trained/NAME after ten steps with AdamW, whose losses before each are `losses`; and the logits
after them. lora/FAMILY/ is what PEFT saves then.

PEFT stacks the adapters of experts: A is [experts * rank, in], B [out, rank * experts] with the expert as the fastest index, and calls the inner one of two in
a module base_layer (peft/tuners/lora/layer.py, ParamWrapper). NAME is smelt's, A [experts, rank, in] and B [experts, out, rank].

FAMILY-tables trains the embedding and the head beside the adapters (modules_to_save), FAMILY-rows their rows of a few tokens (trainable_token_indices); they
start as the base has them.
"""
import os
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, LENGTH, STEPS, LR, DECAY, RANK, ALPHA = 2, 24, 10, 0.003, 0.1, 3, 8
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
IDS = [3, 4, 5, 9, 61, 62, 63]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
FAMILIES = {
    "llama": dict(target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"]),
    "qwen3": dict(target_modules=["q_proj", "v_proj", "layers.1.mlp.down_proj"], use_rslora=True),
    "gpt2": dict(target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    "mixtral": dict(target_modules=ATTENTION, target_parameters=EXPERTS + ["mlp.gate.weight"]),
    "zaya": dict(target_modules=["q_proj", "k_proj", "v_proj_current", "v_proj_delayed", "o_proj", "gate.down_proj", "fc1", "fc2", "out_proj"],
                 target_parameters=EXPERTS),
    "llama-tables": dict(target_modules=["q_proj", "v_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    "qwen2-tables": dict(target_modules=["q_proj", "v_proj"], modules_to_save=["embed_tokens", "lm_head"], ensure_weight_tying=True),
    "llama-rows": dict(target_modules=["q_proj", "v_proj"], trainable_token_indices={"embed_tokens": IDS, "lm_head": IDS}),
    "qwen2-rows": dict(target_modules=["q_proj", "v_proj"], trainable_token_indices=IDS),
    "zaya-rows": dict(target_modules=["q_proj", "o_proj"], trainable_token_indices=IDS),
    "zaya-tables": dict(target_modules=["q_proj", "o_proj"], modules_to_save=["embed_tokens", "lm_head"], ensure_weight_tying=True),
}


def loss_of(model, tokens):
    logits = model(tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), logits.flatten(0, 1)


def adapters(model):
    """By PEFT's names without its prefix, those of the folder."""
    return {name.replace("base_model.model.", "").replace(".modules_to_save", "").replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}


def in_smelt(name, values, experts):
    """The name and the values of an adapter of PEFT in smelt."""
    for theirs, ours in ((".experts.base_layer.lora_", ".experts.gate_up_proj.lora_"), (".experts.lora_", ".experts.down_proj.lora_")):
        if theirs in name:
            half = values.reshape(experts, RANK, -1) if "lora_A" in name else values.reshape(-1, RANK, experts).permute(2, 0, 1)
            return name.replace(theirs, ours), half
    return name, values


def write(family):
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, family.split("-")[0]), dtype=torch.float32, attn_implementation="eager")
    experts = getattr(base.config, "num_experts", None) or getattr(base.config, "num_local_experts", None)
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, task_type="CAUSAL_LM", **FAMILIES[family]))
    expected = {}

    def keep(kind, tensors):
        for name, values in tensors.items():
            ours, half = in_smelt(name, values.detach(), experts)
            expected[kind + ours] = half.clone()

    for name, p in adapters(model).items():
        if "lora_B" in name:
            p.data = torch.randn_like(p) * 0.1
    keep("start/", adapters(model))
    tokens = torch.randint(0, base.config.vocab_size, (SEQUENCES, LENGTH + 1))
    optimizer = torch.optim.AdamW(adapters(model).values(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = loss_of(model, tokens)
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            keep("gradient/", {name: p.grad for name, p in adapters(model).items()})
        optimizer.step()
    keep("trained/", adapters(model))
    expected |= {"tokens": tokens.int(), "losses": torch.stack(losses), "logits": loss_of(model, tokens)[1].detach()}
    folder = os.path.join(HERE, "lora", family)
    save_file({key: value.contiguous() for key, value in expected.items()}, folder + ".safetensors")
    model.peft_config["default"].base_model_name_or_path = "tests/golden/" + family.split("-")[0]
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    print(f"{family:7s} {sum(p.numel() for p in adapters(model).values()):6d} trained parameters, losses {losses[0]:.5f} to {losses[-1]:.5f}")


os.makedirs(os.path.join(HERE, "lora"), exist_ok=True)
for name in sys.argv[1:] or FAMILIES:
    write(name)
