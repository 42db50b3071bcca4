#!/usr/bin/env python3
"""smelt against PyTorch on one GPU, or several of one machine: same shapes, random tokens, in turn on the same machine.

For every row of gpu.json: PyTorch's best known form (compiled, SDPA, fused AdamW; transformers' ZayaForCausalLM with grouped_mm for ZAYA1; `peer` in
gpu.json names mode and precision), then smelt: in pure bf16 where the peer is that, and in bf16 with fp32 master weights and optimizer state. Medians of the measured steps; memory is what
nvidia-smi or rocm-smi shows while the program runs, polled; seconds to the first step count from the start of the process. smelt is killed after the last
measured step, since its checkpoint is not what is measured here.

    bench/gpu.py --smelt build/smelt                     all rows
    bench/gpu.py --rows llama-1b --no-peer               smelt alone
    bench/gpu.py --rows llama-1b --ranks 1,4             one GPU, then four: ZeRO-1 beside DDP, ZeRO-3 beside FSDP2
    bench/gpu.py --rows llama-1b --fp8 tensor            both programs in fp8 too: smelt by these recipes, PyTorch by torchao's of the same name
Needs a Python with PyTorch (and transformers for ZAYA1). Prints a table and, with --csv, writes it."""
import argparse
import csv
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OPTIMIZER = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
COLUMNS = ["row", "ranks", "program", "mode", "tokens_per_second", "ratio", "efficiency", "tflops", "memory_gib", "seconds_to_first_step", "loss_last"]


def write_shard(prefix, vocabulary, count):
    """Random tokens as one document in Megatron's layout, unless they are there; returns the prefix."""
    import array
    import random
    if os.path.exists(prefix + ".bin"):
        return prefix
    generator = random.Random(1)
    block = array.array("i", (generator.randrange(vocabulary) for _ in range(1 << 18)))
    with open(prefix + ".bin", "wb") as file:
        for _ in range(count // len(block)):
            block.tofile(file)
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<iqqq", count // len(block) * len(block), 0, 0, 1))
    return prefix


def write_config(path, shape, **more):
    """smelt's configuration of a row's model, with more settings of the model; returns the path."""
    zaya, experts = shape["family"] == "zaya", "experts" in shape
    model = {"family": {"qwen3_moe": "llama", "olmoe": "olmo", "deepseek_v2": "deepseek", "gemma3": "gemma"}.get(shape["family"], shape["family"]), "layers": shape["layers"], "width": shape["width"], "heads": shape["query_heads"],
             "kv_heads": shape["key_value_heads"], "head_dim": shape["head_dim"], "ffn": shape["expert_width" if experts else "ffn_width"],
             "vocabulary": shape["vocab"], "tied": str(shape["tied_head"]).lower(), "rope_theta": shape["rope_theta"], "rope_fraction": shape["rope_fraction"]}
    if zaya:
        model.update(experts=shape["experts"], router_width=shape["router_width"])
    elif experts:
        model.update(experts=shape["experts"], experts_per_token=shape["experts_per_token"])
        model.update({"qwen3_moe": {"qk_norm": "true", "renormalise": "true"},
                      "gpt_oss": {"qkv_bias": "true", "renormalise": "true", "window": shape.get("window"), "window_period": 2}}.get(shape["family"], {}))
        if shape["family"] == "deepseek_v2":
            model.update({key: shape[key] for key in ("rope_dim", "value_dim", "kv_lora_rank", "shared_experts")}, experts_first=shape["dense_layers"], dense_ffn=shape["ffn_width"])
    if shape["family"] == "gemma3":
        model.update(qk_norm="true", window=shape["window"], window_period=6, window_first=5, window_skips="true", window_rope_theta=10000)
    with open(path, "w") as file:
        file.write("model:\n" + "".join(f"  {key}: {value}\n" for key, value in {**model, **more}.items()))
    return path


def write_csv(path, columns, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def memory_used():
    """GiB in use on the GPU that programs see first."""
    index = int((os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES") or "0").split(",")[0])
    for command in (["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], ["rocm-smi", "--showmeminfo", "vram", "--csv"]):
        try:
            text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
            return float(text.split()[index]) / 1024 if command[0] == "nvidia-smi" else float(text.splitlines()[1 + index].split(",")[2]) / 2**30
        except (OSError, IndexError, ValueError, subprocess.TimeoutExpired):
            continue
    return float("nan")


def run(command, enough=lambda: False):
    """Runs a program until it ends or `enough` says so; returns (exit code, output, peak memory in GiB)."""
    peak, done = [0.0], threading.Event()

    def poll():
        while not done.wait(0.3):
            peak[0] = max(peak[0], memory_used())

    def watch():
        while process.poll() is None:
            if enough():
                process.kill()
            time.sleep(0.02)

    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    threads = [threading.Thread(target=poll), threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    output = process.communicate()[0]
    done.set()
    for thread in threads:
        thread.join()
    return process.returncode, output, peak[0]


def train(arguments, config, folder, ranks, settings):
    """Trains with smelt until three steps and the measured ones are done, and kills it: the measured steps' medians; "waiting" is
    the part of a step in which the device waited for collectives."""
    started, first = time.time(), []
    log = os.path.join(folder, "metrics.jsonl")

    def read_steps():
        lines = open(log).read().splitlines(keepends=True) if os.path.exists(log) else []
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record for record in records if record["kind"] == "step"]

    def enough():
        count = len(read_steps())
        if count and not first:
            first.append(time.time() - started)
        return count >= arguments.steps + 3

    given = {"run": folder, "data.valid_fraction": 0, "data.document_mask": "false", "steps": 1000000, "device": arguments.device,
             "schedule.kind": "constant", "tensorboard": "false", **settings}
    launch = [] if ranks == 1 else ["launch", "-n", str(ranks), "--"]
    command = [arguments.smelt, *launch, "train", config, *(f"{key}={value}" for key, value in given.items()), *arguments.set]
    code, output, memory = run(command, enough)
    steps = read_steps()
    if len(steps) < arguments.steps + 3:
        return {"error": f"exit code {code}: {output[-800:]}"}
    return {"memory_gib": memory, "seconds_to_first_step": first[0] if first else float("nan"), "loss_last": steps[-1]["loss"],
            "tokens_per_second": statistics.median(s["tokens_per_second"] for s in steps[3:]),
            "waiting": statistics.median((s.get("waiting_milliseconds") or 0) / s["milliseconds"] for s in steps[3:])}


def run_torch(script, words, ranks):
    """Runs a script in PyTorch, by torchrun unless ranks is 0: the JSON that it prints last, and peak memory."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    code, output, memory = run([sys.executable, *launch, os.path.abspath(script), *words])
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return {"memory_gib": memory, **json.loads(lines[-1])} if code == 0 and lines else {"error": output[-1500:]}


TORCHAO = {"tensor": "tensorwise", "row": "rowwise", "row_gw_hp": "rowwise_with_gw_hp"}
MODES = {"pure_bf16": "pure bf16", "bf16": "bf16, fp32 masters"}


def run_smelt(arguments, row, shape, folder, ranks, zero, precision, fp8):
    config = write_config(os.path.join(folder, "row.yaml"), shape)
    shard = write_shard(os.path.join(folder, row), shape["vocab"], 8 << 20)
    settings = {"data.train": shard, "data.length": shape["sequence"], "batch.sequences": shape["microbatch"],
                "batch.tokens": shape["microbatch"] * shape["sequence"] * ranks, "layout.zero": zero, "precision": precision, "optimizer.lr": "3e-4"}
    recipe, head, _ = fp8.partition("+head")
    settings |= ({"fp8.recipe": recipe} if recipe else {}) | ({"fp8.head": "true"} if head else {})
    result = train(arguments, config, os.path.join(folder, f"run-{row}-{ranks}-{zero}-{precision}-{fp8}"), ranks, settings)
    return {"mode": (MODES[precision] if ranks == 1 else f"ZeRO-{zero}") + (f", fp8 {fp8}" if fp8 else ""), **result}


def run_peer(arguments, row, ranks, parallel, fp8):
    words = ["--as-peer", row, "--parallel", parallel, "--fp8", fp8, "--steps", str(arguments.steps), "--started", str(time.time())]
    return run_torch(__file__, words, ranks if ranks > 1 else 0)


def spread(model, parallel, amp):
    """The model over all ranks: DDP, or FSDP2 with its layers compiled one by one."""
    import torch
    if parallel == "ddp":
        return torch.compile(torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True))
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if amp else MixedPrecisionPolicy()
    for block in model.blocks:
        block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def peer(arguments):
    """One row in PyTorch, in this process; with torchrun, one rank of it."""
    import torch
    sys.path.insert(0, HERE)
    import peer_cpu
    shape = json.load(open(os.path.join(HERE, "gpu.json")))[arguments.as_peer]
    mode, precision = shape["peer"].split(":")
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.set_default_device("cuda")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = peer_cpu.hf_model(shape["family"], shape, mode) if mode.startswith("hf") else peer_cpu.build_models()[shape["family"]](shape, "grouped")
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    if arguments.fp8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(TORCHAO[arguments.fp8]),
                                   module_filter_fn=lambda module, name: "head" not in name and module.in_features % 16 == 0 == module.out_features % 16)
    if ranks > 1:
        torch.distributed.init_process_group("nccl")
        step_model = spread(model, arguments.parallel, precision == "amp")
        torch.manual_seed(1 + rank)
    else:
        step_model = torch.compile(model) if "compile" in mode else model
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True, **OPTIMIZER)
    tokens = torch.randint(shape["vocab"], (8, shape["microbatch"], shape["sequence"] + 1))

    def step(i):
        window = tokens[i % 8]
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp" and arguments.parallel != "fsdp"):
            loss, _ = step_model(window[:, :-1].contiguous(), window[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    seconds, first = [], None
    for i in range(arguments.steps + 3):
        begin = time.perf_counter()
        loss = step(i)
        seconds.append(time.perf_counter() - begin)
        first = first or time.time() - arguments.started
    if rank == 0:
        print(json.dumps({"mode": (shape["peer"] if ranks == 1 else arguments.parallel) + (f", fp8 {arguments.fp8}" if arguments.fp8 else ""), "seconds_to_first_step": first, "loss_last": loss,
                          "tokens_per_second": ranks * shape["microbatch"] * shape["sequence"] / statistics.median(seconds[3:])}))
    if ranks > 1:
        torch.distributed.destroy_process_group()


def race(arguments, row, shape, folder, ranks, zero, parallel, alone, results):
    """PyTorch, then smelt. `alone` keeps what each program reached on one GPU."""
    base = None
    pure = ranks == 1 and shape["peer"].endswith(":bf16")
    precisions = ["pure_bf16"] * pure + ["bf16"] * (not (pure and arguments.pure))
    recipes = ["", *filter(None, arguments.fp8.split(","))]
    peers = [] if arguments.no_peer else [("pytorch", "", fp8) for fp8 in recipes if not fp8 or (fp8 in TORCHAO and "hf" not in shape["peer"])]
    for program, precision, fp8 in peers + [("smelt", precision, fp8) for precision in precisions for fp8 in recipes]:
        peer_runs = program == "pytorch"
        result = run_peer(arguments, row, ranks, parallel, fp8) if peer_runs else run_smelt(arguments, row, shape, folder, ranks, zero, precision, fp8)
        if "error" in result:
            print(f"{row} {program} {precision} {fp8} on {ranks} failed: {result['error']}", flush=True)
            continue
        speed = result["tokens_per_second"]
        base = speed if peer_runs and not fp8 else base
        if ranks == 1 and not fp8:
            alone[program] = speed
        result.update(row=row, ranks=ranks, program=program, tflops=speed * shape["flops_per_token"] / ranks / 1e12, ratio=speed / base if base else float("nan"),
                      efficiency=speed / ranks / alone[program] if program in alone else float("nan"))
        results.append(result)
        print("{row:18} {ranks} x {program:8} {mode:36} {tokens_per_second:10.0f} tok/s  x{ratio:5.3f}  {tflops:6.1f} TFLOP/s a GPU ({efficiency:6.1%} of one alone)  "
              "{memory_gib:6.1f} GiB  first step {seconds_to_first_step:6.1f} s  loss {loss_last:.4f}".format(**result), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smelt", default=os.path.join(HERE, "..", "build", "smelt"))
    parser.add_argument("--rows", default="", help="comma-separated; default: all of gpu.json")
    parser.add_argument("--device", default="auto", help="smelt's: auto, hip, cuda")
    parser.add_argument("--steps", type=int, default=12, help="measured steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of smelt")
    parser.add_argument("--ranks", default="1", help="comma-separated numbers of GPUs")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--pure", action="store_true", help="not with fp32 masters, where the peer has none")
    parser.add_argument("--fp8", default="", help="comma-separated: tensor, row, row_gw_hp, block, tensor+head with the head too; PyTorch's need torchao, and no transformers model")
    parser.add_argument("--csv", default="")
    parser.add_argument("--as-peer", default="", help=argparse.SUPPRESS)
    parser.add_argument("--parallel", default="", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        return peer(arguments)
    shapes, results = json.load(open(os.path.join(HERE, "gpu.json"))), []
    with tempfile.TemporaryDirectory() as folder:
        for row in arguments.rows.split(",") if arguments.rows else shapes:
            alone = {}
            for ranks in map(int, arguments.ranks.split(",")):
                for zero, parallel in [(1, "")] if ranks == 1 else [(1, "ddp"), (3, "fsdp")]:
                    race(arguments, row, shapes[row], folder, ranks, zero, parallel, alone, results)
    if arguments.csv:
        write_csv(arguments.csv, COLUMNS, results)


if __name__ == "__main__":
    main()
