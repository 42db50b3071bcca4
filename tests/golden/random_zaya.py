"""Writes a folder of ZAYA1 with random weights in bf16, in shards, as large as the published one: what loads in bounded memory is proved with it by hand.

    python tests/golden/random_zaya.py FOLDER [LAYERS]            needs torch and transformers; 17.7 GB with the 40 layers of ZAYA1-8B

Weights repeat a million normal values of deviation 0.02; vectors are those that training starts from. Then, with the memory of one tensor:
    /usr/bin/time -v smelt convert FOLDER COPY tokenizer=none
"""
import json
import os
import struct
import sys

import torch
from transformers import AutoModelForCausalLM, ZayaConfig

SHARD = 5 << 30
folder, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
os.makedirs(folder)
config = ZayaConfig(num_hidden_layers=layers, dtype="bfloat16")
config.architectures = ["ZayaForCausalLM"]
config.save_pretrained(folder)
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config)
tensors = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"}
normals = (torch.randn(1 << 20) * 0.02).bfloat16().view(torch.int16).numpy().tobytes()
shards = [[]]
for name, tensor in tensors.items():
    if sum(2 * tensors[n].numel() for n in shards[-1]) + 2 * tensor.numel() > SHARD and shards[-1]:
        shards.append([])
    shards[-1].append(name)
index = {}
for number, names in enumerate(shards):
    file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
    header, offset = {}, 0
    for name in names:
        size = 2 * tensors[name].numel()
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [offset, offset + size]}
        offset += size
        index[name] = file
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, file), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            left = 2 * tensors[name].numel()
            scale = tensors[name].dim() == 1 and not name.endswith(("bias", "biases"))
            source = b"\x80\x3f" * (1 << 20) if scale else bytes(2 << 20) if tensors[name].dim() == 1 else normals
            while left:
                out.write(source[: min(left, len(source))])
                left -= min(left, len(source))
total = sum(2 * t.numel() for t in tensors.values())
with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
    json.dump({"metadata": {"total_size": total}, "weight_map": index}, out)
print(f"{len(tensors)} tensors, {total / 1e9:.1f} GB in {len(shards)} shards")
