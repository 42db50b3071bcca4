"""Golden vectors of GGUF, by code that is not smelt's:

- gguf/converted.txt: what llama.cpp's convert_hf_to_gguf.py makes of the folders beside this script, in F32: their keys, and for each
  tensor its type, shape and the XXH3 of its data. Vocabularies are left out: the folders have none.
- gguf/sentencepiece.json: a BPE model that sentencepiece trains on Debian's licenses, as transformers makes a tokenizer.json of it.
- gguf/types.gguf: a file of llama.cpp's gguf-py with a tensor of each type that smelt reads, and its values in F32 as gguf-py
  decodes them (NAME.values); for types that smelt writes, also what gguf-py encodes them from (NAME.source).

Needs torch, transformers 5, sentencepiece, xxhash and a source tree of llama.cpp. Usage:  python tests/golden/gguf_vectors.py LLAMA_CPP
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA_CPP = sys.argv[1]
sys.path[:0] = [os.path.join(LLAMA_CPP, "gguf-py"), LLAMA_CPP]

import gguf
import numpy
import sentencepiece
import xxhash
from conversion import ModelBase, get_model_class
from transformers.tokenization_utils_base import generate_merges

FOLDERS = "llama", "mixtral", "qwen2", "qwen3", "mpt", "gpt2"
LEFT_OUT = "GGUF.", "general.", "tokenizer."


def convert(folder, path):
    from pathlib import Path

    parameters = ModelBase.load_hparams(Path(folder), False)
    made = get_model_class(parameters["architectures"][0].replace("Mpt", "MPT"))  # registered as MosaicML spells it
    made.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
    parameters.setdefault("n_ctx", parameters.get("n_positions"))  # which transformers 5 leaves out of GPT-2's
    made(Path(folder), gguf.LlamaFileType.ALL_F32, Path(path), hparams=parameters).write()


def describe(path, out):
    reader = gguf.GGUFReader(path)
    for key, field in sorted(reader.fields.items()):
        if not key.startswith(LEFT_OUT):
            print("key", key, field.contents(), file=out)
    for tensor in sorted(reader.tensors, key=lambda t: t.name):
        if tensor.name == "rope_freqs.weight":  # computed in another order, so equal to rounding
            for i, value in enumerate(tensor.data.tolist()):
                print("divisor", i, value, file=out)
            continue
        shape = ",".join(str(n) for n in reversed(tensor.shape.tolist()))
        print("tensor", tensor.name, tensor.tensor_type.name, shape, xxhash.xxh3_64_hexdigest(tensor.data.tobytes()), file=out)


def blocks(kind, count, random):
    """Random blocks of a type that gguf-py does not encode: the scales are fp16 numbers between 2^-8 and 2^-1."""
    size, bytes_ = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (2, count // size * bytes_), dtype=numpy.uint8)
    scales = {gguf.GGMLQuantizationType.Q4_K: [0, 2], gguf.GGMLQuantizationType.Q6_K: [bytes_ - 2]}[kind]
    for at in scales:
        for block in range(count // size):
            data[:, block * bytes_ + at:block * bytes_ + at + 2] = (2.0 ** random.uniform(-8, -1, (2, 1))).astype(numpy.float16).view(numpy.uint8)
    return data


def write_types(path):
    random, kinds = numpy.random.default_rng(23), gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, "llama")
    for kind in (kinds.F16, kinds.BF16, kinds.Q8_0, kinds.Q4_0, kinds.Q4_1, kinds.Q4_K, kinds.Q6_K):
        source = random.normal(0, 1, (2, 512)).astype(numpy.float32)
        source[0, :32], source[1, ::7], source[1, 1::64] = 0, 2.0 ** -20, 3e4  # a block of zeros, what is subnormal in fp16, large values
        source[1, 2::64], source[1, 3::64], source[1, 4::64] = 1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11, 1 + 2.0 ** -8  # halfway between fp16 or bf16
        encoded = gguf.quantize(source, kind) if kind not in (kinds.Q4_K, kinds.Q6_K) else blocks(kind, 512, random)
        writer.add_tensor(kind.name, encoded, raw_dtype=kind)
        writer.add_tensor(kind.name + ".values", gguf.dequantize(encoded, kind).astype(numpy.float32))
        if kind in (kinds.F16, kinds.BF16, kinds.Q8_0):
            writer.add_tensor(kind.name + ".source", source)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_sentencepiece(path, scratch):
    """As Llama 2's: byte fallback, a space before the text. Its merges are its scores, so that the kind "llama" of GGUF has it."""
    prefix = os.path.join(scratch, "spm")
    sentencepiece.SentencePieceTrainer.train(input="/usr/share/common-licenses/Apache-2.0", model_prefix=prefix, vocab_size=560, model_type="bpe",
                                             byte_fallback=True, character_coverage=0.999, add_dummy_prefix=True, remove_extra_whitespaces=False,
                                             normalization_rule_name="identity", split_digits=True, num_threads=1, minloglevel=2)
    vocabulary = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    pieces = [(vocabulary.id_to_piece(i), vocabulary.get_score(i)) for i in range(vocabulary.get_piece_size())]
    merges = generate_merges({piece: i for i, (piece, _) in enumerate(pieces)}, dict(pieces))
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
             "byte_fallback": True, "ignore_merges": False, "vocab": {piece: i for i, (piece, _) in enumerate(pieces)},
             "merges": [" ".join(pair) for pair in merges]}
    added = [{"id": i, "content": pieces[i][0], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i in range(3)]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    replace = lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
             "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")]}, "pre_tokenizer": None,
             "post_processor": template,
             "decoder": {"type": "Sequence", "decoders": [replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                                                          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, "model": model}
    with open(path, "w") as file:
        json.dump(whole, file, ensure_ascii=False, separators=(",", ":"))


def main():
    os.makedirs(os.path.join(HERE, "gguf"), exist_ok=True)
    write_types(os.path.join(HERE, "gguf", "types.gguf"))
    with tempfile.TemporaryDirectory() as scratch, open(os.path.join(HERE, "gguf", "converted.txt"), "w") as out:
        write_sentencepiece(os.path.join(HERE, "gguf", "sentencepiece.json"), scratch)
        for name in FOLDERS:
            path = os.path.join(scratch, name + ".gguf")
            convert(os.path.join(HERE, name), path)
            print("folder", name, file=out)
            describe(path, out)


main()
