#!/usr/bin/env python3
"""All weights of ZAYA1-8B's shape on one GPU: smelt beside transformers' ZayaForCausalLM, with random weights and random tokens, in one run.

Either keeps weights, gradients and both moments of AdamW in bf16, 8 bytes a parameter (smelt: precision=pure_bf16), clips by the global norm, and recomputes
only where it does not fit without. The peer: experts by grouped_mm, SDPA's flash kernel, fused AdamW; compiled (each decoder layer and the loss; the whole
model takes minutes to compile), and eager. The ratio is to the quicker of both. Where the peer needs gradient checkpointing, smelt runs with
recompute=block too, so that like is compared with like. Memory is what is in use on the device: for smelt what nvidia-smi or rocm-smi shows
while it runs, for the peer the same figure from the driver after the row's steps, its allocator having been emptied before them.

--in-backward adds rows in which smelt updates weights within the backward pass (optimizer.in_backward=true, optimizer.clip=0), one for each recompute
policy; the peer's mode "in-backward" is "compiled" that does the same, by a hook of each parameter, and does not clip either.

    bench/finetune.py --smelt build/smelt --csv finetune.csv
    bench/finetune.py --rows 1x4096 --modes eager
    bench/finetune.py --modes compiled,eager,in-backward --in-backward none,norm,attention,block
    bench/finetune.py --tiny --device cpu                       a small model, to try the script
Needs a Python with PyTorch and transformers 5.17 or later."""
import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time

import gpu

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ["row", "program", "mode", "recompute", "tokens_per_second", "ratio", "step_ms", "memory_gib", "memory_ratio", "seconds_to_first_step", "error"]
WARM_STEPS = 3


def shape_of(arguments):
    """ZAYA1-8B: gpu.json has its first 8 layers."""
    if arguments.tiny:
        return json.load(open(os.path.join(HERE, "models.json")))["zaya1-tiny"]
    return {**json.load(open(os.path.join(HERE, "gpu.json")))["zaya1-8layers"], "layers": 40}


def make_peer(shape, mode, length):
    """transformers' model with its weights in bf16 on the default device, and the function that gives its loss."""
    import torch
    import torch.nn.functional as F
    import peer_cpu
    torch.set_default_dtype(torch.bfloat16)
    model = peer_cpu.hf_model("zaya", {**shape, "sequence": length}, "hf-grouped").model.train()
    torch.set_default_dtype(torch.float32)

    def loss_of(hidden, head, targets):
        return F.cross_entropy(F.linear(hidden, head).flatten(0, 1).float(), targets.flatten())

    if mode != "eager":
        for layer in model.model.layers:
            layer.compile(dynamic=False)
        loss_of = torch.compile(loss_of, dynamic=False)
    return model, lambda window: loss_of(model.model(window[:, :-1], use_cache=False).last_hidden_state, model.lm_head.weight, window[:, 1:])


class UpdatesInBackward:
    """An AdamW for each parameter, which updates it as soon as the backward pass has its gradient, and frees that."""

    def __init__(self, model):
        import torch
        for parameter in model.parameters():
            self.follow(parameter, torch.optim.AdamW([parameter], fused=True, **gpu.OPTIMIZER))

    @staticmethod
    def follow(parameter, optimizer):
        def update(_):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        parameter.register_post_accumulate_grad_hook(update)

    def step(self):
        pass

    def zero_grad(self, set_to_none):
        pass


def make_optimizer(model, mode):
    """With what clips its gradients."""
    import torch
    if mode == "in-backward":
        return UpdatesInBackward(model), lambda: None
    return torch.optim.AdamW(model.parameters(), fused=True, **gpu.OPTIMIZER), lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)


def peer_row(arguments, model, loss, optimizer, clip, row):
    """Steps of one row: medians, and the device memory in use after them."""
    import torch
    cuda = torch.cuda.is_available()
    sequences, length = map(int, row.split("x"))
    windows = torch.randint(model.config.vocab_size, (8, sequences, length + 1))
    seconds, started = [], time.time()
    for step in range(arguments.steps + WARM_STEPS):
        begin = time.perf_counter()
        loss(windows[step % 8]).backward()
        clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        first = time.time() - started if step == 0 else first
    free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
    median = statistics.median(seconds[WARM_STEPS:])
    return {"tokens_per_second": sequences * length / median, "step_ms": 1e3 * median, "memory_gib": (total - free) / 2**30, "seconds_to_first_step": first}


def peer(arguments):
    """All rows in one mode, in this process: prints a JSON line for each. Without gradient checkpointing, and where that does not fit, with it."""
    import torch
    cuda = arguments.device != "cpu"
    torch.set_default_device("cuda" if cuda else "cpu")
    torch.manual_seed(1)
    torch._dynamo.config.recompile_limit = 64  # first layer and others, each shape: past 8, PyTorch would go on uncompiled
    rows = arguments.rows.split(",")
    model, loss = make_peer(shape_of(arguments), arguments.as_peer, max(int(row.split("x")[1]) for row in rows))
    optimizer, clip = make_optimizer(model, arguments.as_peer)
    for row in rows:
        model.gradient_checkpointing_disable()
        for recompute in ("none", "checkpointing"):
            if recompute == "checkpointing":
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            gc.collect()
            if cuda:
                torch.cuda.empty_cache()
            try:
                result = peer_row(arguments, model, loss, optimizer, clip, row)
            except torch.OutOfMemoryError:
                result = {"error": "out of memory"}
            optimizer.zero_grad(set_to_none=True)
            print(json.dumps({"row": row, "program": "transformers", "mode": arguments.as_peer, "recompute": recompute, **result}), flush=True)
            if "error" not in result:
                break


def run_peer(arguments, mode):
    """What a process of the peer measured in this mode."""
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    words = ["--as-peer", mode, "--rows", arguments.rows, "--steps", str(arguments.steps), "--device", arguments.device]
    code, output, _ = gpu.run([sys.executable, os.path.abspath(__file__), *words, *["--tiny"] * arguments.tiny])
    results = [json.loads(line) for line in output.splitlines() if line.startswith('{"row"')]
    if code:
        results.append({"row": arguments.rows, "program": "transformers", "mode": mode, "error": f"exit code {code}: {output[-1200:]}"})
    return results


def run_smelt(arguments, row, recompute, folder, in_backward=False):
    sequences, length = row.split("x")
    path = os.path.join(folder, f"{row}-{recompute}-{in_backward}.json")
    name = "zaya1-tiny" if arguments.tiny else "zaya1-8b"
    settings = {"precision": "pure_bf16", "optimizer.name": "adamw", "data.length": length, "microbatch": sequences, "accumulation": 1, "recompute": recompute,
                "measured_steps": arguments.steps, "device": arguments.device, "json": path}
    if in_backward:
        settings.update({"optimizer.in_backward": "true", "optimizer.clip": 0})
    config = os.path.join(os.path.dirname(HERE), "configs", name + ".yaml")
    code, output, memory = gpu.run([arguments.smelt, "bench", "train", config, *(f"{key}={value}" for key, value in settings.items()), *arguments.set])
    result = {"row": row, "program": "smelt", "mode": "pure bf16" + ", in backward" * in_backward, "recompute": recompute}
    if code or not os.path.exists(path):
        return {**result, "error": f"exit code {code}: {output[-800:]}"}
    measured = json.load(open(path))["rows"][-1]
    return {**result, "tokens_per_second": measured["tokens_s"], "step_ms": measured["step_ms"], "memory_gib": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--rows", default="1x4096,2x4096", help="sequences x tokens, comma-separated")
    parser.add_argument("--modes", default="compiled,eager", help="the peer's, comma-separated; empty: smelt alone")
    parser.add_argument("--in-backward", default="", metavar="POLICIES", help="recompute policies of smelt, comma-separated, with updates in the backward pass")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of smelt")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--csv")
    parser.add_argument("--as-peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        return peer(arguments)
    results, best = [], {}

    def add(result):
        results.append(result)
        print(*(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in result.items()), flush=True)
        if arguments.csv:
            gpu.write_csv(arguments.csv, COLUMNS, results)

    for mode in filter(None, arguments.modes.split(",")):
        for result in run_peer(arguments, mode):
            add(result)
            if result.get("tokens_per_second", 0) > best.get(result["row"], {}).get("tokens_per_second", 0):
                best[result["row"]] = result
    with tempfile.TemporaryDirectory() as folder:
        for row in arguments.rows.split(","):
            other = best.get(row)
            runs = [("auto", False)] + [("block", False)] * bool(other and other["recompute"] != "none")
            for recompute, in_backward in runs + [(policy, True) for policy in filter(None, arguments.in_backward.split(","))]:
                own = run_smelt(arguments, row, recompute, folder, in_backward)
                if other and "error" not in own:
                    own["ratio"] = own["tokens_per_second"] / other["tokens_per_second"]
                    own["memory_ratio"] = own["memory_gib"] / other["memory_gib"] if other["memory_gib"] else float("nan")
                add(own)


if __name__ == "__main__":
    main()
