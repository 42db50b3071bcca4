/* What cards and their instructions cost. A card is a row of numbers, from AMD's white papers and instruction set
 * guides (units, caches, rates, passes of matrix instructions), LLVM's wait states for matrix results, and public
 * pointer chases (latencies, which agree within some tens of percent). Rates of memory are what copies reach. */
#include <stdlib.h>
#include <string.h>

#include "timing.h"

/* -- Cards --------------------------------------------------------------------------------------------------------- */

/* Quads of lanes as reads of 16 bytes take them. MI300X: an AMD engineer's table (triton-lang/triton #11365, August 2026), and conflicts
 * that others measured. MI355X: the same table, and conflicts that HipKittens measured, with 64 banks for reads of 8 and 16 bytes and
 * 32 for stores. Nothing is published for MI250X: it may have the order of MI300X, pair neighbors, or pair both
 * halves of the wavefront. */
static const uint8_t crosswise[QUADS] = {0, 5, 1, 4, 2, 7, 3, 6, 8, 13, 9, 12, 10, 15, 11, 14},
                     crosswise_16[QUADS] = {0, 3, 5, 6, 1, 2, 4, 7, 8, 11, 13, 14, 9, 10, 12, 15},
                     neighbors[QUADS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                     halves[QUADS] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};

static const Machine machines[] = {
    {.target = "gfx90a",
        .name = "MI250X, one of its two dies",
        .clock = 1.7e9,
        .dies = 1,
        .units_per_die = 110,
        .simd_waves = 8,
        .lds_bytes = 65536,
        .lds_granule = 512,
        .local = {{&crosswise, 32, 32, 1}, {&neighbors, 32, 32, 1}, {&halves, 32, 32, 1}},
        .unit_groups = 16,
        .rate_f32 = 64,
        .rate_half_blocks = 256,
        .rate_half = 256,
        .rate_byte = 256,
        .l1_bytes = 16384,
        .l2_bytes = 8 << 20,
        .l1_cycle_bytes = 64,
        .l2_cycle_bytes = 4096,
        .memory_rate = 1.35e12,
        .lds_latency = 64,
        .scalar_latency = 50,
        .latency = {120, 250, 0, 750}},
    {.target = "gfx942",
        .name = "MI300X",
        .clock = 2.1e9,
        .dies = 8,
        .units_per_die = 38,
        .simd_waves = 8,
        .lds_bytes = 65536,
        .lds_granule = 512,
        .local = {{&crosswise, 32, 32, 1}},
        .unit_groups = 16,
        .rate_f32 = 64,
        .rate_xf32 = 256,
        .rate_half_blocks = 256,
        .rate_half = 512,
        .rate_byte = 1024,
        .l1_bytes = 32768,
        .l2_bytes = 4 << 20,
        .shared_cache_bytes = 256 << 20,
        .l1_cycle_bytes = 64,
        .l2_cycle_bytes = 2048,
        .shared_cache_rate = 11.9e12,
        .memory_rate = 4.33e12,
        .lds_latency = 64,
        .scalar_latency = 50,
        .latency = {120, 250, 500, 800}},
    {.target = "gfx950",
        .name = "MI355X",
        .clock = 2.4e9,
        .dies = 8,
        .units_per_die = 32,
        .simd_waves = 8,
        .lds_bytes = 163840,
        .lds_granule = 1280,
        /* AMD's HIP documents: 256 bytes a cycle. A port to two SIMDs may still give 64. */
        .local = {{&crosswise_16, 64, 32, 1}, {&crosswise_16, 64, 32, 2}},
        .unit_groups = 16,
        .rate_f32 = 64,
        .rate_half_blocks = 256,
        .rate_half = 512,
        .rate_half_8 = 1024,
        .rate_byte = 1024,
        .rate_byte_32 = 2048,
        .l1_bytes = 32768,
        .l2_bytes = 4 << 20,
        .shared_cache_bytes = 256 << 20,
        .l1_cycle_bytes = 64,
        .l2_cycle_bytes = 2048,
        .shared_cache_rate = 13.6e12,
        .memory_rate = 6.5e12,
        .lds_latency = 64,
        .scalar_latency = 50,
        .latency = {120, 270, 550, 900}},
};

const Machine *machine_find(const char *target) {
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        if (!strcmp(machines[i].target, target)) return &machines[i];
    return NULL;
}

/* 512 registers of a lane and SIMD, v and a together, in eights. */
int machine_occupancy(const Machine *machine, const Kernel *kernel, unsigned threads, uint64_t lds_bytes) {
    unsigned registers = (kernel->vector_registers + 7) / 8 * 8, waves = (threads + LANES - 1) / LANES,
             simd_waves = registers ? VECTOR_REGISTERS / registers : machine->simd_waves;
    if (simd_waves > machine->simd_waves) simd_waves = machine->simd_waves;
    uint64_t lds = (lds_bytes + machine->lds_granule - 1) / machine->lds_granule * machine->lds_granule,
             groups = SIMDS * simd_waves / waves, by_lds = lds ? machine->lds_bytes / lds : groups;
    if (by_lds < groups) groups = by_lds;
    /* Workgroups of one wavefront need no barrier, of which a compute unit has `unit_groups`. */
    if (waves > 1 && groups > machine->unit_groups) groups = machine->unit_groups;
    return (int)groups;
}

/* -- LDS ----------------------------------------------------------------------------------------------------------- */

/* Stores send 64 addresses of 4 bytes ahead of their data through the same ports of 64 bytes a cycle, of which two SIMDs share one
 * (rocprofiler-compute's documents: 8 cycles of a port for 4 bytes a lane, 20 for 16). */
enum { STORE_ADDRESSES = 2 };

/* A phase takes a cycle for each different dword that its lanes want of the bank that is wanted most. */
static unsigned local_rule_cycles(const LocalRule *rule, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access) {
    bool reads = access == LOCAL_READ;
    unsigned dwords = bytes < 4 ? 1 : bytes / 4, banks = reads ? rule->read_banks : rule->write_banks,
             lanes = banks / (dwords == 3 ? 4 : dwords), total = reads ? 0 : STORE_ADDRESSES;
    if (lanes > LANES) lanes = LANES;
    for (unsigned phase = 0; phase < LANES / lanes; phase++) {
        uint32_t wanted[64][LANES];
        uint8_t count[64] = {0};
        unsigned most = 0;
        for (unsigned i = phase * lanes; i < (phase + 1) * lanes; i++) {
            unsigned lane = reads && dwords == 4 ? (*rule->order)[i / 4] * 4u + i % 4 : i;
            for (unsigned d = 0; exec >> lane & 1 && d < dwords; d++) {
                uint32_t word = address[lane] / 4 + d, bank = word % banks, n = 0;
                while (n < count[bank] && wanted[bank][n] != word) n++;
                if (n == count[bank]) wanted[bank][count[bank]++] = word;
                if (count[bank] > most) most = count[bank];
            }
        }
        total += reads ? most * rule->read_cycles : most;
    }
    return total;
}

uint32_t machine_local_cycles(const Machine *machine, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access) {
    uint32_t model = 0, low = 0, high = 0;
    for (int i = 0; i < MOST_RULES && machine->local[i].order; i++) {
        uint32_t cycles = local_rule_cycles(&machine->local[i], address, exec, bytes, access);
        if (i == 0) model = low = high = cycles;
        if (cycles < low) low = cycles;
        if (cycles > high) high = cycles;
    }
    return model << LOCAL_BITS * BOUND_MODEL | low << LOCAL_BITS * BOUND_LOW | high << LOCAL_BITS * BOUND_HIGH;
}

/* Public pointer chases differ by about 30%. */
Machine machine_at(const Machine *machine, Bound bound) {
    static const double scale[BOUNDS] = {1, 0.7, 1.3};
    Machine at = *machine;
    at.lds_latency = (unsigned)(scale[bound] * at.lds_latency);
    at.scalar_latency = (unsigned)(scale[bound] * at.scalar_latency);
    for (int level = 0; level < LEVELS; level++) at.latency[level] = (unsigned)(scale[bound] * at.latency[level]);
    return at;
}

/* -- Instructions -------------------------------------------------------------------------------------------------- */

enum {
    MATRIX_EXTRA = 16, /* cycles after its passes until a result can be read other than as the next C */
    TO_SCALAR = 8,     /* a vector instruction's scalar result */
    PERMUTE = 2,       /* LDS, for what only goes through it from lane to lane */
    BRANCH = 16,       /* until the wavefront's next instruction is there */
};

static bool starts(const char *name, const char *prefix) { return !strncmp(name, prefix, strlen(prefix)); }

/* Cycles of the vector unit: 16 lanes at a time; some instructions go at a quarter or half of that. */
static uint16_t vector_cycles(const char *name) {
    static const char *const quarter[] = {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_", "v_mul_lo_u32",
        "v_mul_hi_", "v_mad_u64_u32", "v_mad_i64_i32"};
    static const char *const half[] = {"v_lshlrev_b64", "v_lshrrev_b64", "v_ashrrev_i64"};
    for (size_t i = 0; i < sizeof quarter / sizeof *quarter; i++)
        if (starts(name, quarter[i])) return strstr(name, "_f64") ? 32 : 16;
    for (size_t i = 0; i < sizeof half / sizeof *half; i++)
        if (starts(name, half[i])) return 8;
    return 4;
}

static unsigned matrix_rate(const Machine *machine, const MatrixShape *shape) {
    unsigned rate = 0;
    if (shape->bits == 32) rate = machine->rate_f32;
    else if (shape->bits == 19) rate = machine->rate_xf32;
    else if (shape->bits == 16)
        rate = shape->blocks > 1 ? machine->rate_half_blocks : shape->per_lane >= 8 ? machine->rate_half_8 : machine->rate_half;
    else rate = shape->per_lane >= 32 ? machine->rate_byte_32 : machine->rate_byte;
    return rate ? rate : machine->rate_half;
}

static void add_range(RegisterRange *range, uint8_t *count, int limit, const Operand *operand) {
    if (*count == limit || (operand->kind != OPERAND_VECTOR && operand->kind != OPERAND_SCALAR)) return;
    unsigned first = operand->kind == OPERAND_VECTOR ? operand->index : SCALAR_FIRST + operand->index, n = operand->registers;
    if (first + n > TIMED_REGISTERS) n = TIMED_REGISTERS - first;
    range[(*count)++] = (RegisterRange){(uint16_t)first, (uint16_t)n};
}

static void add_registers(Cost *cost, const Instruction *in) {
    int results = instruction_results(in);
    for (int i = 0; i < in->operands; i++)
        if (i < results) add_range(cost->write, &cost->writes, COST_WRITES, &in->operand[i]);
        else add_range(cost->read, &cost->reads, COST_READS, &in->operand[i]);
    if (in->operation->flags & OPERATION_ACCUMULATES) add_range(cost->read, &cost->reads, COST_READS, &in->operand[0]);
    Operand vcc = {.kind = OPERAND_SCALAR, .index = VCC, .registers = 2};
    if (in->operation->flags & OPERATION_USES_VCC || strstr(in->operation->name, "branch_vcc"))
        add_range(cost->read, &cost->reads, COST_READS, &vcc);
}

static void matrix_cost(const Machine *machine, const Instruction *in, Cost *cost) {
    MatrixShape shape = matrix_shape(in);
    cost->unit = UNIT_MATRIX;
    cost->operations = shape.operations;
    unsigned rate = matrix_rate(machine, &shape), passes = rate ? (shape.operations / rate + 3) / 4 : 16;
    cost->busy = (uint16_t)(4 * (passes ? passes : 1));
    cost->latency = (uint16_t)(cost->busy + MATRIX_EXTRA);
    uint8_t none = 0;
    add_range(&cost->accumulator, &none, 1, &in->operand[3]);
}

static int number_after(const char *text, const char *word) {
    const char *at = strstr(text, word);
    return at ? atoi(at + strlen(word)) : -1;
}

static void delay_cost(const char *text, Cost *cost) {
    cost->unit = UNIT_DELAY;
    cost->busy = TURN;
    if (starts(text, "s_nop")) cost->busy = (uint16_t)(TURN * (number_after(text, "s_nop") + 1));
    if (starts(text, "s_sleep")) cost->busy = (uint16_t)(64 * (number_after(text, "s_sleep") + 1));
    if (starts(text, "s_setprio")) cost->priority = (uint8_t)(number_after(text, "s_setprio") + 1);
}

static void scalar_cost(const Instruction *in, Cost *cost) {
    const char *name = in->operation->name;
    cost->unit = UNIT_SCALAR;
    cost->busy = cost->latency = TURN;
    if (starts(name, "s_load_") || starts(name, "s_buffer_load_")) {
        cost->unit = UNIT_SCALAR_MEMORY;
    } else if (starts(name, "s_cbranch") || starts(name, "s_branch") || strstr(name, "pc_b64") || starts(name, "s_call")) {
        cost->unit = UNIT_BRANCH;
        cost->busy = BRANCH;
    } else if (starts(name, "s_barrier")) {
        cost->unit = UNIT_BARRIER;
    } else if (starts(name, "s_waitcnt")) {
        cost->unit = UNIT_WAIT;
        cost->vmcnt = in->vmcnt;
        cost->lgkmcnt = in->lgkmcnt;
    } else if (!strcmp(in->operation->format, ":")) {
        delay_cost(in->text, cost);
    }
}

Cost cost_of(const Machine *machine, const Instruction *in) {
    const char *name = in->operation->name;
    Cost cost = {
        .known = true, .vmcnt = NO_WAIT, .lgkmcnt = NO_WAIT, .words = in->words, .takes_value = in->operation->flags & OPERATION_MEMORY};
    add_registers(&cost, in);
    if (in->operation->flags & OPERATION_MATRIX) {
        matrix_cost(machine, in, &cost);
    } else if (name[0] == 's' && name[1] == '_') {
        scalar_cost(in, &cost);
    } else if (name[0] == 'v') {
        cost.unit = UNIT_VECTOR;
        cost.busy = vector_cycles(name);
        cost.latency = cost.busy;
        for (int i = 0; i < cost.writes; i++)
            if (cost.write[i].first >= SCALAR_FIRST) cost.latency = (uint16_t)(cost.busy + TO_SCALAR);
    } else if (starts(name, "ds_")) {
        cost.unit = UNIT_LDS;
        cost.busy = PERMUTE;
        cost.writes = 0; /* s_waitcnt orders its results */
    } else if (!strcmp(in->operation->format, ":")) {
        delay_cost(in->text, &cost);
    } else {
        cost.unit = UNIT_MEMORY;
        cost.writes = 0;
        cost.store = strstr(name, "_store_") != NULL;
        cost.returns_by_lds = starts(name, "flat_");
    }
    return cost;
}
