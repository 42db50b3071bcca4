/* Decompresses pages into a buffer of the declared size. zlib and zstd do their formats; snappy and
 * LZ4 blocks are decoded here, because each is a page of code and a library would be one more to
 * install. Owns nothing beyond a call. */
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include "base/math.h"
#include "base/memory.h"
#include "parquet/parquet_internal.h"

static const char cut_off[] = "the data is cut off", too_long[] = "the data is longer than its page",
                  too_short[] = "the data is shorter than its page";

const char *parquet_unread_codec(int codec) {
    static const char *const unread[CODECS] = {
        [CODEC_LZO] = "lzo", [CODEC_BROTLI] = "brotli", [CODEC_LZ4_HADOOP] = "lz4 in Hadoop's frames"};
    return codec >= 0 && codec < CODECS ? unread[codec] : "an unknown codec";
}

/* -- Snappy and LZ4 -------------------------------------------------------------------------------------------------- */

/* A block that is decoded. Copies of 16 bytes may write behind `out`, never behind `out_end`. */
typedef struct Unpacking {
    const unsigned char *in, *in_end;
    unsigned char *start, *out, *out_end;
} Unpacking;

static const char *copy_literal(Unpacking *u, size_t size) {
    size_t left = (size_t)(u->in_end - u->in), room = (size_t)(u->out_end - u->out);
    if (size > left) return cut_off;
    if (size > room) return too_long;
    if (size <= 16 && left >= 16 && room >= 16) memcpy(u->out, u->in, 16);
    else memcpy(u->out, u->in, size);
    u->in += size;
    u->out += size;
    return NULL;
}

/* Repeats `size` bytes from `distance` bytes back, which may overlap with those that it writes. */
static const char *copy_match(Unpacking *u, size_t distance, size_t size) {
    size_t room = (size_t)(u->out_end - u->out);
    if (distance == 0 || distance > (size_t)(u->out - u->start)) return "it refers to bytes before its start";
    if (size > room) return too_long;
    const unsigned char *from = u->out - distance;
    unsigned char *to = u->out, *end = to + size;
    u->out = end;
    size_t step = distance >= 16 ? 16 : 8;
    if (distance < 8 || room - size < step) {
        while (to < end) *to++ = *from++;
        return NULL;
    }
    for (; to < end; to += step, from += step) {
        if (step == 16) memcpy(to, from, 16);
        else memcpy(to, from, 8);
    }
    return NULL;
}

/* Reads a little-endian number of 1 to 4 bytes; false if they are not there. */
static bool read_little(Unpacking *u, size_t bytes, size_t *value) {
    *value = 0;
    if ((size_t)(u->in_end - u->in) < bytes) return false;
    for (size_t i = 0; i < bytes; i++) *value |= (size_t)u->in[i] << 8 * i;
    u->in += bytes;
    return true;
}

/* Format: google/snappy, format_description.txt. */
static const char *unpack_snappy(Unpacking *u) {
    uint64_t declared = 0;
    size_t value;
    for (int shift = 0, more = 1; more; shift += 7) {
        if (shift > 28 || !read_little(u, 1, &value)) return cut_off;
        declared |= (uint64_t)(value & 0x7f) << shift;
        more = value & 0x80;
    }
    if (declared != (uint64_t)(u->out_end - u->out)) return "its length is not that of the page";
    const char *fault = NULL;
    while (!fault && u->in < u->in_end) {
        size_t tag = *u->in++, kind = tag & 3, size = (tag >> 2) + 1;
        if (kind == 0) {
            if (size > 60 && !read_little(u, size - 60, &value)) return cut_off;
            fault = copy_literal(u, size > 60 ? value + 1 : size);
        } else {
            if (!read_little(u, kind == 3 ? 4 : kind, &value)) return cut_off;
            fault = kind == 1 ? copy_match(u, tag >> 5 << 8 | value, 4 + (tag >> 2 & 7)) : copy_match(u, value, size);
        }
    }
    return fault;
}

/* Adds the bytes that lengthen a count of 15. */
static bool lengthen(Unpacking *u, size_t *size) {
    size_t byte = 255;
    for (bool more = *size == 15; more; more = byte == 255) {
        if (!read_little(u, 1, &byte)) return false;
        *size += byte;
    }
    return true;
}

/* Format: lz4/lz4, lz4_Block_format.md. */
static const char *unpack_lz4(Unpacking *u) {
    const char *fault = NULL;
    size_t distance;
    while (!fault && u->in < u->in_end) {
        size_t token = *u->in++, literal = token >> 4, match = token & 15;
        if (!lengthen(u, &literal)) return cut_off;
        fault = copy_literal(u, literal);
        if (fault || u->in == u->in_end) break; /* the last sequence has no match */
        if (!read_little(u, 2, &distance) || !lengthen(u, &match)) return cut_off;
        fault = copy_match(u, distance, match + 4);
    }
    return fault;
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
    return code == Z_STREAM_END                           ? NULL
           : code == Z_BUF_ERROR && stream.avail_out == 0 ? too_long
           : code == Z_DATA_ERROR                         ? "it is not deflate data"
                                                          : cut_off;
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
    return fault ? fault : u.out == u.out_end ? NULL : too_short;
}
