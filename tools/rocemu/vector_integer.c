/* Vector arithmetic on integers and bits: 32 and 64 bits, carries, packed 16-bit pairs, moves and choices. */
#include "lanes.h"

#define SIGN24(x) ((int32_t)((uint32_t)(x) << 8) >> 8)
#define LOW24(x) ((x) & 0xffffffu)

LANE_INLINE uint32_t field_unsigned(uint32_t x, uint32_t offset, uint32_t width) {
    return (x >> (offset & 31)) & ((width & 31) ? (1u << (width & 31)) - 1 : 0);
}
LANE_INLINE uint32_t field_signed(uint32_t x, uint32_t offset, uint32_t width) {
    uint32_t part = field_unsigned(x, offset, width), sign = (width & 31) ? 1u << ((width & 31) - 1) : 0;
    return (part ^ sign) - sign;
}
LANE_INLINE uint32_t shift_pair(uint32_t high, uint32_t low, uint32_t n) { return (uint32_t)(((uint64_t)high << 32 | low) >> n); }
LANE_INLINE uint32_t med3_unsigned(uint32_t a, uint32_t b, uint32_t c) { return umax(umin(a, b), umin(umax(a, b), c)); }
LANE_INLINE int32_t med3_signed(int32_t a, int32_t b, int32_t c) { return imax(imin(a, b), imin(imax(a, b), c)); }
LANE_INLINE uint32_t reverse_bits(uint32_t x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
LANE_INLINE uint32_t first_high(uint32_t x) { return x ? (uint32_t)__builtin_clz(x) : ~0u; }
LANE_INLINE uint32_t first_low(uint32_t x) { return x ? (uint32_t)__builtin_ctz(x) : ~0u; }
LANE_INLINE uint32_t first_sign(uint32_t x) { return first_high(x ^ (uint32_t)((int32_t)x >> 31)); }
/* Four bytes picked from the eight of high:low; the selectors above 7 give signs and constants. */
LANE_INLINE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selectors) {
    uint32_t result = 0;
    for (int i = 0; i < 32; i += 8) {
        uint32_t s = selectors >> i & 0xff, byte = (s & 4 ? high : low) >> 8 * (s & 3),
                 sign = (s & 2 ? high : low) >> (s & 1 ? 31 : 15) & 1,
                 constant = s < 12    ? -sign
                            : s == 12 ? 0
                                      : 0xff;
        result |= ((s < 8 ? byte : constant) & 0xff) << i;
    }
    return result;
}
LANE_INLINE uint32_t sad_bytes(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) {
        int32_t difference = (int32_t)(a >> i & 0xff) - (int32_t)(b >> i & 0xff);
        c += (uint32_t)(difference < 0 ? -difference : difference);
    }
    return c;
}
LANE_INLINE uint32_t dot4_unsigned(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}
LANE_INLINE uint32_t dot4_signed(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) c += (uint32_t)((int8_t)(a >> i) * (int8_t)(b >> i));
    return c;
}
LANE_INLINE uint32_t saturate_signed(int64_t x) { return (uint32_t)(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x); }
LANE_INLINE uint32_t saturate_unsigned(uint64_t x) { return x > UINT32_MAX ? UINT32_MAX : (uint32_t)x; }

/* How undefined bits get into the result (UndefinedRule); of "_BY_i", source i says which bits. */
#define RULE_WHOLE UNDEFINED_WHOLE
#define RULE_BITS UNDEFINED_BITS
#define RULE_BITS_BY_0 UNDEFINED_BITS_BY(1)
#define RULE_BITS_BY_1 UNDEFINED_BITS_BY(2)
#define RULE_BITS_BY_2 UNDEFINED_BITS_BY(4)
#define RULE_BITS_BY_ALL_2 UNDEFINED_BITS_BY_ALL(4)
#define RULE_BITS_BY_1_2 UNDEFINED_BITS_BY(6)
#define RULE_CARRY UNDEFINED_CARRY
#define RULE_CARRY_BY_1 UNDEFINED_CARRY_BY(2)
#define RULE_CARRY_BY_2 UNDEFINED_CARRY_BY(4)
#define RULE_MONOTONE UNDEFINED_MONOTONE
#define RULE_MONOTONE_SIGNED UNDEFINED_MONOTONE_SIGNED

/* Lists of NAME, rule, expression. */
#define UNSIGNED_1(X)                                                                                                            \
    X(v_mov_b32, BITS, a) X(v_not_b32, BITS, ~a) X(v_bfrev_b32, BITS, reverse_bits(a)) X(v_ffbh_u32, WHOLE, first_high(a)) X(v_ffbl_b32, WHOLE, first_low(a))    \
    X(v_ffbh_i32, WHOLE, first_sign(a)) X(v_accvgpr_read_b32, BITS, a) X(v_accvgpr_write_b32, BITS, a) X(v_accvgpr_mov_b32, BITS, a)
#define UNSIGNED_2(X)                                                                                                            \
    X(v_add_u32, CARRY, a + b) X(v_sub_u32, CARRY, a - b) X(v_subrev_u32, CARRY, b - a) X(v_add_i32, CARRY, a + b) X(v_sub_i32, CARRY, a - b)                       \
    X(v_and_b32, BITS, a & b) X(v_or_b32, BITS, a | b) X(v_xor_b32, BITS, a ^ b) X(v_xnor_b32, BITS, ~(a ^ b))                                           \
    X(v_lshlrev_b32, BITS_BY_0, b << (a & 31)) X(v_lshrrev_b32, BITS_BY_0, b >> (a & 31)) X(v_ashrrev_i32, BITS_BY_0, (uint32_t)((int32_t)b >> (a & 31)))         \
    X(v_mul_lo_u32, CARRY, a * b) X(v_mul_hi_u32, MONOTONE, (uint64_t)a * b >> 32)                                                                \
    X(v_mul_hi_i32, WHOLE, (uint64_t)((int64_t)(int32_t)a * (int32_t)b) >> 32) X(v_mul_u32_u24, CARRY, LOW24(a) * LOW24(b))                    \
    X(v_mul_i32_i24, CARRY, (uint64_t)((int64_t)SIGN24(a) * SIGN24(b))) X(v_mul_hi_u32_u24, MONOTONE, (uint64_t)LOW24(a) * LOW24(b) >> 32)        \
    X(v_mul_hi_i32_i24, WHOLE, (uint64_t)((int64_t)SIGN24(a) * SIGN24(b) >> 32))                                                        \
    X(v_min_u32, MONOTONE, umin(a, b)) X(v_max_u32, MONOTONE, umax(a, b)) X(v_min_i32, MONOTONE_SIGNED, imin((int32_t)a, (int32_t)b))                                 \
    X(v_max_i32, MONOTONE_SIGNED, imax((int32_t)a, (int32_t)b)) X(v_bcnt_u32_b32, MONOTONE, (uint32_t)__builtin_popcount(a) + b)                            \
    X(v_bfm_b32, WHOLE, ((1u << (a & 31)) - 1) << (b & 31))
#define UNSIGNED_3(X)                                                                                                            \
    X(v_bfe_u32, BITS_BY_1_2, field_unsigned(a, b, c)) X(v_bfe_i32, BITS_BY_1_2, field_signed(a, b, c)) X(v_bfi_b32, BITS, (a & b) | (~a & c))                   \
    X(v_alignbit_b32, BITS_BY_2, shift_pair(a, b, c & 31)) X(v_alignbyte_b32, BITS_BY_2, shift_pair(a, b, 8 * (c & 3)))                                \
    X(v_perm_b32, BITS_BY_ALL_2, permute_bytes(a, b, c)) X(v_add3_u32, CARRY, a + b + c) X(v_lshl_add_u32, CARRY_BY_1, (a << (b & 31)) + c)                        \
    X(v_add_lshl_u32, CARRY_BY_2, (a + b) << (c & 31)) X(v_lshl_or_b32, BITS_BY_1, (a << (b & 31)) | c) X(v_and_or_b32, BITS, (a & b) | c)                    \
    X(v_or3_b32, BITS, a | b | c) X(v_xad_u32, CARRY, (a ^ b) + c) X(v_mad_u32_u24, CARRY, LOW24(a) * LOW24(b) + c)                                  \
    X(v_mad_i32_i24, CARRY, (uint32_t)((int64_t)SIGN24(a) * SIGN24(b)) + c) X(v_min3_u32, MONOTONE, umin(umin(a, b), c))                          \
    X(v_max3_u32, MONOTONE, umax(umax(a, b), c)) X(v_med3_u32, MONOTONE, med3_unsigned(a, b, c))                                                     \
    X(v_min3_i32, MONOTONE_SIGNED, imin(imin((int32_t)a, (int32_t)b), (int32_t)c)) X(v_max3_i32, MONOTONE_SIGNED, imax(imax((int32_t)a, (int32_t)b), (int32_t)c))  \
    X(v_med3_i32, MONOTONE_SIGNED, med3_signed((int32_t)a, (int32_t)b, (int32_t)c)) X(v_sad_u8, WHOLE, sad_bytes(a, b, c))                               \
    X(v_sad_u32, WHOLE, (a > b ? a - b : b - a) + c) X(v_dot4_u32_u8, WHOLE, dot4_unsigned(a, b, c)) X(v_dot4_i32_i8, WHOLE, dot4_signed(a, b, c))
/* With `clamp`, sums saturate. */
#define SATURATING(X)                                                                                                            \
    X(v_add_u32, saturate_unsigned((uint64_t)a + b)) X(v_sub_u32, a > b ? a - b : 0) X(v_subrev_u32, b > a ? b - a : 0)          \
    X(v_add_i32, saturate_signed((int64_t)(int32_t)a + (int32_t)b)) X(v_sub_i32, saturate_signed((int64_t)(int32_t)a - (int32_t)b))
#define WIDE_SHIFTS(X)                                                                                                           \
    X(v_lshlrev_b64, b << (a & 63)) X(v_lshrrev_b64, b >> (a & 63)) X(v_ashrrev_i64, (uint64_t)((int64_t)b >> (a & 63)))
/* Results with carry: `wide` is the value of 33 bits, or its borrow. */
#define CARRY(X)                                                                                                                 \
    X(v_add_co_u32, "dm:ii", (uint64_t)a + b) X(v_sub_co_u32, "dm:ii", (uint64_t)a - b) X(v_subrev_co_u32, "dm:ii", (uint64_t)b - a) \
    X(v_addc_co_u32, "dm:iiM", (uint64_t)a + b + carry) X(v_subb_co_u32, "dm:iiM", (uint64_t)a - b - carry)                      \
    X(v_subbrev_co_u32, "dm:iiM", (uint64_t)b - a - carry)
/* Packed pairs of 16 bits. */
#define PACKED_UNSIGNED(X)                                                                                                       \
    X(v_pk_add_u16, a + b) X(v_pk_sub_u16, a - b) X(v_pk_add_i16, a + b) X(v_pk_sub_i16, a - b) X(v_pk_mul_lo_u16, (uint32_t)a * b) \
    X(v_pk_lshlrev_b16, b << (a & 15)) X(v_pk_lshrrev_b16, b >> (a & 15)) X(v_pk_ashrrev_i16, (int16_t)b >> (a & 15))            \
    X(v_pk_min_u16, umin(a, b)) X(v_pk_max_u16, umax(a, b)) X(v_pk_min_i16, imin((int16_t)a, (int16_t)b))                        \
    X(v_pk_max_i16, imax((int16_t)a, (int16_t)b))
#define SHORT_2(X)                                                                                                               \
    X(v_add_u16, CARRY, a + b) X(v_sub_u16, CARRY, a - b) X(v_subrev_u16, CARRY, b - a) X(v_mul_lo_u16, CARRY, a * b) X(v_lshlrev_b16, BITS_BY_0, b << (a & 15))        \
    X(v_lshrrev_b16, BITS_BY_0, (b & 0xffff) >> (a & 15)) X(v_ashrrev_i16, BITS_BY_0, (uint32_t)((int16_t)b >> (a & 15)))                              \
    X(v_min_u16, MONOTONE, umin(a & 0xffff, b & 0xffff)) X(v_max_u16, MONOTONE, umax(a & 0xffff, b & 0xffff))                                        \
    X(v_min_i16, MONOTONE_SIGNED, imin((int16_t)a, (int16_t)b)) X(v_max_i16, MONOTONE_SIGNED, imax((int16_t)a, (int16_t)b))

#define X(name, rule, expression) CORE1(name, uint32_t, 32, uint32_t, 32, expression)
UNSIGNED_1(X)
#undef X
#define X(name, rule, expression) CORE2(name, uint32_t, 32, uint32_t, 32, uint32_t, 32, expression)
UNSIGNED_2(X)
#undef X
#define X(name, rule, expression) CORE3(name, uint32_t, 32, uint32_t, 32, uint32_t, 32, uint32_t, 32, expression)
UNSIGNED_3(X)
#undef X
#define X(name, expression) CORE2(name##_clamp, uint32_t, 32, uint32_t, 32, uint32_t, 32, expression)
SATURATING(X)
#undef X
#define X(name, expression) CORE2(name, uint64_t, 64, uint32_t, 32, uint64_t, 64, expression)
WIDE_SHIFTS(X)
#undef X
#define X(name, rule, expression) CORE2(name, uint32_t, 32, uint32_t, 32, uint32_t, 32, (expression) & 0xffff)
SHORT_2(X)
#undef X
#define X(name, format, expression)                                              \
    CORE core_##name(VectorCall *call) {                                         \
        uint8_t out[LANES];                                                      \
        uint32_t *d = call->d, in[LANES];                                        \
        const uint32_t *pa = call->s[0], *pb = call->s[1];                       \
        mask_expand(call->mask, in);                                             \
        FOR_LANES {                                                              \
            uint64_t a = pa[lane], b = pb[lane], carry = in[lane] & 1;           \
            uint64_t wide = expression;                                          \
            (void)carry;                                                         \
            d[lane] = (uint32_t)wide;                                            \
            out[lane] = wide >> 32 & 1;                                          \
        }                                                                        \
        call->result = mask_pack(out);                                           \
    }
CARRY(X)
#undef X
#define X(name, expression)                                                                 \
    LANE_INLINE uint16_t half_##name(uint16_t a, uint16_t b) { return (uint16_t)(expression); } \
    CORE2(name, uint32_t, 32, uint32_t, 32, uint32_t, 32, half_##name((uint16_t)a, (uint16_t)b) | (uint32_t)half_##name(a >> 16, b >> 16) << 16)
PACKED_UNSIGNED(X)
#undef X
LANE_INLINE uint32_t pair_mad(uint32_t a, uint32_t b, uint32_t c) {
    return (((a >> 16) * (b >> 16) + (c >> 16)) << 16) | ((a * b + c) & 0xffff);
}
CORE3(v_pk_mad_u16, uint32_t, 32, uint32_t, 32, uint32_t, 32, uint32_t, 32, pair_mad(a, b, c))
CORE3(v_mad_u16, uint32_t, 32, uint32_t, 32, uint32_t, 32, uint32_t, 32, (a * b + c) & 0xffff)
CORE3(v_max3_u16, uint32_t, 32, uint32_t, 32, uint32_t, 32, uint32_t, 32, umax(umax(a & 0xffff, b & 0xffff), c & 0xffff))
CORE3(v_mad_u32_u16, uint32_t, 32, uint32_t, 32, uint32_t, 32, uint32_t, 32, (a & 0xffff) * (b & 0xffff) + c)
CORE3(v_mad_i32_i16, uint32_t, 32, uint32_t, 32, uint32_t, 32, uint32_t, 32, (uint32_t)((int16_t)a * (int16_t)b) + c)
/* Bit 4 a + 2 b + c of the truth table, for each bit of the sources. */
CORE core_v_bitop3_b32(VectorCall *call) {
    uint32_t *d = call->d, row[8];
    const uint32_t *pa = call->s[0], *pb = call->s[1], *pc = call->s[2];
    for (int i = 0; i < 8; i++) row[i] = -(uint32_t)(call->mask >> i & 1);
    FOR_LANES {
        uint32_t a = pa[lane], b = pb[lane], c = pc[lane];
        uint32_t without_a = (~b & ((~c & row[0]) | (c & row[1]))) | (b & ((~c & row[2]) | (c & row[3])));
        uint32_t with_a = (~b & ((~c & row[4]) | (c & row[5]))) | (b & ((~c & row[6]) | (c & row[7])));
        d[lane] = (~a & without_a) | (a & with_a);
    }
}
CORE1(v_mov_b64, uint64_t, 64, uint64_t, 64, a)
CORE3(v_lshl_add_u64, uint64_t, 64, uint64_t, 64, uint32_t, 32, uint64_t, 64, (a << (b & 63)) + c)
CORE2(v_pack_b32_f16, uint32_t, 32, uint32_t, 32, uint32_t, 32, (a & 0xffff) | b << 16)

CORE core_v_cndmask_b32(VectorCall *call) {
    uint32_t *d = call->d, mask[LANES];
    const uint32_t *pa = call->s[0], *pb = call->s[1];
    mask_expand(call->mask, mask);
    FOR_LANES d[lane] = (pb[lane] & mask[lane]) | (pa[lane] & ~mask[lane]);
}
/* Bits of the lane mask a below the lane, in its lower or upper half, added to b. */
static void core_v_mbcnt_lo_u32_b32(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t below = lane < 32 ? (1u << lane) - 1 : ~0u;
        call->d[lane] = (uint32_t)__builtin_popcount(call->s[0][lane] & below) + call->s[1][lane];
    }
}
static void core_v_mbcnt_hi_u32_b32(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t below = lane < 32 ? 0 : (1u << (lane - 32)) - 1;
        call->d[lane] = (uint32_t)__builtin_popcount(call->s[0][lane] & below) + call->s[1][lane];
    }
}
CORE core_v_mad_u64_u32(VectorCall *call) {
    uint8_t carry[LANES];
    uint32_t *d = call->d;
    const uint32_t *pa = call->s[0], *pb = call->s[1], *pc = call->s[2];
    FOR_LANES {
        uint64_t product = (uint64_t)pa[lane] * pb[lane], sum = product + pair_load(pc, lane);
        carry[lane] = sum < product;
        pair_store(d, lane, sum);
    }
    call->result = mask_pack(carry);
}
static void core_v_mad_i64_i32(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        int64_t product = (int64_t)(int32_t)call->s[0][lane] * (int32_t)call->s[1][lane], sum;
        bool overflow = __builtin_add_overflow(product, (int64_t)pair_load(call->s[2], lane), &sum);
        call->result |= (uint64_t)overflow << lane;
        pair_store(call->d, lane, (uint64_t)sum);
    }
}

static const Operation rows[] = {
#define X(name, rule, expression) {#name, "d:i", vector_execute, core_##name, NULL, 0, 0, 0, RULE_##rule},
    UNSIGNED_1(X)
#undef X
#define X(name, rule, expression) {#name, "d:ii", vector_execute, core_##name, NULL, 0, 0, 0, RULE_##rule},
        UNSIGNED_2(X)
#undef X
#define X(name, rule, expression) {#name, "d:iii", vector_execute, core_##name, NULL, 0, 0, 0, RULE_##rule},
            UNSIGNED_3(X)
#undef X
#define X(name, expression) {#name " clamp", "d:ii", vector_execute, core_##name##_clamp, NULL, 0, 0, 0},
                SATURATING(X)
#undef X
#define X(name, expression) {#name, "D:iI", vector_execute, core_##name, NULL, 0, 0, 0, RULE_BITS_BY_0},
                    WIDE_SHIFTS(X)
#undef X
#define X(name, format, expression) {#name, format, vector_execute, core_##name, NULL, 0, 0, 0, RULE_CARRY},
                        CARRY(X)
#undef X
#define X(name, expression) {#name, "p:pp", vector_execute, core_##name, NULL, 0, 0, 0},
                            PACKED_UNSIGNED(X)
#undef X
#define X(name, rule, expression) {#name, "w:ww", vector_execute, core_##name, NULL, 0, 0, 0, RULE_##rule},
                                SHORT_2(X)
#undef X
                                    {"v_pk_mad_u16", "p:ppp", vector_execute, core_v_pk_mad_u16, NULL, 0, 0, 0},
    {"v_pk_mad_i16", "p:ppp", vector_execute, core_v_pk_mad_u16, NULL, 0, 0, 0},
    {"v_mad_u16", "w:www", vector_execute, core_v_mad_u16, NULL, OPERATION_KEEPS_HIGH, 0, 0, RULE_CARRY},
    {"v_mad_i16", "w:www", vector_execute, core_v_mad_u16, NULL, OPERATION_KEEPS_HIGH, 0, 0, RULE_CARRY},
    {"v_max3_u16", "w:www", vector_execute, core_v_max3_u16, NULL, OPERATION_KEEPS_HIGH, 0, 0, RULE_MONOTONE},
    {"v_mad_u32_u16", "d:wwi", vector_execute, core_v_mad_u32_u16, NULL, 0, 0, 0, RULE_CARRY},
    {"v_mad_i32_i16", "d:wwi", vector_execute, core_v_mad_i32_i16, NULL, 0, 0, 0, RULE_CARRY},
    {"v_bitop3_b32", "d:iii", vector_execute, core_v_bitop3_b32, NULL, 0, 0, 0, RULE_BITS},
    {"v_bitop3_b16", "w:www", vector_execute, core_v_bitop3_b32, NULL, OPERATION_KEEPS_HIGH, 0, 0, RULE_BITS},
    {"v_mov_b64", "D:I", vector_execute, core_v_mov_b64, NULL, 0, 0, 0, RULE_BITS},
    {"v_lshl_add_u64", "D:IiI", vector_execute, core_v_lshl_add_u64, NULL, 0, 0, 0, RULE_CARRY_BY_1},
    {"v_pack_b32_f16", "d:hh", vector_execute, core_v_pack_b32_f16, NULL, 0, 0, 0, RULE_BITS},
    {"v_cndmask_b32", "d:iiM", vector_execute, core_v_cndmask_b32, NULL, 0, 0, 0, RULE_BITS},
    {"v_mbcnt_lo_u32_b32", "d:ii", vector_execute, core_v_mbcnt_lo_u32_b32, NULL, 0, 0, 0, RULE_MONOTONE},
    {"v_mbcnt_hi_u32_b32", "d:ii", vector_execute, core_v_mbcnt_hi_u32_b32, NULL, 0, 0, 0, RULE_MONOTONE},
    {"v_mad_u64_u32", "Dm:iiI", vector_execute, core_v_mad_u64_u32, NULL, 0, 0, 0, RULE_CARRY},
    {"v_mad_i64_i32", "Dm:iiI", vector_execute, core_v_mad_i64_i32, NULL, 0, 0, 0, RULE_CARRY},
};
const OperationTable vector_integer_operations = {rows, sizeof rows / sizeof *rows};
