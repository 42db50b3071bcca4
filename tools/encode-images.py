#!/usr/bin/env python3
"""Writes encodings of images and texts for smelt's family flux (docs/flux.md): safetensors with latents, prompt_embeds and pooled_prompt_embeds.
`smelt train --example encode-images.py` prints this script.

    tools/encode-images.py digits OUT
        The handwritten digits of scikit-learn, 8 x 8 pixels: latents are the pixels from -1 to 1, the text is which digit it is. Writes
        OUT/train.safetensors (1,500), OUT/valid.safetensors (297), and OUT/digits.safetensors, each text six times, for smelt generate.
    tools/encode-images.py flux MODEL PICTURES OUT [--trigger WORD] [--size 512] [--tokens 512] [--batch 64]
        Pictures (.png, .jpg, .jpeg, .webp) through the VAE, CLIP and T5 of a FLUX.1 folder as diffusers saves it, which must be on this disk. The
        captions are in NAME.txt or NAME.caption beside NAME.png, or in a table .csv or .jsonl with the columns file_name (or file, image, path) and
        text (or caption, prompt). --trigger puts WORD before each caption that lacks it, and takes the place of a caption that is missing. A picture
        is cut to the resolution nearest to its shape among those of at most size x size pixels; OUT gets files HEIGHTxWIDTH-NUMBER.safetensors of at
        most --batch pictures, each with the encodings of the empty caption, for flow.caption_dropout.
    tools/encode-images.py texts MODEL TEXTS OUT.safetensors [--tokens 512]
        The lines of a file, for smelt generate.
    tools/encode-images.py decode MODEL LATENTS.safetensors FOLDER
        The pictures of latents that smelt generate wrote, by the VAE of such a folder.

Needs numpy and safetensors; digits scikit-learn, the others torch, diffusers, transformers, sentencepiece and pillow.
"""
import argparse
import csv
import json
import os
import sys

import numpy as np
from safetensors.numpy import save_file

DIGITS, LABEL_WIDTH, TRAIN, ROWS = 10, 16, 1500, 6
PATCH = 16  # pixels of an image token's side: 8 of a latent, 2 latents
MOST_SIDE = 128  # tokens of a side that smelt's positions have
PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def encode_digits(out):
    from sklearn.datasets import load_digits
    data = load_digits()
    labels = np.eye(DIGITS, LABEL_WIDTH, dtype=np.float32) * LABEL_WIDTH**0.5
    pixels = (data.images / 8 - 1).astype(np.float32)[:, None]

    def write(name, latents, texts):
        tensors = {"prompt_embeds": texts[:, None].copy(), "pooled_prompt_embeds": texts}
        save_file(tensors | ({} if latents is None else {"latents": latents.copy()}), os.path.join(out, name))

    os.makedirs(out, exist_ok=True)
    texts = labels[data.target]
    write("train.safetensors", pixels[:TRAIN], texts[:TRAIN])
    write("valid.safetensors", pixels[TRAIN:], texts[TRAIN:])
    write("digits.safetensors", None, np.tile(labels, (ROWS, 1)))


class Encoders:
    """The VAE and the text encoders of a folder."""

    def __init__(self, folder, tokens):
        import torch
        from diffusers import AutoencoderKL, FluxPipeline
        self.torch, self.tokens = torch, tokens
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.type = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.vae = AutoencoderKL.from_pretrained(folder, subfolder="vae", torch_dtype=self.type).to(self.device)
        self.pipeline = FluxPipeline.from_pretrained(folder, transformer=None, vae=None, torch_dtype=self.type, local_files_only=True).to(self.device)

    def texts(self, texts):
        with self.torch.no_grad():
            embeds, pooled, _ = self.pipeline.encode_prompt(texts, None, device=self.device, max_sequence_length=self.tokens)
        return {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled}

    def pictures(self, pixels):
        config = self.vae.config
        with self.torch.no_grad():
            latents = self.vae.encode(self.torch.from_numpy(pixels).to(self.device, self.type)).latent_dist.sample()
        return (latents - config.shift_factor) * config.scaling_factor


def save(tensors, path):
    from safetensors.torch import save_file as save_tensors
    save_tensors({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)


def rows_of_table(path):
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file)) if path.lower().endswith(".csv") else [json.loads(line) for line in file if line.strip()]


def column_of(row, names, path):
    for name in names:
        if row.get(name):
            return str(row[name]).strip()
    sys.exit(f"error: {path}: a row lacks {' and '.join(names[:1])} (or {', '.join(names[1:])})")


def captions_of(folder, names):
    """The captions of the pictures by their names: of tables, and of files beside them."""
    captions = {}
    for table in sorted(name for name in os.listdir(folder) if name.lower().endswith((".csv", ".jsonl")) and not name.startswith(".")):
        path = os.path.join(folder, table)
        for row in rows_of_table(path):
            name = os.path.normpath(column_of(row, ("file_name", "file", "image", "path"), path))
            if name not in names:
                sys.exit(f"error: {path} names {name}, which is not a picture of {folder}: correct the row, or remove it")
            captions[name] = column_of(row, ("text", "caption", "prompt"), path)
    for name in names:
        for ending in (".txt", ".caption"):
            path = os.path.join(folder, os.path.splitext(name)[0] + ending)
            if name not in captions and os.path.exists(path):
                captions[name] = open(path, encoding="utf-8-sig").read().strip()
    return captions


def captioned_pictures(folder, trigger):
    """Paths and captions."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(PICTURES) and not name.startswith("."))
    captions = captions_of(folder, names)
    missing = [name for name in names if not captions.get(name)]
    if not names:
        sys.exit(f"error: {folder} has no picture ({', '.join(PICTURES)})")
    if missing and not trigger:
        sys.exit(f"error: {len(missing)} of {len(names)} pictures of {folder} have no caption; the first is {missing[0]}: write it to "
                 f"{os.path.splitext(missing[0])[0]}.txt, or set --trigger WORD")
    for name in names:
        text = captions.get(name, "")
        yield os.path.join(folder, name), text if not trigger or trigger in text else ", ".join(filter(None, (trigger, text)))


def resolution_of(width, height, size):
    """Height and width, multiples of PATCH: of at most size x size pixels, the most that keep the most of the picture's shape."""
    most, ratio = (size // PATCH)**2, height / width
    rows = min(max(round((most * ratio)**0.5), 1), MOST_SIDE)
    shapes = [(r, c) for r in range(rows - 1, rows + 2) for c in range(round(r / ratio) - 1, round(r / ratio) + 2)]
    shapes = [(r, min(max(c, 1), MOST_SIDE)) for r, c in shapes if 1 <= r <= MOST_SIDE] + [(1, 1)]
    rows, columns = max((s for s in shapes if s[0] * s[1] <= most), key=lambda s: s[0] * s[1] * min(s[0] / s[1] / ratio, ratio * s[1] / s[0]))
    return rows * PATCH, columns * PATCH


def open_picture(path):
    """The picture as a viewer shows it: turned as the camera says, transparent parts white."""
    from PIL import Image, ImageOps
    picture = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def pixels_of(picture, height, width):
    from PIL import Image, ImageOps
    picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1


def encode_pictures(model, folder, out, trigger, size, tokens, batch):
    items, buckets = list(captioned_pictures(folder, trigger)), {}
    for path, text in items:
        buckets.setdefault(resolution_of(*open_picture(path).size, size), []).append((path, text))
    encoders = Encoders(model, tokens)
    empty = {"empty_" + key: tensor for key, tensor in encoders.texts([""]).items()}
    os.makedirs(out, exist_ok=True)
    for (height, width), items in sorted(buckets.items()):
        for first in range(0, len(items), batch):
            some = items[first:first + batch]
            latents = [encoders.pictures(pixels_of(open_picture(path), height, width)[None]) for path, _ in some]
            texts = [encoders.texts([text]) for _, text in some]
            tensors = {"latents": encoders.torch.cat(latents)} | {key: encoders.torch.cat([t[key] for t in texts]) for key in texts[0]}
            save(tensors | empty, os.path.join(out, f"{height}x{width}-{first // batch:05d}.safetensors"))
        print(f"{height} x {width}: {len(items)} pictures")
    print(f"next: data.train={out} data.length={tokens + max(height * width for height, width in buckets) // PATCH**2}, model.text_tokens={tokens}")


def encode_texts(model, path, out, tokens):
    encoders = Encoders(model, tokens)
    save(encoders.texts([line.strip() for line in open(path) if line.strip()]), out)


def decode(model, path, out):
    import torch
    from diffusers import AutoencoderKL
    from diffusers.image_processor import VaeImageProcessor
    from safetensors import safe_open
    vae = AutoencoderKL.from_pretrained(model, subfolder="vae")
    os.makedirs(out, exist_ok=True)
    number = 0
    with safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            for latents in file.get_tensor(name).float():
                with torch.no_grad():
                    pixels = vae.decode(latents[None] / vae.config.scaling_factor + vae.config.shift_factor).sample
                VaeImageProcessor().postprocess(pixels)[0].save(os.path.join(out, f"{number:05d}.png"))
                number += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in {"digits": ["out"], "flux": ["model", "pictures", "out"], "texts": ["model", "texts", "out"], "decode": ["model", "latents", "out"]}.items():
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word)
        if name in ("flux", "texts"):
            command.add_argument("--tokens", type=int, default=512)
        if name == "flux":
            command.add_argument("--trigger", default="")
            command.add_argument("--size", type=int, default=512)
            command.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()
    if given.command == "digits":
        encode_digits(given.out)
    elif given.command == "flux":
        encode_pictures(given.model, given.pictures, given.out, given.trigger, given.size, given.tokens, given.batch)
    elif given.command == "texts":
        encode_texts(given.model, given.texts, given.out, given.tokens)
    else:
        decode(given.model, given.latents, given.out)


main()
