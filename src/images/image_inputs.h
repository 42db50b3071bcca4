/* Inputs of programs that train on images or make them: latents with noise, times, texts. */
#pragma once

#include "images/encodings.h"
#include "model/model.h"

/* The inputs of the pure functions that give a sample's noise and time. Ranks, microbatches and
 * earlier samples do not matter. */
typedef struct NoiseKey {
    uint64_t seed;
    int64_t sample, epoch; /* sample: in the set; epoch: how often the set was read before */
} NoiseKey;

/* Returns the training time sigma of a sample, from 0 (the image) to 1 (noise): logit-normal, then
 * shifted toward noise (Esser et al. 2024, arXiv 2403.03206, section 3.1 and equation 23). */
double image_training_time(const FlowConfig *flow, NoiseKey key);
/* Returns whether a sample of a training gets the empty caption: flow->caption_dropout of all samples do. */
bool image_drops_caption(const FlowConfig *flow, NoiseKey key);
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
    bool empty;            /* the text is replaced by the empty one */
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
