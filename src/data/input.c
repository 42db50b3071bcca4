/* The bytes of an input, decompressed as they are read: gzip, zstd and xz are recognised by how the data begins. An Input
 * owns one open file, or standard input, and the decoder's state, whose memory is bounded whatever the data asks for. It
 * is read once from its start; record_reader.c does. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "data/pack_internal.h"

enum { PACKED_BYTES = 1 << 18, XZ_MEMORY = 1 << 28 /* of a decoder: xz -9 needs a quarter of it */ };

/* Decodes from the packed bytes to `out`; *made may stay 0. `inside` is false between members of the file. NULL, or why
 * the data is damaged. */
typedef const char *Decode(Input *input, unsigned char *out, size_t size, size_t *made);
typedef struct Codec {
    const char *name, *magic;
    size_t magic_size;
    Decode *decode;
} Codec;

struct Input {
    const char *name; /* of the file, for messages */
    File file;        /* without a path: standard input */
    int64_t position; /* bytes that were read of it */
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

static const char *decode_gzip(Input *input, unsigned char *out, size_t size, size_t *made) {
    enum { GZIP_WINDOW = 16 + MAX_WBITS };
    z_stream *stream = &input->gzip;
    if (!input->inside && (stream->state ? inflateReset(stream) : inflateInit2(stream, GZIP_WINDOW)) != Z_OK) memory_refused(1 << 16);
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
    return stream->msg ? stream->msg : "no gzip data";
}

static const char *decode_zstd(Input *input, unsigned char *out, size_t size, size_t *made) {
    if (!input->zstd && !(input->zstd = ZSTD_createDStream())) memory_refused(1 << 20);
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
    if (!input->inside && lzma_stream_decoder(stream, XZ_MEMORY, 0) != LZMA_OK) memory_refused(1 << 16);
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
    return code == LZMA_MEMLIMIT_ERROR ? "it needs more than 256 MiB of memory" : "no xz data";
}

static const Codec codecs[] = {
    {"gzip", "\x1f\x8b", 2, decode_gzip},
    {"zstd", "\x28\xb5\x2f\xfd", 4, decode_zstd},
    {"xz", "\3757zXZ\0", 6, decode_xz},
    {"", "", 0, decode_plain},
};

/* -- Reading ----------------------------------------------------------------------------------------------------- */

/* Reads more packed bytes behind those that are there; nothing at the end of the file. */
static bool input_fill(Input *input, Error *error) {
    memmove(input->packed, input->packed + input->packed_at, input->packed_end - input->packed_at);
    input->packed_end -= input->packed_at;
    input->packed_at = 0;
    unsigned char *to = input->packed + input->packed_end;
    size_t room = PACKED_BYTES - input->packed_end, count;
    if (input->file.path) {
        count = (size_t)int_min((int64_t)room, input->file.bytes - input->position);
        if (!file_read_at(&input->file, to, (int64_t)count, input->position, error)) return error_recode(error, ERROR_DATA);
    } else {
        count = fread(to, 1, room, stdin);
        if (count == 0 && ferror(stdin)) return error_set(error, ERROR_DATA, "cannot read standard input: %s", strerror(errno));
    }
    input->position += (int64_t)count;
    input->packed_end += count;
    return true;
}

Input *input_open(const char *path, Error *error) {
    Input *input = memory_allocate(sizeof *input);
    bool standard = !strcmp(path, "-");
    input->name = standard ? "standard input" : path;
    input->packed = memory_allocate(PACKED_BYTES);
    if ((!standard && !file_open(&input->file, path, error)) || !input_fill(input, error)) {
        error_recode(error, ERROR_DATA);
        input_close(input);
        return NULL;
    }
    input->codec = codecs;
    while (input->packed_end < input->codec->magic_size || memcmp(input->packed, input->codec->magic, input->codec->magic_size) != 0)
        input->codec++;
    return input;
}

/* Between the members of a compressed file, and behind the last, there may be zeros. */
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
        if (ended && input->inside) fault = "it ends in the middle";
        else if (ended) return true;
        else fault = input->codec->decode(input, (unsigned char *)bytes + *count, size - *count, &made);
    }
    input->damaged = fault;
    return !fault || error_set(error, ERROR_DATA, "the %s data of %s is damaged: %s", input->codec->name, input->name, fault);
}

void input_seek(Input *input, int64_t byte) {
    assert(!input_compressed(input) && input->file.path);
    input->position = int_min(byte, input->file.bytes);
    input->packed_at = input->packed_end = 0;
}

bool input_damaged(const Input *input) { return input->damaged; }

bool input_compressed(const Input *input) { return input->codec->magic_size > 0; }

int64_t input_position(const Input *input) { return input->position - (int64_t)(input->packed_end - input->packed_at); }

void input_close(Input *input) {
    if (!input) return;
    file_close(&input->file);
    if (input->gzip.state) inflateEnd(&input->gzip);
    ZSTD_freeDStream(input->zstd);
    lzma_end(&input->xz);
    free(input->packed);
    free(input);
}
