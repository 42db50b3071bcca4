/* Images for models that make them. Encoders have turned pictures into latents and texts into vectors before; files of
 * safetensors keep what they made (encodings.c). Training and evaluation noise latents and hand them to a program
 * (image_inputs.c), sampling makes latents from noise (image_sampler.c), a decoder turns those into pixels (vae.c), and
 * png.c writes them.
 *
 * In shapes, latents are [C, H, W]; a token of a model is the 2 x 2 latents at the same place of all channels, so that
 * C = channels / 4, and an image has H / 2 x W / 2 tokens, row after row. A sample's text is [T, text_width] and its
 * pooled text [pooled_width]. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "model/model.h"

/* -- Encodings in files (encodings.c) -------------------------------------------------------------------------------- */

#define ENCODING_LATENTS "latents"                /* [samples, C, H, W], shifted and scaled as the model wants them */
#define ENCODING_TEXT "prompt_embeds"             /* [samples, T, text_width] */
#define ENCODING_POOLED "pooled_prompt_embeds"    /* [samples, pooled_width] */

/* A file: a bucket of samples of one resolution. Tensors are of fp32, bf16 or fp16. */
typedef struct EncodingFile {
    Safetensors file;
    char *path;                                  /* for messages; owned */
    const StoredTensor *latents, *text, *pooled; /* latents NULL where the file has none */
    int64_t samples, height, width;              /* of latents; 0 where there are none */
} EncodingFile;

/* The samples of a file, or of all files of a folder in order of name. Files stay mapped. */
typedef struct EncodingSet {
    char *path; /* as given, for messages; owned */
    EncodingFile *files;
    int64_t file_count, samples;
    int64_t *first_sample; /* [file_count + 1]: of each file in the set */
    int64_t most_tokens;   /* of an image; 0 where no file has latents */
    int64_t text_tokens;   /* of every sample */
} EncodingSet;

typedef enum EncodingUse {
    ENCODINGS_TRAIN, /* every file has latents, and texts of model.text_tokens */
    ENCODINGS_PROMPT /* texts alone will do, of any length that all files have */
} EncodingUse;
/* Opens a .safetensors file or a folder of them, whose shapes must be those that the model takes. ERROR_DATA names file,
 * tensor, and what it should be. */
bool encodings_open(EncodingSet *set, const char *path, const ModelConfig *model, EncodingUse use, Error *error);
void encodings_close(EncodingSet *set); /* also of a zeroed or failed one */
/* The file that has a sample; *index receives which one of the file's it is. */
const EncodingFile *encodings_find(const EncodingSet *set, int64_t sample, int64_t *index);
/* Whether a sample has no NaN or infinity; else `text` says where: "latents of sample 3 of FILE". */
bool encodings_are_finite(const EncodingSet *set, int64_t sample, char *text, size_t size);
/* Asks the system to read a sample, and returns at once. */
void encodings_prefetch(const EncodingSet *set, int64_t sample);
/* A checksum of sizes and of samples of the bytes, the content of a set without reading it whole. ERROR_DATA. */
bool encodings_checksum(const EncodingSet *set, uint64_t *checksum, Error *error);

/* -- Inputs of a program (image_inputs.c) ---------------------------------------------------------------------------- */

/* What decides a sample's noise and its time, a pure function: ranks, microbatches and what came before do not enter. */
typedef struct NoiseKey {
    uint64_t seed;
    int64_t sample, epoch; /* in the set; how often the set was read before */
} NoiseKey;

/* The time sigma of a sample in training, from 0, the image, to 1, noise: logit-normal, then shifted towards noise (Esser et
 * al. 2024, arXiv 2403.03206, section 3.1 and equation 23). */
double image_training_time(const FlowConfig *flow, NoiseKey key);
/* t / (t + (1 - t) / shift): what a shift makes of a time. */
double image_shift_time(double shift, double time);
/* Standard normal values like the latents of a sample, [C, H, W]. */
void image_noise(NoiseKey key, int64_t count, float *noise);

/* A sample in a program's inputs. */
typedef struct ImageSample {
    const EncodingSet *set;
    int64_t sample;
    NoiseKey key;
    double time, guidance; /* guidance is not used by models without an embedding of it */
} ImageSample;
/* Puts a sample with noised latents, (1 - time) x + time noise, and, in a program with a loss, the velocity noise - x and a
 * weight of 1 / tokens for each token, in place of sample `at` of the microbatch. An image of fewer tokens than there is
 * room for fills the last ones, and attention does not see the others. */
void image_put_sample(const Model *model, Executor *executor, int64_t at, const ImageSample *sample);
/* Puts in place of sample `at` one whose loss and gradients are 0. */
void image_put_nothing(const Model *model, Executor *executor, int64_t at);
/* Puts text, guidance and the grid of an image of height x width latents, for sampling: latents and time come step by
 * step. */
void image_put_prompt(const Model *model, Executor *executor, int64_t at, const EncodingSet *set, int64_t sample, int64_t height,
    int64_t width, double guidance);
/* Puts the time of sample `at`. */
void image_put_time(const Model *model, Executor *executor, int64_t at, double time);
/* Puts latents [C, height, width] as image tokens, and reads them back from rows of channels like those of the program. */
void image_put_latents(const Model *model, Executor *executor, int64_t at, int64_t height, int64_t width, const float *latents);
void image_take_latents(const Model *model, const float *rows, int64_t at, int64_t height, int64_t width, float *latents);
/* Normal values in all real inputs, half of the way from noise, and images as square as their tokens allow: for
 * measuring and comparing programs. */
void image_put_synthetic(const Model *model, Executor *executor);

/* -- Sampling (image_sampler.c) ------------------------------------------------------------------------------------- */

typedef struct ImageSampling {
    int64_t steps;
    double guidance;
    double shift; /* of times; 0: that of FLUX.1-dev, which grows with the tokens of an image */
} ImageSampling;
/* The times of a sampling, from 1 down to 0: [steps + 1]. */
void image_sampling_times(const ImageSampling *sampling, int64_t tokens, double *times);
/* Makes an image by Euler steps along the velocities of a MODEL_SCORE program of one sample, whose weights are in place:
 * `latents` [C, height, width] are noise before, the image after. ERROR_NUMERICS when they are not finite, ERROR_DEVICE. */
bool image_sample(const Model *model, Executor *executor, const EncodingSet *set, int64_t sample, const ImageSampling *sampling,
    int64_t height, int64_t width, float *latents, Error *error);

/* -- Pictures (png.c, vae.c) ---------------------------------------------------------------------------------------- */

/* Pixels [channels, height, width], gray (1) or red, green, blue (3), from -1, black, to 1. */
typedef struct Picture {
    int64_t channels, height, width;
    const float *pixels;
} Picture;
/* Writes pictures of one number of channels as one PNG, `columns` beside each other with a gray line between, each in a cell
 * as large as the largest of them. ERROR_CHECKPOINT. */
bool png_write(const char *path, const Picture *pictures, int64_t count, int64_t columns, Error *error);

/* A decoder of latents: diffusers' AutoencoderKL. */
typedef struct Vae Vae;
enum { VAE_COLOURS = 3 };
/* Opens a folder with config.json and diffusion_pytorch_model.safetensors, which decodes latents of so many channels.
 * ERROR_CHECKPOINT, ERROR_USAGE. */
Vae *vae_open(const char *folder, int64_t channels, Error *error);
void vae_free(Vae *vae); /* NULL is allowed */
/* Pixels of a latent's side. */
int64_t vae_scale(const Vae *vae);
/* From latents [channels, height, width] to pixels [VAE_COLOURS, scale x height, scale x width], about -1 to 1. */
bool vae_decode(const Vae *vae, int64_t height, int64_t width, const float *latents, float *pixels, Error *error);
