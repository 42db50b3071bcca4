/* A folder of tests/golden as a program: a model that transformers saved, and what PyTorch expects of it. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "ckpt/ckpt.h"
#include "formats/hf.h"
#include "run/source.h"
#include "session/weights.h"
#include "support/check.h"

/* A folder's model as a program of one kind, with the weights and inputs in place. */
typedef struct Golden {
    char *folder;
    Config config;
    OptionStrings strings;
    Safetensors expected;
    Program program;
} Golden;

static inline const StoredTensor *golden_expect(const Golden *g, const char *name) {
    const StoredTensor *tensor = safetensors_find(&g->expected, name);
    if (!tensor) fail_msg("%s: expected.safetensors has no %s", g->folder, name);
    return tensor;
}

static inline float golden_value(const StoredTensor *tensor, int64_t index) {
    float result;
    memcpy(&result, (const char *)tensor->data + index * sizeof result, sizeof result);
    return result;
}

static inline void golden_put_inputs(const Golden *g, int64_t sequences, int64_t length, const StoredTensor *stored) {
    int32_t *tokens = executor_tensor(g->program.executor, g->program.model.tokens),
            *positions = executor_tensor(g->program.executor, g->program.model.positions);
    int32_t *targets = g->program.model.targets ? executor_tensor(g->program.executor, g->program.model.targets) : NULL;
    for (int64_t s = 0; s < sequences; s++)
        for (int64_t i = 0; i < length; i++) {
            const char *at = (const char *)stored->data + (s * (length + 1) + i) * sizeof(int32_t);
            memcpy(&tokens[s * length + i], at, sizeof(int32_t));
            if (targets) memcpy(&targets[s * length + i], at + sizeof(int32_t), sizeof(int32_t));
            positions[s * length + i] = (int32_t)i;
        }
    if (g->program.model.scale) {
        *(float *)executor_tensor(g->program.executor, g->program.model.scale) = 1.0f / (float)(sequences * length);
        *(float *)executor_tensor(g->program.executor, g->program.model.share) = 1;
        program_put_prediction(&g->program, &(TextRows){tokens, targets, positions}, 0.3);
    }
}

/* Reads tests/golden/FAMILY. `fp8` NULL: none. */
static inline void golden_start_with(
    Golden *g, const char *family, Precision precision, ModelMode mode, const Fp8Config *fp8, RecomputePolicy recompute) {
    Error error = {0};
    *g = (Golden){.folder = memory_format("tests/golden/%s", family)};
    char *path = memory_format("%s/expected.safetensors", g->folder);
    bool opened = source_read_config(g->folder, &g->config, &g->strings, &error) && safetensors_open(&g->expected, path, &error);
    free(path);
    if (!opened) fail_msg("%s", error.message);
    if (fp8) g->config.model.fp8 = *fp8;
    const StoredTensor *tokens = golden_expect(g, "tokens");
    int64_t sequences = tokens->shape[0], length = tokens->shape[1] - 1;
    g->program = check_program(model_build(&g->config.model, precision, mode, sequences, length, recompute), device_cpu());
    if (!weights_load_program(g->folder, &g->config, g->program.executor, &error)) fail_msg("%s", error.message);
    golden_put_inputs(g, sequences, length, tokens);
}

static inline void golden_start(Golden *g, const char *family, Precision precision, ModelMode mode, const Fp8Config *fp8) {
    golden_start_with(g, family, precision, mode, fp8, RECOMPUTE_NONE);
}

static inline void golden_stop(Golden *g) {
    program_free(&g->program);
    safetensors_close(&g->expected);
    options_free_strings(&g->strings);
    free(g->folder);
}

static inline double golden_run(const Golden *g) {
    executor_zero(g->program.executor);
    executor_run(g->program.executor);
    return *(const float *)executor_tensor(g->program.executor, g->program.model.loss);
}

typedef struct GoldenComparison { double dot, ours, theirs, difference; } GoldenComparison;

static inline GoldenComparison golden_compare(const float *values, const StoredTensor *theirs, const Parameter *p) {
    GoldenComparison sums = {0};
    SCOPED_FREE float *ours = memory_allocate((size_t)p->count * sizeof *ours);
    hf_reorder(p, (const char *)values, (char *)ours, sizeof *ours);
    for (int64_t i = 0; i < p->count; i++) {
        double a = ours[i], b = golden_value(theirs, i);
        sums.dot += a * b;
        sums.ours += a * a;
        sums.theirs += b * b;
        sums.difference += (a - b) * (a - b);
    }
    return sums;
}

/* Calls `check` for every parameter that a gradient trains, with what is expected under `prefix` and its name. */
static inline void golden_each_gradient(
    const Golden *g, const char *prefix, void (*check)(const Golden *, const char *, const GoldenComparison *)) {
    const Graph *graph = g->program.model.graph;
    const float *gradients = executor_arena(g->program.executor, ARENA_GRADIENT);
    size_t count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->kind == PARAMETER_BALANCE_BIAS) continue;
        char *name = memory_format("%s%s", prefix, p->name);
        const StoredTensor *expected = golden_expect(g, name);
        int64_t elements = 1;
        for (int d = 0; d < expected->rank; d++) elements *= expected->shape[d];
        assert_int_equal(elements, p->count);
        GoldenComparison sums = golden_compare(parameter_in(p, gradients), expected, p);
        check(g, p->name, &sums);
        free(name);
        count++;
    }
    for (size_t i = 0; i < g->expected.count; i++) count -= !strncmp(g->expected.tensors[i].name, prefix, strlen(prefix));
    assert_int_equal(count, 0);
}
