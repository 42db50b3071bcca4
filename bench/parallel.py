#!/usr/bin/env python3
"""Tensor, pipeline, context and expert parallelism on two GPUs of one machine, each against one GPU that does the same step, and beside PyTorch where
it has the same: tensor and sequence parallelism by DTensor (parallelize_module, loss_parallel), context_parallel, FSDP2.

Every case of CASES is a shape of gpu.json with a sequence length, sequences of a microbatch, microbatches of a step, and a layout. Efficiency is the
step's tokens/s over that of one GPU, divided by the number of GPUs; "waiting" is the part of the step in which the device waited for collectives.

    bench/parallel.py --smelt build/smelt                          all cases
    bench/parallel.py --cases tp-llama,cp-zaya-131k --no-peer      some, smelt alone
Needs a Python with PyTorch. Prints a table and, with --csv, writes it."""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

import gpu

HERE = os.path.dirname(os.path.abspath(__file__))


class Case(NamedTuple):
    row: str  # of gpu.json
    sequence: int  # tokens
    microbatch: int  # sequences
    microbatches: int  # of a step
    layout: dict  # on several GPUs
    peer: str  # PyTorch's: tp, cp, fsdp, or none
    settings: dict  # of smelt on any number of GPUs


CASES = {name: Case(*values) for name, values in {
    "tp-llama": ("llama-8b-8layers", 8192, 2, 1, {"layout.tp": 2}, "tp", {}),
    "pp-llama": ("llama-8b-8layers", 8192, 1, 8, {"layout.pp": 2}, "", {}),
    "cp-llama-32k": ("llama-8b-8layers", 32768, 1, 1, {"layout.cp": 2}, "cp", {}),
    "fsdp-llama": ("llama-8b-8layers", 8192, 2, 2, {"layout.zero": 3}, "fsdp", {}),
    "tp-zaya": ("zaya1-8layers", 4096, 4, 1, {"layout.tp": 2}, "", {}),
    "pp-zaya": ("zaya1-8layers", 4096, 2, 8, {"layout.pp": 2}, "", {}),
    "cp-zaya": ("zaya1-8layers", 4096, 4, 1, {"layout.cp": 2}, "", {}),
    "ep-zaya": ("zaya1-8layers", 4096, 4, 2, {"layout.ep": 2}, "", {}),
    "tp-zaya-8b": ("zaya1-8layers", 4096, 4, 1, {"layout.tp": 2}, "", {"model.layers": 40}),
    "pp-zaya-8b": ("zaya1-8layers", 4096, 2, 8, {"layout.pp": 2}, "", {"model.layers": 40}),
    "cp-zaya-8b": ("zaya1-8layers", 4096, 4, 1, {"layout.cp": 2}, "", {"model.layers": 40}),
    "ep-zaya-8b": ("zaya1-8layers", 4096, 4, 2, {"layout.ep": 2}, "", {"model.layers": 40}),
    "cp-zaya-131k": ("zaya1-8layers", 131072, 1, 1, {"layout.cp": 2}, "", {}),
    "cp-zaya-262k": ("zaya1-8layers", 262144, 1, 1, {"layout.cp": 2}, "", {"recompute": "norm"}),
}.items()}
COLUMNS = ["case", "ranks", "program", "layout", "tokens_per_second", "efficiency", "waiting", "memory_gib", "loss_last"]


def settings_of(arguments, case, ranks):
    return {"data.length": case.sequence, "batch.sequences": case.microbatch, "batch.tokens": case.sequence * case.microbatch * case.microbatches,
            "precision": arguments.precision, **case.settings, **(case.layout if ranks > 1 else {})}


def run_smelt(arguments, name, case, folder, ranks):
    shape = arguments.shapes[case.row]
    config = gpu.write_config(os.path.join(folder, f"{name}.yaml"), shape, context=case.sequence)
    shard = gpu.write_shard(os.path.join(folder, case.row), shape["vocab"], 16 << 20)
    given = {"data.train": shard, "eval.sample_tokens": 0, **settings_of(arguments, case, ranks)}
    result = gpu.train(arguments, config, os.path.join(folder, f"run-{name}-{ranks}"), ranks, given)
    return {"layout": " ".join(f"{key}={value}" for key, value in case.layout.items()) if ranks > 1 else "", **result}


def run_peer(arguments, name, ranks):
    """PyTorch, by the script that was started, whose --as-peer calls `peer`."""
    return gpu.run_torch(sys.argv[0], ["--as-peer", name, "--steps", str(arguments.steps)], ranks)


# ---------------------------------------------------------------------------------------------------------------- PyTorch

def peer_model(c):
    """A llama of separate projections, which DTensor's plans can cut."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    def linear(inputs, outputs):
        layer = nn.Linear(inputs, outputs, bias=False)
        nn.init.normal_(layer.weight, std=c["init_std"])
        return layer

    def turn(x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            d, f, hd = c["width"], c["ffn_width"], c["head_dim"]
            self.norm1, self.norm2 = nn.RMSNorm(d, c["norm_epsilon"]), nn.RMSNorm(d, c["norm_epsilon"])
            self.q, self.k, self.v = linear(d, c["query_heads"] * hd), linear(d, c["key_value_heads"] * hd), linear(d, c["key_value_heads"] * hd)
            self.out, self.gate, self.up, self.down = linear(c["query_heads"] * hd, d), linear(d, f), linear(d, f), linear(f, d)

        def forward(self, x, cos, sin):
            h = self.norm1(x)
            q, k, v = (p.unflatten(-1, (-1, c["head_dim"])).transpose(1, 2) for p in (self.q(h), self.k(h), self.v(h)))
            q, k = turn(q, cos, sin), turn(k, cos, sin)
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)  # context_parallel has no grouped queries
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(c["vocab"], c["width"])
            nn.init.normal_(self.embed.weight, std=c["init_std"])
            self.blocks = nn.ModuleList(Block() for _ in range(c["layers"]))
            self.norm, self.head = nn.RMSNorm(c["width"], c["norm_epsilon"]), linear(c["width"], c["vocab"])

        def forward(self, tokens, cos, sin):
            x = self.embed(tokens) * 1  # not a tensor that is still on its way, which compiled blocks do not take
            for block in self.blocks:
                x = block(x, cos, sin)
            return self.head(self.norm(x))

    return Llama()


def rotary_tables(c, sequence):
    import torch
    half = c["head_dim"] // 2
    angle = torch.outer(torch.arange(sequence), c["rope_theta"] ** (-torch.arange(half) / half))
    angle = torch.cat((angle, angle), -1)
    return angle.cos().bfloat16(), angle.sin().bfloat16()


def cut_by_tensor(model, mesh):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module)
    parallelize_module(model, mesh, {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    columns, rows = ColwiseParallel, lambda: RowwiseParallel(output_layouts=Shard(1))
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "norm1": SequenceParallel(), "norm2": SequenceParallel(),
            "q": columns(input_layouts=Shard(1)), "k": columns(input_layouts=Shard(1)), "v": columns(input_layouts=Shard(1)), "out": rows(),
            "gate": columns(input_layouts=Shard(1)), "up": columns(input_layouts=Shard(1)), "down": rows()})


def peer(arguments, case):
    """One rank of a case in PyTorch: pure bf16, compiled blocks, fused AdamW."""
    import contextlib

    import torch
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    sequence, microbatch, microbatches = case.sequence, case.microbatch, case.microbatches
    c, ranks = arguments.shapes[case.row], int(os.environ["WORLD_SIZE"])
    kind = case.peer if ranks > 1 else ""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device("cuda")
    torch.manual_seed(1)
    model, (cos, sin) = peer_model(c).to(torch.bfloat16), rotary_tables(c, sequence)
    mesh = init_device_mesh("cuda", (ranks,))
    if kind == "tp":
        cut_by_tensor(model, mesh)
    for block in model.blocks:
        block.compile()
    if kind in ("fsdp", "cp"):
        from torch.distributed.fsdp import fully_shard
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True, **gpu.OPTIMIZER)
    share = microbatches // (ranks if kind == "fsdp" else 1)
    data = torch.randint(c["vocab"], (4, microbatch, sequence + 1))

    def loss_of(tokens, targets):
        scope = contextlib.nullcontext()
        if kind == "tp":
            from torch.distributed.tensor.parallel import loss_parallel
            scope = loss_parallel()
        with scope:
            loss = F.cross_entropy(model(tokens, cos, sin).flatten(0, 1), targets.flatten())
            (loss / share).backward()
        return loss

    def step(i):
        for _ in range(share):
            tokens, targets = data[i % 4][:, :-1].contiguous(), data[i % 4][:, 1:].contiguous()
            if kind == "cp":
                from torch.distributed.tensor.experimental import context_parallel
                buffers = [tokens, targets, cos, sin]
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers={tokens, targets}):
                    loss = loss_of(tokens, targets)
            else:
                loss = loss_of(tokens, targets)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() if not hasattr(loss, "full_tensor") else loss.full_tensor().item()

    seconds = []
    for i in range(arguments.steps + 3):
        begin = time.perf_counter()
        loss = step(i)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    if int(os.environ["RANK"]) == 0:
        print(json.dumps({"layout": kind or "one GPU", "loss_last": loss, "waiting": float("nan"),
                          "tokens_per_second": sequence * microbatch * microbatches / statistics.median(seconds[3:])}))
    torch.distributed.destroy_process_group()


# ---------------------------------------------------------------------------------------------------------------- the race

def make_parser(description, steps, ranks):
    """With what eight.py has too, whose numbers of steps and ranks differ."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smelt", default=os.path.join(HERE, "..", "build", "smelt"))
    parser.add_argument("--device", default="auto", help="smelt's: auto, cpu, hip, cuda")
    parser.add_argument("--precision", default="pure_bf16", help="smelt's; PyTorch runs in pure bf16")
    parser.add_argument("--steps", type=int, default=steps, help="measured steps")
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of smelt")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--csv", default="")
    parser.add_argument("--as-peer", default="", help=argparse.SUPPRESS)
    return parser


def main():
    parser = make_parser(__doc__.split("\n")[0], steps=6, ranks=2)
    parser.add_argument("--cases", default="", help="comma-separated; default: all")
    parser.add_argument("--no-alone", action="store_true", help="skip the runs on one GPU")
    arguments = parser.parse_args()
    arguments.shapes = json.load(open(os.path.join(HERE, "gpu.json")))
    if arguments.as_peer:
        return peer(arguments, CASES[arguments.as_peer])
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.cases.split(",") if arguments.cases else CASES:
            alone = {}
            programs = ["smelt"] + ([] if arguments.no_peer or not CASES[name].peer else ["pytorch"])
            for ranks in [arguments.ranks] if arguments.no_alone else [1, arguments.ranks]:
                for program in programs:
                    result = run_smelt(arguments, name, CASES[name], folder, ranks) if program == "smelt" else run_peer(arguments, name, ranks)
                    if "error" in result:
                        print(f"{name} {program} on {ranks} failed: {result['error']}", flush=True)
                        continue
                    alone.setdefault(program, result["tokens_per_second"] if ranks == 1 else float("nan"))
                    result.update(case=name, ranks=ranks, program=program, efficiency=result["tokens_per_second"] / ranks / alone[program])
                    results.append(result)
                    print("{case:14} {ranks} x {program:8} {layout:16} {tokens_per_second:9.0f} tok/s  {efficiency:6.1%} of linear  {memory_gib:6.1f} GiB  waiting {waiting:5.1%}  loss {loss_last:.4f}"
                          .format(**result), flush=True)
    if arguments.csv:
        gpu.write_csv(arguments.csv, COLUMNS, results)


if __name__ == "__main__":
    main()
