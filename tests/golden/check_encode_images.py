"""Checks tools/encode-images.py on pictures, with stand-ins for the encoders that name what they got, and trains smelt on the result.

    python tests/golden/check_encode_images.py build/smelt

Captions come from files beside pictures, CSV and JSON lines; pictures are turned as their EXIF data say; every resolution fits smelt and the picture's shape;
pictures without a caption are refused unless there is a trigger word. Needs numpy, torch, safetensors and pillow.
"""
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

SMELT = os.path.abspath(sys.argv[1])
SCRIPT = subprocess.run([SMELT, "train", "--example", "encode-images.py"], check=True, capture_output=True, text=True).stdout
script = {"__name__": "script"}
exec(compile(SCRIPT.replace("\nmain()\n", "\n"), "encode-images.py", "exec"), script)
TOKENS, WIDTH, POOLED = 3, 12, 10
DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs/flux-digits.yaml")


class Encoders:
    torch = torch
    seen = []

    def __init__(self, folder, tokens):
        pass

    def texts(self, texts):
        code = float(sum(texts[0].encode()))
        Encoders.seen.append(texts[0])
        return {"prompt_embeds": torch.full((1, TOKENS, WIDTH), code), "pooled_prompt_embeds": torch.full((1, POOLED), code)}

    def pictures(self, pixels):
        assert abs(pixels).max() <= 1
        return torch.from_numpy(pixels)[:, :2, ::8, ::8].contiguous()


script["Encoders"] = Encoders


def encode(folder, out, trigger="", size=64):
    Encoders.seen = []
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        script["encode_pictures"]("model", folder, out, trigger, size, TOKENS, 4)
    return {name: load_file(os.path.join(out, name)) for name in sorted(os.listdir(out))}, said.getvalue()


def refused(folder, part, **more):
    try:
        encode(folder, folder + "-none", **more)
    except SystemExit as error:
        assert part in str(error), error
        return
    raise AssertionError(part)


def save_picture(folder, name, width, height, **more):
    picture = Image.new("RGB", (width, height), "red")
    picture.paste("blue", (0, 0, width // 2, height))
    picture.save(os.path.join(folder, name), **more)


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


for _ in range(20000):
    width, height = random.randint(32, 6000), random.randint(32, 6000)
    h, w = script["resolution_of"](width, height, 1024)
    assert h % 16 == 0 and w % 16 == 0 and h * w <= 1024**2 and max(h, w) <= 2048
    assert max(width, height) / min(width, height) > 3.9 or (abs(h / w / (height / width) - 1) < 0.05 and h * w >= 0.94 * 1024**2), (width, height, h, w)

with tempfile.TemporaryDirectory() as place:
    os.chdir(place)
    for folder in ("texts", "csv", "lines"):
        os.mkdir(folder)
        save_picture(folder, "a.png", 128, 128)
        save_picture(folder, "b.JPG", 200, 100)
        turned = Image.Exif()
        turned[0x112] = 6
        save_picture(folder, "c.webp", 200, 100, exif=turned)
    write("texts", "a.txt", "\ufeffa cat, sitting\n")
    write("texts", "b.caption", "sks dog")
    refused("texts", "1 of 3 pictures of texts have no caption; the first is c.webp")
    write("csv", "metadata.csv", 'file_name,text\na.png,"a cat, sitting"\nb.JPG,sks dog\nc.webp,""\n')
    refused("csv", "a row lacks text")
    write("csv", "metadata.csv", 'file_name,text\na.png,"a cat, sitting"\nb.JPG,sks dog\n')
    write("lines", "captions.jsonl", "".join(json.dumps(row) + "\n" for row in ({"image": "a.png", "caption": "a cat, sitting"}, {"image": "b.JPG", "caption": "sks dog"})))
    for folder in ("texts", "csv", "lines"):
        files, said = encode(folder, folder + "-out", trigger="sks")
        assert sorted(Encoders.seen) == ["", "sks", "sks dog", "sks, a cat, sitting"], Encoders.seen
        assert list(files) == ["48x80-00000.safetensors", "64x64-00000.safetensors", "80x48-00000.safetensors"], list(files)
        assert "data.length=19, model.text_tokens=3" in said, said
        turned = files["80x48-00000.safetensors"]["latents"][0, 0]
        assert (turned[0] < 0).all() and (turned[-1] > 0).all()  # blue is above, red below
        for file in files.values():
            assert (file["empty_prompt_embeds"] == 0).all() and file["empty_prompt_embeds"].shape == (1, TOKENS, WIDTH)
    write("lines", "captions.jsonl", '{"image": "d.png", "caption": "x"}\n')
    refused("lines", "names d.png, which is not a picture of lines")
    subprocess.run([SMELT, "train", "data.train=texts-out", "model.family=flux", "model.layers=3", "model.single_layers=1", "model.width=32", "model.heads=2",
                    "model.kv_heads=2", "model.ffn=128", "model.channels=8", f"model.text_tokens={TOKENS}", f"model.text_width={WIDTH}", f"model.pooled_width={POOLED}",
                    "model.rope_first=8", "model.norm_epsilon=1e-6", "data.length=19", "batch.sequences=1", "batch.tokens=19", "precision=fp32", "steps=6", "run=r",
                    "device=cpu", "flow.caption_dropout=0.5"], check=True, capture_output=True)
    for words in (["train", "data.train=texts", "model.family=llama", "run=s", "device=cpu"], ["train", DIGITS, "data.train=texts/", "run=s", "device=cpu"], ["data", "pack", "csv", "packed"]):
        answer = subprocess.run([SMELT, *words], capture_output=True, text=True)
        assert answer.returncode == 2 and "python3 encode-images.py flux FLUX.1-dev" in answer.stderr and "-encodings" in answer.stderr, answer.stderr
print("captions, resolutions and a training on them: as expected")
