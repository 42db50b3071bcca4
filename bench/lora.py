#!/usr/bin/env python3
"""LoRA of Llama-3.1-8B's or 70B's shape on one GPU or several: smelt beside transformers + PEFT, with random weights, random tokens and adapters of rank 16 on
every linear layer.

For each row (sequences x tokens): PEFT as people run it, bf16 base, SDPA attention, AdamW over fp32 adapters; then smelt by `smelt bench train`, the frozen
base in bf16 and in NF4 (QLoRA). Both keep all activations (recompute "none"), then compute each layer again in the backward pass ("block": gradient
checkpointing, recompute=block). The ratios, of tokens a second and of memory, are to the peer that recomputes alike; where that one does not fit, to the
one that fits, and `reference` says which. Memory is what nvidia-smi or rocm-smi shows while the program runs.

With --ranks, both programs also run on several GPUs of one machine, each with sequences of its own: smelt with layout.zero=3, PEFT with FSDP2, layer by layer.
Tokens a second are those of one GPU then.

    bench/lora.py --smelt build/smelt --csv lora.csv
    bench/lora.py --rows 1x8192 --bases bf16,nf4 --no-peer
    bench/lora.py --model llama3.1-70b --layers 80 --ranks 2,4 --recompute block --rows 1x8192 --no-peer
    bench/lora.py --tiny                                    a small model on the CPU, to try the script
Needs a Python with PyTorch, transformers and peft."""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpu

COLUMNS = ["row", "ranks", "program", "base", "recompute", "tokens_per_second", "ratio", "memory_gib", "memory_ratio", "reference", "error"]
RANK, ALPHA = 16, 32
HERE = os.path.dirname(os.path.abspath(__file__))
# smelt's configuration, transformers' sizes
MODELS = {"llama3.1-8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8),
          "llama3.1-70b": dict(vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_key_value_heads=8),
          "llama-tiny": dict(vocab_size=320, hidden_size=192, intermediate_size=512, num_attention_heads=6, num_key_value_heads=2)}


def shard(model, torch):
    """The layers and the rest of the model over all ranks by FSDP2; adapters stay fp32, gathered as bf16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def peer(arguments):
    """One row with transformers and PEFT, in this process: prints JSON. With torchrun, one rank of it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    sequences, length = map(int, arguments.as_peer.split("x"))
    device = "cpu" if arguments.tiny else "cuda"
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.manual_seed(1)
    torch.set_default_device(device)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(**MODELS[arguments.model], num_hidden_layers=arguments.layers, max_position_embeddings=131072,
                         rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, use_cache=False, attn_implementation="sdpa")
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if arguments.recompute == "block":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"))
    model.train()
    if ranks > 1:
        torch.distributed.init_process_group("gloo" if arguments.tiny else "nccl")
        shard(model, torch)
        torch.manual_seed(1 + rank)
    if arguments.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, fused=True)
    tokens = torch.randint(config.vocab_size, (8, sequences, length))
    seconds = []
    for step in range(arguments.steps + 3):
        wait()
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=tokens[step % 8], labels=tokens[step % 8]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wait()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"tokens_per_second": sequences * length / statistics.median(seconds[3:])}))
    if ranks > 1:
        torch.distributed.destroy_process_group()


def run_peer(arguments, row, recompute, ranks):
    words = ["--as-peer", row, "--recompute", recompute, "--steps", str(arguments.steps), "--layers", str(arguments.layers), "--model", arguments.model]
    result = gpu.run_torch(__file__, words + ["--compile"] * arguments.compile + ["--tiny"] * arguments.tiny, ranks if ranks > 1 else 0)
    if "outofmemory" in result.get("error", "").lower().replace(" ", ""):
        result = {"error": "out of memory"}
    return {"ranks": ranks, "program": "transformers + PEFT" + (", compiled" if arguments.compile else ""), "base": "bf16", "recompute": recompute, **result}


def run_smelt(arguments, row, base, recompute, ranks, folder):
    sequences, length = row.split("x")
    path = os.path.join(folder, f"{row}-{base}-{recompute}-{ranks}.json")
    settings = {"lora.rank": RANK, "lora.alpha": ALPHA, "precision": "bf16", "data.length": length, "microbatch": sequences, "accumulation": 1,
                "recompute": recompute, "measured_steps": arguments.steps, "device": arguments.device, "json": path, "model.layers": arguments.layers}
    settings |= {"lora.base": base} if base != "bf16" else {}
    settings |= {"layout.zero": 3} if ranks > 1 else {}
    config = os.path.join(os.path.dirname(HERE), "configs", arguments.model + ".yaml")
    launch = ["launch", "-n", str(ranks), "self_test=false", "--"] if ranks > 1 else []
    code, output, memory = gpu.run(
        [arguments.smelt, *launch, "bench", "train", config, *(f"{key}={value}" for key, value in settings.items()), *arguments.set])
    result = {"ranks": ranks, "program": "smelt", "base": base, "recompute": recompute}
    if code or not os.path.exists(path):
        return {**result, "error": f"exit code {code}: {output[-800:]}"}
    return {**result, "memory_gib": memory, "tokens_per_second": json.load(open(path))["rows"][-1]["tokens_s"]}


def compare(result, peers):
    """Adds the ratios to the peer that recomputes alike, or else to one that fits."""
    fitting = [peer for peer in peers if "error" not in peer]
    reference = next((peer for peer in fitting if peer["recompute"] == result["recompute"]), fitting[0] if fitting else None)
    if reference and "error" not in result:
        result.update(reference=reference["recompute"], ratio=result["tokens_per_second"] / reference["tokens_per_second"],
                      memory_ratio=result["memory_gib"] / reference["memory_gib"] if reference["memory_gib"] else float("nan"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--rows", default="1x8192,4x4096", help="sequences x tokens, comma-separated")
    parser.add_argument("--bases", default="bf16,nf4", help="smelt's frozen base, comma-separated: bf16, nf4, fp8")
    parser.add_argument("--model", default="llama3.1-8b", choices=list(MODELS))
    parser.add_argument("--ranks", default="1", help="numbers of GPUs, comma-separated")
    parser.add_argument("--recompute", default="none,block", help="of both programs, comma-separated: none, block")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of smelt")
    parser.add_argument("--compile", action="store_true", help="the peer by torch.compile")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU, to try the script")
    parser.add_argument("--csv")
    parser.add_argument("--as-peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.device, arguments.layers, arguments.model = "cpu", 4, "llama-tiny"
    if arguments.as_peer:
        return peer(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row, ranks in ((row, int(ranks)) for row in arguments.rows.split(",") for ranks in arguments.ranks.split(",")):
            peers = []
            for recompute in arguments.recompute.split(","):
                results = [] if arguments.no_peer else [run_peer(arguments, row, recompute, ranks)]
                peers += results
                for result in results + [run_smelt(arguments, row, base, recompute, ranks, folder) for base in arguments.bases.split(",")]:
                    rows.append({"row": row, **result})
            for result in rows:
                if result["row"] == row and result["ranks"] == ranks:
                    compare(result, peers)
                    print(*(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in result.items()), flush=True)
            if arguments.csv:
                gpu.write_csv(arguments.csv, COLUMNS, rows)


if __name__ == "__main__":
    main()
