/* Training with real ranks under mpirun, compared with one process: losses step by step, and gradients and weights tensor
 * by tensor, read from checkpoints, which have whole tensors whatever ranks wrote them. */
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/scope.h"
#include "train_run.h"

/* Behind TINY; what a test gives wins. */
#define RANKS_SETTINGS "precision=fp32 steps=20 threads=1 eval.every=10 eval.sample_tokens=0 layout.bucket_mb=0.01"

static inline bool has_mpi(void) { return system("command -v mpirun > /dev/null 2>&1") == 0; }

static inline ProcessResult run_ranks(int ranks, const char *settings) {
    /* A sanitized program would end badly because of what Open MPI does not free. */
    char *text = memory_format(
        "ASAN_OPTIONS=detect_leaks=0 OMP_WAIT_POLICY=passive mpirun -n %d --oversubscribe --allow-run-as-root %s train %s %s %s", ranks,
        getenv("SMELT"), TINY, RANKS_SETTINGS, settings);
    Process process = words_start("/usr/bin/env", text);
    free(text);
    return process_finish(&process);
}

/* Trains with these ranks, 0: one process without mpirun. */
__attribute__((format(printf, 2, 3))) static inline void train_ranks(int ranks, const char *format, ...) {
    char *settings = NULL;
    va_list values;
    va_start(values, format);
    assert_true(vasprintf(&settings, format, values) >= 0);
    va_end(values);
    if (ranks == 0) train_good(RANKS_SETTINGS " %s", settings);
    else {
        ProcessResult result = run_ranks(ranks, settings);
        expect_code(&result, 0, settings);
        process_free(&result);
    }
    free(settings);
}

static inline void compare_records_within(const char *run, const char *other, const char *kind, const char *field, double bound) {
    json_t *list = records(run, kind), *others = records(other, kind);
    assert_true(json_array_size(list) > 0);
    assert_int_equal(json_array_size(list), json_array_size(others));
    for (size_t i = 0; i < json_array_size(list); i++) {
        double value = number(json_array_get(list, i), field), expected = number(json_array_get(others, i), field);
        if (!(fabs(value - expected) <= bound * fabs(expected)))
            fail_msg("%s, %s %zu of %s: %.9g instead of %.9g", kind, field, i, run, value, expected);
    }
    json_decref(list);
    json_decref(others);
}

/* The order of fp32 sums is all that differs: 6e-8 each, grown over 20 steps. A rank too few or too many is off by parts of
 * ten. */
static inline void compare_records(const char *run, const char *other, const char *kind, const char *field) {
    compare_records_within(run, other, kind, field, 1e-5);
}

static inline void assert_same_losses(const char *run, const char *other) {
    compare_records(run, other, "step", "loss");
    compare_records(run, other, "step", "grad_norm");
    compare_records(run, other, "evaluation", "loss");
}

/* -- Tensors of checkpoints ---------------------------------------------------------------------------------------- */

/* Shapes of the tensors of a checkpoint by their names. The caller owns it. */
static inline json_t *checkpoint_shapes(const char *run, int64_t step) {
    char *path = checkpoint_file(run, step, "manifest.json");
    json_error_t reason;
    json_t *manifest = json_load_file(path, 0, &reason), *shapes = json_object(), *interval;
    size_t i;
    if (!manifest) fail_msg("%s: %s", path, reason.text);
    json_array_foreach(json_object_get(manifest, "intervals"), i, interval)
        json_object_set(shapes, json_string_value(json_object_get(interval, "tensor")), json_object_get(interval, "shape"));
    json_decref(manifest);
    free(path);
    return shapes;
}

/* A whole fp32 tensor of a checkpoint, or codes as numbers, for the caller to free. */
static inline float *checkpoint_tensor(const char *run, int64_t step, const char *name, const json_t *shape, int64_t *count) {
    bool codes = strstr(name, "_codes/");
    Interval interval = {.name = name, .type = codes ? STORED_U8 : STORED_F32, .rank = (int)json_array_size(shape)};
    Error error = {0};
    *count = 1;
    for (int i = 0; i < interval.rank; i++) *count *= interval.shape[i] = json_integer_value(json_array_get(shape, (size_t)i));
    float *values = malloc((size_t)*count * sizeof *values);
    interval.slice.count = *count;
    interval.data = values;
    if (!checkpoint_load(run, step, &interval, 1, NULL, &error)) fail_msg("%s: %s", run, error.message);
    for (int64_t i = *count - 1; codes && i >= 0; i--) values[i] = ((unsigned char *)values)[i];
    return values;
}

/* Demands that all tensors whose names begin with `prefix` differ by at most `tolerance` of the largest element of each. */
static inline void assert_same_tensors(const char *run, const char *other, int64_t step, const char *prefix, double tolerance) {
    json_t *shapes = checkpoint_shapes(other, step), *found = checkpoint_shapes(run, step), *shape;
    const char *name;
    assert_int_equal(json_object_size(found), json_object_size(shapes));
    json_object_foreach(shapes, name, shape) {
        int64_t count, others;
        if (strncmp(name, prefix, strlen(prefix)) != 0) continue;
        if (!json_object_get(found, name)) fail_msg("%s has no %s", run, name);
        float *values = checkpoint_tensor(run, step, name, json_object_get(found, name), &count);
        float *expected = checkpoint_tensor(other, step, name, shape, &others);
        double most = 0, off = 0;
        assert_int_equal(count, others);
        for (int64_t i = 0; i < count; i++) {
            most = fmax(most, fabs(expected[i]));
            off = fmax(off, fabs(values[i] - expected[i]));
        }
        if (!(off <= tolerance * most)) fail_msg("%s of %s: off by %.3g, its largest element is %.3g", name, run, off, most);
        free(values);
        free(expected);
    }
    json_decref(shapes);
    json_decref(found);
}

/* The momentum of the first step is the gradient times a constant: run with checkpoint.every=1. */
static inline void assert_same_gradients(const char *run, const char *other) {
    assert_same_tensors(run, other, 1, "optimizer/momentum/", 1e-5);
}

/* The momentum of step 10 sums the gradients of all steps so far: run with checkpoint.every=10 and checkpoint.keep=100. Weights
 * differ by roundings from the second step on, so it differs by up to 2.5e-5. */
static inline void assert_same_momentum(const char *run, const char *other) {
    assert_same_tensors(run, other, 10, "optimizer/momentum/", 1e-4);
}
