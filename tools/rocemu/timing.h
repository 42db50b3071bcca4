/* Timing (ROCEMU_TIME=1): how long a card would need for a launch, by a model. The order of things: timing.c chooses
 * which workgroups are traced and puts results together; timing_trace.c records what their wavefronts execute;
 * timing_machine.c says what cards and instructions cost; timing_cache.c finds which cache serves which line;
 * timing_replay.c runs the traces of one compute unit cycle by cycle; timing_report.c prints. timing.c's opening says
 * what is modeled and what is not. */
#ifndef ROCEMU_TIMING_H
#define ROCEMU_TIMING_H

#include "emulator.h"

enum { SIMDS = 4, TURN = 4, LINE_BYTES = 128, SEGMENT_BYTES = 64 };

/* -- Machines ------------------------------------------------------------------------------------------------------ */

/* Where a line of 128 bytes comes from. */
typedef enum Level { LEVEL_L1, LEVEL_L2, LEVEL_SHARED_CACHE, LEVEL_MEMORY, LEVELS } Level;

/* How LDS may serve a wavefront. `order`: quads of lanes in the order in which reads of 16 bytes take them, one phase after another. A phase
 * reads or writes each bank once. */
enum { QUADS = LANES / 4, MOST_RULES = 3 };
typedef struct LocalRule {
    const uint8_t (*order)[QUADS];
    unsigned read_banks, write_banks, read_cycles; /* read_cycles: of a phase that reads */
} LocalRule;

typedef struct Machine {
    const char *target, *name;
    double clock; /* Hz, the peak */
    int dies, units_per_die;
    unsigned simd_waves, lds_bytes, lds_granule, unit_groups;
    LocalRule local[MOST_RULES]; /* the first is modeled, the others are possible */
    /* Operations per cycle and SIMD of matrix instructions: fp32, xf32, 16 bits with several blocks, with 4 values per
     * lane, with 8, and 8 bits with 8 values and with 32. 0: there is no such instruction. */
    unsigned rate_f32, rate_xf32, rate_half_blocks, rate_half, rate_half_8, rate_byte, rate_byte_32;
    uint32_t l1_bytes, l2_bytes;                           /* of a compute unit, of a die */
    uint64_t shared_cache_bytes;                           /* Infinity Cache; 0: none */
    unsigned l1_cycle_bytes, l2_cycle_bytes;               /* per compute unit, per die */
    double shared_cache_rate, memory_rate;                 /* bytes per second of the card; memory as copies reach it */
    unsigned lds_latency, scalar_latency, latency[LEVELS]; /* cycles */
} Machine;

/* By a code object's target; NULL: no such row. */
const Machine *machine_find(const char *target);
/* Workgroups that fit a compute unit: by registers, LDS, wavefront slots. 0: not even one. */
int machine_occupancy(const Machine *machine, const Kernel *kernel, unsigned threads, uint64_t lds_bytes);

/* The modeled value, and its least and largest value over the unknown properties of a card: rules of LDS, and latencies. */
typedef enum Bound { BOUND_MODEL, BOUND_LOW, BOUND_HIGH, BOUNDS } Bound;
enum { LOCAL_BITS = 10 };
/* Cycles that LDS needs for one access of a wavefront: LOCAL_BITS for each Bound. */
uint32_t machine_local_cycles(const Machine *machine, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access);
static inline uint32_t local_cycles_of(uint32_t packed, Bound bound) { return packed >> LOCAL_BITS * bound & ((1u << LOCAL_BITS) - 1); }
/* Returns the machine with the latencies of a bound. */
Machine machine_at(const Machine *machine, Bound bound);

/* -- Costs of instructions ----------------------------------------------------------------------------------------- */

typedef enum Unit {
    UNIT_VECTOR,
    UNIT_MATRIX,
    UNIT_SCALAR,
    UNIT_SCALAR_MEMORY,
    UNIT_MEMORY,
    UNIT_LDS,
    UNIT_BRANCH,
    UNIT_BARRIER,
    UNIT_WAIT,  /* s_waitcnt */
    UNIT_DELAY, /* s_nop, s_sleep, s_setprio and what costs only its turn */
    UNITS
} Unit;

enum { SCALAR_FIRST = VECTOR_REGISTERS, TIMED_REGISTERS = VECTOR_REGISTERS + SCALAR_REGISTERS, COST_READS = 6, COST_WRITES = 2 };
typedef struct RegisterRange { uint16_t first, count; } RegisterRange;
typedef struct Cost {
    bool known;
    uint8_t unit;
    uint8_t reads, writes;
    uint8_t vmcnt, lgkmcnt; /* NO_WAIT: none */
    uint8_t priority;       /* of s_setprio, plus 1; 0: another instruction */
    bool store, returns_by_lds, takes_value;
    uint8_t words;       /* dwords of the instruction */
    uint16_t busy;       /* cycles of the unit; of UNIT_DELAY: cycles until the next instruction */
    uint16_t latency;    /* cycles until another instruction can use the result */
    uint32_t operations; /* of a matrix instruction */
    RegisterRange read[COST_READS], write[COST_WRITES], accumulator; /* accumulator: C of a matrix instruction */
} Cost;
Cost cost_of(const Machine *machine, const Instruction *instruction);

/* -- Traces -------------------------------------------------------------------------------------------------------- */

/* A wavefront's access to device memory. `level` is filled by the caches: lines by where they come from. */
typedef struct Access {
    size_t first_line;
    uint32_t lines;
    uint16_t cycles; /* of the vector memory unit */
    uint8_t kind;    /* LocalAccess */
    bool scalar;
    uint16_t level[LEVELS];
} Access;
/* Instructions that were executed one after another, from a slot of the program to the one before `end`. */
typedef struct TraceRun { uint32_t slot, end, count; } TraceRun;
struct WaveTrace {
    TraceRun *run;
    uint32_t *value; /* for each instruction with OPERATION_MEMORY: packed cycles of LDS, or the index of the access plus 1 */
    Access *access;
    uint64_t *line; /* address / LINE_BYTES */
    size_t runs, values, accesses, lines, run_capacity, value_capacity, access_capacity, line_capacity;
    uint64_t executed, local_cycles; /* instructions; of LDS */
    uint32_t next_slot;              /* after the last instruction */
    const Launch *launch;
    const Machine *machine;
    bool failed; /* out of memory */
};
struct BlockTrace {
    WaveTrace *wave;
    int waves;
};
bool trace_begin(BlockTrace *block, int waves, const Launch *launch, const Machine *machine);
void block_trace_free(BlockTrace *block);

/* -- Caches -------------------------------------------------------------------------------------------------------- */

/* Workgroups of one die by when they run: block[(round * slots + slot) * units + unit]. */
typedef struct DieTrace {
    BlockTrace *block;
    int rounds, slots, units;
    bool all_rounds; /* none was left out */
} DieTrace;
typedef struct Traffic {
    uint64_t lines[LEVELS]; /* of the traced workgroups: served by each level */
    double memory_bytes;    /* of the whole launch, estimated */
} Traffic;
/* Fills the levels of all accesses. `scale`: workgroups of the launch per traced one. False: out of memory. */
bool cache_simulate(const Machine *machine, DieTrace *die, double scale, Traffic *traffic);

/* -- Replay -------------------------------------------------------------------------------------------------------- */

typedef enum Reason {
    REASON_ISSUED,
    REASON_MATRIX_RESULT, /* of a matrix instruction that is not there yet */
    REASON_MATRIX_BUSY,
    REASON_VECTOR, /* a vector result, or the vector unit busy */
    REASON_LDS_WAIT,
    REASON_LDS_BUSY,
    REASON_MEMORY_WAIT,
    REASON_MEMORY_BUSY,
    REASON_SCALAR_LOAD,
    REASON_BARRIER,
    REASON_CONFLICT, /* another wavefront's instruction went first */
    REASON_DELAY,    /* s_nop, s_sleep, branches */
    REASONS
} Reason;
extern const char *const reason_names[REASONS];

/* Bytes per cycle that one compute unit gets of each level. */
typedef struct Shares { double level[LEVELS]; } Shares;
typedef struct Replay {
    uint64_t cycles, wave_cycles;
    uint64_t reason[REASONS]; /* cycles of all wavefronts */
    uint64_t *waited;         /* by slot */
    uint8_t *waited_reason;
} Replay;
/* Runs workgroups, `slots` at a time, on one compute unit. `cost` and `waited` have a row for each slot of the program.
 * False: out of memory, or traces without an end. */
typedef struct Replayed {
    const Machine *machine;
    const Cost *cost;
    BlockTrace *const *block;
    int blocks, slots;
    const Shares *shares;
} Replayed;
bool replay_blocks(const Replayed *replayed, Bound bound, Replay *replay);

/* -- Results ------------------------------------------------------------------------------------------------------- */

enum { WORST = 3 };
typedef struct WorstInstruction {
    uint32_t address;
    char text[96];
    double share; /* of all wavefronts' cycles */
    Reason reason;
} WorstInstruction;
typedef struct TimingResult {
    struct TimingResult *next;
    const Machine *machine;
    uint64_t key, launches, blocks;
    char kernel[KERNEL_NAME];
    uint32_t grid[3], threads, vector_registers, lds_bytes;
    int occupancy, traced;
    double cycles, low, high; /* low and high: 0 if not asked for */
    double seconds, matrix_share, vector_share, local_share, operations, memory_bytes, share[REASONS], lines[LEVELS];
    WorstInstruction worst[WORST];
} TimingResult;
void report_print(const TimingResult *first);

#endif
