#!/usr/bin/env python3
"""Compares smelt with transformers on folders as their users save them: tokenizers of every form with their side files, models, adapters and data sets.

    tests/golden/check_side_files.py [--smelt build/smelt] [--keep FOLDER] [NAME ...]

Needs Python with transformers, tokenizers, sentencepiece, peft, datasets and torch (5.24, 0.23, 0.2, 0.21, 5.2 and 2.x were used). Each folder is made by
these libraries from a small vocabulary. Then smelt's ids of texts (special tokens matched, template added), ids and masks of conversations, and the token
that ends a document must be those of transformers, or smelt refuses the folder and says why; a folder that must be read is marked so. Stop tokens, sampling
settings and templates of a model must be the same after a step of training and `smelt convert`. Prints a line for each folder and fails where one is wrong."""
import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import sentencepiece
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

transformers.logging.set_verbosity_error()
CORPUS = ["hello world, this is a small text of a few words", "the user says hello and the assistant says hi", "one two three 4 5 6 don't", "user assistant system tool"] * 20
TEXTS = ["hello world", " leading and trailing ", "a  b   c", "hello<|im_end|> x", "<s>hi</s>", "x <|im_start|>user", "tabs\tand é ü 漢字", "the<extra>end", "", "12 34"]
TEMPLATE = "{% for m in messages %}{{ bos_token if loop.first and bos_token }}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 18446744073709551615}}}}}]
CHAT = [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi world"}]},
        {"messages": [{"role": "user", "content": " two "}, {"role": "assistant", "content": "three"}], "tools": TOOLS, "id": 18446744073709551615, "score": float("nan")}]


def byte_level(special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), normalizer=None, bos=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=list(special), show_progress=False))
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))])
    return tokenizer


def fast(**settings):
    inner = {k: settings.pop(k) for k in ("special", "normalizer", "bos") if k in settings}
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(**inner), **{"eos_token": "<|im_end|>", **settings})


def sentencepiece_model(folder, **settings):
    corpus = os.path.join(folder, "corpus.txt")
    with open(corpus, "w") as file:
        file.write("\n".join(CORPUS))
    usual = dict(model_type="bpe", vocab_size=300, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False)
    sentencepiece.SentencePieceTrainer.train(input=corpus, model_prefix=os.path.join(folder, "tokenizer"), minloglevel=2, **{**usual, **settings})
    for name in ("corpus.txt", "tokenizer.vocab"):
        os.remove(os.path.join(folder, name))


def write(folder, name, content):
    with open(os.path.join(folder, name), "w") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True, **flags}


# -- Folders: name -> function that fills one; those of OPTIONAL may be refused ---------------------------------------------------------

FOLDERS, OPTIONAL = {}, set()


def folder(optional=False):
    def add(function):
        FOLDERS[function.__name__] = function
        if optional:
            OPTIONAL.add(function.__name__)
        return function
    return add


def saved(name, optional=False, **settings):
    template = settings.pop("chat_template", TEMPLATE)
    after = settings.pop("after", None)
    save = settings.pop("save", {})

    def make(path):
        tokenizer = fast(**settings)
        if template:
            tokenizer.chat_template = template
        if after:
            after(tokenizer)
        tokenizer.save_pretrained(path, **save)
    make.__name__ = name
    folder(optional)(make)


saved("plain")
saved("no_template", chat_template=None)
saved("two_templates", chat_template={"default": TEMPLATE, "tool_use": TEMPLATE.replace("<|im_start|>", "<|im_start|>T-")})
saved("templates_in_config", save={"save_jinja_files": False})
saved("two_templates_in_config", chat_template={"default": TEMPLATE, "tool_use": TEMPLATE.replace("<|im_start|>", "<|im_start|>T-")}, save={"save_jinja_files": False})
saved("begins_text", bos=True, bos_token="<|endoftext|>")
saved("pad_added", pad_token="<pad>")
saved("tokens_added", after=lambda t: t.add_tokens(["<extra>", AddedToken("wörd", normalized=True)]))
saved("special_added", after=lambda t: t.add_special_tokens({"additional_special_tokens": ["<extra>", "<more>"]}))
saved("flags", after=lambda t: t.add_tokens([AddedToken("<extra>", lstrip=True, rstrip=True, special=True), AddedToken("two", single_word=True)]))
saved("nfc", normalizer=normalizers.NFC())
saved("named_extra", extra_special_tokens={"image_token": "<extra>"})
saved("every_name", bos_token="<s>", unk_token="<unk>", sep_token="<sep>", cls_token="<cls>", mask_token="<mask>", pad_token="<pad>")
saved("length_set", model_max_length=512)
saved("padding_and_truncation", after=lambda t: (t("x", padding="max_length", truncation=True, max_length=8)), pad_token="<pad>")


@folder()
def numbers(path):
    fast().save_pretrained(path)
    write(path, "chat_template.jinja", TEMPLATE)
    config = json.load(open(os.path.join(path, "tokenizer_config.json")))
    write(path, "tokenizer_config.json", json.dumps({**config, "a": float("inf"), "b": float("nan"), "c": 10**40, "d": -(2**64)}))


@folder()
def old_special_map(path):
    fast(pad_token="<|endoftext|>").save_pretrained(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "model_max_length": int(1e30)})
    write(path, "special_tokens_map.json", {"eos_token": token("<|im_end|>"), "pad_token": "<|endoftext|>"})


@folder()
def old_special_map_wins(path):
    old_special_map(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|endoftext|>"})


@folder()
def decoder_before_special_map(path):
    old_special_map(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|endoftext|>", "added_tokens_decoder": {"0": token("<|endoftext|>"), "1": token("<|im_start|>", rstrip=True), "2": token("<|im_end|>")}})


@folder()
def tokens_of_side_files_alone(path):
    fast().save_pretrained(path)
    write(path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<extra>", "additional_special_tokens": ["<s>", "</s>"]})


@folder(optional=True)
def ids_with_gaps(path):
    fast().save_pretrained(path)
    content = json.load(open(os.path.join(path, "tokenizer.json")))
    content["added_tokens"] += [{"id": 900, **token("<extra>")}]
    write(path, "tokenizer.json", content)


@folder()
def gpt2_class(path):
    tokenizer = byte_level()
    tokenizer.model.save(path)
    write(path, "chat_template.jinja", TEMPLATE)
    made = transformers.GPT2Tokenizer(os.path.join(path, "vocab.json"), os.path.join(path, "merges.txt"), eos_token="<|endoftext|>", bos_token="<|endoftext|>", unk_token="<|endoftext|>")
    made.chat_template = TEMPLATE
    made.save_pretrained(path)


@folder()
def qwen_class(path):
    vocabulary = json.loads(byte_level().to_str())["model"]
    made = transformers.Qwen2Tokenizer(vocab=vocabulary["vocab"], merges=[tuple(m) for m in vocabulary["merges"]], eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None)
    made.chat_template = TEMPLATE
    made.save_pretrained(path)


CONFIG = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE, "model_max_length": int(1e30)}
ADDED = {"<|im_start|>": 300, "<|im_end|>": 301}
DECODER = {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>"), "300": token("<|im_start|>", rstrip=True), "301": token("<|im_end|>", normalized=True, special=False)}


def llama(name, optional=False, model_type="llama", config=None, added=None, special=None, **settings):
    def make(path):
        sentencepiece_model(path, **settings)
        given = {k: v for k, v in {**CONFIG, **(config or {})}.items() if v != "absent"}
        write(path, "tokenizer_config.json", given)
        if added:
            write(path, "added_tokens.json", added)
        if special:
            write(path, "special_tokens_map.json", special)
        if model_type:
            write(path, "config.json", {"model_type": model_type})
    make.__name__ = name
    folder(optional)(make)


llama("llama2", added=ADDED, special={"eos_token": "<|im_end|>"})
llama("llama2_without_model", added=ADDED, special={"eos_token": "<|im_end|>"}, model_type=None)
llama("llama2_decoder", config={"added_tokens_decoder": DECODER})
llama("llama2_end_added", config={"add_eos_token": True, "added_tokens_decoder": DECODER})
llama("llama2_legacy", config={"legacy": True}, added=ADDED)
llama("llama2_legacy_absent", config={"legacy": "absent"}, added=ADDED)
llama("llama2_no_bos", config={"add_bos_token": "absent"}, added=ADDED)
llama("llama2_no_prefix", config={"add_prefix_space": False}, added=ADDED)
llama("llama2_pad", config={"pad_token": "<pad>"}, added=ADDED)
llama("llama2_more_special", config={"additional_special_tokens": ["<extra>"]}, added=ADDED)
llama("llama2_user_defined", config={"added_tokens_decoder": "absent"}, user_defined_symbols=["<|im_start|>", "<|im_end|>"])
llama("llama2_squeezing", added=ADDED, normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True)
llama("llama2_gap", optional=True, added={"<|im_start|>": 305, "<|im_end|>": 310})
llama("mistral", model_type="mistral", config={"added_tokens_decoder": DECODER})
llama("mistral_legacy", model_type="mistral", config={"legacy": True, "added_tokens_decoder": DECODER})
llama("mistral_squeezing", optional=True, model_type="mistral", config={"added_tokens_decoder": DECODER}, remove_extra_whitespaces=True)
llama("phi3", model_type="phi3", config={"added_tokens_decoder": DECODER})
llama("no_class", config={"tokenizer_class": "absent"}, added=ADDED)
llama("fast_class", config={"tokenizer_class": "PreTrainedTokenizerFast"}, added=ADDED)
llama("unigram", optional=True, added=ADDED, byte_fallback=False, vocab_size=60)


@folder()
def llama2_saved_again(path):
    FOLDERS["llama2"](path)
    made = AutoTokenizer.from_pretrained(path)
    for name in os.listdir(path):
        os.remove(os.path.join(path, name))
    made.save_pretrained(path)


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


def compare(smelt, path, place, required):
    """None where all is equal, else a line that says what differs; the reason of a refusal begins with 'refused'."""
    reference = AutoTokenizer.from_pretrained(path)
    for text in TEXTS:
        file = next(f"{path}/{name}" for name in ("tokenizer.json", "tokenizer.model") if os.path.exists(f"{path}/{name}"))
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


def model_folder(path, generation, tokenizer, adapter=False):
    config = transformers.LlamaConfig(vocab_size=320 + 8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64, pad_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(**generation)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


GENERATIONS = {"one_end": {"eos_token_id": 2}, "three_ends": {"eos_token_id": [0, 1, 2], "pad_token_id": 0, "bos_token_id": 1},
               "sampling": {"eos_token_id": [2, 0], "do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "pad_token_id": 0, "max_length": 99}}


def compare_generation(smelt, place, name, lora):
    base, out, ran = f"{place}/base", f"{place}/out", f"{place}/run"
    tokenizer = fast(pad_token="<|endoftext|>")
    tokenizer.chat_template = {"default": TEMPLATE, "tool_use": TEMPLATE.replace("<|im_start|>", "<|im_start|>T-")}
    model_folder(base, GENERATIONS[name], tokenizer)
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
    checks = {name: (lambda place, name=name: (os.makedirs(f"{place}/folder"), FOLDERS[name](f"{place}/folder"), compare(options.smelt, f"{place}/folder", place, name not in OPTIONAL))[2]) for name in FOLDERS}
    for name in GENERATIONS:
        for lora in (False, True):
            checks[f"trained_{name}{'_lora' if lora else ''}"] = lambda place, name=name, lora=lora: compare_generation(options.smelt, place, name, lora)
    checks["records"] = lambda place: compare_records(options.smelt, place)
    equal = refused = 0
    wrong = []
    for name, check in checks.items():
        if options.names and name not in options.names:
            continue
        place = os.path.join(root, name)
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        result = check(place)
        fine = not result or (name in OPTIONAL and result.startswith("refused"))
        print(f"{name:30} {result or 'equal'}" if fine else f"{name:30} WRONG: {result}", flush=True)
        equal, refused = equal + (not result), refused + bool(fine and result)
        if not fine:
            wrong.append(name)
    if not options.keep:
        shutil.rmtree(root)
    print(f"{equal} folders are equal, {refused} are refused with a reason, {len(wrong)} are wrong")
    return bool(wrong)


sys.exit(main())
