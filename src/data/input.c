/* Reads the bytes of an input and decompresses them: gzip, zlib, zstd, xz and lzma are recognized
 * by the first bytes. An Input owns one open file or object, or standard input, and the decoder's
 * state, whose memory is bounded whatever the data requests. record_reader.c reads it once from its
 * start. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include "base/math.h"
#include "base/memory.h"
#include "data/pack_internal.h"

/* The memory limit of a decoder. The formats allow windows of 2 GiB and more (zstd --long=31); xz
 * -9 needs 64 MiB. Memory that the data requests and does not use is never touched. */
static const uint64_t MOST_MEMORY = (uint64_t)2 << 30;
enum { PACKED_BYTES = INPUT_START, MOST_WINDOW = 31 /* its binary logarithm */ };

/* Decodes from the packed bytes to `out`; *made may stay 0. `inside` is false between members of
 * the file. Returns NULL, or why the data is damaged. */
typedef const char *Decode(Input *input, unsigned char *out, size_t size, size_t *made);
typedef struct Codec {
    const char *name;
    bool (*is)(const unsigned char *bytes, size_t size); /* whether data begins like this; NULL: not compressed */
    Decode *decode;
} Codec;

struct Input {
    const char *name; /* of the file, for messages */
    Object *object;   /* NULL: standard input */
    int64_t position; /* bytes read from the file */
    bool expected;    /* object_expect was called */
    unsigned char *packed;
    size_t packed_at, packed_end;
    const Codec *codec;
    bool inside, damaged;
    z_stream gzip;
    ZSTD_DStream *zstd;
    lzma_stream xz;
};

/* -- Codecs ------------------------------------------------------------------------------------------------------ */

static const char *decode_plain(Input *input, unsigned char *out, size_t size, size_t *made) {
    *made = (size_t)int_min((int64_t)size, (int64_t)(input->packed_end - input->packed_at));
    memcpy(out, input->packed + input->packed_at, *made);
    input->packed_at += *made;
    return NULL;
}

/* Decodes gzip and zlib data; zlib detects which it is. */
static const char *decode_deflate(Input *input, unsigned char *out, size_t size, size_t *made) {
    enum { ANY_WINDOW = 32 + MAX_WBITS };
    z_stream *stream = &input->gzip;
    if (!input->inside && (stream->state ? inflateReset(stream) : inflateInit2(stream, ANY_WINDOW)) != Z_OK) memory_refused(1 << 16);
    input->inside = true;
    stream->next_in = input->packed + input->packed_at;
    stream->avail_in = (uInt)(input->packed_end - input->packed_at);
    stream->next_out = out;
    stream->avail_out = (uInt)int_min((int64_t)size, 1 << 30);
    size_t room = stream->avail_out;
    int code = inflate(stream, Z_NO_FLUSH);
    *made = room - stream->avail_out;
    input->packed_at = input->packed_end - stream->avail_in;
    if (code == Z_STREAM_END) input->inside = false;
    if (code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR) return NULL;
    return stream->msg ? stream->msg : "not deflate data";
}

static const char *decode_zstd(Input *input, unsigned char *out, size_t size, size_t *made) {
    if (!input->zstd && !(input->zstd = ZSTD_createDStream())) memory_refused(1 << 20);
    if (!input->inside) ZSTD_DCtx_setParameter(input->zstd, ZSTD_d_windowLogMax, MOST_WINDOW);
    ZSTD_inBuffer in = {input->packed, input->packed_end, input->packed_at};
    ZSTD_outBuffer to = {out, size, 0};
    size_t code = ZSTD_decompressStream(input->zstd, &to, &in);
    *made = to.pos;
    input->packed_at = in.pos;
    input->inside = code != 0;
    return ZSTD_isError(code) ? ZSTD_getErrorName(code) : NULL;
}

static const char *decode_xz(Input *input, unsigned char *out, size_t size, size_t *made) {
    lzma_stream *stream = &input->xz;
    if (!input->inside && lzma_auto_decoder(stream, MOST_MEMORY, 0) != LZMA_OK) memory_refused(1 << 16);
    input->inside = true;
    stream->next_in = input->packed + input->packed_at;
    stream->avail_in = input->packed_end - input->packed_at;
    stream->next_out = out;
    stream->avail_out = size;
    lzma_ret code = lzma_code(stream, LZMA_RUN);
    *made = size - stream->avail_out;
    input->packed_at = input->packed_end - stream->avail_in;
    if (code == LZMA_STREAM_END) input->inside = false;
    if (code == LZMA_OK || code == LZMA_STREAM_END || code == LZMA_BUF_ERROR) return NULL;
    return code == LZMA_MEMLIMIT_ERROR ? "decompressing needs more than 2 GiB of memory" : "not xz or lzma data";
}

static bool is_gzip(const unsigned char *bytes, size_t size) { return size >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b; }

/* Returns whether the data is zlib. Text may begin with the same two bytes ("x^"), so the data must
 * also inflate. */
static bool is_zlib(const unsigned char *bytes, size_t size) {
    enum { ENOUGH = 64, ROOM = 4096 };
    unsigned char out[ROOM];
    z_stream stream = {.next_in = (unsigned char *)bytes, .avail_in = (uInt)size, .next_out = out, .avail_out = ROOM};
    if (size < 2 || bytes[0] != 0x78 || (bytes[0] << 8 | bytes[1]) % 31 || inflateInit(&stream) != Z_OK) return false;
    int code = inflate(&stream, Z_SYNC_FLUSH);
    bool good = code == Z_STREAM_END || ((code == Z_OK || code == Z_BUF_ERROR) && ROOM - stream.avail_out >= ENOUGH);
    inflateEnd(&stream);
    return good;
}

/* Returns whether the data begins with a frame or a skippable frame; pzstd writes a skippable frame
 * before each frame. */
static bool is_zstd(const unsigned char *bytes, size_t size) {
    return size >= 4 && (!memcmp(bytes, "\x28\xb5\x2f\xfd", 4) || (bytes[0] >> 4 == 5 && !memcmp(bytes + 1, "\x2a\x4d\x18", 3)));
}

static bool is_xz(const unsigned char *bytes, size_t size) { return size >= 6 && !memcmp(bytes, "\3757zXZ", 6); }

/* Checks for the properties of lzma -1 to -9, and a dictionary of at least 64 KiB. */
static bool is_lzma(const unsigned char *bytes, size_t size) { return size >= 13 && !memcmp(bytes, "\x5d\0", 3); }

static const Codec codecs[] = {
    {"gzip", is_gzip, decode_deflate},
    {"zlib", is_zlib, decode_deflate},
    {"zstd", is_zstd, decode_zstd},
    {"xz", is_xz, decode_xz},
    {"lzma", is_lzma, decode_xz},
    {"", NULL, decode_plain},
};

/* -- Reading ----------------------------------------------------------------------------------------------------- */

/* Reads the next bytes of a file. The second read announces that all the rest will be read. */
static bool read_object(Input *input, unsigned char *to, int64_t count, Error *error) {
    if (input->position > 0 && !input->expected)
        object_expect(input->object, &(ObjectRange){input->position, object_bytes(input->object)}, 1, 1);
    input->expected = input->expected || input->position > 0;
    return object_read(input->object, to, count, input->position, error);
}

/* Appends more packed bytes; none at the end of the file. */
static bool input_fill(Input *input, Error *error) {
    memmove(input->packed, input->packed + input->packed_at, input->packed_end - input->packed_at);
    input->packed_end -= input->packed_at;
    input->packed_at = 0;
    unsigned char *to = input->packed + input->packed_end;
    size_t room = PACKED_BYTES - input->packed_end, count;
    if (input->object) {
        count = (size_t)int_min((int64_t)room, object_bytes(input->object) - input->position);
        if (count > 0 && !read_object(input, to, (int64_t)count, error)) return error_recode(error, ERROR_DATA);
    } else {
        count = fread(to, 1, room, stdin);
        if (count == 0 && ferror(stdin)) return error_set(error, ERROR_DATA, "cannot read standard input: %s", strerror(errno));
    }
    input->position += (int64_t)count;
    input->packed_end += count;
    return true;
}

Input *input_open(const ObjectPlace *place, Object *object, Error *error) {
    Input *input = memory_allocate(sizeof *input);
    input->object = object;
    bool standard = !strcmp(place->path, "-");
    input->name = standard ? "standard input" : place->path;
    input->packed = memory_allocate(PACKED_BYTES);
    if ((!standard && !object && !(input->object = object_open(place, error))) || !input_fill(input, error)) {
        error_recode(error, ERROR_DATA);
        input_close(input);
        return NULL;
    }
    input->codec = codecs;
    while (input->codec->is && !input->codec->is(input->packed, input->packed_end)) input->codec++;
    return input;
}

/* Skips zeros between the members of a compressed file, and after the last. */
static void skip_padding(Input *input) {
    if (input->inside || !input_compressed(input)) return;
    while (input->packed_at < input->packed_end && !input->packed[input->packed_at]) input->packed_at++;
}

bool input_read(Input *input, void *bytes, size_t size, size_t *count, Error *error) {
    const char *fault = NULL;
    size_t made;
    for (*count = 0; *count < size && !fault; *count += made) {
        made = 0;
        for (bool more = true; more && (skip_padding(input), input->packed_at == input->packed_end); more = input->packed_end > 0)
            if (!input_fill(input, error)) return false;
        bool ended = input->packed_at == input->packed_end;
        if (ended && input->inside) fault = "the stream is truncated";
        else if (ended) return true;
        else fault = input->codec->decode(input, (unsigned char *)bytes + *count, size - *count, &made);
    }
    input->damaged = fault;
    return !fault || error_set(error, ERROR_DATA, "the %s data of %s is damaged: %s", input->codec->name, input->name, fault);
}

void input_seek(Input *input, int64_t byte) {
    assert(!input_compressed(input) && input->object);
    input->position = int_min(byte, object_bytes(input->object));
    input->packed_at = input->packed_end = 0;
}

bool input_damaged(const Input *input) { return input->damaged; }

bool input_compressed(const Input *input) { return input->codec->is; }

int64_t input_position(const Input *input) { return input->position - (int64_t)(input->packed_end - input->packed_at); }

void input_close(Input *input) {
    if (!input) return;
    object_close(input->object);
    if (input->gzip.state) inflateEnd(&input->gzip);
    ZSTD_freeDStream(input->zstd);
    lzma_end(&input->xz);
    free(input->packed);
    free(input);
}
