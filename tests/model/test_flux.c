/* FLUX against PyTorch: models that diffusers made and saved (tests/golden/flux.py) are read from their folders and must give
 * its velocity, its loss, every gradient, and the losses of ten steps of AdamW; on a GPU, in bf16, what points the same way.
 * Then what no other program says: an image of fewer tokens than there is room for, and recomputation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "graph/op.h"
#include "optim/optim.h"
#include "support/each_isa.h"
#include "support/golden_run.h"
#include "support/mentions.h"

enum { HEIGHT = 3, WIDTH = 5, TEXT = 7, STEPS = 10 };

static const char *const folders[] = {"flux_dev", "flux_schnell"};
enum { FOLDERS = sizeof folders / sizeof *folders };

/* Element `index` of a real input. */
static void put(const Golden *g, TensorId tensor, int64_t index, double value) {
    executor_set_values(g->program.executor, tensor, index, &(float){(float)value}, 1);
}

static int64_t columns_of(const Golden *g, TensorId tensor) { return graph_columns(g->program.model.graph, tensor); }

/* Rows of the samples in a stored tensor to the last rows of each sample of an input. */
static void put_rows(const Golden *g, TensorId tensor, const char *name) {
    const StoredTensor *stored = golden_expect(g, name);
    int64_t samples = g->program.model.sequences, columns = columns_of(g, tensor),
            rows = graph_rows(g->program.model.graph, tensor) / samples;
    int64_t given = stored->rank == 3 ? stored->shape[1] : 1, skipped = rows - given;
    for (int64_t i = 0; i < samples * rows * columns; i++) put(g, tensor, i, 0.7); /* where there is none, anything */
    for (int64_t s = 0; s < samples; s++)
        for (int64_t i = 0; i < given * columns; i++)
            put(g, tensor, (s * rows + skipped) * columns + i, golden_value(stored, s * given * columns + i));
}

static void put_time(const Golden *g, TensorId tensor, const char *name) {
    float features[IMAGE_TIME_WIDTH];
    for (int64_t s = 0; tensor && s < g->program.model.sequences; s++) {
        image_time_features(golden_value(golden_expect(g, name), s), features);
        for (int i = 0; i < IMAGE_TIME_WIDTH; i++) put(g, tensor, s * IMAGE_TIME_WIDTH + i, features[i]);
    }
}

/* `spare`: image tokens that the images leave empty. */
static void put_inputs(const Golden *g, int64_t spare) {
    const ImageInputs *x = &g->program.model.image;
    int64_t image = HEIGHT * WIDTH + spare;
    int32_t *places = executor_tensor(g->program.executor, x->places), *positions = executor_tensor(g->program.executor, x->positions);
    put_rows(g, x->latents, "latents");
    put_rows(g, x->text, "text");
    put_rows(g, x->pooled, "pooled");
    put_time(g, x->time, "sigma");
    put_time(g, x->guidance, "guidance");
    for (int64_t r = 0; r < g->program.model.rows; r++) {
        int64_t at = r % g->program.model.length - spare;
        positions[r] = (int32_t)(at < 0 ? 0 : at);
        places[r] = (int32_t)(at < 0 || at >= HEIGHT * WIDTH ? 0 : at / WIDTH * IMAGE_GRID + at % WIDTH);
    }
    if (!x->target) return;
    put_rows(g, x->target, "target");
    for (int64_t r = 0; r < g->program.model.sequences * image; r++) put(g, x->weights, r, r % image < spare ? 0 : 1.0 / (HEIGHT * WIDTH));
    executor_set_scalar(g->program.executor, g->program.model.scale, 1.0 / g->program.model.sequences);
    executor_set_scalar(g->program.executor, g->program.model.share, 1);
}

static void start_on(
    Golden *g, Device *device, const char *name, Precision precision, ModelMode mode, int64_t spare, RecomputePolicy recompute) {
    Error error = {0};
    *g = (Golden){.folder = memory_format("tests/golden/%s", name)};
    SCOPED_FREE char *path = memory_format("%s/expected.safetensors", g->folder);
    if (!source_read_config(g->folder, &g->config, &g->strings, &error) || !safetensors_open(&g->expected, path, &error))
        fail_msg("%s", error.message);
    g->config.model.text_tokens = TEXT;
    g->program = check_program(model_build(&g->config.model, precision, mode, 2, HEIGHT * WIDTH + spare + TEXT, recompute), device);
    if (!weights_load_program(g->folder, &g->config, g->program.executor, &error)) fail_msg("%s", error.message);
    put_inputs(g, spare);
}

static void start(Golden *g, const char *name, Precision precision, ModelMode mode, int64_t spare, RecomputePolicy recompute) {
    start_on(g, device_cpu(), name, precision, mode, spare, recompute);
}

/* Cosine and largest difference of velocities, of the last tokens of each sample. */
static double compare_velocity(const Golden *g, int64_t spare, double *worst) {
    const float *ours = executor_tensor(g->program.executor, g->program.model.velocity);
    const StoredTensor *theirs = golden_expect(g, "velocity");
    int64_t channels = theirs->shape[2], count = theirs->shape[1] * channels;
    double dot = 0, a = 0, b = 0;
    *worst = 0;
    for (int64_t i = 0; i < 2 * count; i++) {
        double x = ours[i + (i / count + 1) * spare * channels], y = golden_value(theirs, i);
        dot += x * y, a += x * x, b += y * y;
        *worst = fmax(*worst, fabs(x - y));
    }
    return dot / sqrt(a * b);
}

static void velocity_is_that_of_diffusers(void **state) {
    (void)state;
    for (int f = 0; f < FOLDERS; f++)
        for (int64_t spare = 0; spare < 10; spare += 9) {
            Golden g;
            double worst;
            start(&g, folders[f], PRECISION_FP32, MODEL_SCORE, spare, RECOMPUTE_NONE);
            executor_run(g.program.executor);
            compare_velocity(&g, spare, &worst);
            if (!(worst < 2e-5)) fail_msg("%s: velocities differ by %g", g.folder, worst); /* values below 10, sums in other orders */
            golden_stop(&g);
        }
}

/* Sums in other orders differ by about 1e-6 of a tensor's norm. */
static void check_relative_error(const Golden *g, const char *name, const GoldenComparison *sums) {
    if (!(sums->difference <= 1e-4 * 1e-4 * sums->theirs) || !(sums->theirs > 0))
        fail_msg(
            "%s: gradient of %s differs by %g of its norm %g", g->folder, name, sqrt(sums->difference / sums->theirs), sqrt(sums->theirs));
}

static void loss_and_gradients_are_those_of_pytorch(void **state) {
    (void)state;
    for (int f = 0; f < FOLDERS; f++)
        for (int64_t spare = 0; spare < 10; spare += 9) {
            Golden g;
            start(&g, folders[f], PRECISION_FP32, MODEL_TRAIN, spare, RECOMPUTE_NONE);
            assert_float_equal(golden_run(&g), golden_value(golden_expect(&g, "loss"), 0), 2e-6);
            golden_each_gradient(&g, "gradient/", check_relative_error);
            golden_stop(&g);
        }
}

/* bf16 has eight bits: single elements are off by 2^-8 and more, the direction of a tensor is not. */
static void check_direction(const Golden *g, const char *name, const GoldenComparison *sums) {
    double cosine = sums->dot / sqrt(sums->ours * sums->theirs);
    if (!(cosine >= 0.999)) fail_msg("%s: gradient of %s has cosine %.6f", g->folder, name, cosine);
}

static void bf16_points_the_same_way(void **state) {
    (void)state;
    for (int f = 0; f < FOLDERS; f++) {
        Golden g;
        double worst;
        start(&g, folders[f], PRECISION_BF16, MODEL_SCORE, 0, RECOMPUTE_NONE);
        executor_run(g.program.executor);
        double cosine = compare_velocity(&g, 0, &worst);
        if (!(cosine >= 0.999)) fail_msg("%s: velocities have cosine %.6f", g.folder, cosine);
        golden_stop(&g);
        start(&g, folders[f], PRECISION_BF16, MODEL_TRAIN, 0, RECOMPUTE_NONE);
        assert_float_equal(golden_run(&g), golden_value(golden_expect(&g, "loss"), 0), 0.03);
        golden_each_gradient(&g, "gradient/", check_direction);
        golden_stop(&g);
    }
}

/* The gradients are copied to the host, where golden_each_gradient looks for those of the CPU. */
static void a_gpu_points_the_same_way_as_pytorch(void **state) {
    (void)state;
    Device *device = check_gpu();
    for (int f = 0; f < FOLDERS; f++) {
        Golden g, host;
        Error error = {0};
        start_on(&g, device, folders[f], PRECISION_BF16, MODEL_TRAIN, 9, RECOMPUTE_NORM);
        start(&host, folders[f], PRECISION_BF16, MODEL_TRAIN, 9, RECOMPUTE_NORM);
        executor_zero(g.program.executor);
        executor_run(g.program.executor);
        assert_true(executor_finish(g.program.executor, &error));
        assert_float_equal(
            executor_get_metric(g.program.executor, g.program.model.loss, 0), golden_value(golden_expect(&g, "loss"), 0), 0.03);
        assert_int_equal(g.program.plan.bytes[ARENA_GRADIENT], host.program.plan.bytes[ARENA_GRADIENT]);
        device_download(device, executor_arena(host.program.executor, ARENA_GRADIENT), executor_arena(g.program.executor, ARENA_GRADIENT),
            g.program.plan.bytes[ARENA_GRADIENT]);
        golden_each_gradient(&host, "gradient/", check_direction);
        golden_stop(&host);
        golden_stop(&g);
    }
}

static void check_steps_of_adamw(Device *device, Precision precision, double bound) {
    for (int f = 0; f < FOLDERS; f++) {
        Golden g;
        Error error = {0};
        start_on(&g, device, folders[f], precision, MODEL_TRAIN, 0, RECOMPUTE_NONE);
        Optimizer *optimizer = optimizer_create(g.program.model.graph, &g.config.optimizer, NULL, device, &error);
        assert_non_null(optimizer);
        for (int step = 1; step <= STEPS; step++) {
            executor_zero(g.program.executor);
            executor_run(g.program.executor);
            assert_true(executor_finish(g.program.executor, &error));
            double loss = executor_get_metric(g.program.executor, g.program.model.loss, 0),
                   theirs = golden_value(golden_expect(&g, "adamw_losses"), step - 1);
            if (!(fabs(loss - theirs) < bound))
                fail_msg("%s: the loss before step %d is %.7f, and PyTorch has %.7f", g.folder, step, loss, theirs);
            optimizer_step(
                optimizer, &(Update){executor_arena(g.program.executor, ARENA_MASTER), executor_arena(g.program.executor, ARENA_WEIGHT),
                               executor_arena(g.program.executor, ARENA_GRADIENT), step, 0.003, 1});
        }
        optimizer_free(optimizer);
        golden_stop(&g);
    }
}

/* Rounding grows with the steps, to about 1e-6 of losses near 2. */
static void ten_steps_of_adamw_have_the_losses_of_pytorch(void **state) {
    (void)state;
    check_steps_of_adamw(device_cpu(), PRECISION_FP32, 1e-5);
}

/* bf16 has errors of 2^-9 in each factor; the losses fall by half, from 1.5 and more. */
static void ten_steps_of_adamw_on_a_gpu_have_the_losses_of_pytorch(void **state) {
    (void)state;
    check_steps_of_adamw(check_gpu(), PRECISION_BF16, 0.03);
}

/* Written from what was read, and read again: the same fields and bits. */
static void a_folder_is_written_as_diffusers_writes_it(void **state) {
    (void)state;
    static const char folder[] = "build/tests/flux-folder";
    Error error = {0};
    for (int f = 0; f < FOLDERS; f++) {
        HfModel first, second;
        Safetensors files[2];
        SCOPED_FREE char *from = memory_format("tests/golden/%s", folders[f]);
        assert_true(hf_read(from, &first, &error));
        SCOPED(model_free) Model model = model_describe(&first.config, NULL, PRECISION_FP32);
        HfReader *reader = hf_reader_open(from, &first.config, model.graph, &error);
        assert_non_null(reader);
        HfExport export = {.config = &first.config, .precision = first.precision, .reader = reader, .keep = true};
        if (!hf_write(&export, folder, true, &error)) fail_msg("%s", error.message);
        assert_true(hf_read(folder, &second, &error));
        json_object_del(first.content, "_diffusers_version");
        assert_true(json_equal(first.content, second.content));
        const char *const names[] = {from, folder};
        for (int i = 0; i < 2; i++) {
            SCOPED_FREE char *path = memory_format("%s/diffusion_pytorch_model.safetensors", names[i]);
            assert_true(safetensors_open(&files[i], path, &error));
        }
        assert_int_equal(files[0].count, files[1].count);
        for (size_t i = 0; i < files[0].count; i++) {
            const StoredTensor *a = &files[0].tensors[i], *b = safetensors_find(&files[1], a->name);
            int64_t count = 1;
            for (int d = 0; d < a->rank; d++) count *= a->shape[d];
            assert_true(b && a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof *a->shape));
            assert_memory_equal(a->data, b->data, count * sizeof(float));
        }
        for (int i = 0; i < 2; i++) safetensors_close(&files[i]);
        hf_reader_close(reader);
        hf_release(&first);
        hf_release(&second);
    }
    assert_true(file_remove(folder, &error));
}

/* Fields that say something else than our models compute, each refused by name. */
static void what_smelt_does_not_compute_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *field, *value;
    } wrong[] = {{"patch_size", "2"}, {"out_channels", "4"}, {"axes_dims_rope", "[2, 2, 4]"}, {"axes_dims_rope", "[4, 4]"},
        {"num_single_layers", "-1"}, {"num_layers", "0"}, {"attention_head_dim", "7"}, {"guidance_embeds", "3"}};
    static const char folder[] = "build/tests/flux-wrong", path[] = "build/tests/flux-wrong/config.json";
    Error error = {0};
    assert_true(file_make_folder(folder, &error));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        HfModel model;
        json_auto_t *content = json_load_file("tests/golden/flux_dev/config.json", 0, NULL);
        assert_int_equal(json_object_set_new(content, wrong[i].field, json_loads(wrong[i].value, JSON_DECODE_ANY, NULL)), 0);
        assert_int_equal(json_dump_file(content, path, 0), 0);
        error = (Error){0};
        assert_false(hf_read(folder, &model, &error));
        if (error.code != ERROR_CHECKPOINT || !mentions(error.message, wrong[i].field)) fail_msg("%s: %s", wrong[i].field, error.message);
    }
    assert_true(file_remove(folder, &error));
}

static void recomputation_gives_the_same_bits(void **state) {
    (void)state;
    Golden kept, again;
    start(&kept, folders[0], PRECISION_BF16, MODEL_TRAIN, 4, RECOMPUTE_NONE);
    double loss = golden_run(&kept);
    for (RecomputePolicy policy = RECOMPUTE_NORM; policy <= RECOMPUTE_BLOCK; policy++) {
        start(&again, folders[0], PRECISION_BF16, MODEL_TRAIN, 4, policy);
        assert_true(golden_run(&again) == loss);
        assert_memory_equal(executor_arena(again.program.executor, ARENA_GRADIENT), executor_arena(kept.program.executor, ARENA_GRADIENT),
            again.program.plan.bytes[ARENA_GRADIENT]);
        golden_stop(&again);
    }
    golden_stop(&kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(velocity_is_that_of_diffusers),
        cmocka_unit_test(loss_and_gradients_are_those_of_pytorch),
        cmocka_unit_test(bf16_points_the_same_way),
        cmocka_unit_test(a_gpu_points_the_same_way_as_pytorch),
        cmocka_unit_test(ten_steps_of_adamw_have_the_losses_of_pytorch),
        cmocka_unit_test(ten_steps_of_adamw_on_a_gpu_have_the_losses_of_pytorch),
        EACH_ISA(cmocka_unit_test(recomputation_gives_the_same_bits)),
        cmocka_unit_test(a_folder_is_written_as_diffusers_writes_it),
        cmocka_unit_test(what_smelt_does_not_compute_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
