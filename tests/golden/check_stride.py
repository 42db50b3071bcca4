#!/usr/bin/env python3
"""Compares `smelt eval stride=` with transformers' guide to perplexity (perplexity.md), on a small random Llama, and prints a line.

    check_stride.py SMELT

The windows and the targets of each are the guide's, with max_length = length + 1, because its windows include the last
target. The mean is over all targets; the guide weighs each window with one target less than it has. Needs torch and
transformers.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TEXT = "/usr/share/common-licenses/GPL-3"


def loss_of_transformers(model, ids, max_length, stride):
    total, count, before = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + max_length, len(ids))
        window = torch.tensor([ids[begin:end]])
        labels = window.clone()
        labels[:, : -(end - before)] = -100
        targets = (labels[:, 1:] != -100).sum().item()
        with torch.no_grad():
            total += model(window, labels=labels).loss.item() * targets
        count, before = count + targets, end
        if end == len(ids):
            return total / count, count


def main():
    smelt, worst = os.path.abspath(sys.argv[1]), 0.0
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(TEXT, "rb") as file:
            data = file.read()[:3000]
        with open(folder + "/text", "wb") as file:
            file.write(data)
        subprocess.run([smelt, "data", "pack", folder + "/text", folder + "/shard"], check=True, capture_output=True)
        ids = list(data) + [256]
        for length, stride in ((64, 64), (64, 16), (100, 37), (128, 1), (50, 49)):
            words = [smelt, "eval", folder, folder + "/shard", f"length={length}", f"stride={stride}", "precision=fp32", "device=cpu", "json=true"]
            result = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            fields = json.loads(result)
            expected, count = loss_of_transformers(model, ids, length + 1, stride)
            if fields["tokens"] != count:
                sys.exit(f"length={length} stride={stride}: {fields['tokens']} targets, transformers {count}")
            worst = max(worst, abs(fields["loss"] - expected))
    print(f"stride: 5 perplexities of {len(ids)} tokens, losses within {worst:.1e}")
    return 1 if worst > 1e-4 else 0


if __name__ == "__main__":
    sys.exit(main())
