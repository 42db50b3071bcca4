/* The formats of token shards: finds the format of a path, by content, and opens it. A format says
 * where tokens are in one open file; the rest is common (shard.c). Megatron's has a document index
 * (shard_index.c); in the others, documents end at the tokenizer's end token, which is found as
 * tokens are read. Mosaic's MDS is in mds.c. */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/data_internal.h"

/* Copies up to `size` bytes from the start of a regular file; bytes past its end, or of a path that
 * is not a file, are 0. */
static bool read_start(const char *path, void *bytes, size_t size, Error *error) {
    SCOPED(file_close) File file = {0};
    FileKind kind = file_kind(path, NULL);
    memset(bytes, 0, size);
    if (kind == FILE_UNREADABLE) return file_fail(error, "read", path);
    if (kind != FILE_REGULAR) return true;
    if (!file_open(&file, path, error)) return false;
    if (file.bytes < (int64_t)size) size = (size_t)file.bytes;
    return file_read_at(&file, bytes, (int64_t)size, 0, error);
}

/* -- Megatron ------------------------------------------------------------------------------------------------------ */

static bool is_megatron(const char *prefix, const void *start) {
    (void)start;
    SCOPED_FREE char *index = memory_format("%s.idx", prefix);
    return file_exists(index);
}

static bool open_megatron(Shard *shard, Error *error) {
    SCOPED_FREE char *path = memory_format("%s.bin", shard->prefix);
    bool opened = shard->object || file_open(&shard->file, path, error) || error_recode(error, ERROR_DATA);
    return opened && shard_index_open(shard, error);
}

/* -- A header of 1,024 bytes, then tokens end to end: llm.c and llmq
 * ----------------------------------------------------- */

enum { HEADER_BYTES = 1024 };

/* Checks the size of an open file after its header is read. */
static bool check_shard_size(Shard *shard, int64_t tokens, Error *error) {
    int64_t described = HEADER_BYTES + tokens * shard->token_bytes;
    shard->start = HEADER_BYTES;
    shard->token_count = tokens;
    return (tokens >= 0 && described == shard->file.bytes) ||
           error_set(error, ERROR_DATA,
               "%s has %" PRId64 " bytes, but the %" PRId64 " tokens of its header need %" PRId64
               ": it is truncated or corrupt; copy it again",
               shard->prefix, shard->file.bytes, tokens, described);
}

static bool open_header(Shard *shard, void *header, size_t size, Error *error) {
    return (file_open(&shard->file, shard->prefix, error) && file_read_at(&shard->file, header, (int64_t)size, 0, error)) ||
           error_recode(error, ERROR_DATA);
}

/* i32 magic, version and number of tokens (dev/data/data_common.py of llm.c). */
typedef struct LlmcHeader { int32_t magic, version, tokens; } LlmcHeader;

static const struct LlmcKind {
    int32_t magic, version;
    int token_bytes;
} llmc_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static const struct LlmcKind *llmc_kind(int32_t magic) {
    for (size_t i = 0; i < sizeof llmc_kinds / sizeof *llmc_kinds; i++)
        if (llmc_kinds[i].magic == magic) return &llmc_kinds[i];
    return NULL;
}

static bool is_llmc(const char *path, const void *start) {
    LlmcHeader header;
    (void)path;
    memcpy(&header, start, sizeof header);
    return llmc_kind(header.magic) != NULL;
}

static bool open_llmc(Shard *shard, Error *error) {
    LlmcHeader header = {0};
    if (!open_header(shard, &header, sizeof header, error)) return false;
    const struct LlmcKind *kind = llmc_kind(header.magic);
    if (!kind || header.version != kind->version)
        return error_set(error, ERROR_DATA,
            "%s has version %" PRId32 " of llm.c's format, but smelt reads only %" PRId32 ": write it again with llm.c's current scripts",
            shard->prefix, header.version, kind ? kind->version : 0);
    shard->token_bytes = kind->token_bytes;
    return check_shard_size(shard, header.tokens, error);
}

/* "BIN.TOK\n", then i32 version, bytes per token, number of tokens, vocabulary, and whether loss
 * masks follow the tokens (scripts/tokenize_data.py of llmq). */
#define LLMQ_MAGIC "BIN.TOK\n"
typedef struct LlmqHeader {
    char magic[8];
    int32_t version, token_bytes, tokens, vocabulary, masks;
} LlmqHeader;

static bool is_llmq(const char *path, const void *start) {
    (void)path;
    return memcmp(start, LLMQ_MAGIC, sizeof LLMQ_MAGIC - 1) == 0;
}

static bool open_llmq(Shard *shard, Error *error) {
    LlmqHeader header = {0};
    if (!open_header(shard, &header, sizeof header, error)) return false;
    if (header.version != 2 || header.token_bytes != 4)
        return error_set(error, ERROR_DATA,
            "%s has version %" PRId32 " of llmq's format with %" PRId32 " bytes per token; 2 and 4 are supported", shard->prefix,
            header.version, header.token_bytes);
    if (header.masks)
        return error_set(
            error, ERROR_DATA, "%s masks the loss of some tokens, which smelt does not support: write it without masks", shard->prefix);
    shard->token_bytes = 4;
    return check_shard_size(shard, header.tokens, error);
}

/* -- The table ------------------------------------------------------------------------------------------------------- */

static const ShardFormat formats[] = {
    {"Megatron", is_megatron, open_megatron, NULL},
    {"llm.c", is_llmc, open_llmc, NULL},
    {"llmq", is_llmq, open_llmq, NULL},
    {"MDS", mds_probe, mds_open, mds_locate},
};

bool shard_format(const char *path, const ShardFormat **format, Error *error) {
    unsigned char start[SHARD_PROBE_BYTES];
    bool good = read_start(path, start, sizeof start, error) || error_recode(error, ERROR_DATA);
    *format = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof *formats && good && !*format; i++)
        if (formats[i].probe(path, start)) *format = &formats[i];
    return good;
}
