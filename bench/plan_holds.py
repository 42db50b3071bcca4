#!/usr/bin/env python3
"""A property of plans on a card: whatever `plan=true` says fits at up to 97% of the card's memory trains there.

    bench/plan_holds.py --smelt build/smelt [--rows 3] [--part 0.97] [--steps 20]

Each row is a configuration. Its memory grows by the same amount with each layer, so a few plans, which allocate nothing, find the most layers whose plan
is below the part; the rows' plans are made at the same time. Then `smelt bench train` runs the steps, one row after the other. Sequences are short: the
forecasts for a full H200 are 0.23 to 0.36 s a step of the first three rows. A row that is refused, fails, or runs out of memory ends the script with 1.
Prints the plan, its part of the card, the seconds of a step and of the row. tests/session/test_plan_holds.c counts the bytes of random configurations on
any device."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
COMMON = ["batch.sequences=1", "batch.ramp_tokens=0", "batch.ramp_steps=0", "optimizer.clip=0"]
ROWS = [
    ("configs/llama3.1-8b.yaml", 2048, ["precision=pure_bf16", "recompute=none"]),
    ("configs/zaya1-8b.yaml", 2048, ["precision=pure_bf16", "recompute=norm", "optimizer.name=adamw"]),
    ("configs/llama3.1-8b.yaml", 512, ["precision=pure_bf16", "recompute=block", "optimizer.in_backward=true", "optimizer.name=adamw_8bit"]),
    ("configs/gemma3-4b.yaml", 4096, ["precision=pure_bf16", "recompute=block", "offload=activations"]),
    ("configs/llama3.2-1b.yaml", 4096, ["precision=pure_bf16", "recompute=none", "optimizer.name=muon"]),
    ("configs/llama3.1-8b.yaml", 4096, ["precision=pure_bf16", "recompute=block", "offload=both", "optimizer.name=adamw_8bit"]),
]
FIRST, SECOND = 2, 6  # layers of the two plans that give the bytes of a layer


def settings_of(tokens, settings, layers):
    return [*COMMON, f"data.length={tokens}", f"batch.tokens={tokens}", *settings, f"model.layers={layers}"]


def planned(smelt, config, settings):
    """The bytes that the plan needs, and those that the device has."""
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "w") as file:
            file.write("a plan holds\n" * 4000)
        result = subprocess.run([smelt, "train", config, *settings, "data.train=" + text, "data.tokenizer=none", "data.valid_fraction=0",
                                 "eval.sample_tokens=0", "run=" + os.path.join(folder, "run"), "plan=true"], capture_output=True, text=True)
    found = re.search(r"memory of the device: ([\d.]+) (\w+) of ([\d.]+) (\w+)", result.stdout + result.stderr)
    if not found:
        sys.exit(result.stdout + result.stderr)
    return float(found[1]) * UNITS[found[2]], float(found[3]) * UNITS[found[4]]


def largest(smelt, row, have, part):
    """The settings with the most layers whose plan is at most `part` of `have` bytes, and its bytes."""
    config, tokens, settings = row
    needs = {}

    def need(layers):
        if layers not in needs:
            needs[layers] = planned(smelt, config, settings_of(tokens, settings, layers))[0]
        return needs[layers]

    layer = (need(SECOND) - need(FIRST)) / (SECOND - FIRST)
    layers = SECOND + int((part * have - need(SECOND)) / layer)
    while need(layers) > part * have:
        layers -= 1
    while need(layers + 1) <= part * have:
        layers += 1
    return settings_of(tokens, settings, layers), need(layers)


def train(smelt, config, settings, steps):
    """The seconds of a step; NaN, and what the program wrote: the run failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        result = subprocess.run([smelt, "bench", "train", config, *settings, "microbatch=1", "accumulation=1", "repeats=1", "seconds=0.01",
                                 f"measured_steps={steps}", "json=" + path], capture_output=True, text=True)
        if result.returncode:
            return float("nan"), result.stderr
        with open(path) as file:
            return json.load(file)["rows"][0]["step_ms"] / 1e3, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--rows", type=int, default=len(ROWS))
    parser.add_argument("--part", type=float, default=0.97)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    rows, failed = ROWS[:arguments.rows], 0
    config, tokens, settings = rows[0]
    have = planned(arguments.smelt, config, settings_of(tokens, settings, FIRST))[1]  # alone: other processes take some of it
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda row: largest(arguments.smelt, row, have, arguments.part), rows))
    for (config, _, _), (settings, need) in zip(rows, found):
        start = time.monotonic()
        step, text = train(arguments.smelt, config, settings, arguments.steps)
        print(f"{os.path.basename(config)} {' '.join(settings)}: {need / 2**30:.2f} of {have / 2**30:.2f} GiB, {100 * need / have:.1f}%, "
              f"{'FAILS' if text else 'trains'}, {step:.3f} s a step, {time.monotonic() - start:.0f} s", flush=True)
        if text:
            print(text, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
