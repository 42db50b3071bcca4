/* Buffer memory: accesses through a descriptor in four scalar registers, which bounds them; out of bounds, loads
 * give 0 and stores do nothing, as on hardware. What is within bounds must still lie in an allocation. The one swizzled
 * descriptor that is supported is that of scratch, which the launch gives a kernel for gfx90a; others, and structured
 * ones with index swizzle, stop the kernel. */
#include "hip.h"
#include "memory.h"

typedef struct Descriptor {
    uint64_t base;
    uint32_t stride, records;
    bool swizzled, scratch;
} Descriptor;

static Descriptor read_descriptor(const Wave *wave, const Operand *operand) {
    const uint32_t *word = &wave->scalar[operand->index];
    bool swizzled = word[1] >> 31;
    return (Descriptor){
        word[0] | (uint64_t)(word[1] & 0xffff) << 32, word[1] >> 16 & 0x3fff, word[2], swizzled, swizzled && word[3] & SCRATCH_ADDS_LANE};
}

/* In scratch the dwords of 64 lanes lie side by side: an offset that all lanes share counts the bytes of all of them. */
static uint64_t lane_address(const Descriptor *descriptor, uint32_t scalar, uint32_t index, uint32_t offset) {
    if (descriptor->scratch) return (descriptor->base + scalar) / LANES + offset;
    return descriptor->base + scalar + offset + (uint64_t)index * descriptor->stride;
}

static bool is_within(const Descriptor *descriptor, bool indexed, uint32_t index, uint32_t offset, unsigned bytes) {
    uint64_t stride = descriptor->stride;
    if (descriptor->scratch) return true;
    if (stride && indexed) return index < descriptor->records && offset + bytes <= stride;
    return offset + index * stride + bytes <= descriptor->records * (stride ? stride : 1);
}

/* Where the lanes of an access go. */
typedef struct Places {
    uint64_t address[LANES], inside; /* lanes within bounds */
    bool scratch;
} Places;

static bool find_places(Wave *wave, const Instruction *in, const Operand *operand, uint64_t exec, unsigned bytes, Places *to) {
    const Operand *vector = &operand[0];
    for (int i = 1; i < 3; i++)
        if (!undefined_check_scalar(wave, in, &operand[i], "an address")) return false;
    if (vector->kind == OPERAND_VECTOR && !undefined_check(wave, in, vector->index, vector->registers, ~0u, exec, "an address"))
        return false;
    if (in->to_lds && !undefined_check_m0(wave, in)) return false;
    Descriptor descriptor = read_descriptor(wave, &operand[1]);
    uint32_t scalar = (uint32_t)operand_scalar(wave, &operand[2]);
    if (descriptor.swizzled && !descriptor.scratch) {
        check_report(wave, in, -1, HIP_ERROR_NOT_SUPPORTED, "a swizzled buffer, which the emulator does not have");
        return false;
    }
    to->inside = 0;
    to->scratch = descriptor.scratch;
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t index = in->indexed ? wave->vector[vector->index][lane] : 0;
        uint32_t offset = (uint32_t)in->offset + (in->scalar_offset_enabled ? wave->vector[vector->index + in->indexed][lane] : 0);
        to->address[lane] = lane_address(&descriptor, scalar, index, offset);
        to->inside |= (uint64_t)is_within(&descriptor, in->indexed, index, offset, bytes) << lane;
    }
    return true;
}

/* The host's memory of a lane within bounds, or NULL after a report. */
static void *resolve(Wave *wave, const Instruction *in, const Places *places, int lane, unsigned bytes, bool write) {
    uint64_t address = places->address[lane];
    if (places->scratch) return check_scratch(wave, in, lane, (uint32_t)address, bytes);
    return check_global(wave, in, lane, address, bytes, write) ? (void *)address : NULL;
}

static void count(Wave *wave, const Places *places, uint64_t exec, unsigned bytes, LocalAccess access) {
    if (!places->scratch) note_global(wave, places->address, exec & places->inside, bytes, access);
}

static bool load_to_lds(Wave *wave, const Instruction *in, int lane, const void *from, unsigned bytes) {
    uint32_t to = wave->scalar[M0] + (uint32_t)in->offset + bytes * (uint32_t)lane;
    if (!check_local(wave, in, lane, to, bytes, LOCAL_WRITE)) return false;
    memcpy(wave->group->lds + to, from, bytes);
    undefined_overwrite(wave, to, bytes);
    return true;
}

static void execute_load(Wave *wave, const Instruction *in) {
    static const uint32_t zero[4];
    Places places;
    uint64_t exec = wave_exec(wave);
    unsigned bytes = (unsigned)in->operation->argument;
    Extension extension = (Extension)in->operation->argument2;
    int to = in->operand[0].index;
    if (!find_places(wave, in, &in->operand[in->to_lds ? 0 : 1], exec, bytes, &places)) return;
    count(wave, &places, exec, bytes, LOCAL_READ);
    if (!in->to_lds) undefined_loaded(wave, in, to, bytes, exec, extension);
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        const void *from = places.inside >> lane & 1 ? resolve(wave, in, &places, lane, bytes, false) : zero;
        if (!from || (in->to_lds && !load_to_lds(wave, in, lane, from, bytes))) return;
        if (in->to_lds) continue;
        load_lane(wave, to, lane, from, bytes, extension);
        if (places.scratch) undefined_load(wave, in, to, lane, from, bytes, extension);
    }
}

static void execute_store(Wave *wave, const Instruction *in) {
    Places places;
    uint64_t exec = wave_exec(wave);
    unsigned bytes = (unsigned)in->operation->argument;
    Extension extension = (Extension)in->operation->argument2;
    int from = in->operand[0].index;
    if (!find_places(wave, in, &in->operand[1], exec, bytes, &places)) return;
    uint64_t marked = places.scratch ? ~0ull : undefined_lanes(wave, from, (int)(bytes + 3) / 4);
    count(wave, &places, exec, bytes, LOCAL_WRITE);
    for (uint64_t left = exec & places.inside; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        void *to = resolve(wave, in, &places, lane, bytes, true);
        if (!to || (marked >> lane & 1 && !undefined_store(wave, in, from, lane, to, bytes, extension))) return;
        store_lane(wave, from, lane, to, bytes, extension);
    }
}

static const Operation rows[] = {
#define X(name, bytes, extension) {"buffer_load_" #name, "d:IIi", execute_load, NULL, NULL, OPERATION_MEMORY, bytes, extension},
    X(ubyte, 1, EXTEND_ZERO) X(sbyte, 1, EXTEND_SIGN) X(ushort, 2, EXTEND_ZERO) X(sshort, 2, EXTEND_SIGN) X(dword, 4, EXTEND_ZERO)
        X(dwordx2, 8, EXTEND_ZERO) X(dwordx3, 12, EXTEND_ZERO) X(dwordx4, 16, EXTEND_ZERO) X(short_d16, 2, EXTEND_LOW_HALF) X(
            short_d16_hi, 2, EXTEND_HIGH_HALF)
#undef X
#define X(name, bytes, extension) {"buffer_store_" #name, ":iIIi", execute_store, NULL, NULL, OPERATION_MEMORY, bytes, extension},
            X(byte, 1, EXTEND_ZERO) X(short, 2, EXTEND_ZERO) X(dword, 4, EXTEND_ZERO) X(dwordx2, 8, EXTEND_ZERO) X(dwordx3, 12, EXTEND_ZERO)
                X(dwordx4, 16, EXTEND_ZERO) X(byte_d16_hi, 1, EXTEND_HIGH_HALF) X(short_d16_hi, 2, EXTEND_HIGH_HALF)
#undef X
};
const OperationTable buffer_operations = {rows, sizeof rows / sizeof *rows};
