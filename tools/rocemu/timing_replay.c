/* One compute unit, cycle by cycle, on recorded traces. Each SIMD has a turn every four cycles, in which it issues at
 * most one instruction of each kind, each from another wavefront: of the highest priority first, then the oldest. A
 * wavefront issues in order and once per turn. Results are followed by register; what memory and LDS return is waited
 * for by s_waitcnt alone, as on hardware. LDS and the vector memory unit serve all SIMDs, one access after the other;
 * caches beyond L1 are queues at the compute unit's share of their rate. While no wavefront can issue, time jumps. */
#include <stdlib.h>
#include <string.h>

#include "timing.h"

const char *const reason_names[REASONS] = {[REASON_ISSUED] = "issuing",
    [REASON_MATRIX_RESULT] = "matrix result",
    [REASON_MATRIX_BUSY] = "matrix unit busy",
    [REASON_VECTOR] = "vector unit",
    [REASON_LDS_WAIT] = "LDS wait",
    [REASON_LDS_BUSY] = "LDS busy",
    [REASON_MEMORY_WAIT] = "memory wait",
    [REASON_MEMORY_BUSY] = "memory unit busy",
    [REASON_SCALAR_LOAD] = "scalar load",
    [REASON_BARRIER] = "barrier",
    [REASON_CONFLICT] = "issue conflict",
    [REASON_DELAY] = "nops and branches"};

enum {
    RING = 64,       /* outstanding accesses that vmcnt can count, plus 1 */
    LGKM_LIMIT = 15, /* that lgkmcnt can */
    LDS_QUEUE = 64,  /* cycles of accesses that LDS takes before it makes wavefronts wait */
    MEMORY_QUEUE = 128,
    BARRIER_LATENCY = 16,
    BLOCK_START = 200, /* from the end of a workgroup until the next one's wavefronts run */
    UNIT_WAVES = 64
};
#define NEVER UINT64_MAX

/* Completion times of a wavefront's accesses, which complete in order. */
typedef struct Counter { uint64_t done[RING], last, issued; } Counter;

typedef struct ReplayWave {
    const WaveTrace *trace;
    size_t run, value;     /* the next instruction's run, and the next value */
    uint32_t slot, in_run; /* the next instruction's slot and place in its run */
    uint32_t last_slot;    /* of the instruction before */
    uint64_t left;         /* instructions */
    int block, simd;
    uint64_t available, visited, age;
    Reason blocked, delay; /* delay: why it is not available */
    uint8_t priority;
    bool scalar_outstanding;
    Counter vector_memory, lgkm;
    uint64_t ready[TIMED_REGISTERS];
    bool by_matrix[TIMED_REGISTERS];
} ReplayWave;

typedef struct ReplayBlock { int waves, ended, waiting; } ReplayBlock;

typedef struct Processor {
    const Machine *machine;
    const Cost *cost;
    Replay *replay;
    Bound bound;
    BlockTrace *const *block;
    ReplayBlock *state;
    int blocks, started, running, slots;
    ReplayWave *wave[UNIT_WAVES];
    int waves;
    uint64_t vector_free[SIMDS], matrix_free[SIMDS], lds_free, memory_free, next_age;
    double queue[LEVELS]; /* when each level has served what was asked of it */
    double cycles_per_line[LEVELS];
} Processor;

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* -- Workgroups ---------------------------------------------------------------------------------------------------- */

static int emptiest_simd(const Processor *p) {
    int count[SIMDS] = {0}, best = 0;
    for (int i = 0; i < p->waves; i++) count[p->wave[i]->simd]++;
    for (int s = 1; s < SIMDS; s++)
        if (count[s] < count[best]) best = s;
    return best;
}

static bool start_block(Processor *p, uint64_t now) {
    int index = p->started++;
    const BlockTrace *block = p->block[index];
    p->state[index] = (ReplayBlock){.waves = block->waves};
    p->running++;
    for (int w = 0; w < block->waves; w++) {
        ReplayWave *wave = calloc(1, sizeof *wave);
        if (!wave || p->waves == UNIT_WAVES) {
            free(wave);
            return false;
        }
        wave->trace = &block->wave[w];
        wave->left = wave->trace->executed;
        wave->slot = wave->last_slot = wave->left ? wave->trace->run[0].slot : 0;
        wave->block = index;
        wave->simd = emptiest_simd(p);
        wave->available = wave->visited = now;
        wave->blocked = wave->delay = REASON_DELAY;
        wave->age = p->next_age++;
        p->wave[p->waves++] = wave;
    }
    return true;
}

/* Removes ended wavefronts; starts the next workgroup where one has ended. */
static bool retire(Processor *p, uint64_t now) {
    int kept = 0;
    for (int i = 0; i < p->waves; i++) {
        ReplayWave *wave = p->wave[i];
        if (wave->left) {
            p->wave[kept++] = wave;
            continue;
        }
        ReplayBlock *block = &p->state[wave->block];
        if (++block->ended == block->waves) p->running--;
        free(wave);
    }
    p->waves = kept;
    while (p->running < p->slots && p->started < p->blocks)
        if (!start_block(p, now + (now ? BLOCK_START : 0))) return false;
    return true;
}

/* -- What a wavefront waits for ------------------------------------------------------------------------------------ */

/* When at most `left` of the counter's accesses are outstanding. */
static uint64_t counter_time(const Counter *counter, uint64_t left) {
    if (counter->issued <= left) return 0;
    uint64_t index = counter->issued - 1 - left;
    return counter->issued - index > RING ? 0 : counter->done[index % RING];
}

static void counter_add(Counter *counter, uint64_t done) {
    counter->last = later(counter->last, done);
    counter->done[counter->issued++ % RING] = counter->last;
}

/* When all registers that the instruction reads are there; C of the same registers as the last result sooner. */
static uint64_t operands_time(const ReplayWave *wave, const Cost *cost, bool *matrix) {
    uint64_t time = 0;
    for (int i = 0; i < cost->reads; i++) {
        const RegisterRange *range = &cost->read[i];
        bool chained = cost->unit == UNIT_MATRIX && range->first == cost->accumulator.first && range->count == cost->accumulator.count &&
                       cost->writes && cost->write[0].first == range->first;
        for (unsigned r = range->first; r < range->first + range->count; r++) {
            uint64_t ready = wave->ready[r];
            if (chained && wave->by_matrix[r] && ready) ready -= cost->latency - cost->busy;
            if (ready > time) time = ready, *matrix = wave->by_matrix[r];
        }
    }
    return time;
}

typedef struct Obstacle {
    uint64_t until;
    Reason reason;
} Obstacle;

static void hinder(Obstacle *obstacle, uint64_t until, Reason reason) {
    if (until > obstacle->until) *obstacle = (Obstacle){until, reason};
}

static void unit_obstacles(const Processor *p, const ReplayWave *wave, const Cost *cost, Obstacle *obstacle) {
    switch ((Unit)cost->unit) {
    case UNIT_VECTOR: hinder(obstacle, p->vector_free[wave->simd], REASON_VECTOR); break;
    case UNIT_MATRIX: hinder(obstacle, p->matrix_free[wave->simd], REASON_MATRIX_BUSY); break;
    case UNIT_LDS:
        hinder(obstacle, p->lds_free > LDS_QUEUE ? p->lds_free - LDS_QUEUE : 0, REASON_LDS_BUSY);
        hinder(obstacle, counter_time(&wave->lgkm, LGKM_LIMIT - 1), REASON_LDS_WAIT);
        break;
    case UNIT_SCALAR_MEMORY: hinder(obstacle, counter_time(&wave->lgkm, LGKM_LIMIT - 1), REASON_SCALAR_LOAD); break;
    case UNIT_MEMORY:
        hinder(obstacle, p->memory_free > MEMORY_QUEUE ? p->memory_free - MEMORY_QUEUE : 0, REASON_MEMORY_BUSY);
        hinder(obstacle, counter_time(&wave->vector_memory, RING - 2), REASON_MEMORY_WAIT);
        break;
    case UNIT_WAIT:
        if (cost->vmcnt != NO_WAIT) hinder(obstacle, counter_time(&wave->vector_memory, cost->vmcnt), REASON_MEMORY_WAIT);
        if (cost->lgkmcnt != NO_WAIT)
            hinder(obstacle, counter_time(&wave->lgkm, cost->lgkmcnt), wave->scalar_outstanding ? REASON_SCALAR_LOAD : REASON_LDS_WAIT);
        break;
    default: break;
    }
}

static Obstacle obstacle_of(const Processor *p, const ReplayWave *wave, const Cost *cost) {
    Obstacle obstacle = {wave->available, wave->delay};
    bool matrix = false;
    uint64_t operands = operands_time(wave, cost, &matrix);
    hinder(&obstacle, operands, matrix ? REASON_MATRIX_RESULT : REASON_VECTOR);
    unit_obstacles(p, wave, cost, &obstacle);
    return obstacle;
}

/* -- Issuing ------------------------------------------------------------------------------------------------------- */

static void account(Processor *p, ReplayWave *wave, uint64_t now) {
    if (now <= wave->visited) return;
    uint64_t cycles = now - wave->visited;
    /* A barrier, a branch or s_nop has issued, and the wavefront waits behind it. */
    uint32_t slot = wave->blocked == REASON_BARRIER || wave->blocked == REASON_DELAY ? wave->last_slot : wave->slot;
    p->replay->reason[wave->blocked] += cycles;
    p->replay->waited[slot] += cycles;
    p->replay->waited_reason[slot] = (uint8_t)wave->blocked;
    wave->visited = now;
}

/* When the lines of an access that begins at `start` are there: from each level at this compute unit's share. */
static uint64_t memory_done(Processor *p, const Access *access, uint64_t start) {
    bool store = access->kind == LOCAL_WRITE;
    uint64_t done = start + (access->scalar ? p->machine->scalar_latency : p->machine->latency[LEVEL_L1]);
    unsigned beyond = 0;
    for (int level = LEVEL_MEMORY; level > LEVEL_L1; level--) {
        beyond += access->level[level];
        if (!beyond) continue;
        /* What a farther level serves passes the nearer ones too. */
        double begin = p->queue[level] > (double)start ? p->queue[level] : (double)start;
        p->queue[level] = begin + beyond * p->cycles_per_line[level];
        if (store && level > LEVEL_L2) continue; /* done when the L2 has it */
        if (store || access->level[level]) done = later(done, (uint64_t)p->queue[level] + p->machine->latency[level]);
    }
    return done;
}

static void issue_memory(Processor *p, ReplayWave *wave, const Cost *cost, uint32_t value, uint64_t now) {
    if (!value) return; /* scratch, or no lane active */
    const Access *access = &wave->trace->access[value - 1];
    if (cost->unit == UNIT_SCALAR_MEMORY) {
        counter_add(&wave->lgkm, memory_done(p, access, now));
        wave->scalar_outstanding = true;
        return;
    }
    uint64_t start = later(now, p->memory_free);
    p->memory_free = start + access->cycles;
    uint64_t done = memory_done(p, access, p->memory_free);
    counter_add(&wave->vector_memory, done);
    if (cost->returns_by_lds) counter_add(&wave->lgkm, done);
}

static void issue_barrier(Processor *p, ReplayWave *wave, uint64_t now) {
    ReplayBlock *block = &p->state[wave->block];
    wave->available = NEVER;
    wave->delay = REASON_BARRIER;
    if (++block->waiting < block->waves - block->ended) return;
    block->waiting = 0;
    for (int i = 0; i < p->waves; i++)
        if (p->wave[i]->block == wave->block) p->wave[i]->available = now + BARRIER_LATENCY;
}

static void write_results(ReplayWave *wave, const Cost *cost, uint64_t now) {
    for (int i = 0; i < cost->writes; i++)
        for (unsigned r = cost->write[i].first; r < (unsigned)cost->write[i].first + cost->write[i].count; r++) {
            wave->ready[r] = now + cost->latency;
            wave->by_matrix[r] = cost->unit == UNIT_MATRIX;
        }
}

static void advance(ReplayWave *wave, const Cost *cost) {
    wave->last_slot = wave->slot;
    wave->slot += cost->words;
    if (--wave->left && ++wave->in_run == wave->trace->run[wave->run].count) {
        wave->in_run = 0;
        wave->slot = wave->trace->run[++wave->run].slot;
    }
}

static void issue(Processor *p, ReplayWave *wave, const Cost *cost, uint64_t now) {
    uint32_t value = cost->takes_value ? wave->trace->value[wave->value++] : cost->busy;
    wave->available = wave->visited = now + TURN;
    wave->blocked = wave->delay = REASON_DELAY;
    p->replay->reason[REASON_ISSUED] += TURN;
    switch ((Unit)cost->unit) {
    case UNIT_VECTOR: p->vector_free[wave->simd] = now + cost->busy; break;
    case UNIT_MATRIX: p->matrix_free[wave->simd] = now + cost->busy; break;
    case UNIT_LDS: {
        uint64_t start = later(now, p->lds_free);
        p->lds_free = start + (cost->takes_value ? local_cycles_of(value, p->bound) : value);
        counter_add(&wave->lgkm, p->lds_free + p->machine->lds_latency);
        wave->scalar_outstanding = false;
        break;
    }
    case UNIT_SCALAR_MEMORY:
    case UNIT_MEMORY: issue_memory(p, wave, cost, value, now); break;
    case UNIT_BARRIER: issue_barrier(p, wave, now); break;
    case UNIT_BRANCH:
    case UNIT_DELAY:
        wave->available = now + cost->busy;
        if (cost->priority) wave->priority = cost->priority;
        break;
    default: break;
    }
    write_results(wave, cost, now);
    advance(wave, cost);
}

static bool goes_before(const ReplayWave *a, const ReplayWave *b) {
    return a->priority != b->priority ? a->priority > b->priority : a->age < b->age;
}

/* Vector and matrix instructions share one way; waits and delays take none. */
static int issue_kind(Unit unit) { return unit == UNIT_MATRIX ? UNIT_VECTOR : (int)unit; }

/* One SIMD's turn. *next gets the earliest time at which a waiting wavefront may go on. True when one issued. */
static bool take_turn(Processor *p, int simd, uint64_t now, uint64_t *next) {
    ReplayWave *chosen[UNITS] = {NULL};
    bool issued = false;
    for (int i = 0; i < p->waves; i++) {
        ReplayWave *wave = p->wave[i];
        if (wave->simd != simd || !wave->left) continue;
        const Cost *cost = &p->cost[wave->slot];
        account(p, wave, now);
        Obstacle obstacle = obstacle_of(p, wave, cost);
        wave->blocked = obstacle.until > now ? obstacle.reason : REASON_CONFLICT;
        if (obstacle.until > now) {
            if (obstacle.until < *next) *next = obstacle.until;
            continue;
        }
        int kind = issue_kind((Unit)cost->unit);
        if (kind == UNIT_WAIT || kind == UNIT_DELAY) {
            issue(p, wave, cost, now);
            issued = true;
        } else if (!chosen[kind] || goes_before(wave, chosen[kind])) {
            chosen[kind] = wave;
        }
    }
    for (int kind = 0; kind < UNITS; kind++) {
        if (!chosen[kind]) continue;
        issue(p, chosen[kind], &p->cost[chosen[kind]->slot], now);
        issued = true;
    }
    return issued;
}

static bool any_ended(const Processor *p) {
    for (int i = 0; i < p->waves; i++)
        if (!p->wave[i]->left) return true;
    return false;
}

/* False when nothing can ever issue again, which a trace of a run that ended well does not do. */
static bool run(Processor *p) {
    uint64_t now = 0;
    if (!retire(p, now)) return false;
    while (p->waves) {
        uint64_t next = NEVER;
        bool issued = false;
        for (int simd = 0; simd < SIMDS; simd++) issued |= take_turn(p, simd, now + (uint64_t)simd, &next);
        if (!issued && next == NEVER) return false;
        if (issued && any_ended(p)) {
            p->replay->cycles = now + TURN;
            if (!retire(p, now + TURN)) return false;
        }
        now = issued || next <= now + TURN ? now + TURN : next / TURN * TURN;
    }
    return true;
}

bool replay_blocks(const Replayed *replayed, Bound bound, Replay *replay) {
    Machine machine = machine_at(replayed->machine, bound);
    Processor p = {.machine = &machine,
        .cost = replayed->cost,
        .replay = replay,
        .bound = bound,
        .block = replayed->block,
        .blocks = replayed->blocks,
        .slots = replayed->slots};
    for (int level = LEVEL_L2; level < LEVELS; level++)
        p.cycles_per_line[level] = replayed->shares->level[level] > 0 ? LINE_BYTES / replayed->shares->level[level] : 0;
    p.state = calloc((size_t)replayed->blocks + 1, sizeof *p.state);
    bool good = p.state && run(&p);
    for (int i = 0; i < p.waves; i++) free(p.wave[i]);
    free(p.state);
    for (int i = 0; i < REASONS; i++) replay->wave_cycles += replay->reason[i];
    return good;
}
