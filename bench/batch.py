#!/usr/bin/env python3
"""Generation on the CPU of many sequences at once: `smelt bench batch` beside llama.cpp (PyPI's llama-cpp-python) on the same model, types and threads, in turn.

    bench/batch.py MODEL.gguf CONFIG.yaml [--smelt build/smelt] [--sequences 1,16] [--prompt 512] [--tokens 64] [--threads 2] [--rounds 3] [--set key=value ...]

MODEL.gguf has the shape of CONFIG.yaml with the settings; `smelt convert RUN MODEL.gguf` writes it. A rate is the drawn tokens/s of the median step, in
which every sequence gets one token; a step of llama.cpp is its decode alone, without the draw, which smelt's step has. The ratio is smelt's over llama.cpp's."""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def measure_llama(path, sequences, prompt, tokens, threads):
    """Seconds of each step of llama.cpp."""
    import llama_cpp
    import numpy
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = sequences * (prompt + tokens + 1), max(prompt, sequences), 512
    params.n_seq_max, params.n_threads, params.n_threads_batch = sequences, threads, threads
    context = llama_cpp.llama_init_from_model(model, params)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def decode(rows):
        """Rows are (token, position, sequence, whether its logits are wanted)."""
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, position, 1, sequence, wanted
        start = time.perf_counter()
        if llama_cpp.llama_decode(context, batch):
            sys.exit("llama_decode failed")
        llama_cpp.llama_synchronize(context)
        return time.perf_counter() - start

    random = numpy.random.default_rng(1)
    for sequence in range(sequences):
        decode([(int(token), i, sequence, i == prompt - 1) for i, token in enumerate(random.integers(vocabulary, size=prompt))])
    newest, seconds = [0] * sequences, []
    for step in range(tokens):
        seconds.append(decode([(newest[sequence], prompt + step, sequence, True) for sequence in range(sequences)]))
        newest = [int(numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (vocabulary,)).argmax()) for i in range(sequences)]
    return seconds


def run_llama(arguments, sequences):
    done = subprocess.run([sys.executable, os.path.abspath(__file__), arguments.model, arguments.config, "--as-llama", str(sequences), "--prompt", str(arguments.prompt),
                           "--tokens", str(arguments.tokens), "--threads", str(arguments.threads)], capture_output=True, text=True, check=True)
    return sequences / statistics.median(json.loads(done.stdout.splitlines()[-1]))


def bench_batch(arguments, sequences, *settings):
    """The rows of smelt's results, which are in the order of `sequences`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "batch.csv")
        subprocess.run([arguments.smelt, "bench", "batch", arguments.config, f"sequences={sequences}", f"prompt={arguments.prompt}", f"tokens={arguments.tokens}",
                        *settings, f"csv={path}", *arguments.set], check=True, stdout=subprocess.DEVNULL)
        with open(path, newline="") as file:
            return list(csv.DictReader(file))


def run_smelt(arguments, sequences):
    return float(bench_batch(arguments, sequences, f"threads={arguments.threads}", "device=cpu")[0]["step_tokens_s"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("config")
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--sequences", default="1,16")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--as-llama", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_llama:
        return print(json.dumps(measure_llama(arguments.model, arguments.as_llama, arguments.prompt, arguments.tokens, arguments.threads)))
    for sequences in map(int, arguments.sequences.split(",")):
        pairs = [(run_smelt(arguments, sequences), run_llama(arguments, sequences)) for _ in range(arguments.rounds)]
        ours, theirs = (statistics.median(rates) for rates in zip(*pairs))
        print(f"{sequences} sequences: smelt {ours:.1f}, llama.cpp {theirs:.1f} tokens/s, ratio {statistics.median(a / b for a, b in pairs):.2f} "
              f"({min(a / b for a, b in pairs):.2f} to {max(a / b for a, b in pairs):.2f})", flush=True)


if __name__ == "__main__":
    main()
