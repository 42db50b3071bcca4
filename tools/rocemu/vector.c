/* Execution of vector instructions: brings sources into arrays of lanes (broadcast, negated, selected, permuted as
 * the modifiers say), calls the operation's loop, and writes what EXEC allows. An instruction without modifiers
 * under a full EXEC works on the registers in place. */
#ifdef __SSE__
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

#include "lanes.h"
#include "undefined.h"

/* Of the mode register: rounds to nearest, keeps denormals. */
enum { DEFAULT_MODE = 0xf0 };

/* -- Float mode ---------------------------------------------------------------------------------------------------- */

/* The mode register: bits 0-1 round fp32, 2-3 fp64 and fp16; bits 4-5 and 6-7: 1 keeps denormal inputs, 2 denormal
 * results. */
unsigned float_mode_enter(uint32_t mode, uint32_t flags) {
    bool wide = flags & OPERATION_FLOAT64;
    uint32_t round = mode >> (wide ? 2 : 0) & 3, denormal = mode >> (wide ? 6 : 4) & 3;
#ifdef __SSE__
    static const unsigned host_round[4] = {0, 0x4000, 0x2000, 0x6000};
    unsigned saved = _mm_getcsr(), wanted = 0x1f80 | host_round[round] | (denormal & 1 ? 0 : 0x40) | (denormal & 2 ? 0 : 0x8000);
    if ((saved & ~0x3fu) != wanted) _mm_setcsr(wanted);
    return saved;
#else
    static const int host_round[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    (void)denormal;
    unsigned saved = (unsigned)fegetround();
    fesetround(host_round[round]);
    return saved;
#endif
}

void float_mode_leave(unsigned saved) {
#ifdef __SSE__
    _mm_setcsr(saved);
#else
    fesetround((int)saved);
#endif
}

/* -- Sources ------------------------------------------------------------------------------------------------------- */

CORE broadcast(VectorCall *call) {
    uint32_t *d = call->d, value = (uint32_t)call->mask;
    FOR_LANES d[lane] = value;
}

static const uint32_t *broadcast_scalar(const Wave *wave, const Operand *operand, uint32_t *to) {
    uint64_t value = operand_scalar(wave, operand);
    broadcast(&(VectorCall){.d = to, .mask = value});
    if (operand->registers == 2) broadcast(&(VectorCall){.d = to + LANES, .mask = value >> 32});
    return to;
}

/* The lane that `lane` reads under a DPP control, or -1. */
static int dpp_source(const Instruction *in, int lane) {
    int n = in->dpp_argument, row = lane & ~15, at = lane & 15;
    switch ((DppControl)in->dpp) {
    case DPP_QUAD_PERM: return (lane & ~3) + (n >> (2 * (lane & 3)) & 3);
    case DPP_ROW_SHL: return at + n < 16 ? lane + n : -1;
    case DPP_ROW_SHR: return at >= n ? lane - n : -1;
    case DPP_ROW_ROR: return row + ((at - n) & 15);
    case DPP_WAVE_SHL: return lane < LANES - 1 ? lane + 1 : -1;
    case DPP_WAVE_ROL: return (lane + 1) & (LANES - 1);
    case DPP_WAVE_SHR: return lane - 1;
    case DPP_WAVE_ROR: return (lane - 1) & (LANES - 1);
    case DPP_ROW_MIRROR: return row + 15 - at;
    case DPP_ROW_HALF_MIRROR: return (lane & ~7) + 7 - (lane & 7);
    case DPP_ROW_BCAST15: return lane >= 16 ? row - 1 : -1;
    case DPP_ROW_BCAST31: return lane >= 32 ? 31 : -1;
    case DPP_ROW_NEWBCAST: return row + n;
    case DPP_NONE: break;
    }
    return lane;
}

/* `from` and `to` have the registers of source 0, one after the other. */
uint64_t vector_permute(const Instruction *in, const uint32_t *from, uint64_t exec, uint32_t *to) {
    uint64_t active = 0;
    for (int lane = 0; lane < LANES; lane++) {
        if (!(in->row_mask >> (lane / 16) & 1) || !(in->bank_mask >> (lane / 4 % 4) & 1)) continue;
        int source = dpp_source(in, lane);
        bool valid = source >= 0 && (exec >> source & 1);
        if (!valid && !in->bound_control) continue;
        active |= 1ull << lane;
        for (int r = 0; r < in->source[0].registers; r++) to[r * LANES + lane] = valid ? from[r * LANES + source] : 0;
    }
    return active & exec;
}

static uint32_t select_part(uint32_t x, Selection selection, bool sign) {
    if (selection == SELECT_DWORD) return x;
    bool byte = selection <= SELECT_BYTE_3;
    uint32_t part = byte ? x >> (8 * (selection - SELECT_BYTE_0)) & 0xff : x >> (16 * (selection - SELECT_WORD_0)) & 0xffff;
    if (!sign) return part;
    return byte ? (uint32_t)(int8_t)part : (uint32_t)(int16_t)part;
}

/* Packed operands: both halves are chosen, and values negated, independently. */
static void pack_halves(const Instruction *in, int i, const uint32_t *from, uint32_t *to, bool values) {
    bool low_from_high = in->op_sel >> i & 1, high_from_high = in->op_sel_hi >> i & 1;
    uint32_t flip_low = values ? in->negate_low >> i & 1 : 0, flip_high = values ? in->negate_high >> i & 1 : 0;
    for (int lane = 0; lane < LANES; lane++) {
        if (in->source[i].type == TYPE_PACKED32) {
            uint32_t low = from[lane], high = from[LANES + lane];
            to[lane] = (low_from_high ? high : low) ^ flip_low << 31;
            to[LANES + lane] = (high_from_high ? high : low) ^ flip_high << 31;
        } else {
            uint32_t x = from[lane], low = low_from_high ? x >> 16 : x & 0xffff, high = high_from_high ? x >> 16 : x & 0xffff;
            to[lane] = (low ^ flip_low << 15) | (high ^ flip_high << 15) << 16;
        }
    }
}

static void apply_sign(const Operand *operand, const uint32_t *from, uint32_t *to, bool values) {
    bool wide = operand->type == TYPE_F64 || operand->type == TYPE_B64;
    uint32_t sign = operand->type == TYPE_F16 || operand->type == TYPE_B16 ? 0x8000u : 0x80000000u, clear = operand->absolute ? ~sign : ~0u,
             flip = operand->negate && values ? sign : 0;
    if (wide && from != to) memcpy(to, from, LANES * sizeof *to);
    const uint32_t *source = wide ? from + LANES : from;
    uint32_t *target = wide ? to + LANES : to;
    for (int lane = 0; lane < LANES; lane++) target[lane] = (source[lane] & clear) ^ flip;
}

const uint32_t *vector_modify_source(const Instruction *in, int i, const uint32_t *from, uint32_t *to, bool values) {
    const Operand *operand = &in->source[i];
    if (in->plain) return from;
    if (operand->type == TYPE_PACKED16 || operand->type == TYPE_PACKED32) {
        uint32_t copy[2 * LANES];
        memcpy(copy, from, (operand->type == TYPE_PACKED32 ? 2 : 1) * LANES * sizeof *copy);
        pack_halves(in, i, copy, to, values);
        return to;
    }
    if (in->sdwa && operand->selection != SELECT_DWORD) {
        for (int lane = 0; lane < LANES; lane++) to[lane] = select_part(from[lane], operand->selection, operand->extend_sign);
        from = to;
    }
    if ((operand->type == TYPE_F16 || operand->type == TYPE_B16) && (in->op_sel >> i & 1)) {
        for (int lane = 0; lane < LANES; lane++) to[lane] = from[lane] >> 16;
        from = to;
    }
    if (operand->negate || operand->absolute) {
        apply_sign(operand, from, to, values);
        from = to;
    }
    return from;
}

/* Source i as lanes, in the register itself or in `temporary`. DPP takes lanes out of `active`. */
static const uint32_t *fetch(const Wave *wave, const Instruction *in, int i, uint32_t *temporary, uint64_t *active) {
    const Operand *operand = &in->source[i];
    const uint32_t *from = temporary;
    if (operand->kind == OPERAND_VECTOR) from = wave->vector[operand->index];
    else broadcast_scalar(wave, operand, temporary);
    if (i == 0 && in->dpp) {
        *active = vector_permute(in, from, wave_exec(wave), temporary);
        from = temporary;
    }
    return vector_modify_source(in, i, from, temporary, true);
}

/* -- Results ------------------------------------------------------------------------------------------------------- */

static float modify_float(const Instruction *in, float x) {
    static const float scale[4] = {1, 2, 4, 0.5f};
    if (in->output_modifier) x *= scale[in->output_modifier];
    return in->clamp ? (x > 0 ? (x < 1 ? x : 1) : 0) : x;
}

static void modify_result(const Instruction *in, uint32_t *d) {
    if (!in->clamp && !in->output_modifier) return;
    for (int lane = 0; lane < LANES; lane++) switch ((OperandType)in->destination.type) {
        case TYPE_F32: d[lane] = float_bits(modify_float(in, bits_float(d[lane]))); break;
        case TYPE_F16: d[lane] = half_bits((_Float16)modify_float(in, half_float((uint16_t)d[lane]))); break;
        case TYPE_PACKED16:
            d[lane] = half_bits((_Float16)modify_float(in, half_float((uint16_t)d[lane]))) |
                      (uint32_t)half_bits((_Float16)modify_float(in, half_float(d[lane] >> 16))) << 16;
            break;
        case TYPE_PACKED32:
            d[lane] = float_bits(modify_float(in, bits_float(d[lane])));
            d[LANES + lane] = float_bits(modify_float(in, bits_float(d[LANES + lane])));
            break;
        case TYPE_F64: {
            static const double scale[4] = {1, 2, 4, 0.5};
            double x = bits_double(pair_load(d, lane)) * scale[in->output_modifier];
            pair_store(d, lane, double_bits(in->clamp ? (x > 0 ? (x < 1 ? x : 1) : 0) : x));
            break;
        }
        default: break; /* integer operations with clamp are operations of their own */
        }
}

void vector_place_result(const Instruction *in, const uint32_t *old, uint32_t *d) {
    if (in->sdwa && in->destination_selection != SELECT_DWORD) {
        bool byte = in->destination_selection <= SELECT_BYTE_3;
        int shift = byte ? 8 * (in->destination_selection - SELECT_BYTE_0) : 16 * (in->destination_selection - SELECT_WORD_0);
        uint32_t ones = byte ? 0xff : 0xffff;
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t part = d[lane] & ones, extended = byte ? (uint32_t)(int8_t)part : (uint32_t)(int16_t)part;
            if (in->destination_preserve) d[lane] = (old[lane] & ~(ones << shift)) | part << shift;
            else d[lane] = (in->destination_sign ? extended : part) << shift;
        }
    } else if (in->op_sel & 8) {
        for (int lane = 0; lane < LANES; lane++) d[lane] = (old[lane] & 0xffff) | d[lane] << 16;
    } else if (in->operation->flags & OPERATION_KEEPS_HIGH) {
        for (int lane = 0; lane < LANES; lane++) d[lane] = (old[lane] & 0xffff0000) | (d[lane] & 0xffff);
    }
}

CORE merge(VectorCall *call) {
    uint32_t *d = call->d, expanded[LANES];
    const uint32_t *from = call->s[0];
    mask_expand(call->mask, expanded);
    FOR_LANES d[lane] = (from[lane] & expanded[lane]) | (d[lane] & ~expanded[lane]);
}

/* Lanes that an undefined bit of a source, or of the old value of the destination, is in. */
static uint64_t undefined_sources(const Wave *wave, const Instruction *in) {
    uint64_t lanes = in->uses_old_value ? undefined_lanes(wave, in->destination.index, in->destination.registers) : 0;
    for (int i = 0; i < in->sources; i++) lanes |= undefined_source_lanes(wave, &in->source[i]);
    if (in->mask_source.kind == OPERAND_SCALAR) lanes |= undefined_operand(wave, &in->mask_source);
    if (in->operation->flags & OPERATION_USES_VCC) lanes |= undefined_pair(wave, VCC);
    return lanes;
}

static void mark_defined(Wave *wave, const Instruction *in, uint64_t active) {
    if (in->destination.kind == OPERAND_VECTOR)
        for (int r = 0; r < in->destination.registers; r++) wave->defined[in->destination.index + r] |= active;
    if (in->mask_destination.kind == OPERAND_SCALAR) undefined_clear_pair(wave, in->mask_destination.index);
}

static void write_masks(Wave *wave, const Instruction *in, const VectorCall *call) {
    if (in->mask_destination.kind == OPERAND_SCALAR) wave_set_pair(wave, in->mask_destination.index, call->result & call->exec);
    if (in->operation->flags & OPERATION_WRITES_EXEC) wave_set_pair(wave, EXEC, call->result & call->exec);
}

static void run_core(const Wave *wave, const Instruction *in, VectorCall *call, uint32_t *result) {
    uint32_t flags = in->operation->flags;
    if (flags & (OPERATION_FLOAT32 | OPERATION_FLOAT64) && (wave->mode & 0xff) != DEFAULT_MODE) {
        unsigned saved = float_mode_enter(wave->mode, flags);
        in->operation->vector(call);
        if (result) modify_result(in, result);
        float_mode_leave(saved);
    } else {
        in->operation->vector(call);
        if (result) modify_result(in, result);
    }
}

bool vector_is_simple(const Instruction *in) {
    const uint32_t special = OPERATION_USES_VCC | OPERATION_WRITES_EXEC | OPERATION_KEEPS_HIGH | OPERATION_ACCUMULATES;
    return in->plain && !in->uses_old_value && !(in->operation->flags & special) && in->destination.kind == OPERAND_VECTOR &&
           in->mask_destination.kind == OPERAND_NONE && in->mask_source.kind == OPERAND_NONE;
}

/* vector_execute where vector_is_simple: with all lanes on, defined sources and the usual float mode it is the inner loop and little
 * else. */
void vector_execute_simple(Wave *wave, const Instruction *in) {
    _Alignas(64) uint32_t temporary[3][2 * LANES];
    VectorCall call = {.d = wave->vector[in->destination.index], .mask = in->truth_table, .exec = ~0ull};
    uint64_t undefined = ~wave_exec(wave);
    for (int i = 0; i < in->sources; i++) {
        undefined |= undefined_source_lanes(wave, &in->source[i]);
        call.s[i] =
            in->source[i].kind == OPERAND_VECTOR ? wave->vector[in->source[i].index] : broadcast_scalar(wave, &in->source[i], temporary[i]);
    }
    if (undefined || (in->operation->flags & (OPERATION_FLOAT32 | OPERATION_FLOAT64) && (wave->mode & 0xff) != DEFAULT_MODE)) {
        vector_execute(wave, in);
        return;
    }
    in->operation->vector(&call);
    for (int r = 0; r < in->destination.registers; r++) wave->defined[in->destination.index + r] = ~0ull;
}

void vector_execute(Wave *wave, const Instruction *in) {
    _Alignas(64) uint32_t temporary[3][2 * LANES], result[2 * LANES];
    uint64_t exec = wave_exec(wave), active = exec;
    VectorCall call = {0};
    if (in->mask_source.kind != OPERAND_NONE) call.mask = operand_scalar(wave, &in->mask_source);
    else if (in->operation->flags & OPERATION_USES_VCC) call.mask = wave_pair(wave, VCC);
    else call.mask = in->truth_table;
    for (int i = 0; i < in->sources; i++) call.s[i] = fetch(wave, in, i, temporary[i], &active);
    call.exec = active;
    if (in->operation->flags & OPERATION_ACCUMULATES) call.s[in->sources] = wave->vector[in->destination.index];
    if (undefined_sources(wave, in) & exec) undefined_vector(wave, in, &call, active);
    else mark_defined(wave, in, active);
    if (in->destination.kind != OPERAND_VECTOR) {
        run_core(wave, in, &call, NULL);
        write_masks(wave, in, &call);
        return;
    }
    int index = in->destination.index, registers = in->destination.registers;
    if (in->plain && active == ~0ull && !(in->operation->flags & OPERATION_KEEPS_HIGH)) {
        call.d = wave->vector[index];
        run_core(wave, in, &call, NULL);
    } else {
        call.d = result;
        run_core(wave, in, &call, result);
        vector_place_result(in, wave->vector[index], result);
        for (int r = 0; r < registers; r++) merge(&(VectorCall){.d = wave->vector[index + r], .s = {result + r * LANES}, .mask = active});
    }
    write_masks(wave, in, &call);
}
