/* From latents to pixels: the decoder of diffusers' AutoencoderKL (Rombach et al. 2021, arXiv
 * 2112.10752), on the CPU, in fp32. A Vae owns the map of its file; weights are converted to floats
 * when needed, one layer at a time. Layers allocate their output maps and free their inputs. Called
 * by `smelt generate`.
 *
 * Feature maps are [height x width, channels], so that a convolution is a GEMM of gathered patches,
 * some rows at a time, with weights [out, 3 x 3 x in]. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "device/gemm.h"
#include "ckpt/ckpt.h"
#include "images/vae.h"

enum { MOST_BLOCKS = 8, NAME_BYTES = 128 };

struct Vae {
    char *folder;
    Safetensors file;
    int64_t channels;       /* of latents */
    int64_t blocks, layers; /* blocks of layers + 1 residual blocks each; all except the last double the height and width */
    int64_t groups;         /* of the channels in a norm */
    double scaling, shift;  /* latents are (encoder output - shift) x scaling */
    bool post_convolution;  /* 1 x 1, before the decoder */
};

/* -- Weights ------------------------------------------------------------------------------------------------------- */

/* A decoding, which stops at the first error. */
typedef struct VaeDecoding {
    const Vae *vae;
    Error *error;
    bool failed;
} VaeDecoding;

typedef struct FeatureMap {
    int64_t height, width, channels;
    float *values;
} FeatureMap;

static int64_t pixels_of(const FeatureMap *map) { return map->height * map->width; }

static FeatureMap new_map(int64_t height, int64_t width, int64_t channels) {
    return (FeatureMap){height, width, channels, memory_allocate((size_t)(height * width * channels) * sizeof(float))};
}

static void map_free(FeatureMap *map) { free(map->values); }

static void replace_map(FeatureMap *map, FeatureMap with) {
    free(map->values);
    *map = with;
}

static void refuse_vae_tensor(VaeDecoding *d, const char *prefix, const char *name, const char *reason) {
    if (!d->failed)
        error_set(
            d->error, ERROR_CHECKPOINT, "%s: tensor %s.%s %s: use the folder vae of a FLUX.1 model", d->vae->folder, prefix, name, reason);
    d->failed = true;
}

/* Returns the tensor PREFIX.NAME of `rank` sizes, the ones from the second on being `rest`; NULL
 * fails the decoding. */
static const StoredTensor *find_vae_tensor(VaeDecoding *d, const char *prefix, const char *name, int rank, const int64_t *rest) {
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    if (d->failed) return NULL;
    const StoredTensor *tensor = safetensors_find(&d->vae->file, full);
    bool good = tensor && tensor->rank == rank && tensor->type <= STORED_F16 && tensor->shape[0] > 0;
    for (int i = 1; good && i < rank; i++) good = tensor->shape[i] == rest[i - 1];
    if (good) return tensor;
    refuse_vae_tensor(d, prefix, name, tensor ? "has a shape or type that does not match the decoder" : "is missing");
    return NULL;
}

static float *values_of(const StoredTensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    float *values = memory_allocate((size_t)count * sizeof *values);
    stored_to_floats(tensor, 0, count, values);
    return values;
}

/* Returns the vector PREFIX.NAME [count], for the caller to free; NULL fails the decoding. */
static float *vector_of(VaeDecoding *d, const char *prefix, const char *name, int64_t count) {
    const StoredTensor *tensor = find_vae_tensor(d, prefix, name, 1, NULL);
    if (!tensor || tensor->shape[0] == count) return tensor ? values_of(tensor) : NULL;
    refuse_vae_tensor(d, prefix, name, "does not have one element per channel of its layer");
    return NULL;
}

/* -- Layers -------------------------------------------------------------------------------------------------------- */

/* y [rows, out] = x [rows, in] w [out, in]^T + bias */
static void multiply_pixels(const float *x, const float *w, const float *bias, int64_t rows, int64_t in, int64_t out, float *y) {
    gemm(
        &(Gemm){.transpose_b = true, .m = rows, .n = out, .k = in, .a = x, .lda = in, .b = w, .ldb = in, .c = y, .ldc = out, .bias = bias});
}

/* Gathers the patches of `rows` lines of pixels from `first`, [rows x width, size x size x
 * channels], with zeros around the map. */
static void gather_patches(const FeatureMap *map, int64_t first, int64_t rows, int64_t size, float *patches) {
    int64_t width = map->width, channels = map->channels, reach = size / 2;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * width; i++) {
        float *to = patches + i * size * size * channels;
        for (int64_t k = 0; k < size * size; k++, to += channels) {
            int64_t y = first + i / width + k / size - reach, x = i % width + k % size - reach;
            bool inside = y >= 0 && y < map->height && x >= 0 && x < width;
            if (inside) memcpy(to, map->values + (y * width + x) * channels, (size_t)channels * sizeof *to);
            else memset(to, 0, (size_t)channels * sizeof *to);
        }
    }
}

/* Reorders from [out, in, size, size] to [out, size, size, in]. */
static float *weights_of(const StoredTensor *tensor) {
    int64_t out = tensor->shape[0], in = tensor->shape[1], area = tensor->shape[2] * tensor->shape[3];
    SCOPED_FREE float *stored = values_of(tensor);
    float *weights = memory_allocate((size_t)(out * in * area) * sizeof *weights);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++)
            for (int64_t k = 0; k < area; k++) weights[(o * area + k) * in + i] = stored[(o * in + i) * area + k];
    return weights;
}

static void convolve_map(VaeDecoding *d, const char *name, int64_t size, FeatureMap *map) {
    enum { PATCHES = 4096 };
    const StoredTensor *tensor = find_vae_tensor(d, name, "weight", 4, (const int64_t[]){map->channels, size, size});
    SCOPED_FREE float *bias = tensor ? vector_of(d, name, "bias", tensor->shape[0]) : NULL;
    if (!bias) return;
    SCOPED_FREE float *weights = weights_of(tensor);
    int64_t rows = int_min(int_max(PATCHES / map->width, 1), map->height), in = size * size * map->channels;
    SCOPED_FREE float *patches = memory_allocate((size_t)(rows * map->width * in) * sizeof *patches);
    FeatureMap out = new_map(map->height, map->width, tensor->shape[0]);
    for (int64_t y = 0; y < map->height; y += rows) {
        int64_t some = int_min(rows, map->height - y);
        gather_patches(map, y, some, size, patches);
        multiply_pixels(patches, weights, bias, some * map->width, in, out.channels, out.values + y * out.width * out.channels);
    }
    replace_map(map, out);
}

/* Computes mean and 1 / deviation of the group of channels that begins at `first`. */
static void group_statistics(const FeatureMap *map, int64_t first, int64_t count, double *mean, double *factor) {
    const double epsilon = 1e-6;
    double sum = 0, squares = 0, all = (double)(pixels_of(map) * count);
    for (int64_t i = 0; i < pixels_of(map); i++)
        for (int64_t c = first; c < first + count; c++) {
            double value = map->values[i * map->channels + c];
            sum += value;
            squares += value * value;
        }
    *mean = sum / all;
    *factor = 1 / sqrt(fmax(squares / all - *mean * *mean, 0) + epsilon);
}

/* Computes a group norm into a new map, then silu if requested. */
static FeatureMap normalize_map(VaeDecoding *d, const char *name, const FeatureMap *map, bool silu) {
    int64_t groups = d->vae->groups, channels = map->channels, count = channels / groups;
    SCOPED_FREE float *gain = vector_of(d, name, "weight", channels), *bias = gain ? vector_of(d, name, "bias", channels) : NULL;
    if (channels % groups) refuse_vae_tensor(d, name, "weight", "does not have a multiple of norm_num_groups channels");
    FeatureMap out = new_map(map->height, map->width, channels);
    if (d->failed || !gain || !bias) return out;
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < groups; g++) {
        double mean, factor;
        group_statistics(map, g * count, count, &mean, &factor);
        for (int64_t i = 0; i < pixels_of(map); i++)
            for (int64_t c = g * count; c < (g + 1) * count; c++) {
                float y = (float)((map->values[i * channels + c] - mean) * factor) * gain[c] + bias[c];
                out.values[i * channels + c] = silu ? y / (1 + expf(-y)) : y;
            }
    }
    return out;
}

static void add_map(FeatureMap *map, const FeatureMap *other) {
    for (int64_t i = 0; i < pixels_of(map) * map->channels; i++) map->values[i] += other->values[i];
}

static char *format_tensor_name(char text[NAME_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));
static char *format_tensor_name(char text[NAME_BYTES], const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(text, NAME_BYTES, format, values);
    va_end(values);
    return text;
}

/* Computes map + convolutions of it, each after a norm and silu. */
static void residual_block(VaeDecoding *d, const char *name, FeatureMap *map) {
    char part[NAME_BYTES];
    if (d->failed) return;
    SCOPED(map_free) FeatureMap h = normalize_map(d, format_tensor_name(part, "%s.norm1", name), map, true);
    convolve_map(d, format_tensor_name(part, "%s.conv1", name), 3, &h);
    if (d->failed) return;
    replace_map(&h, normalize_map(d, format_tensor_name(part, "%s.norm2", name), &h, true));
    convolve_map(d, format_tensor_name(part, "%s.conv2", name), 3, &h);
    if (h.channels != map->channels) convolve_map(d, format_tensor_name(part, "%s.conv_shortcut", name), 1, map);
    if (h.channels != map->channels) refuse_vae_tensor(d, name, "conv_shortcut.weight", "does not have the block's number of channels");
    if (!d->failed) add_map(map, &h);
}

/* Applies a linear layer over channels. */
static FeatureMap project_map(VaeDecoding *d, const char *name, const char *layer, const FeatureMap *map) {
    char full[NAME_BYTES];
    int64_t channels = map->channels;
    FeatureMap out = new_map(map->height, map->width, channels);
    const StoredTensor *tensor = find_vae_tensor(d, format_tensor_name(full, "%s.%s", name, layer), "weight", 2, &channels);
    SCOPED_FREE float *bias = tensor ? vector_of(d, full, "bias", channels) : NULL;
    if (bias && tensor->shape[0] != channels) refuse_vae_tensor(d, full, "weight", "does not have its input's number of channels");
    if (d->failed) return out;
    SCOPED_FREE float *weights = values_of(tensor);
    multiply_pixels(map->values, weights, bias, pixels_of(map), channels, channels, out.values);
    return out;
}

/* exp(scale (x - max)) / sum */
static void softmax_row(float *row, int64_t count, float scale) {
    float most = row[0], sum = 0;
    for (int64_t i = 1; i < count; i++) most = fmaxf(most, row[i]);
    for (int64_t i = 0; i < count; i++) sum += row[i] = expf(scale * (row[i] - most));
    for (int64_t i = 0; i < count; i++) row[i] /= sum;
}

/* Each pixel attends to all pixels, some queries at a time; the result replaces the queries. */
static void attend_pixels(FeatureMap *q, const FeatureMap *k, const FeatureMap *v) {
    enum { QUERIES = 256 };
    int64_t count = pixels_of(q), channels = q->channels;
    SCOPED_FREE float *scores = memory_allocate((size_t)(QUERIES * count) * sizeof *scores);
    for (int64_t first = 0; first < count; first += QUERIES) {
        int64_t some = int_min(QUERIES, count - first);
        multiply_pixels(q->values + first * channels, k->values, NULL, some, channels, count, scores);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < some; i++) softmax_row(scores + i * count, count, 1 / sqrtf((float)channels));
        gemm(&(Gemm){.m = some,
            .n = channels,
            .k = count,
            .a = scores,
            .lda = count,
            .b = v->values,
            .ldb = channels,
            .c = q->values + first * channels,
            .ldc = channels});
    }
}

static void attention_block(VaeDecoding *d, const char *name, FeatureMap *map) {
    char part[NAME_BYTES];
    if (d->failed) return;
    SCOPED(map_free) FeatureMap normed = normalize_map(d, format_tensor_name(part, "%s.group_norm", name), map, false);
    SCOPED(map_free)
    FeatureMap q = project_map(d, name, "to_q", &normed), k = project_map(d, name, "to_k", &normed),
               v = project_map(d, name, "to_v", &normed);
    if (d->failed) return;
    attend_pixels(&q, &k, &v);
    replace_map(&q, project_map(d, name, "to_out.0", &q));
    add_map(map, &q);
}

/* Repeats each pixel 2 x 2 times. */
static void enlarge(FeatureMap *map) {
    FeatureMap out = new_map(2 * map->height, 2 * map->width, map->channels);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < pixels_of(&out); i++) {
        int64_t from = i / out.width / 2 * map->width + i % out.width / 2;
        memcpy(out.values + i * out.channels, map->values + from * map->channels, (size_t)map->channels * sizeof *map->values);
    }
    replace_map(map, out);
}

/* -- The decoder --------------------------------------------------------------------------------------------------- */

static void run_decoder(VaeDecoding *d, FeatureMap *map) {
    char name[NAME_BYTES];
    const Vae *vae = d->vae;
    if (vae->post_convolution) convolve_map(d, "post_quant_conv", 1, map);
    convolve_map(d, "decoder.conv_in", 3, map);
    residual_block(d, "decoder.mid_block.resnets.0", map);
    attention_block(d, "decoder.mid_block.attentions.0", map);
    residual_block(d, "decoder.mid_block.resnets.1", map);
    for (int64_t b = 0; b < vae->blocks && !d->failed; b++) {
        for (int64_t i = 0; i <= vae->layers; i++)
            residual_block(d, format_tensor_name(name, "decoder.up_blocks.%lld.resnets.%lld", (long long)b, (long long)i), map);
        if (b + 1 == vae->blocks || d->failed) continue;
        enlarge(map);
        convolve_map(d, format_tensor_name(name, "decoder.up_blocks.%lld.upsamplers.0.conv", (long long)b), 3, map);
    }
    if (d->failed) return;
    replace_map(map, normalize_map(d, "decoder.conv_norm_out", map, true));
    convolve_map(d, "decoder.conv_out", 3, map);
}

int64_t vae_scale(const Vae *vae) { return (int64_t)1 << (vae->blocks - 1); }

bool vae_decode(const Vae *vae, int64_t height, int64_t width, const float *latents, float *pixels, Error *error) {
    VaeDecoding d = {.vae = vae, .error = error};
    SCOPED(map_free) FeatureMap map = new_map(height, width, vae->channels);
    for (int64_t c = 0; c < vae->channels; c++)
        for (int64_t i = 0; i < height * width; i++) map.values[i * vae->channels + c] = (float)(*latents++ / vae->scaling + vae->shift);
    run_decoder(&d, &map);
    if (!d.failed && map.channels != VAE_COLORS)
        return error_set(error, ERROR_CHECKPOINT, "%s decodes to %lld color channels instead of %d: use the folder vae of a FLUX.1 model",
            vae->folder, (long long)map.channels, VAE_COLORS);
    for (int64_t c = 0; !d.failed && c < VAE_COLORS; c++)
        for (int64_t i = 0; i < pixels_of(&map); i++) *pixels++ = map.values[i * VAE_COLORS + c];
    return !d.failed;
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool refuse_config(const char *folder, const char *field, const char *wanted, Error *error) {
    return error_set(error, ERROR_CHECKPOINT,
        "%s/config.json: %s is not %s, as this decoder requires: use the folder vae of a FLUX.1 model", folder, field, wanted);
}

static bool read_integer(const json_t *config, const char *folder, const char *field, int64_t most, int64_t *value, Error *error) {
    const json_t *json = json_object_get(config, field);
    *value = json_integer_value(json);
    return (json_is_integer(json) && *value >= 1 && *value <= most) || refuse_config(folder, field, "a small positive integer", error);
}

/* `other` replaces null and missing values. */
static bool read_vae_number(const json_t *config, const char *folder, const char *field, double other, double *value, Error *error) {
    const json_t *json = json_object_get(config, field);
    bool given = json && !json_is_null(json);
    *value = given ? json_finite_value(json) : other;
    return (json_is_finite(json) || !given) || refuse_config(folder, field, "a number", error);
}

/* Checks the fields that change the decoder's computation: only one value of each is supported. */
static bool check_vae_field(const json_t *config, const char *folder, Error *error) {
    static const struct { const char *field, *value; } fixed[] = {{"_class_name", "AutoencoderKL"}, {"act_fn", "silu"}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const char *value = json_string_value(json_object_get(config, fixed[i].field));
        if (!value || strcmp(value, fixed[i].value) != 0) return refuse_config(folder, fixed[i].field, fixed[i].value, error);
    }
    const json_t *types = json_object_get(config, "up_block_types"), *attention = json_object_get(config, "mid_block_add_attention");
    for (size_t i = 0; i < json_array_size(types); i++)
        if (!json_is_string(json_array_get(types, i)) || strcmp(json_string_value(json_array_get(types, i)), "UpDecoderBlock2D") != 0)
            return refuse_config(folder, "up_block_types", "UpDecoderBlock2D", error);
    const json_t *mean = json_object_get(config, "latents_mean");
    if (mean && !json_is_null(mean)) return refuse_config(folder, "latents_mean", "null", error);
    return !json_is_false(attention) || refuse_config(folder, "mid_block_add_attention", "true", error);
}

static bool read_vae_config(Vae *vae, Error *error) {
    enum { MOST = 65536 };
    SCOPED_FREE char *path = memory_format("%s/config.json", vae->folder);
    json_auto_t *config = json_read(path, ERROR_CHECKPOINT, error);
    const char *folder = vae->folder;
    if (!config || !check_vae_field(config, folder, error)) return false;
    vae->blocks = (int64_t)json_array_size(json_object_get(config, "block_out_channels"));
    const json_t *post = json_object_get(config, "use_post_quant_conv");
    vae->post_convolution = !json_is_false(post);
    if (vae->blocks < 1 || vae->blocks > MOST_BLOCKS) return refuse_config(folder, "block_out_channels", "a list of 1 to 8 numbers", error);
    return read_integer(config, folder, "latent_channels", MOST, &vae->channels, error) &&
           read_integer(config, folder, "layers_per_block", MOST_BLOCKS, &vae->layers, error) &&
           read_integer(config, folder, "norm_num_groups", MOST, &vae->groups, error) &&
           read_vae_number(config, folder, "scaling_factor", 0.18215, &vae->scaling, error) &&
           read_vae_number(config, folder, "shift_factor", 0, &vae->shift, error) &&
           (vae->scaling > 0 || refuse_config(folder, "scaling_factor", "positive", error));
}

/* Decodes one latent. This reads every tensor, so faults are found before the long work of
 * sampling. */
static bool check_vae_tensors(const Vae *vae, Error *error) {
    SCOPED_FREE float *latents = memory_allocate((size_t)vae->channels * sizeof *latents);
    SCOPED_FREE float *pixels = memory_allocate((size_t)(VAE_COLORS * vae_scale(vae) * vae_scale(vae)) * sizeof *pixels);
    return vae_decode(vae, 1, 1, latents, pixels, error);
}

Vae *vae_open(const char *folder, int64_t channels, Error *error) {
    Vae *vae = memory_allocate(sizeof *vae);
    SCOPED_FREE char *path = memory_format("%s/diffusion_pytorch_model.safetensors", folder);
    vae->folder = memory_copy_string(folder);
    bool good = read_vae_config(vae, error) && safetensors_open(&vae->file, path, error);
    if (good && vae->channels != channels)
        good = error_set(error, ERROR_USAGE, "%s decodes latents of %lld channels, but the model makes %lld: use the vae of the model",
            folder, (long long)vae->channels, (long long)channels);
    if (good && check_vae_tensors(vae, error)) return vae;
    vae_free(vae);
    return NULL;
}

void vae_free(Vae *vae) {
    if (!vae) return;
    safetensors_close(&vae->file);
    free(vae->folder);
    free(vae);
}
