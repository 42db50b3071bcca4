#!/usr/bin/env python3
"""Compares the bits of two builds: each variant of training is run by both, and once begun by the older and continued by the newer.

The bytes of every tensor of the last checkpoint (weights and optimizer state) and every record of steps, evaluations and samples but for times must be
equal. Variants are families x optimizers x precisions, and layouts, adapters and pairs of answers.

    tests/reliability/same_bits.py OLD/smelt build/smelt [--only zaya-muon-bf16,...] [--jobs 2]

Prints a Markdown table; exit code 1 if a variant differs. What the older build refuses is shown, and not compared.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile

import kills

SIZE = ["model.width=32", "model.layers=2", "model.heads=2"]
FAMILIES = {
    "llama": kills.LLAMA,
    "zaya": kills.ZAYA,
    "mixtral": [*kills.LLAMA, "model.experts=4"],
    "qwen3": [*kills.LLAMA, "model.qk_norm=true"],
    "gpt2": ["model.family=gpt2", *SIZE, "model.ffn=64", "model.context=64"],
    "mpt": ["model.family=mpt", *SIZE, "model.ffn=64"],
    "olmo": ["model.family=olmo", *SIZE, "model.ffn=64"],
}
OPTIMIZERS = ["adamw", "muon", "lion", "adamw_8bit"]
PRECISIONS = {"bf16": [], "fp32": ["precision=fp32"], "pure_bf16": ["precision=pure_bf16"], "fp8": ["fp8.recipe=row"]}
COMMON = ["data.length=32", "batch.sequences=4", "batch.tokens=256", "optimizer.lr=5e-3", "schedule.warmup=4", "steps=40", "threads=1", "tensorboard=false",
          "checkpoint.every=20", "eval.every=20", "eval.sequences=8"]
STEPS = 40


def variants():
    """Name: ranks and settings."""
    table = {}
    for family, settings in FAMILIES.items():
        for optimizer in OPTIMIZERS:
            for precision, recipe in PRECISIONS.items():
                table["%s-%s-%s" % (family, optimizer, precision)] = 1, [*settings, "optimizer.name=" + optimizer, *recipe]
    for name, layout in {"tp2": ["layout.tp=2"], "pp2": ["layout.pp=2"], "cp2": ["layout.cp=2"], "zero2": ["layout.zero=2"], "zero3": ["layout.zero=3"]}.items():
        for family in ("llama", "zaya"):
            table["%s-%s" % (family, name)] = 2, [*FAMILIES[family], *layout]
    table["zaya-ep2"] = 2, [*FAMILIES["zaya"], "layout.ep=2"]
    for recompute in ("block", "full"):
        table["zaya-recompute-" + recompute] = 1, [*FAMILIES["zaya"], "recompute=" + recompute]
    table["llama-lora"] = 1, [*FAMILIES["llama"], "lora.rank=4", "init=base"]
    table["llama-best-fit"] = 1, [*FAMILIES["llama"], "data.packing=best_fit"]
    return table


class Bits:
    def __init__(self, options):
        self.builds = [os.path.abspath(options.old), os.path.abspath(options.new)]
        self.folder = tempfile.mkdtemp(prefix="smelt-bits-")
        self.environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        kills.STEPS = STEPS
        with open(os.path.join(self.folder, "text"), "w") as file:
            for i in range(3000):
                file.write("line %d of a text, with %d words and some numbers %d.\n" % (i, i * i % 97, i * 7919 % 1009))
        error = self.train(0, 1, [*FAMILIES["llama"], "steps=5"], "base")
        if error:
            sys.exit(error)

    def train(self, build, ranks, settings, run):
        """Returns what a failed run said last, or None."""
        launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
        words = [self.builds[build], *launch, "train", *COMMON, "data.train=text", "run=" + run, *settings]
        result = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        return (result.stderr.strip().splitlines() or ["exit code %d" % result.returncode])[-1] if result.returncode else None

    def result(self, run):
        """A run's end, by the reader of tests/reliability/kills.py."""
        trial = kills.Trial.__new__(kills.Trial)
        trial.table, trial.name, trial.run = self, run, run
        return trial

    def compare(self, name, ranks, settings):
        runs = [name + "-old", name + "-new", name + "-continued"]
        errors = [self.train(build, ranks, settings, runs[build]) for build in (0, 1)]
        if errors[0]:
            return ("refused by both: " + errors[1] if errors[1] else "refused by the older: " + errors[0]), True
        if errors[1]:
            return "DIFFERS: refused by the newer: " + errors[1], False
        self.train(0, ranks, [*settings, "stop_at=17"], runs[2])
        error = self.train(1, ranks, settings, runs[2])
        whole, new, continued = map(self.result, runs)
        differs = new.difference(whole) or error or continued.difference(whole)
        for run in runs:
            shutil.rmtree(os.path.join(self.folder, run))
        return ("DIFFERS: " + differs if differs else "equal"), not differs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", default="", help="variants, with commas between them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    bits, table = Bits(options), variants()
    chosen = options.only.split(",") if options.only else list(table)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda name: bits.compare(name, *table[name]), chosen))
    print("| variant | 40 steps by both, and 17 by the old build continued by the new |\n|---|---|")
    for name, (text, _) in zip(chosen, results):
        print("| %s | %s |" % (name, text))
    differ = sum(not good for _, good in results)
    print("\n%d of %d variants differ" % (differ, len(chosen)))
    shutil.rmtree(bits.folder)
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
