/* Mosaic's MDS: a folder with index.json and shards of samples, raw or compressed by zstd; a sample
 * is a row of columns.
 *
 * A shard, little-endian: u32 samples, u32 offset[samples + 1] in the file, JSON that describes the
 * columns, samples. A sample: u32 size of each column whose encoding has no fixed size, then the
 * columns in order. The tokens are the column "tokens" or "input_ids": "ndarray:TYPE:SHAPE", the
 * same number in each sample, or "bytes", which hold i64 as LLM Foundry writes them. No data is
 * kept per sample: its place is read from the offsets. A compressed shard is unpacked, when it is
 * opened, to an unnamed file in $TMPDIR, which disappears when it is closed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/json_reader.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/data_internal.h"
#include "data/pack_internal.h"

enum { INDEX_LIMIT = 1 << 28, COLUMNS_LIMIT = 1 << 20, MOST_COLUMNS = 64, UNPACK_BYTES = 1 << 18 };

static const char *mds_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* -- The folder ------------------------------------------------------------------------------------------------------ */

/* Reads the index.json of a folder, whose name has `length` bytes; NULL: there is none, or it is
 * not JSON. The caller owns the reference. */
static bool read_index(const char *folder, size_t length, json_t **index, Error *error) {
    Error foreign;
    SCOPED_FREE char *path = memory_format("%.*s/index.json", (int)length, folder);
    SCOPED_FREE char *text = file_read(path, INDEX_LIMIT, NULL, error);
    *index = text ? json_parse(text, strlen(text), 0, &foreign) : NULL;
    return text || error->finding == FINDING_ABSENT || error_recode(error, ERROR_DATA);
}

bool mds_list(const char *folder, FileList *shards, Error *error) {
    json_t *read;
    if (!read_index(folder, strlen(folder), &read, error)) return false;
    json_auto_t *index = read;
    const json_t *list = json_object_get(index, "shards");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *shard = json_array_get(list, i);
        const char *raw = mds_text(json_object_get(shard, "raw_data"), "basename"),
                   *packed = mds_text(json_object_get(shard, "zip_data"), "basename");
        if (strcmp(mds_text(shard, "format"), "mds") != 0 || !*raw || strchr(raw, '/') || strchr(packed, '/')) continue;
        char *name = memory_format("%s/%s", folder, raw);
        if (*packed && !file_exists(name)) {
            free(name);
            name = memory_format("%s/%s", folder, packed);
        }
        file_list_add(shards, name, FILE_REGULAR);
    }
    return true;
}

bool mds_probe(const char *path, const void *start) {
    (void)start;
    return (ends_with(path, ".mds") || ends_with(path, ".mds.zstd")) && file_kind(path, NULL) == FILE_REGULAR;
}

/* -- Opening --------------------------------------------------------------------------------------------------------- */

/* Finds the unpacked size of a compressed shard in index.json; INT64_MAX if it is not given. */
static bool find_unpacked_bytes(const char *shard, int64_t *most, Error *error) {
    const char *slash = strrchr(shard, '/'), *name = slash ? slash + 1 : shard;
    json_t *read;
    *most = INT64_MAX;
    if (!read_index(slash ? shard : ".", slash ? (size_t)(slash - shard) : 1, &read, error)) return false;
    json_auto_t *index = read;
    const json_t *list = json_object_get(index, "shards");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *bytes = json_object_get(json_object_get(entry, "raw_data"), "bytes");
        if (!strcmp(mds_text(json_object_get(entry, "zip_data"), "basename"), name) && json_is_integer(bytes))
            *most = json_integer_value(bytes);
    }
    return true;
}

static bool copy_unpacked(Input *input, const char *shard, File *target, Error *error) {
    SCOPED_FREE unsigned char *part = memory_allocate(UNPACK_BYTES);
    int64_t most;
    if (!find_unpacked_bytes(shard, &most, error)) return false;
    for (size_t count = 1; count > 0;) {
        if (!input_read(input, part, UNPACK_BYTES, &count, error)) return false;
        if ((int64_t)count > most - target->bytes)
            return error_set(
                error, ERROR_DATA, "%s decompresses to more than the %" PRId64 " bytes of its index.json: it is corrupt", shard, most);
        if (!file_append(target, part, (int64_t)count, error)) return false;
    }
    return true;
}

/* Unpacks a shard; the file keeps the shard's name for messages. */
static bool unpack(Shard *shard, Error *error) {
    Error ignored = {0};
    SCOPED_FREE char *folder = file_make_temporary_folder("smelt-mds", error);
    if (!folder) return false;
    Input *input = input_open(&(ObjectPlace){.path = shard->prefix}, NULL, error);
    bool good = input && file_open_unnamed(&shard->file, folder, error) && copy_unpacked(input, shard->prefix, &shard->file, error);
    input_close(input);
    file_remove(folder, &ignored);
    if (!shard->file.path) return good;
    free(shard->file.path);
    shard->file.path = memory_copy_string(shard->prefix);
    return good;
}

/* Returns the bytes of a token by numpy's name of its type; 0: smelt does not read it. */
static int width_of(const char *type, size_t length) {
    static const struct {
        const char *name;
        int width;
    } types[] = {{"uint8", 1}, {"uint16", 2}, {"int32", 4}, {"uint32", 4}, {"int64", 8}, {"uint64", 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].name) == length && !memcmp(types[i].name, type, length)) return types[i].width;
    return 0;
}

static int width_of_encoding(const char *encoding, bool fixed) {
    static const char array[] = "ndarray:";
    if (!strcmp(encoding, "bytes")) return 8;
    if (!fixed || strncmp(encoding, array, strlen(array)) != 0) return 0;
    const char *type = encoding + strlen(array);
    return width_of(type, strcspn(type, ":"));
}

static bool refuse_columns(const Shard *shard, const char *column, const char *encoding, Error *error) {
    if (!*column)
        return error_set(error, ERROR_DATA,
            "%s has no token column (\"tokens\" or \"input_ids\"): smelt reads only tokenized MDS; write its text to a file and pack the "
            "file",
            shard->prefix);
    return error_set(error, ERROR_DATA,
        "%s has column %s with encoding %s: smelt reads ndarray:TYPE:SHAPE, or bytes (i64) if every other column has a fixed size. Write "
        "the MDS again",
        shard->prefix, column, encoding);
}

/* Finds the place of the tokens in a sample from the description of the columns. */
static bool read_columns(Shard *shard, const json_t *columns, Error *error) {
    ShardRows *rows = &shard->rows;
    const json_t *names = json_object_get(columns, "column_names"), *encodings = json_object_get(columns, "column_encodings"),
                 *sizes = json_object_get(columns, "column_sizes");
    const char *tokens = "", *tokens_encoding = "";
    int64_t tokens_bytes = 0;
    size_t count = json_array_size(names);
    if (count > MOST_COLUMNS || json_array_size(encodings) != count || json_array_size(sizes) != count)
        return error_set(error, ERROR_DATA, "%s has 0 columns or more than %d: it is corrupt", shard->prefix, MOST_COLUMNS);
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(names, i)), *encoding = json_string_value(json_array_get(encodings, i));
        const json_t *size = json_array_get(sizes, i);
        int64_t bytes = json_integer_value(size);
        if (!name || !encoding || bytes < 0 || bytes > INT32_MAX)
            return error_set(error, ERROR_DATA, "%s has a column without a name", shard->prefix);
        bool found = !*tokens && (!strcmp(name, "tokens") || !strcmp(name, "input_ids")), fixed = json_is_integer(size);
        if (found) {
            tokens = name;
            tokens_encoding = encoding;
            tokens_bytes = bytes;
            shard->token_bytes = width_of_encoding(encoding, fixed);
            rows->before = rows->fixed;
            rows->varying_before = rows->varying;
            rows->varies = !fixed;
        }
        rows->fixed += bytes;
        rows->varying += !fixed;
    }
    if (!shard->token_bytes || tokens_bytes % shard->token_bytes || (rows->varies && rows->varying > 1))
        return refuse_columns(shard, tokens, tokens_encoding, error);
    rows->tokens = tokens_bytes / shard->token_bytes;
    return rows->varies || rows->tokens > 0 || refuse_columns(shard, tokens, tokens_encoding, error);
}

/* Reads offset[sample] and the next one. */
static bool read_offsets(const Shard *shard, int64_t sample, uint32_t offsets[2], Error *error) {
    return file_read_at(&shard->file, offsets, 2 * sizeof *offsets, (int64_t)sizeof *offsets * (sample + 1), error) ||
           error_recode(error, ERROR_DATA);
}

/* Returns the number of tokens before the sample at `offset`. If samples vary in length, it is
 * computed from the bytes between. */
static int64_t tokens_before(const Shard *shard, int64_t sample, uint32_t offset) {
    const ShardRows *rows = &shard->rows;
    if (!rows->varies) return sample * rows->tokens;
    int64_t bytes = (int64_t)offset - rows->first - sample * (rows->fixed + (int64_t)sizeof(uint32_t));
    return bytes < 0 || bytes % shard->token_bytes ? -1 : bytes / shard->token_bytes;
}

static bool refuse_offsets(const Shard *shard, int64_t sample, Error *error) {
    return error_set(error, ERROR_DATA, "%s has an invalid offset of sample %" PRId64 " of %" PRId64 ": it is truncated or corrupt",
        shard->prefix, sample, shard->rows.samples);
}

bool mds_open(Shard *shard, Error *error) {
    ShardRows *rows = &shard->rows;
    uint32_t samples, offsets[2];
    bool opened = ends_with(shard->prefix, ".mds") ? file_open(&shard->file, shard->prefix, error) : unpack(shard, error);
    if (!opened || !file_read_at(&shard->file, &samples, sizeof samples, 0, error)) return error_recode(error, ERROR_DATA);
    int64_t table = (int64_t)sizeof samples * ((int64_t)samples + 2);
    rows->samples = samples;
    if (samples == 0 || table > shard->file.bytes || !read_offsets(shard, 0, offsets, error) || offsets[0] < table ||
        offsets[0] > shard->file.bytes || offsets[0] - table > COLUMNS_LIMIT)
        return error_set(error, ERROR_DATA, "%s has no samples: it is truncated, corrupt or not MDS", shard->prefix);
    rows->first = offsets[0];
    size_t size = (size_t)(rows->first - table);
    SCOPED_FREE char *text = memory_allocate(size + 1);
    if (!file_read_at(&shard->file, text, (int64_t)size, table, error)) return error_recode(error, ERROR_DATA);
    Error ignored; /* without columns, read_columns reports bad ones */
    json_auto_t *columns = json_parse(text, size, 0, &ignored);
    if (!read_columns(shard, columns, error) || !read_offsets(shard, rows->samples - 1, offsets, error)) return false;
    bool fits = rows->varies || rows->samples <= shard->file.bytes / (rows->tokens * shard->token_bytes);
    if (!fits || offsets[1] != shard->file.bytes) return refuse_offsets(shard, rows->samples - 1, error);
    shard->token_count = tokens_before(shard, rows->samples, offsets[1]);
    return shard->token_count >= 0 || refuse_offsets(shard, rows->samples - 1, error);
}

/* -- Reading --------------------------------------------------------------------------------------------------------- */

/* Finds the sample of a token: the last one that begins at or before the token. */
static bool find_sample(const Shard *shard, int64_t token, int64_t *sample, Error *error) {
    const ShardRows *rows = &shard->rows;
    int64_t low = 0, high = rows->samples - 1;
    while (rows->varies && low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        uint32_t offsets[2];
        if (!read_offsets(shard, middle, offsets, error)) return false;
        if (tokens_before(shard, middle, offsets[0]) <= token) low = middle;
        else high = middle - 1;
    }
    *sample = rows->varies ? low : token / rows->tokens;
    return true;
}

/* Finds the byte offset of a sample's tokens. The sizes of the columns must add up to the size of
 * the sample. */
static bool find_column(const Shard *shard, int64_t sample, const uint32_t offsets[2], int64_t *at, Error *error) {
    const ShardRows *rows = &shard->rows;
    uint32_t sizes[MOST_COLUMNS] = {0};
    int64_t table = rows->varying * (int64_t)sizeof *sizes, bytes = (int64_t)offsets[1] - offsets[0], described = table + rows->fixed;
    *at = offsets[0] + table + rows->before;
    if (table > bytes) return refuse_offsets(shard, sample, error);
    if (table && !file_read_at(&shard->file, sizes, table, offsets[0], error)) return error_recode(error, ERROR_DATA);
    for (int i = 0; i < rows->varying; i++) {
        described += sizes[i];
        if (i < rows->varying_before) *at += sizes[i];
    }
    return described == bytes || refuse_offsets(shard, sample, error);
}

bool mds_locate(const Shard *shard, int64_t token, int64_t *at, int64_t *run, Error *error) {
    uint32_t offsets[2];
    int64_t sample, start;
    if (!find_sample(shard, token, &sample, error) || !read_offsets(shard, sample, offsets, error) ||
        !find_column(shard, sample, offsets, &start, error))
        return false;
    int64_t first = tokens_before(shard, sample, offsets[0]), next = tokens_before(shard, sample + 1, offsets[1]);
    *at = start + (token - first) * shard->token_bytes;
    *run = next - token;
    bool inside = offsets[0] >= shard->rows.first && start + (next - first) * shard->token_bytes <= (int64_t)offsets[1];
    return (inside && first >= 0 && first <= token && *run > 0) || refuse_offsets(shard, sample, error);
}
