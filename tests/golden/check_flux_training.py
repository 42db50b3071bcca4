"""Trains a small FLUX in smelt and in PyTorch (diffusers' FluxTransformer2DModel, torch.optim.AdamW) and compares the losses of every step and evaluation.

    python tests/golden/check_flux_training.py build/smelt [STEPS] [MOST_DIFFERENCE] [CAPTION_DROPOUT]

Both begin with the same weights, made by PyTorch, and read scikit-learn's handwritten digits (tools/encode-images.py digits). The order of the samples,
their times and their noise are computed here anew, from what docs/flux.md and docs/data.md say. Needs torch, diffusers, scikit-learn and numpy.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file, save_file

SMELT = os.path.abspath(sys.argv[1])
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 200
MOST = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-3
DROPOUT = float(sys.argv[4]) if len(sys.argv) > 4 else 0
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEED, BATCH, EVERY, LR, BETAS, DECAY, CLIP, SHIFT = 7, 32, 20, 1e-3, (0.9, 0.99), 0.01, 1.0, 1.5
SHUFFLE, NOISE, TIME, CAPTION, TIMES = 1, 6, 7, 8, 8
MODEL = dict(in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=16,
             pooled_projection_dim=16, axes_dims_rope=(8, 4, 4), guidance_embeds=False)


def philox(seed, stream, index):
    """Philox4x32-10 of counters (index, stream) and the key seed, low words first: uint32 [n, 4]."""
    index = np.atleast_1d(np.asarray(index, dtype=np.uint64))
    low = np.uint64(0xFFFFFFFF)
    c = [index & low, index >> np.uint64(32), np.full_like(index, stream & 0xFFFFFFFF), np.full_like(index, stream >> 32)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & low, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1)


def derive(seed, stream, index):
    bits = philox(seed, stream, index)[0]
    return int(bits[0]) << 32 | int(bits[1])


def normals(seed, stream, count):
    """Box-Muller: two values of two words."""
    bits = philox(seed, stream, np.arange((count + 3) // 4)).astype(np.int64).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(((bits[:, 0] >> 1) + 0.5) * 2.0**-31))
    rest = bits[:, 1] & 0x3FFFFFFF
    angle = (bits[:, 1] >> 30) * (math.pi / 2) + np.where(rest >> 29, rest - (1 << 30), rest) * 4 * (math.pi / 2 * 2.0**-32)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:count].astype(np.float32)


def permute(seed, stream, index, count):
    """A Feistel network of eight rounds with cycle walking."""
    bits = (count - 1).bit_length() if count > 1 else 0
    left_bits, right_bits = bits // 2, bits - bits // 2
    while True:
        left, right = index >> right_bits, index & ((1 << right_bits) - 1)
        for r in range(0, 8, 2):
            left ^= int(philox(seed, stream, r << 32 | right)[0][0]) & ((1 << left_bits) - 1)
            right ^= int(philox(seed, stream, (r + 1) << 32 | left)[0][0]) & ((1 << right_bits) - 1)
        index = left << right_bits | right
        if index < count:
            return index


def drops_caption(key):
    """53 bits of the first two words, high word first."""
    return (derive(key_seed(*key), CAPTION, 0) >> 11) * 2.0**-53 < DROPOUT


def noised(latents, texts, keys, times, dropout=False):
    """Inputs and target of samples: keys are (seed, sample, epoch). The empty caption is zeros."""
    x = torch.stack([latents[sample] for _, sample, _ in keys])
    noise = torch.stack([torch.from_numpy(normals(key_seed(*key), NOISE, x[0].numel())).reshape(x[0].shape) for key in keys])
    sigma = torch.tensor(times, dtype=torch.float32)
    s = sigma[:, None, None, None]
    read = [torch.zeros_like(texts[key[1]]) if dropout and drops_caption(key) else texts[key[1]] for key in keys]
    return pack((1 - s) * x + s * noise), torch.stack(read), sigma, pack(noise - x)


def key_seed(seed, sample, epoch):
    return derive(derive(seed, NOISE, epoch), NOISE, sample)


def pack(x):
    """diffusers' FluxPipeline._pack_latents."""
    n, c, h, w = x.shape
    return x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h // 2 * (w // 2), 4 * c)


def training_sample(number, count):
    epoch, place = divmod(number, count)
    sample = permute(derive(SEED, SHUFFLE, epoch), SHUFFLE, place, count)
    key = (SEED, sample, epoch)
    t = 1 / (1 + math.exp(-float(normals(key_seed(*key), TIME, 1)[0])))
    return key, SHIFT * t / (1 + (SHIFT - 1) * t)


def loss_of(model, inputs):
    x, text, sigma, target = inputs
    side = math.isqrt(x.shape[1])
    places = torch.zeros(side, side, 3)
    places[..., 1] += torch.arange(side)[:, None]
    places[..., 2] += torch.arange(side)[None, :]
    velocity = model(x, text[:, None], text, sigma, places.reshape(-1, 3), torch.zeros(1, 3), return_dict=False)[0]
    return torch.nn.functional.mse_loss(velocity, target)


def train_pytorch(folder, data, results):
    model, files = FluxTransformer2DModel.from_pretrained(folder), {name: load_file(f"{data}/{name}.safetensors") for name in ("train", "valid")}
    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == decayed], "weight_decay": DECAY * decayed} for decayed in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=1e-8)
    train, valid = files["train"], files["valid"]
    for step in range(1, STEPS + 1):
        samples = [training_sample((step - 1) * BATCH + i, len(train["latents"])) for i in range(BATCH)]
        loss = loss_of(model, noised(train["latents"], train["pooled_prompt_embeds"], *zip(*samples), dropout=True))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double()**2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad *= min(1, CLIP / norm.item())
        optimizer.step()
        results["step", step] = loss.item()
        if step % EVERY == 0 or step == STEPS:
            count = len(valid["latents"])
            keys, times = [(0, i, 0) for i in range(count)], [(i % TIMES + 0.5) / TIMES for i in range(count)]
            with torch.no_grad():
                results["evaluation", step] = loss_of(model, noised(valid["latents"], valid["pooled_prompt_embeds"], keys, times)).item()


def train_smelt(folder, data, run):
    settings = dict(init=folder, run=run, steps=STEPS, seed=SEED, device="cpu", precision="fp32", tensorboard="false")
    settings |= {"data.train": f"{data}/train.safetensors", "data.valid": f"{data}/valid.safetensors", "data.length": 17, "model.text_tokens": 1,
                 "batch.tokens": 17 * BATCH, "batch.sequences": BATCH // 2, "eval.every": EVERY, "flow.shift": SHIFT, "flow.caption_dropout": DROPOUT, "optimizer.lr": LR,
                 "optimizer.beta1": BETAS[0], "optimizer.beta2": BETAS[1], "optimizer.weight_decay": DECAY, "optimizer.clip": CLIP,
                 "schedule.kind": "constant"}
    subprocess.run([SMELT, "train"] + [f"{key}={value}" for key, value in settings.items()], check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    return {(r["kind"], r["step"]): r["loss"] for r in records if r["kind"] in ("step", "evaluation")}


with tempfile.TemporaryDirectory() as scratch:
    data, folder = f"{scratch}/digits", f"{scratch}/model"
    subprocess.run([sys.executable, f"{ROOT}/tools/encode-images.py", "digits", data], check=True)
    if DROPOUT:
        tensors = load_file(f"{data}/train.safetensors")
        save_file(tensors | {"empty_prompt_embeds": torch.zeros(1, 1, 16), "empty_pooled_prompt_embeds": torch.zeros(1, 16)}, f"{data}/train.safetensors")
    torch.manual_seed(1)
    FluxTransformer2DModel(**MODEL).save_pretrained(folder)
    ours, theirs = train_smelt(folder, data, f"{scratch}/run"), {}
    train_pytorch(folder, data, theirs)
worst = {"step": 0.0, "evaluation": 0.0}
assert ours.keys() == theirs.keys(), "smelt and PyTorch have not made the same steps"
for (kind, step), loss in sorted(theirs.items(), key=lambda item: item[0][1]):
    difference = abs(ours[kind, step] - loss)
    worst[kind] = max(worst[kind], difference)
    if kind == "evaluation" or step in (1, 10):
        print(f"{kind:10s} {step:5d}: smelt {ours[kind, step]:.6f}, PyTorch {loss:.6f}, difference {difference:.1e}")
print(f"largest differences over {STEPS} steps: training {worst['step']:.1e}, evaluation {worst['evaluation']:.1e} (at most {MOST:g})")
sys.exit(max(worst.values()) > MOST)
