/* Undefined values: every bit of a register, of LDS and of scratch that nothing wrote is known as such, and so is every
 * bit computed from one. Compilers compute with such bits all the time: they load both halves of a pair to use one,
 * compare what no lane needs and mask the result away. So nothing is said where they are read or compared. They are
 * followed, as exactly as needed, and reported where they decide something: a branch, the lanes in EXEC, an address, a
 * lane's number, the operand of an atomic operation, a jump, the mode register, or a store to device memory. A choice
 * by an undefined condition (v_cndmask, s_cselect) or between undefined values (v_min) decides nothing yet: its result is
 * undefined, where what is chosen from differs. Lanes that EXEC switches off count nowhere, but for matrix instructions, which read them.
 *
 * How an operation passes undefined bits on is one of the rules of UndefinedRule in its table's row. Most need no code
 * for the operation: "which bits may change" is found by computing it with the undefined bits of each source all 0 and
 * all 1 ("trying"). This costs time only where a source has undefined bits: as long as all are whole, which a mask of
 * lanes for each register says, an instruction marks its result whole and that is all.
 *
 * Device memory counts as written. With fewer checks than all of them everything begins as written, and stays so. */
#include <stdio.h>

#include "hip.h"
#include "memory.h"

static bool tracked(const Wave *wave) { return wave->group->launch->check == CHECK_ALL; }

void undefined_begin(Wave *wave) {
    int all = tracked(wave) ? 0 : 0xff;
    memset(wave->defined, all, sizeof wave->defined);
    memset(wave->partly, 0, sizeof wave->partly);
    memset(wave->scalar_undefined, ~all, sizeof wave->scalar_undefined);
    memset(wave->origin, 0, sizeof wave->origin);
    memset(wave->scalar_origin, 0, sizeof wave->scalar_origin);
    wave->scc_undefined = tracked(wave);
    wave->scc_origin = 0;
    if (wave->scratch) memset(wave->scratch_undefined, ~all, (size_t)LANES * wave->scratch_bytes);
}

void undefined_set(Wave *wave, int index, int lane, uint32_t bits, uint32_t origin) {
    uint64_t bit = 1ull << lane;
    if (!bits) {
        wave->defined[index] |= bit;
        return;
    }
    wave->defined[index] &= ~bit;
    wave->partly[index] |= bit;
    wave->undefined[index][lane] = bits;
    wave->origin[index] = origin;
}

void undefined_get_lanes(const Wave *wave, int index, uint32_t bits[LANES]) {
    uint64_t some = ~wave->defined[index], partly = some & wave->partly[index];
    mask_expand(some, bits);
    for (; partly; partly &= partly - 1) bits[__builtin_ctzll(partly)] = wave->undefined[index][__builtin_ctzll(partly)];
}

void undefined_set_lanes(Wave *wave, int index, uint64_t lanes, const uint32_t bits[LANES], uint32_t origin) {
    uint32_t missing[LANES];
    for (int lane = 0; lane < LANES; lane++) missing[lane] = ~bits[lane];
    uint64_t some = mask_nonzero(bits) & lanes, partly = some & mask_nonzero(missing);
    wave->defined[index] = (wave->defined[index] & ~lanes) | (lanes & ~some);
    wave->partly[index] = (wave->partly[index] & ~lanes) | partly;
    if (some) wave->origin[index] = origin;
    for (; partly; partly &= partly - 1) wave->undefined[index][__builtin_ctzll(partly)] = bits[__builtin_ctzll(partly)];
}

static uint32_t operand_origin(const Wave *wave, const Operand *operand, uint64_t lanes) {
    for (int i = operand->index; i < operand->index + operand->registers; i++) {
        if (operand->kind == OPERAND_VECTOR && lanes & ~wave->defined[i] && wave->origin[i]) return wave->origin[i];
        if (operand->kind == OPERAND_SCALAR && wave->scalar_undefined[i] && wave->scalar_origin[i]) return wave->scalar_origin[i];
    }
    return 0;
}

uint32_t undefined_origin(const Wave *wave, const Instruction *in, uint64_t lanes) {
    for (int i = 0; i < in->operands; i++) {
        uint32_t origin = operand_origin(wave, &in->operand[i], lanes);
        if (origin) return origin;
    }
    if (in->operation->flags & OPERATION_USES_SCC && wave->scc_undefined && wave->scc_origin) return wave->scc_origin;
    return (uint32_t)(in - wave->program) + 1;
}

/* -- Decisions ----------------------------------------------------------------------------------------------------- */

/* `what` ends with a verb that has undefined bits for an object. */
static void report(Wave *wave, const Instruction *in, int lane, uint32_t origin, const char *what) {
    char since[160] = "";
    const Instruction *first = origin ? &wave->program[origin - 1] : in;
    if (first != in) snprintf(since, sizeof since, ", since 0x%x `%.100s` read them", first->address, first->text);
    check_report(wave, in, lane, HIP_ERROR_LAUNCH_FAILURE, "%s bits that nothing wrote%s", what, since);
}

static void report_register(Wave *wave, const Instruction *in, int lane, uint32_t origin, const char *what, const char *name) {
    char whole[96];
    snprintf(whole, sizeof whole, "%s from register %s, which has", what, name);
    report(wave, in, lane, origin, whole);
}

bool undefined_check(Wave *wave, const Instruction *in, int first, int count, uint32_t bits, uint64_t exec, const char *what) {
    for (int r = first; r < first + count; r++)
        for (uint64_t left = exec & ~wave->defined[r]; left; left &= left - 1) {
            int lane = __builtin_ctzll(left);
            if (!(undefined_bits(wave, r, lane) & bits)) continue;
            char name[8];
            snprintf(name, sizeof name, "%c%d", r < FIRST_ACCUMULATOR ? 'v' : 'a', r % FIRST_ACCUMULATOR);
            report_register(wave, in, lane, wave->origin[r], what, name);
            return false;
        }
    return true;
}

bool undefined_check_scalar(Wave *wave, const Instruction *in, const Operand *operand, const char *what) {
    for (int r = operand->index; operand->kind == OPERAND_SCALAR && r < operand->index + operand->registers; r++) {
        if (!wave->scalar_undefined[r]) continue;
        char name[8];
        snprintf(name, sizeof name, r == M0 ? "m0" : r == VCC ? "vcc_lo" : r == VCC + 1 ? "vcc_hi" : "s%d", r);
        report_register(wave, in, -1, wave->scalar_origin[r], what, name);
        return false;
    }
    return true;
}

bool undefined_check_m0(Wave *wave, const Instruction *in) {
    const Operand m0 = {.kind = OPERAND_SCALAR, .registers = 1, .index = M0};
    return undefined_check_scalar(wave, in, &m0, "an LDS address");
}

bool undefined_check_scc(Wave *wave, const Instruction *in) {
    if (wave->scc_undefined) report(wave, in, -1, wave->scc_origin, "a branch on SCC, which depends on");
    return !wave->scc_undefined;
}

bool undefined_check_vccz(Wave *wave, const Instruction *in) {
    if (!undefined_zero(wave_pair(wave, VCC), undefined_pair(wave, VCC))) return true;
    report(wave, in, -1, wave->scalar_origin[wave->scalar_undefined[VCC] ? VCC : VCC + 1], "a branch on VCC, which depends on");
    return false;
}

/* -- Scalar operations --------------------------------------------------------------------------------------------- */

void undefined_set_scalars(Wave *wave, const Instruction *in, int index, int registers, uint64_t bits, uint32_t origin) {
    for (int r = 0; r < registers; r++, bits >>= 32) {
        uint32_t part = (uint32_t)bits;
        wave->scalar_undefined[index + r] = part;
        wave->scalar_origin[index + r] = origin;
        if (part && index + r >= EXEC)
            report(wave, in, __builtin_ctz(part) + 32 * (index + r - EXEC), origin,
                "a change of EXEC, which says which lanes go on, depends on");
    }
}

/* The sources of a scalar operation as they are tried: its operands, the old destination, SCC. */
enum { OLD_DESTINATION = 2, SCC_SOURCE = 3, SCALAR_SOURCES = 4 };
typedef struct ScalarTrial {
    const Instruction *in;
    const ScalarCall *call;
    uint64_t open[SCALAR_SOURCES]; /* undefined bits */
    bool wide;                     /* sources of 64 bits */
} ScalarTrial;

/* Undefined bits all 1 or all 0; of signed values, the greatest or the least. */
static uint64_t extreme(uint64_t value, uint64_t open, bool ones, uint64_t sign) {
    uint64_t flipped = open & sign;
    return (ones ? value | open : value & ~open) ^ flipped;
}

/* The sources in `chosen` have their undefined bits all 1 where `ones` has them, else all 0; the others are as they are. */
static ScalarCall run_trial(const ScalarTrial *t, unsigned chosen, unsigned ones) {
    ScalarCall call = *t->call;
    uint64_t sign = operation_rule(t->in->operation) == UNDEFINED_MONOTONE_SIGNED ? 1ull << (t->wide ? 63 : 31) : 0;
    for (int i = 0; i < 2; i++)
        if (chosen >> i & 1) call.s[i] = extreme(call.s[i], t->open[i], ones >> i & 1, sign);
    if (chosen >> OLD_DESTINATION & 1) call.d = extreme(call.d, t->open[OLD_DESTINATION], ones >> OLD_DESTINATION & 1, 0);
    if (chosen >> SCC_SOURCE & 1) call.scc = ones >> SCC_SOURCE & 1;
    t->in->operation->scalar(&call);
    return call;
}

/* What changes when the sources in `chosen` are tried. */
static ScalarCall try_sources(const ScalarTrial *t, unsigned chosen) {
    ScalarCall first = run_trial(t, chosen, 0), changed = {0};
    for (unsigned ones = chosen; ones; ones = (ones - 1) & chosen) {
        ScalarCall other = run_trial(t, chosen, ones);
        changed.d |= first.d ^ other.d;
        changed.scc |= first.scc ^ other.scc;
    }
    return changed;
}

static ScalarCall undefined_result(const ScalarTrial *t) {
    unsigned varying = 0, selectors = operation_selectors(t->in->operation);
    UndefinedRule rule = operation_rule(t->in->operation);
    for (int i = 0; i < SCALAR_SOURCES; i++) varying |= (unsigned)(t->open[i] != 0) << i;
    if (!varying) return (ScalarCall){0};
    ScalarCall whole = {.d = ~0ull, .scc = true};
    if (rule == UNDEFINED_WHOLE) return whole;
    if (rule == UNDEFINED_EQUAL) {
        uint64_t told = (t->call->s[0] ^ t->call->s[1]) & ~(t->open[0] | t->open[1]);
        return (ScalarCall){.scc = t->wide ? !told : !(uint32_t)told};
    }
    bool result = t->in->operation->format[0] != ':';
    uint32_t counts = operation_selector_mask(t->in->operation, t->wide || t->in->operand[0].registers == 2 ? 64 : 32);
    for (int i = 0; i < 2; i++)
        if (selectors >> i & 1 && t->open[i] & counts) return whole;
    ScalarCall changed = try_sources(t, varying & ~selectors);
    if (rule == UNDEFINED_CARRY) return (ScalarCall){.d = changed.d | -changed.d, .scc = true};
    if (rule != UNDEFINED_BITS) changed.d = changed.d ? ~0ull : 0;
    else if (result) changed.scc = undefined_zero(run_trial(t, 0, 0).d, changed.d);
    return changed;
}

void undefined_scalar(Wave *wave, const Instruction *in, const ScalarCall *call) {
    uint32_t flags = in->operation->flags;
    bool result = in->operation->format[0] != ':';
    ScalarTrial trial = {.in = in, .call = call, .wide = in->operand[result].type == TYPE_B64};
    for (int i = result; i < in->operands; i++) trial.open[i - result] = undefined_operand(wave, &in->operand[i]);
    if (flags & OPERATION_ACCUMULATES) trial.open[OLD_DESTINATION] = undefined_operand(wave, &in->operand[0]);
    if (flags & OPERATION_USES_SCC) trial.open[SCC_SOURCE] = wave->scc_undefined;
    ScalarCall undefined = undefined_result(&trial);
    uint32_t origin = undefined_origin(wave, in, 0);
    if (result) undefined_set_scalars(wave, in, in->operand[0].index, in->operand[0].registers, undefined.d, origin);
    if (flags & OPERATION_SETS_SCC) {
        wave->scc_undefined = undefined.scc;
        wave->scc_origin = origin;
    }
}

/* -- LDS and scratch ----------------------------------------------------------------------------------------------- */

/* The undefined bits beside `memory`; NULL where all are defined or none are followed. `create`: there are going to be some. */
static uint8_t *memory_undefined(Wave *wave, const void *memory, bool create) {
    const uint8_t *byte = memory;
    if (wave->scratch && byte >= wave->scratch && byte < wave->scratch + (size_t)LANES * wave->scratch_bytes)
        return wave->scratch_undefined + (byte - wave->scratch);
    const uint8_t *lds = wave->group->lds;
    return byte >= lds && byte < lds + LDS_BYTES ? shadow_undefined(wave->group->shadow, (uint32_t)(byte - lds), create) : NULL;
}

void undefined_loaded(Wave *wave, const Instruction *in, int to, unsigned bytes, uint64_t exec, Extension extension) {
    if (extension_keeps_half(extension) && exec & ~wave->defined[to]) {
        uint32_t origin = undefined_origin(wave, in, exec);
        for (uint64_t left = exec & ~wave->defined[to]; left; left &= left - 1) {
            int lane = __builtin_ctzll(left);
            undefined_set(wave, to, lane, extend(undefined_bits(wave, to, lane), 0, bytes, extension), origin);
        }
        return;
    }
    for (unsigned i = 0; i < (bytes + 3) / 4; i++) wave->defined[to + (int)i] |= exec;
}

void undefined_load(Wave *wave, const Instruction *in, int to, int lane, const void *memory, unsigned bytes, Extension extension) {
    const uint8_t *from = memory_undefined(wave, memory, false);
    if (!from) return;
    for (unsigned i = 0; i < (bytes + 3) / 4; i++) {
        int index = to + (int)i;
        uint32_t bits = 0;
        memcpy(&bits, from + 4 * i, bytes < 4 ? bytes : 4);
        if (bytes < 4) bits = extend(undefined_bits(wave, index, lane), bits, bytes, extension);
        if (bits) undefined_set(wave, index, lane, bits, undefined_origin(wave, in, 0));
    }
}

void undefined_overwrite(Wave *wave, uint32_t address, unsigned bytes) {
    uint8_t *bits = shadow_undefined(wave->group->shadow, address, false);
    if (bits) memset(bits, 0, bytes);
}

bool undefined_store(Wave *wave, const Instruction *in, int from, int lane, void *memory, unsigned bytes, Extension extension) {
    uint32_t bits[4], any = 0;
    int registers = (int)(bytes + 3) / 4, shift = extension == EXTEND_HIGH_HALF ? 16 : 0;
    uint32_t stored = bytes < 4 ? ((1u << 8 * bytes) - 1) << shift : ~0u;
    for (int r = 0; r < registers; r++) any |= bits[r] = (undefined_bits(wave, from + r, lane) & stored) >> shift;
    uint8_t *to = memory_undefined(wave, memory, any);
    if (to) memcpy(to, bits, bytes);
    return to || !any || undefined_check(wave, in, from, registers, stored, 1ull << lane, "a store");
}
