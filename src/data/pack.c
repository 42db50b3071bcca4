/* Packs text into shards of tokens. Files are mapped one at a time and go to one or two shard writers. Byte tokens
 * stream through one small buffer, whatever the length of a document. With a tokenizer a DocumentEncoder gathers whole
 * documents, so memory follows the longest one: without a separator that is the largest file. Besides, only the list of
 * paths and the writers' 12 bytes a document are held. A file gives its head to the training part and its tail to the
 * validation part. Training a tokenizer reads documents the same way. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/data.h"
#include "data/data_internal.h"

enum { CHUNK_BYTES = 1 << 14, PROGRESS_BYTES = 1 << 22 };

/* What a folder held besides text: how many, and the first in byte order for the warning. */
typedef struct Skipped {
    int64_t count;
    char *first;
} Skipped;

/* One of the shards that are written: the training part and, if one is asked for, the validation part. */
typedef struct Part {
    char *prefix; /* NULL: there is no such part */
    ShardWriter *writer;
    int64_t tokens;
} Part;

typedef struct Packer {
    const PackOptions *options;
    PackResult result;
    FileList files;     /* paths */
    int64_t file_bytes; /* of all files */
    Skipped irregular, binary, hidden;
    NotText first_binary; /* what binary.first is */
    bool folder;          /* the input is a folder */
    File standard_input;  /* its copy, without a name */
    Part train, valid;
    DocumentEncoder *encoder;  /* NULL: byte tokens */
    TokenizerTrainer *trainer; /* gets the documents when it is set, and nothing is packed */
    int32_t chunk[CHUNK_BYTES];
    Progress progress;
    int64_t progress_next;
} Packer;

/* -- Which files ------------------------------------------------------------------------------------------------- */

static int compare_paths(const void *left, const void *right) {
    return strcmp(((const FileEntry *)left)->name, ((const FileEntry *)right)->name);
}

static void skip(Skipped *skipped, const char *path) {
    skipped->count++;
    if (skipped->first && strcmp(skipped->first, path) <= 0) return;
    free(skipped->first);
    skipped->first = memory_copy_string(path);
}

/* Takes over `path`. Links are never followed, so a folder is visited once and loops cannot arise. */
static bool sort_entry(Packer *packer, FileList *folders, char *path, FileKind kind, Error *error) {
    int64_t bytes = 0;
    bool good = kind != FILE_REGULAR || file_kind(path, &bytes) == FILE_REGULAR || file_fail(error, "inspect", path);
    packer->file_bytes += bytes;
    if (good && (kind == FILE_FOLDER || kind == FILE_REGULAR)) {
        file_list_add(kind == FILE_FOLDER ? folders : &packer->files, path, kind);
    } else {
        if (good) skip(&packer->irregular, path);
        free(path);
    }
    return good;
}

static bool list_folder(Packer *packer, FileList *folders, const char *path, Error *error) {
    SCOPED(file_list_free) FileList list;
    if (!file_list(path, &list, error)) return false;
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    for (FileEntry *entry = list.entries; entry < list.entries + list.count; entry++) {
        char *entry_path = memory_format("%s%s%s", path, slash, entry->name);
        bool hidden = entry->name[0] == '.';
        if (hidden) skip(&packer->hidden, entry_path);
        if (hidden) free(entry_path);
        else if (!sort_entry(packer, folders, entry_path, entry->kind, error)) return false;
    }
    return true;
}

/* Standard input becomes a file without a name beside the output, since files are mapped. */
static bool copy_standard_input(Packer *packer, Error *error) {
    const char *output = packer->options->output, *slash = strrchr(output, '/');
    SCOPED_FREE char *folder = slash ? memory_format("%.*s", (int)(slash + 1 - output), output) : memory_copy_string(".");
    SCOPED_FREE char *chunk = memory_allocate(PROGRESS_BYTES);
    File *copy = &packer->standard_input;
    bool good = file_make_parents(output, error) && file_open_unnamed(copy, folder, error);
    for (size_t count = 1; good && count > 0;) {
        count = fread(chunk, 1, PROGRESS_BYTES, stdin);
        good = file_append(copy, chunk, (int64_t)count, error);
    }
    if (good && ferror(stdin)) return error_set(error, ERROR_DATA, "cannot read standard input: %s", strerror(errno));
    packer->file_bytes = copy->bytes;
    if (good) file_list_add(&packer->files, memory_format("/proc/self/fd/%d", copy->descriptor), FILE_REGULAR);
    return good;
}

/* Fills packer->files. The input itself may be a link. */
static bool list_files(Packer *packer, Error *error) {
    const char *input = packer->options->input;
    if (!strcmp(input, "-")) return copy_standard_input(packer, error);
    FileKind kind = file_kind(input, &packer->file_bytes);
    if (kind == FILE_ABSENT)
        return error_set(error, ERROR_DATA, "cannot read %s: %s; name a text file or a folder of text files", input, strerror(errno));
    packer->folder = kind == FILE_FOLDER;
    SCOPED(file_list_free) FileList folders = {0};
    file_list_add(packer->folder ? &folders : &packer->files, memory_copy_string(input), kind);
    for (size_t i = 0; i < folders.count; i++)
        if (!list_folder(packer, &folders, folders.entries[i].name, error)) return error_recode(error, ERROR_DATA);
    if (packer->files.count > 0) qsort(packer->files.entries, packer->files.count, sizeof(FileEntry), compare_paths);
    return true;
}

/* -- Lines ------------------------------------------------------------------------------------------------------- */

/* A stretch of a mapped file. */
typedef struct Text {
    const char *bytes;
    size_t size;
} Text;

/* One past the newline that ends the line which holds byte `at`, or the size. */
static size_t line_end(Text text, size_t at) {
    const char *newline = memchr(text.bytes + at, '\n', text.size - at);
    return newline ? (size_t)(newline - text.bytes) + 1 : text.size;
}

static size_t line_start(Text text, size_t at) {
    const char *newline = memrchr(text.bytes, '\n', at);
    return newline ? (size_t)(newline - text.bytes) + 1 : 0;
}

/* Whether the line [start, end), less its newline, is the separator. */
static bool is_separator(Text text, size_t start, size_t end, const char *separator) {
    size_t size = strlen(separator);
    if (end > start && text.bytes[end - 1] == '\n') end--;
    if (end > start && text.bytes[end - 1] == '\r') end--;
    return end - start == size && memcmp(text.bytes + start, separator, size) == 0;
}

/* The next separator line at or after the line start `from`: true, with its bounds. */
static bool find_separator(Text text, size_t from, const char *separator, size_t *start, size_t *end) {
    while (from < text.size) {
        const char *found = memmem(text.bytes + from, text.size - from, separator, strlen(separator));
        if (!found) return false;
        size_t at = (size_t)(found - text.bytes);
        *end = line_end(text, at);
        *start = at;
        if ((at == 0 || text.bytes[at - 1] == '\n') && is_separator(text, at, *end, separator)) return true;
        from = *end;
    }
    return false;
}

/* Whether a file may be cut behind the line [start, end): any line, or only separators. */
static bool is_cut(Text text, size_t start, size_t end, const char *separator) {
    return separator[0] == '\0' || is_separator(text, start, end, separator);
}

/* The first cut at or after `wanted` (>= 1), else the last before it that leaves the head half of the file; else 0. */
static size_t find_cut(Text text, size_t wanted, const char *separator) {
    size_t start, end;
    for (start = line_start(text, wanted - 1); start < text.size; start = end) {
        end = line_end(text, start);
        if (end < text.size && is_cut(text, start, end, separator)) return end;
    }
    for (end = line_start(text, wanted - 1); end >= text.size / 2 && end > 0; end = start) {
        start = line_start(text, end - 1);
        if (is_cut(text, start, end, separator)) return end;
    }
    return 0;
}

/* Where the validation part of a file begins; its size when it gives none. */
static size_t split_point(Text text, const PackOptions *options) {
    size_t tail = (size_t)((double)text.size * options->valid_fraction);
    if (options->valid_fraction == 0 || text.size < 2) return text.size;
    size_t wanted = text.size - (tail > 0 ? tail : 1);
    size_t cut = find_cut(text, wanted, options->separator);
    if (cut == 0) cut = find_cut(text, wanted, "");
    return cut == 0 ? text.size : cut;
}

/* -- Packing ----------------------------------------------------------------------------------------------------- */

static void show_progress(Packer *packer, int64_t done) {
    if (done < packer->progress_next) return;
    progress_update(&packer->progress, done);
    packer->progress_next = done + PROGRESS_BYTES;
}

static bool pack_bytes(Packer *packer, Part *part, Text text, int64_t done, Error *error) {
    for (size_t at = 0; at < text.size; at += CHUNK_BYTES) {
        size_t count = (size_t)int_min((int64_t)(text.size - at), CHUNK_BYTES);
        const unsigned char *bytes = (const unsigned char *)text.bytes + at;
#pragma omp simd
        for (size_t i = 0; i < count; i++) packer->chunk[i] = bytes[i];
        if (!shard_writer_append(part->writer, packer->chunk, (int64_t)count, error)) return false;
        show_progress(packer, done + (int64_t)(at + count));
    }
    if (!shard_writer_document(part->writer, &(int32_t){BYTE_SEPARATOR}, 1, error)) return false;
    part->tokens += (int64_t)text.size + 1;
    return true;
}

/* Packs one document; an empty one leaves nothing. */
static bool pack_document(Packer *packer, Part *part, Text text, int64_t done, Error *error) {
    if (text.size == 0) return true;
    packer->result.documents++;
    if (!packer->trainer && !packer->encoder) return pack_bytes(packer, part, text, done, error);
    bool good = packer->trainer ? tokenizer_trainer_add(packer->trainer, text.bytes, text.size, error)
                                : document_encoder_add(packer->encoder, part->writer, &part->tokens, text.bytes, text.size, error);
    show_progress(packer, done + (int64_t)text.size);
    return good;
}

/* Packs the documents of a stretch of a file; `done` bytes of the corpus lie before it. */
static bool pack_documents(Packer *packer, Part *part, Text text, int64_t done, Error *error) {
    const char *separator = packer->options->separator;
    size_t from = 0, start, end;
    while (separator[0] != '\0' && find_separator(text, from, separator, &start, &end)) {
        Text document = {text.bytes + from, start - from};
        if (!pack_document(packer, part, document, done + (int64_t)from, error)) return false;
        from = end;
    }
    Text document = {text.bytes + from, text.size - from};
    return pack_document(packer, part, document, done + (int64_t)from, error);
}

/* What is already there under the names of the output is never an input. */
static bool refuse_output(const Packer *packer, const char *path, Error *error) {
    const char *prefixes[] = {packer->train.prefix, packer->valid.prefix}, *suffixes[] = {".bin", ".idx"};
    bool output = packer->trainer && file_same(path, packer->options->output);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2 && prefixes[i]; j++) {
            SCOPED_FREE char *name = memory_format("%s%s", prefixes[i], suffixes[j]);
            output = output || file_same(path, name);
        }
    return !output || error_set(error, ERROR_USAGE, "%s is both input and output; name another output", path);
}

/* PREFIX.bin or PREFIX.idx given in place of PREFIX: its bytes would pass for text, and a model would learn them. */
static bool refuse_shard(const char *path, Error *error) {
    if (!ends_with(path, ".bin") && !ends_with(path, ".idx")) return true;
    SCOPED_FREE char *prefix = memory_format("%.*s", (int)strlen(path) - 4, path), *tokens = memory_format("%s.bin", prefix);
    return !file_exists(tokens) || !shard_set_exists(prefix) ||
           error_set(error, ERROR_DATA, "%s is a file of a token shard, not text; name the shard by its prefix, as in data.train=%s", path,
               prefix);
}

/* Whether the file is text; in a folder others are skipped. */
static bool take_text(Packer *packer, const char *path, const FileMap *file, Error *error) {
    NotText found = {"a file of a token shard", "name the shard by its prefix, without .bin or .idx"};
    bool shard = packer->folder && !refuse_shard(path, &(Error){0});
    if (!shard && !not_text(file->bytes, (size_t)int_min((int64_t)file->size, NOT_TEXT_PROBE_BYTES), &found)) return true;
    if (!packer->folder) {
        const char *input = packer->options->input, *name = strcmp(input, "-") ? input : "standard input";
        return error_set(error, ERROR_DATA, "%s is %s, not text: %s", name, found.what, found.advice);
    }
    if (packer->binary.count == 0) packer->first_binary = found; /* files come in the order of their paths */
    skip(&packer->binary, path);
    return false;
}

static bool pack_file(Packer *packer, const char *path, Error *error) {
    SCOPED(file_unmap) FileMap file;
    if (!file_map(&file, path, error)) return error_recode(error, ERROR_DATA);
    if (!packer->folder && (!refuse_output(packer, path, error) || !refuse_shard(path, error))) return false;
    if (file.size == 0) return true;
    if (!take_text(packer, path, &file, error)) return packer->folder;
    madvise((void *)file.bytes, file.size, MADV_SEQUENTIAL);
    Text text = {(const char *)file.bytes, file.size};
    size_t cut = split_point(text, packer->options);
    Text head = {text.bytes, cut}, tail = {text.bytes + cut, text.size - cut};
    int64_t done = packer->result.bytes;
    packer->result.bytes += (int64_t)file.size;
    packer->result.files++;
    return pack_documents(packer, &packer->train, head, done, error) &&
           pack_documents(packer, &packer->valid, tail, done + (int64_t)cut, error);
}

static bool check_options(const PackOptions *options, Error *error) {
    if (!(options->valid_fraction >= 0 && options->valid_fraction <= 0.5))
        return error_set(
            error, ERROR_USAGE, "valid is %g but it must be 0 to 0.5, the validation part of each file", options->valid_fraction);
    if (strpbrk(options->separator, "\r\n"))
        return error_set(error, ERROR_USAGE, "separator holds a line end but it must be the text of one line; give it without");
    if (options->input[0] == '\0' || options->output[0] == '\0')
        return error_set(error, ERROR_USAGE, "the name of the %s is empty; name a path", options->input[0] == '\0' ? "input" : "output");
    return true;
}

static bool part_open(Part *part, const char *output, const char *suffix, const char *tokenizer, int token_bytes, Error *error) {
    part->prefix = memory_format("%s%s", output, suffix);
    part->writer = shard_writer_open(part->prefix, token_bytes, error);
    if (part->writer) shard_writer_tokenizer(part->writer, tokenizer ? tokenizer : "");
    return part->writer;
}

static void part_free(Part *part) {
    shard_writer_cancel(part->writer);
    free(part->prefix);
}

static bool open_parts(Packer *packer, Error *error) {
    const PackOptions *options = packer->options;
    const bool split = options->valid_fraction > 0;
    int token_bytes = 2;
    if (options->tokenizer && *options->tokenizer) {
        packer->encoder = document_encoder_open(options->tokenizer, options->plain_special, error);
        if (!packer->encoder) return false;
        token_bytes = document_encoder_token_bytes(packer->encoder);
    }
    return part_open(&packer->train, options->output, split ? "-train" : "", options->tokenizer, token_bytes, error) &&
           (!split || part_open(&packer->valid, options->output, "-valid", options->tokenizer, token_bytes, error));
}

static bool check_result(const Packer *packer, Error *error) {
    const PackOptions *options = packer->options;
    if (packer->train.tokens + packer->valid.tokens == 0)
        return error_set(error, ERROR_DATA,
            "%s holds no text: %zu file%s, %" PRId64 " bytes, %" PRId64 " of the files not text; name a file or folder with text",
            options->input, packer->files.count, plural((int64_t)packer->files.count), packer->file_bytes, packer->binary.count);
    if (packer->valid.writer && packer->valid.tokens == 0)
        return error_set(error, ERROR_DATA,
            "%s gives no validation part of %g: no file has a line end at which its tail could be "
            "cut off; set valid=0 (in training data.valid_fraction=0) or give text with more lines",
            options->input, options->valid_fraction);
    if (packer->train.tokens == 0)
        return error_set(error, ERROR_DATA, "%s gives no training part: all text lies in its last %g; set a smaller valid", options->input,
            options->valid_fraction);
    return true;
}

static void warn_skipped(const Packer *packer) {
    if (packer->irregular.count > 0)
        log_warn("skipped %" PRId64 " links, pipes or devices, the first being %s", packer->irregular.count, packer->irregular.first);
    if (packer->binary.count > 0)
        log_warn("skipped %" PRId64 " file%s that %s not text, the first being %s: %s, %s", packer->binary.count,
            plural(packer->binary.count), packer->binary.count == 1 ? "is" : "are", packer->binary.first, packer->first_binary.what,
            packer->first_binary.advice);
    if (packer->hidden.count > 0)
        log_info("left out %" PRId64 " hidden file%s or folder%s, the first being %s", packer->hidden.count, plural(packer->hidden.count),
            plural(packer->hidden.count), packer->hidden.first);
}

static bool read_all(Packer *packer, Error *error) {
    packer->progress = progress_start(packer->trainer ? "counting words" : "packing", "bytes", packer->file_bytes);
    bool good = true;
    for (size_t i = 0; good && i < packer->files.count; i++) good = pack_file(packer, packer->files.entries[i].name, error);
    if (good && packer->encoder) good = document_encoder_flush(packer->encoder, error);
    progress_finish(&packer->progress);
    warn_skipped(packer);
    return good;
}

/* The validation part appears first: should the training part fail to appear, no run can start on half of a split. */
static bool parts_finish(Packer *packer, Error *error) {
    ShardWriter *writers[2];
    int count = 0;
    if (packer->valid.writer) writers[count++] = packer->valid.writer;
    writers[count++] = packer->train.writer;
    packer->valid.writer = packer->train.writer = NULL;
    return shard_writers_finish(writers, count, error);
}

static bool pack_all(Packer *packer, Error *error) {
    return list_files(packer, error) && open_parts(packer, error) && read_all(packer, error) && check_result(packer, error) &&
           parts_finish(packer, error);
}

static Packer *packer_open(const PackOptions *options, Error *error) {
    if (!check_options(options, error)) return NULL;
    Packer *packer = memory_allocate(sizeof *packer);
    packer->options = options;
    return packer;
}

/* Frees the packer, and gives its counts after a success. Returns `good`. */
static bool packer_close(Packer *packer, bool good, PackResult *result) {
    packer->result.train_tokens = packer->train.tokens;
    packer->result.valid_tokens = packer->valid.tokens;
    *result = good ? packer->result : (PackResult){0};
    part_free(&packer->train);
    part_free(&packer->valid);
    document_encoder_free(packer->encoder);
    tokenizer_trainer_free(packer->trainer);
    file_list_free(&packer->files);
    free(packer->irregular.first);
    free(packer->binary.first);
    free(packer->hidden.first);
    file_close(&packer->standard_input);
    free(packer);
    return good;
}

bool pack_text(const PackOptions *options, PackResult *result, Error *error) {
    *result = (PackResult){0};
    Packer *packer = packer_open(options, error);
    return packer && packer_close(packer, pack_all(packer, error), result);
}

bool pack_list(const char *input, FileList *files, Error *error) {
    PackOptions options = {.input = input, .output = input, .separator = ""};
    PackResult none;
    Packer *packer = packer_open(&options, error);
    bool listed = packer && list_files(packer, error);
    if (listed) *files = packer->files;
    if (listed) packer->files = (FileList){0};
    return packer && packer_close(packer, listed, &none);
}

bool pack_train_tokenizer(
    const PackOptions *options, const TokenizerTraining *training, PackResult *result, int32_t *learned, Error *error) {
    *result = (PackResult){0};
    Packer *packer = packer_open(options, error);
    if (!packer) return false;
    packer->trainer = tokenizer_trainer_open(training, error);
    bool good = packer->trainer && list_files(packer, error) && read_all(packer, error) &&
                tokenizer_trainer_finish(packer->trainer, options->output, learned, error);
    return packer_close(packer, good, result);
}
