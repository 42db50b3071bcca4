#!/usr/bin/env python3
"""Encoding speed of smelt's tokenizers against `tokenizers` (and tiktoken where it reads the vocabulary) and `sentencepiece`, one thread each, the same file.

    bench/tokenizer_speed.py FOLDER [--file TEXT] [--rounds N]     FOLDER as tests/golden/compare_tokenizers.py made it (its venv and vocabularies)

The contestants take turns; a round encodes the whole file in documents of about 10 KB. Rates are medians over the rounds, MB/s of text. Without
--file the text is Python's own library and message catalogs of many languages, 4 MB."""
import argparse
import os
import statistics
import sys
import time

os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "tests/golden"))
import compare_tokenizers as golden  # noqa: E402
SIZE = 10000


def rate(encode, texts, size):
    start = time.perf_counter()
    for text in texts:
        encode(text)
    return size / (time.perf_counter() - start) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--file")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    golden.environment(arguments.folder)
    import tokenizers
    import sentencepiece
    import tokenizer_library
    library = tokenizer_library.build(arguments.folder)
    if arguments.file:
        with open(arguments.file, encoding="utf-8", errors="replace") as file:
            text = file.read()
    else:
        text = "\n".join(golden.sources(3000000) + golden.catalogs(1000000))
    texts = [text[i:i + SIZE] for i in range(0, len(text), SIZE)]
    raw = [text.encode() for text in texts]
    size = sum(map(len, raw))
    print(f"{size} bytes; MB/s, medians of {arguments.rounds} rounds (least to most)")
    print("| vocabulary | smelt | tokenizers | smelt / tokenizers | tiktoken | smelt / tiktoken |\n|---|---|---|---|---|---|")
    for name, data, special, pattern in [("gpt2", None, None, None), ("llama3-json", "llama3", golden.llama3_special(128000), golden.LLAMA3),
                                         ("qwen-json", "qwen", {}, golden.QWEN), ("deepseek", None, None, None), ("mistral-llama2", None, None, None)]:
        path = os.path.join(arguments.folder, name + (".json" if name in golden.FILES else ".tokenizer.json"))
        ours, peer = tokenizer_library.Tokenizer(library, path), tokenizers.Tokenizer.from_file(path)
        contestants = [(ours.encode_count, raw), (peer.encode, texts)]
        if data:
            ranks = golden.tiktoken_peer(golden.vocabulary_file(arguments.folder, data), pattern, special)
            contestants.append((ranks.encode_ordinary, texts))
        rates = [[rate(encode, inputs, size) for encode, inputs in contestants] for _ in range(arguments.rounds)]
        columns = list(zip(*rates))
        middle = [statistics.median(column) for column in columns]
        shown = [f"{statistics.median(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in columns]
        row = [name, shown[0], shown[1], f"{middle[0] / middle[1]:.1f}"] + ([shown[2], f"{middle[0] / middle[2]:.1f}"] if data else ["", ""])
        print("| " + " | ".join(row) + " |", flush=True)
    print("\n| model | smelt | sentencepiece | smelt / sentencepiece |\n|---|---|---|---|")
    for name in ["mistral", "bpe", "unigram", "unigram-bytes"]:
        path = golden.vocabulary_file(arguments.folder, name) if name in golden.FILES else golden.trained_sentencepiece(arguments.folder, name, **golden.SENTENCEPIECE[name])
        ours, peer = tokenizer_library.Tokenizer(library, path), sentencepiece.SentencePieceProcessor(model_file=path, num_threads=1)
        rates = [[rate(ours.encode_count, raw, size), rate(peer.encode, raw, size)] for _ in range(arguments.rounds)]
        columns = list(zip(*rates))
        middle = [statistics.median(column) for column in columns]
        shown = [f"{statistics.median(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in columns]
        print(f"| {name} | {shown[0]} | {shown[1]} | {middle[0] / middle[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
