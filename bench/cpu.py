#!/usr/bin/env python3
"""smelt against PyTorch on this CPU, same shapes, same bytes of text, same threads.

1. Makes the peers' virtual environment (--venv) from requirements.txt, once.
2. Survey: peer_cpu.py runs every mode once; the quickest of each precision stays in the race.
3. Race: --rounds times, in turn: each remaining peer, then each smelt variant. In turn, so that a slow minute of the machine hits all of them.
4. Pools the tokens/s of all measured steps per contestant, takes medians, prints a table and writes CSV.

smelt is run as `SMELT train CONFIG ARGUMENTS VARIANT`; its numbers come from RUN/metrics.jsonl (step, loss, tokens_per_second).
{model} {run} {steps} {seed} {data} {threads} are filled in wherever they stand in --config, --arguments, --prepare and --variant.

    bench/cpu.py                                                        all models, every peer
    bench/cpu.py --models zaya1-tiny --rounds 3 --variant bf16:precision=bf16
    bench/cpu.py --no-survey --peer llama-tiny:compile:fp32             only this peer

Needs only Python's standard library; the peers' packages stay in the environment it makes.
"""
import argparse
import csv
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
COLUMNS = ["model", "program", "mode", "precision", "tokens_per_second", "to_best_peer", "to_same_precision", "spread_percent",
           "seconds_to_first_step", "peak_memory_mib", "loss_first", "loss_last", "steps"]


def make_environment(folder):
    """The python of a virtual environment that has the peers' packages; made when missing. A stamp says that the installation finished."""
    python, stamp = os.path.join(folder, "bin", "python"), os.path.join(folder, "installed.txt")
    with open(os.path.join(HERE, "requirements.txt")) as file:
        wanted = file.read()
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == wanted:
                return python
    print(f"making {folder} (PyPI's torch carries its CUDA libraries: 5.6 GB, minutes)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", os.path.join(HERE, "requirements.txt")], check=True)
    with open(stamp, "w") as file:
        file.write(wanted)
    return python


def run_peer(python, arguments, model, modes, precisions):
    """The JSON lines of peer_cpu.py, without its closing summary; failed modes are printed and left out."""
    command = [python, os.path.join(HERE, "peer_cpu.py"), "--model", model, "--steps", str(arguments.steps), "--warmup", str(arguments.warmup),
               "--threads", str(arguments.threads), "--seed", str(arguments.seed), "--data", arguments.data]
    command += ["--modes", modes] if modes else []
    command += ["--precisions", precisions] if precisions else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    results = []
    for text in process.stdout:
        line = json.loads(text)
        if line.get("best"):
            continue
        if "error" in line:
            print(f"  {model} {line['mode']} {line['precision']}: failed: {line['error']}", flush=True)
            continue
        print(f"  {model} {line['peer']} {line['mode']} {line['precision']}: {line['tokens_per_second']:.0f} tokens/s", flush=True)
        results.append(line)
    process.wait()
    return results


def read_metrics(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        lines = [json.loads(text) for text in file if text.endswith("\n")]
    return [line for line in lines if line["kind"] == "step"]


def run_smelt(arguments, model, variant, round_number):
    """One run of smelt in the shape of a peer's JSON line, or None if it failed."""
    name, _, extra = variant.partition(":")
    run = os.path.join(arguments.work, f"smelt-{model}-{name}-{round_number}")
    shutil.rmtree(run, ignore_errors=True)
    fields = dict(model=model, run=run, steps=arguments.warmup + arguments.steps, seed=arguments.seed, data=arguments.data, threads=arguments.threads)
    command = shlex.split(arguments.smelt) + ["train", arguments.config.format(**fields)]
    command += shlex.split(f"{arguments.arguments} {extra}".format(**fields))
    metrics, log = os.path.join(run, "metrics.jsonl"), run + ".log"
    first, begin = None, time.time()
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
                                   env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if first is None and read_metrics(metrics):
            first = time.time() - begin
        if pid:
            break
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    lines = read_metrics(metrics)
    speeds = [line["tokens_per_second"] for line in lines[arguments.warmup:]]
    if process.returncode or not speeds:
        print(f"  {model} smelt {name}: exit {process.returncode}, {len(lines)} steps in {metrics}; see {log}", flush=True)
        return None
    line = {"peer": "smelt", "model": model, "mode": name, "precision": arguments.precision_of.get(name, name),
            "tokens_per_second": statistics.median(speeds), "step_tokens_per_second": speeds, "seconds_to_first_step": first,
            "peak_memory_bytes": usage.ru_maxrss * 1024, "loss_first": lines[0].get("loss"), "loss_last": lines[-1].get("loss")}
    print(f"  {model} smelt {name}: {line['tokens_per_second']:.0f} tokens/s", flush=True)
    return line


def summarize(results):
    """One row per contestant, medians over the pooled steps of its rounds; ratios are to the quickest peer of the same model."""
    groups = {}
    for line in results:
        groups.setdefault((line["model"], line["peer"], line["mode"], line["precision"]), []).append(line)
    rows = []
    for (model, program, mode, precision), lines in groups.items():
        speeds = [s for line in lines for s in line["step_tokens_per_second"]]
        median = statistics.median(speeds)
        firsts = [line["seconds_to_first_step"] for line in lines if line["seconds_to_first_step"] is not None]
        rows.append({
            "model": model, "program": program, "mode": mode, "precision": precision, "tokens_per_second": median,
            "spread_percent": 100 * statistics.median(abs(s - median) for s in speeds) / median,
            "seconds_to_first_step": statistics.median(firsts) if firsts else None,
            "peak_memory_mib": max(line["peak_memory_bytes"] for line in lines) / 2**20,
            "loss_first": lines[0]["loss_first"], "loss_last": lines[0]["loss_last"], "steps": len(speeds)})
    for row in rows:
        peers = [r for r in rows if r["model"] == row["model"] and r["program"] != "smelt"]
        same = [r["tokens_per_second"] for r in peers if r["precision"] == row["precision"]]
        row["to_best_peer"] = row["tokens_per_second"] / max(r["tokens_per_second"] for r in peers) if peers else None
        row["to_same_precision"] = row["tokens_per_second"] / max(same) if same else None
    return sorted(rows, key=lambda r: (r["model"], r["program"] != "smelt", -r["tokens_per_second"]))


def show(rows, path):
    def text(column, value):
        if value is None:
            return "-"
        digits = {"tokens_per_second": 0, "peak_memory_mib": 0, "spread_percent": 1, "seconds_to_first_step": 1,
                  "to_best_peer": 2, "to_same_precision": 2, "loss_first": 3, "loss_last": 3}
        return f"{value:.{digits[column]}f}" if column in digits else str(value)

    table = [COLUMNS] + [[text(c, row[c]) for c in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    for line in table:
        print("  ".join(cell.ljust(w) if i < 4 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))).rstrip())
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-tiny,zaya1-tiny,bench-llama,bench-zaya", help="keys of models.json, and configurations of smelt")
    parser.add_argument("--venv", default=os.path.join(ROOT, "build", "peer-venv"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "bench"), help="run folders, logs, the corpus")
    parser.add_argument("--csv", default=os.path.join(ROOT, "build", "bench", "cpu.csv"))
    parser.add_argument("--data", default="", help="text whose bytes are the tokens; default: Python's own sources")
    parser.add_argument("--steps", type=int, default=8, help="measured steps per run")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-survey", action="store_true")
    parser.add_argument("--peer", action="append", default=[], metavar="MODEL:MODE:PRECISION", help="a peer in the race whatever the survey says")
    parser.add_argument("--no-smelt", action="store_true")
    parser.add_argument("--smelt", default=os.path.join(ROOT, "build", "smelt"))
    parser.add_argument("--config", default="configs/{model}.yaml")
    parser.add_argument("--arguments", default="run={run} steps={steps} seed={seed} threads={threads} data.train={data} data.valid_fraction=0 data.document_mask=false "
                        "optimizer.name=adamw optimizer.lr=3e-4 schedule.kind=constant schedule.warmup=0 schedule.decay=0 eval.every=0 checkpoint.every=0")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME[:ARGUMENTS]",
                        help="a way to run smelt; a NAME of fp32, amp or bf16 is compared with the peers of that precision. default: fp32, and bf16 as amp")
    parser.add_argument("--precision-of", action="append", default=[], metavar="NAME=PRECISION", help="the precision of a variant named otherwise")
    parser.add_argument("--prepare", default="", help="a command to run first, such as packing {data}")
    arguments = parser.parse_args()
    arguments.variant = arguments.variant or ["fp32:precision=fp32", "amp:precision=bf16"]  # smelt's bf16 has fp32 masters, as autocast
    arguments.precision_of = dict(pair.split("=", 1) for pair in arguments.precision_of)
    os.makedirs(arguments.work, exist_ok=True)
    if not arguments.data:
        sys.path.insert(0, HERE)
        import peer_cpu
        arguments.data = peer_cpu.default_corpus()
    if arguments.prepare:
        subprocess.run(shlex.split(arguments.prepare.format(data=arguments.data, seed=arguments.seed)), cwd=ROOT, check=True)
    python = make_environment(arguments.venv) if arguments.peer or not arguments.no_survey else None

    results = []
    for model in arguments.models.split(","):
        racing = {tuple(peer.split(":")[1:]) for peer in arguments.peer if peer.split(":")[0] == model}
        if not arguments.no_survey:
            print(f"survey {model}", flush=True)
            surveyed = run_peer(python, arguments, model, "", "")
            quickest = {}
            for line in surveyed:
                if line["tokens_per_second"] > quickest.get(line["precision"], {"tokens_per_second": 0})["tokens_per_second"]:
                    quickest[line["precision"]] = line
            racing |= {(line["mode"], line["precision"]) for line in quickest.values()}
            results += [line for line in surveyed if (line["mode"], line["precision"]) not in racing]
        for round_number in range(arguments.rounds):
            print(f"race {model}, round {round_number + 1} of {arguments.rounds}", flush=True)
            for mode, precision in sorted(racing):
                results += run_peer(python, arguments, model, mode, precision)
            if not arguments.no_smelt:
                runs = [run_smelt(arguments, model, variant, round_number) for variant in arguments.variant]
                results += [line for line in runs if line is not None]
    show(summarize(results), arguments.csv)


if __name__ == "__main__":
    main()
