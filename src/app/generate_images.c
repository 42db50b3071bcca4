/* `smelt generate` with an image model: makes an image for each text of a file of encodings, as
 * latents in a safetensors file, and as a PNG. All inputs are checked before anything is computed.
 * Owns nothing. */
#include <inttypes.h>
#include <stdlib.h>

#include "app/generation.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "images/image_inputs.h"
#include "images/image_sampler.h"
#include "images/png.h"
#include "images/vae.h"
#include "session/weights.h"

/* The images to make. */
typedef struct Gallery {
    const GenerationOptions *options;
    EncodingSet set;
    int64_t channels, height, width; /* shape of the latents */
    Vae *vae;                        /* NULL: latents are pixels, or no PNG is requested */
    float *latents;                  /* [samples, channels, height, width] */
} Gallery;

static void gallery_close(Gallery *gallery) {
    encodings_close(&gallery->set);
    vae_free(gallery->vae);
    free(gallery->latents);
}

static int64_t image_values(const Gallery *gallery) { return gallery->channels * gallery->height * gallery->width; }

/* -- Checking the request ------------------------------------------------------------------------------------------ */

/* Uses the size of the encodings' own images if none is given. */
static bool choose_size(Gallery *gallery, Error *error) {
    const ImageOptions *images = &gallery->options->images;
    const EncodingSet *set = &gallery->set;
    gallery->height = images->height ? images->height : set->files[0].height;
    gallery->width = images->width ? images->width : set->files[0].width;
    for (int64_t i = 0; i < set->file_count && !(images->height && images->width); i++)
        if (set->files[i].height != set->files[0].height || set->files[i].width != set->files[0].width)
            return error_set(
                error, ERROR_USAGE, "%s has images of several sizes: set height and width, or give one of its files", set->path);
    if (!gallery->height || !gallery->width)
        return error_set(error, ERROR_USAGE, "%s has no latents to take a size from: set height and width", set->path);
    if (gallery->height % 2 || gallery->width % 2)
        return error_set(error, ERROR_USAGE, "height=%" PRId64 " width=%" PRId64 ": a token is 2 x 2 latents: use even numbers",
            gallery->height, gallery->width);
    return true;
}

static bool check_output(const char *path, bool overwrite, bool (*is_kind)(const char *path), const char *kind, Error *error) {
    if (!*path) return true;
    return file_check_overwrite(path, overwrite, is_kind, kind, error) && (file_can_output(path) || file_fail(error, "write", path));
}

static bool check_pictures(const Gallery *gallery, Error *error) {
    const ImageOptions *images = &gallery->options->images;
    bool pixels = gallery->channels == 1 || gallery->channels == VAE_COLORS;
    if (!*images->out && !*images->png)
        return error_set(error, ERROR_USAGE, "no output file is set: set out=FILE.safetensors for latents, or png=FILE.png");
    if (*images->vae && !*images->png)
        return error_set(error, ERROR_USAGE, "vae=%s decodes latents to pixels, but png is not set: set png=FILE.png", images->vae);
    if (*images->png && !*images->vae && !pixels)
        return error_set(error, ERROR_USAGE,
            "png=%s: latents of %" PRId64 " channels are not pixels: set vae=FOLDER to decode them, or set only out=FILE.safetensors",
            images->png, gallery->channels);
    return check_output(images->out, images->overwrite, safetensors_is_file, "a safetensors file", error) &&
           check_output(images->png, images->overwrite, png_is_file, "a PNG file", error);
}

static bool gallery_open(Gallery *gallery, const char *encodings, const ModelConfig *model, Error *error) {
    const char *vae = gallery->options->images.vae;
    gallery->channels = model->channels / 4;
    if (!encodings_open(&gallery->set, encodings, model, ENCODINGS_PROMPT, error) || !choose_size(gallery, error) ||
        !check_pictures(gallery, error))
        return false;
    if (*vae && !(gallery->vae = vae_open(vae, gallery->channels, error))) return error_context(error, "vae=%s", vae);
    gallery->latents = memory_allocate((size_t)(gallery->set.samples * image_values(gallery)) * sizeof *gallery->latents);
    return true;
}

/* -- Making images ------------------------------------------------------------------------------------------------- */

/* Opens the program that makes one image. */
static bool open_program(
    Program *program, const Inference *inference, const char *folder, const Config *config, const Gallery *gallery, Error *error) {
    ModelConfig model = config->model;
    model.text_tokens = gallery->set.text_tokens; /* no weight depends on it */
    int64_t tokens = gallery->height / 2 * (gallery->width / 2);
    program->model = model_build(&model, inference->precision, MODEL_SCORE, 1, model.text_tokens + tokens, RECOMPUTE_NONE);
    inference_check_fp8(inference, config, program->model.graph);
    return program_plan(program, inference->device, error) && program_start(program, NULL, error) &&
           weights_load_program(folder, config, program->executor, error);
}

static bool make_images(const Program *program, const Gallery *gallery, Error *error) {
    const GenerationOptions *options = gallery->options;
    const ImageOptions *images = &options->images;
    ImageSampling sampling = {.steps = images->steps, .guidance = images->guidance, .shift = images->shift};
    int64_t samples = gallery->set.samples;
    double start = log_seconds();
    Progress progress = progress_start("making", "images", samples);
    bool good = true;
    for (int64_t i = 0; i < samples && good; i++) {
        float *latents = gallery->latents + i * image_values(gallery);
        image_noise((NoiseKey){.seed = (uint64_t)options->seed, .sample = i}, image_values(gallery), latents);
        good =
            image_sample(&program->model, program->executor, &gallery->set, i, &sampling, gallery->height, gallery->width, latents, error);
        progress_update(&progress, i + good);
    }
    progress_finish(&progress);
    double seconds = log_seconds() - start;
    if (good)
        log_info("%" PRId64 " image%s of %" PRId64 " x %" PRId64 " latents in %" PRId64 " steps each: %.1f s, %.3g images/s", samples,
            plural(samples), gallery->height, gallery->width, images->steps, seconds, (double)samples / seconds);
    return good;
}

/* -- Writing images ------------------------------------------------------------------------------------------------ */

static bool write_latents(const Gallery *gallery, Error *error) {
    const char *out = gallery->options->images.out;
    StoredTensor tensor = {.name = ENCODING_LATENTS,
        .type = STORED_F32,
        .rank = 4,
        .shape = {gallery->set.samples, gallery->channels, gallery->height, gallery->width},
        .data = gallery->latents};
    return !*out || safetensors_write(out, &tensor, 1, NULL, error);
}

/* Decodes the latents of all images into `pixels`. */
static bool decode_latents(const Gallery *gallery, float *pixels, Error *error) {
    int64_t scale = vae_scale(gallery->vae), area = VAE_COLORS * scale * gallery->height * scale * gallery->width;
    Progress progress = progress_start("decoding", "images", gallery->set.samples);
    bool good = true;
    for (int64_t i = 0; i < gallery->set.samples && good; i++) {
        good = vae_decode(
            gallery->vae, gallery->height, gallery->width, gallery->latents + i * image_values(gallery), pixels + i * area, error);
        progress_update(&progress, i + good);
    }
    progress_finish(&progress);
    return good;
}

static bool write_pictures(const Gallery *gallery, Error *error) {
    enum { COLUMNS = 10 };
    const char *png = gallery->options->images.png;
    int64_t samples = gallery->set.samples, scale = gallery->vae ? vae_scale(gallery->vae) : 1;
    Picture form = {gallery->vae ? VAE_COLORS : gallery->channels, scale * gallery->height, scale * gallery->width, NULL};
    int64_t area = form.channels * form.height * form.width;
    if (!*png) return true;
    SCOPED_FREE float *decoded = gallery->vae ? memory_allocate((size_t)(samples * area) * sizeof *decoded) : NULL;
    SCOPED_FREE Picture *pictures = memory_allocate((size_t)samples * sizeof *pictures);
    if (decoded && !decode_latents(gallery, decoded, error)) return false;
    for (int64_t i = 0; i < samples; i++) {
        pictures[i] = form;
        pictures[i].pixels = (decoded ? decoded : gallery->latents) + i * area;
    }
    return png_write(png, pictures, samples, COLUMNS, error);
}

bool generate_images(
    Inference *inference, const char *folder, const char *encodings, Config *config, const GenerationOptions *options, Error *error) {
    SCOPED(gallery_close) Gallery gallery = {.options = options};
    SCOPED(program_free) Program program = {0};
    inference->images = true;
    if (comm_size(inference->comm) > 1)
        return error_set(
            error, ERROR_USAGE, "images are made by one process, but there are %d: start only one", comm_size(inference->comm));
    config->layout = (LayoutConfig){.dp = 1, .tp = 1, .pp = 1, .cp = 1, .ep = 1};
    if (!gallery_open(&gallery, encodings, &config->model, error)) return false;
    return inference_open(inference, config, options->device, options->precision, options->threads, error) &&
           open_program(&program, inference, folder, config, &gallery, error) && make_images(&program, &gallery, error) &&
           write_latents(&gallery, error) && write_pictures(&gallery, error);
}
