#!/usr/bin/env python3
"""The figures of `smelt bench` on this CPU against oneDNN's matmul and a plain C STREAM triad (machine.c), in one run.

Each round measures every figure with smelt and with the reference, one right after the other, so that a slow minute of the machine hits both. The ratio of a figure is
the median over the rounds of smelt's best repeat to the reference's best repeat. Products use the same operands again (cache=hot), as oneDNN's benchmark does.
"onednn" is oneDNN's product as smelt bench times it: that ratio tells whether smelt measures rightly, and has to be within --tolerance of 1, as the triad's. "own" is
smelt's own product, whose ratio is a race. Writes CSV, and exits with 1 when a figure that has to agree does not.

    bench/machine.py                                  smelt from build/smelt; under a minute of both cores

Needs gcc, libdnnl-dev and Python's standard library.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LIKELY_FLOPS = 5e11  # per second, of all cores: faster machines repeat less often than they could
SHAPES = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 2048)]


def build(folder):
    program = os.path.join(folder, "machine")
    source = os.path.join(HERE, "machine.c")
    subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", source, "-ldnnl", "-o", program], check=True)
    return program


def smelt_rows(smelt, folder, name, arguments, seconds):
    path = os.path.join(folder, "smelt.json")
    command = [smelt, "bench", name, "device=cpu", f"seconds={seconds}", f"json={path}"] + arguments
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(path) as file:
        return json.load(file)["rows"]


def reference(program, arguments, seconds):
    output = subprocess.run([program] + arguments + [str(seconds)], check=True, stdout=subprocess.PIPE, text=True)
    return float(output.stdout)


def measure_product(tools, kind, provider, shape, seconds):
    m, n, k = shape
    repeats = max(5, int(seconds * LIKELY_FLOPS / (2 * m * n * k)))  # so many that each is a single product, as in the reference
    rows = smelt_rows(tools.smelt, tools.folder, "gemm", [f"type={kind}", f"m={m}", f"n={n}", f"k={k}", "cache=hot", f"repeats={repeats}"], seconds)
    assert all(row["check"] == "ok" for row in rows)
    row = next(row for row in rows if row["provider"] == provider)
    return row["best_tflops"], reference(tools.program, ["gemm", kind, str(m), str(n), str(k)], seconds)


def measure_triad(tools, size, seconds):
    rows = smelt_rows(tools.smelt, tools.folder, "memory", [f"bytes={size}", "kernel=triad", "repeats=10"], seconds)
    return rows[0]["best_gbps"], reference(tools.program, ["triad", str(size)], seconds)


def last_cache():
    text = subprocess.run(["getconf", "LEVEL3_CACHE_SIZE"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return int(text) if text.isdigit() and int(text) else 32 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default=os.path.join(ROOT, "build", "smelt"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7, help="of one measurement")
    parser.add_argument("--tolerance", type=float, default=0.05, help="of ratios that have to be 1")
    parser.add_argument("--triad-bytes", type=int, default=0, help="of the three arrays together; 0: each four times the last cache, as STREAM asks")
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "bench", "machine.csv"))
    tools = parser.parse_args()
    size = tools.triad_bytes or 3 * 4 * last_cache()
    with tempfile.TemporaryDirectory() as folder:
        tools.folder = folder
        tools.program = build(folder)
        jobs = [(f"{provider} {kind} {m} x {n} x {k}", "TFLOP/s", lambda kind=kind, provider=provider, shape=(m, n, k):
                 measure_product(tools, kind, provider, shape, tools.seconds))
                for provider, kind in (("onednn", "fp32"), ("own", "fp32"), ("own", "bf16")) for m, n, k in SHAPES]
        jobs.append((f"triad {size / 2**30:.1f} GiB", "GB/s", lambda: measure_triad(tools, size, tools.seconds)))
        found = {name: [] for name, _, _ in jobs}
        for _ in range(tools.rounds):
            for name, _, job in jobs:
                found[name].append(job())
    os.makedirs(os.path.dirname(os.path.abspath(tools.out)), exist_ok=True)
    wrong = 0
    with open(tools.out, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["figure", "unit", "smelt", "reference", "ratio"])
        print(f"{'figure':32} {'unit':8} {'smelt':>9} {'reference':>9} {'ratio':>6}")
        for name, unit, _ in jobs:
            ours, theirs = (statistics.median(pair[i] for pair in found[name]) for i in (0, 1))
            ratio = statistics.median(pair[0] / pair[1] for pair in found[name])
            wrong += not name.startswith("own") and abs(ratio - 1) > tools.tolerance
            table.writerow([name, unit, f"{ours:.4f}", f"{theirs:.4f}", f"{ratio:.3f}"])
            print(f"{name:32} {unit:8} {ours:9.3f} {theirs:9.3f} {ratio:6.3f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
