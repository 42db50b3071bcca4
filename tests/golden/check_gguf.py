"""GGUF files against llama.cpp and its Python library: random models of every family, written by `smelt convert` in each type, must
give smelt's logits in llama.cpp, have the keys and tensors that `gguf` reads, and be read by smelt again with the same logits; files
that `gguf` writes, in each type that smelt reads, must be read with equal values. With a GGUF file of a real model: its tokens,
logits and greedy text.

Needs numpy, gguf and llama-cpp-python. Usage, from the repository after `make`:  python tests/golden/check_gguf.py [BUILD] [FILE.gguf]
Exits with 1 when something differs by more than the tolerance that stands beside it.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy

import random_run
from random_run import COMMON, MODELS, TEXT

# llama.cpp's GELU on CPUs reads a table of fp16 values, by the tanh formula (in place of mpt's erf).
TOLERANCE = {"gpt2": 1e-3, "gemma2": 1e-3, "gemma3": 1e-3, "mpt": 2e-3}
# Of the largest logit: what rounding weights to a type costs, the same in both programs but for the order of sums, and for Q8_0
# llama.cpp's rounding of activations to eight bits.
TYPES = {"fp32": 2e-4, "fp16": 2e-3, "bf16": 2e-2, "q8_0": 5e-2}
MORE_ROUNDED = {"deepseek_v2": 8, "deepseek_v2, yarn": 8, "qwen3_next": 2, "qwen3_5": 2, "qwen3_5, yarn": 2, "qwen3_5_moe": 2}  # factors on TYPES, except for fp32: llama.cpp supports deepseek_v2 with 26 or 27 layers only, and the
# delta rule's recurrence accumulates rounding errors
SKIPPED = "zaya", "window", "mpt"  # no architecture; no window there; a scale of scores that llama.cpp has not
DEEPSEEK = ["model.family=deepseek", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.norm_epsilon=1e-6", "model.head_dim=24", "model.rope_dim=8", "model.value_dim=12", "model.kv_lora_rank=16",
            "model.ffn=40", "model.dense_ffn=64", "model.layers=3", "model.experts=5", "model.experts_per_token=2", "model.experts_first=1", "model.shared_experts=2"]
DELTA = ["model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.layers=4", "model.attention_period=3", "model.rope_fraction=0.5",
         "model.delta_key_heads=2", "model.delta_heads=6", "model.delta_key_dim=16", "model.delta_value_dim=16", "model.tied=false",
         "model.init_std=0.3"]  # makes queries and keys large, so that the two programs' different epsilons in their norms have no effect
EXPERTS = ["model.experts=5", "model.experts_per_token=2", "model.shared_experts=2", "model.renormalise=true"]
MORE = {
    "mpt": MODELS["mpt"][:-1],
    "llama, yarn": MODELS["llama, tied"] + ["model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32", "model.rope_attention_factor=1.2",
                                            "model.rope_beta_fast=8"],
    "gemma2": ["model.family=gemma", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.layers=3", "model.tied=true",
               "model.window=9", "model.window_period=2", "model.score_cap=5.0", "model.logit_cap=7.0"],
    "gemma3": ["model.family=gemma", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.layers=7", "model.tied=true",
               "model.window=9", "model.window_period=6", "model.window_first=5", "model.window_skips=true", "model.qk_norm=true", "model.window_rope_theta=3000",
               "model.rope_theta=1e6", "model.rope_scaling=linear", "model.rope_factor=4"],
    "phi3": ["model.family=phi3", "model.heads=4", "model.kv_heads=2", "model.width=96", "model.head_dim=24", "model.ffn=40", "model.layers=2", "model.tied=false",
             "model.rope_fraction=0.75"],
    "glm4_moe": ["model.family=glm", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.dense_ffn=64", "model.layers=3",
                 "model.experts=5", "model.experts_per_token=2", "model.experts_first=1", "model.shared_experts=2", "model.router_scores=sigmoid", "model.renormalise=true",
                 "model.gate_scale=1.7", "model.qkv_bias=true", "model.qk_norm=true", "model.rope_fraction=0.5", "model.tied=false"],
    "minimax_m2": ["model.family=minimax", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.layers=2", "model.experts=5",
                   "model.experts_per_token=2", "model.router_scores=sigmoid", "model.renormalise=true", "model.rope_fraction=0.5", "model.tied=false"],
    "gpt_oss, yarn": MODELS["gpt_oss"] + ["model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32", "model.rope_truncate=false",
                                          "model.rope_theta=2"],  # so that the bounds are whole channels
    "deepseek_v2": DEEPSEEK + ["model.tied=false", "model.layers=26"],
    "deepseek_v2, latents of queries": DEEPSEEK + ["model.tied=false", "model.q_lora_rank=20", "model.experts_first=0", "model.dense_ffn=0"],
    "deepseek_v2, yarn": DEEPSEEK + ["model.tied=false", "model.layers=27", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32", "model.rope_mscale=0.7"],
    "deepseek_v3": DEEPSEEK + ["model.tied=false", "model.q_lora_rank=20", "model.router_scores=sigmoid", "model.renormalise=true", "model.gate_scale=1.7",
                               "model.experts=8", "model.expert_groups=4", "model.groups_chosen=2"],
    "qwen3_next": DELTA + ["model.family=qwen3_next"] + EXPERTS,
    "qwen3_5": DELTA + ["model.family=qwen3_5"],
    "qwen3_5, yarn": DELTA + ["model.family=qwen3_5", "model.delta_heads=4", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32"],
    "qwen3_5_moe": DELTA + ["model.family=qwen3_5"] + EXPERTS,
    "ministral3": MODELS["llama, tied"] + ["model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=16", "model.rope_query_scale=0.5"],
    "qwen2, linear": MODELS["qwen2"] + ["model.rope_scaling=linear", "model.rope_factor=3"],
}


def run(*command):
    result = subprocess.run(command, capture_output=True)
    if result.returncode:
        raise SystemExit(f"{command}: {result.stderr.decode()}")
    return result.stdout.decode(errors="replace")


def smelt_logits(program, model, text):
    return numpy.array([float(line) for line in run(program, "logits", model, text).split()], dtype=numpy.float32)


def open_llama(path, context=0):
    return llama_cpp.Llama(path, n_ctx=context, n_batch=512, logits_all=True, verbose=False, n_threads=2,
                           type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)


def llama_logits(model, ids):
    model.reset()
    model.eval(ids)
    return numpy.array(model.scores[len(ids) - 1])


def check_file(path, vocabulary):
    """What gguf's reader sees: the tokens are bytes, and every tensor is one that llama.cpp's table of names has."""
    reader = gguf.GGUFReader(path)
    text = lambda key: reader.fields[key].contents()
    architecture = text("general.architecture")
    assert text("tokenizer.ggml.model") == "gpt2" and text("tokenizer.ggml.eos_token_id") == 256
    assert len(text("tokenizer.ggml.tokens")) == vocabulary == len(text("tokenizer.ggml.token_type"))
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)]}
    for tensor in reader.tensors:
        plain = ".".join("{bid}" if part.isdigit() else part for part in re.sub(r"\.(weight|bias)$", "", tensor.name).split("."))
        assert plain in known, f"{tensor.name} is no tensor of {architecture}"
    return reader


def check_model(name, settings, smelt, program, scratch):
    made, line = os.path.join(scratch, "run"), []
    run("rm", "-rf", made)
    run(program, "make", made, *COMMON, *settings)
    ours = smelt_logits(program, made, TEXT)
    for dtype, tolerance in TYPES.items():
        path = os.path.join(scratch, "model.gguf")
        run(smelt, "convert", made, path, f"dtype={dtype}", "overwrite=true")
        reader = check_file(path, len(ours))
        model = open_llama(path)
        ids = model.tokenize(TEXT.encode(), add_bos=True, special=False)
        assert ids == list(TEXT.encode()), "llama.cpp's tokens are not the bytes"
        read = os.path.join(scratch, "read.hf")  # in fp32, so that smelt computes in it whatever the type is
        run(smelt, "convert", path, read, "dtype=fp32", "overwrite=true")
        theirs, again, largest = llama_logits(model, ids), smelt_logits(program, read, TEXT), numpy.abs(ours).max()
        difference, reread = numpy.abs(theirs - again).max() / largest, numpy.abs(again - ours).max() / largest
        limit = max(tolerance * (MORE_ROUNDED.get(name, 1) if dtype != "fp32" else 1), TOLERANCE.get(name, 0))
        assert difference <= limit, f"{name}, {dtype}: llama.cpp's logits differ by {difference:.2e} of the largest"
        assert reread <= (1e-6 if dtype == "fp32" else 0.1 * MORE_ROUNDED.get(name, 1)), f"{name}, {dtype}: smelt's logits differ by {reread:.2e} after reading"
        if dtype == "fp32":
            check_folder(path, made, smelt, program, scratch)
        line.append(f"{dtype} {difference:.1e} ({reread:.1e})")
        del reader, model
    print(f"{name:20s} llama.cpp against smelt (smelt's file against its run), of the largest logit: " + "  ".join(line))


def tensors_of(path):
    with open(path, "rb") as file:
        content = file.read()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    return {name: content[8 + size:][slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


def check_tensors(first, second):
    """Equal bit for bit, except logarithms of decays: files hold their exponentials."""
    a, b = tensors_of(first), tensors_of(second)
    assert a.keys() == b.keys()
    for name in a:
        if name.endswith(".A_log"):
            numpy.testing.assert_allclose(numpy.frombuffer(a[name], numpy.float32), numpy.frombuffer(b[name], numpy.float32), atol=3e-7, rtol=0)
        else:
            assert a[name] == b[name], name


def check_folder(path, made, smelt, program, scratch):
    """A folder made of the file has the tensors and the tokenizer of one made of the run."""
    first, second = (os.path.join(scratch, name) for name in ("first.hf", "second.hf"))
    run("rm", "-rf", first, second)
    run(smelt, "convert", made, first)
    run(smelt, "convert", path, second)
    check_tensors(*(os.path.join(folder, "model.safetensors") for folder in (first, second)))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        with open(os.path.join(first, name), "rb") as a, open(os.path.join(second, name), "rb") as b:
            if name != "tokenizer_config.json":
                assert a.read() == b.read(), f"{name} of the file is not that of the run"


TEXTS = ["The licence, in 1991, isn't 12345 words  long.\n\n\tIt's  over", " a b", "a", "café 京都 😀!", "x\u00a0y\u2003z\r\n\r\n1,000.50", "don't DON'T we'LL",
         "def f(x):\n    return x**2  # ²\n\n\n", "<|endoftext|>the</s> of<s>"]


def check_tokens(name, path, program, theirs):
    """smelt's tokens of a file that it wrote or reads are llama.cpp's."""
    for text in TEXTS:
        ours = [int(line) for line in run(program, "tokens", path, text).split()]
        ids = theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert ours == ids, f"{name}: {text!r}: llama.cpp has {ids}, smelt {ours}"


def check_tokenizers(smelt, program, scratch):
    """Golden tokenizers in files that smelt writes; those of llama.cpp's kinds."""
    here = os.path.dirname(os.path.abspath(__file__))
    for kind, end in {"tokenizers/gpt2": "<|endoftext|>", "tokenizers/qwen": "<|endoftext|>", "tokenizers/llama3": "<|endoftext|>", "gguf/sentencepiece": "</s>"}.items():
        made, folder, path = (os.path.join(scratch, name) for name in ("tokens.run", "tokens.hf", "tokens.gguf"))
        run("rm", "-rf", made, folder, path)
        run(program, "make", made, *COMMON, "model.vocabulary=768", "model.family=llama", "model.width=32", "model.ffn=32", "model.layers=1", "model.heads=1",
            "model.kv_heads=1")
        run(smelt, "convert", made, folder, "tokenizer=none")
        run("cp", os.path.join(here, kind + ".json"), os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
            file.write('{"eos_token": "%s", "chat_template": "{{ messages[0].content }}"}' % end)
        run(smelt, "convert", folder, path)
        theirs = open_llama(path)
        assert theirs.metadata["tokenizer.chat_template"] == "{{ messages[0].content }}"
        check_tokens(kind, path, program, theirs)
        print(f"{kind:20s} llama.cpp's tokens of {len(TEXTS)} texts are smelt's")


def check_real(path, smelt, program, scratch):
    """A file of a real model: tokens; logits and greedy text of what smelt writes of it in fp32."""
    prompt, wide, folder = "The capital of France is", os.path.join(scratch, "wide.gguf"), os.path.join(scratch, "wide.hf")
    run(smelt, "convert", path, wide, "dtype=fp32")
    run(smelt, "convert", path, folder, "dtype=fp32")
    theirs = open_llama(wide, 512)
    check_tokens(path, path, program, open_llama(path, 512))
    check_tokens(path, wide, program, theirs)
    ids = theirs.tokenize(prompt.encode(), add_bos=False)
    for model in wide, folder:
        ours, logits = smelt_logits(program, model, prompt), llama_logits(theirs, ids)
        difference = numpy.abs(ours - logits).max() / numpy.abs(logits).max()
        assert difference <= 1e-4, f"{model}: llama.cpp's logits differ by {difference:.2e} of the largest"
    text = run(smelt, "generate", wide, prompt, "tokens=48", "temperature=0", "device=cpu")
    expected = prompt + theirs.create_completion(ids, max_tokens=48, temperature=0)["choices"][0]["text"]
    assert text.rstrip("\n") == expected.rstrip("\n"), (text, expected)
    print(f"{os.path.basename(path)}: llama.cpp's tokens, logits (to {difference:.1e} of the largest) and 48 greedy tokens are smelt's: {text.strip()!r}")


def main():
    build_folder = sys.argv[1] if len(sys.argv) > 1 else "build"
    smelt = os.path.join(build_folder, "smelt")
    with tempfile.TemporaryDirectory() as scratch:
        program = random_run.build(build_folder, scratch)
        for name, settings in MODELS.items():
            if not any(word in name for word in SKIPPED):
                check_model(name, settings, smelt, program, scratch)
        for name, settings in MORE.items():
            check_model(name, settings, smelt, program, scratch)
        check_tokenizers(smelt, program, scratch)
        for path in sys.argv[2:]:
            check_real(path, smelt, program, scratch)


if __name__ == "__main__":
    main()
