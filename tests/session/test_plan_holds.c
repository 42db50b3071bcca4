/* A property of plans: whatever configuration a plan is made for, a session allocates no more device memory than its
 * budget says when it starts, trains and updates, and hardly less; and no more pinned host memory than offload's. The
 * device is a CPU that says that its memory is not the host's, so that programs take the paths of a card, or the GPU of
 * SMELT_TEST_DEVICE. bench/plan_holds.py asks the same of a card that is filled to 97%. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/math.h"
#include "base/rng.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "session/session.h"
#include "support/late_device.h"

/* -- A device that counts ------------------------------------------------------------------------------------------- */

typedef struct Counted { int64_t now, most; } Counted;
static Counted on_device, on_host;
static DeviceMethods real;

static void count_bytes(Counted *counted, int64_t bytes) {
    counted->now += bytes;
    counted->most = int_max(counted->most, counted->now);
}

static void *counted_allocate(Device *device, int64_t bytes, Error *error) {
    void *memory = real.allocate(device, bytes, error);
    if (memory) count_bytes(&on_device, bytes);
    return memory;
}
static void counted_free(Device *device, void *memory, int64_t bytes) {
    if (memory) count_bytes(&on_device, -bytes);
    real.free(device, memory, bytes);
}
static void *counted_allocate_host(Device *device, int64_t bytes, Error *error) {
    void *memory = real.allocate_host(device, bytes, error);
    if (memory) count_bytes(&on_host, bytes);
    return memory;
}
static void counted_free_host(Device *device, void *memory, int64_t bytes) {
    if (memory) count_bytes(&on_host, -bytes);
    real.free_host(device, memory, bytes);
}

/* A device of SMELT_TEST_DEVICE, or a CPU in the place of a card, whose copies are late. */
static Device *counting_device(void) {
    static DeviceMethods methods;
    const char *kind = getenv("SMELT_TEST_DEVICE");
    Error error = {0};
    Device *device = kind ? device_open(!strcmp(kind, "hip") ? DEVICE_HIP : DEVICE_CUDA, 0, &error) : late_device();
    if (!device) fail_msg("%s", error.message);
    if (!kind) device->info.host_memory = false;
    real = methods = *device->methods;
    methods.allocate = counted_allocate, methods.free = counted_free;
    methods.allocate_host = counted_allocate_host, methods.free_host = counted_free_host;
    device->methods = &methods;
    return device;
}

/* -- Random configurations ------------------------------------------------------------------------------------------ */

enum { CHOICES = 6, DRAWS = 48, DRAWS_ON_GPU = 4 };
static const char *const choices[][CHOICES] = {
    {"model.family=llama", "model.family=zaya model.experts=4 model.kv_heads=1 model.router_width=8",
        "model.family=llama model.experts=4 model.experts_per_token=2 model.renormalise=true", "model.family=gpt2", "model.family=olmo",
        "model.family=llama model.tied=false model.qk_norm=true"},
    {"model.layers=1", "model.layers=3", "model.layers=5", "model.layers=8", "model.layers=2", "model.layers=4"},
    {"precision=bf16", "precision=pure_bf16", "precision=bf16", "precision=pure_bf16", "precision=bf16", "precision=pure_bf16"},
    {"recompute=none", "recompute=norm", "recompute=attention", "recompute=block", "recompute=block", "recompute=block"},
    {"offload=none", "offload=none", "offload=optimizer", "offload=activations", "offload=both", "offload=both"},
    {"optimizer.name=adamw", "optimizer.name=adamw_8bit", "optimizer.name=lion", "optimizer.name=muon", "optimizer.name=adamw",
        "optimizer.name=adamw"},
    {"optimizer.in_backward=false", "optimizer.in_backward=true", "optimizer.in_backward=false", "optimizer.in_backward=true",
        "optimizer.in_backward=false", "optimizer.in_backward=false"},
    {"batch.sequences=1", "batch.sequences=2", "batch.sequences=3", "batch.sequences=4", "batch.sequences=1", "batch.sequences=2"},
    {"data.length=64", "data.length=96", "data.length=33", "data.length=128", "data.length=64", "data.length=48"},
    {"layout.bucket_mb=0.01", "layout.bucket_mb=0.05", "layout.bucket_mb=0", "layout.bucket_mb=0.01", "layout.bucket_mb=1",
        "layout.bucket_mb=0.02"},
    {"model.vocabulary=320", "model.vocabulary=1000", "model.vocabulary=64", "model.vocabulary=320", "model.vocabulary=257",
        "model.vocabulary=512"},
};
enum { SETTINGS = sizeof choices / sizeof *choices };

static bool set_words(Config *config, OptionStrings *strings, const char *words, Error *error) {
    SCOPED_FREE char *copy = memory_copy_string(words);
    for (char *next, *word = strtok_r(copy, " ", &next); word; word = strtok_r(NULL, " ", &next))
        if (!options_set(&config_table, config, strings, word, error)) return false;
    return true;
}

/* Makes configuration number `draw`; `text` receives its settings. Returns false for settings that do not go together. */
static bool draw_config(int draw, Config *config, OptionStrings *strings, char *text, size_t size) {
    Error error = {0};
    size_t length = 0;
    options_defaults(&config_table, config, strings);
    for (int i = 0; i < SETTINGS; i++) {
        int choice = (int)(rng_uniform(17, (uint64_t)draw, (uint64_t)i) * CHOICES);
        length += (size_t)snprintf(text + length, size - length, "%s ", choices[i][choice]);
    }
    if (!set_words(
            config, strings, "model.width=64 model.heads=4 model.kv_heads=4 model.ffn=96 eval.sample_tokens=0 optimizer.clip=0", &error) ||
        !set_words(config, strings, text, &error))
        fail_msg("%s", error.message);
    config->batch.tokens = config->batch.sequences * config->data.length * (config->optimizer.in_backward ? 1 : 1 + draw % 3);
    return config_check(config, &error);
}

/* -- Steps ----------------------------------------------------------------------------------------------------------- */

static void load_tokens(void *context, int64_t microbatch) {
    const Session *session = context;
    const Model *model = &session->training.model;
    Executor *executor = session->training.executor;
    int32_t *tokens = executor_tensor(executor, model->tokens), *targets = executor_tensor(executor, model->targets),
            *positions = executor_tensor(executor, model->positions);
    for (int64_t i = 0; i < model->rows; i++) {
        tokens[i] = targets[(i + model->rows - 1) % model->rows] =
            (int32_t)(rng_uniform(3, (uint64_t)microbatch, (uint64_t)i) * (double)session->config->model.vocabulary);
        positions[i] = (int32_t)(i % session->config->data.length);
    }
    executor_set_scalar(executor, model->scale, 1.0 / (double)session->config->batch.tokens);
    executor_set_scalar(executor, model->share, 1.0 / (double)session_step_microbatches(session));
}

static void train_steps(Session *session, const char *text) {
    Error error = {0};
    for (int64_t step = 1; step <= 3; step++) {
        const ProgramWork work = {.microbatches = session_step_microbatches(session), .load = load_tokens, .context = session};
        session_begin_step(session, step, 1e-3, session->config->batch.tokens);
        if (!session_run(session, &work, &error) || !executor_finish(session->training.executor, &error))
            fail_msg("%s: %s", text, error.message);
        session_update(session, 1);
        device_synchronize(session->device);
    }
}

/* Pinned memory beside offload's are small blocks: sizes that nodes write for the host. */
static void check_draw(Device *device, const Config *config, const char *text) {
    enum { SMALL = 64 << 10 };
    Error error = {0};
    Session session = {0};
    on_device = on_host = (Counted){0};
    if (!session_plan(&session, config, device, &error) || !session_start(&session, comm_alone(), &error))
        fail_msg("%s: %s", text, error.message);
    train_steps(&session, text);
    Budget budget = session_budget(&session);
    int64_t offload = budget.hosted + budget.saved;
    if (on_device.most > budget.total)
        fail_msg("%s: %lld bytes allocated, %lld planned", text, (long long)on_device.most, (long long)budget.total);
    if (on_device.most < budget.total - budget.trials - budget.total / 8 - SMALL)
        fail_msg("%s: only %lld bytes allocated, %lld planned", text, (long long)on_device.most, (long long)budget.total);
    if (on_host.most > offload + SMALL || on_host.most < offload)
        fail_msg("%s: %lld bytes pinned, %lld planned", text, (long long)on_host.most, (long long)offload);
    session_free(&session);
    if (on_device.now || on_host.now)
        fail_msg("%s: %lld and %lld bytes were not freed", text, (long long)on_device.now, (long long)on_host.now);
}

static void sessions_allocate_what_their_plans_say(void **state) {
    (void)state;
    Device *device = counting_device();
    int draws = getenv("SMELT_TEST_DEVICE") ? DRAWS_ON_GPU : DRAWS, checked = 0;
    for (int draw = 0; checked < draws && draw < 4 * DRAWS; draw++) {
        OptionStrings strings = {0};
        Config config;
        char text[1024];
        if (draw_config(draw, &config, &strings, text, sizeof text)) {
            check_draw(device, &config, text);
            checked++;
        }
        options_free_strings(&strings);
    }
    assert_int_equal(checked, draws);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_allocate_what_their_plans_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
