#!/usr/bin/env python3
"""A property of plans on a card: whatever `plan=true` says fits at up to 97% of the card's memory trains there.

    bench/plan_holds.py --smelt build/smelt [--rows 6] [--part 0.97] [--steps 20]

Each row is a configuration. The number of layers is searched by plans, which allocate nothing, so that the plan is as large as it may be below the part;
then `smelt bench train` runs the steps. A row that is refused, fails, or runs out of memory ends the script with 1. Prints the plan, its part of the card,
and the seconds. tests/session/test_plan_holds.c counts the bytes of random configurations on any device."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
COMMON = ["batch.sequences=1", "batch.tokens=4096", "data.length=4096", "batch.ramp_steps=0", "optimizer.clip=0"]
ROWS = [
    ("configs/llama3.1-8b.yaml", ["precision=pure_bf16", "recompute=none"]),
    ("configs/llama3.1-8b.yaml", ["precision=pure_bf16", "recompute=block", "offload=both", "optimizer.name=adamw_8bit"]),
    ("configs/zaya1-8b.yaml", ["precision=pure_bf16", "recompute=norm"]),
    ("configs/llama3.1-8b.yaml", ["precision=pure_bf16", "recompute=block", "optimizer.in_backward=true", "optimizer.name=adamw_8bit"]),
    ("configs/gemma3-4b.yaml", ["precision=pure_bf16", "recompute=block", "offload=activations"]),
    ("configs/llama3.2-1b.yaml", ["precision=pure_bf16", "recompute=none", "optimizer.name=muon"]),
]


def planned(smelt, config, settings):
    """The bytes that the plan needs, and those that the device has."""
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "w") as file:
            file.write("a plan holds\n" * 4000)
        result = subprocess.run([smelt, "train", config, *COMMON, *settings, "data.train=" + text, "data.tokenizer=none", "data.valid_fraction=0",
                                 "eval.sample_tokens=0", "run=" + os.path.join(folder, "run"), "plan=true"], capture_output=True, text=True)
    found = re.search(r"memory of the device: ([\d.]+) (\w+) of ([\d.]+) (\w+)", result.stdout + result.stderr)
    if not found:
        sys.exit(result.stdout + result.stderr)
    return float(found[1]) * UNITS[found[2]], float(found[3]) * UNITS[found[4]]


def largest(smelt, config, settings, part):
    """The most layers whose plan is at most `part` of the card."""
    fits, above = 1, 256
    while above - fits > 1:
        layers = (fits + above) // 2
        need, have = planned(smelt, config, settings + [f"model.layers={layers}"])
        fits, above = (layers, above) if need <= part * have else (fits, layers)
    return fits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--rows", type=int, default=len(ROWS))
    parser.add_argument("--part", type=float, default=0.97)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    failed = 0
    for config, settings in ROWS[:arguments.rows]:
        layers = largest(arguments.smelt, config, settings, arguments.part)
        settings = settings + [f"model.layers={layers}"]
        need, have = planned(arguments.smelt, config, settings)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            result = subprocess.run([arguments.smelt, "bench", "train", config, *COMMON, *settings, "microbatch=1", "accumulation=1", "repeats=1",
                                     "seconds=0.01", f"measured_steps={arguments.steps}", "json=" + path], capture_output=True, text=True)
            seconds = json.load(open(path))["rows"][0]["step_ms"] / 1e3 if result.returncode == 0 else float("nan")
        print(f"{os.path.basename(config)} {' '.join(settings)}: {need / 2**30:.2f} of {have / 2**30:.2f} GiB, {100 * need / have:.1f}%, "
              f"{'trains' if result.returncode == 0 else 'FAILS'}, {seconds:.3f} s a step", flush=True)
        if result.returncode:
            print(result.stderr, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
