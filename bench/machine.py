#!/usr/bin/env python3
"""The figures of `smelt bench` on this machine against those of another program that measures the same way, in one run: on a CPU oneDNN's products and a plain C
STREAM triad (machine.c), on a GPU PyTorch's products and copy (machine_torch.py).

Each round measures every figure with smelt and with the reference, one right after the other, and the next round the other way round, so that a slow minute or a warm GPU
hits both. Both sides repeat as often and for as long. The ratio of a figure is the median over the rounds; the least and the largest stand beside it. A CPU's rate is
that of the best repeat, since other programs disturb it; a GPU's that of the median one, since its clocks move.

Figures that have to agree within --tolerance tell whether smelt measures rightly: both sides run the same library, or read and write the same bytes. The others, marked
as races, are smelt's own kernels. Writes CSV, and exits with 1 when a figure that has to agree does not.

    bench/machine.py                                  smelt from build/smelt, CPU; some two minutes of both cores
    bench/machine.py --device gpu --tolerance 0.03    some three minutes of a GPU
    bench/machine.py --only triad --rounds 9          figures whose name contains a text

The CPU needs gcc and libdnnl-dev, a GPU PyTorch.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import namedtuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)

# `smelt`: arguments of smelt bench; `reference`: words for the other program.
Figure = namedtuple("Figure", "name unit agrees smelt reference")


# -- What is measured ------------------------------------------------------------------------------------------------


def product(provider, kind, shape, agrees, reference, cache):
    m, n, k = shape
    arguments = ("gemm", f"provider={provider}", f"type={kind}", f"m={m}", f"n={n}", f"k={k}", f"cache={cache}")
    return Figure(f"{provider} {kind} {m} x {n} x {k}", "TFLOP/s", agrees, arguments, (reference, kind, m, n, k))


def last_cache():
    text = subprocess.run(["getconf", "LEVEL3_CACHE_SIZE"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return int(text) if text.isdigit() and int(text) else 32 << 20


def cpu_figures(triad_bytes):
    shapes = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 2048)]
    figures = [product("onednn", "fp32", shape, True, "sgemm", "hot") for shape in shapes]
    figures += [product("own", kind, shape, False, "matmul", "hot") for kind in ("fp32", "bf16") for shape in shapes]
    size = triad_bytes or 3 * 4 * last_cache()
    return figures + [Figure(f"triad {size / 2**30:.1f} GiB", "GB/s", True, ("memory", "kernel=triad", f"bytes={size}"), ("triad", size))]


def gpu_figures():
    cubes = [(size, size, size) for size in (2048, 4096, 8192)]
    figures = [product("chosen", "bf16", shape, True, "gemm", "cold") for shape in cubes + [(16384, 2048, 8192), (16384, 128256, 2048)]]
    figures += [product("chosen", "fp8", shape, True, "gemm", "cold") for shape in cubes[1:]]
    figures += [product("own", "bf16", cubes[-1], False, "gemm", "cold")]
    return figures + [Figure(f"{kernel} 2 GiB", "GB/s", kernel == "driver_copy", ("memory", f"kernel={kernel}", f"bytes={2 << 30}"), ("driver_copy", 2 << 30))
                      for kernel in ("driver_copy", "copy")]


# -- The two programs ------------------------------------------------------------------------------------------------


class Smelt:
    def __init__(self, options, folder):
        self.program, self.device, self.path = options.smelt, "cpu" if options.device == "cpu" else "auto", os.path.join(folder, "smelt.json")
        self.rate = "best_" if options.device == "cpu" else ""
        self.repeats = [f"repeats={options.repeats}", f"seconds={options.seconds}"]

    def measure(self, figure):
        command = [self.program, "bench", figure.smelt[0], f"device={self.device}", f"json={self.path}", *figure.smelt[1:], *self.repeats]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
        if not os.path.exists(self.path):
            return None  # no row: nothing here computes it
        with open(self.path) as file:
            rows = [row for row in json.load(file)["rows"] if row.get("type") != "e5m2"]  # of fp8 the reference has e4m3
        os.remove(self.path)
        assert len(rows) == 1 and rows[0].get("check", "ok") == "ok", rows
        return rows[0][self.rate + ("tflops" if figure.unit == "TFLOP/s" else "gbps")]


class CpuReference:
    def __init__(self, options, folder):
        self.program, self.repeats = os.path.join(folder, "machine"), [str(options.repeats), str(options.seconds)]
        subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", os.path.join(HERE, "machine.c"), "-ldnnl", "-o", self.program], check=True)

    def measure(self, figure):
        done = subprocess.run([self.program, *map(str, figure.reference), *self.repeats], check=True, stdout=subprocess.PIPE, text=True)
        return float(done.stdout.split()[1])


class GpuReference:
    def __init__(self, options, folder):
        del folder
        self.repeats = [options.repeats, options.seconds]
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "machine_torch.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, figure):
        print(*figure.reference, *self.repeats, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().split()
        if not answer:
            sys.exit("machine_torch.py ended")
        if answer[0] == "none:":
            print(f"{figure.name}: PyTorch has {' '.join(answer)}", file=sys.stderr)
            return None
        return float(answer[0])


# -- The run ---------------------------------------------------------------------------------------------------------


def measure_rounds(figures, smelt, reference, rounds):
    found = {figure: [] for figure in figures}
    for turn in range(rounds):
        for figure in figures:
            order = (smelt, reference) if turn % 2 == 0 else (reference, smelt)
            rates = {side: side.measure(figure) for side in order}
            if None not in rates.values():
                found[figure].append((rates[smelt], rates[reference]))
    return found


def report(found, tolerance, path):
    """Prints and writes the table; how many figures do not agree that have to."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    wrong = 0
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["figure", "unit", "smelt", "reference", "ratio", "least", "largest", "rounds", "meaning"])
        print(f"{'figure':32} {'unit':8} {'smelt':>9} {'reference':>9} {'ratio':>6} {'least':>6} {'largest':>7}")
        for figure, pairs in found.items():
            if not pairs:
                print(f"{figure.name:32} not here")
                continue
            ours, theirs = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            ratios = [pair[0] / pair[1] for pair in pairs]
            ratio = statistics.median(ratios)
            bad = figure.agrees and abs(ratio - 1) > tolerance
            wrong += bad
            meaning = "differs" if bad else "agrees" if figure.agrees else "race"
            table.writerow([figure.name, figure.unit, f"{ours:.4f}", f"{theirs:.4f}", f"{ratio:.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}", len(pairs), meaning])
            print(f"{figure.name:32} {figure.unit:8} {ours:9.3f} {theirs:9.3f} {ratio:6.3f} {min(ratios):6.3f} {max(ratios):7.3f}  {meaning}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--smelt", default=os.path.join(ROOT, "build", "smelt"))
    parser.add_argument("--only", default="", help="figures whose name contains this; several with commas between them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=-1, help="of the repeats of a measurement together; a CPU's default is one call a repeat, a GPU's 0.5")
    parser.add_argument("--tolerance", type=float, default=0.05, help="of ratios that have to be 1")
    parser.add_argument("--triad-bytes", type=int, default=0, help="of the three arrays together; 0: each four times the last cache, as STREAM asks")
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "bench", "machine.csv"))
    options = parser.parse_args()
    cpu = options.device == "cpu"
    if options.seconds < 0:
        options.seconds = 0 if cpu else 0.5
    figures = cpu_figures(options.triad_bytes) if cpu else gpu_figures()
    figures = [figure for figure in figures if any(text in figure.name for text in options.only.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        reference = (CpuReference if cpu else GpuReference)(options, folder)
        found = measure_rounds(figures, Smelt(options, folder), reference, options.rounds)
    return 1 if report(found, options.tolerance, options.out) else 0


if __name__ == "__main__":
    sys.exit(main())
