/* The generator owns weights, caches and two programs over them: one for a single row and one for a block of the
 * prompt, which share the arenas of weights and states. */
#include "infer/generate.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "model/model.h"
#include "graph/op.h"
#include "backend/backend.h"

enum { GENERATOR_BLOCK = 32 }; /* rows of the prompt at a time */

typedef struct Program {
    Model model;
    Plan plan;
    Executor *executor;
} Program;

struct Generator {
    const ModelConfig *config;
    Precision precision;
    Backend backend;
    bool cache;
    Program row, block;        /* without the cache `row` only describes the weights */
    void *shared[ARENA_COUNT]; /* WEIGHT, MASTER and STATE, of the sizes in row.plan */
    int32_t *tokens;           /* [context] */
    int64_t count, computed;   /* tokens so far, and how many of them are in the cache */
    void *wide_logits;         /* [vocabulary] in the WIDE type */
    double *logits;            /* [vocabulary], of the token after `count`, when count == computed */
};

/* -- Programs ------------------------------------------------------------------------------------------------------ */

static void program_build(Program *program, const Generator *g, ModelMode mode, int64_t length) {
    program->model = model_build(g->config, g->precision, mode, 1, length, RECOMPUTE_NONE);
    program->plan = graph_plan_lasting(program->model.graph);
}

static void program_plan(Program *program, const Generator *g) { program->plan = graph_plan(program->model.graph, &g->backend); }

static bool program_start(Program *program, const Generator *g, Error *error) {
    program->executor = executor_create(program->model.graph, &program->plan, &g->backend, g->shared, error);
    return program->executor != NULL;
}

static void program_free(Program *program) {
    executor_free(program->executor);
    model_free(&program->model);
}

/* Runs the tokens from `first` on, as many as the program is long. */
static void program_run(Program *program, Generator *g, int64_t first) {
    int64_t length = program->model.length;
    int32_t *positions = executor_tensor(program->executor, program->model.positions);
    memcpy(executor_tensor(program->executor, program->model.tokens), g->tokens + first, length * sizeof *g->tokens);
    for (int64_t i = 0; i < length; i++) positions[i] = (int32_t)(first + i);
    executor_run(program->executor);
    executor_read(program->executor, program->model.logits, g->wide_logits);
    size_t bytes = precision_bytes(g->precision, TYPE_WIDE);
    for (int64_t i = 0; i < g->config->vocabulary; i++) g->logits[i] = element_get(bytes, g->wide_logits, i);
    g->computed = first + length;
}

/* Both programs must give the same offsets to the states in the shared arena. */
static void assert_same_states(const Program *a, const Program *b) {
    int at = 0;
    for (int i = 1; i < a->model.graph->tensor_count; i++) {
        const Tensor *x = &a->model.graph->tensors[i], *y;
        if (x->arena != ARENA_STATE) continue;
        do y = &b->model.graph->tensors[++at];
        while (y->arena != ARENA_STATE);
        assert(!strcmp(x->name, y->name) && x->offset == y->offset);
        (void)y;
    }
    assert(a->plan.bytes[ARENA_STATE] == b->plan.bytes[ARENA_STATE]);
}

/* -- Opening and closing ------------------------------------------------------------------------------------------- */

/* Frees a program, but not the arenas that both programs share. */
static int64_t program_bytes(const Program *program) {
    int64_t bytes = 0;
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (arena != ARENA_WEIGHT && arena != ARENA_MASTER && arena != ARENA_STATE) bytes += program->plan.bytes[arena];
    return bytes;
}

static bool check_memory(const Generator *g, Error *error) {
    int64_t needed = g->row.plan.bytes[ARENA_WEIGHT] + g->row.plan.bytes[ARENA_MASTER] + g->row.plan.bytes[ARENA_STATE] +
                     program_bytes(&g->row) + program_bytes(&g->block);
    int64_t available = device_available(g->backend.device);
    if (available < 0 || needed <= available) return true;
    char need[32], have[32], caches[32];
    log_format_bytes((double)needed, need);
    log_format_bytes((double)available, have);
    log_format_bytes((double)g->row.plan.bytes[ARENA_STATE], caches);
    return error_set(error, ERROR_MEMORY,
        "generation needs %s (%s of it caches for %" PRId64 " positions) and %s are available: use a machine with more memory", need,
        caches, g->config->context, have);
}

static bool start(Generator *g, Error *error) {
    static const Arena owned[] = {ARENA_WEIGHT, ARENA_MASTER, ARENA_STATE};
    program_build(&g->row, g, g->cache ? MODEL_GENERATE : MODEL_SCORE, 1);
    if (!check_memory(g, error)) return false;
    program_plan(&g->row, g);
    if (g->cache) {
        program_build(&g->block, g, MODEL_GENERATE, g->config->context < GENERATOR_BLOCK ? g->config->context : GENERATOR_BLOCK);
        program_plan(&g->block, g);
        assert_same_states(&g->row, &g->block);
    }
    if (!check_memory(g, error)) return false;
    for (int i = 0; i < 3; i++) {
        int64_t bytes = g->row.plan.bytes[owned[i]];
        if (bytes && !(g->shared[owned[i]] = device_allocate(g->backend.device, bytes, error)))
            return error_context(error, "%s of generation", arena_name(owned[i]));
    }
    return !g->cache || (program_start(&g->row, g, error) && program_start(&g->block, g, error));
}

Generator *generator_create(const ModelConfig *config, Precision precision, Device *device, bool cache, Error *error) {
    Generator *g = memory_allocate(sizeof *g);
    *g = (Generator){.config = config, .precision = precision, .cache = cache};
    g->tokens = memory_allocate(config->context * sizeof *g->tokens);
    g->wide_logits = memory_allocate(config->vocabulary * precision_bytes(precision, TYPE_WIDE));
    g->logits = memory_allocate(config->vocabulary * sizeof *g->logits);
    if (op_backend(&g->backend, device, precision, "", error) && start(g, error)) return g;
    generator_free(g);
    return NULL;
}

void generator_free(Generator *g) {
    if (!g) return;
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (g->shared[arena]) device_free(g->backend.device, g->shared[arena], g->row.plan.bytes[arena]);
    program_free(&g->row);
    program_free(&g->block);
    free(g->tokens);
    free(g->wide_logits);
    free(g->logits);
    free(g);
}

const Graph *generator_graph(const Generator *g) { return g->row.model.graph; }
void *generator_master(Generator *g) { return g->shared[ARENA_MASTER]; }
void *generator_weights(Generator *g) { return g->shared[ARENA_WEIGHT]; }
void generator_use_weights(Generator *g) {
    model_cast_weights(g->row.model.graph, g->backend.device, g->shared[ARENA_MASTER], g->shared[ARENA_WEIGHT]);
}

/* -- Tokens -------------------------------------------------------------------------------------------------------- */

int64_t generator_room(const Generator *g) { return g->config->context - g->count; }

bool generator_feed(Generator *g, const int32_t *tokens, int64_t count, Error *error) {
    if (count > generator_room(g))
        return error_set(error, ERROR_USAGE, "%" PRId64 " tokens do not fit: %" PRId64 " of model.context=%" PRId64 " positions are left",
            count, generator_room(g), g->config->context);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->config->vocabulary)
            return error_set(
                error, ERROR_USAGE, "token %" PRId32 " is not below model.vocabulary=%" PRId64, tokens[i], g->config->vocabulary);
    memcpy(g->tokens + g->count, tokens, count * sizeof *tokens);
    g->count += count;
    return true;
}

static bool compute_whole(Generator *g, Error *error) {
    SCOPED(program_free) Program program = {0};
    program_build(&program, g, MODEL_SCORE, g->count);
    program_plan(&program, g);
    if (!program_start(&program, g, error)) return false;
    program_run(&program, g, 0);
    return true;
}

const double *generator_logits(Generator *g, Error *error) {
    assert(g->count > 0);
    if (!g->cache && g->computed < g->count && !compute_whole(g, error)) return NULL;
    while (g->computed < g->count) program_run(g->count - g->computed >= g->block.model.length ? &g->block : &g->row, g, g->computed);
    for (int64_t i = 0; i < g->config->vocabulary; i++)
        if (!isfinite(g->logits[i])) {
            error_set(error, ERROR_NUMERICS, "the logit of token %" PRId64 " after %" PRId64 " tokens is %g: the weights are broken", i,
                g->count, g->logits[i]);
            return NULL;
        }
    return g->logits;
}

bool generator_next(Generator *g, const Sampling *sampling, int64_t limit, int32_t *token, Error *error) {
    assert(generator_room(g) > 0);
    const double *logits = generator_logits(g, error);
    if (!logits) return false;
    int64_t count = limit < g->config->vocabulary ? limit : g->config->vocabulary;
    *token = sample_token(logits, count, sampling, rng_uniform(sampling->seed, RNG_STREAM_SAMPLE, g->count));
    g->tokens[g->count++] = *token;
    return true;
}
