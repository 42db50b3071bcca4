#!/usr/bin/env python3
"""Models that need eight GPUs, or four, on one machine: what fits of a list, in order of worth, within a time; smelt's forecast of each row, then smelt, then
PyTorch where it has the same (parallel.py). A row is written to the CSV as soon as it is measured, so that a run cut short is still of use.

    bench/eight.py --smelt build/smelt --gpu h200 --csv eight.csv               all rows that end within 9 minutes
    bench/eight.py --ranks 4 --gpu h200 --rows llama-70b-zero3,zaya-8b-ep       some, on four GPUs
    bench/eight.py --ranks 4 --gpu h200 --forecasts --csv forecasts.csv         what to expect, without a GPU
    bench/eight.py --tiny --ranks 2 --device cpu --no-peer --csv tiny.csv       every row with tiny models, to try the script
Layouts are those of eight ranks; with fewer every axis is cut down to them. Efficiency is tokens/s of a GPU over those of the row's model on one GPU, where it
fits one. Needs a Python with PyTorch but with --no-peer."""
import argparse
import csv
import json
import os
import re
import subprocess
import tempfile
import time

import decode
import gpu
import parallel
from parallel import Case

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA_70B = {"layers": 80, "width": 8192, "query_heads": 64, "ffn_width": 28672}  # else as llama-8b
FP8 = {"fp8.recipe": "tensor"}
WITHIN = {"precision": "pure_bf16", "optimizer.name": "adamw_8bit", "optimizer.in_backward": "true", "optimizer.clip": 0, "recompute": "block"}
ROWS = {
    "llama-70b-zero3": Case("llama-70b", 8192, 1, 8, {"layout.zero": 3}, "fsdp", {}),
    "llama-70b-zero3-fp8": Case("llama-70b", 8192, 1, 8, {"layout.zero": 3}, "", FP8),
    "llama-70b-zero3-within": Case("llama-70b", 8192, 1, 8, {"layout.zero": 3}, "", WITHIN),
    "llama-70b-tp8": Case("llama-70b", 8192, 1, 1, {"layout.tp": 8}, "tp", {}),
    "llama-70b-tp8-within": Case("llama-70b", 8192, 1, 1, {"layout.tp": 8}, "", WITHIN),
    "llama-70b-tp4-pp2": Case("llama-70b", 8192, 1, 8, {"layout.tp": 4, "layout.pp": 2}, "", {}),
    "llama-8b-zero1": Case("llama-8b", 8192, 1, 8, {"layout.zero": 1}, "", {}),
    "llama-8b-zero1-fp8": Case("llama-8b", 8192, 1, 8, {"layout.zero": 1}, "", FP8),
    "llama-8b-zero3": Case("llama-8b", 8192, 1, 8, {"layout.zero": 3}, "fsdp", {}),
    "llama-8b-cp8-131k": Case("llama-8b", 131072, 1, 1, {"layout.cp": 8, "layout.zero": 3}, "cp", {}),
    "zaya-8b-ep": Case("zaya1-8b", 4096, 2, 8, {"layout.ep": 8}, "", {}),
    "zaya-8b-zero1-muon": Case("zaya1-8b", 4096, 2, 8, {"layout.zero": 1}, "", {"optimizer.name": "muon"}),
    "zaya-8b-cp8-131k": Case("zaya1-8b", 131072, 1, 1, {"layout.cp": 8}, "", {}),
    "qwen3-30b-zero3": Case("qwen3-30b", 4096, 2, 8, {"layout.zero": 3}, "", {}),
    "qwen3-30b-ep8": Case("qwen3-30b", 4096, 2, 8, {"layout.ep": 8}, "", {}),
    "llama-1b-dp8": Case("llama-1b", 4096, 4, 8, {"layout.zero": 1}, "", {}),
    "zaya-8layers-dp8": Case("zaya1-8layers", 4096, 4, 8, {"layout.zero": 1}, "", {}),
}
SCALED = {"llama-1b-dp8", "zaya-8layers-dp8"}  # also on 2, 4, ... ranks
DECODE = "zaya-8b-decode-131k"  # of decode.py, by layout.cp
COLLECTIVES = "collectives"  # smelt bench collective, into a CSV of its own beside --csv
FITS_ONE = {"llama-8b", "llama-1b", "zaya1-8layers"}
COLUMNS = ["row", "ranks", "program", "layout", "tokens_per_second_of_gpu", "forecast", "efficiency", "waiting", "memory_gib", "loss_last", "error"]


def read_shapes(tiny):
    with open(os.path.join(HERE, "gpu.json")) as file:
        shapes = json.load(file)
    shapes["llama-70b"] = {**shapes["llama-8b"], **LLAMA_70B}
    shapes["zaya1-8b"] = {**shapes["zaya1-8layers"], "layers": 40}
    shapes["qwen3-30b"] = {**shapes["qwen3-30b-6layers"], "layers": 48}
    for shape in shapes.values() if tiny else ():
        shape.update(layers=4, width=64, head_dim=16, query_heads=8, key_value_heads=4, ffn_width=128, expert_width=64, router_width=16, vocab=512)
    return shapes


def cut_to(case, ranks, tiny):
    """The case for so many ranks: axes that are larger become as large as fits, one after another."""
    layout, left = {}, ranks
    for axis, size in case.layout.items():
        layout[axis] = size if axis == "layout.zero" else min(size, left)
        left //= 1 if axis == "layout.zero" else layout[axis]
    case = case._replace(layout=layout, microbatches=max(1, case.microbatches * ranks // 8))
    if not tiny:
        return case
    settings = {**case.settings, **({"fp8.min_size": 1} if "fp8.recipe" in case.settings else {})}
    return case._replace(sequence=64 if case.sequence < 100000 else 256, settings=settings)


def forecast(arguments, name, case, ranks, folder):
    """smelt's tokens/s of a GPU, NaN where it has none, and the GiB of its memory; before anything is measured."""
    if not arguments.gpu:
        return float("nan"), None
    config = gpu.write_config(os.path.join(folder, f"forecast-{name}.yaml"), arguments.shapes[case.row], context=case.sequence)
    settings = parallel.settings_of(arguments, case, ranks)
    words = [f"{key}={value}" for key, value in settings.items() if key != "layout.zero"] + [f"zero={settings.get('layout.zero', 1)}"]
    done = subprocess.run([arguments.smelt, "forecast", config, f"gpus={ranks}", f"gpu={arguments.gpu}", "search=false", *words],
                          capture_output=True, text=True)
    found = re.search(r"^tokens/s of a GPU +([\d.]+)(k?)", done.stdout, re.MULTILINE)
    if not found:
        print(f"{name}: no forecast: {done.stderr.strip()[-300:]}", flush=True)
    memory = re.search(r"^  total +([\d.]+) GiB", done.stdout, re.MULTILINE)
    return float(found[1]) * (1000 if found[2] else 1) if found else float("nan"), float(memory[1]) if memory else None


def measure(arguments, name, case, program, ranks, folder):
    if program == "pytorch":
        result = parallel.run_peer(arguments, name, ranks)
    else:
        result = parallel.run_smelt(arguments, name, case, folder, ranks)
    if "error" not in result:
        result["tokens_per_second_of_gpu"] = result["tokens_per_second"] / ranks
    return {"row": name, "ranks": ranks, "program": program, **result}


def write_row(arguments, row):
    print("  ".join(f"{key} {row[key]:.4g}" if isinstance(row.get(key), float) else f"{key} {row[key]}" for key in COLUMNS if row.get(key) not in (None, "")),
          flush=True)
    if arguments.csv:
        new = not os.path.exists(arguments.csv)
        with open(arguments.csv, "a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(row)


def run_decode(arguments, folder):
    """Tokens/s of generation over all ranks, and over one for the efficiency."""
    settings = argparse.Namespace(**{**vars(arguments), "tokens": 32, "set": [*arguments.set, *(["model.context=512"] if arguments.tiny else [])]})
    alone = float("nan")
    for ranks in (1, arguments.ranks):
        result = decode.measure(settings, "zaya1-128k", ranks, "cp", folder)
        row = {"row": DECODE, "ranks": ranks, "program": "smelt", **result}
        if "error" not in result:
            alone = result["tokens_s"] if ranks == 1 else alone
            row.update(tokens_per_second_of_gpu=result["tokens_s"] / ranks, efficiency=result["tokens_s"] / ranks / alone)
        write_row(arguments, row)


def run_collectives(arguments):
    """smelt's own table, in nccl-tests' columns and conventions."""
    own = [f"csv={os.path.splitext(arguments.csv)[0]}-collective.csv"] if arguments.csv else []
    sizes = ["seconds=0.02", "repeats=1"] if arguments.tiny else []
    subprocess.run([arguments.smelt, "launch", "-n", str(arguments.ranks), "self_test=false", "--", "bench", "collective", f"device={arguments.device}",
                    *sizes, *own], check=False)


def run_row(arguments, name, ranks, folder, alone):
    case = cut_to(ROWS[name], ranks, arguments.tiny)
    predicted, memory = forecast(arguments, name, case, ranks, folder)
    if arguments.forecasts:
        layout = " ".join(f"{key}={value}" for key, value in case.layout.items())
        return write_row(arguments, {"row": name, "ranks": ranks, "program": "smelt", "layout": layout, "forecast": predicted, "memory_gib": memory})
    if case.row in FITS_ONE and case.sequence <= 8192 and (case.row, "fp8.recipe" in case.settings) not in alone:
        one = measure(arguments, name, case._replace(microbatches=1), "smelt", 1, folder)
        alone[case.row, "fp8.recipe" in case.settings] = one.get("tokens_per_second_of_gpu", float("nan"))
        write_row(arguments, one)
    for program in ["smelt"] + ["pytorch"] * bool(case.peer and not arguments.no_peer):
        row = measure(arguments, name, case, program, ranks, folder)
        if program == "smelt":
            row["forecast"] = predicted
            row["efficiency"] = row.get("tokens_per_second_of_gpu", float("nan")) / alone.get((case.row, "fp8.recipe" in case.settings), float("nan"))
        write_row(arguments, row)


def main():
    parser = parallel.make_parser(__doc__.split("\n")[0], steps=3, ranks=8)
    parser.add_argument("--rows", default="", help="comma-separated; default: all")
    parser.add_argument("--gpu", default="", help="what forecasts are for, as smelt forecast names it; empty: none")
    parser.add_argument("--forecasts", action="store_true", help="write the forecasts of all rows but decoding and collectives, and measure nothing")
    parser.add_argument("--seconds", type=float, default=540, help="no row starts when the longest one so far would end after them")
    parser.add_argument("--tiny", action="store_true", help="tiny models and short sequences in place of the rows' own")
    arguments = parser.parse_args()
    arguments.shapes = read_shapes(arguments.tiny)
    if arguments.as_peer:
        return parallel.peer(arguments, cut_to(ROWS[arguments.as_peer], int(os.environ["WORLD_SIZE"]), arguments.tiny))
    started, longest, alone = time.time(), 0, {}
    others = [] if arguments.forecasts else [DECODE, COLLECTIVES]
    for name in arguments.rows.split(",") if arguments.rows else [*ROWS, *others]:
        begin = time.time()
        if begin + longest - started > arguments.seconds:
            print(f"{name}: left out, {arguments.seconds:.0f} s would not do", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            if name == COLLECTIVES:
                run_collectives(arguments)
            elif name == DECODE:
                run_decode(arguments, folder)
            else:
                for ranks in [n for n in (2, 4) if n < arguments.ranks and name in SCALED] + [arguments.ranks]:
                    run_row(arguments, name, ranks, folder, alone)
        longest = max(longest, time.time() - begin)


if __name__ == "__main__":
    main()
