"""Greedy text of the engine: for random models of every family, 200 prompts of ragged lengths must get the tokens of single-sequence `smelt generate`, in any
number of slots, and those of transformers' generate, in fp32.

Needs torch and transformers 5. Usage, from the repository after `make`:  python tests/golden/check_greedy.py [BUILD] [FAMILY ...]
A row counts the sequences that differ. Rounding alone may decide between two tokens, or between two experts of a router. Therefore each first differing token
is looked up in transformers' forward pass over the text before it, without caches: "gap" is the largest excess of its largest logit over the logit of our
token. 0 means that this pass chooses our token. Tokens after the first difference are not compared, because they continue different texts. Exits with 1 if a
token differs between numbers of slots or from single sequences, or if a gap is above 1e-4.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)  # more only wait for each other
HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = ("zaya", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "mpt", "gpt2", "olmo2", "olmo3", "olmoe", "gemma2", "gemma3_text", "smollm3",
            "phi3", "granite", "granitemoe", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "minimax_m2", "ministral3", "qwen3_5_text",
            "qwen3_5_moe_text", "qwen3_next")
PROMPTS, TOKENS, VOCABULARY, CONTEXT, SLOTS, TIE = 200, 24, 320, 256, (1, 3, 16, 64), 1e-4
POSITIONS = {"gpt2": "n_positions", "mpt": "max_seq_len"}
SETTINGS = ["device=cpu", "precision=fp32", "threads=1", "text=false", "temperature=0", f"tokens={TOKENS}"]


def make_model(family, folder):
    """Random weights in the shape of tests/golden/FAMILY, with more tokens and positions."""
    torch.manual_seed(5)
    config = AutoConfig.from_pretrained(os.path.join(HERE, family))
    config.vocab_size = VOCABULARY
    setattr(config, POSITIONS.get(family, "max_position_embeddings"), CONTEXT)
    if family == "phi3":  # texts that exceed it cannot be cached
        config.original_max_position_embeddings = config.rope_parameters["original_max_position_embeddings"] = CONTEXT // 2
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(std=0.15)
    model.save_pretrained(folder)
    return model


def make_prompts():
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 91, (24,), generator=generator)
    return [torch.randint(0, VOCABULARY, (int(lengths[i % 24]),), generator=generator).tolist() for i in range(PROMPTS)]


def engine(smelt, folder, prompts, slots):
    path, out = folder + ".jsonl", folder + ".out.jsonl"
    with open(path, "w") as file:
        file.writelines(json.dumps({"tokens": prompt}) + "\n" for prompt in prompts)
    subprocess.run([smelt, "generate", folder, path, f"slots={slots}", "out=" + out, "overwrite=true", *SETTINGS], check=True, stderr=subprocess.DEVNULL)
    return [json.loads(line)["ids"] for line in open(out)]


def alone(smelt, folder, prompt):
    words = " ".join(map(str, prompt))
    out = subprocess.run([smelt, "generate", folder, words, *SETTINGS], check=True, capture_output=True, text=True).stdout
    return list(map(int, out.split()))[len(prompt):]


def theirs(model, prompts):
    """The tokens of generate, in batches of prompts of one length, which need no padding."""
    result = [None] * len(prompts)
    for length in {len(prompt) for prompt in prompts}:
        places = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.tensor([prompts[i] for i in places])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
        for i, row in zip(places, made[:, length:].tolist()):
            result[i] = row
    return result


def first_difference(ours, others):
    return next((i for i, (a, b) in enumerate(zip(ours, others)) if a != b), None if len(ours) == len(others) else min(len(ours), len(others)))


def check(family, smelt, scratch):
    folder = os.path.join(scratch, family)
    model, prompts = make_model(family, folder), make_prompts()
    got = {slots: engine(smelt, folder, prompts, slots) for slots in SLOTS}
    ours = got[SLOTS[-1]]
    among = sum(first_difference(a, b) is not None for slots in SLOTS for a, b in zip(got[slots], ours))
    single = sum(first_difference(alone(smelt, folder, prompt), a) is not None for prompt, a in zip(prompts, ours))
    same, differing, gap, tokens = True, 0, 0.0, 0
    with torch.no_grad():
        reference = theirs(model, prompts)
        spread = model(torch.tensor([prompts[0]])).logits.float().std().item()
        for prompt, a, b in zip(prompts, ours, reference):
            tokens += len(a)
            at = first_difference(a, b)
            if at is None:
                continue
            differing += 1
            logits = model(torch.tensor([prompt + a[:at]])).logits[0, -1]
            gap = max(gap, (logits.max() - logits[a[at]]).item() if at < min(len(a), len(b)) else float("inf"))
    distinct = len({tuple(a) for a in ours})
    print(f"| {family} | {PROMPTS} | {tokens} | {distinct} | {among} | {single} | {differing} | {gap:.1e} | {spread:.2f} |", flush=True)
    return among == 0 and single == 0 and gap <= TIE and tokens == PROMPTS * TOKENS


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    families = sys.argv[2:] or FAMILIES
    print("| family | prompts | tokens | distinct texts | differ between slots | from single | from transformers | gap | std of logits |\n" + "|---" * 9 + "|")
    with tempfile.TemporaryDirectory() as scratch:
        results = [check(family, os.path.join(build, "smelt"), scratch) for family in families]
    sys.exit(0 if all(results) else 1)


main()
