"""Writes the models of tests/model/test_flux.c: small random transformers of FLUX as diffusers saves them, and what PyTorch makes of them in float32.

    python tests/golden/flux.py [FOLDER ...]

FOLDER/config.json and diffusion_pytorch_model.safetensors are what save_pretrained writes. expected.safetensors holds noised latents [S, image tokens,
channels], text [S, text tokens, width], pooled [S, width], sigma [S], guidance [S], target like latents; the velocity; the mean squared error to the
target; gradient/NAME; and the losses before each of ten steps of AdamW on the same inputs. The image tokens are a grid of HEIGHT x WIDTH.
Needs torch and diffusers (bench/requirements.txt).
"""
import os
import sys

import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, HEIGHT, WIDTH, TEXT, STEPS, LR, DECAY = 2, 3, 5, 7, 10, 0.003, 0.1
COMMON = dict(in_channels=8, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=12, pooled_projection_dim=10, axes_dims_rope=(4, 2, 2))
FOLDERS = {
    "flux_dev": dict(num_layers=2, num_single_layers=2, guidance_embeds=True),
    "flux_schnell": dict(num_layers=1, num_single_layers=1, guidance_embeds=False),
}


def build(settings):
    """Gains, biases and modulations differ from one, zero and each other, or they would hide mistakes."""
    torch.manual_seed(1)
    model = FluxTransformer2DModel(**(COMMON | settings))
    for tensor in model.parameters():
        if tensor.dim() == 1:
            tensor.data += torch.randn_like(tensor) * 0.2
        else:
            tensor.data = torch.randn_like(tensor) * 0.8 / tensor.shape[1] ** 0.5
    return model


def make_inputs():
    torch.manual_seed(2)
    image, channels = HEIGHT * WIDTH, COMMON["in_channels"]
    return {"latents": torch.randn(SAMPLES, image, channels), "text": torch.randn(SAMPLES, TEXT, COMMON["joint_attention_dim"]),
            "pooled": torch.randn(SAMPLES, COMMON["pooled_projection_dim"]), "sigma": torch.tensor([0.3, 0.8125]), "guidance": torch.tensor([3.5, 1.0]),
            "target": torch.randn(SAMPLES, image, channels)}


def run(model, x):
    places = torch.zeros(HEIGHT, WIDTH, 3)
    places[..., 1] += torch.arange(HEIGHT)[:, None]
    places[..., 2] += torch.arange(WIDTH)[None, :]
    velocity = model(x["latents"], x["text"], x["pooled"], x["sigma"], places.reshape(-1, 3), torch.zeros(TEXT, 3),
                     x["guidance"] if model.config.guidance_embeds else None, return_dict=False)[0]
    return velocity, torch.nn.functional.mse_loss(velocity, x["target"])


def train(settings, x):
    model, losses = build(settings), []
    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == decayed], "weight_decay": DECAY * decayed} for decayed in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(STEPS):
        model.zero_grad()
        loss = run(model, x)[1]
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses)


def write(name, settings):
    folder, model, x = os.path.join(HERE, name), build(settings), make_inputs()
    velocity, loss = run(model, x)
    loss.backward()
    expected = x | {"velocity": velocity.detach(), "loss": loss.detach().reshape(1), "adamw_losses": train(settings, x)}
    expected |= {"gradient/" + key: p.grad for key, p in model.named_parameters()}
    model.save_pretrained(folder)
    save_file({key: value.contiguous() for key, value in expected.items()}, os.path.join(folder, "expected.safetensors"))
    print(f"{name:12s} {sum(p.numel() for p in model.parameters()):7d} parameters, loss {loss:.5f}, AdamW {expected['adamw_losses'][-1]:.5f}")


for name in sys.argv[1:] or FOLDERS:
    write(name, FOLDERS[name])
