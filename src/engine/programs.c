/* If a program runs with fewer sequences than it has, padding fills the others: sequences of one token
 * in a slot and a cache row of their own. Nothing reads their results. */
#include "engine/programs_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "ops/attention/attention.h"
#include "ops/delta/delta.h"
#include "ops/draw/draw.h"
#include "ops/slots/slots.h"

/* Programs that fill the caches, and programs that also score. Each computes blocks of one prompt, or of
 * several short prompts. Rows are in the order of length, then of sequences. */
static const SlotRun fill_runs[] = {{1, 32}, {4, 32}, {16, 32}, {1, 64}, {2, 64}, {8, 64}, {1, 128}, {4, 128}, {1, 256}, {2, 256}, {1, 512},
    {1, 1024}, {1, ENGINE_LONGEST_BLOCK}};
static const SlotRun score_runs[] = {{1, 32}, {2, 32}, {8, 32}, {1, 64}, {4, 64}, {1, 128}, {2, 128}, {1, ENGINE_SCORE_BLOCK}};
enum { FILLS = sizeof fill_runs / sizeof *fill_runs, SCORES = sizeof score_runs / sizeof *score_runs };
enum { BATCHES = 11 /* 1 to ENGINE_MOST_SLOTS */ };
static_assert(1 << (BATCHES - 1) == ENGINE_MOST_SLOTS, "one program for each power of two");

/* An estimate of the fixed cost of a run, in rows: a run reads the weights whatever its rows. */
enum { ROWS_PER_RUN = 32 };

/* Programs first to end - 1 of EnginePrograms.programs. */
typedef struct ProgramRange { int first, end; } ProgramRange;

struct EnginePrograms {
    const ModelConfig *config;
    Precision precision;
    const EngineOwner *owner; /* of the weights; NULL: the programs */
    const Mesh *mesh;         /* NULL: one rank */
    Device *device;
    EngineSizes sizes;
    Program programs[BATCHES + FILLS + SCORES];
    int count;
    ProgramRange batches, fills, scores; /* batches by sequences; `scores` is empty without EngineSizes.scores */
    void *shared[ARENA_COUNT];
    int64_t bytes[ARENA_COUNT]; /* of `shared`; 0: the owner's */
    void *drawn;                /* WIDE [rows, draw_columns(sizes.top)], in memory that the device can access */
    EngineScore *top;           /* [rows, sizes.top] of the last run */
};

static bool engine_shares(Arena arena) {
    return arena == ARENA_WEIGHT || arena == ARENA_MASTER || arena == ARENA_STATE || arena == ARENA_ACTIVATION;
}

/* -- Sizes --------------------------------------------------------------------------------------------------------- */

/* A slot has two states: the newest, and the one after its prompt, with which other samples of the
 * prompt begin. Padding has its own state and cache row. */
static SlotSizes padded_sizes(const EnginePrograms *e) {
    enum { PADDING_ROWS = 2 }; /* one for the token of a padding sequence, one for the padding after that token */
    return (SlotSizes){.slots = 2 * e->sizes.slots + 1,
        .cache_rows = e->sizes.cache_rows + PADDING_ROWS,
        .top = e->sizes.top,
        .adapters = e->sizes.adapters};
}
static int64_t prompt_state(const EnginePrograms *e, int64_t slot) { return e->sizes.slots + slot; }
static int64_t padding_state(const EnginePrograms *e) { return 2 * e->sizes.slots; }

/* Returns whether programs use the owner's arena. */
static bool owner_has(const EnginePrograms *e, Arena arena) {
    return e->owner && (arena == ARENA_WEIGHT || arena == ARENA_MASTER || arena == ARENA_QUANTIZED);
}

/* Returns the bytes of a cache row, in all layers. */
static int64_t cache_row_bytes(const Graph *graph) {
    int64_t columns = 0;
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].op == OP_attention_cached) columns += graph_columns(graph, graph->nodes[i].out[ATTENTION_CACHED_CACHE]);
    return columns * precision_bytes(graph->precision, TYPE_COMPUTE);
}

static bool add_program(EnginePrograms *e, SlotRun run, Error *error) {
    SlotSizes sizes = padded_sizes(e);
    if (e->sizes.penalties && run.length == 1) sizes.penalized = e->sizes.slots;
    Program *program = &e->programs[e->count++];
    program->model = model_build_slots(e->mesh, e->config, e->owner ? e->owner->lora : NULL, e->precision, &sizes, run);
    if (e->owner) layout_place(program->layout = e->owner->layout, program->model.graph);
    if (!program_plan(program, e->device, error)) return false;
    assert(program->plan.bytes[ARENA_CONSTANT] == e->programs[0].plan.bytes[ARENA_CONSTANT]);
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (engine_shares(arena) && !owner_has(e, arena)) e->bytes[arena] = int_max(e->bytes[arena], program->plan.bytes[arena]);
    return true;
}

static EngineRow padding_row(const EnginePrograms *e) {
    static const int32_t token;
    static const Sampling greedy = {.top_p = 1};
    return (EngineRow){.slot = padding_state(e), .first_row = e->sizes.cache_rows, .tokens = &token, .count = 1, .sampling = &greedy};
}

/* Plans the useful runs. A run is useless if half of its sequences would fill all slots, or if half of its length would fill the
 * context; a smaller run then has the same effect. The shortest length is always planned. */
static bool add_runs(EnginePrograms *e, const SlotRun *runs, int count, bool draws, ProgramRange *range, Error *error) {
    range->first = e->count;
    for (int i = 0; i < count; i++) {
        bool useful = runs[i].sequences / 2 < e->sizes.slots && (i == 0 || runs[i].length / 2 < e->config->context);
        if (useful && !add_program(e, (SlotRun){runs[i].sequences, runs[i].length, draws}, error)) return false;
    }
    range->end = e->count;
    return true;
}

static bool plan_engine_programs(EnginePrograms *e, Error *error) {
    do
        if (!add_program(e, (SlotRun){(int64_t)1 << e->count, 1, true}, error)) return false;
    while ((int64_t)1 << (e->count - 1) < e->sizes.slots);
    e->batches = (ProgramRange){0, e->count};
    return add_runs(e, fill_runs, FILLS, false, &e->fills, error) &&
           add_runs(e, score_runs, e->sizes.scores ? SCORES : 0, true, &e->scores, error);
}

static void free_programs(EnginePrograms *e) {
    for (int i = 0; i < e->count; i++) program_free(&e->programs[i]);
    memset(e->programs, 0, sizeof e->programs);
    e->count = 0;
}

static int64_t engine_needs(const EnginePrograms *e) {
    int64_t bytes = 0;
    for (Arena arena = 0; arena < ARENA_COUNT; arena++) {
        bytes += e->bytes[arena];
        int count = engine_shares(arena) || owner_has(e, arena) ? 0 : arena == ARENA_CONSTANT ? 1 : e->count;
        for (int i = 0; i < count; i++) bytes += e->programs[i].plan.bytes[arena];
    }
    return bytes;
}

/* The free memory, or the least of the ranks that divide the model. -1: unknown. */
static bool least_available(const EnginePrograms *e, int64_t *bytes, Error *error) {
    *bytes = device_available(e->device);
    return !e->mesh || comm_host_all_reduce(mesh_group(e->mesh, AXES_TENSOR), "memory of generation", bytes, 1, COMM_I64, COMM_MIN, error);
}

/* Returns the most tokens of one sequence. */
static int64_t longest_sequence(const EnginePrograms *e) {
    return e->sizes.longest ? int_min(e->sizes.longest, e->config->context) : e->config->context;
}

/* Plans all programs with the most cache rows that the slots can use. */
static bool plan_useful_rows(EnginePrograms *e, EngineNeeds *needs, Error *error) {
    const int64_t longest = longest_sequence(e), most = e->sizes.slots * longest;
    e->sizes.cache_rows = e->sizes.cache_rows ? int_min(e->sizes.cache_rows, most) : most;
    if (!plan_engine_programs(e, error)) return false;
    needs->most = engine_needs(e);
    needs->least = needs->most - (e->sizes.cache_rows - int_min(longest, e->sizes.cache_rows)) * cache_row_bytes(engine_programs_graph(e));
    return true;
}

/* Chooses the cache rows: as many as are of use, or as many as fit into nine tenths of the free
 * memory. Plans all programs with them. */
static bool choose_cache_rows(EnginePrograms *e, Error *error) {
    const int64_t longest = longest_sequence(e);
    int64_t available;
    EngineNeeds needs;
    if (!least_available(e, &available, error) || !plan_useful_rows(e, &needs, error)) return false;
    if (available < 0 || needs.most <= available) return true;
    int64_t row = int_max(cache_row_bytes(engine_programs_graph(e)), 1), usable = available / 10 * 9;
    int64_t fits = e->sizes.cache_rows - divide_up(needs.most - usable, row);
    if (fits < int_min(longest, e->sizes.cache_rows)) {
        char need[32], have[32];
        log_format_bytes((double)needs.least, need);
        log_format_bytes((double)usable, have);
        return error_set(error, ERROR_MEMORY,
            "generation in %" PRId64 " slots with caches for one sequence of %" PRId64
            " tokens needs %s, but only %s, nine tenths of the free memory, may be used: set context and slots lower, or use a machine "
            "with more memory",
            e->sizes.slots, longest, need, have);
    }
    free_programs(e);
    memset(e->bytes, 0, sizeof e->bytes);
    e->sizes.cache_rows = fits;
    return plan_engine_programs(e, error);
}

/* -- Opening and closing ------------------------------------------------------------------------------------------- */

/* Returns the most rows that a program draws. */
static int64_t drawn_rows(const EnginePrograms *e) {
    return int_max(e->programs[e->batches.end - 1].model.sequences, e->sizes.scores ? ENGINE_SCORE_BLOCK : 0);
}

static int64_t drawn_bytes(const EnginePrograms *e) {
    return drawn_rows(e) * draw_columns(e->sizes.top) * (int64_t)precision_bytes(e->precision, TYPE_WIDE);
}

static bool start_engine(EnginePrograms *e, Error *error) {
    if (!choose_cache_rows(e, error)) return false;
    if (!(e->drawn = device_allocate_host(e->device, drawn_bytes(e), error))) return error_context(error, "drawn tokens");
    e->top = memory_allocate((size_t)(drawn_rows(e) * e->sizes.top) * sizeof *e->top);
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (owner_has(e, arena)) e->shared[arena] = executor_arena(e->owner->program->executor, arena);
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (e->bytes[arena] && !(e->shared[arena] = device_allocate(e->device, e->bytes[arena], error)))
            return error_context(error, "the %s of generation", arena_name(arena));
    void *shared[ARENA_COUNT];
    memcpy(shared, e->shared, sizeof shared);
    for (int i = 0; i < e->count; i++) {
        if (!program_start(&e->programs[i], shared, error)) return false;
        shared[ARENA_CONSTANT] = executor_arena(e->programs[0].executor, ARENA_CONSTANT);
    }
    return true;
}

static EnginePrograms *new_programs(const ModelConfig *config, const EngineOwner *owner, EnginePlace place, EngineSizes sizes) {
    EnginePrograms *e = memory_allocate(sizeof *e);
    assert(sizes.slots > 0 && sizes.slots <= ENGINE_MOST_SLOTS);
    assert(sizes.adapters.count <= ENGINE_MOST_ADAPTERS && (!owner || !sizes.adapters.count));
    *e = (EnginePrograms){
        .config = config, .owner = owner, .mesh = place.mesh, .precision = place.precision, .device = place.device, .sizes = sizes};
    return e;
}

bool engine_programs_plan(
    const ModelConfig *config, const EngineOwner *owner, EnginePlace place, EngineSizes sizes, EngineNeeds *needs, Error *error) {
    EnginePrograms *e = new_programs(config, owner, place, sizes);
    bool planned = plan_useful_rows(e, needs, error);
    engine_programs_free(e);
    return planned;
}

EnginePrograms *engine_programs_create(
    const ModelConfig *config, const EngineOwner *owner, EnginePlace place, EngineSizes *sizes, Error *error) {
    EnginePrograms *e = new_programs(config, owner, place, *sizes);
    if (!start_engine(e, error)) {
        engine_programs_free(e);
        return NULL;
    }
    *sizes = e->sizes;
    return e;
}

void engine_programs_free(EnginePrograms *e) {
    if (!e) return;
    if (e->drawn) device_free_host(e->device, e->drawn, drawn_bytes(e));
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (e->shared[arena] && e->bytes[arena]) device_free(e->device, e->shared[arena], e->bytes[arena]);
    free_programs(e);
    free(e->top);
    free(e);
}

const Graph *engine_programs_graph(const EnginePrograms *e) { return e->programs[0].model.graph; }
void *engine_programs_arena(const EnginePrograms *e, Arena arena) { return e->shared[arena]; }
const Model *engine_programs_model(const EnginePrograms *e) { return &e->programs[0].model; }
void *engine_programs_table(const EnginePrograms *e, TensorId table) { return executor_device_tensor(e->programs[0].executor, table); }

/* -- Running ------------------------------------------------------------------------------------------------------- */

/* Writes the inputs of one sequence of a program. Padding repeats the position after the last
 * token. */
static void load_sequence(const Program *program, int64_t index, const EngineRow *row) {
    const Model *m = &program->model;
    int32_t *tokens = executor_tensor(program->executor, m->tokens), *positions = executor_tensor(program->executor, m->positions);
    ((int32_t *)executor_tensor(program->executor, m->slots.slots))[index] = (int32_t)row->slot;
    ((int32_t *)executor_tensor(program->executor, m->slots.first_rows))[index] = (int32_t)row->first_row;
    ((int32_t *)executor_tensor(program->executor, m->slots.lasts))[index] = (int32_t)row->count - 1;
    for (int64_t i = 0; i < m->length; i++) {
        tokens[index * m->length + i] = i < row->count ? row->tokens[i] : 0;
        positions[index * m->length + i] = (int32_t)(row->position + int_min(i, row->count));
    }
}

/* Adapters in the order of a program's rows: those of the requests, then none. */
static int adapter_place(const EnginePrograms *e, const EngineRow *row) {
    return row->adapter ? row->adapter - 1 : e->sizes.adapters.count;
}

/* Sets `order` to the indices of the rows, sorted by adapter, and loads the bounds of their groups;
 * `length` program rows belong to each. */
static void load_groups(const EnginePrograms *e, const Program *program, const EngineRow *rows, int64_t count, int64_t *order) {
    const int adapters = e->sizes.adapters.count;
    int32_t ends[ENGINE_MOST_ADAPTERS + 2] = {0}; /* ends[i]: the first row of group i, then its end */
    for (int64_t i = 0; i < count; i++) ends[adapter_place(e, &rows[i]) + 1]++;
    for (int i = 0; i <= adapters; i++) ends[i + 1] += ends[i];
    int32_t *groups = adapters ? executor_tensor(program->executor, program->model.slots.groups) : NULL;
    for (int i = 0; groups && i <= adapters; i++) groups[i] = ends[i] * (int32_t)program->model.length;
    for (int64_t i = 0; i < count; i++) order[ends[adapter_place(e, &rows[i])]++] = i;
}

/* Loads `count` sequences into a program, and padding into its other ones. Sets `order` like
 * load_groups. */
static void load_sequences(const EnginePrograms *e, const Program *program, const EngineRow *rows, int64_t count, int64_t *order) {
    const EngineRow padding = padding_row(e);
    load_groups(e, program, rows, count, order);
    for (int64_t s = 0; s < program->model.sequences; s++) load_sequence(program, s, s < count ? &rows[order[s]] : &padding);
}

static ProgramRange block_programs(const EnginePrograms *e, bool scored) { return scored ? e->scores : e->fills; }

static int64_t run_cost(const Program *program) { return program->model.sequences * program->model.length + ROWS_PER_RUN; }

/* Returns the length of the next block of a prompt that lacks `count` tokens: the shortest length that
 * holds all of them, or the next shorter length if such a block and the blocks of the remaining tokens
 * cost less. Sets `cost` to the cost of all blocks. */
static int64_t choose_length(const EnginePrograms *e, bool scored, int64_t count, int64_t *cost) {
    const Program *shorter = NULL, *whole = NULL;
    for (int i = block_programs(e, scored).first; i < block_programs(e, scored).end; i++) {
        const Program *program = &e->programs[i];
        if (program->model.sequences > 1) continue;
        shorter = whole, whole = program;
        if (program->model.length >= count) break;
    }
    assert(whole);
    int64_t rest = 0, longest = whole->model.length;
    *cost = run_cost(whole) * divide_up(count, longest);
    if (!shorter || count >= longest) return longest;
    choose_length(e, scored, count - shorter->model.length, &rest);
    if (run_cost(shorter) + rest >= *cost) return longest;
    *cost = run_cost(shorter) + rest;
    return shorter->model.length;
}

EngineBlock engine_programs_block(const EnginePrograms *e, bool scored, int64_t count) {
    int64_t cost, length = choose_length(e, scored, count, &cost);
    return (EngineBlock){.scored = scored, .length = length, .count = int_min(count, length)};
}

/* Returns the program with the lowest cost per sequence for up to `sequences` sequences. */
static const Program *choose_block_program(const EnginePrograms *e, const EngineBlock *block, int64_t sequences) {
    const Program *best = NULL;
    int64_t best_count = 0;
    for (int i = block_programs(e, block->scored).first; i < block_programs(e, block->scored).end; i++) {
        const Program *program = &e->programs[i];
        int64_t count = int_min(program->model.sequences, sequences);
        if (program->model.length != block->length) continue;
        if (!best || run_cost(program) * best_count < run_cost(best) * count) best = program, best_count = count;
    }
    return best;
}

int64_t engine_programs_together(const EnginePrograms *e, const EngineBlock *block, int64_t sequences) {
    return int_min(choose_block_program(e, block, sequences)->model.sequences, sequences);
}

void engine_programs_fill(EnginePrograms *e, const EngineBlock *block, const EngineRow *rows, int64_t count) {
    const Program *program = choose_block_program(e, block, count);
    int64_t order[ENGINE_MOST_TOGETHER];
    assert(!block->scored && count > 0 && count <= program->model.sequences);
    load_sequences(e, program, rows, count, order);
    executor_run(program->executor);
}

static void load_choice(const EnginePrograms *e, const Program *program, int64_t index, const EngineRow *row) {
    const Sampling *sampling = row->sampling;
    const float choice[DRAW_CHOICE_VALUES] = {[DRAW_TEMPERATURE] = (float)sampling->temperature,
        [DRAW_TOP_K] = (float)sampling->top_k,
        [DRAW_TOP_P] = (float)sampling->top_p,
        [DRAW_MIN_P] = (float)sampling->min_p,
        [DRAW_UNIFORM] = fminf((float)row->uniform, 0x1.fffffep-1f),
        [DRAW_PENALIZED] = row->penalties ? 1 : 0,
        [DRAW_TOP] = (float)row->top};
    executor_set_values(program->executor, program->model.choice, index * DRAW_CHOICE_VALUES, choice, DRAW_CHOICE_VALUES);
    if (!e->sizes.penalties) return;
    const EnginePenalties none = {0}, *p = row->penalties ? row->penalties : &none;
    const float penalties[PENALTY_CHOICE_VALUES] = {[PENALTY_USED] = row->penalties ? 1 : 0,
        [PENALTY_COUNTED] = row->counted ? 1 : 0,
        [PENALTY_REPETITION] = p->repetition > 0 ? (float)p->repetition : 1,
        [PENALTY_PRESENCE] = (float)p->presence,
        [PENALTY_FREQUENCY] = (float)p->frequency};
    executor_set_values(program->executor, program->model.penalties, index * PENALTY_CHOICE_VALUES, penalties, PENALTY_CHOICE_VALUES);
}

/* Runs a program that draws, and reads what it drew. */
static void run_draws(EnginePrograms *e, const Program *program) {
    *(int32_t *)executor_tensor(program->executor, program->model.limit) = (int32_t)int_min(e->sizes.limit, e->config->vocabulary);
    device_overlap_launches(e->device, program->model.length == 1);
    executor_run(program->executor);
    device_overlap_launches(e->device, false);
    executor_read(program->executor, program->model.drawn, e->drawn);
}

/* Without its other ranks, a program's results are undefined. */
static bool engine_ran(const EnginePrograms *e, Error *error) {
    return device_ok(e->device, error) && (!e->mesh || comm_ok(mesh_group(e->mesh, AXES_TENSOR), error));
}

static EngineToken drawn_token(const EnginePrograms *e, int64_t row) {
    size_t bytes = precision_bytes(e->precision, TYPE_WIDE);
    int64_t at = row * draw_columns(e->sizes.top), count = 0;
    EngineScore *top = e->top + row * e->sizes.top;
    for (int64_t pair = at + DRAW_VALUES; count < e->sizes.top && element_get(bytes, e->drawn, pair) >= 0; pair += 2)
        top[count++] = (EngineScore){(int32_t)element_get(bytes, e->drawn, pair), element_get(bytes, e->drawn, pair + 1)};
    return (EngineToken){.token = (int32_t)element_get(bytes, e->drawn, at + DRAW_TOKEN),
        .likeliest = (int32_t)element_get(bytes, e->drawn, at + DRAW_LIKELIEST),
        .log_probability = element_get(bytes, e->drawn, at + DRAW_LOG_PROBABILITY),
        .likeliest_log_probability = element_get(bytes, e->drawn, at + DRAW_LIKELIEST_LOG_PROBABILITY),
        .top = top,
        .top_count = count};
}

/* Loads the tokens whose log-probabilities the program computes: the one after each token of a sequence. */
static void load_given(const Program *program, int64_t sequence, const EngineRow *row) {
    for (int64_t i = 0; i < program->model.length; i++) {
        const float given = 1 + (float)row->tokens[int_min(i + 1, row->count)], top = (float)row->top;
        int64_t at = (sequence * program->model.length + i) * DRAW_CHOICE_VALUES;
        executor_set_values(program->executor, program->model.choice, at + DRAW_GIVEN, &given, 1);
        executor_set_values(program->executor, program->model.choice, at + DRAW_TOP, &top, 1);
    }
}

bool engine_programs_score(
    EnginePrograms *e, const EngineBlock *block, const EngineRow *rows, int64_t count, EngineToken *scores, Error *error) {
    const Program *program = choose_block_program(e, block, count);
    int64_t order[ENGINE_MOST_TOGETHER], places[ENGINE_MOST_TOGETHER];
    assert(block->scored && count > 0 && count <= program->model.sequences);
    load_sequences(e, program, rows, count, order);
    for (int64_t s = 0; s < count; s++) load_given(program, s, &rows[order[s]]), places[order[s]] = s;
    run_draws(e, program);
    for (int64_t s = 0; s < count; s++)
        for (int64_t i = 0; i < rows[s].count; i++) *scores++ = drawn_token(e, places[s] * program->model.length + i);
    return engine_ran(e, error);
}

bool engine_programs_next(EnginePrograms *e, EngineRow *rows, int64_t count, Error *error) {
    int i = e->batches.first;
    while (e->programs[i].model.sequences < count) i++;
    assert(i < e->batches.end && count > 0);
    const Program *program = &e->programs[i];
    const EngineRow padding = padding_row(e);
    int64_t order[ENGINE_MOST_SLOTS] = {0};
    load_sequences(e, program, rows, count, order);
    for (int64_t s = 0; s < program->model.sequences; s++) load_choice(e, program, s, s < count ? &rows[order[s]] : &padding);
    run_draws(e, program);
    for (int64_t s = 0; s < count; s++) rows[order[s]].drawn = drawn_token(e, s);
    return engine_ran(e, error);
}

void engine_programs_begin_penalties(EnginePrograms *e, int64_t slot, const EngineRequest *request, const int32_t *tokens, int64_t count) {
    const Program *program = &e->programs[0];
    size_t bytes = precision_bytes(e->precision, TYPE_WIDE);
    int64_t columns = e->config->vocabulary, elements = PENALTY_STATE_ROWS * columns;
    SCOPED_FREE char *state = memory_allocate((size_t)elements * bytes);
    for (int64_t i = 0; i < request->prompt_count; i++) element_set(bytes, state, PENALTY_COUNT * columns + request->prompt[i], 0.5);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = PENALTY_COUNT * columns + tokens[i];
        element_set(bytes, state, at, element_get(bytes, state, at) + 1);
    }
    for (int64_t i = 0; i < request->penalties.bias_count; i++) {
        int64_t at = PENALTY_BIAS * columns + request->penalties.biases[i].token;
        element_set(bytes, state, at, element_get(bytes, state, at) + request->penalties.biases[i].bias);
    }
    char *to = executor_device_tensor(program->executor, program->model.counts);
    device_upload(e->device, to + (size_t)(slot * elements) * bytes, state, elements * (int64_t)bytes);
}

/* Copies `rows` rows of a state between rows of it. */
static void copy_state_rows(const EnginePrograms *e, TensorId state, int64_t to, int64_t from, int64_t rows) {
    const Graph *graph = engine_programs_graph(e);
    int64_t bytes = graph_columns(graph, state) * (int64_t)precision_bytes(e->precision, graph_get(graph, state)->type);
    char *at = executor_device_tensor(e->programs[0].executor, state);
    device_copy(e->device, at + to * bytes, at + from * bytes, rows * bytes);
}

/* Returns the state that a node keeps for each slot, or TENSOR_NONE. */
static TensorId slot_state(const Node *node) {
    if (node->op == OP_slot_write) return node->out[SLOT_WRITE_STATE];
    return node->op == OP_delta ? node->out[DELTA_STATE] : TENSOR_NONE;
}

/* Copies the state `from` to `to` in all layers. */
static void copy_slot_states(const EnginePrograms *e, int64_t to, int64_t from) {
    const Graph *graph = engine_programs_graph(e);
    for (int i = 0; i < graph->node_count; i++) {
        TensorId state = slot_state(&graph->nodes[i]);
        if (state == TENSOR_NONE) continue;
        int64_t rows = graph_rows(graph, state) / padded_sizes(e).slots;
        copy_state_rows(e, state, to * rows, from * rows, rows);
    }
}

void engine_programs_keep_prompt(EnginePrograms *e, int64_t slot) { copy_slot_states(e, prompt_state(e, slot), slot); }

void engine_programs_move(EnginePrograms *e, int64_t to_row, int64_t from_row, int64_t positions) {
    const Graph *graph = engine_programs_graph(e);
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].op == OP_attention_cached)
            copy_state_rows(e, graph->nodes[i].out[ATTENTION_CACHED_CACHE], to_row, from_row, positions);
}

void engine_programs_copy_prompt(EnginePrograms *e, const EngineRow *from, const EngineRow *to, int64_t positions) {
    engine_programs_move(e, to->first_row, from->first_row, positions);
    copy_slot_states(e, to->slot, prompt_state(e, from->slot));
    engine_programs_keep_prompt(e, to->slot);
}
