"""Exported folders in transformers: random models of every family, exported by `smelt convert`, must give smelt's logits there,
and a run on a packed shard its tokenizer and text.

Needs torch and transformers 5. Usage, from the repository after `make`:  python tests/golden/check_export.py [BUILD]
Exits with 1 when a logit differs by more than 1e-4 in fp32, or the tokenizer gives other ids than the bytes of a text.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import random_run
from random_run import COMMON, MODELS, TEXT


def load(folder, dtype):
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise SystemExit(f"{folder}: {kind}: {report[kind]}")
    return model.eval()


def check_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = TEXT + "".join(map(chr, range(1, 0x180))) + "\U0001f600  \n\n x"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode()), "the tokenizer's ids are not the bytes"
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text, "decoding does not give the text back"
    assert tokenizer("a<|separator|>b")["input_ids"] == [97, 256, 98], "the separator is not token 256"
    assert tokenizer.eos_token_id == 256


def check(name, settings, smelt, program, scratch):
    run, out = (os.path.join(scratch, name.replace(" ", "_") + suffix) for suffix in (".run", ".hf"))
    subprocess.run([program, "make", run, *COMMON, *settings], check=True)
    subprocess.run([smelt, "convert", run, out], check=True, stderr=subprocess.DEVNULL)
    ours = torch.tensor([float(line) for line in subprocess.run([program, "logits", run, TEXT], check=True, capture_output=True, text=True).stdout.split()])
    model = load(out, torch.float32)
    ids = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        theirs = model(ids).logits[0, -1]
    difference = (ours - theirs).abs().max().item()
    check_tokenizer(out)
    greedy = subprocess.run([smelt, "generate", run, TEXT, "temperature=0", "tokens=1"], check=True, capture_output=True).stdout
    assert greedy.startswith(TEXT.encode())
    subprocess.run([smelt, "convert", run, out, "dtype=bf16", "overwrite=true"], check=True, stderr=subprocess.DEVNULL)
    half = load(out, torch.float32)
    with torch.no_grad():
        rounded = (half(ids).logits[0, -1] - theirs).abs().max().item()
    assert AutoConfig.from_pretrained(out).dtype == torch.bfloat16
    architecture = json.load(open(os.path.join(out, "config.json")))["architectures"][0]
    print(f"{name:36s} {architecture:20s} max |logit| {theirs.abs().max():7.3f}  max difference {difference:.2e}  (bf16 weights: {rounded:.2e})")
    return difference < 1e-4


def check_packed(smelt, scratch):
    """A run on a shard that records its tokenizer: transformers' AutoTokenizer and generate() give smelt's text."""
    vocabulary, shard, run, folder = (os.path.join(scratch, name) for name in ("bpe.json", "shard", "run", "folder"))
    settings = ["data.train=" + shard, "model.family=llama", "model.width=64", "model.layers=2", "model.ffn=128", "data.length=64", "batch.sequences=8",
                "batch.tokens=1024", "optimizer.lr=5e-3", "steps=150", "precision=fp32", "device=cpu", "run=" + run]
    for arguments in (["data", "train-tokenizer", "docs", vocabulary, "vocabulary=600"], ["data", "pack", "docs", shard, "tokenizer=" + vocabulary],
                      ["train", *settings], ["convert", run, folder]):
        subprocess.run([smelt, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    prompt = "The checkpoint of a run"
    ours = subprocess.run([smelt, "generate", run, prompt, "tokens=40", "temperature=0", "device=cpu"], check=True, capture_output=True, text=True).stdout
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load(folder, torch.float32)
    ids = tokenizer(prompt, return_tensors="pt")
    theirs = tokenizer.decode(model.generate(**ids, max_new_tokens=40, do_sample=False)[0], skip_special_tokens=True)
    same = ours.rstrip("\n") == theirs.rstrip("\n") and len(theirs) > len(prompt) + 20
    print(f"a packed shard's tokenizer          {len(tokenizer)} tokens in {model.config.vocab_size} rows: {'the same text' if same else [ours, theirs]}")
    return same


def main():
    build_folder = sys.argv[1] if len(sys.argv) > 1 else "build"
    with tempfile.TemporaryDirectory() as scratch:
        program = random_run.build(build_folder, scratch)
        results = [check(name, settings, os.path.join(build_folder, "smelt"), program, scratch) for name, settings in MODELS.items()]
        results.append(check_packed(os.path.join(build_folder, "smelt"), scratch))
    sys.exit(0 if all(results) else 1)


main()
