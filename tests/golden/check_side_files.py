#!/usr/bin/env python3
"""Compares smelt with transformers on folders as their users save them: tokenizers of every form with their side files, models, adapters and data sets.

    tests/golden/check_side_files.py [--smelt build/smelt] [--keep FOLDER] [NAME ...]

Needs Python with transformers, tokenizers, sentencepiece, peft, datasets and torch (5.24, 0.23, 0.2, 0.21, 5.2 and 2.x were used). Each folder is made by
these libraries from a small vocabulary. Then smelt's ids of texts (special tokens matched, template added), ids and masks of conversations, and the token
that ends a document must be those of transformers, or smelt refuses the folder and says why; a folder that must be read is marked so. Stop tokens, sampling
settings and templates of a model must be the same after a step of training and `smelt convert`. Prints a line for each folder and fails where one is wrong."""
import argparse
import dataclasses
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import peft
import torch
import transformers
from transformers import AutoTokenizer

from side_folders import CHAT, FOLDERS, LIBRARIES, OPTIONAL, TEMPLATE, TEXTS, fast, write
from side_models import DATA, FIELDS, MODELS, REFUSED, counting

transformers.logging.set_verbosity_error()
LENGTH = 40


# -- Comparing ------------------------------------------------------------------------------------------------------------------------------


def run(*words, text=None):
    done = subprocess.run(list(map(str, words)), input=text, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def first_line(errors):
    lines = [line for line in errors.splitlines() if line.startswith("error")]
    return (lines or errors.splitlines() or [""])[0]


def shard(prefix):
    """Documents as ids and masks; a document's sequences are untrained and trained in turn where the shard has masks."""
    with open(prefix + ".bin", "rb") as file:
        data = file.read()
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    sequences, bounds = struct.unpack_from("<qq", index, 18)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    documents = struct.unpack_from(f"<{bounds}q", index, 34 + 12 * sequences)
    ids, found, at = struct.unpack(f"<{len(data) // 2}H", data), [], 0
    for begin, end in zip(documents, documents[1:]):
        own, mask = [], []
        for i in range(begin, end):
            own += ids[at:at + lengths[i]]
            mask += [(i - begin) % 2] * lengths[i]
            at += lengths[i]
        found.append((own, mask))
    return found


class Library:
    """A tokenizer of another library than transformers."""
    chat_template = None

    def __init__(self, encode, end):
        self.encode, self.eos_token_id = encode, end

    def __call__(self, text):
        return {"input_ids": self.encode(text)}


def compare(smelt, path, place, required, load=None):
    """None where all is equal, else a line that says what differs; the reason of a refusal begins with 'refused'."""
    reference = Library(*load(path)) if load else AutoTokenizer.from_pretrained(path)
    for text in TEXTS:
        file = next((f"{path}/{name}" for name in ("tokenizer.json", "tokenizer.model") if os.path.exists(f"{path}/{name}")), path)
        code, out, errors = run(smelt, "data", "encode", file, "special=true", "template=true", "documents=json", text=json.dumps({"text": text}) + "\n")
        if code:
            return ("" if not required else "must be read, but is ") + "refused: " + first_line(errors)
        own, theirs = [int(word) for word in out.split()], reference(text)["input_ids"]
        if own != theirs:
            return f"ids of {text!r} are {own} and not {theirs}"
    write(place, "text.txt", "hello world\n")
    code, out, errors = run(smelt, "data", "pack", f"{place}/text.txt", f"{place}/text", f"tokenizer={path}", "overwrite=true")
    if code and reference.eos_token_id is not None:
        return "refused: " + first_line(errors)
    if not code and reference.eos_token_id is not None and shard(f"{place}/text")[0][0][-1] != reference.eos_token_id:
        return f"a document ends with {shard(f'{place}/text')[0][0][-1]} and not {reference.eos_token_id}"
    if not reference.chat_template:
        return None
    with open(f"{place}/chat.jsonl", "w") as file:
        file.write("".join(json.dumps(record) + "\n" for record in CHAT))
    code, out, errors = run(smelt, "data", "pack", f"{place}/chat.jsonl", f"{place}/chat", f"tokenizer={path}", "format=chat", "overwrite=true")
    if code:
        return "conversations are refused: " + first_line(errors)
    for record, (own, mask) in zip(CHAT, shard(f"{place}/chat")):
        theirs = reference.apply_chat_template(record["messages"], tools=record.get("tools"), tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        if own != theirs["input_ids"]:
            return f"a conversation is {own} and not {theirs['input_ids']}"
        if mask != theirs["assistant_masks"]:
            return f"of a conversation {own} is trained {mask} and not {theirs['assistant_masks']}"
    return None


GENERATIONS = {"one_end": {"eos_token_id": 2}, "three_ends": {"eos_token_id": [0, 1, 2], "pad_token_id": 0, "bos_token_id": 1},
               "sampling": {"eos_token_id": [2, 0], "do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "pad_token_id": 0, "max_length": 99}}


def generated(smelt, model, prompt):
    """The ids that smelt writes after a prompt of one; a text that says why it wrote none."""
    code, out, errors = run(smelt, "generate", model, str(prompt), "text=false", "temperature=0", f"tokens={LENGTH}", "device=cpu", "precision=fp32")
    return "refused: " + first_line(errors) if code else [int(word) for word in out.split()][1:]


def stopped(ids, ends):
    """The ids before the first that ends a text: smelt does not write it."""
    return next((ids[:i] for i, one in enumerate(ids) if one in ends), ids)


def reference_model(folder, base):
    if os.path.exists(f"{folder}/adapter_config.json"):
        rows = len(AutoTokenizer.from_pretrained(folder)) if os.path.exists(f"{folder}/tokenizer.json") else 0
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        if rows > model.config.vocab_size:
            model.resize_token_embeddings(rows)
        return peft.PeftModel.from_pretrained(model, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def compare_model(smelt, make, place, required):
    """A folder that was saved, and what `smelt convert` makes of it."""
    folder, base, out = (f"{place}/{name}" for name in ("folder", "base", "out"))
    make(folder, base)
    is_adapter = os.path.exists(f"{folder}/adapter_config.json")
    source = f"{folder}@{base}" if is_adapter else folder
    model = reference_model(folder, base).float()
    ends = model.generation_config.eos_token_id
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    for prompt in (0, 3, 290, 316):
        theirs = model.generate(torch.tensor([[prompt]]), max_new_tokens=LENGTH, do_sample=False, repetition_penalty=1.0, suppress_tokens=None, bad_words_ids=None, no_repeat_ngram_size=0, stop_strings=None,
                                forced_eos_token_id=None, cache_implementation=None, pad_token_id=0)[0].tolist()[1:]
        own = generated(smelt, source, prompt)
        if isinstance(own, str):
            return ("must be read, but is " if required else "") + own
        if own != stopped(theirs, ends):
            return f"after {prompt} it writes {own} and not {stopped(theirs, ends)}"
    code, _, errors = run(smelt, "convert", source, out, "dtype=fp32" if is_adapter else "dtype=same")
    if code:
        return ("must be written, but is " if required else "") + "refused: " + first_line(errors)
    again = reference_model(out, base).float()
    ids = torch.arange(0, 300, 7)[None]
    with torch.no_grad():
        apart = (model(ids).logits - again(ids).logits).abs().max().item()
    if apart > 1e-4:
        return f"logits of what convert wrote are {apart} apart"
    before, after = (settings_of(f) for f in ((base if is_adapter else folder), out))
    if {"pad_token_id": after.get("pad_token_id"), **before} != {"pad_token_id": None, **after}:  # smelt gives those without padding an end for it
        return f"generation_config.json is {after} and not {before}"
    tokens = folder if os.path.exists(f"{folder}/tokenizer.json") else base
    one, two = AutoTokenizer.from_pretrained(tokens), AutoTokenizer.from_pretrained(out)
    for name in ("chat_template", "special_tokens_map", "added_tokens_decoder", "model_max_length"):
        if getattr(one, name) != getattr(two, name):
            return f"{name} of the tokenizer is {getattr(two, name)} and not {getattr(one, name)}"
    if one.backend_tokenizer.to_str() != two.backend_tokenizer.to_str():
        return "the tokenizer is another one"
    return compare(smelt, tokens, place, required)


def compare_fields(smelt, place):
    """Every field of an adapter_config.json with another value: smelt names the field, or merges what PEFT does."""
    folder, base, out = (f"{place}/{name}" for name in ("folder", "base", "out"))
    missing = {field.name for field in dataclasses.fields(peft.LoraConfig)} - set(FIELDS)
    if missing:
        return f"PEFT has fields that are not in the table: {missing}"
    MODELS["peft_plain"](folder, base)
    usual, ids = {**json.load(open(f"{folder}/adapter_config.json")), "layers_to_transform": [0, 1]}, torch.arange(0, 300, 7)[None]
    for name, value in FIELDS.items():
        write(folder, "adapter_config.json", {**usual, name: value})
        code, _, errors = run(smelt, "convert", f"{folder}@{base}", out, "dtype=fp32", "overwrite=true")
        if code and name not in errors:
            return f"{name} is refused without its name: {errors}"
        if code:
            continue
        with torch.no_grad():
            apart = (reference_model(folder, base).float()(ids).logits - reference_model(out, base).float()(ids).logits).abs().max().item()
        if apart > 1e-4:
            return f"with {name} logits are {apart} apart"
    return None


def settings_of(folder):
    found = json.load(open(f"{folder}/generation_config.json")) if os.path.exists(f"{folder}/generation_config.json") else {}
    return {k: v for k, v in found.items() if k not in ("transformers_version", "_from_model_config")}


def compare_data(smelt, make, texts, place):
    """A data set as `datasets` writes it; `texts`: its documents, or None where it must be refused."""
    os.makedirs(f"{place}/folder")
    make(f"{place}/folder")
    [name] = os.listdir(f"{place}/folder")
    code, out, errors = run(smelt, "data", "pack", f"{place}/folder/{name}", f"{place}/rows", "overwrite=true")
    if texts is None:
        return "refused: " + first_line(errors) if code else "must be refused, but is packed: " + out
    if code:
        return "must be read, but is refused: " + first_line(errors)
    own = [bytes(ids[:-1]).decode() for ids, _ in shard(f"{place}/rows")]
    return None if own == texts else f"documents are {own} and not {texts}"


def compare_generation(smelt, place, name, lora):
    base, out, ran = f"{place}/base", f"{place}/out", f"{place}/run"
    tokenizer = fast(pad_token="<|endoftext|>")
    tokenizer.chat_template = {"default": TEMPLATE, "tool_use": TEMPLATE.replace("<|im_start|>", "<|im_start|>T-")}
    counting(GENERATIONS[name]).save_pretrained(base)
    tokenizer.save_pretrained(base)
    write(place, "text.txt", "hello world " * 40)
    code, _, errors = run(smelt, "train", f"init={base}", f"data.train={place}/text.txt", "data.valid_fraction=0", f"run={ran}", "steps=1", "data.length=16", "batch.tokens=16", "batch.sequences=1", "device=cpu", *(["lora.rank=2"] if lora else []))
    if code:
        return "training failed: " + first_line(errors)
    code, _, errors = run(smelt, "convert", ran, out)
    if code:
        return "convert failed: " + first_line(errors)
    before, after = (json.load(open(f"{f}/generation_config.json")) for f in (base, out))
    lost = {k: (v, after.get(k)) for k, v in before.items() if k not in ("transformers_version", "_from_model_config") and after.get(k) != v}
    if lost:
        return f"generation_config.json differs: {lost}"
    one, two = AutoTokenizer.from_pretrained(base), AutoTokenizer.from_pretrained(out)
    if one.chat_template != two.chat_template or one.get_vocab() != two.get_vocab() or one.eos_token != two.eos_token or one.pad_token != two.pad_token:
        return "the tokenizer is another one"
    transformers.AutoModelForCausalLM.from_pretrained(out)
    return None


def compare_records(smelt, place):
    import datasets
    rows = [{"text": "hello", "n": float("nan")}, {"text": "world", "n": float("inf")}, {"text": "x", "n": 1e308}]
    datasets.Dataset.from_list(rows).to_json(f"{place}/rows.jsonl")
    with open(f"{place}/python.jsonl", "w") as file:
        file.write("".join(json.dumps({"text": "hello", "n": n}) + "\n" for n in (float("nan"), float("-inf"), 2**64, -(2**70), 10**300)))
    for name, count in (("rows", 3), ("python", 5)):
        code, out, errors = run(smelt, "data", "pack", f"{place}/{name}.jsonl", f"{place}/{name}", "overwrite=true")
        if code or f"{count} documents" not in out + errors:
            return f"{name}: {first_line(errors)} {out}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--keep", help="leave the folders here")
    options = parser.parse_args()
    root = options.keep or tempfile.mkdtemp()
    checks = {name: (lambda place, name=name: (os.makedirs(f"{place}/folder"), FOLDERS[name](f"{place}/folder"), compare(options.smelt, f"{place}/folder", place, name not in OPTIONAL, LIBRARIES.get(name)))[2]) for name in FOLDERS}
    for name in GENERATIONS:
        for lora in (False, True):
            checks[f"trained_{name}{'_lora' if lora else ''}"] = lambda place, name=name, lora=lora: compare_generation(options.smelt, place, name, lora)
    for name, make in MODELS.items():
        checks[name] = lambda place, name=name, make=make: compare_model(options.smelt, make, place, name not in REFUSED)
    for name, (make, texts) in DATA.items():
        checks[name] = lambda place, make=make, texts=texts: compare_data(options.smelt, make, texts, place)
    checks["peft_fields"] = lambda place: compare_fields(options.smelt, place)
    checks["records"] = lambda place: compare_records(options.smelt, place)
    equal = refused = 0
    wrong = []
    for name, check in checks.items():
        if options.names and name not in options.names:
            continue
        place = os.path.join(root, name)
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        try:
            result = check(place)
        except Exception as error:  # of a library, which must not end the comparison
            result = f"cannot be compared: {type(error).__name__}: {error}"
        fine = not result or (result.startswith("refused") and (name in OPTIONAL or name in REFUSED or name in DATA))
        print(f"{name:30} {result or 'equal'}" if fine else f"{name:30} WRONG: {result}", flush=True)
        equal, refused = equal + (not result), refused + bool(fine and result)
        if not fine:
            wrong.append(name)
    if not options.keep:
        shutil.rmtree(root)
    print(f"{equal} folders are equal, {refused} are refused with a reason, {len(wrong)} are wrong")
    return bool(wrong)


sys.exit(main())
