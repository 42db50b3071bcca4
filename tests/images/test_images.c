/* What diffusers makes of latents, and smelt: tokens of images, times and steps of its pipeline with FLUX.1-dev's and
 * FLUX.1-schnell's schedulers, pixels of its AutoencoderKL (tests/golden/flux_images.py). Then what files of encodings must
 * be, what noise depends on, and a PNG as zlib and the format's rules read it. */
#include <math.h>
#include <zlib.h>

#include "backend/backend.h"
#include "base/element.h"
#include "base/file.h"
#include "base/scope.h"
#include "images/image_inputs.h"
#include "images/image_sampler.h"
#include "images/png.h"
#include "images/vae.h"
#include "support/files.h"
#include "support/golden_run.h"
#include "support/mentions.h"

#define SAMPLING "tests/golden/flux_sampling/expected.safetensors"
enum { CHANNELS = 2, HEIGHT = 6, WIDTH = 10, TEXT = 7, STEPS = 4, VALUES = CHANNELS * HEIGHT * WIDTH, TOKENS = HEIGHT / 2 * WIDTH / 2 };

static Golden open_model(int64_t spare) {
    Error error = {0};
    Golden g = {.folder = memory_copy_string("tests/golden/flux_dev")};
    if (!source_read_config(g.folder, &g.config, &g.strings, &error) || !safetensors_open(&g.expected, SAMPLING, &error))
        fail_msg("%s", error.message);
    g.config.model.text_tokens = TEXT;
    g.program =
        check_program(model_build(&g.config.model, PRECISION_FP32, MODEL_SCORE, 1, TOKENS + spare + TEXT, RECOMPUTE_NONE), device_cpu());
    if (!weights_load_program(g.folder, &g.config, g.program.executor, &error)) fail_msg("%s", error.message);
    return g;
}

/* The encodings that lie in the same file; latents are called otherwise there. */
static EncodingSet open_prompts(const Golden *g) {
    Error error = {0};
    EncodingSet set;
    if (!encodings_open(&set, SAMPLING, &g->config.model, ENCODINGS_PROMPT, &error)) fail_msg("%s", error.message);
    return set;
}

/* -- Against diffusers --------------------------------------------------------------------------------------------- */

static void latents_become_the_tokens_of_diffusers_and_back(void **state) {
    (void)state;
    for (int64_t spare = 0; spare < 6; spare += 5) {
        SCOPED(golden_stop) Golden g = open_model(spare);
        float noise[VALUES], back[VALUES];
        stored_to_floats(golden_expect(&g, "noise"), 0, VALUES, noise);
        image_put_latents(&g.program.model, g.program.executor, 0, HEIGHT, WIDTH, noise);
        const float *rows = executor_tensor(g.program.executor, g.program.model.image.latents);
        for (int64_t i = 0; i < VALUES; i++) assert_true(rows[spare * 4 * CHANNELS + i] == golden_value(golden_expect(&g, "packed"), i));
        image_take_latents(&g.program.model, rows, 0, HEIGHT, WIDTH, back);
        assert_memory_equal(back, noise, sizeof noise);
    }
}

/* Its times are fp32, and go to sinusoids of up to 1000 times that, whose angles are off by some 1e-4 of which the model's random
 * weights leave a tenth: latents are near 1. */
static void sampling_is_that_of_the_pipeline(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double shift;
    } schedulers[] = {{"dev", 0}, {"schnell", 1}};
    for (int s = 0; s < 4; s++) {
        SCOPED(golden_stop) Golden g = open_model(s < 2 ? 0 : 5); /* with more room than the image has tokens too */
        SCOPED(encodings_close) EncodingSet set = open_prompts(&g);
        Error error = {0};
        double times[STEPS + 1];
        ImageSampling sampling = {.steps = STEPS, .guidance = 3.5, .shift = schedulers[s % 2].shift};
        SCOPED_FREE char *end = memory_format("%s_latents", schedulers[s % 2].name),
                         *names = memory_format("%s_times", schedulers[s % 2].name);
        image_sampling_times(&sampling, TOKENS, times);
        for (int i = 0; i <= STEPS; i++) assert_float_equal(times[i], golden_value(golden_expect(&g, names), i), 1e-6);
        for (int64_t sample = 0; sample < 2; sample++) {
            float latents[VALUES];
            stored_to_floats(golden_expect(&g, "noise"), sample * VALUES, VALUES, latents);
            assert_true(image_sample(&g.program.model, g.program.executor, &set, sample, &sampling, HEIGHT, WIDTH, latents, &error));
            for (int64_t i = 0; i < VALUES; i++)
                assert_float_equal(latents[i], golden_value(golden_expect(&g, end), sample * VALUES + i), 5e-5);
        }
    }
}

/* Sums in other orders: pixels are below 2. */
static void a_decoder_gives_the_pixels_of_diffusers(void **state) {
    (void)state;
    enum { LATENTS = 4, ROWS = 3, COLUMNS = 5, SCALE = 4, PIXELS = VAE_COLORS * SCALE * ROWS * SCALE * COLUMNS };
    SCOPED(safetensors_close) Safetensors expected;
    Error error = {0};
    float latents[LATENTS * ROWS * COLUMNS], pixels[PIXELS];
    assert_true(safetensors_open(&expected, "tests/golden/flux_vae/expected.safetensors", &error));
    Vae *vae = vae_open("tests/golden/flux_vae", LATENTS, &error);
    if (!vae) fail_msg("%s", error.message);
    assert_int_equal(vae_scale(vae), SCALE);
    stored_to_floats(safetensors_find(&expected, "latents"), 0, LATENTS * ROWS * COLUMNS, latents);
    assert_true(vae_decode(vae, ROWS, COLUMNS, latents, pixels, &error));
    for (int i = 0; i < PIXELS; i++) assert_float_equal(pixels[i], golden_value(safetensors_find(&expected, "pixels"), i), 1e-5);
    vae_free(vae);
    assert_null(vae_open("tests/golden/flux_vae", 16, &error));
    assert_int_equal(error.code, ERROR_USAGE);
}

/* Each field that says something else than the decoder computes is refused by name. */
static void a_decoder_of_another_kind_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *field, *value;
    } wrong[] = {{"_class_name", "\"AutoencoderTiny\""}, {"act_fn", "\"relu\""}, {"up_block_types", "[\"AttnUpDecoderBlock2D\"]"},
        {"mid_block_add_attention", "false"}, {"latents_mean", "[0.1]"}, {"block_out_channels", "[]"}, {"latent_channels", "-1"},
        {"layers_per_block", "\"two\""}, {"norm_num_groups", "0"}, {"scaling_factor", "0"}, {"shift_factor", "\"a\""}};
    static const char folder[] = "build/tests/vae-wrong";
    Error error = {0};
    SCOPED_FREE char *from = realpath("tests/golden/flux_vae/diffusion_pytorch_model.safetensors", NULL);
    assert_true(file_make_folder(folder, &error));
    SCOPED_FREE char *config = memory_format("%s/config.json", folder),
                     *tensors = memory_format("%s/diffusion_pytorch_model.safetensors", folder);
    assert_true(file_remove(tensors, &error) && file_link(from, tensors, &error));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_auto_t *content = json_load_file("tests/golden/flux_vae/config.json", 0, NULL);
        assert_int_equal(json_object_set_new(content, wrong[i].field, json_loads(wrong[i].value, JSON_DECODE_ANY, NULL)), 0);
        assert_int_equal(json_dump_file(content, config, 0), 0);
        assert_null(vae_open(folder, 4, &error));
        if (error.code != ERROR_CHECKPOINT || !mentions(error.message, wrong[i].field)) fail_msg("%s: %s", wrong[i].field, error.message);
    }
    json_auto_t *content = json_load_file("tests/golden/flux_vae/config.json", 0, NULL);
    json_object_set_new(content, "layers_per_block", json_integer(2)); /* whose tensors are missing */
    assert_int_equal(json_dump_file(content, config, 0), 0);
    assert_null(vae_open(folder, 4, &error));
    assert_mentions(error.message, "decoder.up_blocks.0.resnets.2.norm1.weight is missing");
    assert_true(file_remove(folder, &error));
}

/* -- Encodings ----------------------------------------------------------------------------------------------------- */

static const ModelConfig shape = {
    .family = FAMILY_flux, .channels = 8, .text_tokens = 3, .text_width = 4, .pooled_width = 5, .guidance = true};

/* A file of so many samples; `latents` 0: of texts alone. Element i of a tensor is i, in bf16 where asked for. */
static void write_encodings(const char *path, int64_t samples, int64_t channels, int64_t height, int64_t width, int64_t text, bool half) {
    enum { MOST = 4096 };
    static float values[MOST];
    static uint16_t halves[MOST];
    Error error = {0};
    for (int i = 0; i < MOST; i++) values[i] = (float)i;
    bf16_from_floats(halves, values, MOST);
    StoredType type = half ? STORED_BF16 : STORED_F32;
    const void *data = half ? (const void *)halves : values;
    StoredTensor tensors[] = {{.name = ENCODING_TEXT, .type = type, .rank = 3, .shape = {samples, text, 4}, .data = data},
        {.name = ENCODING_POOLED, .type = type, .rank = 2, .shape = {samples, 5}, .data = data},
        {.name = ENCODING_LATENTS, .type = type, .rank = 4, .shape = {samples, channels, height, width}, .data = data}};
    assert_true(samples * channels * height * width <= MOST);
    assert_true(safetensors_write(path, tensors, channels ? 3 : 2, NULL, &error));
}

static void a_folder_is_one_set_of_its_files(void **state) {
    (void)state;
    Error error = {0};
    EncodingSet set;
    int64_t index;
    uint64_t before, after;
    assert_true(file_make_folder("set", &error));
    write_encodings("set/b.safetensors", 4, 2, 4, 6, 3, false);
    write_encodings("set/a.safetensors", 3, 2, 2, 8, 3, true);
    write_text("set/notes.txt", "no tensors");
    if (!encodings_open(&set, "set", &shape, ENCODINGS_TRAIN, &error)) fail_msg("%s", error.message);
    assert_int_equal(set.samples, 7);
    assert_int_equal(set.most_tokens, 6);
    const EncodingFile *file = encodings_find(&set, 2, &index);
    assert_true(file == &set.files[0] && index == 2 && file->height == 2 && file->width == 8);
    file = encodings_find(&set, 3, &index);
    assert_true(file == &set.files[1] && index == 0 && file->height == 4 && file->width == 6);
    file = encodings_find(&set, 6, &index);
    assert_true(file == &set.files[1] && index == 3);
    assert_true(encodings_checksum(&set, &before, &error));
    write_encodings("set/b.safetensors", 4, 2, 4, 6, 3, true);
    assert_true(encodings_checksum(&set, &after, &error) && before != after);
    encodings_close(&set);
}

static void refused(const char *path, EncodingUse use, const char *fragment) {
    Error error = {0};
    EncodingSet set;
    assert_false(encodings_open(&set, path, &shape, use, &error));
    if (error.code != ERROR_DATA || !mentions(error.message, fragment)) fail_msg("%s: %s", path, error.message);
}

static void files_of_other_shapes_are_refused_by_tensor(void **state) {
    (void)state;
    Error error = {0};
    EncodingSet set;
    write_encodings("channels.safetensors", 1, 4, 2, 2, 3, false);
    refused("channels.safetensors", ENCODINGS_TRAIN, "latents is F32 [1, 4, 2, 2]");
    write_encodings("odd.safetensors", 1, 2, 2, 3, 3, false);
    refused("odd.safetensors", ENCODINGS_TRAIN, "even");
    write_encodings("wide.safetensors", 1, 2, 2, 258, 3, false);
    refused("wide.safetensors", ENCODINGS_TRAIN, "most 256");
    write_encodings("text.safetensors", 1, 2, 2, 2, 4, false);
    refused("text.safetensors", ENCODINGS_TRAIN, "prompt_embeds is F32 [1, 4, 4]");
    write_encodings("none.safetensors", 0, 2, 2, 2, 3, false);
    refused("none.safetensors", ENCODINGS_TRAIN, "none.safetensors has 0 samples in tensor prompt_embeds");
    write_encodings("texts.safetensors", 2, 0, 0, 0, 3, false);
    refused("texts.safetensors", ENCODINGS_TRAIN, "has no tensor latents");
    assert_true(encodings_open(&set, "texts.safetensors", &shape, ENCODINGS_PROMPT, &error) && set.samples == 2 && !set.most_tokens);
    encodings_close(&set);
    write_text("broken.safetensors", "not a header");
    refused("broken.safetensors", ENCODINGS_TRAIN, "broken.safetensors");
    refused("absent.safetensors", ENCODINGS_TRAIN, "absent.safetensors");
    assert_true(file_make_folder("empty", &error));
    refused("empty", ENCODINGS_TRAIN, "safetensors");
}

/* Numbers below 256, which bf16 has. */
static void encodings_in_any_type_fill_the_same_inputs(void **state) {
    (void)state;
    const ModelConfig config = {.family = FAMILY_flux,
        .layers = 1,
        .width = 8,
        .heads = 1,
        .kv_heads = 1,
        .head_dim = 8,
        .ffn = 8,
        .channels = 8,
        .text_tokens = 3,
        .text_width = 4,
        .pooled_width = 5,
        .rope_first = 4,
        .rope_theta = 1e4,
        .norm_epsilon = 1e-6};
    static const Precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP64};
    write_encodings("wide.safetensors", 2, 2, 4, 6, 3, false);
    write_encodings("half.safetensors", 2, 2, 4, 6, 3, true);
    for (int p = 0; p < 3; p++) {
        static const char *const files[] = {"wide.safetensors", "half.safetensors"};
        Program programs[2];
        for (int f = 0; f < 2; f++) {
            Error error = {0};
            SCOPED(encodings_close) EncodingSet set;
            Program *program = &programs[f];
            *program = check_program(model_build(&config, precisions[p], MODEL_EVALUATE, 3, 8 + 3, RECOMPUTE_NONE), device_cpu());
            assert_true(encodings_open(&set, files[f], &config, ENCODINGS_TRAIN, &error));
            image_put_sample(&program->model, program->executor, 0, &(ImageSample){.set = &set, .sample = 1, .time = 0.25});
            image_put_sample(&program->model, program->executor, 1, &(ImageSample){.set = &set, .sample = 0, .time = 0.75});
            image_put_nothing(&program->model, program->executor, 2);
        }
        const Executor *half = programs[1].executor;
        const ImageInputs *inputs = &programs[1].model.image;
        assert_memory_equal(
            executor_arena(programs[0].executor, ARENA_INPUT), executor_arena(half, ARENA_INPUT), programs[1].plan.bytes[ARENA_INPUT]);
        size_t bytes = precision_bytes(precisions[p], TYPE_COMPUTE);
        const void *text = executor_tensor(half, inputs->text), *pooled = executor_tensor(half, inputs->pooled);
        for (int i = 0; i < 12; i++) assert_true(element_get(bytes, text, i) == 12 + i && element_get(bytes, text, 12 + i) == i);
        for (int i = 0; i < 5; i++) assert_true(element_get(bytes, pooled, i) == 5 + i && element_get(bytes, pooled, 10 + i) == 0);
        for (int f = 0; f < 2; f++) program_free(&programs[f]);
    }
}

/* -- Noise and time ------------------------------------------------------------------------------------------------ */

static void noise_depends_on_seed_sample_and_epoch(void **state) {
    (void)state;
    static const NoiseKey keys[] = {{1, 2, 3}, {2, 2, 3}, {1, 3, 3}, {1, 2, 4}, {1, 3, 2}};
    enum { KEYS = sizeof keys / sizeof *keys, COUNT = 1000 };
    static float noise[KEYS][COUNT], again[COUNT];
    const FlowConfig flow = {.deviation = 1, .shift = 1};
    image_noise(keys[0], COUNT, again);
    for (int i = 0; i < KEYS; i++) {
        double sum = 0, squares = 0;
        image_noise(keys[i], COUNT, noise[i]);
        for (int j = 0; j < COUNT; j++) sum += noise[i][j], squares += noise[i][j] * noise[i][j];
        assert_true(fabs(sum / COUNT) < 0.15 && fabs(squares / COUNT - 1) < 0.2); /* four deviations of these means */
        for (int j = 0; j < i; j++)
            assert_true(noise[j][0] != noise[i][0] && image_training_time(&flow, keys[j]) != image_training_time(&flow, keys[i]));
    }
    assert_memory_equal(again, noise[0], sizeof again);
}

/* Of a logit-normal the median is 1 / (1 + exp(-mean)), and 15.9% lie below that of mean - deviation. */
static void times_are_logit_normal_and_shifted(void **state) {
    (void)state;
    enum { COUNT = 4000 };
    const FlowConfig flow = {.mean = 0.5, .deviation = 2, .shift = 3};
    double median = image_shift_time(3, 1 / (1 + exp(-0.5))), low = image_shift_time(3, 1 / (1 + exp(1.5)));
    int below_median = 0, below_low = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        double time = image_training_time(&flow, (NoiseKey){.seed = 9, .sample = i});
        assert_true(time > 0 && time < 1);
        below_median += time < median;
        below_low += time < low;
    }
    assert_float_equal(median, 3 * 0.62246 / (1 + 2 * 0.62246), 1e-5);
    assert_float_equal((double)below_median / COUNT, 0.5, 0.032); /* four deviations */
    assert_float_equal((double)below_low / COUNT, 0.1587, 0.024);
}

/* -- PNG ----------------------------------------------------------------------------------------------------------- */

static uint32_t number_at(const unsigned char *at) { return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]; }

/* The content of the chunk NAME, which must follow `*at`; moves behind it. */
static const unsigned char *take_chunk(const unsigned char **at, const char *name, uint32_t *length) {
    const unsigned char *chunk = *at;
    *length = number_at(chunk);
    assert_memory_equal(chunk + 4, name, 4);
    assert_int_equal(number_at(chunk + 8 + *length), crc32(0, chunk + 4, *length + 4));
    *at += 12 + *length;
    return chunk + 8;
}

static void pictures_become_one_png(void **state) {
    (void)state;
    static const float first[] = {-1, 1, 0, 2, -3, 0.5f}, second[] = {1, 1, -1, -1, 0, 0}; /* [3, 1, 2] */
    const Picture pictures[] = {{3, 1, 2, first}, {3, 1, 2, second}, {3, 1, 2, second}};
    Error error = {0};
    size_t size;
    uint32_t length;
    assert_true(png_write("x.png", pictures, 3, 2, &error));
    SCOPED_FREE unsigned char *bytes = read_bytes("x.png", &size);
    const unsigned char *at = bytes + 8, *header;
    assert_memory_equal(bytes, "\x89PNG\r\n\x1a\n", 8);
    header = take_chunk(&at, "IHDR", &length);
    assert_int_equal(number_at(header), 5);
    assert_int_equal(number_at(header + 4), 3);
    assert_memory_equal(header + 8, "\x08\x02\0\0\0", 5);
    unsigned char lines[3 * 16];
    uLongf count = sizeof lines;
    const unsigned char *packed = take_chunk(&at, "IDAT", &length);
    assert_int_equal(uncompress(lines, &count, packed, length), Z_OK);
    assert_int_equal(count, sizeof lines);
    static const unsigned char top[] = {0, 0, 128, 0, 255, 255, 191, 128, 128, 128, 255, 0, 128, 255, 0, 128};
    assert_memory_equal(lines, top, sizeof top);
    assert_int_equal(lines[16], 0);
    assert_int_equal(lines[17], 128);
    take_chunk(&at, "IEND", &length);
    assert_ptr_equal(at, bytes + size);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_become_the_tokens_of_diffusers_and_back),
        cmocka_unit_test(sampling_is_that_of_the_pipeline),
        cmocka_unit_test(a_decoder_gives_the_pixels_of_diffusers),
        cmocka_unit_test(a_decoder_of_another_kind_is_refused),
        IN_FOLDER(a_folder_is_one_set_of_its_files),
        IN_FOLDER(files_of_other_shapes_are_refused_by_tensor),
        IN_FOLDER(encodings_in_any_type_fill_the_same_inputs),
        cmocka_unit_test(noise_depends_on_seed_sample_and_epoch),
        cmocka_unit_test(times_are_logit_normal_and_shifted),
        IN_FOLDER(pictures_become_one_png),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
