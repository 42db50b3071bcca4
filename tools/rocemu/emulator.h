/* The emulator's own structures: registers of a wavefront, decoded instructions, kernels, launches, and what its
 * files offer one another.
 *
 * The order of things: hip.c is the surface that programs see; module.c makes kernels of a code object, with
 * decode.c translating instructions once; launch.c runs a grid, each workgroup on one thread of the host, its
 * wavefronts in turn between barriers; scalar.c, vector_*.c, matrix.c, local.c and global.c execute; undefined.c follows
 * bits that nothing wrote; check.c reports what a kernel does wrong; stats.c counts; timing.c models time; ledger.c says
 * what ran. */
#ifndef ROCEMU_EMULATOR_H
#define ROCEMU_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 64, VECTOR_REGISTERS = 512, SCALAR_REGISTERS = 128, MAX_WAVES = 16, LDS_BYTES = 160 << 10, KERNEL_NAME = 256 };
/* Accumulation registers a0.. follow v0..v255. Scalar registers have the numbers that the instruction set gives
 * them. */
enum { FIRST_ACCUMULATOR = 256, FLAT_SCRATCH = 102, VCC = 106, M0 = 124, EXEC = 126 };
/* Flat addresses whose upper half is one of these are in LDS or in the lane's scratch. */
#define SHARED_APERTURE 0x01000000u
#define PRIVATE_APERTURE 0x02000000u

typedef struct Wave Wave;
typedef struct Instruction Instruction;
typedef struct Operation Operation;
typedef struct VectorCall VectorCall;
typedef struct ScalarCall ScalarCall;
typedef struct Statistics Statistics;
typedef struct Shadow Shadow;
typedef struct Peers Peers;
typedef struct WaveTrace WaveTrace;
typedef struct Arrival Arrival;
typedef struct BlockTrace BlockTrace;
typedef struct Timing Timing;

/* -- Instructions -------------------------------------------------------------------------------------------------- */

typedef enum OperandKind { OPERAND_NONE, OPERAND_VECTOR, OPERAND_SCALAR, OPERAND_CONSTANT, OPERAND_SPECIAL } OperandKind;
typedef enum SpecialOperand {
    SPECIAL_SCC,
    SPECIAL_VCCZ,
    SPECIAL_EXECZ,
    SPECIAL_SHARED_BASE,
    SPECIAL_SHARED_LIMIT,
    SPECIAL_PRIVATE_BASE,
    SPECIAL_PRIVATE_LIMIT
} SpecialOperand;
/* The part of a register that SDWA reads or writes. */
typedef enum Selection { SELECT_DWORD, SELECT_BYTE_0, SELECT_BYTE_1, SELECT_BYTE_2, SELECT_BYTE_3, SELECT_WORD_0, SELECT_WORD_1 } Selection;

/* What an operand holds: width, and whether negation flips a float's sign. */
typedef enum OperandType {
    TYPE_NONE,
    TYPE_B32,
    TYPE_F32,
    TYPE_B64,
    TYPE_F64,
    TYPE_B16,
    TYPE_F16,
    TYPE_PACKED16,
    TYPE_PACKED32,
    TYPE_MASK
} OperandType;

typedef struct Operand {
    uint8_t kind, type, registers, selection;
    bool negate : 1, absolute : 1, extend_sign : 1;
    uint16_t index;
    uint64_t value; /* OPERAND_CONSTANT */
} Operand;

typedef enum DppControl {
    DPP_NONE,
    DPP_QUAD_PERM,
    DPP_ROW_SHL,
    DPP_ROW_SHR,
    DPP_ROW_ROR,
    DPP_WAVE_SHL,
    DPP_WAVE_ROL,
    DPP_WAVE_SHR,
    DPP_WAVE_ROR,
    DPP_ROW_MIRROR,
    DPP_ROW_HALF_MIRROR,
    DPP_ROW_BCAST15,
    DPP_ROW_BCAST31,
    DPP_ROW_NEWBCAST
} DppControl;

enum { MAX_OPERANDS = 6 };
/* Vector registers and scalar ones, as one set of bits. */
enum { REGISTERS = VECTOR_REGISTERS + SCALAR_REGISTERS, REGISTER_WORDS = REGISTERS / 64 };
struct Instruction {
    void (*execute)(Wave *wave, const Instruction *instruction);
    const Operation *operation;
    const char *text;
    uint32_t address; /* in the code object */
    int32_t target;   /* of a branch: an index of the program */
    uint8_t words;    /* dwords; the next instruction is that many slots on */
    uint8_t operands, sources;
    bool plain;          /* a vector instruction without modifiers on sources or result */
    bool uses_old_value; /* of its vector destination: adds to it, or writes a part */
    bool sdwa, clamp, global_data_share, returns, scalar_offset_enabled, indexed, bound_control, destination_preserve, destination_sign,
        to_lds;
    uint8_t output_modifier;                            /* 0, 1: mul:2, 2: mul:4, 3: div:2 */
    uint8_t op_sel, op_sel_hi, negate_low, negate_high; /* bit i: source i; bit 3 of op_sel: destination */
    uint8_t dpp, dpp_argument, row_mask, bank_mask, destination_selection;
    uint8_t broadcast_size, broadcast_block, block_pattern; /* cbsz, abid, blgp */
    uint8_t truth_table;                                    /* bitop3 */
    uint8_t wait, vmcnt, lgkmcnt;                           /* a WaitKind; of s_waitcnt, NO_WAIT: does not wait */
    uint8_t results;                                        /* how many of the operands, the first ones */
    uint64_t uses[REGISTER_WORDS];                          /* the registers among its operands */
    int32_t offset, offset0, offset1;
    Operand operand[MAX_OPERANDS];                                 /* as the text gives them */
    Operand destination, mask_destination, source[3], mask_source; /* of vector instructions */
};

/* A vector operation's inner loop over 64 lanes: sources and result as arrays of lanes; 64-bit values as 64 low
 * halves, then 64 high halves. */
struct VectorCall {
    uint32_t *d;
    const uint32_t *s[3];
    uint64_t mask;   /* carry in, the choice of v_cndmask, or the truth table of v_bitop3 */
    uint64_t result; /* carry out, or a comparison */
    uint64_t exec;
};
typedef void VectorCore(VectorCall *call);
struct ScalarCall {
    uint64_t s[3], d;
    bool scc;
};
typedef void ScalarCore(ScalarCall *call);

typedef enum OperationFlag {
    OPERATION_FLOAT32 = 1,     /* the mode register's fp32 denormal and rounding bits matter */
    OPERATION_FLOAT64 = 2,     /* its fp64/fp16 bits */
    OPERATION_ACCUMULATES = 4, /* the old destination is the last source */
    OPERATION_KEEPS_HIGH = 8,  /* a 16-bit result leaves the upper half as it was */
    OPERATION_USES_SCC = 16,
    OPERATION_WRITES_EXEC = 32, /* v_cmpx */
    OPERATION_SETS_SCC = 64,
    OPERATION_USES_VCC = 128, /* implicitly */
    OPERATION_MEMORY = 512,
    OPERATION_MATRIX = 1024,
    OPERATION_PATTERN = 2048, /* the offset is a pattern that the text spells out: taken from the encoding */
    OPERATION_BRANCHES = 4096,
    OPERATION_CALLS = 8192, /* or jumps to where a register says */
} OperationFlag;

/* How undefined bits of sources get into a result (undefined.c). "Tried": computed with the undefined bits of each source
 * all 0 and all 1. */
typedef enum UndefinedRule {
    UNDEFINED_WHOLE,           /* any makes all of the result undefined, or of the element of a packed one */
    UNDEFINED_BITS,            /* a bit depends on one bit of each source: the bits that change when tried */
    UNDEFINED_CARRY,           /* a bit depends on bits at and below its place: from the lowest that changes up */
    UNDEFINED_PACKS,           /* source i is half i of the result */
    UNDEFINED_MONOTONE,        /* all of the result where trying changes it: it grows or falls with each source, unsigned */
    UNDEFINED_MONOTONE_SIGNED, /* the same of signed sources */
    UNDEFINED_EQUAL            /* whether the sources are equal: no defined bit tells */
} UndefinedRule;
/* Bit i of `sources`: source i says which bits to take, as a shift's distance does, so that all of the result is undefined where a bit
 * of it is that counts: those that number the bits of the result, or all. */
#define UNDEFINED_BITS_BY(sources) (UNDEFINED_BITS | (sources) << 4)
#define UNDEFINED_BITS_BY_ALL(sources) (UNDEFINED_BITS | (sources) << 4 | 128)
#define UNDEFINED_CARRY_BY(sources) (UNDEFINED_CARRY | (sources) << 4)

/* One row of an instruction table. `format` names the operands as the text has them, results before the colon:
 *   d 32 bits   D 64 bits   m mask (also of a comparison)   s scalar dword   S scalar pair
 *   i 32 bits   I 64 bits   f fp32   F fp64   w 16 bits   h fp16   p packed 16   P packed 32   M mask; an upper-case S or M is a pair.
 * "NAME clamp" and "NAME ocp" are the forms of an instruction that saturates, and of one on fp8 in OCP's formats. */
struct Operation {
    const char *name, *format;
    void (*execute)(Wave *wave, const Instruction *instruction);
    VectorCore *vector;
    ScalarCore *scalar;
    uint32_t flags;
    int32_t argument, argument2; /* of the execute function: a size, a comparison ... */
    uint8_t undefined;           /* an UndefinedRule, with sources that choose bits */
};
static inline UndefinedRule operation_rule(const Operation *operation) { return (UndefinedRule)(operation->undefined & 15); }
static inline unsigned operation_selectors(const Operation *operation) { return operation->undefined >> 4 & 7; }
/* The bits of them that count, of `bits` that they choose among. */
static inline uint32_t operation_selector_mask(const Operation *operation, uint32_t bits) {
    return operation->undefined & 128 ? ~0u : bits - 1;
}
typedef struct OperationTable {
    const Operation *rows;
    size_t count;
} OperationTable;
extern const OperationTable scalar_operations, memory_scalar_operations, vector_float_operations, vector_integer_operations,
    vector_compare_operations, vector_half_operations, vector_convert_operations, vector_lane_operations, matrix_operations,
    local_operations, global_operations, buffer_operations;

/* -- Programs ------------------------------------------------------------------------------------------------------ */

typedef struct Architecture {
    const char *name, *card;
    unsigned machine; /* e_flags of code objects (EF_AMDGPU_MACH) */
    int minor;        /* of the compute capability */
    int compute_units;
    uint32_t lds_bytes;  /* of a compute unit, and the most that a workgroup has: LDS_BYTES or less */
    bool ocp_fp8;        /* instructions on fp8 have OCP's formats, not FNUZ */
    bool buffer_scratch; /* kernels reach scratch by a buffer descriptor and set FLAT_SCRATCH themselves; else it is there as they begin */
} Architecture;
/* The first, gfx942, where there is none of that name. */
const Architecture *architecture_named(const char *name);
/* NULL where it is not emulated. */
const Architecture *architecture_of_machine(unsigned machine);

/* A loaded code object. instruction[i] decodes the dword at text_address + 4 i, where execute is not NULL. */
typedef struct Program {
    uint8_t *image; /* the segments, in device memory */
    uint64_t image_bytes;
    uint32_t text_address, text_bytes;
    Instruction *instruction;
    char *object; /* a copy of the file */
    size_t object_bytes;
    const Architecture *architecture;
    uint32_t checksum; /* of the file, as cksum has it: tells kernels of the same name apart */
} Program;

typedef struct HiddenArgument {
    uint8_t kind;
    uint16_t offset, size;
} HiddenArgument;
enum {
    HIDDEN_NONE,
    HIDDEN_BLOCK_COUNT,
    HIDDEN_GROUP_SIZE = HIDDEN_BLOCK_COUNT + 3,
    HIDDEN_REMAINDER = HIDDEN_GROUP_SIZE + 3,
    HIDDEN_GRID_DIMS = HIDDEN_REMAINDER + 3,
    HIDDEN_SHARED_BASE,
    HIDDEN_PRIVATE_BASE
};

enum { MAX_ARGUMENTS = 64, MAX_HIDDEN = 24 };
typedef struct Kernel {
    char name[KERNEL_NAME];
    Program *program;
    uint32_t entry, code_bytes; /* address in the code object */
    uint32_t group_bytes, private_bytes, kernarg_bytes;
    uint32_t vector_registers, accumulators, max_threads;
    uint32_t rsrc1, rsrc2, rsrc3;
    uint16_t properties, preload;
    int arguments, hidden_arguments;
    struct { uint32_t offset, size; } argument[MAX_ARGUMENTS];
    HiddenArgument hidden[MAX_HIDDEN];
} Kernel;

/* Decodes [address, address + bytes) of the program's text. False with a message in `why`. */
bool decode_program(Program *program, uint32_t address, uint32_t bytes, char why[256]);
/* NULL with a message in `why`: not an ELF, another GPU's, damaged. */
Program *program_load(const void *image, char why[256]);
void program_unload(Program *program);
/* Fills `kernel`; false with a message. */
bool program_kernel(Program *program, const char *name, Kernel *kernel, char why[256]);

/* -- Device memory ------------------------------------------------------------------------------------------------- */

typedef struct Allocation {
    uint64_t base, bytes;
    bool live, host, shared; /* shared: with other processes */
} Allocation;
/* Zero on failure. Addresses are never used twice, so that a freed allocation stays known. */
uint64_t arena_allocate(uint64_t bytes, bool host);
bool arena_free(uint64_t base, bool host);
/* Memory that other processes can open by its handle, of up to 64 bytes, which is false for other memory; and an allocation
 * that is another process's memory. */
uint64_t arena_allocate_shared(uint64_t bytes);
bool arena_handle(uint64_t base, void *handle);
uint64_t arena_open(const void *handle);
/* The allocation with the greatest base at or below `address`, by value; false when there is none. */
bool arena_find(uint64_t address, Allocation *found);
uint64_t arena_used(void);
#define ARENA_CAPACITY (192ull << 30)
/* Of the emulated card: ARENA_CAPACITY or less. */
uint64_t arena_capacity(void);

/* -- Running ------------------------------------------------------------------------------------------------------- */

typedef enum WaveState { WAVE_RUNNING, WAVE_WAITING, WAVE_ENDED, WAVE_FAILED } WaveState;
typedef enum CheckLevel { CHECK_OFF, CHECK_MEMORY, CHECK_ALL } CheckLevel;

typedef struct Launch {
    const Kernel *kernel;
    uint32_t grid[3], block[3], lds_bytes;
    uint8_t *kernarg;
    uint8_t packet[64]; /* the dispatch packet */
    CheckLevel check;
    Statistics *statistics; /* NULL when nothing is counted */
    Timing *timing;         /* NULL when it is not timed */
    bool samples;           /* only traced workgroups run, unless there are few */
    bool late;              /* accesses arrive as late as they may */
    bool planted;           /* ROCEMU_PLANT names the kernel: its stores are wrong */
    uint64_t executed;
    int failure; /* a hipError_t, 0 while all is well */
} Launch;

/* What becomes of an instruction's results (waits.c). */
typedef enum WaitKind {
    WAIT_NONE,
    WAIT_MEMORY_ACCESS,
    WAIT_LDS_ACCESS,
    WAIT_LANE_EXCHANGE, /* of the LDS unit */
    WAIT_SCALAR_LOAD,
    WAIT_FOR,
    WAIT_AT_BARRIER,
    WAIT_AT_END
} WaitKind;
enum { WAIT_COUNTERS = 3, NO_WAIT = 255 };
/* The load that a register waits for: its number among those of its counter, and where it is. */
typedef struct Due {
    uint32_t number, slot;
    uint8_t counter;
} Due;
typedef struct Outstanding {
    uint32_t issued[WAIT_COUNTERS], done[WAIT_COUNTERS];
    uint32_t lds_access, lds_access_slot; /* the youngest access to LDS: its number, and where it is */
    bool open;                            /* any that is not done */
    uint64_t loads[REGISTER_WORDS];       /* registers of which `due` is valid; those of loads that are done may be among them */
    Due due[REGISTERS];
} Outstanding;
/* Accesses that arrive late (arrivals.c), from the oldest to the last of each counter. */
typedef struct Arrivals { Arrival *first[WAIT_COUNTERS], *last[WAIT_COUNTERS], *spare; } Arrivals;

typedef struct Workgroup {
    Launch *launch;
    Wave *wave;
    int waves;
    uint32_t id[3];
    _Alignas(64) uint8_t lds[LDS_BYTES];
    Shadow *shadow;
    Statistics *statistics; /* of this thread */
    Peers *peers;           /* NULL until it touches memory that devices share */
    BlockTrace *trace;      /* NULL when this workgroup is not traced */
} Workgroup;

struct Wave {
    _Alignas(64) uint32_t vector[VECTOR_REGISTERS][LANES];
    _Alignas(8) uint32_t scalar[SCALAR_REGISTERS + 4];
    /* Of registers, bits that nothing wrote (undefined.h). A lane is whole where `defined` has it; else those bits stand in `undefined`
     * where `partly` has it, and are all 32 where that has not. */
    uint64_t defined[VECTOR_REGISTERS], partly[VECTOR_REGISTERS];
    uint32_t (*undefined)[LANES];
    uint32_t scalar_undefined[SCALAR_REGISTERS + 4];
    /* Slot + 1 of the instruction that first read the undefined bits; 0 where they are the register's from the start. */
    uint32_t origin[VECTOR_REGISTERS], scalar_origin[SCALAR_REGISTERS + 4], scc_origin;
    Workgroup *group;
    const Instruction *program;
    uint32_t pc, mode;
    WaveState state;
    bool scc, scc_undefined;
    int index;
    uint64_t launch_exec; /* lanes that the launch gave this wave */
    const Instruction *barrier;
    bool takes_turns; /* it set its priority: wavefronts that take turns stand at barriers apart, which the hardware counts alike */
    uint64_t executed;
    WaveTrace *trace; /* NULL when nothing is recorded */
    Outstanding outstanding;
    Arrivals arrivals;
    Allocation recent; /* where the last global access went */
    uint8_t *scratch;  /* private_bytes of each lane */
    uint8_t *scratch_undefined;
    uint32_t scratch_bytes;
};

/* Describes a launch; fills the hidden arguments of `kernarg`, which the caller keeps until the launch has run. */
void launch_prepare(
    Launch *launch, const Kernel *kernel, const uint32_t grid[3], const uint32_t block[3], uint32_t dynamic_lds, uint8_t *kernarg);
/* Runs the grid; returns launch->failure. */
int launch_run(Launch *launch);

static inline uint64_t wave_pair(const Wave *wave, int index) { return wave->scalar[index] | (uint64_t)wave->scalar[index + 1] << 32; }
static inline void wave_set_pair(Wave *wave, int index, uint64_t value) {
    wave->scalar[index] = (uint32_t)value;
    wave->scalar[index + 1] = (uint32_t)(value >> 32);
}
static inline uint64_t wave_exec(const Wave *wave) { return wave_pair(wave, EXEC); }

uint64_t operand_special(const Wave *wave, const Operand *operand);
/* Scalar value of any operand that is not a vector register. */
static inline uint64_t operand_scalar(const Wave *wave, const Operand *operand) {
    if (operand->kind == OPERAND_SCALAR) return operand->registers == 2 ? wave_pair(wave, operand->index) : wave->scalar[operand->index];
    return operand->kind == OPERAND_CONSTANT ? operand->value : operand_special(wave, operand);
}
/* Executes vector operations with operation->vector, scalar ones with operation->scalar. */
void vector_execute(Wave *wave, const Instruction *instruction);
/* The same in less time, of an instruction that has a vector for its only result and no modifiers. */
bool vector_is_simple(const Instruction *instruction);
void vector_execute_simple(Wave *wave, const Instruction *instruction);
void scalar_execute(Wave *wave, const Instruction *instruction);
/* Pieces of vector_execute that move values, or undefined bits of values, alike (vector.c). Source 0 as DPP permutes it; returns the
 * lanes that take part. */
uint64_t vector_permute(const Instruction *instruction, const uint32_t *from, uint64_t exec, uint32_t *to);
/* Source i as its modifiers make it of `from`: that, or `to`. Only `values` are negated. */
const uint32_t *vector_modify_source(const Instruction *instruction, int i, const uint32_t *from, uint32_t *to, bool values);
/* Puts a 16-bit or SDWA result into its part of the old register. */
void vector_place_result(const Instruction *instruction, const uint32_t *old, uint32_t *d);
/* Sets the host's rounding and flushing from the mode register for a float instruction, and back. */
unsigned float_mode_enter(uint32_t mode, uint32_t flags);
void float_mode_leave(unsigned saved);

/* -- Checks -------------------------------------------------------------------------------------------------------- */

CheckLevel check_level(void);
/* Reports what the kernel did wrong, once per launch, and stops it. `lane` may be -1. `error` is a hipError_t. */
void check_report(Wave *wave, const Instruction *instruction, int lane, int error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* False after reporting. */
bool check_global(Wave *wave, const Instruction *instruction, int lane, uint64_t address, unsigned bytes, bool write);

void waits_begin(Outstanding *outstanding);
/* Fills `uses` of a decoded instruction. */
void waits_note_uses(Instruction *instruction);
/* False after reporting that the instruction uses what a load has not brought yet; else notes what it loads. */
bool waits_check(Wave *wave, const Instruction *instruction);
/* Whether there is nothing to check: the instruction neither waits nor loads, and uses no register that a load was going to fill. */
static inline bool waits_for_nothing(const Wave *wave, const Instruction *instruction) {
    if (instruction->wait != WAIT_NONE) return false;
    if (!wave->outstanding.open) return true;
    uint64_t common = 0;
    for (int i = 0; i < REGISTER_WORDS; i++) common |= instruction->uses[i] & wave->outstanding.loads[i];
    return !common;
}
WaitKind wait_kind(const Instruction *instruction);
/* The counter that accesses of this kind have, or WAIT_COUNTERS. */
int wait_counter(WaitKind kind);
/* The number after "vmcnt(" or "lgkmcnt(" in the text of s_waitcnt. */
uint8_t wait_limit(const char *text, const char *counter);
/* How many of the operands, the first ones, are results. */
int instruction_results(const Instruction *instruction);

/* Whether accesses of a kernel's next launch arrive late; `launches`: how often it ran. */
bool arrivals_are_late(uint64_t launches);
/* Executes the instruction, and late accesses that it waits for; puts off an access. Call waits_check before. */
void arrivals_execute(Wave *wave, const Instruction *instruction);
void arrivals_destroy(Arrivals *arrivals);

/* Follows what a workgroup reads and writes of memory that devices share (peers.c). Call peers_read after a load into register `to`;
 * false after a report. */
bool peers_read(Wave *wave, const Instruction *instruction, int lane, uint64_t address, int to, unsigned bytes);
void peers_wrote(Wave *wave, const Instruction *instruction, uint64_t address, unsigned bytes);
/* Reports a word that changed after the workgroup's last read. */
void peers_end(Workgroup *group);

/* One lane's scratch of a wavefront, or NULL after reporting an access beyond it. */
uint8_t *check_scratch(Wave *wave, const Instruction *instruction, int lane, uint32_t offset, unsigned bytes);

/* The upper words of the descriptor of scratch: swizzled, with the lane's number in the address. */
enum { SCRATCH_SWIZZLED = (int)(1u << 31), SCRATCH_ADDS_LANE = 1 << 23 };

typedef enum LocalAccess { LOCAL_READ, LOCAL_WRITE, LOCAL_ATOMIC } LocalAccess;
/* Checks one lane's access to LDS and remembers it. */
bool check_local(Wave *wave, const Instruction *instruction, int lane, uint32_t address, unsigned bytes, LocalAccess access);
/* The same of reads or writes of 4, 8 or 16 bytes by all lanes of `exec` at once. False where one of them is wrong, or the bytes are others:
 * then nothing has been remembered, and check_local says what it is. */
bool check_local_lanes(Wave *wave, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access);
/* Of a byte of LDS, the bits that nothing wrote, although the byte was written; NULL where there are none in all of LDS, unless
 * `create`. */
uint8_t *shadow_undefined(Shadow *shadow, uint32_t address, bool create);
Shadow *shadow_create(void);
void shadow_destroy(Shadow *shadow);
void shadow_begin(Shadow *shadow, uint32_t lds_bytes);
void shadow_barrier(Shadow *shadow, uint32_t lds_bytes);

/* -- Counting ------------------------------------------------------------------------------------------------------ */

struct Statistics {
    uint64_t *executions; /* by instruction slot of the program */
    uint64_t slots;
    uint64_t read_bytes, written_bytes, global_accesses, uncoalesced, lines,
        ideal_lines; /* lines of 128 bytes that accesses touched, and the fewest that could do */
    uint64_t local_bytes, local_accesses, local_cycles, local_conflicts; /* of 128 bytes each; conflicts are cycles beyond the fewest */
    uint64_t matrix_operations;
    double matrix_seconds; /* at the published rates */
    uint64_t waves, workgroups;
};
bool statistics_enabled(void);
Statistics *statistics_create(const Program *program);
void statistics_destroy(Statistics *statistics);
void statistics_add(Statistics *to, const Statistics *from);
/* Counts one wave-wide access. */
void statistics_global(Statistics *statistics, const uint64_t address[LANES], uint64_t exec, unsigned bytes, bool write);
void statistics_matrix(Statistics *statistics, uint64_t operations, double tera_rate);
void statistics_local(Statistics *statistics, const uint32_t address[LANES], uint64_t exec, unsigned bytes);
/* Adds a finished launch to its kernel's totals, printed when the process ends. `seconds`: of all the host's cores
 * together. */
void statistics_finish(const Launch *launch, double seconds);

/* -- Timing (timing.h) --------------------------------------------------------------------------------------------- */

/* ROCEMU_TIME is set. */
bool timing_enabled(void);
/* What all launches so far took by the model. */
double timing_seconds(void);
/* ROCEMU_TIME=sample: only traced workgroups run. */
bool timing_samples(void);
/* Whether a launch like this one has been timed before; counts it. */
bool timing_repeats(const Launch *launch);
/* NULL when nothing is to be timed. */
Timing *timing_begin(const Launch *launch);
BlockTrace *timing_block(Timing *timing, int64_t number, int waves);
WaveTrace *timing_wave(BlockTrace *block, int wave);
/* Models the launch, keeps the result for the report at the end of the process, and frees. */
void timing_finish(Timing *timing);
void trace_instruction(WaveTrace *trace, const Instruction *instruction, uint32_t slot);
void trace_global(WaveTrace *trace, const uint64_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access);
void trace_scalar(WaveTrace *trace, uint64_t address, unsigned bytes);
void trace_local(WaveTrace *trace, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access);

/* Counts and records one wave-wide access to device memory, or to LDS. */
static inline void note_global(Wave *wave, const uint64_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access) {
    if (wave->group->statistics) statistics_global(wave->group->statistics, address, exec, bytes, access != LOCAL_READ);
    if (wave->trace && exec) trace_global(wave->trace, address, exec, bytes, access);
}
static inline void note_local(Wave *wave, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access) {
    if (wave->group->statistics) statistics_local(wave->group->statistics, address, exec, bytes);
    if (wave->trace) trace_local(wave->trace, address, exec, bytes, access);
}

/* What a matrix instruction multiplies: blocks of M x M x K; bits of an element of A, of xf32 those that count. */
typedef struct MatrixShape {
    uint32_t operations;
    unsigned bits, per_lane, blocks;
} MatrixShape;
MatrixShape matrix_shape(const Instruction *instruction);

/* The CRC of POSIX's cksum. */
uint32_t ledger_checksum(const void *bytes, size_t count);
/* Notes a finished launch. */
void ledger_add(const Launch *launch, double seconds);
/* How often the kernel ran before. */
uint64_t ledger_launches(const Kernel *kernel);

#endif
