#!/usr/bin/env python3
"""Kills `smelt data pack` (SIGKILL) at random moments and starts it again, until the folder of shards is complete; every file must have the bytes of an
undisturbed packing. Each packing is to replace an older folder (overwrite=true), which must be whole until the new one is. Longer than tests/data/test_pack_resume.c, and with a tokenizer, on the text of this machine.

    tests/reliability/pack_kills.py SMELT FOLDER [--text FILE] [--kills 20] [--seed 1]     FOLDER is made; it keeps what differs"""
import argparse
import filecmp
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import time


def make_text(path, size):
    """One gzip file of JSON lines: the Python sources of this machine."""
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        for folder, folders, names in os.walk(os.path.dirname(os.__file__)):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".py") and size > 0:
                    text = open(os.path.join(folder, name), encoding="utf-8", errors="replace").read()
                    size -= file.write(json.dumps({"text": text}) + "\n")


def tokens_of(folder):
    """The tokens in each shard, by the record of a whole folder; None: it is not whole."""
    record = os.path.join(folder, "pack.json")
    content = json.load(open(record, encoding="utf-8")) if os.path.exists(record) else {"complete": False}
    return [content["settings"]["shard_tokens"]] if content["complete"] else None


def replace_older():
    for part in ("train", "valid"):
        shutil.rmtree("hit-" + part, ignore_errors=True)
        shutil.copytree("older-" + part, "hit-" + part)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("smelt", type=os.path.abspath)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--text", type=os.path.abspath)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    os.chdir(arguments.folder)
    text, moments = arguments.text or "text.jsonl.gz", random.Random(arguments.seed)
    if not os.path.exists(text):
        make_text(text, 30000000)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if not os.path.exists("tokenizer.json"):
        subprocess.run([arguments.smelt, "data", "train-tokenizer", text, "tokenizer.json", "vocabulary=8192"], check=True, **quiet)

    def pack(output, shard_tokens=100000):
        return [arguments.smelt, "data", "pack", text, output, "tokenizer=tokenizer.json", "shard_tokens=%d" % shard_tokens, "dedup=near", "valid=0.05",
                "overwrite=true"]

    for name in ("whole", "older", "hit"):
        for leftover in ("-train", "-valid", "-train.next", "-valid.next", "-train.replaced", "-valid.replaced"):
            shutil.rmtree(name + leftover, ignore_errors=True)
    subprocess.run(pack("older", 150000), check=True, **quiet)
    start = time.monotonic()
    subprocess.run(pack("whole"), check=True, **quiet)
    seconds, kills, starts = time.monotonic() - start, 0, 0
    new, older = tokens_of("whole-train"), tokens_of("older-train")
    replace_older()
    while kills < arguments.kills:
        process = subprocess.Popen(pack("hit"), **quiet)
        starts += 1
        try:
            if process.wait(moments.uniform(0, seconds / 3)) != 0:
                sys.exit(f"start {starts} failed by itself")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        if tokens_of("hit-train") == new:  # also where the kill came after the last record: begin anew
            replace_older()
        elif tokens_of("hit-train") != older and tokens_of("hit-train.next") != new:
            sys.exit(f"start {starts} left neither the older folder nor a whole new one")
    subprocess.run(pack("hit"), check=True, **quiet)
    files = 0
    for part in ("train", "valid"):
        names = sorted(os.listdir("whole-" + part))
        _, differ, absent = filecmp.cmpfiles("whole-" + part, "hit-" + part, [name for name in names if name != "tokenizer"], shallow=False)
        if differ or absent or names != sorted(os.listdir("hit-" + part)):
            sys.exit(f"{part}: {differ + absent} differ from an undisturbed packing")
        files += len(names) - 1
    print(f"{kills} kills in {starts} starts: all {files} files have the bytes of an undisturbed packing of {seconds:.1f} s")


if __name__ == "__main__":
    main()
