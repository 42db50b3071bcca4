/* Bits that nothing wrote: reading and marking them in registers, LDS and scratch, and reporting where they decide
 * (undefined.c says what is followed and when it is reported). */
#ifndef ROCEMU_UNDEFINED_H
#define ROCEMU_UNDEFINED_H

#include <string.h>

#include "emulator.h"

/* Makes all registers and scratch undefined, as a wavefront begins, or defined where this is not to be checked. */
void undefined_begin(Wave *wave);

/* -- Scalar registers ---------------------------------------------------------------------------------------------- */

/* Whether a value's bits leave open if it is 0. */
static inline bool undefined_zero(uint64_t value, uint64_t undefined) { return undefined && !(value & ~undefined); }

static inline uint64_t undefined_pair(const Wave *wave, int index) {
    return wave->scalar_undefined[index] | (uint64_t)wave->scalar_undefined[index + 1] << 32;
}
/* Of an operand of up to two scalar registers; constants have none. */
static inline uint64_t undefined_operand(const Wave *wave, const Operand *operand) {
    if (operand->kind == OPERAND_SCALAR)
        return operand->registers == 2 ? undefined_pair(wave, operand->index) : wave->scalar_undefined[operand->index];
    if (operand->kind != OPERAND_SPECIAL) return 0;
    if (operand->index == SPECIAL_SCC) return wave->scc_undefined;
    return operand->index == SPECIAL_VCCZ && undefined_zero(wave_pair(wave, VCC), undefined_pair(wave, VCC));
}
/* A pair in one store: it is read as one soon, and two stores would have to be waited for. */
static inline void undefined_clear_pair(Wave *wave, int index) { memset(&wave->scalar_undefined[index], 0, 8); }
static inline void undefined_clear_scalars(Wave *wave, int index, int registers) {
    if (registers == 2) undefined_clear_pair(wave, index);
    else memset(&wave->scalar_undefined[index], 0, 4u * (unsigned)registers);
}
/* Reports undefined bits that get into EXEC: they would decide which lanes go on. */
void undefined_set_scalars(Wave *wave, const Instruction *instruction, int index, int registers, uint64_t bits, uint32_t origin);

/* Marks what a scalar operation gives, before it is executed, of which a source or SCC is undefined. */
void undefined_scalar(Wave *wave, const Instruction *instruction, const ScalarCall *call);

/* -- Vector registers ---------------------------------------------------------------------------------------------- */

static inline uint32_t undefined_bits(const Wave *wave, int index, int lane) {
    if (wave->defined[index] >> lane & 1) return 0;
    return wave->partly[index] >> lane & 1 ? wave->undefined[index][lane] : ~0u;
}
/* `origin`: as in Wave. */
void undefined_set(Wave *wave, int index, int lane, uint32_t bits, uint32_t origin);
/* All lanes of a register, and back into those of `lanes`. */
void undefined_get_lanes(const Wave *wave, int index, uint32_t bits[LANES]);
void undefined_set_lanes(Wave *wave, int index, uint64_t lanes, const uint32_t bits[LANES], uint32_t origin);
/* Of vector registers, the lanes that are not whole. */
static inline uint64_t undefined_lanes(const Wave *wave, int index, int registers) {
    uint64_t lanes = 0;
    for (int r = 0; r < registers; r++) lanes |= ~wave->defined[index + r];
    return lanes;
}
/* The same of a source of a vector operation. */
static inline uint64_t undefined_source_lanes(const Wave *wave, const Operand *operand) {
    if (operand->kind == OPERAND_VECTOR) return undefined_lanes(wave, operand->index, operand->registers);
    return undefined_operand(wave, operand) ? ~0ull : 0;
}
/* Where the undefined bits began that `instruction` reads in one of `lanes`. */
uint32_t undefined_origin(const Wave *wave, const Instruction *instruction, uint64_t lanes);

/* Marks the results of a vector operation, before it is executed, of which a source has undefined bits in a lane of exec. `active`: the
 * lanes that get results. */
void undefined_vector(Wave *wave, const Instruction *instruction, const VectorCall *call, uint64_t active);

/* -- Decisions ----------------------------------------------------------------------------------------------------- */

/* The checks are false after reporting that `what` (an address, a branch) would be decided by undefined bits. */

/* `bits`: those of each register that matter. */
bool undefined_check(Wave *wave, const Instruction *instruction, int first, int count, uint32_t bits, uint64_t exec, const char *what);
bool undefined_check_scalar(Wave *wave, const Instruction *instruction, const Operand *operand, const char *what);
bool undefined_check_m0(Wave *wave, const Instruction *instruction);
bool undefined_check_scc(Wave *wave, const Instruction *instruction);
/* Of a branch on whether VCC is 0. */
bool undefined_check_vccz(Wave *wave, const Instruction *instruction);

#endif
