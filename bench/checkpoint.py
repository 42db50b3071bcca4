#!/usr/bin/env python3
"""Checkpoints of a model of over 2 GB of state: smelt against gathering on rank 0 and writing one file, on the same disk.

1. Disk: `dd` writes as many bytes, through the page cache and past it, in one stream and in four, each with a sync at the end; the fastest counts.
2. smelt: RANKS processes train with ZeRO-1. Every rank writes its own intervals at once. How long training stands still and how fast the bytes reach the disk are
   the lines that smelt prints for each checkpoint, once while training goes on (asynchronous) and once while it waits (checkpoint.async=false).
3. Peer: RANKS PyTorch processes hold the same bytes (gloo), gather them on rank 0, which writes one file with torch.save and syncs it; all wait, as training does.

    bench/checkpoint.py --smelt build/smelt --folder /disk/to/measure --python build/peer-venv/bin/python

Medians of the checkpoints of a run but for the last one, for which a run that ends waits. Needs three times the bytes on the disk. Without --python the peer is left out.
"""
import argparse
import json
import os
import re
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import time

MODEL = ["model.family=llama", "model.layers=17", "model.width=1024", "model.heads=16", "model.ffn=2816", "model.vocabulary=320", "data.length=32",
         "batch.sequences=1", "precision=fp32", "seed=1", "schedule.warmup=1", "eval.every=0", "data.valid_fraction=0.01"]
LINE = re.compile(r"checkpoint of step (\d+): ([\d.]+) (\w+) in ([\d.]+) s, .* training paused for ([\d.]+) ms")
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_ranks(command, ranks):
    """One process a rank, with the variables of torchrun; returns the output of rank 0."""
    shared = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), SMELT_SECRET=secrets.token_hex(), OMP_WAIT_POLICY="passive",
                  OMP_NUM_THREADS=str(max(1, os.cpu_count() // ranks)))
    processes = [subprocess.Popen(command, env=dict(shared, RANK=str(r), LOCAL_RANK=str(r)), text=True, stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL,
                                  stderr=subprocess.STDOUT if r == 0 else subprocess.DEVNULL) for r in range(ranks)]
    output = processes[0].communicate()[0]
    if any(p.wait() for p in processes):
        sys.exit("failed: " + " ".join(command) + "\n" + output)
    return output


def disk_rate(folder, size):
    """Bytes per second of the best of buffered and direct writing, by one and by four streams, synced."""
    best = 0
    for streams in (1, 4):
        for flags in ([], ["oflag=direct"]):
            count, start = (size >> 24) // streams, time.monotonic()
            paths = [os.path.join(folder, "dd%d.tmp" % i) for i in range(streams)]
            writers = [subprocess.Popen(["dd", "if=/dev/zero", "of=" + path, "bs=16M", "count=%d" % count, "conv=fsync", *flags], stderr=subprocess.DEVNULL)
                       for path in paths]
            if any(writer.wait() for writer in writers):
                sys.exit("dd failed in " + folder)
            best = max(best, (count * streams << 24) / (time.monotonic() - start))
            for path in paths:
                os.remove(path)
    return best


def run_smelt(args, asynchronous):
    """(bytes, median seconds of stall, median bytes per second) over the checkpoints but for the last."""
    run = os.path.join(args.folder, "run")
    shutil.rmtree(run, ignore_errors=True)
    text = os.path.join(args.folder, "text.txt")
    with open(text, "w") as file:
        file.write("All happy families are alike; every unhappy family is unhappy in its own way.\n" * 500)
    output = start_ranks([args.smelt, "train", "run=" + run, "data.train=" + text, "steps=%d" % (2 * args.saves + 1), "checkpoint.every=2", "checkpoint.keep=1",
                          "batch.tokens=%d" % (32 * args.ranks), "checkpoint.async=" + ("true" if asynchronous else "false"), *MODEL], args.ranks)
    saves = [(float(size) * UNITS[unit], float(seconds), float(stall) / 1e3) for _, size, unit, seconds, stall in LINE.findall(output)][:args.saves]
    shutil.rmtree(run)
    if not saves:
        sys.exit("no checkpoint was reported:\n" + output)
    return saves[0][0], statistics.median(s[2] for s in saves), statistics.median(s[0] / s[1] for s in saves)


def peer_rank(folder, size, saves):
    """Runs in each process of the peer; rank 0 prints the seconds of each save."""
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shard = torch.rand(size // 4 // ranks)
    path = os.path.join(folder, "peer.pt")
    for _ in range(saves):
        dist.barrier()
        start = time.monotonic()
        parts = [torch.empty_like(shard) for _ in range(ranks)] if rank == 0 else None
        dist.gather(shard, parts)
        if rank == 0:
            with open(path, "wb") as file:
                torch.save(torch.cat(parts), file)
                file.flush()
                os.fsync(file.fileno())
        dist.barrier()
        if rank == 0:
            print(json.dumps(time.monotonic() - start), flush=True)
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--folder", default="build/bench", help="on the disk that is measured")
    parser.add_argument("--python", help="of an environment with PyTorch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=2)
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer_rank(args.folder, args.peer, args.saves)
    os.makedirs(args.folder, exist_ok=True)
    size, stall, rate = run_smelt(args, True)
    _, waiting, waiting_rate = run_smelt(args, False)
    disk = disk_rate(args.folder, int(size))
    row = {"ranks": args.ranks, "bytes": int(size), "disk_gb_per_second": disk / 1e9, "stall_seconds": stall, "gb_per_second": rate / 1e9,
           "stall_seconds_waiting": waiting, "gb_per_second_waiting": waiting_rate / 1e9, "part_of_disk": max(rate, waiting_rate) / disk}
    if args.python:
        output = start_ranks([args.python, os.path.abspath(__file__), "--peer", str(int(size)), "--folder", args.folder, "--saves", str(args.saves)], args.ranks)
        peer = statistics.median(float(line) for line in output.splitlines() if re.fullmatch(r"[\d.]+", line))
        row |= {"peer_stall_seconds": peer, "peer_gb_per_second": size / peer / 1e9, "stall_ratio": peer / stall}
    print(json.dumps({key: round(value, 4) for key, value in row.items()}, indent=1))


if __name__ == "__main__":
    main()
