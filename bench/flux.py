#!/usr/bin/env python3
"""smelt against diffusers on one GPU: training steps of FLUX.1 on random encodings, in turn on the same machine.

For every row: diffusers' FluxTransformer2DModel in bf16, its blocks compiled, with SDPA and fused AdamW (states in bf16; peft's adapters in LoRA rows), then
`smelt bench train` in pure bf16, which has as many bytes a parameter. Either takes the least recomputation with which it fits, in the order given; the
peer, where it fails for another reason than memory, the next of its modes. An image is a step's mean over the measured ones, and memory is what
nvidia-smi or rocm-smi shows while the program runs, polled.

    bench/flux.py --smelt build/smelt --csv flux.csv                all rows
    bench/flux.py --smelt build/smelt --rows full-512-b1            one of them; --no-peer: smelt alone
    bench/flux.py --smelt build/smelt --config configs/flux-tiny.yaml --tiny --device cpu
Needs a Python with PyTorch, diffusers and, for LoRA, peft (bench/requirements.txt)."""
import argparse
import csv
import json
import os
import sys
import tempfile
import time

import gpu

# pixels of a side, images of a step, rank of adapters (0: all weights)
ROWS = {"full-512-b1": (512, 1, 0), "full-512-b10": (512, 10, 0), "lora-1024-b1": (1024, 1, 16), "lora-1024-b4": (1024, 4, 16)}
COLUMNS = ["row", "program", "mode", "images_per_second", "ratio", "tflops", "step_ms", "memory_gib"]
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "net.0.proj", "net.2", "proj_mlp",
           r"single_transformer_blocks.*proj_out"]
RECOMPUTE = ["none", "norm", "block"]
# The attention that SDPA chooses by itself is cuDNN's, whose backward pass fails for some shapes.
PEER_MODES = ["compiled", "compiled, flash attention", "compiled, memory-efficient attention", "eager, flash attention"]
TEXT = 512


def shape_of(arguments, row):
    pixels, images, rank = ROWS[row]
    return (8, 8) if arguments.tiny else (pixels // 16, pixels // 16), 2 if arguments.tiny else images, rank


def run_smelt(arguments, row, folder):
    (height, width), images, rank = shape_of(arguments, row)
    text = 8 if arguments.tiny else TEXT
    for recompute in RECOMPUTE:
        path = os.path.join(folder, f"{row}-{recompute}.csv")
        settings = {"data.length": height * width + text, "batch.sequences": images, "batch.tokens": images * (height * width + text), "recompute": recompute,
                    "device": arguments.device, "microbatch": images, "accumulation": 1, "measured_steps": arguments.steps, "csv": path}
        settings |= {"precision": "pure_bf16"} if not arguments.tiny else {}
        settings |= {"lora.rank": rank, "lora.targets": "all"} if rank else {}
        code, output, memory = gpu.run([arguments.smelt, "bench", "train", arguments.config, *(f"{key}={value}" for key, value in settings.items())])
        if code == 0:
            result = list(csv.DictReader(line for line in open(path) if not line.startswith("#")))[-1]
            return {"mode": f"recompute={recompute}", "images_per_second": 1e3 * images / float(result["step_ms"]), "step_ms": float(result["step_ms"]),
                    "tflops": float(result["tflops"]), "memory_gib": memory}
    return {"error": output[-800:]}


def run_peer(arguments, row):
    mode, recompute = 0, False
    modes = arguments.peer_modes.split(";")
    while mode < len(modes):
        words = ["--as-peer", row, "--mode", modes[mode], "--steps", str(arguments.steps), "--device", arguments.device]
        code, output, memory = gpu.run([sys.executable, os.path.abspath(__file__), *words] + ["--recompute"] * recompute + ["--tiny"] * arguments.tiny)
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if code == 0 and lines:
            return {"mode": modes[mode] + ", checkpointing" * recompute, "memory_gib": memory, **json.loads(lines[-1])}
        print(row, modes[mode], "failed:", output.strip().splitlines()[-1:], flush=True)
        if "out of memory" in output.lower() and not recompute:
            recompute = True
        else:
            mode += 1
    return {"error": output[-800:]}


def make_peer(arguments, rank, device):
    import torch
    from diffusers import FluxTransformer2DModel
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float32 if arguments.tiny else torch.bfloat16)
    tiny = dict(num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=4, in_channels=12, joint_attention_dim=32,
                pooled_projection_dim=16, axes_dims_rope=(4, 6, 6))
    with torch.device(device):
        model = FluxTransformer2DModel(guidance_embeds=not arguments.tiny, **(tiny if arguments.tiny else {}))
    if rank:
        from peft import LoraConfig
        targets = "|".join(rf".*{name.replace('.', '[.]')}" if "*" not in name else name for name in TARGETS)
        model.requires_grad_(False)
        model.add_adapter(LoraConfig(r=rank, lora_alpha=16, target_modules=f"({targets})"))
    if arguments.recompute:
        model.enable_gradient_checkpointing()
    for block in [*model.transformer_blocks, *model.single_transformer_blocks] if arguments.mode.startswith("compiled") else []:
        block.compile()
    return model.train()


def peer(arguments):
    import torch
    (height, width), images, rank = shape_of(arguments, arguments.as_peer)
    device = "cpu" if arguments.device == "cpu" else "cuda"
    model = make_peer(arguments, rank, device)
    c, text, fused = model.config, 8 if arguments.tiny else TEXT, device == "cuda"
    places = torch.zeros(height, width, 3, device=device)
    places[..., 1] += torch.arange(height, device=device)[:, None]
    places[..., 2] += torch.arange(width, device=device)[None, :]
    random = lambda *shape: torch.randn(*shape, device=device)
    x = dict(hidden_states=random(images, height * width, c.in_channels), encoder_hidden_states=random(images, text, c.joint_attention_dim),
             pooled_projections=random(images, c.pooled_projection_dim), timestep=torch.full((images,), 0.5, device=device),
             img_ids=places.reshape(-1, 3), txt_ids=torch.zeros(text, 3, device=device),
             guidance=torch.ones(images, device=device) if c.guidance_embeds else None)
    target = random(images, height * width, c.in_channels)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=fused)

    torch.backends.cuda.enable_cudnn_sdp("attention" not in arguments.mode)
    torch.backends.cuda.enable_flash_sdp("memory-efficient" not in arguments.mode)
    torch.backends.cuda.enable_mem_efficient_sdp("flash" not in arguments.mode)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(**x, return_dict=False)[0].float(), target.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    wait = torch.cuda.synchronize if fused else lambda: None
    for _ in range(3):
        step()
    wait()
    start = time.time()
    for _ in range(arguments.steps):
        step()
    wait()
    seconds = (time.time() - start) / arguments.steps
    print(json.dumps({"images_per_second": images / seconds, "step_ms": 1e3 * seconds}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smelt", default="build/smelt")
    parser.add_argument("--config", default="configs/flux1-dev.yaml")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--csv", default="")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--peer-modes", default=";".join(PEER_MODES), help="in the order in which they are tried (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a small model in fp32, to try the script")
    parser.add_argument("--as-peer", default="", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default=PEER_MODES[0], help=argparse.SUPPRESS)
    parser.add_argument("--recompute", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        return peer(arguments)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for row in arguments.rows.split(","):
            other = {} if arguments.no_peer else run_peer(arguments, row)
            own = run_smelt(arguments, row, folder)
            if own.get("images_per_second") and other.get("images_per_second"):
                own["ratio"] = own["images_per_second"] / other["images_per_second"]
            for program, result in ([("diffusers", other)] if other else []) + [("smelt", own)]:
                print(row, program, *(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in result.items()), flush=True)
                results.append({"row": row, "program": program, **result})
    if arguments.csv:
        gpu.write_csv(arguments.csv, COLUMNS, results)


if __name__ == "__main__":
    main()
