#!/usr/bin/env python3
"""Generation of many sequences at once on a GPU: `smelt bench batch` beside vLLM on the same shape, one after the other.

    bench/batch_gpu.py FOLDER CONFIG.yaml [--smelt build/smelt] [--sequences 1,8,64,256] [--prompt 1024] [--tokens 1024] [--set key=value ...]

FOLDER has the config.json of the shape of CONFIG.yaml; both programs use bf16 and random weights. The prompts are random tokens, and no text ends early. A rate
is the drawn tokens over the whole time, prompts included; `step` is the time in which every sequence gets one token: smelt's median, and vLLM's difference
between TOKENS and TOKENS / 8 drawn tokens, divided by their number. vLLM keeps its defaults (compiled, CUDA graphs), without reuse of prompts."""
import argparse
import json
import os
import random
import subprocess
import sys
import time

import batch


def measure_vllm(folder, counts, prompt, tokens):
    """Returns (tokens/s, ms of a step) for each number of sequences."""
    import vllm
    model = vllm.LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=prompt + tokens + 128,
                     max_num_seqs=max(counts), enable_prefix_caching=False, seed=1, compilation_config={"cudagraph_capture_sizes": sorted({1, *counts})})
    generator = random.Random(7)

    def seconds(count, drawn):
        prompts = [{"prompt_token_ids": [generator.randrange(100, 32000) for _ in range(prompt)]} for _ in range(count)]
        sampling = vllm.SamplingParams(temperature=1.0, max_tokens=drawn, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        results = model.generate(prompts, sampling, use_tqdm=False)
        taken = time.perf_counter() - start
        if sum(len(result.outputs[0].token_ids) for result in results) != count * drawn:
            sys.exit("vLLM ended a text early")
        return taken

    rates = []
    for count in counts:
        seconds(count, 4)  # once without being measured
        short, long = seconds(count, tokens // 8), seconds(count, tokens)
        rates.append((count * tokens / long, 1e3 * (long - short) / (tokens - tokens // 8)))
    return rates


def run_vllm(arguments):
    done = subprocess.run([sys.executable, os.path.abspath(__file__), arguments.folder, arguments.config, "--as-vllm", "--sequences", arguments.sequences,
                           "--prompt", str(arguments.prompt), "--tokens", str(arguments.tokens)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_smelt(arguments):
    return [(float(row["tokens_s"]), float(row["step_ms"])) for row in batch.bench_batch(arguments, arguments.sequences, "precision=pure_bf16")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("config")
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--sequences", default="1,8,64,256")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--as-vllm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.sequences.split(",")]
    if arguments.as_vllm:
        return print(json.dumps(measure_vllm(arguments.folder, counts, arguments.prompt, arguments.tokens)))
    for count, ours, theirs in zip(counts, run_smelt(arguments), run_vllm(arguments)):
        print(f"{count} sequences: smelt {ours[0]:.1f} tokens/s, step {ours[1]:.2f} ms; vLLM {theirs[0]:.1f}, {theirs[1]:.2f} ms; ratio {ours[0] / theirs[0]:.3f}")


if __name__ == "__main__":
    main()
