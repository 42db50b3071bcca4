/* A libFuzzer entry for files of encodings: they are refused, or each sample fits a small model and fills its inputs with what
 * the file holds. */
#include "backend/cpu/cpu_device.h"
#include "fuzz.h"
#include "images/encodings.h"
#include "images/image_inputs.h"
#include "program/program.h"

static const ModelConfig config = {.family = FAMILY_flux,
    .layers = 1,
    .width = 8,
    .heads = 1,
    .kv_heads = 1,
    .head_dim = 8,
    .ffn = 8,
    .channels = 4,
    .text_width = 2,
    .pooled_width = 2,
    .text_tokens = 1,
    .rope_first = 4,
    .rope_theta = 1e4,
    .norm_epsilon = 1e-6};

static void put_samples(const EncodingSet *set) {
    enum { MOST_TOKENS = 64, MOST_SAMPLES = 8 };
    Error error = {0};
    if (set->most_tokens > MOST_TOKENS) return;
    Program program = {
        .model = model_build(&config, PRECISION_FP32, MODEL_EVALUATE, 1, set->most_tokens + config.text_tokens, RECOMPUTE_NONE)};
    require(program_plan(&program, device_cpu(), &error) && program_start(&program, NULL, &error));
    for (int64_t i = 0; i < set->samples && i < MOST_SAMPLES; i++)
        image_put_sample(
            &program.model, program.executor, 0, &(ImageSample){.set = set, .sample = i, .time = 0.5, .empty = set->files->empty_text});
    program_free(&program);
}

FUZZ(encodings) {
    const char *path = fuzz_file("x.safetensors", data, size);
    for (EncodingUse use = ENCODINGS_TRAIN; use <= ENCODINGS_PROMPT; use++) {
        EncodingSet set;
        Error error = {0};
        if (!encodings_open(&set, path, &config, use, &error)) {
            require_line(&error);
            continue;
        }
        int64_t last;
        require(set.file_count == 1 && set.samples >= 1 && set.text_tokens >= 1);
        require(encodings_find(&set, set.samples - 1, &last) == set.files && last == set.samples - 1);
        if (use == ENCODINGS_TRAIN) put_samples(&set);
        encodings_close(&set);
    }
}
