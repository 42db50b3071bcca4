"""Writes the golden vectors of tests/images: what diffusers makes of latents.

    python tests/golden/flux_images.py

flux_sampling/expected.safetensors: FluxPipeline with the transformer of tests/golden/flux_dev, four steps from `noise` [2, 2, 6, 10] with `prompt_embeds`
and `pooled_prompt_embeds` at guidance 3.5, to `latents`, by FLUX.1-dev's scheduler (`dev_...`) and FLUX.1-schnell's (`schnell_...`); and `packed`, the
noise as image tokens.
flux_vae/: a small random AutoencoderKL as diffusers saves it, without the encoder's tensors; expected.safetensors holds `latents` [1, 4, 3, 5] and the decoded `pixels`.
Needs torch and diffusers (bench/requirements.txt).
"""
import os

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, CHANNELS, HEIGHT, WIDTH, TEXT, STEPS, GUIDANCE = 2, 2, 6, 10, 7, 4, 3.5
SCHEDULERS = {"dev": dict(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256, max_image_seq_len=4096),
              "schnell": dict(shift=1.0, use_dynamic_shifting=False)}


def write_sampling():
    torch.manual_seed(3)
    model = FluxTransformer2DModel.from_pretrained(os.path.join(HERE, "flux_dev"))
    config = model.config
    noise = torch.randn(SAMPLES, CHANNELS, HEIGHT, WIDTH)
    text, pooled = torch.randn(SAMPLES, TEXT, config.joint_attention_dim), torch.randn(SAMPLES, config.pooled_projection_dim)
    packed = FluxPipeline._pack_latents(noise, SAMPLES, CHANNELS, HEIGHT, WIDTH)
    expected = {"noise": noise, "prompt_embeds": text, "pooled_prompt_embeds": pooled, "packed": packed}
    for name, settings in SCHEDULERS.items():
        pipeline = FluxPipeline(FlowMatchEulerDiscreteScheduler(**settings), None, None, None, None, None, model)
        pipeline.set_progress_bar_config(disable=True)
        rows = pipeline(prompt_embeds=text, pooled_prompt_embeds=pooled, height=8 * HEIGHT, width=8 * WIDTH, latents=packed, num_inference_steps=STEPS,
                        guidance_scale=GUIDANCE, output_type="latent").images
        expected[f"{name}_latents"] = FluxPipeline._unpack_latents(rows, 8 * HEIGHT, 8 * WIDTH, 8)
        expected[f"{name}_times"] = pipeline.scheduler.sigmas
    folder = os.path.join(HERE, "flux_sampling")
    os.makedirs(folder, exist_ok=True)
    save_file({key: value.detach().contiguous() for key, value in expected.items()}, os.path.join(folder, "expected.safetensors"))
    print(f"sampling: latents of dev {expected['dev_latents'].abs().mean():.4f}, of schnell {expected['schnell_latents'].abs().mean():.4f}")


def write_vae():
    torch.manual_seed(4)
    vae = AutoencoderKL(down_block_types=("DownEncoderBlock2D", ) * 3, up_block_types=("UpDecoderBlock2D", ) * 3, block_out_channels=(4, 4, 8),
                        layers_per_block=1, latent_channels=4, norm_num_groups=2, scaling_factor=0.3611, shift_factor=0.1159, use_post_quant_conv=True)
    for tensor in vae.parameters():
        if tensor.dim() == 1:
            tensor.data += torch.randn_like(tensor) * 0.2
    latents = torch.randn(1, 4, 3, 5)
    with torch.no_grad():
        pixels = vae.decode(latents / vae.config.scaling_factor + vae.config.shift_factor).sample
    folder = os.path.join(HERE, "flux_vae")
    vae.save_pretrained(folder)
    decoder = {key: value for key, value in vae.state_dict().items() if key.startswith(("decoder.", "post_quant_conv."))}
    save_file(decoder, os.path.join(folder, "diffusion_pytorch_model.safetensors"))
    save_file({"latents": latents, "pixels": pixels}, os.path.join(folder, "expected.safetensors"))
    print(f"vae: pixels {tuple(pixels.shape)}, deviation {pixels.std():.4f}")


write_sampling()
write_vae()
