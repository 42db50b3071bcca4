#!/usr/bin/env python3
"""Generation on one GPU against several of one machine that share its cache (layout.cp) or its heads (layout.tp): `smelt bench decode`, random weights, a
prompt that fills the context, then tokens one by one.

Every case of CASES is a shape of gpu.json with its layers and a context. The ratio is the tokens/s over those of one GPU, in turn in one run.

    bench/decode.py --smelt build/smelt                                 all cases, 1 rank and 2
    bench/decode.py --cases llama-8b-128k --ranks 1,2 --layouts cp      some
Prints a table and, with --csv, writes it."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import gpu

HERE = os.path.dirname(os.path.abspath(__file__))
# row of gpu.json, layers, context
CASES = {
    "llama-8b-128k": ("llama-8b-8layers", 32, 131072),
    "zaya1-128k": ("zaya1-8layers", 40, 131072),
    "llama-8b-8layers-512k": ("llama-8b-8layers", 8, 524288),
    "zaya1-8layers-1m": ("zaya1-8layers", 8, 1048576),
}
COLUMNS = ["case", "ranks", "layout", "prompt_tokens_s", "token_ms", "best_ms", "tokens_s", "ratio", "sent_bytes"]


def measure(arguments, name, ranks, layout, folder):
    row, layers, context = CASES[name]
    config = gpu.write_config(os.path.join(folder, f"{name}.yaml"), arguments.shapes[row], layers=layers, context=context)
    result = os.path.join(folder, "result.json")
    spread = {f"layout.{layout}": ranks} if ranks > 1 else {}
    settings = {"precision": "bf16", "device": arguments.device, "tokens": arguments.tokens, "json": result, "data.train": "none",
                "data.length": 64, "batch.sequences": 1, "batch.tokens": 64, **spread}
    launch = ["launch", "-n", str(ranks), "self_test=false", "--"] if ranks > 1 else []
    command = [arguments.smelt, *launch, "bench", "decode", config, *(f"{key}={value}" for key, value in settings.items()), *arguments.set]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        return {"error": f"exit code {process.returncode}: {process.stderr[-600:]}"}
    with open(result) as file:
        return {"layout": " ".join(f"{key}={value}" for key, value in spread.items()), **json.load(file)["rows"][-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default=os.path.join(HERE, "..", "build", "smelt"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--layouts", default="cp,tp")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv")
    parser.add_argument("--set", nargs="*", default=[], help="settings of smelt, such as model.width=512")
    arguments = parser.parse_args()
    with open(os.path.join(HERE, "gpu.json")) as file:
        arguments.shapes = json.load(file)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.cases.split(","):
            alone = float("nan")
            for ranks in map(int, arguments.ranks.split(",")):
                for layout in arguments.layouts.split(",") if ranks > 1 else [""]:
                    result = measure(arguments, name, ranks, layout, folder)
                    if "error" in result:
                        print(f"{name}, {ranks} ranks {layout}: {result['error']}", file=sys.stderr)
                        continue
                    alone = result["tokens_s"] if ranks == 1 else alone
                    line = {**result, "case": name, "ranks": ranks, "ratio": round(result["tokens_s"] / alone, 3)}
                    lines.append({key: line.get(key, "") for key in COLUMNS})
                    print("  ".join(f"{key} {lines[-1][key]}" for key in COLUMNS), flush=True)
    if arguments.csv:
        gpu.write_csv(arguments.csv, COLUMNS, lines)


if __name__ == "__main__":
    main()
