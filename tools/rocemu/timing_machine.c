/* What cards and their instructions cost. A card is a row of numbers, from AMD's white papers and instruction set
 * guides (units, caches, rates, passes of matrix instructions), LLVM's wait states for matrix results, and public
 * pointer chases (latencies, which agree within some tens of percent). Rates of memory are what copies reach. */
#include <stdlib.h>
#include <string.h>

#include "timing.h"

/* -- Cards --------------------------------------------------------------------------------------------------------- */

static const Machine machines[] = {
    {.target = "gfx90a",
        .name = "MI250X, one of its two dies",
        .clock = 1.7e9,
        .dies = 1,
        .units_per_die = 110,
        .simd_waves = 8,
        .lds_bytes = 65536,
        .lds_granule = 512,
        .lds_banks = 32,
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
        .lds_banks = 32,
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
        .lds_banks = 64,
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

/* Which lanes go together in phase `phase`: as many as ask for all banks once. Reads of 16 bytes pair quads of lanes
 * crosswise within 32 (0 to 3 with 20 to 23, and so on); others take neighbours. */
static unsigned phase_lane(unsigned phase, unsigned i, unsigned phase_lanes, bool crosswise) {
    if (!crosswise) return phase * phase_lanes + i;
    static const uint8_t partner[4] = {5, 4, 7, 6};
    unsigned half = phase / 4, quad = phase % 4;
    return half * 32 + (i < 4 ? quad * 4 : partner[quad] * 4u) + i % 4;
}

/* A phase takes a cycle for each different dword that its lanes want of the bank that is wanted most. */
unsigned machine_local_cycles(const Machine *machine, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access) {
    unsigned dwords = bytes < 4 ? 1 : bytes / 4, lanes = 32 / (dwords == 3 ? 4 : dwords), total = 0;
    bool crosswise = dwords == 4 && access == LOCAL_READ;
    for (unsigned phase = 0; phase < LANES / lanes; phase++) {
        uint32_t wanted[64][32];
        uint8_t count[64] = {0};
        unsigned cycles = 0;
        for (unsigned i = 0; i < lanes; i++) {
            unsigned lane = phase_lane(phase, i, lanes, crosswise);
            for (unsigned d = 0; exec >> lane & 1 && d < dwords; d++) {
                uint32_t word = address[lane] / 4 + d, bank = word % machine->lds_banks, n = 0;
                while (n < count[bank] && wanted[bank][n] != word) n++;
                if (n == count[bank] && n < 32) wanted[bank][count[bank]++] = word;
                if (count[bank] > cycles) cycles = count[bank];
            }
        }
        total += cycles;
    }
    return total;
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
