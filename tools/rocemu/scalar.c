/* Scalar instructions: arithmetic on the registers that a wavefront's lanes share, comparisons into SCC, branches,
 * EXEC, the mode register, barriers. */
#include <string.h>
#include <time.h>

#include "hip.h"
#include "undefined.h"

/* -- Operands ------------------------------------------------------------------------------------------------------ */

uint64_t operand_special(const Wave *wave, const Operand *operand) {
    uint64_t wide = 0;
    if (operand->kind != OPERAND_SPECIAL) return 0;
    switch ((SpecialOperand)operand->index) {
    case SPECIAL_SCC: return wave->scc;
    case SPECIAL_VCCZ: return wave_pair(wave, VCC) == 0;
    case SPECIAL_EXECZ: return wave_exec(wave) == 0;
    case SPECIAL_SHARED_BASE: wide = (uint64_t)SHARED_APERTURE << 32; break;
    case SPECIAL_SHARED_LIMIT: wide = (uint64_t)SHARED_APERTURE << 32 | 0xffffffff; break;
    case SPECIAL_PRIVATE_BASE: wide = (uint64_t)PRIVATE_APERTURE << 32; break;
    case SPECIAL_PRIVATE_LIMIT: wide = (uint64_t)PRIVATE_APERTURE << 32 | 0xffffffff; break;
    }
    return operand->registers == 2 ? wide : wide >> 32;
}

static void write_value(Wave *wave, const Operand *to, uint64_t value) {
    if (to->registers == 2) wave_set_pair(wave, to->index, value);
    else wave->scalar[to->index] = (uint32_t)value;
}
static void write_defined(Wave *wave, const Operand *to, uint64_t value) {
    write_value(wave, to, value);
    undefined_clear_scalars(wave, to->index, to->registers);
}

/* -- Arithmetic ---------------------------------------------------------------------------------------------------- */

static uint64_t find_bit(uint64_t x, int bits) {
    if (bits == 32) x = (uint32_t)x;
    return x ? (uint64_t)__builtin_ctzll(x) : 0xffffffff;
}
static uint64_t find_high_bit(uint64_t x, int bits) {
    if (bits == 32) x = (uint32_t)x;
    return x ? (uint64_t)(__builtin_clzll(x) - (64 - bits)) : 0xffffffff;
}
static uint64_t reverse64(uint64_t x) {
    uint64_t result = 0;
    for (int i = 0; i < 64; i++) result |= (x >> i & 1) << (63 - i);
    return result;
}
static uint64_t field(uint64_t x, uint32_t offset, uint32_t width, int bits, bool sign) {
    width = width > (uint32_t)bits ? (uint32_t)bits : width;
    if (width == 0) return 0;
    uint64_t part = (bits == 32 ? (uint32_t)x : x) >> offset, mask = width == 64 ? ~0ull : (1ull << width) - 1, top = 1ull << (width - 1);
    if (sign && offset + width > (uint32_t)bits) return bits == 32 ? (uint64_t)((int32_t)x >> offset) : (uint64_t)((int64_t)x >> offset);
    part &= mask;
    return sign ? (part ^ top) - top : part;
}
static bool add_overflows(int32_t a, int32_t b) {
    int32_t x;
    return __builtin_add_overflow(a, b, &x);
}
static bool subtract_overflows(int32_t a, int32_t b) {
    int32_t x;
    return __builtin_sub_overflow(a, b, &x);
}
/* Each 4 bits set where any of them is. */
static uint64_t whole_quads(uint64_t x) {
    x = (x | x >> 1 | x >> 2 | x >> 3) & 0x1111111111111111ull;
    return x * 15;
}

#define A32 ((uint32_t)a)
#define B32 ((uint32_t)b)
#define SA ((int32_t)a)
#define SB ((int32_t)b)

#define RULE_WHOLE UNDEFINED_WHOLE
#define RULE_BITS UNDEFINED_BITS
#define RULE_BITS_BY_0 UNDEFINED_BITS_BY(1)
#define RULE_BITS_BY_1 UNDEFINED_BITS_BY(2)
#define RULE_BITS_BY_ALL_1 UNDEFINED_BITS_BY_ALL(2)
#define RULE_CARRY UNDEFINED_CARRY
#define RULE_MONOTONE UNDEFINED_MONOTONE
#define RULE_MONOTONE_SIGNED UNDEFINED_MONOTONE_SIGNED
#define RULE_EQUAL UNDEFINED_EQUAL

/* NAME, format, how undefined bits get into the result (WHOLE, BITS ...; of "_BY_1", source 1 says which bits), result. */
#define SCALAR_ARITHMETIC(X)                                                                                                              \
    X(s_mov_b32, "s:i", BITS, a) X(s_mov_b64, "S:I", BITS, a) X(s_movk_i32, "s:k", BITS, a)                                               \
    X(s_brev_b32, "s:i", BITS, reverse64(a) >> 32) X(s_brev_b64, "S:I", BITS, reverse64(a))                                               \
    X(s_ff0_i32_b32, "s:i", WHOLE, find_bit(~a, 32)) X(s_ff1_i32_b32, "s:i", WHOLE, find_bit(a, 32))                                      \
    X(s_ff0_i32_b64, "s:I", WHOLE, find_bit(~a, 64)) X(s_ff1_i32_b64, "s:I", WHOLE, find_bit(a, 64))                                      \
    X(s_flbit_i32_b32, "s:i", WHOLE, find_high_bit(a, 32)) X(s_flbit_i32_b64, "s:I", WHOLE, find_high_bit(a, 64))                         \
    X(s_flbit_i32, "s:i", WHOLE, find_high_bit((uint64_t)(A32 ^ (uint32_t)(SA >> 31)), 32))                                               \
    X(s_flbit_i32_i64, "s:I", WHOLE, find_high_bit(a ^ (uint64_t)((int64_t)a >> 63), 64))                                                 \
    X(s_sext_i32_i8, "s:i", BITS, (uint64_t)(int8_t)a) X(s_sext_i32_i16, "s:i", BITS, (uint64_t)(int16_t)a)                               \
    X(s_mul_i32, "s:ii", CARRY, A32 * B32) X(s_mul_hi_u32, "s:ii", MONOTONE, (uint64_t)A32 * B32 >> 32)                                   \
    X(s_mul_hi_i32, "s:ii", WHOLE, (uint64_t)((int64_t)SA * SB) >> 32)                                                                    \
    X(s_bfm_b32, "s:ii", WHOLE, ((1u << (a & 31)) - 1) << (b & 31)) X(s_bfm_b64, "S:ii", WHOLE, ((1ull << (a & 63)) - 1) << (b & 63))     \
    X(s_pack_ll_b32_b16, "s:ii", BITS, (a & 0xffff) | (b & 0xffff) << 16) X(s_pack_lh_b32_b16, "s:ii", BITS, (a & 0xffff) | (b & 0xffff0000)) \
    X(s_pack_hh_b32_b16, "s:ii", BITS, A32 >> 16 | (b & 0xffff0000))
/* Which of the sources, by SCC. */
#define SCALAR_SELECT(X) X(s_cselect_b32, "s:ii", BITS, scc ? a : b) X(s_cselect_b64, "S:II", BITS, scc ? a : b)
/* The destination is a source; the last by SCC. */
#define SCALAR_IN_PLACE(X)                                                                                                                \
    X(s_mulk_i32, "s:k", CARRY, (uint32_t)d * A32)                                                                                        \
    X(s_bitset0_b32, "s:i", BITS_BY_0, d & ~(1u << (a & 31))) X(s_bitset1_b32, "s:i", BITS_BY_0, d | 1u << (a & 31))                      \
    X(s_bitset0_b64, "S:i", BITS_BY_0, d & ~(1ull << (a & 63))) X(s_bitset1_b64, "S:i", BITS_BY_0, d | 1ull << (a & 63))
#define SCALAR_CONDITIONAL_MOVE(X)                                                                                                        \
    X(s_cmov_b32, "s:i", BITS, scc ? a : d) X(s_cmov_b64, "S:I", BITS, scc ? a : d) X(s_cmovk_i32, "s:k", BITS, scc ? a : d)
/* With SCC afterwards. */
#define SCALAR_FLAGGED(X)                                                                                                                 \
    X(s_wqm_b64, "S:I", WHOLE, whole_quads(a), a != 0)                                                                                    \
    X(s_bcnt0_i32_b32, "s:i", WHOLE, (uint64_t)(32 - __builtin_popcount(A32)), A32 != ~0u)                                                \
    X(s_bcnt1_i32_b32, "s:i", WHOLE, (uint64_t)__builtin_popcount(A32), A32 != 0)                                                         \
    X(s_bcnt0_i32_b64, "s:I", WHOLE, (uint64_t)(64 - __builtin_popcountll(a)), a != ~0ull)                                                \
    X(s_bcnt1_i32_b64, "s:I", WHOLE, (uint64_t)__builtin_popcountll(a), a != 0)                                                           \
    X(s_abs_i32, "s:i", WHOLE, SA < 0 ? 0u - A32 : A32, A32 != 0)                                                                         \
    X(s_add_u32, "s:ii", CARRY, A32 + B32, ((uint64_t)A32 + B32) >> 32) X(s_sub_u32, "s:ii", CARRY, A32 - B32, A32 < B32)                 \
    X(s_add_i32, "s:ii", CARRY, A32 + B32, add_overflows(SA, SB)) X(s_sub_i32, "s:ii", CARRY, A32 - B32, subtract_overflows(SA, SB))      \
    X(s_min_i32, "s:ii", MONOTONE_SIGNED, (uint64_t)(SA < SB ? SA : SB), SA < SB) X(s_max_i32, "s:ii", MONOTONE_SIGNED, (uint64_t)(SA > SB ? SA : SB), SA > SB) \
    X(s_min_u32, "s:ii", MONOTONE, A32 < B32 ? A32 : B32, A32 < B32) X(s_max_u32, "s:ii", MONOTONE, A32 > B32 ? A32 : B32, A32 > B32)     \
    X(s_absdiff_i32, "s:ii", WHOLE, SA > SB ? A32 - B32 : B32 - A32, A32 != B32)                                                          \
    SHIFTED_ADD(X, s_lshl1_add_u32, 1) SHIFTED_ADD(X, s_lshl2_add_u32, 2) SHIFTED_ADD(X, s_lshl3_add_u32, 3) SHIFTED_ADD(X, s_lshl4_add_u32, 4)
#define SHIFTED_ADD(X, name, n) X(name, "s:ii", CARRY, (A32 << n) + B32, (((uint64_t)A32 << n) + B32) >> 32 != 0)
#define SCALAR_ADD_IN_PLACE(X) X(s_addk_i32, "s:k", CARRY, (uint32_t)d + A32, add_overflows((int32_t)d, SA))
/* SCC is a source as well. */
#define SCALAR_WITH_CARRY(X)                                                                                                              \
    X(s_addc_u32, "s:ii", CARRY, A32 + B32 + scc, ((uint64_t)A32 + B32 + scc) >> 32)                                                      \
    X(s_subb_u32, "s:ii", CARRY, A32 - B32 - scc, (uint64_t)A32 < (uint64_t)B32 + scc)
/* SCC is set when the result is not 0. */
#define SCALAR_LOGIC(X)                                                                                                                   \
    X(s_not_b32, "s:i", BITS, (uint32_t)~A32) X(s_not_b64, "S:I", BITS, ~a)                                                               \
    X(s_and_b32, "s:ii", BITS, A32 & B32) X(s_and_b64, "S:II", BITS, a & b) X(s_or_b32, "s:ii", BITS, A32 | B32) X(s_or_b64, "S:II", BITS, a | b)                 \
    X(s_xor_b32, "s:ii", BITS, A32 ^ B32) X(s_xor_b64, "S:II", BITS, a ^ b) X(s_andn2_b32, "s:ii", BITS, A32 & ~B32) X(s_andn2_b64, "S:II", BITS, a & ~b)         \
    X(s_orn2_b32, "s:ii", BITS, A32 | ~B32) X(s_orn2_b64, "S:II", BITS, a | ~b) X(s_nand_b32, "s:ii", BITS, ~(A32 & B32)) X(s_nand_b64, "S:II", BITS, ~(a & b))   \
    X(s_nor_b32, "s:ii", BITS, ~(A32 | B32)) X(s_nor_b64, "S:II", BITS, ~(a | b)) X(s_xnor_b32, "s:ii", BITS, ~(A32 ^ B32)) X(s_xnor_b64, "S:II", BITS, ~(a ^ b)) \
    X(s_lshl_b32, "s:ii", BITS_BY_1, A32 << (b & 31)) X(s_lshl_b64, "S:Ii", BITS_BY_1, a << (b & 63)) X(s_lshr_b32, "s:ii", BITS_BY_1, A32 >> (b & 31))                    \
    X(s_lshr_b64, "S:Ii", BITS_BY_1, a >> (b & 63)) X(s_ashr_i32, "s:ii", BITS_BY_1, (uint32_t)(SA >> (b & 31))) X(s_ashr_i64, "S:Ii", BITS_BY_1, (uint64_t)((int64_t)a >> (b & 63))) \
    X(s_bfe_u32, "s:ii", BITS_BY_ALL_1, (uint32_t)field(a, b & 31, b >> 16 & 127, 32, false)) X(s_bfe_i32, "s:ii", BITS_BY_ALL_1, (uint32_t)field(a, b & 31, b >> 16 & 127, 32, true)) \
    X(s_bfe_u64, "S:Ii", BITS_BY_ALL_1, field(a, b & 63, b >> 16 & 127, 64, false)) X(s_bfe_i64, "S:Ii", BITS_BY_ALL_1, field(a, b & 63, b >> 16 & 127, 64, true))
/* Only SCC. */
#define SCALAR_COMPARE(X)                                                                                                                 \
    X(s_cmp_eq_i32, ":ii", EQUAL, A32 == B32) X(s_cmp_lg_i32, ":ii", EQUAL, A32 != B32) X(s_cmp_gt_i32, ":ii", MONOTONE_SIGNED, SA > SB) X(s_cmp_ge_i32, ":ii", MONOTONE_SIGNED, SA >= SB) \
    X(s_cmp_lt_i32, ":ii", MONOTONE_SIGNED, SA < SB) X(s_cmp_le_i32, ":ii", MONOTONE_SIGNED, SA <= SB) X(s_cmp_eq_u32, ":ii", EQUAL, A32 == B32) X(s_cmp_lg_u32, ":ii", EQUAL, A32 != B32) \
    X(s_cmp_gt_u32, ":ii", MONOTONE, A32 > B32) X(s_cmp_ge_u32, ":ii", MONOTONE, A32 >= B32) X(s_cmp_lt_u32, ":ii", MONOTONE, A32 < B32) X(s_cmp_le_u32, ":ii", MONOTONE, A32 <= B32) \
    X(s_cmp_eq_u64, ":II", EQUAL, a == b) X(s_cmp_lg_u64, ":II", EQUAL, a != b)                                                                         \
    X(s_cmpk_eq_i32, ":ik", EQUAL, A32 == B32) X(s_cmpk_lg_i32, ":ik", EQUAL, A32 != B32) X(s_cmpk_gt_i32, ":ik", MONOTONE_SIGNED, SA > SB) X(s_cmpk_ge_i32, ":ik", MONOTONE_SIGNED, SA >= SB) \
    X(s_cmpk_lt_i32, ":ik", MONOTONE_SIGNED, SA < SB) X(s_cmpk_le_i32, ":ik", MONOTONE_SIGNED, SA <= SB) X(s_cmpk_eq_u32, ":iK", EQUAL, A32 == B32) X(s_cmpk_lg_u32, ":iK", EQUAL, A32 != B32) \
    X(s_cmpk_gt_u32, ":iK", MONOTONE, A32 > B32) X(s_cmpk_ge_u32, ":iK", MONOTONE, A32 >= B32) X(s_cmpk_lt_u32, ":iK", MONOTONE, A32 < B32) X(s_cmpk_le_u32, ":iK", MONOTONE, A32 <= B32) \
    X(s_bitcmp0_b32, ":ii", BITS_BY_1, !(A32 >> (b & 31) & 1)) X(s_bitcmp1_b32, ":ii", BITS_BY_1, A32 >> (b & 31) & 1)                                          \
    X(s_bitcmp0_b64, ":Ii", BITS_BY_1, !(a >> (b & 63) & 1)) X(s_bitcmp1_b64, ":Ii", BITS_BY_1, a >> (b & 63) & 1)

#define BEGIN uint64_t a = call->s[0], b = call->s[1], d = call->d; bool scc = call->scc; (void)a, (void)b, (void)d, (void)scc
#define X(name, format, rule, result) static void core_##name(ScalarCall *call) { BEGIN; call->d = (uint64_t)(result); }
SCALAR_ARITHMETIC(X)
SCALAR_SELECT(X)
SCALAR_IN_PLACE(X)
SCALAR_CONDITIONAL_MOVE(X)
#undef X
#define X(name, format, rule, result, flag) static void core_##name(ScalarCall *call) { BEGIN; call->d = (uint64_t)(result); call->scc = (flag); }
SCALAR_FLAGGED(X)
SCALAR_WITH_CARRY(X)
SCALAR_ADD_IN_PLACE(X)
#undef X
#define X(name, format, rule, result) static void core_##name(ScalarCall *call) { BEGIN; call->d = (uint64_t)(result); call->scc = call->d != 0; }
SCALAR_LOGIC(X)
#undef X
#define X(name, format, rule, condition) static void core_##name(ScalarCall *call) { BEGIN; call->scc = (condition); }
SCALAR_COMPARE(X)
#undef X

void scalar_execute(Wave *wave, const Instruction *in) {
    ScalarCall call = {.scc = wave->scc};
    bool has_result = in->operation->format[0] != ':';
    uint64_t undefined = wave->scc_undefined;
    for (int i = has_result; i < in->operands; i++) {
        call.s[i - has_result] = operand_scalar(wave, &in->operand[i]);
        undefined |= undefined_operand(wave, &in->operand[i]);
    }
    if (in->operation->flags & OPERATION_ACCUMULATES) {
        call.d = operand_scalar(wave, &in->operand[0]);
        undefined |= undefined_operand(wave, &in->operand[0]);
    }
    if (undefined) undefined_scalar(wave, in, &call);
    else if (has_result) undefined_clear_scalars(wave, in->operand[0].index, in->operand[0].registers);
    in->operation->scalar(&call);
    wave->scc = call.scc;
    if (has_result) write_value(wave, &in->operand[0], call.d);
}

/* -- EXEC ---------------------------------------------------------------------------------------------------------- */

typedef enum ExecLogic {
    EXEC_AND,
    EXEC_OR,
    EXEC_XOR,
    EXEC_ANDN2,
    EXEC_ORN2,
    EXEC_NAND,
    EXEC_NOR,
    EXEC_XNOR,
    EXEC_ANDN1,
    EXEC_ORN1
} ExecLogic;

static uint64_t exec_logic(ExecLogic logic, uint64_t a, uint64_t exec) {
    switch (logic) {
    case EXEC_AND: return a & exec;
    case EXEC_OR: return a | exec;
    case EXEC_XOR: return a ^ exec;
    case EXEC_ANDN2: return a & ~exec;
    case EXEC_ORN2: return a | ~exec;
    case EXEC_NAND: return ~(a & exec);
    case EXEC_NOR: return ~(a | exec);
    case EXEC_XNOR: return ~(a ^ exec);
    case EXEC_ANDN1: return ~a & exec;
    case EXEC_ORN1: return ~a | exec;
    }
    return 0;
}

/* argument2: the destination gets the new EXEC instead of the old. */
static void execute_saveexec(Wave *wave, const Instruction *in) {
    ExecLogic logic = (ExecLogic)in->operation->argument;
    uint64_t exec = wave_exec(wave), from = operand_scalar(wave, &in->operand[1]), undefined = undefined_operand(wave, &in->operand[1]),
             result = exec_logic(logic, from, exec);
    if (undefined)
        undefined_set_scalars(wave, in, EXEC, 2, result ^ exec_logic(logic, from ^ undefined, exec), undefined_origin(wave, in, 0));
    write_defined(wave, &in->operand[0], in->operation->argument2 ? result : exec);
    wave_set_pair(wave, EXEC, result);
    wave->scc = result != 0;
    wave->scc_undefined = false;
}

/* -- Control ------------------------------------------------------------------------------------------------------- */

typedef enum Condition { ALWAYS, SCC_0, SCC_1, VCC_ZERO, VCC_NOT_ZERO, EXEC_ZERO, EXEC_NOT_ZERO } Condition;

static void execute_branch(Wave *wave, const Instruction *in) {
    bool taken = true;
    Condition condition = (Condition)in->operation->argument;
    if ((condition == SCC_0 || condition == SCC_1) && !undefined_check_scc(wave, in)) return;
    if ((condition == VCC_ZERO || condition == VCC_NOT_ZERO) && !undefined_check_vccz(wave, in)) return;
    switch (condition) {
    case ALWAYS: break;
    case SCC_0: taken = !wave->scc; break;
    case SCC_1: taken = wave->scc; break;
    case VCC_ZERO: taken = wave_pair(wave, VCC) == 0; break;
    case VCC_NOT_ZERO: taken = wave_pair(wave, VCC) != 0; break;
    case EXEC_ZERO: taken = wave_exec(wave) == 0; break;
    case EXEC_NOT_ZERO: taken = wave_exec(wave) != 0; break;
    }
    if (taken) wave->pc = (uint32_t)in->target;
}

static uint64_t next_address(const Wave *wave, const Instruction *in) {
    return (uint64_t)wave->group->launch->kernel->program->image + in->address + 4ull * in->words;
}

static void jump(Wave *wave, const Instruction *in, uint64_t address) {
    Program *program = wave->group->launch->kernel->program;
    uint64_t slot = (address - (uint64_t)program->image - program->text_address) / 4;
    if (slot >= program->text_bytes / 4 || !program->instruction[slot].execute)
        check_report(
            wave, in, -1, HIP_ERROR_ILLEGAL_ADDRESS, "a jump to 0x%llx, which is not code of this program", (unsigned long long)address);
    else wave->pc = (uint32_t)slot;
}

static void execute_getpc(Wave *wave, const Instruction *in) { write_defined(wave, &in->operand[0], next_address(wave, in)); }
static void execute_setpc(Wave *wave, const Instruction *in) {
    if (undefined_check_scalar(wave, in, &in->operand[0], "a jump")) jump(wave, in, operand_scalar(wave, &in->operand[0]));
}
static void execute_swappc(Wave *wave, const Instruction *in) {
    if (!undefined_check_scalar(wave, in, &in->operand[1], "a jump")) return;
    uint64_t target = operand_scalar(wave, &in->operand[1]);
    write_defined(wave, &in->operand[0], next_address(wave, in));
    jump(wave, in, target);
}
static void execute_call(Wave *wave, const Instruction *in) {
    write_defined(wave, &in->operand[0], next_address(wave, in));
    wave->pc = (uint32_t)in->target;
}

static void execute_nothing(Wave *wave, const Instruction *in) { (void)wave, (void)in; }
static void execute_priority(Wave *wave, const Instruction *in) { (void)in, wave->takes_turns = true; }
static void execute_end(Wave *wave, const Instruction *in) {
    (void)in;
    wave->state = WAVE_ENDED;
}
static void execute_trap(Wave *wave, const Instruction *in) { check_report(wave, in, -1, HIP_ERROR_LAUNCH_FAILURE, "the kernel trapped"); }

static void execute_barrier(Wave *wave, const Instruction *in) {
    uint64_t missing = wave->launch_exec & ~wave_exec(wave);
    if (missing && wave->group->launch->check != CHECK_OFF) {
        check_report(wave, in, __builtin_ctzll(missing), HIP_ERROR_LAUNCH_FAILURE,
            "a divergent barrier: %d of the wavefront's %d lanes are not there", __builtin_popcountll(missing),
            __builtin_popcountll(wave->launch_exec));
        return;
    }
    wave->state = WAVE_WAITING;
    wave->barrier = in;
}

/* hwreg operands: bits 0-7 the register, 8-15 the first bit, 16-23 the width. Registers other than the mode read as
 * 0. */
enum { HWREG_MODE = 1 };
static void execute_getreg(Wave *wave, const Instruction *in) {
    uint64_t which = in->operand[1].value;
    uint32_t value = (which & 0xff) == HWREG_MODE ? wave->mode : 0;
    write_defined(wave, &in->operand[0], field(value, which >> 8 & 31, which >> 16 & 63, 32, false));
}
static void execute_setreg(Wave *wave, const Instruction *in) {
    uint64_t which = in->operand[0].value;
    if ((which & 0xff) != HWREG_MODE || !undefined_check_scalar(wave, in, &in->operand[1], "the mode")) return;
    uint32_t shift = which >> 8 & 31, width = which >> 16 & 63, mask = (width >= 32 ? ~0u : (1u << width) - 1) << shift;
    wave->mode = (wave->mode & ~mask) | ((uint32_t)operand_scalar(wave, &in->operand[1]) << shift & mask);
}
static void execute_time(Wave *wave, const Instruction *in) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    write_defined(wave, &in->operand[0], (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

static const Operation rows[] = {
#define ROW(name, format, rule, flags) {#name, format, scalar_execute, NULL, core_##name, flags, 0, 0, RULE_##rule},
#define X(name, format, rule, result) ROW(name, format, rule, 0)
    SCALAR_ARITHMETIC(X)
#undef X
#define X(name, format, rule, result) ROW(name, format, rule, OPERATION_USES_SCC)
        SCALAR_SELECT(X)
#undef X
#define X(name, format, rule, result) ROW(name, format, rule, OPERATION_ACCUMULATES)
            SCALAR_IN_PLACE(X)
#undef X
#define X(name, format, rule, result) ROW(name, format, rule, OPERATION_ACCUMULATES | OPERATION_USES_SCC)
                SCALAR_CONDITIONAL_MOVE(X)
#undef X
#define X(name, format, rule, result, flag) ROW(name, format, rule, OPERATION_SETS_SCC)
                    SCALAR_FLAGGED(X)
#undef X
#define X(name, format, rule, result, flag) ROW(name, format, rule, OPERATION_SETS_SCC | OPERATION_USES_SCC)
                        SCALAR_WITH_CARRY(X)
#undef X
#define X(name, format, rule, result, flag) ROW(name, format, rule, OPERATION_SETS_SCC | OPERATION_ACCUMULATES)
                            SCALAR_ADD_IN_PLACE(X)
#undef X
#define X(name, format, rule, result) ROW(name, format, rule, OPERATION_SETS_SCC)
                                SCALAR_LOGIC(X) SCALAR_COMPARE(X)
#undef X
#define X(name, logic) {"s_" #name "_saveexec_b64", "S:I", execute_saveexec, NULL, NULL, 0, logic, 0},
                                    X(and, EXEC_AND) X(or, EXEC_OR) X(xor, EXEC_XOR) X(andn2, EXEC_ANDN2) X(orn2, EXEC_ORN2)
                                        X(nand, EXEC_NAND) X(nor, EXEC_NOR) X(xnor, EXEC_XNOR) X(andn1, EXEC_ANDN1) X(orn1, EXEC_ORN1)
#undef X
                                            {"s_andn1_wrexec_b64", "S:I", execute_saveexec, NULL, NULL, 0, EXEC_ANDN1, 1},
    {"s_andn2_wrexec_b64", "S:I", execute_saveexec, NULL, NULL, 0, EXEC_ANDN2, 1},
    {"s_branch", ":b", execute_branch, NULL, NULL, OPERATION_BRANCHES, ALWAYS, 0},
    {"s_cbranch_scc0", ":b", execute_branch, NULL, NULL, OPERATION_BRANCHES, SCC_0, 0},
    {"s_cbranch_scc1", ":b", execute_branch, NULL, NULL, OPERATION_BRANCHES, SCC_1, 0},
    {"s_cbranch_vccz", ":b", execute_branch, NULL, NULL, OPERATION_BRANCHES, VCC_ZERO, 0},
    {"s_cbranch_vccnz", ":b", execute_branch, NULL, NULL, OPERATION_BRANCHES, VCC_NOT_ZERO, 0},
    {"s_cbranch_execz", ":b", execute_branch, NULL, NULL, OPERATION_BRANCHES, EXEC_ZERO, 0},
    {"s_cbranch_execnz", ":b", execute_branch, NULL, NULL, OPERATION_BRANCHES, EXEC_NOT_ZERO, 0},
    {"s_call_b64", "S:b", execute_call, NULL, NULL, OPERATION_CALLS, 0, 0}, {"s_getpc_b64", "S:", execute_getpc, NULL, NULL, 0, 0, 0},
    {"s_setpc_b64", ":I", execute_setpc, NULL, NULL, OPERATION_CALLS, 0, 0},
    {"s_swappc_b64", "S:I", execute_swappc, NULL, NULL, OPERATION_CALLS, 0, 0}, {"s_endpgm", ":", execute_end, NULL, NULL, 0, 0, 0},
    {"s_barrier", ":", execute_barrier, NULL, NULL, 0, 0, 0}, {"s_setprio", ":", execute_priority, NULL, NULL, 0, 0, 0},
    {"s_trap", ":i", execute_trap, NULL, NULL, 0, 0, 0}, {"s_getreg_b32", "s:h", execute_getreg, NULL, NULL, 0, 0, 0},
    {"s_setreg_b32", ":hi", execute_setreg, NULL, NULL, 0, 0, 0}, {"s_setreg_imm32_b32", ":hi", execute_setreg, NULL, NULL, 0, 0, 0},
    {"s_memtime", "S:", execute_time, NULL, NULL, 0, 0, 0}, {"s_memrealtime", "S:", execute_time, NULL, NULL, 0, 0, 0},
/* What only orders or hints. */
#define X(name) {#name, ":", execute_nothing, NULL, NULL, 0, 0, 0},
    X(s_nop) X(s_waitcnt) X(s_sleep) X(s_sethalt) X(s_icache_inv) X(s_dcache_inv) X(s_dcache_wb) X(s_inst_prefetch) X(s_wakeup)
        X(s_ttracedata) X(s_sendmsg) X(s_dcache_inv_vol) X(s_dcache_wb_vol) X(s_code_end) X(s_incperflevel) X(s_decperflevel)
#undef X
};
const OperationTable scalar_operations = {rows, sizeof rows / sizeof *rows};
