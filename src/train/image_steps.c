/* Steps of a training on images. Microbatches are filled with noised latents just before they run.
 * The order of samples, steps, ranks, checkpoints and records work as for text: an image with its
 * text counts as a sequence of data.length tokens. Owns nothing. Called by steps. */
#include "images/image_inputs.h"
#include "train/loop_internal.h"

/* Returns sample `number` of the run. */
static ImageSample run_sample(const Loop *loop, int64_t number) {
    const Config *config = loop->config;
    Draw draw = order_draw(loop->order, number);
    NoiseKey key = {.seed = (uint64_t)config->seed, .sample = draw.start / config->data.length, .epoch = draw.epoch};
    return (ImageSample){.set = &loop->corpus.images,
        .sample = key.sample,
        .key = key,
        .time = image_training_time(&config->flow, key),
        .empty = image_drops_caption(&config->flow, key),
        .guidance = config->flow.guidance};
}

void loop_put_images(const Loop *loop, int64_t microbatch, int64_t samples) {
    const Session *session = &loop->session;
    int64_t sequences = loop->config->batch.sequences, ahead = sequences * mesh_size(session->mesh, AXES_DATA);
    for (int64_t s = 0; s < sequences; s++) {
        int64_t number = microbatch * sequences + s;
        if (number >= samples) {
            image_put_nothing(&session->training.model, session->training.executor, s);
            continue;
        }
        ImageSample sample = run_sample(loop, session->samples + number), next = run_sample(loop, session->samples + number + ahead);
        encodings_prefetch(next.set, next.sample);
        image_put_sample(&session->training.model, session->training.executor, s, &sample);
    }
}

void loop_find_bad_image(const Loop *loop, int64_t microbatch, int64_t samples, char *text, size_t size) {
    int64_t sequences = loop->config->batch.sequences, first = microbatch * sequences;
    for (int64_t number = first; number < first + sequences && number < samples && !text[0]; number++) {
        ImageSample sample = run_sample(loop, loop->session.samples + number);
        encodings_are_finite(sample.set, sample.sample, text, size);
    }
}
