/* The generator owns weights, caches and programs over them: one program for a single row and
 * others for blocks of the prompt. All share the arenas of weights and states. On a mesh every rank
 * runs the same rows; this file does not know how its programs are sharded. */
#include "infer/generate.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"

#include "graph/op.h"
#include "ops/attention/attention.h"
#include "ops/collective/collective.h"
#include "ops/argmax/argmax.h"
#include "program/program.h"

/* Rows at a time: the longest program that the remaining prompt fills is used. A single row fills a
 * GPU with chunks of its keys, and a block of 512 rows with tiles of rows. */
static const int64_t lengths[] = {1, 8, 64, 512};
enum { PROGRAMS = sizeof lengths / sizeof *lengths, MOST_RANKS = 1024 /* that a message suggests */ };

struct Generator {
    Mesh mesh;
    Comm *comm; /* all of its ranks */
    const ModelConfig *config;
    Precision precision;
    Device *device;
    bool cache;
    Program programs[PROGRAMS]; /* by `lengths`; without the cache the only program, which just describes the weights */
    int program_count;
    void *shared[ARENA_COUNT]; /* WEIGHT, MASTER and STATE, sized by the first program's plan */
    int32_t *tokens;           /* [context] */
    int64_t count, computed;   /* number of tokens, and of tokens in the cache */
    void *wide_logits;         /* [vocabulary] in the WIDE type, in memory that the device can access */
    double *logits;            /* [vocabulary], for the token after `count`; valid if count == computed and `unread` is NULL */
    Program *unread;           /* the program that still holds these logits */
    int32_t limit;             /* number of tokens among which it found the largest logit */
    int32_t drawn, first_drew; /* the newest drawn token; the first rank's, once `agreement` has ended */
    CommTicket agreement;
    int64_t not_finite; /* index of the first logit that is not finite; vocabulary: all are finite */
};

/* -- Programs ------------------------------------------------------------------------------------------------------ */

static void build_program(Program *program, const Generator *g, ModelMode mode, int64_t length) {
    program->model = model_build_adapted(&g->mesh, g->config, NULL, g->precision, mode, 1, length, RECOMPUTE_NONE);
    program->plan = graph_plan_lasting(program->model.graph);
}

/* Runs the program on its model.length tokens, from `first` on. */
static void run_tokens(Program *program, Generator *g, int64_t first) {
    int64_t length = program->model.length;
    int32_t *positions = executor_tensor(program->executor, program->model.positions);
    memcpy(executor_tensor(program->executor, program->model.tokens), g->tokens + first, length * sizeof *g->tokens);
    for (int64_t i = 0; i < length; i++) positions[i] = (int32_t)(first + i);
    if (program->model.limit) *(int32_t *)executor_tensor(program->executor, program->model.limit) = g->limit;
    device_overlap_launches(g->device, length == 1); /* longer programs have longer kernels */
    executor_run(program->executor);
    device_overlap_launches(g->device, false);
    g->computed = first + length;
}

/* Reads the logits of a program. LANES sums of zeros, which become NaN if a logit is not finite,
 * keep the CPU busy. */
static void read_logits(Generator *g, const Program *program) {
    enum { LANES = 8 };
    const bool narrow = precision_bytes(g->precision, TYPE_WIDE) == sizeof(float);
    const float *floats = g->wide_logits;
    double zeros[LANES] = {0}, zero = 0;
    int64_t count = g->config->vocabulary, at = 0;
    executor_read(program->executor, program->model.logits, g->wide_logits);
    if (!narrow) memcpy(g->logits, g->wide_logits, (size_t)count * sizeof *g->logits);
    for (; at + LANES <= count; at += LANES)
        for (int l = 0; l < LANES; l++) zeros[l] += 0 * (narrow ? g->logits[at + l] = floats[at + l] : g->logits[at + l]);
    for (; at < count; at++) zero += 0 * (narrow ? g->logits[at] = floats[at] : g->logits[at]);
    for (int l = 0; l < LANES; l++) zero += zeros[l];
    g->not_finite = zero == 0 ? count : 0;
    while (g->not_finite < count && isfinite(g->logits[g->not_finite])) g->not_finite++;
    g->unread = NULL;
}

/* Returns the most likely token below `limit`, by the largest logits of all parts of all ranks; -1
 * if a logit is not finite. */
static int32_t likeliest(Generator *g, const Program *program) {
    const bool narrow = precision_bytes(g->precision, TYPE_WIDE) == sizeof(float);
    const float *floats = g->wide_logits;
    const double *doubles = g->wide_logits;
    int64_t count = graph_elements(program->model.graph, program->model.argmax), token = 0;
    double largest = -INFINITY;
    executor_read(program->executor, program->model.argmax, g->wide_logits);
    for (int64_t i = 0; i < count; i += ARGMAX_VALUES) {
        double element = narrow ? floats[i + ARGMAX_ELEMENT] : doubles[i + ARGMAX_ELEMENT];
        if (isnan(element)) return -1;
        if (element > largest) largest = element, token = (int64_t)(narrow ? floats[i + ARGMAX_COLUMN] : doubles[i + ARGMAX_COLUMN]);
    }
    return (int32_t)token;
}

/* Asserts that both programs give states the same offsets in the shared arena. */
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

static bool is_shared(Arena arena) { return arena == ARENA_WEIGHT || arena == ARENA_MASTER || arena == ARENA_STATE; }

static int64_t needed_bytes(const Generator *g) {
    int64_t bytes = 0;
    for (int i = 0; i < g->program_count; i++)
        for (Arena arena = 0; arena < ARENA_COUNT; arena++)
            if (i == 0 || (!is_shared(arena) && arena != ARENA_CONSTANT)) bytes += g->programs[i].plan.bytes[arena];
    return bytes;
}

/* Returns the bytes per position of the context on this rank: caches, and tables of positions. */
static double position_bytes(const Generator *g) {
    const int64_t *bytes = g->programs[0].plan.bytes;
    return (double)(bytes[ARENA_STATE] + bytes[ARENA_CONSTANT]) / (double)g->config->context;
}

/* Returns the smallest number of ranks, by doubling, with which the memory fits. An axis of `ranks`
 * shards `shared` of the `needed` bytes. 0: none. */
static int64_t suggest_ranks(int64_t ranks, int64_t shared, int64_t needed, int64_t available) {
    for (int64_t more = 2 * ranks; more <= MOST_RANKS && needed - shared < available; more *= 2)
        if (needed - shared + shared * ranks / more <= available) return more;
    return 0;
}

/* Writes a remedy for too little memory: fewer positions, or more ranks that shard the caches or
 * the model. */
static void name_remedy(const Generator *g, int64_t needed, int64_t available, char *text, size_t size) {
    const int64_t *bytes = g->programs[0].plan.bytes;
    int64_t cp = mesh_size(&g->mesh, MESH(AXIS_CP)), tp = mesh_size(&g->mesh, AXES_TENSOR),
            weights = bytes[ARENA_WEIGHT] + bytes[ARENA_MASTER];
    int64_t context = g->config->context - (int64_t)ceil((double)(needed - available) / position_bytes(g)) - cp * BLOCK_CYCLIC_ROWS;
    int64_t more_cp = suggest_ranks(cp, bytes[ARENA_STATE], needed, available);
    int64_t more_tp = suggest_ranks(tp, bytes[ARENA_STATE] + weights, needed, available);
    size_t used = 0;
    if (context > 0) used = (size_t)snprintf(text, size, "set context=%" PRId64 " or less, or  ", context);
    if (g->cache && more_cp)
        snprintf(
            text + used, size - used, "set layout.cp=%" PRId64 " with %" PRId64 " ranks, which shard the caches", more_cp, more_cp * tp);
    else if (g->cache && more_tp && g->config->heads % more_tp == 0)
        snprintf(
            text + used, size - used, "set layout.tp=%" PRId64 " with %" PRId64 " ranks, which shard the model", more_tp, more_tp * cp);
    else snprintf(text + used, size - used, "use a machine with more memory");
}

/* Fails on all ranks if one rank lacks the memory. Ranks of a node share the memory of its CPU. */
static bool check_cache_memory(const Generator *g, Error *error) {
    Device *device = g->device;
    int64_t needed = needed_bytes(g), available = device_available(device);
    if (available < 0) available = INT64_MAX;
    else if (device_info(device)->host_memory) available /= comm_local_size(g->comm);
    if (!comm_host_all_reduce(g->comm, "memory", &available, 1, COMM_I64, COMM_MIN, error)) return false;
    if (needed <= available) return true;
    char need[32], have[32], caches[32], remedy[160];
    log_format_bytes((double)needed, need);
    log_format_bytes((double)available, have);
    log_format_bytes((double)g->programs[0].plan.bytes[ARENA_STATE], caches);
    name_remedy(g, needed, available, remedy, sizeof remedy);
    return error_set(error, ERROR_MEMORY,
        "generation needs %s%s (including %s of caches for %" PRId64 " positions), but only %s are available: %s", need,
        comm_size(g->comm) > 1 ? " on each rank" : "", caches, g->config->context, have, remedy);
}

/* Builds and plans the programs. The first check precedes the placement of activations, which takes
 * long for large models. */
static bool plan_programs(Generator *g, Error *error) {
    build_program(&g->programs[g->program_count++], g, g->cache ? MODEL_GENERATE : MODEL_SCORE, lengths[0]);
    if (!check_cache_memory(g, error) || !program_plan(&g->programs[0], g->device, error)) return false;
    while (g->cache && g->program_count < PROGRAMS && lengths[g->program_count] <= g->config->context) {
        Program *next = &g->programs[g->program_count];
        build_program(next, g, MODEL_GENERATE, lengths[g->program_count++]);
        if (!program_plan(next, g->device, error)) return false;
        assert_same_states(&g->programs[0], next);
    }
    return check_cache_memory(g, error);
}

static int64_t wide_bytes(const Generator *g) {
    int64_t largest = mesh_size(&g->mesh, AXES_TENSOR) * ARGMAX_PARTS * ARGMAX_VALUES;
    return int_max(g->config->vocabulary, largest) * (int64_t)precision_bytes(g->precision, TYPE_WIDE);
}

static bool start_programs(Generator *g, Error *error) {
    if (!plan_programs(g, error)) return false;
    if (!(g->wide_logits = device_allocate_host(g->device, wide_bytes(g), error))) return error_context(error, "logits");
    for (Arena arena = 0; arena < ARENA_COUNT; arena++) {
        int64_t bytes = is_shared(arena) ? g->programs[0].plan.bytes[arena] : 0;
        if (bytes && !(g->shared[arena] = device_allocate(g->device, bytes, error)))
            return error_context(error, "the %s of generation", arena_name(arena));
    }
    void *shared[ARENA_COUNT];
    memcpy(shared, g->shared, sizeof shared);
    for (int i = 0; i < g->program_count && g->cache; i++) {
        if (!program_start(&g->programs[i], shared, error)) return false;
        shared[ARENA_CONSTANT] = executor_arena(g->programs[0].executor, ARENA_CONSTANT);
    }
    return true;
}

/* Opens windows, because a token's collectives are small: on GPUs kernels exchange them. */
static bool open_windows(const Generator *g, Error *error) {
    static const MeshAxes axes[] = {AXES_TENSOR, MESH(AXIS_CP)};
    for (size_t i = 0; i < sizeof axes / sizeof *axes && g->cache; i++) {
        int size = mesh_size(&g->mesh, axes[i]);
        if (size > 1 && !comm_open_windows(mesh_group(&g->mesh, axes[i]), collective_window_bytes(size), error)) return false;
    }
    return true;
}

Generator *generator_create(const Mesh *mesh, const ModelConfig *config, Precision precision, Device *device, bool cache, Error *error) {
    Generator *g = memory_allocate(sizeof *g);
    *g = (Generator){.mesh = mesh ? *mesh : mesh_alone, .config = config, .precision = precision, .device = device, .cache = cache};
    g->comm = mesh_group(&g->mesh, AXES_ALL);
    assert(cache || comm_size(g->comm) == 1);
    g->tokens = memory_allocate(config->context * sizeof *g->tokens);
    g->logits = memory_allocate(config->vocabulary * sizeof *g->logits);
    g->mesh.direct = cache;
    if (open_windows(g, error) && start_programs(g, error)) return g;
    generator_free(g);
    return NULL;
}

void generator_free(Generator *g) {
    if (!g) return;
    comm_wait(g->comm, g->agreement);
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (g->shared[arena]) device_free(g->device, g->shared[arena], g->programs[0].plan.bytes[arena]);
    for (int i = 0; i < g->program_count; i++) program_free(&g->programs[i]);
    free(g->tokens);
    if (g->wide_logits) device_free_host(g->device, g->wide_logits, wide_bytes(g));
    free(g->logits);
    free(g);
}

const Graph *generator_graph(const Generator *g) { return g->programs[0].model.graph; }
void *generator_master(Generator *g) { return g->shared[ARENA_MASTER]; }
void *generator_weights(Generator *g) { return g->shared[ARENA_WEIGHT]; }

/* -- Tokens -------------------------------------------------------------------------------------------------------- */

int64_t generator_room(const Generator *g) { return g->config->context - g->count; }

/* With dynamic scaling and longrope, transformers rotates all tokens of a pass by the
 * frequencies of the length that the text has after it. The cache has one row per position, as
 * if the text grew token by token (rope_angle). Refuses a pass for which the two differ. */
static bool check_one_length(const Generator *g, int64_t count, Error *error) {
    const ModelConfig *c = g->config;
    bool goes_on = g->computed >= c->rope_original_context && family_cached_positions(c) == c->context;
    if (!model_rope_grows(c) || !g->cache || goes_on || g->count + count <= c->rope_original_context) return true;
    return error_set(error, ERROR_USAGE,
        "%" PRId64
        " tokens are fed at once: with model.rope_scaling=%s the cache takes a prompt of at most model.rope_original_context=%" PRId64
        " tokens: use a shorter prompt and text, or generate with cache=false",
        g->count + count - g->computed, c->rope_scaling == ROPE_DYNAMIC ? "dynamic" : "longrope", c->rope_original_context);
}

bool generator_feed(Generator *g, const int32_t *tokens, int64_t count, Error *error) {
    if (count > generator_room(g))
        return error_set(error, ERROR_USAGE,
            "%" PRId64 " tokens do not fit: only %" PRId64 " of model.context=%" PRId64 " positions are left", count, generator_room(g),
            g->config->context);
    if (!check_one_length(g, count, error)) return false;
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->config->vocabulary)
            return error_set(
                error, ERROR_USAGE, "token %" PRId32 " is not below model.vocabulary=%" PRId64, tokens[i], g->config->vocabulary);
    memcpy(g->tokens + g->count, tokens, count * sizeof *tokens);
    g->count += count;
    return true;
}

/* The caches keep old values at later positions until the next tokens overwrite them. */
void generator_restart(Generator *g) { g->count = g->computed = 0; }

static bool compute_whole(Generator *g, Error *error) {
    SCOPED(program_free) Program program = {0};
    build_program(&program, g, MODEL_SCORE, g->count);
    if (!program_plan(&program, g->device, error) || !program_start(&program, g->shared, error)) return false;
    run_tokens(&program, g, 0);
    read_logits(g, &program);
    return true;
}

/* Returns the longest program that the remaining tokens fill. */
static Program *choose_program(Generator *g) {
    int i = g->program_count - 1;
    while (g->programs[i].model.length > g->count - g->computed) i--;
    return &g->programs[i];
}

/* Computes all tokens; their logits stay on the device. */
static bool compute_logits(Generator *g, Error *error) {
    assert(g->count > 0);
    if (!g->cache && g->computed < g->count) return compute_whole(g, error);
    while (g->computed < g->count) {
        g->unread = choose_program(g);
        run_tokens(g->unread, g, g->computed);
    }
    return true;
}

const double *generator_logits(Generator *g, Error *error) {
    if (!compute_logits(g, error)) return NULL;
    if (g->unread) read_logits(g, g->unread);
    if (!comm_ok(g->comm, error)) return NULL;
    if (g->not_finite < g->config->vocabulary) {
        error_set(error, ERROR_NUMERICS,
            "the logit of token %" PRId64 " after %" PRId64
            " tokens is %g: the weights contain NaN or infinity, or activations overflow; use an older checkpoint",
            g->not_finite, g->count, g->logits[g->not_finite]);
        return NULL;
    }
    return g->logits;
}

/* Starts to check that all ranks drew the same token from the same logits. The first rank's token
 * is broadcast during the next token's compute; waiting for it would take as long as a layer. */
static void begin_agreement(Generator *g) {
    g->first_drew = g->drawn;
    g->agreement = comm_host_begin_broadcast(g->comm, "token", &g->first_drew, sizeof g->first_drew, COMM_U8, 0);
}

static bool end_agreement(Generator *g, Error *error) {
    comm_wait(g->comm, g->agreement);
    if (!comm_ok(g->comm, error)) return false;
    return g->first_drew == g->drawn || error_set(error, ERROR_COMMUNICATION,
                                            "rank %d drew token %" PRId32 ", but rank 0 drew %" PRId32
                                            ": their processors round differently; use machines of one kind, or set temperature=0",
                                            comm_rank(g->comm), g->drawn, g->first_drew);
}

/* Draws among the first `count` tokens; -1 after an error. The most likely token comes from the
 * program's few largest logits, unless the program ran with another limit. */
static int32_t draw_next(Generator *g, const Sampling *sampling, int32_t count, Error *error) {
    if (g->computed < g->count) g->limit = count;
    if (!compute_logits(g, error)) return -1;
    int32_t token = sampling->temperature == 0 && g->unread && g->limit == count ? likeliest(g, g->unread) : -1;
    if (token >= 0) return comm_ok(g->comm, error) ? token : -1;
    const double *logits = generator_logits(g, error);
    return logits ? sample_token(logits, count, sampling, rng_uniform(sampling->seed, RNG_STREAM_SAMPLE, g->count)) : -1;
}

bool generator_next(Generator *g, const Sampling *sampling, int64_t limit, int32_t *token, Error *error) {
    assert(generator_room(g) > 0);
    int32_t drawn = draw_next(g, sampling, (int32_t)int_min(limit, g->config->vocabulary), error);
    if (drawn < 0 || !end_agreement(g, error)) return false;
    g->drawn = drawn;
    begin_agreement(g);
    *token = g->tokens[g->count++] = g->drawn;
    return true;
}
