#!/usr/bin/env python3
"""Does a setting cost validation loss? One run says nothing: seeds differ by more. The same seeds with and without it, and the mean difference with its standard error.

    bench/seeds.py --train train.txt --valid held-out.txt --config configs/llama-tiny.yaml --seeds 12 --variant precision=bf16 --variant precision=bf16,exact_gemm=true steps=300
The first variant is compared with each of the others; settings after the options hold for all. Needs only Python."""
import argparse
import concurrent.futures
import csv
import json
import os
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def bits_per_byte(arguments, folder, variant, seed):
    run = os.path.join(folder, "run")
    command = [arguments.smelt, "train", arguments.config, f"run={run}-{variant}-{seed}", f"data.train={arguments.train}", f"data.valid={arguments.valid}", f"seed={seed}",
               "checkpoint.every=0", "eval.every=0", "tensorboard=false", *arguments.settings, *variant.split(",")]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {result.returncode}\n{result.stderr}")
    with open(f"{run}-{variant}-{seed}/metrics.jsonl") as file:
        return [record["bits_per_byte"] for record in map(json.loads, file) if record["kind"] == "evaluation"][-1]


def write_row(arguments, seed, variant, loss):
    new = not os.path.exists(arguments.csv)
    with open(arguments.csv, "a", newline="") as file:
        if new:
            file.write("config,settings,variant,seed,bits_per_byte\n")
        csv.writer(file, lineterminator="\n").writerow([os.path.basename(arguments.config), " ".join(arguments.settings), variant, seed, loss])


def compare(first, other, results):
    """Differences in percent of the other's, seed by seed."""
    differences = [100 * (a / b - 1) for a, b in zip(results[first], results[other])]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    print(f"{first} against {other}: {statistics.mean(differences):+.2f}% +- {error:.2f} (standard error), higher in {sum(d > 0 for d in differences)} of {len(differences)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smelt", default=os.path.join(HERE, "..", "build", "smelt"))
    parser.add_argument("--config", default=os.path.join(HERE, "..", "configs", "llama-tiny.yaml"))
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--variant", action="append", required=True, help="settings, separated by commas; twice or more")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, for a GPU that one small model does not fill")
    parser.add_argument("--csv", default="", help="rows are added to this file")
    parser.add_argument("settings", nargs="*", help="key=value for all runs")
    arguments = parser.parse_args()
    if len(arguments.variant) < 2 or arguments.seeds < 2:
        parser.error("two variants and two seeds are the least that can be compared")
    runs = [(seed, variant) for seed in range(1, arguments.seeds + 1) for variant in arguments.variant]
    results, start = {variant: [] for variant in arguments.variant}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        losses = pool.map(lambda run: bits_per_byte(arguments, folder, run[1], run[0]), runs)
        for done, ((seed, variant), loss) in enumerate(zip(runs, losses), 1):
            results[variant].append(loss)
            left = (time.monotonic() - start) / done * (len(runs) - done)
            print(f"{done}/{len(runs)} seed {seed} {variant}: {loss:.4f} bits per byte, {left / 60:.1f} min left", flush=True)
            if arguments.csv:
                write_row(arguments, seed, variant, loss)
    first, *others = results
    for other in others:
        compare(first, other, results)


if __name__ == "__main__":
    main()
