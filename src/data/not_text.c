/* Recognizes files that are not text by their first bytes: archives, tables, tokenizers, images and
 * the like. Other bytes are text unless they contain a zero. A model would silently learn such
 * bytes. Called for each file that is packed. */
#include <string.h>

#include "data/pack_internal.h"

typedef struct Magic {
    int offset;
    const char *bytes;
    size_t length;
    bool spelled; /* text may begin with these bytes too: a zero byte must follow */
    NotText is;
} Magic;
#define MAGIC(offset, bytes, ...) {offset, bytes, sizeof bytes - 1, __VA_ARGS__}

#define UNPACK(program) "unpack it first: " program " FILE | smelt data pack - OUTPUT, or compress it with gzip, zstd or xz"
#define WRITE_TEXT "write its text to a file first"
#define LEAVE_OUT "leave it out"
#define LOAD_DATASET "in Python, datasets.load_from_disk(FOLDER).to_json(OUT) writes JSON lines"
#define GIVE_TOKENIZER "set it as the tokenizer: tokenizer=, or data.tokenizer="
#define CONVERT(from) "convert it first: iconv -f " from " -t UTF-8 FILE > TEXT"
static const Magic magics[] = {
    MAGIC(0, "BZh", true, {"bzip2 data", UNPACK("bzcat")}),
    MAGIC(0, "\x04\x22\x4d\x18", false, {"lz4 data", UNPACK("lz4cat")}),
    MAGIC(0, "PK\3\4", false, {"a zip archive", "unpack it first: unzip FILE"}),
    MAGIC(0, "7z\xbc\xaf\x27\x1c", false, {"a 7z archive", "unpack it first: 7z x FILE"}),
    MAGIC(0, "Rar!\x1a\7", false, {"a rar archive", "unpack it first: unrar x FILE"}),
    MAGIC(257, "ustar", true, {"a tar archive", "unpack it first: tar xf FILE"}),
    MAGIC(0, "PAR1", true, {"a Parquet file", "leave format=text out"}),
    MAGIC(0, "PARE", true, {"an encrypted Parquet file", "write it without encryption"}),
    MAGIC(0, "ARROW1\0", false, {"an Arrow table", WRITE_TEXT ", as with pyarrow in Python"}),
    MAGIC(0, "\xff\xff\xff\xff", true, {"an Arrow stream (written by save_to_disk of datasets)", LOAD_DATASET}),
    MAGIC(0, "SQLite format 3\0", false, {"an SQLite database", WRITE_TEXT ": sqlite3 FILE 'select ...'"}),
    MAGIC(0, "\x93NUMPY", false, {"a NumPy array", "write tokens as a token shard (docs/formats.md), or text as text"}),
    MAGIC(0, "\x89HDF\r\n\x1a\n", false, {"an HDF5 file", WRITE_TEXT}),
    MAGIC(0, "MMIDIDX\0", false, {"the index of a token shard", "give the prefix of the shard, without .idx"}),
    MAGIC(2, "\n\5<unk>", false, {"a SentencePiece tokenizer", GIVE_TOKENIZER}),
    MAGIC(0, "IQ== 0\nIg== 1\n", false, {"a tokenizer (.tiktoken)", GIVE_TOKENIZER}),
    MAGIC(0, "GGUF", true, {"a GGUF model", LEAVE_OUT}),
    MAGIC(2, "\r\n\0\0\0", false, {"compiled Python", LEAVE_OUT}),
    MAGIC(0, "\177ELF", false, {"a compiled program", LEAVE_OUT}),
    MAGIC(0, "%PDF-", false, {"a PDF document", WRITE_TEXT ": pdftotext FILE"}),
    MAGIC(0, "\x89PNG", false, {"a picture", LEAVE_OUT}),
    MAGIC(0, "\xff\xd8\xff", false, {"a picture", LEAVE_OUT}),
    MAGIC(0, "GIF8", true, {"a picture", LEAVE_OUT}),
    MAGIC(8, "WEBP", true, {"a picture", LEAVE_OUT}),
    MAGIC(0, "II*\0", false, {"a picture", LEAVE_OUT}),
    MAGIC(0, "MM\0*", false, {"a picture", LEAVE_OUT}),
    MAGIC(0, "BM", true, {"a picture", LEAVE_OUT}),
    MAGIC(0, "8BPS", true, {"a picture", LEAVE_OUT}),
    MAGIC(0, "\0\0\1\0", false, {"a picture", LEAVE_OUT}),
    MAGIC(0, "\xff\x0a", false, {"a picture", LEAVE_OUT}),
    MAGIC(0, "\0\0\0\x0cjP  ", false, {"a picture", LEAVE_OUT}),
    MAGIC(8, "avif", true, {"a picture", LEAVE_OUT}),
    MAGIC(8, "heic", true, {"a picture", LEAVE_OUT}),
    MAGIC(0, "RIFF", true, {"sound or video", LEAVE_OUT}),
    MAGIC(0, "OggS", true, {"sound or video", LEAVE_OUT}),
    MAGIC(0, "fLaC", true, {"sound or video", LEAVE_OUT}),
    MAGIC(0, "ID3", true, {"sound or video", LEAVE_OUT}),
    MAGIC(4, "ftyp", true, {"sound or video", LEAVE_OUT}),
    MAGIC(0, "\xff\xfe\0\0", false, {"UTF-32 text", CONVERT("UTF-32")}),
    MAGIC(0, "\xff\xfe", false, {"UTF-16 text", CONVERT("UTF-16")}),
    MAGIC(0, "\xfe\xff", false, {"UTF-16 text", CONVERT("UTF-16")}),
};

/* JSON files that hold no text, by the first key and another one. In JSON lines, quotes inside a
 * text are escaped, so these keys cannot match it. */
typedef struct JsonKind {
    const char *first, *other;
    NotText is;
} JsonKind;
static const JsonKind json_kinds[] = {
    {"\"version\"", "\"added_tokens\"", {"a tokenizer (tokenizer.json)", GIVE_TOKENIZER}},
    {"\"config\"", "\"default_num_special_tokens\"", {"a tokenizer (tekken.json)", GIVE_TOKENIZER}},
    {"\"_data_files\"", "\"_fingerprint\"", {"part of a folder of save_to_disk (state.json)", LOAD_DATASET}},
    {"\"builder_name\"", "\"features\"", {"part of a folder of save_to_disk (dataset_info.json)", LOAD_DATASET}},
    {"\"citation\"", "\"features\"", {"part of a folder of save_to_disk (dataset_info.json)", LOAD_DATASET}},
};

static bool is_json_kind(const char *text, size_t size, NotText *found) {
    static const char white[] = " \t\r\n";
    size_t at = 0;
    while (at < size && memchr(white, text[at], sizeof white - 1)) at++;
    if (at == size || text[at++] != '{') return false;
    while (at < size && memchr(white, text[at], sizeof white - 1)) at++;
    for (const JsonKind *kind = json_kinds; kind < json_kinds + sizeof json_kinds / sizeof *json_kinds; kind++) {
        size_t length = strlen(kind->first);
        if (size - at < length || memcmp(text + at, kind->first, length) != 0) continue;
        if (!memmem(text + at, size - at, kind->other, strlen(kind->other))) continue;
        *found = kind->is;
        return true;
    }
    return false;
}

/* Detects UTF-16 text without a byte order mark: in the pairs of bytes, one side is mostly zero,
 * and the other rarely. Returns how to convert it. */
static const char *utf16_order(const unsigned char *bytes, size_t size) {
    size_t zeros[2] = {0}, pairs = size / 2;
    for (size_t i = 0; i < 2 * pairs; i++) zeros[i % 2] += bytes[i] == 0;
    if (pairs < 2) return NULL;
    if (zeros[1] > pairs / 2 && zeros[0] <= pairs / 16) return CONVERT("UTF-16LE");
    if (zeros[0] > pairs / 2 && zeros[1] <= pairs / 16) return CONVERT("UTF-16BE");
    return NULL;
}

bool not_text(const unsigned char *bytes, size_t size, NotText *found) {
    bool zero = memchr(bytes, 0, size);
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const Magic *magic = &magics[i];
        size_t end = (size_t)magic->offset + magic->length;
        if (end > size || memcmp(bytes + magic->offset, magic->bytes, magic->length) != 0 || (magic->spelled && !zero)) continue;
        *found = magic->is;
        return true;
    }
    if (is_json_kind((const char *)bytes, size, found)) return true;
    const char *convert = zero ? utf16_order(bytes, size) : NULL;
    if (convert) *found = (NotText){"UTF-16 text", convert};
    else if (zero) *found = (NotText){"binary data (it contains zero bytes)", LEAVE_OUT};
    else return false;
    return true;
}
