/* Makes latents of images from noise. */
#pragma once

#include "images/encodings.h"
#include "model/model.h"

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
