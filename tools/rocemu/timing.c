/* ROCEMU_TIME=1: a model of the time that a card needs for each launch. ROCEMU_TIME=sample executes nothing but the
 * workgroups that are traced, without their matrix products, and a launch like an earlier one not at all: times of
 * shapes that would take hours, but no results.
 *
 * Workgroups go to the dies in turn, and on a die to its compute units in turn. Those of the first die in one round
 * (all that run at once), or in two rounds spread over the launch where there are more, are executed and
 * recorded. Then
 *
 *   - L1, L2 and Infinity Cache are simulated on the addresses of that die's workgroups (timing_cache.c);
 *   - the traced workgroups are dealt to the first compute unit that is free, by their numbers of instructions, and
 *     what one compute unit got is replayed in a cycle-level scheduler (timing_replay.c): of the one that ends last, or
 *     where rounds were left out of an average one, whose time is taken as many times as there are more workgroups;
 *   - the launch takes at least what memory needs for its bytes.
 *
 * Modeled: four SIMDs; occupancy by registers, LDS, wavefront and workgroup slots; issue of one instruction per kind
 * and turn; cycles of vector, transcendental and matrix instructions, and when their results can be used; LDS bank
 * conflicts from addresses; coalescing; s_waitcnt, barriers, s_setprio, s_nop; hits and rates of each cache level.
 * Not modeled: the clock, which falls under load (cycles are what to compare; seconds are at the peak clock, and GEMMs
 * of cards under their power limit are 1.3 to 1.7 times slower); instruction fetch beyond a constant for branches; TLBs;
 * register bank conflicts; DRAM pages; queues of other compute units but for an equal share of rates; atomics in L2;
 * launches side by side and the time to launch. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

struct Timing {
    const Machine *machine;
    const Launch *launch;
    uint64_t key;
    int64_t blocks, die_blocks, unit_blocks; /* unit_blocks: of the busiest compute unit */
    int units, occupancy, rounds;
    int64_t round[2]; /* the traced ones */
    bool all_rounds;
    DieTrace die;
};

static struct {
    pthread_mutex_t lock;
    TimingResult *first, **last;
    double seconds; /* of all launches */
} results = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *setting(void) {
    const char *value = getenv("ROCEMU_TIME");
    return value && strcmp(value, "0") ? value : NULL;
}
bool timing_enabled(void) { return setting(); }
/* ROCEMU_TIME_RANGE=1 also computes the range of cycles over the unknown properties of a card, which takes up to three times as long. */
static bool wants_range(void) {
    const char *value = getenv("ROCEMU_TIME_RANGE");
    return value && strcmp(value, "0") != 0;
}
bool timing_samples(void) { return setting() && !strcmp(setting(), "sample"); }

double timing_seconds(void) {
    pthread_mutex_lock(&results.lock);
    double seconds = results.seconds;
    pthread_mutex_unlock(&results.lock);
    return seconds;
}

/* -- Launches that are alike --------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

/* Kernel, shape and arguments but for pointers, of which only whether they are NULL. */
static uint64_t launch_key(const Launch *launch) {
    const Kernel *kernel = launch->kernel;
    uint64_t hash = mix(kernel->program->checksum, kernel->entry);
    for (int i = 0; i < 3; i++) hash = mix(mix(hash, launch->grid[i]), launch->block[i]);
    hash = mix(hash, launch->lds_bytes);
    for (uint32_t at = 0; at + 4 <= kernel->kernarg_bytes; at += 4) {
        uint64_t pair = 0;
        uint32_t word;
        Allocation found;
        memcpy(&word, launch->kernarg + at, 4);
        if (at % 8 == 0 && at + 8 <= kernel->kernarg_bytes) memcpy(&pair, launch->kernarg + at, 8);
        if (pair >> 32 && arena_find(pair, &found)) {
            hash = mix(hash, 1);
            at += 4;
        } else {
            hash = mix(hash, word);
        }
    }
    return hash;
}

static TimingResult *find_result(uint64_t key) {
    for (TimingResult *result = results.first; result; result = result->next)
        if (result->key == key) return result;
    return NULL;
}

bool timing_repeats(const Launch *launch) {
    if (!timing_enabled()) return false;
    pthread_mutex_lock(&results.lock);
    TimingResult *result = find_result(launch_key(launch));
    if (result) result->launches++, results.seconds += result->seconds;
    pthread_mutex_unlock(&results.lock);
    return result;
}

/* -- Which workgroups are traced ----------------------------------------------------------------------------------- */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* All rounds of up to two; of more, those in the middle of each half of the full ones, so that work that grows or falls
 * along the grid is met on average. */
static void choose_rounds(Timing *timing) {
    int64_t all = divide_up(timing->unit_blocks, timing->occupancy), full = timing->die_blocks / (timing->units * timing->occupancy);
    timing->all_rounds = all <= 2;
    timing->rounds = all < 2 ? 1 : 2;
    timing->round[0] = all > 2 ? full / 4 : 0;
    timing->round[1] = all > 2 ? full * 3 / 4 : 1;
}

Timing *timing_begin(const Launch *launch) {
    if (!timing_enabled()) return NULL;
    const Machine *machine = machine_find(launch->kernel->program->architecture->name);
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    Timing *timing = machine ? calloc(1, sizeof *timing) : NULL;
    if (!timing) return NULL;
    timing->machine = machine;
    timing->launch = launch;
    timing->key = launch_key(launch);
    timing->occupancy = machine_occupancy(machine, launch->kernel, threads, launch->lds_bytes);
    if (!timing->occupancy) timing->occupancy = 1;
    timing->blocks = (int64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    timing->die_blocks = divide_up(timing->blocks, machine->dies);
    timing->units = (int)(timing->die_blocks < machine->units_per_die ? timing->die_blocks : machine->units_per_die);
    timing->unit_blocks = divide_up(timing->die_blocks, machine->units_per_die);
    if (timing->unit_blocks < timing->occupancy) timing->occupancy = (int)timing->unit_blocks;
    choose_rounds(timing);
    timing->die =
        (DieTrace){.rounds = timing->rounds, .slots = timing->occupancy, .units = timing->units, .all_rounds = timing->all_rounds};
    size_t count = (size_t)timing->rounds * (size_t)timing->occupancy * (size_t)timing->units;
    timing->die.block = calloc(count, sizeof *timing->die.block);
    if (timing->die.block) return timing;
    free(timing);
    return NULL;
}

/* The trace of the workgroup of that number, made ready for its wavefronts; NULL when it is not traced. */
BlockTrace *timing_block(Timing *timing, int64_t number, int waves) {
    if (!timing || number % timing->machine->dies) return NULL;
    int64_t on_die = number / timing->machine->dies, unit = on_die % timing->units, place = on_die / timing->units,
            round = place / timing->occupancy;
    for (int r = 0; r < timing->rounds; r++) {
        if (timing->round[r] != round) continue;
        BlockTrace *block = &timing->die.block[(r * timing->occupancy + place % timing->occupancy) * timing->units + unit];
        return trace_begin(block, waves, timing->launch, timing->machine) ? block : NULL;
    }
    return NULL;
}

/* -- Which compute unit is replayed -------------------------------------------------------------------------------- */

/* What stands for the time of a workgroup before anything is replayed: its wavefronts' instructions. */
static double weight(const BlockTrace *block) {
    double sum = 0;
    for (int w = 0; w < block->waves; w++) sum += (double)block->wave[w].executed;
    return sum;
}

/* The traced workgroups by compute unit, in the order in which they start. */
typedef struct Queue {
    BlockTrace **block;
    int count;
    double end, sum; /* in instructions */
} Queue;

/* Each workgroup begins on the first place of the die that is free, in the order of the grid. */
static void dispatch(const Timing *timing, double *place, Queue *queue) {
    int places = timing->units * timing->occupancy;
    for (int i = 0; i < timing->rounds * places; i++) {
        BlockTrace *block = &timing->die.block[i];
        int best = 0;
        if (!block->waves || !queue->block) continue;
        for (int p = 1; p < places; p++)
            if (place[p] < place[best]) best = p;
        Queue *unit = &queue[best % timing->units];
        double w = weight(block);
        place[best] += w;
        unit->block[unit->count++] = block;
        unit->sum += w;
        if (place[best] > unit->end) unit->end = place[best];
    }
}

/* Where all workgroups were traced, the compute unit that ends last; where two rounds stand for many, the one whose
 * instructions come closest to the mean. */
static const Queue *choose_unit(const Timing *timing, const Queue *queue, double mean) {
    const Queue *best = queue;
    for (int unit = 1; unit < timing->units; unit++) {
        const Queue *other = &queue[unit];
        bool later = other->end > best->end || (other->end == best->end && other->sum > best->sum);
        if (timing->all_rounds ? later : fabs(other->sum - mean) < fabs(best->sum - mean)) best = other;
    }
    return best;
}

/* What is replayed, and what share of the launch it is. */
typedef struct Part {
    BlockTrace **block;
    int blocks;
    double sum, traced, mean; /* instructions of the replayed workgroups, of the traced ones, of a traced one */
    double all;               /* workgroups of the launch per traced one */
} Part;

/* False: out of memory. part->block is the caller's to free. */
static bool choose_part(const Timing *timing, Part *part) {
    int places = timing->units * timing->occupancy, most = timing->rounds * places;
    double *place = calloc((size_t)places, sizeof *place);
    Queue *queue = calloc((size_t)timing->units, sizeof *queue);
    BlockTrace **block = calloc((size_t)timing->units * (size_t)most, sizeof(BlockTrace *));
    bool good = place && queue && block && (part->block = calloc((size_t)most, sizeof(BlockTrace *)));
    int traced = 0;
    for (int unit = 0; good && unit < timing->units; unit++) queue[unit].block = block + (size_t)unit * (size_t)most;
    if (good) {
        dispatch(timing, place, queue);
        for (int unit = 0; unit < timing->units; unit++) part->traced += queue[unit].sum, traced += queue[unit].count;
        const Queue *chosen = choose_unit(timing, queue, part->traced / timing->units);
        memcpy(part->block, chosen->block, (size_t)chosen->count * sizeof(BlockTrace *));
        part->blocks = chosen->count;
        part->sum = chosen->sum;
        part->mean = traced ? part->traced / traced : 0;
        part->all = traced ? (double)timing->blocks / traced : 0;
    }
    free(place);
    free(queue);
    free(block);
    return good && part->blocks;
}

/* -- Results ------------------------------------------------------------------------------------------------------- */

static Shares shares_of(const Timing *timing) {
    const Machine *machine = timing->machine;
    double card =
               (double)(timing->blocks < machine->dies * (int64_t)machine->units_per_die ? timing->blocks
                                                                                         : machine->dies * (int64_t)machine->units_per_die),
           limit = machine->l1_cycle_bytes;
    Shares shares = {{0, machine->l2_cycle_bytes / (double)timing->units, machine->shared_cache_rate / machine->clock / card,
        machine->memory_rate / machine->clock / card}};
    for (int level = 0; level < LEVELS; level++)
        if (shares.level[level] > limit) shares.level[level] = limit;
    return shares;
}

/* How often the traced workgroups executed each slot. NULL: out of memory. */
static uint64_t *count_executions(const Timing *timing) {
    size_t slots = timing->launch->kernel->program->text_bytes / 4 + 1;
    uint64_t *executions = calloc(slots + 1, sizeof *executions);
    for (int b = 0; executions && b < timing->rounds * timing->occupancy * timing->units; b++)
        for (int w = 0; w < timing->die.block[b].waves; w++) {
            const WaveTrace *wave = &timing->die.block[b].wave[w];
            for (size_t i = 0; i < wave->runs; i++) executions[wave->run[i].slot]++, executions[wave->run[i].end]--;
        }
    for (size_t slot = 1; executions && slot < slots; slot++) executions[slot] += executions[slot - 1];
    return executions;
}

/* Cycles of all units of the traced workgroups. */
typedef struct UnitCycles { double matrix, vector, local, operations; } UnitCycles;

/* Returns the costs of all executed slots, and adds their cycles to *sum. NULL: out of memory. */
static Cost *make_costs(const Timing *timing, UnitCycles *sum) {
    const Program *program = timing->launch->kernel->program;
    uint64_t *executions = count_executions(timing);
    Cost *cost = executions ? calloc(program->text_bytes / 4 + 1, sizeof *cost) : NULL;
    for (uint32_t slot = 0; cost && slot < program->text_bytes / 4; slot++) {
        if (!executions[slot] || !program->instruction[slot].execute) continue;
        cost[slot] = cost_of(timing->machine, &program->instruction[slot]);
        double cycles = (double)executions[slot] * cost[slot].busy;
        if (cost[slot].unit == UNIT_MATRIX) sum->matrix += cycles, sum->operations += (double)executions[slot] * cost[slot].operations;
        if (cost[slot].unit == UNIT_VECTOR) sum->vector += cycles;
        if (cost[slot].unit == UNIT_LDS && !cost[slot].takes_value) sum->local += cycles;
    }
    for (int b = 0; b < timing->rounds * timing->occupancy * timing->units; b++)
        for (int w = 0; w < timing->die.block[b].waves; w++) sum->local += (double)timing->die.block[b].wave[w].local_cycles;
    free(executions);
    return cost;
}

static void find_worst(const Timing *timing, const Replay *replay, TimingResult *result) {
    const Program *program = timing->launch->kernel->program;
    uint32_t slots = program->text_bytes / 4;
    for (int n = 0; n < WORST; n++) {
        uint32_t worst = 0;
        for (uint32_t slot = 1; slot < slots; slot++)
            if (replay->waited[slot] > replay->waited[worst]) worst = slot;
        if (!replay->waited[worst]) return;
        const Instruction *in = &program->instruction[worst];
        result->worst[n] = (WorstInstruction){.address = in->address,
            .share = (double)replay->waited[worst] / (double)replay->wave_cycles,
            .reason = (Reason)replay->waited_reason[worst]};
        snprintf(result->worst[n].text, sizeof result->worst[n].text, "%s", in->text);
        for (char *c = result->worst[n].text; *c; c++)
            if (*c == '\t') *c = ' ';
        replay->waited[worst] = 0;
    }
}

/* Returns the launch's cycles, scaled up from those of the replay; at least the time that memory needs. */
static double launch_cycles(const Timing *timing, const Part *part, const Traffic *traffic, uint64_t replayed) {
    double longer = timing->all_rounds ? 1 : part->mean * (double)timing->unit_blocks / part->sum;
    return fmax((double)replayed * longer, traffic->memory_bytes / timing->machine->memory_rate * timing->machine->clock);
}

/* Shares are of all units of the card, idle ones too. */
static void fill_result(
    const Timing *timing, const Replay *replay, const Traffic *traffic, const Part *part, const UnitCycles *sum, TimingResult *result) {
    const Machine *machine = timing->machine;
    const Launch *launch = timing->launch;
    double units = (double)machine->dies * machine->units_per_die, scale = part->all;
    result->cycles = launch_cycles(timing, part, traffic, replay->cycles);
    result->seconds = result->cycles / machine->clock;
    result->matrix_share = sum->matrix * scale / (SIMDS * units * result->cycles);
    result->vector_share = sum->vector * scale / (SIMDS * units * result->cycles);
    result->local_share = sum->local * scale / (units * result->cycles);
    result->operations = sum->operations * scale;
    result->memory_bytes = traffic->memory_bytes;
    for (int i = 0; i < REASONS; i++) result->share[i] = replay->wave_cycles ? (double)replay->reason[i] / (double)replay->wave_cycles : 0;
    double lines = 0;
    for (int i = 0; i < LEVELS; i++) lines += (double)traffic->lines[i];
    for (int i = 0; i < LEVELS; i++) result->lines[i] = lines > 0 ? (double)traffic->lines[i] / lines : 0;
    result->machine = machine;
    result->key = timing->key;
    result->launches = 1;
    result->blocks = (uint64_t)timing->blocks;
    result->occupancy = timing->occupancy;
    result->traced = part->blocks;
    result->threads = launch->block[0] * launch->block[1] * launch->block[2];
    result->vector_registers = launch->kernel->vector_registers;
    result->lds_bytes = launch->lds_bytes;
    memcpy(result->grid, launch->grid, sizeof result->grid);
    memcpy(result->kernel, launch->kernel->name, sizeof result->kernel);
    find_worst(timing, replay, result);
}

static void print_results(void) { report_print(results.first); }

static void keep_result(TimingResult *result) {
    pthread_mutex_lock(&results.lock);
    if (!results.last) {
        results.last = &results.first;
        atexit(print_results);
    }
    *results.last = result;
    results.last = &result->next;
    results.seconds += result->seconds;
    pthread_mutex_unlock(&results.lock);
}

static bool replay_init(const Timing *timing, Replay *replay) {
    size_t slots = timing->launch->kernel->program->text_bytes / 4 + 1;
    *replay = (Replay){.waited = calloc(slots, sizeof *replay->waited), .waited_reason = calloc(slots, sizeof *replay->waited_reason)};
    return replay->waited && replay->waited_reason;
}
static void replay_free(Replay *replay) {
    free(replay->waited);
    free(replay->waited_reason);
}

/* The launch's cycles at a bound; 0 if they could not be modeled. */
static double bound_cycles(const Timing *timing, const Part *part, const Traffic *traffic, const Replayed *replayed, Bound bound) {
    Replay replay;
    bool good = replay_init(timing, &replay) && replay_blocks(replayed, bound, &replay);
    replay_free(&replay);
    return good ? launch_cycles(timing, part, traffic, replay.cycles) : 0;
}

static void simulate(Timing *timing) {
    Part part = {0};
    UnitCycles sum = {0};
    Replay replay;
    bool room = replay_init(timing, &replay);
    TimingResult *result = calloc(1, sizeof *result);
    Cost *cost = choose_part(timing, &part) ? make_costs(timing, &sum) : NULL;
    Traffic traffic = {0};
    Shares shares = shares_of(timing);
    Replayed replayed = {timing->machine, cost, part.block, part.blocks, timing->occupancy, &shares};
    bool good = cost && room && result && cache_simulate(timing->machine, &timing->die, part.all, &traffic) &&
                replay_blocks(&replayed, BOUND_MODEL, &replay);
    if (good) {
        fill_result(timing, &replay, &traffic, &part, &sum, result);
        if (wants_range()) {
            /* Other latencies also change which wavefront comes first, so that either bound may be the lower one. */
            double low = bound_cycles(timing, &part, &traffic, &replayed, BOUND_LOW),
                   high = bound_cycles(timing, &part, &traffic, &replayed, BOUND_HIGH);
            result->low = fmin(result->cycles, fmin(low, high));
            result->high = fmax(result->cycles, fmax(low, high));
        }
        keep_result(result);
    } else {
        free(result);
        fprintf(stderr, "rocemu: kernel %s could not be timed\n", timing->launch->kernel->name);
    }
    free(cost);
    free(part.block);
    replay_free(&replay);
}

void timing_finish(Timing *timing) {
    if (!timing) return;
    if (!timing->launch->failure) simulate(timing);
    for (int64_t i = 0; i < (int64_t)timing->rounds * timing->occupancy * timing->units; i++) block_trace_free(&timing->die.block[i]);
    free(timing->die.block);
    free(timing);
}
