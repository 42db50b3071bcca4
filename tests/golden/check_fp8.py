"""Folders of `smelt convert RUN OUT dtype=fp8` in transformers with compressed-tensors, which is also vLLM's reader of the layout: codes
and scales must be those that PyTorch computes of the same weights, bit for bit; loaded with dequantized weights, logits must be those
of smelt for a folder with these numbers; computed by compressed-tensors with activations in FP8 too, they must be near them.

Needs torch, transformers 5 and compressed-tensors. Usage, from the repository after `make`:  python tests/golden/check_fp8.py [BUILD]
Exits with 1 when a bit of a tensor differs, a logit by more than 1e-4 in fp32, or the logits by more than 15% of their norm with
activations in FP8: rounding them to three bits of mantissa is an error of 2% to 3% in each GEMM, a wrong sign or scale one of 100%.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

import random_run
from random_run import COMMON, MODELS, TEXT

SETTINGS = {name: MODELS[name] for name in ("llama", "mistral (llama with a window)", "qwen2")}
SETTINGS["llama, tied"] = [*MODELS["llama, tied"], "model.head_dim=32"]
SETTINGS["qwen3"] = [*MODELS["qwen3"], "model.head_dim=24"]
REFUSED = {"mixtral": "family llama without experts", "mpt": "family llama without experts", "gpt2": "family llama without experts",
           "qwen3": "multiples of 16"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def expected_cast(weight):
    """One power of two per row, with which the largest magnitude stays at or below 448."""
    amax = weight.abs().amax(dim=1, keepdim=True).double().clamp(min=1e-12)
    scale = torch.exp2(-torch.floor(torch.log2(448 / amax))).float()
    return (weight.float() / scale).to(torch.float8_e4m3fn), scale


def check_tensors(plain, stored):
    """Returns the weights that the codes stand for."""
    dense, converted = {}, 0
    for name, weight in plain.items():
        linear = weight.dim() == 2 and "embed" not in name and name != "lm_head.weight"
        if not linear:
            assert torch.equal(stored[name], weight) and stored[name].dtype == weight.dtype, name
            dense[name] = weight.float()
            continue
        codes, scale = expected_cast(weight)
        assert stored[name].dtype == torch.float8_e4m3fn and stored[name + "_scale"].dtype == torch.float32
        assert torch.equal(stored[name].view(torch.uint8), codes.view(torch.uint8)), f"{name}: codes differ from torch's"
        assert torch.equal(stored[name + "_scale"], scale), f"{name}: scales differ"
        dense[name] = codes.float() * scale
        converted += 1
    assert converted and len(stored) == len(plain) + converted
    return dense


def logits(folder, dequantize):
    config = CompressedTensorsConfig(dequantize=True) if dequantize else None
    arguments = {"quantization_config": config} if config else {}
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **arguments)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise SystemExit(f"{folder}: {kind}: {report[kind]}")
    with torch.no_grad():
        return model.eval()(torch.tensor([list(TEXT.encode())])).logits[0, -1]


def check(name, settings, precision, smelt, program, scratch):
    made, plain, fp8, numbers = (os.path.join(scratch, f"{name.split(',')[0].split()[0]}-{precision}-{len(settings)}.{suffix}")
                                 for suffix in ("run", "hf", "fp8", "numbers"))
    run(program, "make", made, *COMMON, *settings, f"precision={precision}")
    run(smelt, "convert", made, plain)
    run(smelt, "convert", made, fp8, "dtype=fp8")
    again = fp8 + ".again"
    run(smelt, "convert", plain, again, "dtype=fp8")
    stored = load_file(os.path.join(fp8, "model.safetensors"))
    with open(os.path.join(fp8, "model.safetensors"), "rb") as a, open(os.path.join(again, "model.safetensors"), "rb") as b:
        assert a.read() == b.read(), "a folder's conversion differs from its run's"
    dense = check_tensors(load_file(os.path.join(plain, "model.safetensors")), stored)
    subprocess.run(["cp", "-r", plain, numbers], check=True)
    save_file(dense, os.path.join(numbers, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(numbers, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(numbers, "config.json"), "w") as file:
        json.dump({**config, "dtype": "float32"}, file)
    ours = torch.tensor([float(line) for line in run(program, "logits", numbers, TEXT).split()])
    theirs, rounded = logits(fp8, True), logits(fp8, False)
    difference, largest = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    activations = ((rounded - theirs).norm() / theirs.norm()).item()
    print(f"{name:32s} {precision}: max |logit| {largest:7.3f}  max difference {difference:.2e}  with activations in FP8 {activations:.1%} of the norm")
    return difference < 1e-4 and 0 < activations < 0.15


def check_refused(name, text, smelt, program, scratch):
    made = os.path.join(scratch, "refused-" + name)
    run(program, "make", made, *COMMON, *MODELS[name])
    result = subprocess.run([smelt, "convert", made, made + ".fp8", "dtype=fp8"], capture_output=True, text=True)
    return result.returncode == 2 and text in result.stderr and not os.path.exists(made + ".fp8")


def main():
    build_folder = sys.argv[1] if len(sys.argv) > 1 else "build"
    smelt = os.path.join(build_folder, "smelt")
    with tempfile.TemporaryDirectory() as scratch:
        program = random_run.build(build_folder, scratch)
        results = [check(name, settings, precision, smelt, program, scratch) for name, settings in SETTINGS.items() for precision in ("fp32", "bf16")]
        results += [check_refused(name, text, smelt, program, scratch) for name, text in REFUSED.items()]
    sys.exit(0 if all(results) else 1)


main()
