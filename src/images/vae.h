/* Decodes latents to pixels. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* A decoder of latents: diffusers' AutoencoderKL. */
typedef struct Vae Vae;
enum { VAE_COLORS = 3 };
/* Opens a folder with config.json and diffusion_pytorch_model.safetensors that decodes latents of
 * `channels` channels. ERROR_CHECKPOINT, ERROR_USAGE. */
Vae *vae_open(const char *folder, int64_t channels, Error *error);
void vae_free(Vae *vae); /* NULL is allowed */
/* Returns the pixels per side of a latent. */
int64_t vae_scale(const Vae *vae);
/* Decodes latents [channels, height, width] to pixels [VAE_COLORS, scale x height, scale x width],
 * about -1 to 1. */
bool vae_decode(const Vae *vae, int64_t height, int64_t width, const float *latents, float *pixels, Error *error);
