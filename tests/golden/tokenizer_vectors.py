#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/: small vocabularies of each kind, trained by `tokenizers` on Debian's licenses and generated text, and
vectors.txt, what the library makes of short texts, and sentencepiece.txt, the same of models by `sentencepiece`: kind, ids are with (1) or without (0) the template, text in hex, ids, decoded text in hex.

    FOLDER/venv/bin/python tests/golden/tokenizer_vectors.py     with the environment that tests/golden/compare_tokenizers.py makes in FOLDER"""
import collections
import json
import os
import random

import compare_tokenizers as golden
import sentencepiece
import tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "tokenizers")
LICENCES, NAMES = "/usr/share/common-licenses", ("Apache-2.0", "Artistic", "GFDL-1.3", "GPL-2", "GPL-3", "LGPL-2.1", "MPL-2.0")
VOCABULARY, TEXTS = 700, 48


def added(content, number, **options):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **options}


def train(texts, pre_tokenizer, special, alphabet):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet,
                                                                        limit_alphabet=len(alphabet), show_progress=False))
    return json.loads(tokenizer.to_str())


def byte_level(texts, pattern, **changes):
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        level = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"), level])
    whole = train(texts, level, ["<|endoftext|>"], tokenizers.pre_tokenizers.ByteLevel.alphabet())
    whole["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole["model"].update(changes.pop("model", {}))
    whole.update(changes)
    return whole


def template(token, number):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}}}


def frequent(texts):
    """200 characters; the library by itself would leave those of equal counts to chance."""
    counts = collections.Counter("".join(texts).replace(" ", "▁"))
    return [letter for letter, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:200]]


def byte_fallback(texts, **changes):
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    whole = train(texts, tokenizers.pre_tokenizers.Metaspace(), ["<unk>", "<s>", "</s>"] + letters, frequent(texts))
    whole["added_tokens"] = whole["added_tokens"][:3]
    whole["pre_tokenizer"] = None
    whole["post_processor"] = template("<s>", 1)
    whole["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    whole["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                         {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    whole.update(changes)
    return whole


def vocabularies(texts):
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    marks = [added("<|endoftext|>", 0), added("<mask>", 700, lstrip=True), added("[R]", 701, rstrip=True, special=False),
             added("word", 702, single_word=True, special=False), added("fi!", 703, normalized=True, special=False), added("<mask><mask>", 704)]
    return {
        "gpt2": byte_level(texts, None),
        "llama3": byte_level(texts, golden.LLAMA3, model={"ignore_merges": True}, post_processor=template("<|endoftext|>", 0)),
        "qwen": byte_level(texts, golden.QWEN, normalizer={"type": "NFC"}),
        "added": byte_level(texts, None, normalizer={"type": "NFKC"}, added_tokens=marks),
        "llama2": byte_fallback(texts, normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}),
        "metaspace": byte_fallback(texts, pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
                                   decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}),
        "gemma": byte_fallback(texts, normalizer=space, pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                                                       "invert": False}),
    }


def sample_texts():
    marks = ["", " ", "\0", "word sword word.word words", "a  <mask> b <mask><mask><mask>c", "x [R]  \n y[R]", "ﬁ! fi! ﬁ!word", "<|endoftext|>end<|endoftext|>", "<s> x</s>",
             "  two  spaces   and\n\n\nlines\r\n \t tabs", "don't WE'LL it'ſ I'M", "1234567890 12 ٣٤٥", "▁a ▁▁b", "<0x41>", "日本語テキスト 한국어 ไทย", "👨‍👩‍👧‍👦🏳️‍🌈", "e\u0301 Å 각"]
    source = random.Random(3)
    return marks + [text[:80] for text in golden.generated(source, TEXTS - len(marks))]


RULES = ["41 30A	C5", "FB01	66 69", "A0	20", "3000	20", "9	20", "D A	20", "A	20", "200B	", "E9	65 301", "130	69 307"]
MODELS = {
    "spm-unigram": {},
    "spm-bytes": dict(byte_fallback=True, remove_extra_whitespaces=False, user_defined_symbols=["<sep>", "▁▁", "fi!"], normalization_rule_name="identity"),
    "spm-bpe": dict(model_type="bpe", control_symbols=["<ctl>"], user_defined_symbols=["<sep>", "fi!"]),
    "spm-bpe-bytes": dict(model_type="bpe", byte_fallback=True, remove_extra_whitespaces=False, normalization_rule_name="identity"),
    "spm-suffix": dict(model_type="bpe", treat_whitespace_as_suffix=True),
}


def sentencepiece_vectors(texts):
    """Models with a small map of characters in place of NFKC's, which is large; and what they make of texts, some of which are not UTF-8."""
    rules = os.path.join(OUT, "rules.tsv")
    with open(rules, "w") as file:
        file.write("".join(rule + "\n" for rule in RULES))
    samples = [text.encode() for text in sample_texts()] + [b"\xff", b"a\xe2\x82b\xc3\xa9", "A\u030a \u3000 é\u00a0\u200bx \ufb01 <sep>".encode(), b" \t\r\n ", b"<ctl>x"]
    samples.append(b" ".join(samples))
    with open(os.path.join(OUT, "sentencepiece.txt"), "w") as vectors:
        for kind, options in MODELS.items():
            path = os.path.join(OUT, kind)
            options = {"vocab_size": VOCABULARY, "character_coverage": 0.98, "num_threads": 1, "minloglevel": 2, **options}
            if "normalization_rule_name" not in options:
                options["normalization_rule_tsv"] = rules
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(line for text in texts[:len(NAMES)] for line in text.split("\n")), model_prefix=path, **options)
            os.remove(path + ".vocab")
            model = sentencepiece.SentencePieceProcessor(model_file=path + ".model")
            for text in samples:
                ids = model.encode(text)
                vectors.write(f"{kind} 0 {text.hex() or '-'} {','.join(map(str, ids)) or '-'} {model.decode(ids).encode().hex() or '-'}\n")
        golden.json_of_unigram(os.path.join(OUT, "spm-unigram.model"), os.path.join(OUT, "unigram.json"), "t5")
        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(OUT, "unigram.json"))
        for text in sample_texts():
            ids = tokenizer.encode(text).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            vectors.write(f"unigram 0 {text.encode().hex() or '-'} {','.join(map(str, ids)) or '-'} {decoded.encode().hex() or '-'}\n")
    os.remove(rules)


def main():
    old = golden.unicodedata.ucd_3_2_0  # known to every library's tables; emoji are newer but settled
    golden.assigned = lambda low, high: [chr(c) for c in range(low, high + 1) if low >= 0x1F000 or old.category(chr(c)) not in ("Cn", "Cs")]
    texts = [open(os.path.join(LICENCES, name), encoding="utf-8").read() for name in NAMES] + golden.generated(random.Random(2), 40)
    os.makedirs(OUT, exist_ok=True)
    sentencepiece_vectors(texts)
    with open(os.path.join(OUT, "vectors.txt"), "w") as vectors:
        for kind, whole in vocabularies(texts).items():
            path = os.path.join(OUT, kind + ".json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(whole, file, ensure_ascii=False, separators=(",", ":"))
                file.write("\n")
            tokenizer = tokenizers.Tokenizer.from_file(path)
            for number, text in enumerate(sample_texts()):
                ids = tokenizer.encode(text, add_special_tokens=number % 2 == 1).ids
                decoded = tokenizer.decode(ids, skip_special_tokens=False)
                vectors.write(f"{kind} {number % 2} {text.encode().hex() or '-'} {','.join(map(str, ids)) or '-'} {decoded.encode().hex() or '-'}\n")


if __name__ == "__main__":
    main()
