/* Decompresses pages into a buffer of the declared size. The libraries zlib and zstd decompress
 * their own formats. Snappy and LZ4 blocks are decoded here: each decoder is a page of code, and
 * a library would be one more package to install. Owns nothing beyond a call. */
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include "base/memory.h"
#include "parquet/parquet_internal.h"

static const char malformed[] = "it is malformed, or longer than its page";

const char *parquet_unread_codec(int codec) {
    static const char *const unread[CODECS] = {
        [CODEC_LZO] = "lzo", [CODEC_BROTLI] = "brotli", [CODEC_LZ4_HADOOP] = "lz4 in Hadoop's frames"};
    return codec >= 0 && codec < CODECS ? unread[codec] : "an unknown codec";
}

/* A page that is being decoded. Decoders of blocks work on a local copy: otherwise the compiler
 * would assume that each byte they write may change this struct, and load its fields again. */
typedef struct Unpacking {
    const unsigned char *in, *in_end;
    unsigned char *start, *out, *out_end;
} Unpacking;
#define UNPACK_INLINE static inline __attribute__((always_inline))

/* -- Snappy and LZ4 -------------------------------------------------------------------------------------------------- */

UNPACK_INLINE bool copy_literal(Unpacking *u, size_t size) {
    size_t left = (size_t)(u->in_end - u->in), room = (size_t)(u->out_end - u->out);
    if (size > left || size > room) return false;
    if (size <= 16 && left >= 16 && room >= 16) memcpy(u->out, u->in, 16);
    else memcpy(u->out, u->in, size);
    u->in += size;
    u->out += size;
    return true;
}

/* Repeats `size` bytes from `distance` bytes back, which may overlap with those that it writes. */
UNPACK_INLINE bool copy_match(Unpacking *u, size_t distance, size_t size) {
    size_t room = (size_t)(u->out_end - u->out);
    if (size > room || distance == 0 || distance > (size_t)(u->out - u->start)) return false;
    const unsigned char *from = u->out - distance;
    unsigned char *to = u->out, *end = to + size;
    u->out = end;
    if (room - size < 16) {
        while (to < end) *to++ = *from++;
        return true;
    }
    for (; to < end && to - from < 8; to += to - from) /* doubles a period below 8 bytes */
        for (ptrdiff_t i = 0, period = to - from; i < period; i++) to[i] = from[i];
    for (; to < end; to += 8, from += 8) memcpy(to, from, 8);
    return true;
}

/* Reads a little-endian number of 1 to 4 bytes; false if they are not there. */
UNPACK_INLINE bool read_little(Unpacking *u, size_t bytes, size_t *value) {
    uint32_t word = 0;
    size_t left = (size_t)(u->in_end - u->in);
    if (left < bytes) return false;
    if (left >= sizeof word) memcpy(&word, u->in, sizeof word);
    else
        for (size_t i = 0; i < bytes; i++) word |= (uint32_t)u->in[i] << 8 * i;
    *value = word & UINT32_MAX >> (32 - 8 * bytes);
    u->in += bytes;
    return true;
}

/* Format: google/snappy, format_description.txt. */
static const char *unpack_snappy(Unpacking *whole) {
    Unpacking u = *whole;
    size_t value, declared = 0;
    bool good = true;
    for (int shift = 0, more = 1; more; shift += 7) {
        if (shift > 28 || !read_little(&u, 1, &value)) return malformed;
        declared |= (value & 0x7f) << shift;
        more = value & 0x80;
    }
    if (declared != (size_t)(u.out_end - u.out)) return "its length is not that of the page";
    while (good && u.in < u.in_end) {
        size_t tag = *u.in++, kind = tag & 3, size = (tag >> 2) + 1;
        if (kind == 0) good = size <= 60 ? copy_literal(&u, size) : read_little(&u, size - 60, &value) && copy_literal(&u, value + 1);
        else if (kind == 1) good = read_little(&u, 1, &value) && copy_match(&u, tag >> 5 << 8 | value, 4 + (size - 1) % 8);
        else good = read_little(&u, kind == 2 ? 2 : 4, &value) && copy_match(&u, value, size);
    }
    whole->out = u.out;
    return good ? NULL : malformed;
}

/* Adds the bytes that lengthen a count of 15. */
UNPACK_INLINE bool lengthen(Unpacking *u, size_t *size) {
    size_t byte = 255;
    for (bool more = *size == 15; more; more = byte == 255) {
        if (!read_little(u, 1, &byte)) return false;
        *size += byte;
    }
    return true;
}

/* Format: lz4/lz4, lz4_Block_format.md. */
static const char *unpack_lz4(Unpacking *whole) {
    Unpacking u = *whole;
    size_t distance;
    bool good = true;
    while (good && u.in < u.in_end) {
        size_t token = *u.in++, literal = token >> 4, match = token & 15;
        good = lengthen(&u, &literal) && copy_literal(&u, literal);
        if (!good || u.in == u.in_end) break; /* the last sequence has no match */
        good = read_little(&u, 2, &distance) && lengthen(&u, &match) && copy_match(&u, distance, match + 4);
    }
    whole->out = u.out;
    return good ? NULL : malformed;
}

/* -- Gzip and zstd --------------------------------------------------------------------------------------------------- */

/* Decodes gzip data of any number of members, and zlib data. */
static const char *unpack_gzip(Unpacking *u) {
    z_stream stream = {.next_in = (unsigned char *)u->in, .avail_in = (uInt)(u->in_end - u->in)};
    if (inflateInit2(&stream, 32 + MAX_WBITS) != Z_OK) memory_refused(1 << 16);
    int code = Z_OK;
    stream.next_out = u->out;
    stream.avail_out = (uInt)(u->out_end - u->out);
    while ((code == Z_OK || code == Z_STREAM_END) && stream.avail_in > 0) {
        if (code == Z_STREAM_END) inflateReset(&stream);
        code = inflate(&stream, Z_NO_FLUSH);
    }
    u->out = stream.next_out;
    inflateEnd(&stream);
    return code == Z_STREAM_END ? NULL : malformed;
}

static const char *unpack_zstd(Unpacking *u) {
    size_t made = ZSTD_decompress(u->out, (size_t)(u->out_end - u->out), u->in, (size_t)(u->in_end - u->in));
    if (ZSTD_isError(made)) return ZSTD_getErrorName(made);
    u->out += made;
    return NULL;
}

const char *parquet_unpack(int codec, const unsigned char *in, size_t size, unsigned char *out, size_t made) {
    static const char *(*const decoders[CODECS])(Unpacking *) = {
        [CODEC_SNAPPY] = unpack_snappy, [CODEC_GZIP] = unpack_gzip, [CODEC_ZSTD] = unpack_zstd, [CODEC_LZ4] = unpack_lz4};
    Unpacking u = {in, in + size, out, out, out + made};
    const char *fault = decoders[codec](&u);
    return fault ? fault : u.out == u.out_end ? NULL : "it is shorter than its page";
}
