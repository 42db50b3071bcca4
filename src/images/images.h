/* Images for models that make them. Encoders have already encoded pictures as latents and texts as
 * vectors; safetensors files hold the encodings (encodings.c). Training and evaluation add noise to
 * latents and pass them to a program (image_inputs.c). Sampling makes latents from noise
 * (image_sampler.c), a decoder makes pixels from latents (vae.c), and png.c writes them.
 *
 * In shapes, latents are [C, H, W]. A token of a model is the 2 x 2 latents at the same position in
 * all channels, so C = channels / 4, and an image has H / 2 x W / 2 tokens, row after row. A
 * sample's text is [T, text_width] and its pooled text [pooled_width]. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "model/model.h"

/* -- Encodings in files (encodings.c) -------------------------------------------------------------------------------- */

#define ENCODING_LATENTS "latents"                /* [samples, C, H, W], shifted and scaled as the model expects */
#define ENCODING_TEXT "prompt_embeds"             /* [samples, T, text_width] */
#define ENCODING_POOLED "pooled_prompt_embeds"    /* [samples, pooled_width] */

/* A file: a bucket of samples of one resolution. Tensors are fp32, bf16 or fp16. */
typedef struct EncodingFile {
    Safetensors file;
    char *path;                                  /* for messages; owned */
    const StoredTensor *latents, *text, *pooled; /* latents: NULL if the file has none */
    int64_t samples, height, width;              /* of latents; 0 if there are none */
} EncodingFile;

/* The samples of a file, or of all files of a folder in the order of their names. Files stay
 * mapped. */
typedef struct EncodingSet {
    char *path; /* as given, for messages; owned */
    EncodingFile *files;
    int64_t file_count, samples;
    int64_t *first_sample; /* [file_count + 1]: of each file in the set */
    int64_t most_tokens;   /* of an image; 0 if no file has latents */
    int64_t text_tokens;   /* of every sample */
} EncodingSet;

typedef enum EncodingUse {
    ENCODINGS_TRAIN, /* every file has latents, and texts of model.text_tokens */
    ENCODINGS_PROMPT /* texts suffice, of any length that all files have */
} EncodingUse;
/* Opens a .safetensors file or a folder of them; their shapes must fit the model. ERROR_DATA names
 * the file, the tensor and the expected shape. */
bool encodings_open(EncodingSet *set, const char *path, const ModelConfig *model, EncodingUse use, Error *error);
void encodings_close(EncodingSet *set); /* a zeroed or failed set is fine */
/* Returns the file of a sample; *index receives the sample's index in the file. */
const EncodingFile *encodings_find(const EncodingSet *set, int64_t sample, int64_t *index);
/* Returns whether a sample is free of NaN and infinity; otherwise `text` names the place: "latents
 * of sample 3 of FILE". */
bool encodings_are_finite(const EncodingSet *set, int64_t sample, char *text, size_t size);
/* Asks the system to read a sample, and returns at once. */
void encodings_prefetch(const EncodingSet *set, int64_t sample);
/* Computes a checksum of sizes and sampled bytes, which identifies a set without reading all of it.
 * ERROR_DATA. */
bool encodings_checksum(const EncodingSet *set, uint64_t *checksum, Error *error);

/* -- Inputs of a program (image_inputs.c) ---------------------------------------------------------------------------- */

/* The inputs of the pure functions that give a sample's noise and time. Ranks, microbatches and
 * earlier samples do not matter. */
typedef struct NoiseKey {
    uint64_t seed;
    int64_t sample, epoch; /* sample: in the set; epoch: how often the set was read before */
} NoiseKey;

/* Returns the training time sigma of a sample, from 0 (the image) to 1 (noise): logit-normal, then
 * shifted toward noise (Esser et al. 2024, arXiv 2403.03206, section 3.1 and equation 23). */
double image_training_time(const FlowConfig *flow, NoiseKey key);
/* Returns the shifted time: t / (t + (1 - t) / shift). */
double image_shift_time(double shift, double time);
/* Fills `noise` with standard normal values in the shape of a sample's latents, [C, H, W]. */
void image_noise(NoiseKey key, int64_t count, float *noise);

/* A sample in a program's inputs. */
typedef struct ImageSample {
    const EncodingSet *set;
    int64_t sample;
    NoiseKey key;
    double time, guidance; /* models without a guidance embedding ignore guidance */
} ImageSample;
/* Puts a sample at position `at` of the microbatch, with noised latents, (1 - time) x + time noise.
 * A program with a loss also gets the velocity noise - x and a weight of 1 / tokens for each token.
 * An image with fewer tokens than the program fills the last rows, and attention does not see the
 * other rows. */
void image_put_sample(const Model *model, Executor *executor, int64_t at, const ImageSample *sample);
/* Puts a sample with zero loss and zero gradients at position `at`. */
void image_put_nothing(const Model *model, Executor *executor, int64_t at);
/* Puts text, guidance and the grid of an image of height x width latents, for sampling: latents and
 * time follow step by step. */
void image_put_prompt(const Model *model, Executor *executor, int64_t at, const EncodingSet *set, int64_t sample, int64_t height,
    int64_t width, double guidance);
/* Puts the time of sample `at`. */
void image_put_time(const Model *model, Executor *executor, int64_t at, double time);
/* Put latents [C, height, width] as image tokens, and read them back from rows of channels like the
 * program's. */
void image_put_latents(const Model *model, Executor *executor, int64_t at, int64_t height, int64_t width, const float *latents);
void image_take_latents(const Model *model, const float *rows, int64_t at, int64_t height, int64_t width, float *latents);
/* Puts normal values in all real inputs, with a time of one half, and images as square as their
 * tokens allow: for measuring and comparing programs. */
void image_put_synthetic(const Model *model, Executor *executor);

/* -- Sampling (image_sampler.c) ------------------------------------------------------------------------------------- */

typedef struct ImageSampling {
    int64_t steps;
    double guidance;
    double shift; /* of times; 0: as in FLUX.1-dev, growing with the tokens of an image */
} ImageSampling;
/* Computes the times of a sampling, from 1 down to 0: [steps + 1]. */
void image_sampling_times(const ImageSampling *sampling, int64_t tokens, double *times);
/* Makes an image by Euler steps along the velocities of a MODEL_SCORE program of one sample, whose
 * weights are set. `latents` [C, height, width] are noise before and the image afterwards.
 * ERROR_NUMERICS if they are not finite, ERROR_DEVICE. */
bool image_sample(const Model *model, Executor *executor, const EncodingSet *set, int64_t sample, const ImageSampling *sampling,
    int64_t height, int64_t width, float *latents, Error *error);

/* -- Pictures (png.c, vae.c) ---------------------------------------------------------------------------------------- */

/* Pixels [channels, height, width], gray (1) or red, green, blue (3), from -1 (black) to 1. */
typedef struct Picture {
    int64_t channels, height, width;
    const float *pixels;
} Picture;
/* Writes pictures with equal channels as one PNG, `columns` side by side with a gray line in
 * between; each cell is as large as the largest picture. ERROR_CHECKPOINT. */
bool png_write(const char *path, const Picture *pictures, int64_t count, int64_t columns, Error *error);
bool png_is_file(const char *path);

/* A decoder of latents: diffusers' AutoencoderKL. */
typedef struct Vae Vae;
enum { VAE_COLOURS = 3 };
/* Opens a folder with config.json and diffusion_pytorch_model.safetensors that decodes latents of
 * `channels` channels. ERROR_CHECKPOINT, ERROR_USAGE. */
Vae *vae_open(const char *folder, int64_t channels, Error *error);
void vae_free(Vae *vae); /* NULL is allowed */
/* Returns the pixels per side of a latent. */
int64_t vae_scale(const Vae *vae);
/* Decodes latents [channels, height, width] to pixels [VAE_COLOURS, scale x height, scale x width],
 * about -1 to 1. */
bool vae_decode(const Vae *vae, int64_t height, int64_t width, const float *latents, float *pixels, Error *error);
