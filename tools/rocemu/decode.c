/* Instructions from bytes: LLVM's disassembler gives the text, which is read once per kernel into the form that
 * executes. Mnemonics are looked up in the instruction tables of the executing files; what they do not have, or a
 * modifier that is not understood, becomes an instruction that stops the kernel with its text. */
#include <ctype.h>
#include <llvm-c/Disassembler.h>
#include <llvm-c/Target.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"
#include "hip.h"

/* -- Operations by name -------------------------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    const Operation **row;
    size_t count;
} operations = {.once = PTHREAD_ONCE_INIT};

static int compare_rows(const void *a, const void *b) {
    return strcmp((*(const Operation *const *)a)->name, (*(const Operation *const *)b)->name);
}

static void collect_operations(void) {
    static const OperationTable *const tables[] = {&scalar_operations, &memory_scalar_operations, &vector_float_operations,
        &vector_integer_operations, &vector_compare_operations, &vector_half_operations, &vector_convert_operations,
        &vector_lane_operations, &matrix_operations, &local_operations, &global_operations, &buffer_operations};
    size_t total = 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) total += tables[t]->count;
    operations.row = malloc(total * sizeof *operations.row);
    if (!operations.row) return;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (size_t i = 0; i < tables[t]->count; i++) operations.row[operations.count++] = &tables[t]->rows[i];
    qsort(operations.row, operations.count, sizeof *operations.row, compare_rows);
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUDisassembler();
}

static const Operation *find_operation(const char *name) {
    const Operation key = {.name = name}, *pointer = &key;
    const Operation **found = bsearch(&pointer, operations.row, operations.count, sizeof *operations.row, compare_rows);
    return found ? *found : NULL;
}

/* The operation `name` in the form `variant`, or NULL. */
static const Operation *find_variant(const char *name, const char *variant) {
    char both[64];
    snprintf(both, sizeof both, "%.48s %s", name, variant);
    return find_operation(both);
}

static void execute_unimplemented(Wave *wave, const Instruction *in) {
    check_report(wave, in, -1, HIP_ERROR_NOT_SUPPORTED, "an instruction that the emulator does not have");
}

/* -- Operands ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint8_t kind, registers;
    uint16_t index;
} special_names[] = {
    {"vcc", OPERAND_SCALAR, 2, VCC},
    {"vcc_lo", OPERAND_SCALAR, 1, VCC},
    {"vcc_hi", OPERAND_SCALAR, 1, VCC + 1},
    {"exec", OPERAND_SCALAR, 2, EXEC},
    {"exec_lo", OPERAND_SCALAR, 1, EXEC},
    {"exec_hi", OPERAND_SCALAR, 1, EXEC + 1},
    {"m0", OPERAND_SCALAR, 1, M0},
    {"flat_scratch", OPERAND_SCALAR, 2, FLAT_SCRATCH},
    {"flat_scratch_lo", OPERAND_SCALAR, 1, FLAT_SCRATCH},
    {"flat_scratch_hi", OPERAND_SCALAR, 1, FLAT_SCRATCH + 1},
    {"xnack_mask", OPERAND_SCALAR, 2, 104},
    {"xnack_mask_lo", OPERAND_SCALAR, 1, 104},
    {"xnack_mask_hi", OPERAND_SCALAR, 1, 105},
    {"src_scc", OPERAND_SPECIAL, 1, SPECIAL_SCC},
    {"scc", OPERAND_SPECIAL, 1, SPECIAL_SCC},
    {"src_vccz", OPERAND_SPECIAL, 1, SPECIAL_VCCZ},
    {"src_execz", OPERAND_SPECIAL, 1, SPECIAL_EXECZ},
    {"src_shared_base", OPERAND_SPECIAL, 2, SPECIAL_SHARED_BASE},
    {"src_shared_limit", OPERAND_SPECIAL, 2, SPECIAL_SHARED_LIMIT},
    {"src_private_base", OPERAND_SPECIAL, 2, SPECIAL_PRIVATE_BASE},
    {"src_private_limit", OPERAND_SPECIAL, 2, SPECIAL_PRIVATE_LIMIT},
    {"off", OPERAND_NONE, 0, 0},
};

static bool parse_registers(const char *text, Operand *operand) {
    static const struct {
        const char *prefix;
        uint8_t kind;
        uint16_t first, count;
    } files[] = {{"ttmp", OPERAND_SCALAR, 108, 16}, {"v", OPERAND_VECTOR, 0, 256}, {"a", OPERAND_VECTOR, FIRST_ACCUMULATOR, 256},
        {"s", OPERAND_SCALAR, 0, 102}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n = strlen(files[i].prefix);
        if (strncmp(text, files[i].prefix, n)) continue;
        bool several = text[n] == '[';
        char *end;
        if (!isdigit((unsigned char)text[n + several])) continue;
        unsigned long first = strtoul(text + n + several, &end, 10), last = several && *end == ':' ? strtoul(end + 1, &end, 10) : first;
        if (strcmp(end, several ? "]" : "")) continue;
        if (last < first || last >= files[i].count) return false;
        *operand = (Operand){.kind = files[i].kind, .index = (uint16_t)(files[i].first + first), .registers = (uint8_t)(last - first + 1)};
        return true;
    }
    return false;
}

/* hwreg(HW_REG_MODE, 4, 2) as execute_getreg takes it; other registers are number 0. */
static bool parse_hardware_register(const char *text, Operand *operand) {
    if (strncmp(text, "hwreg(", 6)) return false;
    unsigned first = 0, width = 32;
    const char *comma = strchr(text, ',');
    if (comma) sscanf(comma, ", %u, %u", &first, &width);
    bool mode = !strncmp(text + 6, "HW_REG_MODE", 11);
    *operand = (Operand){.kind = OPERAND_CONSTANT, .registers = 1, .value = (uint64_t)mode | first << 8 | width << 16};
    return true;
}

static uint64_t float_constant(double x, OperandType type) {
    union {
        double wide;
        uint64_t bits;
    } d = {.wide = x};
    union {
        float narrow;
        uint32_t bits;
    } f = {.narrow = (float)x};
    union {
        _Float16 half;
        uint16_t bits;
    } h = {.half = (_Float16)x};
    switch (type) {
    case TYPE_F64:
    case TYPE_B64: return d.bits;
    case TYPE_F16:
    case TYPE_B16:
    case TYPE_PACKED16: return h.bits;
    default: return f.bits;
    }
}

/* A float has a point; an inline integer is decimal and sign-extends; a literal is hexadecimal and is the upper half
 * of an fp64. */
static bool parse_number(const char *text, OperandType type, Operand *operand) {
    char *end;
    uint64_t value;
    if (strchr(text, '.')) {
        double x = strtod(text, &end);
        /* The inline constant 1 / (2 pi) is printed rounded, but is the nearest value of its type. */
        if (x > 0.159 && x < 0.1592) x = 0.15915494309189532;
        value = float_constant(x, type);
    } else if (!strncmp(text, "0x", 2)) {
        value = strtoull(text, &end, 16);
        if (type == TYPE_F64 && value <= UINT32_MAX) value <<= 32;
    } else {
        value = (uint64_t)strtoll(text, &end, 10);
    }
    if (end == text || *end) return false;
    *operand = (Operand){.kind = OPERAND_CONSTANT, .registers = 1, .value = value};
    return true;
}

static bool parse_operand(char *text, OperandType type, Operand *operand) {
    bool negate = false, absolute = false, extend = false;
    size_t n = strlen(text);
    if (text[0] == '-' && !isdigit((unsigned char)text[1])) negate = true, text++, n--;
    if (n > 2 && text[0] == '|' && text[n - 1] == '|') absolute = true, text[n - 1] = 0, text++;
    if (!strncmp(text, "sext(", 5)) extend = true, text += 5, text[strlen(text) - 1] = 0;
    if (!strncmp(text, "lit(", 4)) text += 4, text[strlen(text) - 1] = 0; /* a literal that an inline constant could be */
    bool found = parse_registers(text, operand) || parse_hardware_register(text, operand);
    for (size_t i = 0; !found && i < sizeof special_names / sizeof *special_names; i++)
        if (!strcmp(text, special_names[i].name)) {
            *operand = (Operand){.kind = special_names[i].kind, .registers = special_names[i].registers, .index = special_names[i].index};
            found = true;
        }
    if (!found && !parse_number(text, type, operand)) return false;
    operand->negate = negate;
    operand->absolute = absolute;
    operand->extend_sign = extend;
    operand->type = (uint8_t)type;
    return true;
}

static OperandType format_type(char letter) {
    switch (letter) {
    case 'f': return TYPE_F32;
    case 'F': return TYPE_F64;
    case 'I':
    case 'D':
    case 'S': return TYPE_B64;
    case 'w': return TYPE_B16;
    case 'h': return TYPE_F16;
    case 'p': return TYPE_PACKED16;
    case 'P': return TYPE_PACKED32;
    case 'm':
    case 'M': return TYPE_MASK;
    default: return TYPE_B32;
    }
}
static bool type_is_pair(OperandType type) { return type == TYPE_B64 || type == TYPE_F64 || type == TYPE_PACKED32 || type == TYPE_MASK; }

/* -- Modifiers ----------------------------------------------------------------------------------------------------- */

typedef enum ModifierKind {
    MODIFIER_FLAG,
    MODIFIER_BYTE,
    MODIFIER_INT,
    MODIFIER_BITS,
    MODIFIER_SELECT,
    MODIFIER_DPP,
    MODIFIER_IGNORED
} ModifierKind;
#define FIELD(member) offsetof(Instruction, member)
static const struct {
    const char *name;
    uint8_t kind, dpp;
    size_t field;
} modifiers[] = {
    {"clamp", MODIFIER_FLAG, 0, FIELD(clamp)},
    {"gds", MODIFIER_FLAG, 0, FIELD(global_data_share)},
    {"offen", MODIFIER_FLAG, 0, FIELD(scalar_offset_enabled)},
    {"idxen", MODIFIER_FLAG, 0, FIELD(indexed)},
    {"lds", MODIFIER_FLAG, 0, FIELD(to_lds)},
    {"sc0", MODIFIER_FLAG, 0, FIELD(returns)},
    {"sc1", MODIFIER_IGNORED, 0, 0},
    {"nt", MODIFIER_IGNORED, 0, 0},
    {"glc", MODIFIER_FLAG, 0, FIELD(returns)},
    {"slc", MODIFIER_IGNORED, 0, 0},
    {"offset", MODIFIER_INT, 0, FIELD(offset)},
    {"offset0", MODIFIER_INT, 0, FIELD(offset0)},
    {"offset1", MODIFIER_INT, 0, FIELD(offset1)},
    {"op_sel", MODIFIER_BITS, 0, FIELD(op_sel)},
    {"op_sel_hi", MODIFIER_BITS, 0, FIELD(op_sel_hi)},
    {"neg_lo", MODIFIER_BITS, 0, FIELD(negate_low)},
    {"neg_hi", MODIFIER_BITS, 0, FIELD(negate_high)},
    {"row_mask", MODIFIER_BYTE, 0, FIELD(row_mask)},
    {"bank_mask", MODIFIER_BYTE, 0, FIELD(bank_mask)},
    {"cbsz", MODIFIER_BYTE, 0, FIELD(broadcast_size)},
    {"abid", MODIFIER_BYTE, 0, FIELD(broadcast_block)},
    {"blgp", MODIFIER_BYTE, 0, FIELD(block_pattern)},
    {"bitop3", MODIFIER_BYTE, 0, FIELD(truth_table)},
    {"dst_sel", MODIFIER_SELECT, 0, FIELD(destination_selection)},
    {"src0_sel", MODIFIER_SELECT, 0, FIELD(source[0].selection)},
    {"src1_sel", MODIFIER_SELECT, 0, FIELD(source[1].selection)},
    {"quad_perm", MODIFIER_DPP, DPP_QUAD_PERM, 0},
    {"row_shl", MODIFIER_DPP, DPP_ROW_SHL, 0},
    {"row_shr", MODIFIER_DPP, DPP_ROW_SHR, 0},
    {"row_ror", MODIFIER_DPP, DPP_ROW_ROR, 0},
    {"wave_shl", MODIFIER_DPP, DPP_WAVE_SHL, 0},
    {"wave_rol", MODIFIER_DPP, DPP_WAVE_ROL, 0},
    {"wave_shr", MODIFIER_DPP, DPP_WAVE_SHR, 0},
    {"wave_ror", MODIFIER_DPP, DPP_WAVE_ROR, 0},
    {"row_mirror", MODIFIER_DPP, DPP_ROW_MIRROR, 0},
    {"row_half_mirror", MODIFIER_DPP, DPP_ROW_HALF_MIRROR, 0},
    {"row_newbcast", MODIFIER_DPP, DPP_ROW_NEWBCAST, 0},
};

static uint8_t bit_list(const char *text) {
    uint8_t bits = 0;
    for (int i = 0; *text && *text != ']'; text++)
        if (isdigit((unsigned char)*text)) bits |= (uint8_t)((*text == '1') << i++);
    return bits;
}

static uint8_t selection(const char *text) {
    static const char *const names[] = {"DWORD", "BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) return (uint8_t)i;
    return SELECT_DWORD;
}

static int dpp_argument(uint8_t control, const char *value) {
    if (control != DPP_QUAD_PERM) return *value ? atoi(value) : 0;
    int argument = 0, i = 0;
    for (; *value && *value != ']'; value++)
        if (isdigit((unsigned char)*value)) argument |= (*value - '0') << (2 * i++);
    return argument;
}

static bool parse_odd_modifier(Instruction *in, const char *name, const char *value) {
    if (!strcmp(name, "bound_ctrl")) {
        in->bound_control = true;
    } else if (!strcmp(name, "mul")) {
        in->output_modifier = atoi(value) == 2 ? 1 : 2;
    } else if (!strcmp(name, "div")) {
        in->output_modifier = 3;
    } else if (!strcmp(name, "dst_unused")) {
        in->destination_preserve = !strcmp(value, "UNUSED_PRESERVE");
        in->destination_sign = !strcmp(value, "UNUSED_SEXT");
    } else if (!strcmp(name, "row_bcast")) {
        in->dpp = atoi(value) == 15 ? DPP_ROW_BCAST15 : DPP_ROW_BCAST31;
    } else {
        return false;
    }
    return true;
}

static bool parse_modifier(Instruction *in, char *text) {
    char *colon = strchr(text, ':');
    const char *value = colon ? colon + 1 : "";
    if (colon) *colon = 0;
    for (size_t i = 0; i < sizeof modifiers / sizeof *modifiers; i++) {
        if (strcmp(text, modifiers[i].name)) continue;
        char *field = (char *)in + modifiers[i].field;
        switch ((ModifierKind)modifiers[i].kind) {
        case MODIFIER_FLAG: *(bool *)field = true; break;
        case MODIFIER_BYTE: *(uint8_t *)field = (uint8_t)strtol(value, NULL, 0); break;
        case MODIFIER_INT: *(int32_t *)field = (int32_t)strtol(value, NULL, 0); break;
        case MODIFIER_BITS: *(uint8_t *)field = bit_list(value); break;
        case MODIFIER_SELECT: *(uint8_t *)field = selection(value); break;
        case MODIFIER_DPP: in->dpp = modifiers[i].dpp, in->dpp_argument = (uint8_t)dpp_argument(in->dpp, value); break;
        case MODIFIER_IGNORED: break;
        }
        return true;
    }
    return parse_odd_modifier(in, text, value);
}

/* -- One instruction ----------------------------------------------------------------------------------------------- */

/* Cuts off the piece before the next comma or space outside brackets; *separator is what ended it. */
static char *next_piece(char **rest, char *separator) {
    char *start = *rest;
    while (*start == ' ') start++;
    if (!*start) return NULL;
    int depth = 0;
    char *end = start;
    for (; *end && (depth || (*end != ',' && *end != ' ')); end++) depth += (*end == '[' || *end == '(') - (*end == ']' || *end == ')');
    *separator = *end;
    *rest = *end ? end + 1 : end;
    *end = 0;
    return start;
}

/* Gives vector instructions their destination and sources by role. */
static void assign_roles(Instruction *in) {
    bool result = true;
    int at = 0;
    for (const char *letter = in->operation->format; *letter && at <= in->operands; letter++) {
        if (*letter == ':') {
            result = false;
            continue;
        }
        if (at == in->operands) break;
        Operand operand = in->operand[at++];
        if (result) *(*letter == 'm' ? &in->mask_destination : &in->destination) = operand;
        else if (*letter == 'M') in->mask_source = operand;
        else if (in->sources < 3) operand.selection = in->source[in->sources].selection, in->source[in->sources++] = operand;
    }
    /* The list has the destination after the sources. */
    if (in->sources < 3) in->op_sel = (uint8_t)((in->op_sel & ((1 << in->sources) - 1)) | (in->op_sel >> in->sources & 1) << 3);
    bool packed = in->source[0].type == TYPE_PACKED16 || in->source[0].type == TYPE_PACKED32,
         changed = in->dpp || in->sdwa || in->clamp || in->output_modifier;
    for (int i = 0; i < in->sources; i++) changed |= in->source[i].negate || in->source[i].absolute;
    changed |= packed
                   ? in->op_sel || (in->op_sel_hi & ((1 << in->sources) - 1)) != (1 << in->sources) - 1 || in->negate_low || in->negate_high
                   : in->op_sel != 0;
    in->plain = !changed;
    in->uses_old_value =
        in->operation->flags & (OPERATION_ACCUMULATES | OPERATION_KEEPS_HIGH) || in->op_sel & 8 || in->destination_preserve;
}

static void strip_suffix(char *name, Instruction *in) {
    static const char *const suffixes[] = {"_e64_dpp", "_e32", "_e64", "_dpp", "_sdwa"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t m = strlen(suffixes[i]);
        if (n <= m || strcmp(name + n - m, suffixes[i])) continue;
        in->sdwa = !strcmp(suffixes[i], "_sdwa");
        name[n - m] = 0;
        return;
    }
}

static bool parse_operands(Instruction *in, char *rest) {
    const char *letter = in->operation->format;
    bool operand_next = true;
    char separator;
    for (char *piece; (piece = next_piece(&rest, &separator));) {
        if (!operand_next || strstr(piece, "offset:") == piece) {
            if (!parse_modifier(in, piece)) return false;
        } else {
            while (*letter == ':') letter++;
            OperandType type = format_type(*letter);
            bool sign_extend = *letter == 'k';
            if (*letter) letter++;
            if (in->operands == MAX_OPERANDS || !parse_operand(piece, type, &in->operand[in->operands])) return false;
            Operand *operand = &in->operand[in->operands++];
            if (sign_extend) operand->value = (uint64_t)(int16_t)operand->value;
            /* Constants and apertures are as wide as what takes them. */
            if (operand->kind == OPERAND_CONSTANT || operand->kind == OPERAND_SPECIAL) operand->registers = type_is_pair(type) ? 2 : 1;
        }
        operand_next = separator == ',';
    }
    return true;
}

static bool takes_text(const Operation *operation) { return strcmp(operation->format, ":") != 0; }

/* Reads `text` into `in`, whose address and words are set. `low_half` of the first dword holds the distance of a
 * branch, in dwords, or a swizzle's pattern. */
static bool parse_instruction(Instruction *in, const char *text, int32_t slot, int16_t low_half, bool ocp_fp8) {
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    char *rest = copy, separator;
    char *name = next_piece(&rest, &separator);
    if (!name) return false;
    strip_suffix(name, in);
    in->operation = strstr(text, " clamp") ? find_variant(name, "clamp") : NULL;
    bool saturating = in->operation;
    if (!in->operation && ocp_fp8) in->operation = find_variant(name, "ocp");
    if (!in->operation) in->operation = find_operation(name);
    if (!in->operation) return false;
    in->row_mask = in->bank_mask = 15;
    in->op_sel_hi = strncmp(name, "v_fma_mix", 9) ? 7 : 0;
    const char *roles = strchr(in->operation->format, ':');
    if (roles && roles[1] == 'b') {
        in->target = slot + in->words + low_half;
        if (roles != in->operation->format && !parse_operand(next_piece(&rest, &separator), TYPE_B64, &in->operand[0])) return false;
    } else if (takes_text(in->operation)) {
        if (!parse_operands(in, rest)) return false;
        if (name[0] == 'v') assign_roles(in);
        if (in->clamp && !saturating && in->operation->vector && !strchr("fFhpP", in->operation->format[0])) return false;
        if (saturating) in->clamp = false, in->plain = !in->sdwa && !in->dpp;
    }
    in->wait = (uint8_t)wait_kind(in);
    in->results = (uint8_t)instruction_results(in);
    waits_note_uses(in);
    in->vmcnt = wait_limit(text, "vmcnt(");
    in->lgkmcnt = wait_limit(text, "lgkmcnt(");
    if (in->operation->flags & OPERATION_PATTERN) in->offset = (uint16_t)low_half;
    in->execute = in->operation->execute;
    if (in->execute == vector_execute && vector_is_simple(in)) in->execute = vector_execute_simple;
    return true;
}

/* -- A range ------------------------------------------------------------------------------------------------------- */

static void decode_one(LLVMDisasmContextRef context, Program *program, uint32_t address, uint32_t end) {
    uint32_t slot = (address - program->text_address) / 4;
    uint8_t *bytes = program->image + address;
    char text[512];
    size_t length = LLVMDisasmInstruction(context, bytes, end - address, address, text, sizeof text);
    Instruction *in = &program->instruction[slot];
    *in = (Instruction){.address = address, .words = (uint8_t)(length ? length / 4 : 1)};
    char *start = text;
    while (isspace((unsigned char)*start)) start++;
    in->text = strdup(length ? start : "bytes that are no instruction");
    uint32_t first;
    memcpy(&first, bytes, sizeof first);
    if (!length || !in->text || !parse_instruction(in, start, (int32_t)slot, (int16_t)first, program->architecture->ocp_fp8))
        in->execute = execute_unimplemented;
}

bool decode_program(Program *program, uint32_t address, uint32_t bytes, char why[256]) {
    pthread_once(&operations.once, collect_operations);
    LLVMDisasmContextRef context =
        operations.row ? LLVMCreateDisasmCPU("amdgcn-amd-amdhsa", program->architecture->name, NULL, 0, NULL, NULL) : NULL;
    if (!context) {
        snprintf(why, 256, "LLVM's disassembler for %s cannot be made", program->architecture->name);
        return false;
    }
    uint32_t end = address + bytes;
    for (uint32_t at = address; at < end;) {
        uint32_t slot = (at - program->text_address) / 4;
        if (!program->instruction[slot].execute) decode_one(context, program, at, end);
        at += 4u * program->instruction[slot].words;
    }
    LLVMDisasmDispose(context);
    return true;
}
