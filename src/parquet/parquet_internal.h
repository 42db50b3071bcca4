/* Shared by the files of this folder: the compact protocol of Thrift, in which headers are written,
 * the places of column chunks, and decompression. */
#pragma once

#include "parquet/parquet.h"

/* -- Thrift (thrift.c) ----------------------------------------------------------------------------------------------- */

/* Types of fields. A boolean field has its value as its type. */
enum {
    THRIFT_STOP,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_I8,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_REAL,
    THRIFT_BYTES,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT
};
/* Bytes that are parsed. After a fault everything reads as zero, and `at` is `end`. */
typedef struct Thrift {
    const unsigned char *at, *end;
    bool bad, cut; /* malformed; malformed because more bytes are needed */
} Thrift;
/* Reads the header of a struct's next field, whose number follows from *id, that of the field
 * before (0 at first). Returns its type; THRIFT_STOP at the end of the struct. */
int thrift_field(Thrift *thrift, int *id);
int64_t thrift_int(Thrift *thrift, int type);                      /* of any width */
size_t thrift_bytes(Thrift *thrift, int type, const char **bytes); /* returns their number */
/* Returns the number of elements of a list, at most the bytes that are left. */
size_t thrift_list(Thrift *thrift, int type, int element);
void thrift_skip(Thrift *thrift, int type);

/* -- Column chunks (parquet_file.c) ---------------------------------------------------------------------------------- */

typedef struct ParquetChunk {
    int64_t offset, bytes, values; /* of its pages in the file; offset -1: unknown */
    int codec, type;
    bool elsewhere, encrypted; /* in another file */
} ParquetChunk;
const ParquetChunk *parquet_chunk(const ParquetFile *file, int64_t group, int leaf);
const ParquetNode *parquet_node(const ParquetFile *file, int node); /* NULL for -1 */
const ParquetNode *parquet_leaf(const ParquetFile *file, int leaf);
Object *parquet_bytes(const ParquetFile *file);

/* -- Codecs (parquet_unpack.c) --------------------------------------------------------------------------------------- */

enum { CODEC_NONE, CODEC_SNAPPY, CODEC_GZIP, CODEC_LZO, CODEC_BROTLI, CODEC_LZ4_HADOOP, CODEC_ZSTD, CODEC_LZ4, CODECS };
/* Returns the name of a codec that smelt does not read; NULL: it reads the codec. */
const char *parquet_unread_codec(int codec);
/* Decompresses exactly `made` bytes. Returns NULL, or why the data is damaged. */
const char *parquet_unpack(int codec, const unsigned char *in, size_t size, unsigned char *out, size_t made);

/* -- Encodings (parquet_values.c) ------------------------------------------------------------------------------------ */

enum {
    ENCODING_PLAIN = 0,
    ENCODING_PLAIN_DICTIONARY = 2,
    ENCODING_RLE = 3,
    ENCODING_DELTAS = 5,
    ENCODING_DELTA_LENGTHS = 6,
    ENCODING_DELTA_TEXTS = 7,
    ENCODING_DICTIONARY = 8,
    ENCODING_SPLIT_BYTES = 9
};
/* Returns the bytes of a value of a fixed width; 0: it has none. */
size_t parquet_width(int type);
/* Verifies the checksum of a page. Decompresses what follows its first `levels` bytes to `out`,
 * which must be exactly `size` bytes. */
bool parquet_page_unpack(const ParquetPage *page, size_t levels, unsigned char *out, size_t size, Error *error);
/* Decodes a dictionary, or waits for the thread that does. */
bool parquet_dictionary_decode(ParquetDictionary *dictionary, Error *error);
