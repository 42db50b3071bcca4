/* Sampling by Euler steps along the velocities of a model, like diffusers'
 * FlowMatchEulerDiscreteScheduler: times decrease from 1 (noise) to 0 (the image), and latents move
 * by velocity x difference of times. Owns nothing. Called by `smelt generate`. */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/scope.h"
#include "images/image_inputs.h"
#include "images/image_sampler.h"

/* Returns the shift of FLUX.1-dev: its logarithm grows linearly from 0.5 at 256 tokens to 1.15 at
 * 4,096 (calculate_shift of diffusers' FluxPipeline). */
static double shift_of(int64_t tokens) {
    const double low = 0.5, high = 1.15, few = 256, many = 4096;
    return exp(low + (high - low) * ((double)tokens - few) / (many - few));
}

void image_sampling_times(const ImageSampling *sampling, int64_t tokens, double *times) {
    double shift = sampling->shift > 0 ? sampling->shift : shift_of(tokens);
    for (int64_t i = 0; i <= sampling->steps; i++)
        times[i] = image_shift_time(shift, (double)(sampling->steps - i) / (double)sampling->steps);
}

/* Computes the velocity of the latents at a time; `rows` and `velocity` are scratch of the sizes of
 * the program's result and of the latents. */
static bool find_velocity(const Model *model, Executor *executor, double time, int64_t height, int64_t width, const float *latents,
    double *rows, float *velocity, Error *error) {
    int64_t count = graph_elements(model->graph, model->velocity);
    image_put_time(model, executor, 0, time);
    image_put_latents(model, executor, 0, height, width, latents);
    executor_run(executor);
    if (!executor_finish(executor, error)) return false;
    executor_read(executor, model->velocity, rows);
    SCOPED_FREE float *values = memory_allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = model->graph->precision == PRECISION_FP64 ? (float)rows[i] : ((const float *)rows)[i];
    image_take_latents(model, values, 0, height, width, velocity);
    return true;
}

bool image_sample(const Model *model, Executor *executor, const EncodingSet *set, int64_t sample, const ImageSampling *sampling,
    int64_t height, int64_t width, float *latents, Error *error) {
    int64_t count = graph_columns(model->graph, model->image.latents) / 4 * height * width;
    SCOPED_FREE double *times = memory_allocate((size_t)(sampling->steps + 1) * sizeof *times);
    SCOPED_FREE double *rows = memory_allocate((size_t)graph_elements(model->graph, model->velocity) * sizeof *rows);
    SCOPED_FREE float *velocity = memory_allocate((size_t)count * sizeof *velocity);
    image_sampling_times(sampling, height / 2 * (width / 2), times);
    image_put_prompt(model, executor, 0, set, sample, height, width, sampling->guidance);
    for (int64_t step = 0; step < sampling->steps; step++) {
        if (!find_velocity(model, executor, times[step], height, width, latents, rows, velocity, error)) return false;
        for (int64_t i = 0; i < count; i++) latents[i] += (float)(times[step + 1] - times[step]) * velocity[i];
    }
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(latents[i]))
            return error_set(error, ERROR_NUMERICS,
                "the latents of image %lld contain NaN or infinity: use another checkpoint, or check the encodings", (long long)sample);
    return true;
}
