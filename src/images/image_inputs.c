/* From encodings to the inputs of an image program: noise, time, positions, weights. Noise and time
 * depend only on seed, sample and epoch, so a run has the same bits on any number of ranks and
 * after any stop. Owns nothing. Called by training, evaluation, sampling and benchmarks. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "images/image_inputs.h"

enum { PATCH = 2 /* rows and columns of latents per token */ };

/* -- Noise and time ------------------------------------------------------------------------------------------------ */

static uint64_t derive(uint64_t seed, int64_t index) {
    RngBits bits = rng_bits(seed, RNG_STREAM_NOISE, (uint64_t)index);
    return (uint64_t)bits.word[0] << 32 | bits.word[1];
}

static uint64_t key_seed(NoiseKey key) { return derive(derive(key.seed, key.epoch), key.sample); }

void image_noise(NoiseKey key, int64_t count, float *noise) { rng_normals(key_seed(key), RNG_STREAM_NOISE, 0, count, noise); }

double image_shift_time(double shift, double time) { return shift * time / (1 + (shift - 1) * time); }

double image_training_time(const FlowConfig *flow, NoiseKey key) {
    double logit = flow->mean + flow->deviation * rng_normal(key_seed(key), RNG_STREAM_TIME, 0);
    return image_shift_time(flow->shift, 1 / (1 + exp(-logit)));
}

bool image_drops_caption(const FlowConfig *flow, NoiseKey key) {
    return rng_uniform(key_seed(key), RNG_STREAM_CAPTION, 0) < flow->caption_dropout;
}

/* -- Rows of a sample ---------------------------------------------------------------------------------------------- */

/* room returns the number of image tokens per sample of the program. first_token returns the
 * first token that an image of height x width latents fills. */
static int64_t room(const Model *model) { return graph_rows(model->graph, model->image.latents) / model->sequences; }

static int64_t first_token(const Model *model, int64_t height, int64_t width) {
    int64_t tokens = height / PATCH * (width / PATCH);
    assert(tokens <= room(model));
    return room(model) - tokens;
}

static int64_t channels_of(const Model *model) { return graph_columns(model->graph, model->image.latents); }

/* Returns the index of the latent (c, y, x) of an image [C, height, width] in its tokens [H / 2 x W
 * / 2, 4 C]: channel, then row and column in the token. */
static int64_t place_in_tokens(int64_t c, int64_t y, int64_t x, int64_t width, int64_t channels) {
    int64_t token = y / PATCH * (width / PATCH) + x / PATCH;
    return token * channels + (c * PATCH + y % PATCH) * PATCH + x % PATCH;
}

static void to_tokens(const float *latents, int64_t height, int64_t width, int64_t channels, float *tokens) {
    for (int64_t c = 0; c < channels / (PATCH * PATCH); c++)
        for (int64_t y = 0; y < height; y++)
            for (int64_t x = 0; x < width; x++) tokens[place_in_tokens(c, y, x, width, channels)] = *latents++;
}

static void from_tokens(const float *tokens, int64_t height, int64_t width, int64_t channels, float *latents) {
    for (int64_t c = 0; c < channels / (PATCH * PATCH); c++)
        for (int64_t y = 0; y < height; y++)
            for (int64_t x = 0; x < width; x++) *latents++ = tokens[place_in_tokens(c, y, x, width, channels)];
}

/* Fills `rows` rows of an input from row `first` with a value. */
static void fill_input(const Model *model, Executor *executor, TensorId tensor, int64_t first, int64_t rows, float value) {
    int64_t columns = graph_columns(model->graph, tensor);
    SCOPED_FREE float *row = memory_allocate((size_t)columns * sizeof *row);
    for (int64_t i = 0; i < columns; i++) row[i] = value;
    for (int64_t r = first; r < first + rows; r++) executor_set_values(executor, tensor, r * columns, row, columns);
}

/* Fills all rows of sample `at` of an input with zeros. */
static void clear(const Model *model, Executor *executor, TensorId tensor, int64_t at) {
    int64_t rows = graph_rows(model->graph, tensor) / model->sequences;
    fill_input(model, executor, tensor, at * rows, rows, 0);
}

/* Copies row `row` of a stored tensor [samples, ...] to sample `at` of an input in the COMPUTE
 * type. */
static void put_stored(const Model *model, Executor *executor, TensorId tensor, int64_t at, const StoredTensor *stored, int64_t row) {
    enum { CHUNK = 4096 };
    int64_t count = graph_elements(model->graph, tensor) / model->sequences;
    if (stored->type == STORED_BF16 && precision_is_bf16(model->graph->precision)) { /* copied unchanged, which is the common case */
        uint16_t *to = executor_tensor(executor, tensor);
        memcpy(to + at * count, (const char *)stored->data + row * count * (int64_t)sizeof *to, (size_t)count * sizeof *to);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < count; first += CHUNK) {
        float values[CHUNK];
        int64_t some = count - first < CHUNK ? count - first : CHUNK;
        stored_to_floats(stored, row * count + first, some, values);
        executor_set_values(executor, tensor, at * count + first, values, some);
    }
}

/* -- Parts of a sample --------------------------------------------------------------------------------------------- */

static void put_features(Executor *executor, TensorId tensor, int64_t at, double value) {
    float features[IMAGE_TIME_WIDTH];
    image_time_features(value, features);
    executor_set_values(executor, tensor, at * IMAGE_TIME_WIDTH, features, IMAGE_TIME_WIDTH);
}

void image_put_time(const Model *model, Executor *executor, int64_t at, double time) {
    put_features(executor, model->image.time, at, time);
}

static void put_guidance(const Model *model, Executor *executor, int64_t at, double guidance) {
    if (model->image.guidance) put_features(executor, model->image.guidance, at, guidance);
}

/* The image is the start of a sequence; each row before the image is a sequence of one row. */
static void put_grid(const Model *model, Executor *executor, int64_t at, int64_t height, int64_t width) {
    int32_t *places = executor_tensor(executor, model->image.places), *positions = executor_tensor(executor, model->image.positions);
    int64_t first = first_token(model, height, width), columns = width / PATCH;
    for (int64_t i = 0; i < model->length; i++) {
        int64_t token = i - first, row = at * model->length + i;
        bool image = token >= 0 && i < room(model);
        positions[row] = (int32_t)(token < 0 ? 0 : token);
        places[row] = (int32_t)(image ? token / columns * IMAGE_GRID + token % columns : 0);
    }
}

static void put_text_encoding(const Model *model, Executor *executor, int64_t at, const EncodingSet *set, int64_t sample) {
    int64_t row;
    const EncodingFile *file = encodings_find(set, sample, &row);
    put_stored(model, executor, model->image.text, at, file->text, row);
    put_stored(model, executor, model->image.pooled, at, file->pooled, row);
}

static void put_empty_text(const Model *model, Executor *executor, int64_t at, const EncodingFile *file) {
    put_stored(model, executor, model->image.text, at, file->empty_text, 0);
    put_stored(model, executor, model->image.pooled, at, file->empty_pooled, 0);
}

/* Puts image tokens [H / 2 x W / 2, channels] into an input. */
static void put_text_tokens(
    const Model *model, Executor *executor, TensorId tensor, int64_t at, int64_t height, int64_t width, const float *latents) {
    int64_t channels = channels_of(model), first = first_token(model, height, width), count = (room(model) - first) * channels;
    SCOPED_FREE float *tokens = memory_allocate((size_t)count * sizeof *tokens);
    to_tokens(latents, height, width, channels, tokens);
    executor_set_values(executor, tensor, (at * room(model) + first) * channels, tokens, count);
}

void image_put_latents(const Model *model, Executor *executor, int64_t at, int64_t height, int64_t width, const float *latents) {
    put_text_tokens(model, executor, model->image.latents, at, height, width, latents);
}

void image_take_latents(const Model *model, const float *rows, int64_t at, int64_t height, int64_t width, float *latents) {
    int64_t channels = channels_of(model);
    from_tokens(rows + (at * room(model) + first_token(model, height, width)) * channels, height, width, channels, latents);
}

/* Sets the weight of each token from `first` on; earlier tokens have weight 0. */
static void put_weights(const Model *model, Executor *executor, int64_t at, int64_t first) {
    int64_t begin = at * room(model), tokens = room(model) - first;
    fill_input(model, executor, model->image.weights, begin, first, 0);
    fill_input(model, executor, model->image.weights, begin + first, tokens, 1 / (float)tokens);
}

/* -- Samples ------------------------------------------------------------------------------------------------------- */

/* Zeroes the first rows, which an image with fewer tokens leaves unused. They hold numbers of
 * another sample, and a NaN would not stay in its row. */
static void clear_images(const Model *model, Executor *executor, int64_t at, int64_t rows) {
    fill_input(model, executor, model->image.latents, at * room(model), rows, 0);
    if (model->image.target) fill_input(model, executor, model->image.target, at * room(model), rows, 0);
}

void image_put_prompt(const Model *model, Executor *executor, int64_t at, const EncodingSet *set, int64_t sample, int64_t height,
    int64_t width, double guidance) {
    clear_images(model, executor, at, first_token(model, height, width));
    put_grid(model, executor, at, height, width);
    put_text_encoding(model, executor, at, set, sample);
    put_guidance(model, executor, at, guidance);
}

void image_put_sample(const Model *model, Executor *executor, int64_t at, const ImageSample *sample) {
    int64_t row;
    const EncodingFile *file = encodings_find(sample->set, sample->sample, &row);
    int64_t height = file->height, width = file->width, count = channels_of(model) / (PATCH * PATCH) * height * width;
    SCOPED_FREE float *image = memory_allocate((size_t)count * sizeof *image), *noise = memory_allocate((size_t)count * sizeof *noise);
    stored_to_floats(file->latents, row * count, count, image);
    image_noise(sample->key, count, noise);
    for (int64_t i = 0; i < count; i++) {
        float clean = image[i];
        image[i] = (float)(1 - sample->time) * clean + (float)sample->time * noise[i];
        noise[i] -= clean; /* from here on the velocity */
    }
    image_put_prompt(model, executor, at, sample->set, sample->sample, height, width, sample->guidance);
    if (sample->empty) put_empty_text(model, executor, at, file);
    image_put_time(model, executor, at, sample->time);
    put_text_tokens(model, executor, model->image.latents, at, height, width, image);
    put_text_tokens(model, executor, model->image.target, at, height, width, noise);
    put_weights(model, executor, at, first_token(model, height, width));
}

void image_put_nothing(const Model *model, Executor *executor, int64_t at) {
    clear_images(model, executor, at, room(model));
    put_grid(model, executor, at, PATCH, PATCH);
    clear(model, executor, model->image.text, at);
    clear(model, executor, model->image.pooled, at);
    clear(model, executor, model->image.weights, at);
    put_guidance(model, executor, at, 0);
    image_put_time(model, executor, at, 0);
}

/* -- Synthetic inputs ---------------------------------------------------------------------------------------------- */

static void fill_normal(const Model *model, Executor *executor, TensorId tensor) {
    int64_t count = tensor ? graph_elements(model->graph, tensor) : 0;
    for (int64_t i = 0; i < count; i++) {
        float value = (float)rng_normal(1, RNG_STREAM_BENCH + ((uint64_t)tensor << 8), (uint64_t)i);
        executor_set_values(executor, tensor, i, &value, 1);
    }
}

/* Returns the largest divisor of a number of tokens that does not exceed its square root. */
static int64_t rows_of_square(int64_t tokens) {
    int64_t rows = (int64_t)sqrt((double)tokens);
    while (tokens % rows) rows--;
    return rows;
}

void image_put_synthetic(const Model *model, Executor *executor) {
    const ImageInputs *x = &model->image;
    int64_t tokens = room(model), rows = rows_of_square(tokens);
    const TensorId normal[] = {x->latents, x->target, x->text, x->pooled};
    while (tokens / rows > IMAGE_GRID) tokens--, rows = rows_of_square(tokens);
    for (size_t i = 0; i < sizeof normal / sizeof *normal; i++) fill_normal(model, executor, normal[i]);
    for (int64_t s = 0; s < model->sequences; s++) {
        put_grid(model, executor, s, PATCH * rows, PATCH * (tokens / rows));
        image_put_time(model, executor, s, 0.5);
        put_guidance(model, executor, s, 1);
        if (x->weights) put_weights(model, executor, s, room(model) - tokens);
    }
}
