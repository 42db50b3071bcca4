"""Folders of gpt-oss with experts in MXFP4, against transformers, which dequantizes them on a CPU:

    python tests/golden/check_mxfp4.py [BUILD]

A folder of random values and scales, as OpenAI's are, becomes the bf16 folder of transformers' own dequantization, bit by bit; `smelt convert dtype=mxfp4` copies it
bit by bit, also into shards; and what it writes from that bf16 folder has the same logits in transformers. Needs torch, transformers 5 and accelerate. Exits with 1
when something differs."""
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

SHAPE = dict(vocab_size=300, num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=3,
             num_experts_per_tok=2, max_position_embeddings=128, rope_parameters=dict(rope_type="default", rope_theta=1e4))


def write(folder, tensors, config, more):
    os.makedirs(folder)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({key: value for key, value in config.items() if key != "dtype"} | {"architectures": ["GptOssForCausalLM"]} | more, file)


def make(packed, plain):
    """The same random model in MXFP4 and dequantized."""
    torch.manual_seed(3)
    config = AutoConfig.for_model("gpt_oss", **SHAPE)
    tensors = {name: tensor.contiguous() for name, tensor in AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict().items()}
    coded = dict(tensors)
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, columns, rows = tensor.shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(100, 132, (experts, rows, columns // 32), dtype=torch.uint8)
        del coded[name]
        coded |= {name + "_blocks": blocks, name + "_scales": scales}
        tensors[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
    write(packed, coded, config.to_dict(), {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}})
    write(plain, tensors, config.to_dict(), {"dtype": "bfloat16"})


def stored(folder):
    tensors = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            tensors |= load_file(os.path.join(folder, name))
    return tensors


def same(left, right):
    a, b = stored(left), stored(right)
    return a.keys() == b.keys() and all(torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)) for name in a)


@torch.no_grad()
def logits_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()(torch.arange(40)[None] * 7 % 300).logits


def main():
    smelt = os.path.join(sys.argv[1] if len(sys.argv) > 1 else "build", "smelt")
    with tempfile.TemporaryDirectory() as scratch:
        packed, plain, dequantized, copy, written = (os.path.join(scratch, name) for name in ("packed", "plain", "dequantized", "copy", "written"))
        make(packed, plain)
        for source, out, words in ((packed, dequantized, []), (packed, copy, ["dtype=mxfp4", "shard_bytes=20000"]), (plain, written, ["dtype=mxfp4"])):
            subprocess.run([smelt, "convert", source, out, "tokenizer=none", *words], check=True, stdout=subprocess.DEVNULL)
        results = {"dequantized": same(dequantized, plain), "copied": same(copy, packed), "written": torch.equal(logits_of(written), logits_of(plain))}
    print(results)
    sys.exit(0 if all(results.values()) else 1)


main()
