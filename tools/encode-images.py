#!/usr/bin/env python3
"""Writes encodings of images and texts for smelt's family flux (docs/flux.md): safetensors with latents, prompt_embeds and pooled_prompt_embeds.

    tools/encode-images.py digits OUT
        The handwritten digits of scikit-learn, 8 x 8 pixels: latents are the pixels from -1 to 1, the text is which digit it is. Writes
        OUT/train.safetensors (1,500), OUT/valid.safetensors (297), and OUT/digits.safetensors, each text six times, for smelt generate.
    tools/encode-images.py flux MODEL PICTURES OUT [--size 512] [--tokens 512] [--batch 64]
        Pictures, each NAME.png or NAME.jpg with its text in NAME.txt, through the VAE, CLIP and T5 of a FLUX.1 folder as diffusers saves it, which
        must be on this disk. A picture is cut to the resolution nearest to its shape among those of about size x size pixels; OUT gets files
        HEIGHTxWIDTH-NUMBER.safetensors of at most --batch pictures.
    tools/encode-images.py texts MODEL TEXTS OUT.safetensors [--tokens 512]
        The lines of a file, for smelt generate.
    tools/encode-images.py decode MODEL LATENTS.safetensors FOLDER
        The pictures of latents that smelt generate wrote, by the VAE of such a folder.

Needs numpy and safetensors; digits scikit-learn, the others torch, diffusers, transformers, sentencepiece and pillow.
"""
import argparse
import os

import numpy as np
from safetensors.numpy import save_file

DIGITS, LABEL_WIDTH, TRAIN, ROWS = 10, 16, 1500, 6
PATCH = 16  # pixels of an image token's side: 8 of a latent, 2 latents


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


def resolution_of(picture, size):
    """Height and width, multiples of PATCH, of about size x size pixels in the picture's shape."""
    ratio = (picture.height / picture.width)**0.5
    return max(round(size * ratio / PATCH), 1) * PATCH, max(round(size / ratio / PATCH), 1) * PATCH


def read_pixels(path, height, width):
    from PIL import Image, ImageOps
    picture = ImageOps.fit(Image.open(path).convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1


def encode_pictures(model, folder, out, size, tokens, batch):
    from PIL import Image
    encoders, buckets = Encoders(model, tokens), {}
    for name in sorted(os.listdir(folder)):
        stem, ending = os.path.splitext(os.path.join(folder, name))
        if ending.lower() in (".png", ".jpg", ".jpeg", ".webp"):
            with Image.open(stem + ending) as picture:
                buckets.setdefault(resolution_of(picture, size), []).append((stem + ending, open(stem + ".txt").read().strip()))
    os.makedirs(out, exist_ok=True)
    for (height, width), items in sorted(buckets.items()):
        for first in range(0, len(items), batch):
            some = items[first:first + batch]
            latents = [encoders.pictures(read_pixels(path, height, width)[None]) for path, _ in some]
            texts = [encoders.texts([text]) for _, text in some]
            tensors = {"latents": encoders.torch.cat(latents)} | {key: encoders.torch.cat([t[key] for t in texts]) for key in texts[0]}
            save(tensors, os.path.join(out, f"{height}x{width}-{first // batch:05d}.safetensors"))
        print(f"{height} x {width}: {len(items)} pictures")


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
            command.add_argument("--size", type=int, default=512)
            command.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()
    if given.command == "digits":
        encode_digits(given.out)
    elif given.command == "flux":
        encode_pictures(given.model, given.pictures, given.out, given.size, given.tokens, given.batch)
    elif given.command == "texts":
        encode_texts(given.model, given.texts, given.out, given.tokens)
    else:
        decode(given.model, given.latents, given.out)


main()
