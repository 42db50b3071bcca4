/* Pictures that a model of images makes at an evaluation, so that users see what it has learned. A
 * MODEL_SCORE program of the session shares its weights and activations. Only rank 0 runs it. The
 * noise is that of seed 0, as for the evaluation, so pictures differ only by the weights. Owns
 * nothing beyond a call. Called by the training loop. */
#include "eval/picture_sample.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "images/image_inputs.h"
#include "images/image_sampler.h"
#include "images/png.h"
#include "images/vae.h"

/* As smelt generate makes images by default. */
static const ImageSampling sampling = {.steps = 28, .guidance = 3.5};

/* Returns the number of pictures, all of the first file's size. */
static int64_t picture_count(const Session *session, const Corpus *corpus) {
    if (!corpus->has_valid || !corpus->image_length || !session->sampling.model.graph) return 0;
    return int_min(session->config->eval.pictures, corpus->valid_images.files[0].samples);
}

static int64_t picture_channels(const Session *session) { return session->config->model.channels / 4; }

/* Opens eval.vae. NULL: latents are pixels, or an error. */
static Vae *open_vae(const Session *session, Error *error) {
    const char *folder = session->config->eval.vae;
    Vae *vae = *folder ? vae_open(folder, picture_channels(session), error) : NULL;
    if (*folder && !vae) error_context(error, "eval.vae=%s", folder);
    return vae;
}

bool picture_sample_check(const Session *session, const Corpus *corpus, Error *error) {
    const int64_t channels = picture_channels(session);
    const char *folder = session->config->eval.vae;
    if (!picture_count(session, corpus)) return true;
    if (session->layout->stage == 3)
        return error_set(error, ERROR_USAGE, "eval.pictures needs whole weights on a rank, which layout.zero=3 shards: set layout.zero=2");
    if (!*folder)
        return channels == 1 || channels == VAE_COLORS ||
               error_set(error, ERROR_USAGE,
                   "eval.pictures: latents of %lld channels are not pixels: set eval.vae to the folder of the VAE that encoded them",
                   (long long)channels);
    Vae *vae = open_vae(session, error);
    vae_free(vae);
    return vae;
}

/* The pictures of one evaluation. */
typedef struct PictureSet {
    const Session *session;
    const EncodingSet *set; /* whose first file has the captions */
    Vae *vae;               /* NULL: latents are pixels */
    int64_t count, values;  /* values of the latents of one */
    float *latents;         /* [count, values] */
    Picture *pictures;      /* [count]; with a VAE, their pixels are owned */
} PictureSet;

static void pictures_open(PictureSet *made) {
    const EncodingFile *file = &made->set->files[0];
    const int64_t channels = picture_channels(made->session), scale = made->vae ? vae_scale(made->vae) : 1;
    made->values = channels * file->height * file->width;
    made->latents = memory_allocate((size_t)(made->count * made->values) * sizeof *made->latents);
    made->pictures = memory_allocate((size_t)made->count * sizeof *made->pictures);
    for (int64_t i = 0; i < made->count; i++)
        made->pictures[i] = (Picture){made->vae ? VAE_COLORS : channels, scale * file->height, scale * file->width, NULL};
}

static void pictures_close(PictureSet *made) {
    for (int64_t i = 0; i < made->count && made->vae && made->pictures; i++) free((float *)made->pictures[i].pixels);
    vae_free(made->vae);
    free(made->latents);
    free(made->pictures);
}

/* Makes the latents of a picture, and its pixels. */
static bool make_picture(PictureSet *made, int64_t number, Error *error) {
    const Program *program = &made->session->sampling;
    const EncodingFile *file = &made->set->files[0];
    Picture *picture = &made->pictures[number];
    float *latents = made->latents + number * made->values;
    image_noise((NoiseKey){.sample = number}, made->values, latents);
    if (!image_sample(&program->model, program->executor, made->set, number, &sampling, file->height, file->width, latents, error))
        return false;
    picture->pixels = latents;
    if (!made->vae) return true;
    float *pixels = memory_allocate((size_t)(picture->channels * picture->height * picture->width) * sizeof *pixels);
    picture->pixels = pixels;
    return vae_decode(made->vae, file->height, file->width, latents, pixels, error);
}

static bool write_picture_set(const PictureSet *made, char **path, Error *error) {
    enum { COLUMNS = 10 };
    SCOPED_FREE char *folder = memory_format("%s/pictures", made->session->config->run);
    SCOPED_FREE char *name = memory_format("%s/step-%06lld.png", folder, (long long)made->session->step);
    if (!file_make_folder(folder, error) || !png_write(name, made->pictures, made->count, COLUMNS, error)) return false;
    *path = memory_copy_string(name);
    return true;
}

bool picture_sample(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, char **path, Error *error) {
    SCOPED(pictures_close) PictureSet made = {.session = session, .set = &corpus->valid_images, .count = picture_count(session, corpus)};
    bool good = true;
    *path = NULL;
    if (!made.count) return true;
    if (!session->sampling.exchange && !program_start_beside(&session->sampling, &session->training, error)) return false;
    exchange_finish_weights(session->training.exchange);
    if (comm_rank(session->comm) != 0) return true;
    if (*session->config->eval.vae && !(made.vae = open_vae(session, error))) return false;
    pictures_open(&made);
    for (int64_t i = 0; i < made.count && good; i++) {
        if (stop->signal) return true;
        good = make_picture(&made, i, error);
        watchdog_alive(watchdog, session->step);
    }
    if (good || error->code != ERROR_NUMERICS) return good && write_picture_set(&made, path, error);
    log_warn("no pictures after step %lld: %s", (long long)session->step, error->message);
    *error = (Error){0};
    return true;
}
