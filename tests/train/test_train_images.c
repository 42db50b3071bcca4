/* Training a model of images, end to end: what training promises for text holds for images of several resolutions in one
 * microbatch too. Stops, kills, ranks and microbatches change nothing, adapters train, the model goes out as diffusers' folder
 * and comes back, and what images have no use for is refused in one line. */
#include <signal.h>

#include "base/scope.h"
#include "images/encodings.h"
#include "support/mentions.h"
#include "support/ranks_run.h"

/* Six images a step in microbatches of two; the largest of them have 12 tokens. */
#define SETTINGS                                                                                                                                                   \
    "data.train=images data.valid=valid.safetensors model.family=flux model.layers=3 model.single_layers=1 model.width=32 model.heads=2 model.kv_heads=2 "        \
    "model.ffn=128 model.channels=8 model.text_tokens=3 model.text_width=12 model.pooled_width=10 model.rope_first=8 model.guidance=true "                        \
    "model.norm_epsilon=1e-6 data.length=15 batch.sequences=2 batch.tokens=90 precision=fp32 optimizer.lr=5e-3 steps=24 threads=1 tensorboard=false seed=3 "      \
    "eval.every=12 "

enum { NAN_SAMPLES = 99 }; /* a seed, of a bucket whose sample 7 is not finite */

static int64_t latent_channels = 2;
static char vae_folder[PATH_MAX];

/* Images that depend on their text: a bright or a dark one, with noise. */
static void write_encodings(const char *path, uint64_t seed, int64_t samples, int64_t height, int64_t width, int64_t tokens) {
    enum { WIDTH = 12, POOLED = 10 };
    int64_t area = latent_channels * height * width;
    Error error = {0};
    SCOPED_FREE float *latents = memory_allocate((size_t)(samples * area) * sizeof *latents);
    SCOPED_FREE float *text = memory_allocate((size_t)(samples * tokens * WIDTH) * sizeof *text);
    SCOPED_FREE float *pooled = memory_allocate((size_t)(samples * POOLED) * sizeof *pooled);
    rng_normals(seed, 1, 0, samples * area, latents);
    rng_normals(seed, 2, 0, samples * tokens * WIDTH, text);
    for (int64_t s = 0; s < samples; s++) {
        float sign = s % 2 ? 1 : -1;
        for (int64_t i = 0; i < area; i++) latents[s * area + i] = sign + 0.2f * latents[s * area + i];
        for (int64_t i = 0; i < POOLED; i++) pooled[s * POOLED + i] = sign;
    }
    if (seed == NAN_SAMPLES) latents[7 * area + 1] = NAN;
    StoredTensor tensors[] = {{.name = ENCODING_LATENTS, .rank = 4, .shape = {samples, latent_channels, height, width}, .data = latents},
        {.name = ENCODING_TEXT, .rank = 3, .shape = {samples, tokens, WIDTH}, .data = text},
        {.name = ENCODING_POOLED, .rank = 2, .shape = {samples, POOLED}, .data = pooled}};
    if (!safetensors_write(path, tensors, 3, NULL, &error)) fail_msg("%s", error.message);
}

/* The same images, with the empty caption of zeros as their text, or beside it. */
static void add_empty_text(const char *from, const char *to, bool only) {
    enum { TOKENS = 3, WIDTH = 12, POOLED = 10, MOST = 20 };
    static float zeros[MOST * TOKENS * WIDTH];
    Safetensors file;
    Error error = {0};
    if (!safetensors_open(&file, from, &error)) fail_msg("%s", error.message);
    int64_t samples = safetensors_find(&file, ENCODING_TEXT)->shape[0];
    StoredTensor tensors[5] = {*safetensors_find(&file, ENCODING_LATENTS), *safetensors_find(&file, ENCODING_TEXT),
        *safetensors_find(&file, ENCODING_POOLED), {.name = ENCODING_EMPTY_TEXT, .rank = 3, .shape = {1, TOKENS, WIDTH}, .data = zeros},
        {.name = ENCODING_EMPTY_POOLED, .rank = 2, .shape = {1, POOLED}, .data = zeros}};
    assert_true(samples <= MOST);
    if (only) tensors[1].data = tensors[2].data = zeros;
    if (only) tensors[1].type = tensors[2].type = STORED_F32;
    if (!safetensors_write(to, tensors, only ? 3 : 5, NULL, &error)) fail_msg("%s", error.message);
    safetensors_close(&file);
}

/* Those of one size. */
static void write_bucket(const char *path, uint64_t seed, int64_t samples, int64_t height, int64_t width) {
    write_encodings(path, seed, samples, height, width, 3);
}

static int images_setup(void **state) {
    Error error = {0};
    if (enter_folder(state) != 0 || !file_make_folder("images", &error)) return -1;
    write_bucket("images/4x6.safetensors", 1, 20, 4, 6);
    write_bucket("images/8x6.safetensors", 2, 13, 8, 6);
    write_bucket("valid.safetensors", 3, 11, 6, 8);
    return 0;
}

#define IMAGES_TEST(test) cmocka_unit_test_setup_teardown(test, images_setup, leave_folder)

__attribute__((format(printf, 2, 3))) static void train_images(int ranks, const char *format, ...) {
    char *settings = NULL;
    va_list values;
    va_start(values, format);
    assert_true(vasprintf(&settings, format, values) >= 0);
    va_end(values);
    SCOPED_FREE char *launch = memory_format("launch -n %d -- ", ranks);
    SCOPED_FREE char *words = memory_format("%strain " SETTINGS "device=cpu %s", ranks ? launch : "", settings);
    smelt_good(words);
    free(settings);
}

/* -- What changes nothing ------------------------------------------------------------------------------------------ */

static void a_run_that_stops_and_goes_on_equals_an_unbroken_one_bit_for_bit(void **state) {
    (void)state;
    train_images(0, "run=whole");
    train_images(0, "run=parts stop_at=7");
    train_images(0, "run=parts threads=2 recompute=block checkpoint.every=5");
    assert_same_steps("whole", "parts");
    assert_true(same_checkpoint("whole", "parts", 24));
    assert_true(recorded("whole", "evaluation", -1, "loss") == recorded("parts", "evaluation", -1, "loss"));
    assert_true(recorded("whole", "step", 0, "images") == 6 && recorded("whole", "step", 0, "images_per_second") > 0);
}

static void updates_within_the_backward_pass_give_the_same_bits(void **state) {
    (void)state;
    static const char one[] = "batch.sequences=6 optimizer.clip=0 layout.bucket_mb=0.01";
    train_images(0, "run=after %s", one);
    train_images(0, "run=within %s optimizer.in_backward=true recompute=norm", one);
    assert_same_steps("within", "after");
    assert_true(same_checkpoint("within", "after", 24));
}

static void a_killed_run_ends_like_an_unbroken_one(void **state) {
    (void)state;
    enum { KILLS = 6 };
    static const char words[] = "train " SETTINGS "run=killed steps=120 checkpoint.every=3";
    train_images(0, "run=whole steps=120");
    int killed = 0;
    for (int i = 0; i < KILLS; i++) {
        Process process = smelt_start(words);
        process_await_steps(&process, 4 + 3 * i);
        kill(process.id, SIGKILL);
        ProcessResult result = process_finish(&process);
        killed += result.signal == SIGKILL;
        process_free(&result);
    }
    smelt_good(words);
    assert_true(killed >= KILLS / 2);
    assert_same_steps("whole", "killed");
    assert_true(same_checkpoint("whole", "killed", 120));
}

static void ranks_and_microbatches_learn_the_same(void **state) {
    (void)state;
    static const struct {
        int ranks;
        const char *settings;
    } others[] = {{0, "batch.sequences=1"}, {0, "batch.sequences=3"}, {0, "batch.sequences=6"}, {2, "layout.zero=0"}, {3, "layout.zero=1"},
        {2, "layout.zero=2"}, {2, "layout.zero=3 layout.bucket_mb=0.01"}, {4, "layout.zero=3 layout.bucket_mb=0.01 recompute=norm"}};
    train_images(0, "run=one");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        SCOPED_FREE char *run = memory_format("run-%zu", i);
        train_images(others[i].ranks, "run=%s %s", run, others[i].settings);
        assert_same_losses(run, "one");
    }
}

static void a_run_goes_on_with_other_ranks(void **state) {
    (void)state;
    train_images(0, "run=one");
    train_images(3, "run=changed layout.zero=3 layout.bucket_mb=0.01 stop_at=8");
    train_images(2, "run=changed layout.zero=1 stop_at=16");
    train_images(0, "run=changed");
    assert_same_losses("changed", "one");
}

static void all_layers_may_have_two_streams(void **state) {
    (void)state;
    train_images(0, "run=r model.single_layers=0");
    assert_true(recorded("r", "step", -1, "loss") < recorded("r", "step", 0, "loss"));
}

/* -- What it learns ------------------------------------------------------------------------------------------------ */

/* Half of the loss is that of noise, which no model removes at all times; a guess of zero has about 2. */
static void the_loss_falls_in_each_precision(void **state) {
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16", "pure_bf16", "fp64"};
    for (int i = 0; i < 4; i++) {
        train_images(0, "run=%s precision=%s steps=150 optimizer.lr=3e-3", precisions[i], precisions[i]);
        double early = recorded(precisions[i], "step", 0, "loss"), late = recorded(precisions[i], "evaluation", -1, "loss");
        if (!(early > 1.2 && late < 0.6 * early)) fail_msg("%s: loss %g to %g", precisions[i], early, late);
    }
}

/* -- In and out ---------------------------------------------------------------------------------------------------- */

#define GENERATE " device=cpu height=4 width=6 steps=3 "

static void a_model_goes_out_and_comes_back(void **state) {
    (void)state;
    train_images(0, "run=r");
    smelt_good("convert r folder");
    assert_int_equal(access("folder/tokenizer.json", F_OK), -1);
    smelt_good("generate r images/8x6.safetensors out=run.safetensors" GENERATE);
    smelt_good("generate folder images/8x6.safetensors out=folder.safetensors" GENERATE);
    assert_true(same_bytes("run.safetensors", "folder.safetensors"));
    smelt_good("generate r images/8x6.safetensors out=other.safetensors seed=2" GENERATE);
    assert_false(same_bytes("run.safetensors", "other.safetensors"));
    write_encodings("longer.safetensors", 4, 2, 4, 6, 5);
    smelt_good("generate r longer.safetensors out=run5.safetensors" GENERATE);
    smelt_good("generate folder longer.safetensors out=folder5.safetensors" GENERATE);
    assert_true(same_bytes("run5.safetensors", "folder5.safetensors"));
    smelt_good("train init=folder run=tuned steps=2 data.train=images data.length=15 model.text_tokens=3 batch.sequences=2 batch.tokens=30 "
               "precision=fp32");
}

static void captions_are_dropped(void **state) {
    (void)state;
    assert_int_equal(mkdir("with", 0777) + mkdir("empty", 0777), 0);
    static const char *const names[] = {"4x6", "8x6"};
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *from = memory_format("images/%s.safetensors", names[i]);
        SCOPED_FREE char *with = memory_format("with/%s.safetensors", names[i]), *only = memory_format("empty/%s.safetensors", names[i]);
        add_empty_text(from, with, false);
        add_empty_text(from, only, true);
    }
    train_images(0, "run=plain");
    train_images(0, "run=beside data.train=with");
    train_images(0, "run=only data.train=empty");
    train_images(0, "run=all data.train=with flow.caption_dropout=1");
    train_images(0, "run=half data.train=with flow.caption_dropout=0.5");
    train_images(0, "run=stopped data.train=with flow.caption_dropout=0.5 stop_at=7");
    train_images(2, "run=stopped data.train=with flow.caption_dropout=0.5");
    assert_same_losses("plain", "beside");
    assert_same_losses("only", "all");
    assert_same_losses("half", "stopped");
    assert_true(recorded("half", "step", 20, "loss") != recorded("all", "step", 20, "loss"));
    smelt_says(ERROR_DATA, "images/4x6.safetensors has no tensor empty_prompt_embeds",
        "train " SETTINGS "device=cpu run=none flow.caption_dropout=0.1");
}

/* They are what smelt generate makes of the checkpoint, and cost the run no bit. */
static void pictures_are_made_at_evaluations(void **state) {
    (void)state;
#define PICTURED "model.channels=16 data.train=four data.valid=four-valid.safetensors "
    latent_channels = 4;
    assert_int_equal(mkdir("four", 0777), 0);
    write_bucket("four/8x6.safetensors", 1, 20, 8, 6);
    write_bucket("four-valid.safetensors", 2, 5, 8, 6);
    latent_channels = 2;
    train_images(0, PICTURED "run=plain");
    train_images(0, PICTURED "run=pictured checkpoint.every=12 eval.pictures=64 eval.vae=%s", vae_folder);
    train_images(2, PICTURED "run=two eval.pictures=64 eval.vae=%s layout.zero=2", vae_folder);
    assert_same_losses("plain", "pictured");
    SCOPED_FREE char *words =
        memory_format("generate pictured@12 four-valid.safetensors png=same.png vae=%s seed=0 device=cpu", vae_folder);
    smelt_good(words);
    assert_true(same_bytes("pictured/pictures/step-000012.png", "same.png"));
    assert_true(file_exists("pictured/pictures/step-000024.png") && file_exists("two/pictures/step-000024.png"));
    smelt_says(ERROR_USAGE, "latents of 4 channels are not pixels: set eval.vae",
        "train " SETTINGS PICTURED "device=cpu run=none eval.pictures=1");
    smelt_says(ERROR_CHECKPOINT, "eval.vae=images", "train " SETTINGS PICTURED "device=cpu run=none eval.pictures=1 eval.vae=images");
    smelt_says(ERROR_USAGE, "eval.pictures needs whole weights on a rank",
        "launch -n 2 -- train " SETTINGS PICTURED "device=cpu run=none eval.pictures=1 layout.zero=3");
}

/* The file for diffusers and ComfyUI has the tensors of PEFT's under other names, with the factor in B
 * (tests/golden/check_flux_adapters.py loads it with diffusers). */
static void assert_image_file(const char *folder, float factor) {
    SCOPED_FREE char *own = memory_format("%s/adapter_model.safetensors", folder);
    SCOPED_FREE char *other = memory_format("%s/pytorch_lora_weights.safetensors", folder);
    Safetensors peft, images;
    Error error = {0};
    if (!safetensors_open(&peft, own, &error) || !safetensors_open(&images, other, &error)) fail_msg("%s", error.message);
    assert_true(peft.count > 0 && peft.count == images.count);
    for (size_t i = 0; i < peft.count; i++) {
        SCOPED_FREE char *name = memory_format("transformer.%s", peft.tensors[i].name + strlen("base_model.model."));
        const StoredTensor *tensor = safetensors_find(&images, name);
        assert_non_null(tensor);
        const float *before = peft.tensors[i].data, *after = tensor->data, scale = strstr(name, ".lora_B.") ? factor : 1;
        for (int64_t k = 0; k < tensor->shape[0] * tensor->shape[1]; k++) assert_true(after[k] == scale * before[k]);
    }
    safetensors_close(&peft), safetensors_close(&images);
}

static void adapters_train_beside_a_folder(void **state) {
    (void)state;
    train_images(0, "run=r steps=10");
    smelt_good("convert r folder");
    train_images(0, "run=l init=folder lora.rank=4 lora.targets=attention,mlp steps=40");
    train_images(2, "run=l2 init=folder lora.rank=4 lora.targets=attention,mlp steps=40 layout.zero=2");
    assert_same_losses("l2", "l");
    assert_true(recorded("l", "evaluation", -1, "loss") < recorded("r", "evaluation", -1, "loss"));
    smelt_says(0, "merged: velocities", "convert l merged");
    smelt_good("convert l adapters adapter=true");
    assert_image_file("adapters", 4);
    smelt_good("convert l adapters adapter=true overwrite=true");
    smelt_good("convert adapters again");
    assert_true(same_bytes("merged/diffusion_pytorch_model.safetensors", "again/diffusion_pytorch_model.safetensors"));
}

/* Of numbers that are none, data and model have each their own cure. */
static void images_that_are_not_finite_are_named(void **state) {
    (void)state;
    write_bucket("good.safetensors", 1, 20, 4, 6);
    write_bucket("nan.safetensors", NAN_SAMPLES, 20, 4, 6);
    smelt_says(ERROR_NUMERICS, "NaN or infinity in latents of sample 7 of nan.safetensors; Encode the sample again",
        "train " SETTINGS "device=cpu run=r data.train=nan.safetensors");
    smelt_says(
        ERROR_NUMERICS, "7 nan.safetensors", "train " SETTINGS "device=cpu run=s data.train=good.safetensors data.valid=nan.safetensors");
}

/* -- What is refused ----------------------------------------------------------------------------------------------- */

static void says(int code, const char *settings, const char *fragment) {
    smelt_says(code, fragment, "train " SETTINGS "device=cpu run=r %s", settings);
    assert_int_equal(access("r/checkpoints", F_OK), -1);
}

static void what_images_have_no_use_for_is_refused(void **state) {
    (void)state;
    static const char *const idle[] = {"data.special=true", "data.separator=x", "data.tokenizer=bytes", "data.packing=best_fit",
        "data.document_mask=false", "data.valid_fraction=0.1", "eval.prompt=x", "eval.sample_tokens=5", "dump=d", "data.cache_mib=100",
        "preference.loss=dpo", "model.vocabulary=400", "model.context=512", "optimizer.balance_lr=0"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) says(ERROR_USAGE, idle[i], "text model");
    says(ERROR_USAGE, "model.guidance=false flow.guidance=2", "flow.guidance=2 has no effect without model.guidance=true");
    says(ERROR_USAGE, "layout.tp=2", "layout.tp x pp x cp x ep = 2 = 1");
    says(ERROR_USAGE, "data.length=14 batch.tokens=84", "largest image 12 tokens, data.length=14 model.text_tokens=3 11: data.length=15");
    says(ERROR_USAGE, "data.train=m.yaml", "m.yaml");
    says(ERROR_USAGE, "data.train=s3://bucket/prefix", "encodings local disk");
    says(ERROR_DATA, "model.text_width=13", "prompt_embeds is F32 [20, 3, 12]");
    says(ERROR_DATA, "data.valid=absent.safetensors", "absent.safetensors");
    assert_int_equal(system("mkdir -p deep/sub other && cp valid.safetensors deep"), 0);
    assert_int_equal(system("mkdir capitals && cp valid.safetensors capitals/VALID.SAFETENSORS"), 0);
    smelt_says(0, "", "train " SETTINGS "device=cpu run=capitals-run data.valid=capitals");
    says(ERROR_DATA, "data.valid=deep", "deep/sub is a folder");
    const float mask[] = {1};
    Error error = {0};
    StoredTensor tensor = {.name = "prompt_embeds_mask", .rank = 1, .shape = {1}, .data = mask};
    Safetensors valid;
    assert_true(safetensors_open(&valid, "valid.safetensors", &error));
    StoredTensor tensors[] = {valid.tensors[0], valid.tensors[1], valid.tensors[2], tensor};
    assert_true(safetensors_write("other/masked.safetensors", tensors, 4, NULL, &error));
    safetensors_close(&valid);
    says(ERROR_DATA, "data.valid=other", "tensor prompt_embeds_mask is not used: remove it");
    smelt_says(ERROR_USAGE, "image model", "train data.train=x run=r flow.shift=2");
    smelt_says(ERROR_USAGE, "model.family=flux", "train data.train=x run=r model.text_tokens=77");
}

static void settings_of_the_flow_change_from_a_step_on_and_are_recorded(void **state) {
    (void)state;
    static const char *const changes[] = {"flow.mean", "flow.deviation", "flow.shift", "flow.guidance"};
    train_images(0, "run=r stop_at=2");
    for (int i = 0; i < 4; i++) {
        SCOPED_FREE char *words = memory_format("train " SETTINGS "run=r stop_at=%d %s=0.5", 3 + i, changes[i]);
        smelt_says(0, changes[i], "%s", words);
    }
    for (int i = 0; i < 4; i++) smelt_says(0, changes[i], "show r");
}

static void other_images_are_other_data(void **state) {
    (void)state;
    train_images(0, "run=r stop_at=5");
    write_bucket("images/.8x6.safetensors", 5, 13, 8, 6);
    train_images(0, "run=r stop_at=6");
    assert_int_equal(rename("images", "moved"), 0);
    train_images(0, "run=r data.train=moved stop_at=8");
    write_bucket("moved/8x6.safetensors", 9, 13, 8, 6);
    smelt_says(ERROR_USAGE, "data.train.content", "train " SETTINGS "device=cpu run=r data.train=moved");
    smelt_good("train " SETTINGS "device=cpu run=r data.train=moved resume.accept=data.train.content");
}

static void generation_refuses_what_it_cannot_write(void **state) {
    (void)state;
    train_images(0, "run=r steps=1");
    static const struct {
        const char *options, *fragment;
    } wrong[] = {{"", "out=FILE.safetensors"}, {"png=x.png", "latents 2 channels"}, {"out=x vae=y", "set png=FILE.png"},
        {"out=x height=3", "numbers"}, {"out=absent/x", "absent/x"}, {"out=x temperature=0.5", "models"},
        {"out=x png=x.png vae=absent", "absent/config.json"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        SCOPED_FREE char *words = memory_format("generate r images/4x6.safetensors device=cpu %s", wrong[i].options);
        ProcessResult result = smelt(words);
        if (!result.code || !mentions(result.errors, wrong[i].fragment)) fail_msg("%s: %s", words, result.errors);
        process_free(&result);
    }
    smelt_good("generate r images/4x6.safetensors out=x.safetensors steps=1 device=cpu");
    smelt_says(ERROR_USAGE, "x.safetensors overwrite=true", "generate r images/4x6.safetensors out=x.safetensors steps=1 device=cpu");
    smelt_says(ERROR_USAGE, "images/4x6.safetensors exists", "generate r images/4x6.safetensors out=images/4x6.safetensors device=cpu");
    smelt_good("generate r images/4x6.safetensors out=x.safetensors overwrite=true steps=1 device=cpu");
    smelt_says(ERROR_USAGE, "several", "generate r images out=x device=cpu");
    smelt_says(ERROR_USAGE, "model.family=flux text model", "eval r images device=cpu");
}

int main(void) {
    if (!realpath("tests/golden/flux_vae", vae_folder)) return 1;
    const struct CMUnitTest tests[] = {
        IMAGES_TEST(a_run_that_stops_and_goes_on_equals_an_unbroken_one_bit_for_bit),
        EACH_ISA(IMAGES_TEST(updates_within_the_backward_pass_give_the_same_bits)),
        IMAGES_TEST(a_killed_run_ends_like_an_unbroken_one),
        IMAGES_TEST(ranks_and_microbatches_learn_the_same),
        IMAGES_TEST(a_run_goes_on_with_other_ranks),
        IMAGES_TEST(all_layers_may_have_two_streams),
        IMAGES_TEST(the_loss_falls_in_each_precision),
        IMAGES_TEST(a_model_goes_out_and_comes_back),
        IMAGES_TEST(captions_are_dropped),
        IMAGES_TEST(pictures_are_made_at_evaluations),
        IMAGES_TEST(adapters_train_beside_a_folder),
        IMAGES_TEST(images_that_are_not_finite_are_named),
        IMAGES_TEST(what_images_have_no_use_for_is_refused),
        IMAGES_TEST(settings_of_the_flow_change_from_a_step_on_and_are_recorded),
        IMAGES_TEST(other_images_are_other_data),
        IMAGES_TEST(generation_refuses_what_it_cannot_write),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
