/* LDS: the memory that a workgroup's wavefronts share, and the permutations between lanes that go through its
 * hardware. */
#include "hip.h"
#include "memory.h"

/* Byte addresses of all lanes. */
static void local_addresses(const Wave *wave, const Operand *address, int32_t offset, uint32_t to[LANES]) {
    const uint32_t *from = wave->vector[address->index];
    for (int lane = 0; lane < LANES; lane++) to[lane] = from[lane] + (uint32_t)offset;
}

/* One access by all lanes, which have been checked: registers from `value` on, `words` of each lane. */
typedef struct LanesMove {
    uint32_t (*value)[LANES];
    uint8_t *lds;
    const uint32_t *address;
} LanesMove;
LANE_INLINE void move_lanes(const LanesMove *move, int words, bool writes) {
    const uint32_t *address = move->address;
    for (int word = 0; word < words; word++) {
        uint32_t *value = move->value[word];
        uint8_t *lds = move->lds + 4 * word;
        for (int lane = 0; lane < LANES; lane++)
            if (writes) memcpy(lds + address[lane], &value[lane], 4);
            else memcpy(&value[lane], lds + address[lane], 4);
    }
}
#define MOVE_LANES(words)                                                             \
    CORE load_##words(LanesMove *move) { move_lanes(move, words, false); }            \
    CORE store_##words(LanesMove *move) { move_lanes(move, words, true); }
MOVE_LANES(1)
MOVE_LANES(2)
MOVE_LANES(4)

static void local_load(
    Wave *wave, const Instruction *in, int to, const uint32_t address[LANES], uint64_t exec, unsigned bytes, Extension extension) {
    note_local(wave, address, exec, bytes, LOCAL_READ);
    undefined_loaded(wave, in, to, bytes, exec, extension);
    bool holds_undefined = shadow_undefined(wave->group->shadow, 0, false),
         checked = check_local_lanes(wave, address, exec, bytes, LOCAL_READ);
    if (checked && exec == ~0ull && !holds_undefined) {
        LanesMove move = {&wave->vector[to], wave->group->lds, address};
        (bytes == 4 ? load_1 : bytes == 8 ? load_2 : load_4)(&move);
        return;
    }
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        if (!checked && !check_local(wave, in, lane, address[lane], bytes, LOCAL_READ)) return;
        const uint8_t *from = wave->group->lds + address[lane];
        load_lane(wave, to, lane, from, bytes, extension);
        if (holds_undefined) undefined_load(wave, in, to, lane, from, bytes, extension);
    }
}

static void local_store(
    Wave *wave, const Instruction *in, int from, const uint32_t address[LANES], uint64_t exec, unsigned bytes, Extension extension) {
    note_local(wave, address, exec, bytes, LOCAL_WRITE);
    uint64_t marked = undefined_lanes(wave, from, (int)(bytes + 3) / 4);
    if (shadow_undefined(wave->group->shadow, 0, false)) marked = ~0ull;
    bool checked = check_local_lanes(wave, address, exec, bytes, LOCAL_WRITE);
    if (checked && exec == ~0ull && !marked) {
        LanesMove move = {&wave->vector[from], wave->group->lds, address};
        (bytes == 4 ? store_1 : bytes == 8 ? store_2 : store_4)(&move);
        return;
    }
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        if (!checked && !check_local(wave, in, lane, address[lane], bytes, LOCAL_WRITE)) return;
        uint8_t *to = wave->group->lds + address[lane];
        store_lane(wave, from, lane, to, bytes, extension);
        if (marked >> lane & 1) undefined_store(wave, in, from, lane, to, bytes, extension);
    }
}

static void execute_read(Wave *wave, const Instruction *in) {
    uint32_t address[LANES];
    uint64_t exec = wave_exec(wave);
    if (!undefined_check(wave, in, in->operand[1].index, 1, ~0u, exec, "an LDS address")) return;
    local_addresses(wave, &in->operand[1], in->offset, address);
    local_load(wave, in, in->operand[0].index, address, exec, (unsigned)in->operation->argument, (Extension)in->operation->argument2);
}

static void execute_write(Wave *wave, const Instruction *in) {
    uint32_t address[LANES];
    uint64_t exec = wave_exec(wave);
    if (!undefined_check(wave, in, in->operand[0].index, 1, ~0u, exec, "an LDS address")) return;
    local_addresses(wave, &in->operand[0], in->offset, address);
    local_store(wave, in, in->operand[1].index, address, exec, (unsigned)in->operation->argument, (Extension)in->operation->argument2);
}

/* Of 4 rows of 16 halves with each 16 lanes, 4 lanes to a row, lane i gets the column i. */
static void transpose(uint32_t pair[2][LANES]) {
    uint16_t read[LANES][4];
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++) read[lane][i] = (uint16_t)(pair[i / 2][lane] >> i % 2 * 16);
    for (int lane = 0; lane < LANES; lane++)
        for (int r = 0; r < 2; r++) {
            int row = lane / 16 * 16 + lane % 16 / 4 + 8 * r;
            pair[r][lane] = read[row][lane % 4] | (uint32_t)read[row + 4][lane % 4] << 16;
        }
}

static void execute_read_transposed(Wave *wave, const Instruction *in) {
    int to = in->operand[0].index;
    if (wave_exec(wave) != ~0ull) {
        check_report(wave, in, -1, HIP_ERROR_NOT_SUPPORTED, "a transposing read with lanes switched off, which the emulator does not have");
        return;
    }
    execute_read(wave, in);
    if (wave->state != WAVE_RUNNING) return;
    transpose(&wave->vector[to]);
    if (!undefined_lanes(wave, to, 2)) return;
    uint32_t bits[2][LANES], origin = undefined_origin(wave, in, 0);
    for (int r = 0; r < 2; r++) undefined_get_lanes(wave, to + r, bits[r]);
    transpose(bits);
    for (int r = 0; r < 2; r++) undefined_set_lanes(wave, to + r, ~0ull, bits[r], origin);
}

/* Two accesses of `argument` bytes at offsets in units of `argument2` bytes. */
static void execute_read2(Wave *wave, const Instruction *in) {
    uint32_t first[LANES], second[LANES];
    uint64_t exec = wave_exec(wave);
    unsigned bytes = (unsigned)in->operation->argument;
    if (!undefined_check(wave, in, in->operand[1].index, 1, ~0u, exec, "an LDS address")) return;
    local_addresses(wave, &in->operand[1], in->offset0 * in->operation->argument2, first);
    local_addresses(wave, &in->operand[1], in->offset1 * in->operation->argument2, second);
    local_load(wave, in, in->operand[0].index, first, exec, bytes, EXTEND_ZERO);
    if (wave->state == WAVE_RUNNING) local_load(wave, in, in->operand[0].index + (int)bytes / 4, second, exec, bytes, EXTEND_ZERO);
}

static void execute_write2(Wave *wave, const Instruction *in) {
    uint32_t first[LANES], second[LANES];
    uint64_t exec = wave_exec(wave);
    unsigned bytes = (unsigned)in->operation->argument;
    if (!undefined_check(wave, in, in->operand[0].index, 1, ~0u, exec, "an LDS address")) return;
    local_addresses(wave, &in->operand[0], in->offset0 * in->operation->argument2, first);
    local_addresses(wave, &in->operand[0], in->offset1 * in->operation->argument2, second);
    local_store(wave, in, in->operand[1].index, first, exec, bytes, EXTEND_ZERO);
    if (wave->state == WAVE_RUNNING) local_store(wave, in, in->operand[2].index, second, exec, bytes, EXTEND_ZERO);
}

static uint64_t lane_value(const Wave *wave, int index, int lane, unsigned bytes) {
    return wave->vector[index][lane] | (bytes == 8 ? (uint64_t)wave->vector[index + 1][lane] << 32 : 0);
}

/* argument: the kind | bytes << 8; argument2: whether the old value is returned. */
static void execute_atomic(Wave *wave, const Instruction *in) {
    AtomicKind kind = (AtomicKind)(in->operation->argument & 0xff);
    unsigned bytes = (unsigned)in->operation->argument >> 8;
    bool returns = in->operation->argument2;
    const Operand *operand = &in->operand[returns];
    uint64_t exec = wave_exec(wave);
    uint32_t address[LANES];
    if (!undefined_check(wave, in, operand[0].index, 1, ~0u, exec, "an LDS address")) return;
    for (int i = 1; i < (kind == ATOMIC_CMPSWAP ? 3 : 2); i++)
        if (!undefined_check(wave, in, operand[i].index, operand[i].registers, ~0u, exec, "an atomic operand")) return;
    local_addresses(wave, &operand[0], in->offset, address);
    note_local(wave, address, exec, bytes, LOCAL_ATOMIC);
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        if (!check_local(wave, in, lane, address[lane], bytes, LOCAL_ATOMIC)) return;
        uint64_t value = lane_value(wave, operand[1].index, lane, bytes), compare = 0;
        if (kind == ATOMIC_CMPSWAP) compare = value, value = lane_value(wave, operand[2].index, lane, bytes);
        uint64_t old = atomic_apply(kind, wave->group->lds + address[lane], bytes, value, compare);
        if (!returns) continue;
        wave->vector[in->operand[0].index][lane] = (uint32_t)old;
        if (bytes == 8) wave->vector[in->operand[0].index + 1][lane] = (uint32_t)(old >> 32);
    }
    if (returns) undefined_loaded(wave, in, in->operand[0].index, bytes, exec, EXTEND_ZERO);
}

/* -- Permutations -------------------------------------------------------------------------------------------------- */

/* The bits of a register that permutations take a lane's number of, four times itself, from. */
enum { LANE_NUMBER = 0xff };

/* False after reporting that an active lane takes from one that is off. Hardware gives it 0, and no code means that. */
static bool check_sources(Wave *wave, const Instruction *in, uint64_t exec, const int source[LANES]) {
    for (uint64_t left = wave->group->launch->check == CHECK_ALL ? exec : 0; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        if (exec >> source[lane] & 1) continue;
        check_report(wave, in, lane, HIP_ERROR_LAUNCH_FAILURE, "an exchange that takes from lane %d, which is off", source[lane]);
        return false;
    }
    return true;
}

/* Every active lane gets what lane source[] has: 0 from an inactive one. */
static void gather_lanes(uint64_t exec, const uint32_t from[LANES], const int source[LANES], uint32_t to[LANES]) {
    uint32_t old[LANES];
    memcpy(old, from, sizeof old);
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left), at = source[lane];
        to[lane] = exec >> at & 1 ? old[at] : 0;
    }
}

static void gather(Wave *wave, const Instruction *in, int data, const int source[LANES]) {
    uint64_t exec = wave_exec(wave);
    int to = in->operand[0].index;
    if (exec != ~0ull && !check_sources(wave, in, exec, source)) return;
    gather_lanes(exec, wave->vector[data], source, wave->vector[to]);
    if (undefined_lanes(wave, data, 1) & exec) {
        uint32_t bits[LANES], origin = undefined_origin(wave, in, exec);
        undefined_get_lanes(wave, data, bits);
        gather_lanes(exec, bits, source, bits);
        undefined_set_lanes(wave, to, exec, bits, origin);
    } else {
        wave->defined[to] |= exec;
    }
}

static void execute_bpermute(Wave *wave, const Instruction *in) {
    int source[LANES];
    if (!undefined_check(wave, in, in->operand[1].index, 1, LANE_NUMBER, wave_exec(wave), "a lane number")) return;
    for (int lane = 0; lane < LANES; lane++)
        source[lane] = (wave->vector[in->operand[1].index][lane] + (uint32_t)in->offset) >> 2 & (LANES - 1);
    gather(wave, in, in->operand[2].index, source);
}

static void execute_permute(Wave *wave, const Instruction *in) {
    uint64_t exec = wave_exec(wave);
    uint32_t result[LANES] = {0}, bits[LANES] = {0};
    int to = in->operand[0].index, data = in->operand[2].index;
    if (!undefined_check(wave, in, in->operand[1].index, 1, LANE_NUMBER, exec, "a lane number")) return;
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left), target = (wave->vector[in->operand[1].index][lane] + (uint32_t)in->offset) >> 2 & (LANES - 1);
        result[target] = wave->vector[data][lane];
        bits[target] = undefined_bits(wave, data, lane);
    }
    undefined_set_lanes(wave, to, exec, bits, undefined_origin(wave, in, exec));
    for (int lane = 0; lane < LANES; lane++)
        if (exec >> lane & 1) wave->vector[to][lane] = result[lane];
}

/* The pattern is the offset field: bit 15 set permutes quads, else five-bit masks within 32 lanes. */
static void execute_swizzle(Wave *wave, const Instruction *in) {
    int source[LANES], pattern = in->offset;
    for (int lane = 0; lane < LANES; lane++) {
        if (pattern & 0x8000) source[lane] = (lane & ~3) + (pattern >> (2 * (lane & 3)) & 3);
        else source[lane] = (lane & 32) + ((((lane & 31) & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31));
    }
    gather(wave, in, in->operand[1].index, source);
}

static void execute_nothing(Wave *wave, const Instruction *in) { (void)wave, (void)in; }

#define ATOMICS(X)                                                                                                                              \
    X(add_u32, ATOMIC_ADD, 4) X(sub_u32, ATOMIC_SUB, 4) X(rsub_u32, ATOMIC_RSUB, 4) X(inc_u32, ATOMIC_INC, 4) X(dec_u32, ATOMIC_DEC, 4)         \
    X(min_i32, ATOMIC_SMIN, 4) X(max_i32, ATOMIC_SMAX, 4) X(min_u32, ATOMIC_UMIN, 4) X(max_u32, ATOMIC_UMAX, 4) X(and_b32, ATOMIC_AND, 4)       \
    X(or_b32, ATOMIC_OR, 4) X(xor_b32, ATOMIC_XOR, 4) X(add_f32, ATOMIC_ADD_FLOAT, 4) X(min_f32, ATOMIC_MIN_FLOAT, 4)                           \
    X(max_f32, ATOMIC_MAX_FLOAT, 4) X(add_u64, ATOMIC_ADD, 8) X(sub_u64, ATOMIC_SUB, 8) X(min_i64, ATOMIC_SMIN, 8) X(max_i64, ATOMIC_SMAX, 8)   \
    X(min_u64, ATOMIC_UMIN, 8) X(max_u64, ATOMIC_UMAX, 8) X(and_b64, ATOMIC_AND, 8) X(or_b64, ATOMIC_OR, 8) X(xor_b64, ATOMIC_XOR, 8)           \
    X(add_f64, ATOMIC_ADD_FLOAT, 8) X(pk_add_f16, ATOMIC_ADD_HALVES, 4) X(pk_add_bf16, ATOMIC_ADD_BF16, 4)

static const Operation rows[] = {
#define X(name, bytes, extension) {"ds_read_" #name, "d:i", execute_read, NULL, NULL, OPERATION_MEMORY, bytes, extension},
    X(u8, 1, EXTEND_ZERO) X(i8, 1, EXTEND_SIGN) X(u16, 2, EXTEND_ZERO) X(i16, 2, EXTEND_SIGN) X(b32, 4, EXTEND_ZERO) X(b64, 8, EXTEND_ZERO)
        X(b96, 12, EXTEND_ZERO) X(b128, 16, EXTEND_ZERO) X(u8_d16, 1, EXTEND_LOW_HALF) X(u8_d16_hi, 1, EXTEND_HIGH_HALF) X(i8_d16, 1,
            EXTEND_LOW_HALF_SIGN) X(i8_d16_hi, 1, EXTEND_HIGH_HALF_SIGN) X(u16_d16, 2, EXTEND_LOW_HALF) X(u16_d16_hi, 2, EXTEND_HIGH_HALF)
#undef X
#define X(name, bytes, extension) {"ds_write_" #name, ":ii", execute_write, NULL, NULL, OPERATION_MEMORY, bytes, extension},
            X(b8, 1, EXTEND_ZERO) X(b16, 2, EXTEND_ZERO) X(b32, 4, EXTEND_ZERO) X(b64, 8, EXTEND_ZERO) X(b96, 12, EXTEND_ZERO)
                X(b128, 16, EXTEND_ZERO) X(b8_d16_hi, 1, EXTEND_HIGH_HALF) X(b16_d16_hi, 2, EXTEND_HIGH_HALF)
#undef X
#define X(name, kind, bytes) \
    {"ds_" #name, ":ii", execute_atomic, NULL, NULL, OPERATION_MEMORY, (kind) | (bytes) << 8, 0},
                    ATOMICS(X)
#undef X
/* The returning forms have "rtn" before the type. */
#define X(operation, type, kind, bytes) {"ds_" #operation "_rtn_" #type, "d:ii", execute_atomic, NULL, NULL, OPERATION_MEMORY, (kind) | (bytes) << 8, 1},
                        X(add, u32, ATOMIC_ADD, 4) X(sub, u32, ATOMIC_SUB, 4) X(rsub, u32, ATOMIC_RSUB, 4) X(inc, u32, ATOMIC_INC, 4) X(
                            dec, u32, ATOMIC_DEC, 4) X(min, i32, ATOMIC_SMIN, 4) X(max, i32, ATOMIC_SMAX, 4) X(min, u32, ATOMIC_UMIN, 4)
                            X(max, u32, ATOMIC_UMAX, 4) X(and, b32, ATOMIC_AND, 4) X(or, b32, ATOMIC_OR, 4) X(xor, b32, ATOMIC_XOR, 4) X(
                                wrxchg, b32, ATOMIC_SWAP, 4) X(cmpst, b32, ATOMIC_CMPSWAP, 4) X(add, f32, ATOMIC_ADD_FLOAT, 4)
                                X(min, f32, ATOMIC_MIN_FLOAT, 4) X(max, f32, ATOMIC_MAX_FLOAT, 4) X(add, u64, ATOMIC_ADD, 8) X(
                                    sub, u64, ATOMIC_SUB, 8) X(and, b64, ATOMIC_AND, 8) X(or, b64, ATOMIC_OR, 8) X(xor, b64, ATOMIC_XOR, 8)
                                    X(wrxchg, b64, ATOMIC_SWAP, 8) X(cmpst, b64, ATOMIC_CMPSWAP, 8) X(add, f64, ATOMIC_ADD_FLOAT, 8)
#undef X
                                        {"ds_cmpst_b32", ":iii", execute_atomic, NULL, NULL, OPERATION_MEMORY, ATOMIC_CMPSWAP | 4 << 8, 0},
    {"ds_cmpst_b64", ":iii", execute_atomic, NULL, NULL, OPERATION_MEMORY, ATOMIC_CMPSWAP | 8 << 8, 0},
    {"ds_read_b64_tr_b16", "d:i", execute_read_transposed, NULL, NULL, OPERATION_MEMORY, 8, EXTEND_ZERO},
    {"ds_read2_b32", "d:i", execute_read2, NULL, NULL, OPERATION_MEMORY, 4, 4},
    {"ds_read2_b64", "d:i", execute_read2, NULL, NULL, OPERATION_MEMORY, 8, 8},
    {"ds_read2st64_b32", "d:i", execute_read2, NULL, NULL, OPERATION_MEMORY, 4, 256},
    {"ds_read2st64_b64", "d:i", execute_read2, NULL, NULL, OPERATION_MEMORY, 8, 512},
    {"ds_write2_b32", ":iii", execute_write2, NULL, NULL, OPERATION_MEMORY, 4, 4},
    {"ds_write2_b64", ":iii", execute_write2, NULL, NULL, OPERATION_MEMORY, 8, 8},
    {"ds_write2st64_b32", ":iii", execute_write2, NULL, NULL, OPERATION_MEMORY, 4, 256},
    {"ds_write2st64_b64", ":iii", execute_write2, NULL, NULL, OPERATION_MEMORY, 8, 512},
    {"ds_bpermute_b32", "d:ii", execute_bpermute, NULL, NULL, 0, 0, 0},
    {"ds_permute_b32", "d:ii", execute_permute, NULL, NULL, 0, 0, 0},
    {"ds_swizzle_b32", "d:i", execute_swizzle, NULL, NULL, OPERATION_PATTERN, 0, 0},
    {"ds_nop", ":", execute_nothing, NULL, NULL, 0, 0, 0},
};
const OperationTable local_operations = {rows, sizeof rows / sizeof *rows};
