/* A libFuzzer entry for folders of decoders: config.json up to the first NUL, the tensors behind it. The folder is refused, or
 * decodes one latent, as it did when it was opened. */
#include "fuzz.h"
#include "images/vae.h"

FUZZ(vae) {
    enum { CHANNELS = 4, MOST_SCALE = 128 };
    static float pixels[VAE_COLORS * MOST_SCALE * MOST_SCALE];
    const float latents[CHANNELS] = {1, -1, 0.5f, 0};
    const uint8_t *end = memchr(data, 0, size);
    size_t length = end ? (size_t)(end - data) : size;
    Error error = {0};
    fuzz_file("config.json", data, length);
    fuzz_file("diffusion_pytorch_model.safetensors", data + length + (end != NULL), size - length - (end != NULL));
    Vae *vae = vae_open(fuzz_folder(), CHANNELS, &error);
    if (vae) require(vae_scale(vae) >= 1 && vae_scale(vae) <= MOST_SCALE && vae_decode(vae, 1, 1, latents, pixels, &error));
    else require_line(&error);
    vae_free(vae);
}
