/* How the emulator of AMD's GPUs follows bits that nothing wrote (tools/rocemu/undefined.c) through every operation: executes
 * it on random values with random undefined bits, then again with those bits changed; what changes in the results must
 * have been marked as undefined. The emulator's own objects are linked, as no kernel can choose which bits are undefined. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "undefined.h"

enum { VECTOR_ROUNDS = 12, SCALAR_ROUNDS = 300, CHANGES = 12 };
/* Operands have pairs of registers from here on. */
enum { FIRST_VECTOR = 8, END_VECTOR = 24, FIRST_SCALAR = 20, END_SCALAR = 40 };

static uint64_t random_state = 1;
static uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 32);
}
static uint32_t random_value(void) {
    uint32_t x = random_bits(), special[] = {0, ~0u, x & 0xff, x & random_bits() & random_bits(), x, x};
    return special[random_bits() % 6];
}
static uint32_t random_undefined(void) {
    uint32_t masks[] = {0, 0, ~0u, 0xffff, 0xffff0000, 0xff, 1u << random_bits() % 32, random_bits() & random_bits()};
    return masks[random_bits() % 8];
}

/* -- A wavefront that executes one instruction ------------------------------------------------------------------------ */

typedef struct Bench {
    Instruction instruction;
    Wave *wave, *changed;                                         /* `changed` knows of no undefined bits */
    uint32_t vector[END_VECTOR][LANES], scalar[SCALAR_REGISTERS]; /* the undefined bits at the start */
    bool scc;
} Bench;

static Kernel kernel;
static Program program;
static Launch launch = {.kernel = &kernel, .check = CHECK_ALL};
static Workgroup group = {.launch = &launch};

static Wave *create_wave(const Instruction *in) {
    Wave *wave = aligned_alloc(64, sizeof *wave);
    assert_non_null(wave);
    memset(wave, 0, sizeof *wave);
    wave->group = &group;
    wave->program = in;
    wave->mode = 0xf0;
    wave->undefined = calloc(VECTOR_REGISTERS, sizeof *wave->undefined);
    assert_non_null(wave->undefined);
    return wave;
}
static void free_wave(Wave *wave) {
    free(wave->undefined);
    free(wave);
}

static void set_undefined(Bench *b) {
    Wave *wave = b->wave;
    for (int i = FIRST_SCALAR; i < END_SCALAR; i++) b->scalar[i] = random_bits() % 3 ? 0 : random_undefined();
    b->scalar[VCC] = random_bits() % 3 ? 0 : random_bits();
    for (int i = 0; i < SCALAR_REGISTERS; i++) wave->scalar[i] = random_value(), wave->scalar_undefined[i] = b->scalar[i];
    for (int i = FIRST_VECTOR; i < END_VECTOR; i++) {
        bool whole = random_bits() % 2;
        for (int lane = 0; lane < LANES; lane++) {
            wave->vector[i][lane] = random_value();
            b->vector[i][lane] = whole ? 0 : random_undefined();
            undefined_set(wave, i, lane, b->vector[i][lane], 0);
        }
    }
    wave->scc = random_bits() & 1;
    wave->scc_undefined = b->scc = random_bits() % 3 == 0;
    wave_set_pair(wave, EXEC, random_bits() % 2 ? ~0ull : (uint64_t)random_bits() << 32 | random_bits());
}

/* Any of the undefined bits, or in one case of three all or none of a register's. */
static uint32_t flips(uint32_t undefined) { return undefined & (random_bits() % 3 ? random_bits() : -(random_bits() & 1)); }

/* `start` as it was before the instruction, with undefined bits of other values. */
static void change_undefined(Bench *b, const Wave *start) {
    uint32_t (*undefined)[LANES] = b->changed->undefined;
    Wave *wave = b->changed;
    *wave = *start;
    wave->undefined = undefined;
    memset(wave->defined, 0xff, sizeof wave->defined);
    memset(wave->scalar_undefined, 0, sizeof wave->scalar_undefined);
    wave->scc_undefined = false;
    if (b->scc) wave->scc = random_bits() & 1;
    for (int i = 0; i < SCALAR_REGISTERS; i++) wave->scalar[i] ^= flips(b->scalar[i]);
    for (int i = FIRST_VECTOR; i < END_VECTOR; i++)
        for (int lane = 0; lane < LANES; lane++) wave->vector[i][lane] ^= flips(b->vector[i][lane]);
}

/* -- Instructions ------------------------------------------------------------------------------------------------------ */

static OperandType operand_type(char letter) {
    static const char letters[] = "fFIDSwhpPmM";
    static const OperandType types[] = {
        TYPE_F32, TYPE_F64, TYPE_B64, TYPE_B64, TYPE_B64, TYPE_B16, TYPE_F16, TYPE_PACKED16, TYPE_PACKED32, TYPE_MASK, TYPE_MASK};
    const char *at = strchr(letters, letter);
    return at ? types[at - letters] : TYPE_B32;
}

static Operand make_operand(const Operation *operation, char letter, int number) {
    OperandType type = operand_type(letter);
    bool pair = type == TYPE_B64 || type == TYPE_F64 || type == TYPE_PACKED32 || type == TYPE_MASK;
    Operand operand = {
        .kind = OPERAND_VECTOR, .type = (uint8_t)type, .registers = pair ? 2 : 1, .index = (uint16_t)(FIRST_VECTOR + 2 * number)};
    if (operation->name[0] == 's' || type == TYPE_MASK)
        operand.kind = OPERAND_SCALAR, operand.index = (uint16_t)(FIRST_SCALAR + 2 * number);
    if (letter == 'k' || letter == 'K') operand.kind = OPERAND_CONSTANT, operand.value = (uint64_t)(int16_t)random_bits();
    return operand;
}

/* Signs, halves, parts of registers, or other lanes' values. */
static void add_modifiers(Instruction *in) {
    const Operand *first = &in->source[0];
    bool packed = first->type == TYPE_PACKED16 || first->type == TYPE_PACKED32, dwords = in->sources <= 2 && first->registers == 1;
    unsigned form = random_bits() % 4;
    in->plain = false;
    for (int i = 0; i < in->sources; i++) {
        uint8_t type = in->source[i].type;
        if (type == TYPE_F32 || type == TYPE_F64 || type == TYPE_F16)
            in->source[i].negate = random_bits() & 1, in->source[i].absolute = random_bits() & 1;
        if (form == 1 && dwords && !packed)
            in->source[i].selection = (uint8_t)(random_bits() % 7), in->source[i].extend_sign = random_bits() & 1;
    }
    if (packed) in->op_sel = random_bits() & 7, in->op_sel_hi = random_bits() & 7;
    if (form == 1 && dwords && !packed && in->destination.registers == 1) {
        in->sdwa = true;
        in->destination_selection = (uint8_t)(random_bits() % 7);
        in->destination_preserve = random_bits() & 1;
        in->destination_sign = !in->destination_preserve && random_bits() & 1;
    }
    if (form == 2 && !packed) in->dpp = DPP_ROW_SHR, in->dpp_argument = 1 + random_bits() % 15, in->bound_control = random_bits() & 1;
}

static void make_instruction(Instruction *in, const Operation *operation) {
    *in = (Instruction){.operation = operation,
        .execute = operation->execute,
        .text = operation->name,
        .plain = true,
        .row_mask = 15,
        .bank_mask = 15,
        .op_sel_hi = strncmp(operation->name, "v_fma_mix", 9) ? 7 : 0,
        .truth_table = (uint8_t)random_bits()};
    bool result = true;
    for (const char *letter = operation->format; *letter; letter++) {
        if (*letter == ':') {
            result = false;
            continue;
        }
        Operand operand = make_operand(operation, *letter, in->operands);
        in->operand[in->operands++] = operand;
        if (result) *(*letter == 'm' ? &in->mask_destination : &in->destination) = operand;
        else if (*letter == 'M') in->mask_source = operand;
        else if (in->sources < 3) in->source[in->sources++] = operand;
    }
    if (operation->vector && random_bits() % 3 == 0) add_modifiers(in);
    in->uses_old_value = operation->flags & (OPERATION_ACCUMULATES | OPERATION_KEEPS_HIGH) || in->destination_preserve;
}

/* -- The check --------------------------------------------------------------------------------------------------------- */

static void check_bits(const Bench *b, const char *what, int number, uint64_t one, uint64_t other, uint64_t marked) {
    uint64_t missed = (one ^ other) & ~marked;
    if (missed)
        fail_msg("%s: bits %llx of %s %d depend on undefined ones, but only %llx are marked", b->instruction.operation->name,
            (unsigned long long)missed, what, number, (unsigned long long)marked);
}

static void check_results(const Bench *b) {
    const Wave *wave = b->wave, *changed = b->changed;
    uint64_t exec = wave_exec(wave);
    for (int i = FIRST_SCALAR; i < END_SCALAR; i++)
        if (!b->scalar[i]) check_bits(b, "scalar register", i, wave->scalar[i], changed->scalar[i], wave->scalar_undefined[i]);
    check_bits(b, "flag", 0, wave->scc, changed->scc, wave->scc_undefined);
    for (int i = FIRST_VECTOR; i < END_VECTOR; i++)
        for (uint64_t left = exec; left; left &= left - 1) {
            int lane = __builtin_ctzll(left);
            check_bits(b, "vector register", i, wave->vector[i][lane], changed->vector[i][lane], undefined_bits(wave, i, lane));
        }
}

static void check_operation(Bench *b, const Operation *operation, int rounds) {
    static Wave start;
    for (int round = 0; round < rounds; round++) {
        make_instruction(&b->instruction, operation);
        set_undefined(b);
        start = *b->wave;
        operation->execute(b->wave, &b->instruction);
        for (int i = 0; i < CHANGES; i++) {
            change_undefined(b, &start);
            operation->execute(b->changed, &b->instruction);
            check_results(b);
        }
    }
}

/* Operations that only compute; those that write EXEC stop instead. */
static bool computes(const Operation *operation) {
    return (operation->vector || operation->scalar || strstr(operation->name, "_mix") || strstr(operation->name, "v_cvt_pk")) &&
           !(operation->flags & OPERATION_WRITES_EXEC);
}

static void results_change_only_in_bits_that_are_marked(void **state) {
    static const OperationTable *const tables[] = {&scalar_operations, &vector_float_operations, &vector_integer_operations,
        &vector_compare_operations, &vector_half_operations, &vector_convert_operations};
    static Bench bench;
    (void)state;
    bench.wave = create_wave(&bench.instruction), bench.changed = create_wave(&bench.instruction);
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (size_t i = 0; i < tables[t]->count; i++)
            if (computes(&tables[t]->rows[i])) check_operation(&bench, &tables[t]->rows[i], t ? VECTOR_ROUNDS : SCALAR_ROUNDS);
    free_wave(bench.wave), free_wave(bench.changed);
}

int main(void) {
    kernel.program = &program;
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_change_only_in_bits_that_are_marked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
