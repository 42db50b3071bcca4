/* Apache Parquet files (parquet.apache.org, "File Format"): flat columns, lists and structs, as
 * pyarrow, duckdb and polars write them. A ParquetFile knows the schema and the places of
 * columns. A ParquetColumn walks through the pages of one leaf in one row group, ParquetValues
 * decode one page, and ParquetRows write rows of any columns as JSON. A ParquetColumn only reads
 * bytes: pages and dictionaries are decompressed by the thread that opens their values.
 *
 * All input is hostile: each length, offset, count and index is checked before it is used. Memory
 * is that of one page and one dictionary per column, whatever the file says, unless the caller
 * keeps pages or dictionaries.
 *
 * Errors are ERROR_DATA, and do not name the file. FINDING_DAMAGED: the file was read, and it is
 * damaged or holds what smelt does not read. Otherwise it cannot be read now. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/thread.h"
#include "store/object.h"

/* Limits; a file beyond one is refused by name. */
enum {
    PARQUET_FOOTER_BYTES = 64 << 20,
    PARQUET_PAGE_BYTES = 1 << 30, /* of a page, decompressed */
    PARQUET_PAGE_VALUES = 1 << 24,
    PARQUET_FIELDS = 1 << 16,
    PARQUET_DEPTH = 32,
};

/* Sets ERROR_DATA with FINDING_DAMAGED; returns false. */
bool parquet_refuse(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* -- Schema (parquet_file.c) ----------------------------------------------------------------------------------------- */

typedef enum ParquetType { /* numbers of the format */
    PARQUET_BOOLEAN,
    PARQUET_INT32,
    PARQUET_INT64,
    PARQUET_INT96,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_BYTES,
    PARQUET_FIXED_BYTES,
    PARQUET_TYPES,
} ParquetType;

typedef enum ParquetKind { PARQUET_LEAF, PARQUET_STRUCT, PARQUET_LIST } ParquetKind;
/* A field of the schema. The levels of lists that the format wraps around elements are left out. */
typedef struct ParquetNode {
    char *name; /* without control characters */
    ParquetKind kind;
    int parent, child, sibling; /* indices of nodes, -1: none; child: the first field of a struct, or a list's elements */
    int leaf, leaves;           /* the first leaf column at or below it, and their number */
    int defined;                /* definition level from which on it is not null */
    int filled, repeats;        /* of a list: the definition level of an element, and the repetition level of all but the first */
    int lists;                  /* repetition level of a leaf at most */
    ParquetType type;           /* of a leaf */
    bool is_unsigned;           /* a leaf of unsigned integers */
    bool is_null;               /* a leaf that is annotated as null in every row */
    const char *unread;         /* "a map": why smelt does not read it; NULL: it does */
} ParquetNode;

typedef struct ParquetFile ParquetFile;
/* Reads the footer of a file. NULL: an error. */
ParquetFile *parquet_open(const ObjectPlace *place, Error *error);
/* Announces reads of the columns `nodes`, which parquet_check has accepted, in the row groups from
 * `group` on, one after the other. Called at most once. */
void parquet_expect(ParquetFile *file, const ParquetNode *const *nodes, size_t count, int64_t group);
void parquet_close(ParquetFile *file); /* NULL is fine */
/* Returns the column with this name that is not inside another one; NULL: there is none. */
const ParquetNode *parquet_find(const ParquetFile *file, const char *name);
/* Returns the first column, or with `node` the one after it; NULL: there is none. */
const ParquetNode *parquet_next(const ParquetFile *file, const ParquetNode *node);
/* Writes the names of all columns, separated by commas. */
void parquet_names(const ParquetFile *file, char *names, size_t size);
/* Checks that smelt reads a column in all row groups; the error names the column and the reason. */
bool parquet_check(const ParquetFile *file, const ParquetNode *node, Error *error);
int64_t parquet_groups(const ParquetFile *file);
int64_t parquet_group_rows(const ParquetFile *file, int64_t group);

/* -- Pages (parquet_page.c) ------------------------------------------------------------------------------------------ */

/* A page as stored. Any thread may decode it. */
typedef struct ParquetPage {
    unsigned char *stored; /* owned; NULL: none */
    int32_t stored_bytes, bytes, values;
    int32_t repetition_bytes, definition_bytes; /* of levels that are not compressed, in version 2 */
    int defined, lists;                         /* levels at most */
    int type, codec, encoding;
    bool second, packed; /* a page of version 2; compressed */
    bool summed;
    uint32_t crc;      /* of the stored bytes, if `summed` */
    bool stands_alone; /* it needs no dictionary, and its values together are not longer than the page */
    bool indexed;      /* its values are indices into the dictionary */
} ParquetPage;
void parquet_page_free(ParquetPage *page);

/* The dictionary of a column chunk. All threads that hold it share it: the first one that opens
 * values of an indexed page decodes it, and the others wait. `size` and `count` are known before. */
typedef struct ParquetDictionary {
    size_t size, count;   /* bytes, decompressed; values */
    int holders;          /* atomic */
    pthread_mutex_t lock; /* of the fields below until `decoded`, after which nothing changes them */
    ParquetPage page;     /* as stored; freed when it is decoded */
    char *column;         /* the name of its column, for errors */
    bool decoded;         /* or it failed with `fault` */
    Error fault;          /* code 0: none */
    unsigned char *bytes; /* [size] */
    uint32_t *offsets;    /* [count], of PARQUET_BYTES */
} ParquetDictionary;
/* Returns whether it has other holders than the caller. */
bool parquet_dictionary_is_shared(const ParquetDictionary *dictionary);
/* Adds a holder, which releases the dictionary. Returns it. */
ParquetDictionary *parquet_dictionary_hold(ParquetDictionary *dictionary);
void parquet_dictionary_release(ParquetDictionary *dictionary); /* NULL is fine */

typedef struct ParquetColumn {
    const ParquetFile *file;
    const ParquetNode *node; /* a leaf */
    int codec;
    int64_t at, end, values; /* bytes of the file not read yet; values not read yet */
    unsigned char *window;   /* for headers of pages */
    size_t window_capacity;
    ParquetDictionary *dictionary; /* of the last page, held; NULL: it has none */
} ParquetColumn;
/* Begins a leaf that parquet_check has accepted. A column that was used before, or a zeroed one. */
void parquet_column_start(ParquetColumn *column, const ParquetFile *file, const ParquetNode *leaf, int64_t group);
/* Reads the next data page; none at the end of the row group. */
bool parquet_column_page(ParquetColumn *column, ParquetPage *page, Error *error);
void parquet_column_free(ParquetColumn *column);

/* -- Values (parquet_values.c) --------------------------------------------------------------------------------------- */

typedef struct ParquetValue {
    int defined, repeated;      /* its levels; the rest is set if `defined` is the page's */
    const unsigned char *bytes; /* of PARQUET_BYTES; valid until the next value */
    size_t size;
    int64_t whole; /* of integers and booleans */
    double real;
} ParquetValue;

/* Runs of equal numbers and bit-packed numbers (encoding RLE). */
typedef struct ParquetRuns {
    const unsigned char *at, *end, *packed;
    int width;
    uint64_t left, bit, value;
} ParquetRuns;

/* Differences in blocks (encoding DELTA_BINARY_PACKED). */
typedef struct ParquetDeltas {
    const unsigned char *at, *end, *widths, *packed;
    uint64_t left, per_part, part_left, bit, value, least;
    uint64_t parts, part; /* of a block */
    int width;
} ParquetDeltas;

/* The values of one page, and buffers that are used again for the next one. */
typedef struct ParquetValues {
    int64_t left;
    int type, encoding, defined, lists;
    const ParquetDictionary *dictionary; /* borrowed */
    ParquetRuns repetition, definition, indices;
    ParquetDeltas deltas, prefixes; /* of integers, or lengths of texts; of what texts share with the one before */
    const unsigned char *at, *end;
    uint64_t bit; /* the next bit of booleans, or the next value of split bytes */
    size_t split; /* values of a page of split bytes */
    unsigned char *unpacked, *last;
    size_t unpacked_capacity, last_size, last_capacity;
} ParquetValues;
/* Opens a page and decodes its dictionary. Both must outlive the values. `dictionary`: NULL if the page
 * stands alone. */
bool parquet_values_open(ParquetValues *values, const ParquetPage *page, ParquetDictionary *dictionary, Error *error);
/* Decodes the next of values->left values. */
bool parquet_values_next(ParquetValues *values, ParquetValue *value, Error *error);
void parquet_values_free(ParquetValues *values);

/* -- Rows (parquet_rows.c) ------------------------------------------------------------------------------------------- */

typedef struct ParquetRows ParquetRows;
/* Begins the rows of a row group, of the columns `nodes`, which parquet_check has accepted. */
ParquetRows *parquet_rows_open(const ParquetFile *file, int64_t group, const ParquetNode *const *nodes, size_t count);
/* Writes the next row as a JSON object, as Python's json.dumps writes pyarrow's to_pylist. Texts are
 * copied whether they are UTF-8 or not. *size is limit + 1 if the row is longer than `limit`, and
 * *json is then cut off. *json is valid until the next row. */
bool parquet_rows_next(ParquetRows *rows, size_t limit, const char **json, size_t *size, Error *error);
void parquet_rows_free(ParquetRows *rows); /* NULL is fine */
