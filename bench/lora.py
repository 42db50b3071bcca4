#!/usr/bin/env python3
"""LoRA of Llama-3.1-8B's shape on one GPU: smelt beside transformers + PEFT, with random weights, random tokens and adapters of rank 16 on every linear layer.

For each row (sequences x tokens): PEFT as people run it, bf16 base, SDPA attention, AdamW over fp32 adapters, with gradient checkpointing where it does not
fit without; then smelt by `smelt bench train`, the frozen base in bf16 and in NF4 (QLoRA; bitsandbytes beside it where it is installed). The ratio is of tokens a second. Memory is what
nvidia-smi or rocm-smi shows while the program runs.

    bench/lora.py --smelt build/smelt --csv lora.csv
    bench/lora.py --rows 1x8192 --bases bf16,nf4 --no-peer
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

COLUMNS = ["row", "program", "base", "tokens_per_second", "ratio", "memory_gib", "checkpointing", "error"]
RANK, ALPHA = 16, 32


def peer(arguments):
    """One row with transformers and PEFT, in this process: prints JSON."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    sequences, length = map(int, arguments.as_peer.split("x"))
    torch.manual_seed(1)
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=arguments.layers, num_attention_heads=32,
                         num_key_value_heads=8, max_position_embeddings=131072, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, use_cache=False,
                         attn_implementation="sdpa")
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if arguments.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"))
    model.train()
    if arguments.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, fused=True)
    tokens = torch.randint(config.vocab_size, (8, sequences, length))
    seconds = []
    for step in range(arguments.steps + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens[step % 8], labels=tokens[step % 8]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"tokens_per_second": sequences * length / statistics.median(seconds[3:])}))


def run_peer(arguments, row):
    """Without gradient checkpointing, and where that does not fit, with it."""
    for checkpointing in (False, True):
        words = ["--as-peer", row, "--steps", str(arguments.steps), "--layers", str(arguments.layers)]
        words += ["--checkpointing"] * checkpointing + ["--compile"] * arguments.compile
        result = gpu.run_torch(__file__, words, 0)
        if "error" not in result or "OutOfMemory" not in result["error"] and "out of memory" not in result["error"]:
            break
    return {"program": "transformers + PEFT" + (", compiled" if arguments.compile else ""), "base": "bf16", "checkpointing": checkpointing, **result}


def run_smelt(arguments, row, base, folder):
    sequences, length = row.split("x")
    path = os.path.join(folder, f"{row}-{base}.json")
    settings = {"lora.rank": RANK, "lora.alpha": ALPHA, "precision": "bf16", "data.length": length, "microbatch": sequences, "accumulation": 1,
                "measured_steps": arguments.steps, "device": arguments.device, "json": path, "model.layers": arguments.layers}
    settings |= {"lora.base": base} if base != "bf16" else {}
    config = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs", "llama3.1-8b.yaml")
    code, output, memory = gpu.run([arguments.smelt, "bench", "train", config, *(f"{key}={value}" for key, value in settings.items()), *arguments.set])
    if code or not os.path.exists(path):
        return {"program": "smelt", "base": base, "error": f"exit code {code}: {output[-800:]}"}
    measured = json.load(open(path))["rows"][-1]
    return {"program": "smelt", "base": base, "memory_gib": memory, "tokens_per_second": measured["tokens_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--rows", default="1x8192,4x4096", help="sequences x tokens, comma-separated")
    parser.add_argument("--bases", default="bf16,nf4", help="smelt's frozen base, comma-separated: bf16, nf4, fp8")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of smelt")
    parser.add_argument("--compile", action="store_true", help="the peer by torch.compile")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--csv")
    parser.add_argument("--as-peer", help=argparse.SUPPRESS)
    parser.add_argument("--checkpointing", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        return peer(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in arguments.rows.split(","):
            results = [] if arguments.no_peer else [run_peer(arguments, row)]
            results += [run_smelt(arguments, row, base, folder) for base in arguments.bases.split(",")]
            reference = None if arguments.no_peer else results[0].get("tokens_per_second")
            for result in results:
                speed = result.get("tokens_per_second")
                if speed and reference:
                    result["ratio"] = speed / reference
                rows.append({"row": row, **result})
                line = f"{speed:8.0f} tokens/s, {result['memory_gib']:.1f} GiB" if speed else result.get("error", "")
                print(f"{row:8} {result['program']:28} {result['base']:5} {line}" + (f", {result['ratio']:.2f}" if "ratio" in result else ""), flush=True)
                if arguments.csv:
                    gpu.write_csv(arguments.csv, COLUMNS, rows)


if __name__ == "__main__":
    main()
