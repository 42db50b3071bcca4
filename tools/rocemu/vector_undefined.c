/* Undefined bits in vector operations: what undefined.c says, for 64 lanes at once. It runs only for an instruction of
 * which a source has undefined bits in an active lane. */
#include "lanes.h"
#include "undefined.h"

/* The sources as they are tried: those of the instruction, after them the old destination where it is added to; and the lane
 * mask. */
enum { VECTOR_SOURCES = 3, MASK_SOURCE = VECTOR_SOURCES };
typedef struct VectorTrial {
    const Instruction *in;
    const VectorCall *call;
    int words[VECTOR_SOURCES]; /* registers of each, 0 where there is none */
    uint32_t open[VECTOR_SOURCES][2 * LANES];
    uint64_t open_mask;
    unsigned varying; /* bit i: source i has undefined bits */
} VectorTrial;
typedef struct VectorResult {
    uint32_t d[2 * LANES];
    uint64_t mask;
} VectorResult;

static bool is_short(uint8_t type) { return type == TYPE_B16 || type == TYPE_F16; }

/* -- Sources ------------------------------------------------------------------------------------------------------- */

static void copy_registers(const Wave *wave, const Operand *operand, uint32_t *to) {
    for (int r = 0; r < operand->registers; r++) undefined_get_lanes(wave, operand->index + r, to + r * LANES);
}

/* The undefined bits of source i, moved as its modifiers move the value. */
static void fetch_source(const Wave *wave, const Instruction *in, int i, uint32_t to[2 * LANES]) {
    const Operand *operand = &in->source[i];
    uint32_t bits[2 * LANES], permuted[2 * LANES] = {0};
    uint64_t undefined = undefined_operand(wave, operand);
    for (int lane = 0; lane < LANES; lane++) bits[lane] = (uint32_t)undefined, bits[LANES + lane] = (uint32_t)(undefined >> 32);
    if (operand->kind == OPERAND_VECTOR) copy_registers(wave, operand, bits);
    bool permutes = i == 0 && in->dpp;
    if (permutes) vector_permute(in, bits, wave_exec(wave), permuted);
    const uint32_t *from = vector_modify_source(in, i, permutes ? permuted : bits, to, false);
    if (from != to) memcpy(to, from, (size_t)operand->registers * LANES * sizeof *to);
    for (int lane = 0; is_short(operand->type) && lane < LANES; lane++) to[lane] &= 0xffff;
}

/* Lanes with an undefined bit in source i. */
static uint64_t source_lanes(const VectorTrial *t, int i) {
    uint64_t lanes = 0;
    for (int word = 0; word < t->words[i]; word++) lanes |= mask_nonzero(t->open[i] + word * LANES);
    return lanes;
}

static void fetch_sources(VectorTrial *t, const Wave *wave) {
    const Instruction *in = t->in;
    for (int i = 0; i < in->sources; i++) {
        t->words[i] = in->source[i].registers;
        if (undefined_source_lanes(wave, &in->source[i])) fetch_source(wave, in, i, t->open[i]);
    }
    if (in->operation->flags & OPERATION_ACCUMULATES) {
        t->words[in->sources] = in->destination.registers;
        copy_registers(wave, &in->destination, t->open[in->sources]);
    }
    if (in->mask_source.kind != OPERAND_NONE) t->open_mask = undefined_operand(wave, &in->mask_source);
    else if (in->operation->flags & OPERATION_USES_VCC) t->open_mask = undefined_pair(wave, VCC);
    for (int i = 0; i < VECTOR_SOURCES; i++) t->varying |= (unsigned)(source_lanes(t, i) != 0) << i;
    t->varying |= (unsigned)(t->open_mask != 0) << MASK_SOURCE;
}

/* Those with one in any source. */
static uint64_t open_lanes(const VectorTrial *t) {
    uint64_t lanes = t->open_mask;
    for (int i = 0; i < VECTOR_SOURCES; i++) lanes |= source_lanes(t, i);
    return lanes;
}

/* -- Trying -------------------------------------------------------------------------------------------------------- */

/* Undefined bits of the sources in `chosen` are all 1 where `ones` has the source, else all 0; of signed values they are those of the
 * greatest, or the least. The other sources are as they are. */
static void run_trial(const VectorTrial *t, unsigned chosen, unsigned ones, VectorResult *result) {
    uint32_t source[VECTOR_SOURCES][2 * LANES], sign[2] = {0, 0};
    const Instruction *in = t->in;
    if (operation_rule(in->operation) == UNDEFINED_MONOTONE_SIGNED)
        sign[in->source[0].type == TYPE_B64] = is_short(in->source[0].type) ? 0x8000u : 0x80000000u;
    VectorCall call = *t->call;
    for (int i = 0; i < VECTOR_SOURCES; i++) {
        if (!(chosen >> i & 1)) continue;
        uint32_t set = -(ones >> i & 1);
        for (int j = 0; j < t->words[i] * LANES; j++) {
            uint32_t open = t->open[i][j];
            source[i][j] = (t->call->s[i][j] & ~open) | (open & (set ^ sign[j / LANES]));
        }
        call.s[i] = source[i];
    }
    if (chosen >> MASK_SOURCE & 1) call.mask = (call.mask & ~t->open_mask) | (ones >> MASK_SOURCE & 1 ? t->open_mask : 0);
    call.d = result->d;
    in->operation->vector(&call);
    result->mask = call.result;
}

/* What changes when the sources in `chosen` are tried. */
static void try_sources(const VectorTrial *t, unsigned chosen, VectorResult *changed) {
    VectorResult first = {0}, other = {0};
    memset(changed, 0, sizeof *changed);
    if (!chosen) return;
    run_trial(t, chosen, 0, &first);
    for (unsigned ones = chosen; ones; ones = (ones - 1) & chosen) {
        run_trial(t, chosen, ones, &other);
        for (int j = 0; j < 2 * LANES; j++) changed->d[j] |= first.d[j] ^ other.d[j];
        changed->mask |= first.mask ^ other.mask;
    }
}

/* -- Rules --------------------------------------------------------------------------------------------------------- */

/* Elements of the result's type of which any bit is set become all ones. */
static void fill_elements(const Instruction *in, uint32_t d[2 * LANES]) {
    uint8_t type = in->destination.type;
    bool wide = in->destination.registers == 2 && type != TYPE_PACKED32;
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t low = d[lane], high = d[LANES + lane];
        if (wide) low = high = low | high;
        d[lane] = type != TYPE_PACKED16 ? -(uint32_t)(low != 0) : (low & 0xffff ? 0xffff : 0) | (low >> 16 ? 0xffff0000u : 0);
        d[LANES + lane] = -(uint32_t)(high != 0);
    }
}

/* Element by element where sources and result are packed alike. */
static void apply_whole(const VectorTrial *t, uint64_t open, uint32_t d[2 * LANES]) {
    uint8_t type = t->in->destination.type;
    bool by_element = (type == TYPE_PACKED16 || type == TYPE_PACKED32) && t->in->source[0].type == type;
    for (int i = 0; by_element && i < VECTOR_SOURCES; i++)
        for (int j = 0; j < t->words[i] * LANES; j++) d[j] |= t->open[i][j];
    for (int lane = 0; !by_element && lane < LANES; lane++) d[lane] = d[LANES + lane] = -(uint32_t)(open >> lane & 1);
    fill_elements(t->in, d);
}

static void apply_packs(const VectorTrial *t, uint32_t d[2 * LANES]) {
    for (int lane = 0; lane < LANES; lane++) d[lane] = (t->open[0][lane] ? 0xffff : 0) | (t->open[1][lane] ? 0xffff0000u : 0);
}

/* Lanes in which no defined bit says that the sources differ. */
static uint64_t equal_lanes(const VectorTrial *t) {
    uint32_t told[2 * LANES] = {0}, width = is_short(t->in->source[0].type) ? 0xffff : ~0u;
    for (int j = 0; j < t->words[0] * LANES; j++)
        told[j] = (t->call->s[0][j] ^ t->call->s[1][j]) & ~(t->open[0][j] | t->open[1][j]) & width;
    return ~(mask_nonzero(told) | mask_nonzero(told + LANES));
}

static void fill_up(int registers, uint32_t d[2 * LANES]) {
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t bits = registers == 2 ? pair_load(d, lane) : d[lane];
        pair_store(d, lane, bits | -bits);
    }
}

/* All of the result is undefined where a bit of source i is that says which bits to take. */
static void apply_selector(const VectorTrial *t, int i, uint32_t d[2 * LANES]) {
    const Operand *to = &t->in->destination;
    uint32_t counts = operation_selector_mask(t->in->operation, is_short(to->type) ? 16 : to->registers == 2 ? 64 : 32);
    for (int lane = 0; lane < LANES; lane++)
        if (t->open[i][lane] & counts) d[lane] = d[LANES + lane] = ~0u;
}

static void apply_tried(const VectorTrial *t, UndefinedRule rule, VectorResult *undefined) {
    unsigned selectors = operation_selectors(t->in->operation);
    uint64_t open = undefined->mask;
    try_sources(t, t->varying & ~selectors, undefined);
    if (rule == UNDEFINED_CARRY) fill_up(t->in->destination.registers, undefined->d);
    else if (rule != UNDEFINED_BITS) fill_elements(t->in, undefined->d);
    for (int i = 0; i < VECTOR_SOURCES; i++)
        if (t->varying & selectors & 1u << i) apply_selector(t, i, undefined->d);
    if (t->in->destination.kind == OPERAND_VECTOR) undefined->mask = open; /* a carry */
}

static void apply_rule(const VectorTrial *t, VectorResult *undefined) {
    UndefinedRule rule = operation_rule(t->in->operation);
    memset(undefined, 0, sizeof *undefined);
    undefined->mask = open_lanes(t);
    switch (rule) {
    case UNDEFINED_WHOLE: apply_whole(t, undefined->mask, undefined->d); break;
    case UNDEFINED_PACKS: apply_packs(t, undefined->d); break;
    case UNDEFINED_EQUAL: undefined->mask &= equal_lanes(t); break;
    default: apply_tried(t, rule, undefined);
    }
    for (int lane = 0; is_short(t->in->destination.type) && lane < LANES; lane++) undefined->d[lane] &= 0xffff;
}

/* -- Results ------------------------------------------------------------------------------------------------------- */

static void mark_result(Wave *wave, const Instruction *in, uint32_t d[2 * LANES], uint64_t active, uint32_t origin) {
    uint32_t old[2 * LANES];
    copy_registers(wave, &in->destination, old);
    vector_place_result(in, old, d);
    for (int r = 0; r < in->destination.registers; r++) undefined_set_lanes(wave, in->destination.index + r, active, d + r * LANES, origin);
}

void undefined_vector(Wave *wave, const Instruction *in, const VectorCall *call, uint64_t active) {
    VectorTrial trial = {.in = in, .call = call};
    VectorResult undefined;
    fetch_sources(&trial, wave);
    apply_rule(&trial, &undefined);
    uint32_t origin = undefined_origin(wave, in, active);
    undefined.mask &= active;
    if (in->destination.kind == OPERAND_VECTOR) mark_result(wave, in, undefined.d, active, origin);
    if (in->mask_destination.kind == OPERAND_SCALAR) undefined_set_scalars(wave, in, in->mask_destination.index, 2, undefined.mask, origin);
    if (in->operation->flags & OPERATION_WRITES_EXEC) undefined_set_scalars(wave, in, EXEC, 2, undefined.mask, origin);
}
