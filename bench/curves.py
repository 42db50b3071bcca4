#!/usr/bin/env python3
"""Does training on a GPU in bf16 follow training on the CPU in fp32? The same run of the demo's model on real text, once on each, and both losses in one picture.

    bench/curves.py --text bible.txt --plot docs/curves.svg
    bench/curves.py --runs runs/bf16 runs/fp8 --plot docs/fp8-curves.svg    two runs that are there, under their names
Prints the largest and the mean difference, over all steps and over the second half, beside what two seeds differ by on the CPU with --seeds. Needs only Python."""
import argparse
import json
import os
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def losses(arguments, folder, name, *settings):
    run = os.path.join(folder, name)
    subprocess.run([arguments.smelt, "train", arguments.config, f"run={run}", f"data.train={arguments.text}", f"steps={arguments.steps}",
                    "checkpoint.every=0", "eval.every=0", "tensorboard=false", "schedule.decay=100", "schedule.warmup=30", *settings], check=True, stdout=subprocess.DEVNULL)
    return read_losses(run)


def read_losses(run):
    with open(os.path.join(run, "metrics.jsonl")) as file:
        return [record["loss"] for record in map(json.loads, file) if record["kind"] == "step"]


def plot(path, curves, title):
    """Two lines and their difference, ten times as tall, as SVG."""
    width, height, left, top, bottom = 760, 360, 50, 30, 40
    highest = max(max(values) for values in curves.values())
    count = len(next(iter(curves.values())))

    def point(i, loss):
        return f"{left + (width - left - 10) * i / (count - 1):.1f},{top + (height - top - bottom) * (1 - loss / highest):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="18" font-size="14">{title}</text>']
    for tick in range(int(highest) + 1):
        x, y = point(0, tick).split(",")
        parts.append(f'<path d="M{x} {y}H{width - 10}" stroke="#ddd"/><text x="{left - 8}" y="{float(y) + 4}" text-anchor="end">{tick}</text>')
    for tick in range(0, count + 1, max(50, count // 8)):
        parts.append(f'<text x="{point(min(tick, count - 1), 0).split(",")[0]}" y="{height - bottom + 16}" text-anchor="middle">{tick}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">step</text>')
    names = list(curves)
    lines = dict(curves)
    lines["10 x their difference"] = [10 * abs(a - b) for a, b in zip(curves[names[0]], curves[names[1]])]
    for i, ((name, values), color) in enumerate(zip(lines.items(), ("#1f77b4", "#d62728", "#7f7f7f"))):
        dash = ' stroke-dasharray="6 4"' if i == 1 else ""
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="{1.6 if i < 2 else 1}"{dash} '
                     f'points="{" ".join(point(j, min(values[j], highest)) for j in range(0, count, max(1, count // 400)))}"/>')
        parts.append(f'<text x="{width - 20}" y="{top + 20 + 16 * i}" text-anchor="end" fill="{color}">{name}</text>')
    with open(path, "w") as file:
        file.write("\n".join(parts) + "</svg>\n")


def report(name, a, b):
    differences = [abs(x - y) for x, y in zip(a, b)]
    late = differences[len(differences) // 2:]
    print(f"{name}: largest difference {max(differences):.4f} (step {differences.index(max(differences)) + 1}), mean {sum(differences) / len(differences):.4f}; "
          f"second half largest {max(late):.4f}, mean {sum(late) / len(late):.4f}; last losses {a[-1]:.4f} and {b[-1]:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smelt", default=os.path.join(HERE, "..", "build", "smelt"))
    parser.add_argument("--config", default=os.path.join(HERE, "..", "configs", "zaya1-tiny.yaml"))
    parser.add_argument("--text")
    parser.add_argument("--runs", nargs=2, default=[], metavar="RUN")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="auto", help="the GPU: auto, hip, cuda")
    parser.add_argument("--plot", default="")
    parser.add_argument("--seeds", action="store_true", help="also train with another seed on the CPU")
    arguments = parser.parse_args()
    if bool(arguments.text) == bool(arguments.runs):
        parser.error("give --text, to train, or --runs")
    if arguments.runs:
        names = [os.path.basename(os.path.normpath(run)) for run in arguments.runs]
        a, b = map(read_losses, arguments.runs)
        report(" and ".join(names), a, b)
        if arguments.plot:
            plot(arguments.plot, dict(zip(names, (a, b))), f"{len(a)} steps: loss")
        return
    with tempfile.TemporaryDirectory() as folder:
        gpu = losses(arguments, folder, "gpu", f"device={arguments.device}", "precision=bf16")
        cpu = losses(arguments, folder, "cpu", "device=cpu", "precision=fp32")
        report("GPU bf16 and CPU fp32", gpu, cpu)
        if arguments.plot:
            plot(arguments.plot, {"CPU, fp32": cpu, "GPU, bf16": gpu}, f"{os.path.basename(arguments.config)}, {arguments.steps} steps: loss")
        if arguments.seeds:
            report("CPU fp32, two seeds", losses(arguments, folder, "seed", "device=cpu", "precision=fp32", "seed=2"), cpu)


if __name__ == "__main__":
    main()
