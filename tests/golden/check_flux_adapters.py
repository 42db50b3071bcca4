"""Trains adapters of a small FLUX in smelt and loads the written file with diffusers' load_lora_weights, and by ComfyUI's table of names.

    python tests/golden/check_flux_adapters.py build/smelt [COMFYUI]

Every weight with the adapters must be that of the folder that smelt merges them into, in each of its layers, and so must the outputs. With COMFYUI, a folder
of its sources, each tensor must also be one that comfy/utils.py (flux_to_diffusers) knows, of the shape of its part of the weight there. Needs torch,
diffusers and peft.
"""
import ast
import os
import subprocess
import sys
import tempfile

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from safetensors.torch import load_file, save_file

SMELT = os.path.abspath(sys.argv[1])
COMFYUI = sys.argv[2] if len(sys.argv) > 2 else None
MODEL = dict(in_channels=8, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=12, pooled_projection_dim=10,
             axes_dims_rope=(8, 4, 4), guidance_embeds=True)
WIDTH, RANK, TOKENS, MOST = 64, 4, 3, 1e-6


def smelt(*words):
    done = subprocess.run([SMELT, *words, "device=cpu"] if words[0] == "train" else [SMELT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def write_encodings(path):
    save_file({"latents": torch.randn(8, 2, 4, 4), "prompt_embeds": torch.randn(8, TOKENS, 12), "pooled_prompt_embeds": torch.randn(8, 10)}, path)


def outputs(model):
    torch.manual_seed(5)
    with torch.no_grad():
        return model(hidden_states=torch.randn(1, 4, 8), encoder_hidden_states=torch.randn(1, TOKENS, 12), pooled_projections=torch.randn(1, 10),
                     timestep=torch.tensor([0.4]), img_ids=torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]).float(), txt_ids=torch.zeros(TOKENS, 3),
                     guidance=torch.tensor([3.5])).sample


def check_comfyui(tensors):
    tree = ast.parse(open(os.path.join(COMFYUI, "comfy", "utils.py")).read())
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in ("flux_to_diffusers", "swap_scale_shift")]
    names = {"torch": torch}
    exec(compile(ast.Module(wanted, []), "utils.py", "exec"), names)
    table = names["flux_to_diffusers"](dict(depth=2, depth_single_blocks=2, hidden_size=WIDTH))
    places = {"transformer." + name.removesuffix(".weight"): place for name, place in table.items() if name.endswith(".weight")}
    for name, tensor in tensors.items():
        module = name.removesuffix(".lora_A.weight").removesuffix(".lora_B.weight")
        place = places[module]
        if name.endswith("lora_B.weight") and isinstance(place, tuple):
            assert tensor.shape[0] == place[1][2], name


def check(place, start, settings):
    run, merged, adapters = (os.path.join(place, name) for name in ("run", "merged", "adapters"))
    smelt("train", "init=" + start, "data.train=" + os.path.join(place, "e.safetensors"), f"model.text_tokens={TOKENS}", f"data.length={TOKENS + 4}",
          "batch.sequences=2", f"batch.tokens={2 * (TOKENS + 4)}", "steps=5", "precision=fp32", "optimizer.lr=2e-2", "run=" + run, f"lora.rank={RANK}", *settings)
    smelt("convert", run, merged)
    smelt("convert", run, adapters, "adapter=true")
    pipeline = FluxPipeline(FlowMatchEulerDiscreteScheduler(), None, None, None, None, None, FluxTransformer2DModel.from_pretrained(start))
    before = outputs(pipeline.transformer)
    pipeline.load_lora_weights(adapters)
    target = FluxTransformer2DModel.from_pretrained(merged)
    moved, difference = (outputs(target) - before).abs().max().item(), (outputs(target) - outputs(pipeline.transformer)).abs().max().item()
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()
    weights, changed = target.state_dict(), 0
    original = FluxTransformer2DModel.from_pretrained(start).state_dict()
    for name, tensor in pipeline.transformer.state_dict().items():
        assert (tensor - weights[name]).abs().max() <= MOST, name
        changed += not torch.equal(original[name], weights[name])
    tensors = load_file(os.path.join(adapters, "pytorch_lora_weights.safetensors"))
    assert 2 * changed == len(tensors) and moved > 1e-3 and difference <= 1e-5, (changed, len(tensors), moved, difference)
    if COMFYUI:
        check_comfyui(tensors)
    print(f"{' '.join(settings)}: {changed} weights agree; outputs moved by {moved:.3g} and differ by {difference:.1e}")


torch.manual_seed(1)
for settings in (["lora.alpha=12", "lora.targets=attention"], ["lora.alpha=4", "lora.targets=all"], ["lora.alpha=3", "lora.rslora=true", "lora.targets=mlp"]):
    with tempfile.TemporaryDirectory() as place:
        FluxTransformer2DModel(**MODEL).save_pretrained(os.path.join(place, "start"))
        write_encodings(os.path.join(place, "e.safetensors"))
        check(place, os.path.join(place, "start"), settings)
