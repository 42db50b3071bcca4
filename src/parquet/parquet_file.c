/* Reads the footer of a Parquet file (parquet-format, parquet.thrift: FileMetaData): its schema as a
 * tree of fields, and the place of each column chunk. A ParquetFile owns the open file and both. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "parquet/parquet_internal.h"

#define MAGIC_BYTES 4

struct ParquetFile {
    Object *object;
    ParquetNode *nodes; /* [0]: the root, whose fields are the columns */
    int *leaves;        /* their nodes, in the order of column chunks */
    int node_count, leaf_count;
    int64_t *rows; /* [group_count] */
    size_t group_count;
    ParquetChunk *chunks; /* [group_count, leaf_count] */
    size_t chunk_count;
    int64_t data_end; /* byte of the footer */
};

bool parquet_refuse(Error *error, const char *format, ...) {
    char text[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error_set(error, ERROR_DATA, "%s", text);
    return error_find(error, FINDING_DAMAGED);
}

static bool refuse_footer(Error *error, const char *what) {
    return parquet_refuse(error, "a damaged Parquet file (%s): copy or download it again", what);
}

const ParquetChunk *parquet_chunk(const ParquetFile *file, int64_t group, int leaf) {
    return file->chunks + group * file->leaf_count + leaf;
}
const ParquetNode *parquet_node(const ParquetFile *file, int node) { return node < 0 ? NULL : file->nodes + node; }
const ParquetNode *parquet_leaf(const ParquetFile *file, int leaf) { return file->nodes + file->leaves[leaf]; }
Object *parquet_bytes(const ParquetFile *file) { return file->object; }
int64_t parquet_groups(const ParquetFile *file) { return (int64_t)file->group_count; }
int64_t parquet_group_rows(const ParquetFile *file, int64_t group) { return file->rows[group]; }

/* -- Schema ---------------------------------------------------------------------------------------------------------- */

enum { REQUIRED, OPTIONAL, REPEATED };
/* An element of the schema as stored: a tree in preorder. */
typedef struct SchemaElement {
    int type, repetition, converted, logical; /* -1: not given */
    int64_t children;
    const char *name;
    size_t name_size;
} SchemaElement;

/* Annotations, with their numbers in ConvertedType and in LogicalType. Integers without a name
 * here have numbers between UINT_8 and JSON; UNKNOWN's is between INTEGER and JSON. */
enum {
    CONVERTED_UTF8,
    CONVERTED_MAP,
    CONVERTED_MAP_KEY_VALUE,
    CONVERTED_LIST,
    CONVERTED_ENUM,
    CONVERTED_UINT_8 = 11,
    CONVERTED_UINT_64 = 14,
    CONVERTED_JSON = 19
};
enum { LOGICAL_STRING = 1, LOGICAL_MAP, LOGICAL_LIST, LOGICAL_ENUM, LOGICAL_INTEGER = 10, LOGICAL_UNKNOWN, LOGICAL_JSON };

/* Returns whether the annotations leave the meaning of a leaf's values to their physical type. */
static bool is_plain_leaf(const SchemaElement *element) {
    int converted = element->converted, logical = element->logical;
    return (converted < 0 || converted == CONVERTED_UTF8 || converted == CONVERTED_ENUM ||
               (converted >= CONVERTED_UINT_8 && converted <= CONVERTED_JSON)) &&
           (logical < 0 || logical == LOGICAL_STRING || logical == LOGICAL_ENUM || (logical >= LOGICAL_INTEGER && logical <= LOGICAL_JSON));
}

/* Reads a LogicalType, a union, whose only field has the number of the annotation. */
static int read_logical(Thrift *thrift, int type) {
    int id = 0, inner;
    if (type != THRIFT_STRUCT) return thrift_skip(thrift, type), -1;
    inner = thrift_field(thrift, &id);
    thrift_skip(thrift, inner ? inner : THRIFT_TRUE);
    while (inner && (inner = thrift_field(thrift, &(int){0}))) thrift_skip(thrift, inner);
    return id ? id : -1;
}

static SchemaElement read_element(Thrift *thrift) {
    SchemaElement element = {.type = -1, .converted = -1, .logical = -1};
    for (int id = 0, type; (type = thrift_field(thrift, &id));) {
        if (id == 1) element.type = (int)thrift_int(thrift, type);
        else if (id == 3) element.repetition = (int)thrift_int(thrift, type);
        else if (id == 4) element.name_size = thrift_bytes(thrift, type, &element.name);
        else if (id == 5) element.children = thrift_int(thrift, type);
        else if (id == 6) element.converted = (int)thrift_int(thrift, type);
        else if (id == 10) element.logical = read_logical(thrift, type);
        else thrift_skip(thrift, type);
    }
    return element;
}

/* The walk through the elements. */
typedef struct SchemaWalk {
    ParquetFile *file;
    const SchemaElement *elements;
    size_t count, at;
    bool bad;
} SchemaWalk;
/* The place of a field: its parent and depth, and the levels of what is around it. */
typedef struct SchemaPlace { int parent, depth, defined, lists; } SchemaPlace;

static int read_schema_field(SchemaWalk *walk, SchemaPlace place);

static int fail_schema(SchemaWalk *walk) {
    walk->bad = true;
    return -1;
}

static int add_node(SchemaWalk *walk, const SchemaElement *element, SchemaPlace place, ParquetKind kind) {
    ParquetFile *file = walk->file;
    ParquetNode *node = &file->nodes[file->node_count];
    *node = (ParquetNode){.name = memory_format("%.*s", (int)element->name_size, element->name ? element->name : ""),
        .kind = kind,
        .parent = place.parent,
        .child = -1,
        .sibling = -1,
        .leaf = file->leaf_count,
        .defined = place.defined,
        .lists = place.lists};
    one_line(node->name);
    return file->node_count++;
}

static int add_leaf(SchemaWalk *walk, const SchemaElement *element, SchemaPlace place) {
    int at = add_node(walk, element, place, PARQUET_LEAF);
    ParquetNode *node = &walk->file->nodes[at];
    node->type = (ParquetType)element->type;
    node->is_unsigned = element->converted >= CONVERTED_UINT_8 && element->converted <= CONVERTED_UINT_64;
    node->is_null = element->logical == LOGICAL_UNKNOWN;
    if (element->type < 0 || element->type >= PARQUET_TYPES) return fail_schema(walk);
    node->unread = element->type == PARQUET_INT96         ? "of type INT96"
                   : element->type == PARQUET_FIXED_BYTES ? "of type FIXED_LEN_BYTE_ARRAY"
                   : !is_plain_leaf(element)              ? "a decimal, a date, a time or another type of its own"
                                                          : NULL;
    node->leaves = 1;
    walk->file->leaves[walk->file->leaf_count++] = at;
    return at;
}

static bool is_list(const SchemaElement *element) { return element->converted == CONVERTED_LIST || element->logical == LOGICAL_LIST; }
static bool is_map(const SchemaElement *element) {
    return element->converted == CONVERTED_MAP || element->converted == CONVERTED_MAP_KEY_VALUE || element->logical == LOGICAL_MAP;
}

/* Returns whether the repeated group in a list is its element, rather than a level around it
 * (LogicalTypes.md, "Backward-compatibility rules"). */
static bool is_list_element(const SchemaWalk *walk, const SchemaElement *list, const SchemaElement *group) {
    bool tuple = group->name_size == list->name_size + 6 && !memcmp(group->name, list->name, list->name_size) &&
                 !memcmp(group->name + list->name_size, "_tuple", 6);
    bool array = group->name_size == 5 && !memcmp(group->name, "array", 5);
    return group->children != 1 || tuple || array || (walk->at < walk->count && walk->elements[walk->at].repetition == REPEATED);
}

/* Adds the field that `element` is, without regard to its repetition. */
static int read_content(SchemaWalk *walk, const SchemaElement *element, SchemaPlace place) {
    ParquetFile *file = walk->file;
    if (element->children == 0) return add_leaf(walk, element, place);
    if (place.depth > PARQUET_DEPTH || element->children < 0 || (size_t)element->children > walk->count - walk->at)
        return fail_schema(walk);
    bool list = is_list(element) && element->children == 1 && walk->elements[walk->at].repetition == REPEATED;
    int at = add_node(walk, element, place, list ? PARQUET_LIST : PARQUET_STRUCT), last = -1;
    SchemaPlace inner = {at, place.depth + 1, place.defined, place.lists};
    if (is_map(element)) file->nodes[at].unread = "a map";
    if (list) {
        const SchemaElement *group = &walk->elements[walk->at++];
        file->nodes[at].filled = ++inner.defined;
        file->nodes[at].repeats = ++inner.lists;
        file->nodes[at].child = is_list_element(walk, element, group) ? read_content(walk, group, inner) : read_schema_field(walk, inner);
    }
    for (int64_t i = 0; i < element->children && !list && !walk->bad; i++) {
        int field = read_schema_field(walk, inner);
        if (walk->bad) break;
        *(last < 0 ? &file->nodes[at].child : &file->nodes[last].sibling) = field;
        last = field;
    }
    file->nodes[at].leaves = file->leaf_count - file->nodes[at].leaf;
    return at;
}

/* Adds the next element as a field. A repeated one is a list of its own. */
static int read_schema_field(SchemaWalk *walk, SchemaPlace place) {
    if (walk->at == walk->count) return fail_schema(walk);
    const SchemaElement *element = &walk->elements[walk->at++];
    if (element->repetition == OPTIONAL) place.defined++;
    if (element->repetition != REPEATED) return read_content(walk, element, place);
    int at = add_node(walk, element, place, PARQUET_LIST);
    SchemaPlace inner = {at, place.depth + 1, place.defined + 1, place.lists + 1};
    walk->file->nodes[at].filled = inner.defined;
    walk->file->nodes[at].repeats = inner.lists;
    walk->file->nodes[at].child = read_content(walk, element, inner);
    walk->file->nodes[at].leaves = walk->file->leaf_count - walk->file->nodes[at].leaf;
    return at;
}

static void read_schema(ParquetFile *file, Thrift *thrift, int type) {
    size_t count = thrift_list(thrift, type, THRIFT_STRUCT);
    if (count == 0 || count > PARQUET_FIELDS || file->nodes) thrift->bad = true;
    if (thrift->bad) return;
    SCOPED_FREE SchemaElement *elements = memory_allocate(count * sizeof *elements);
    file->nodes = memory_allocate(2 * count * sizeof *file->nodes); /* a repeated element may be a list and its element */
    file->leaves = memory_allocate(count * sizeof *file->leaves);
    for (size_t i = 0; i < count; i++) elements[i] = read_element(thrift);
    SchemaWalk walk = {.file = file, .elements = elements, .count = count};
    elements[0].repetition = REQUIRED;
    if (thrift->bad) return;
    walk.at = 1;
    SchemaPlace top = {.parent = -1};
    int root = count > 1 ? read_content(&walk, &elements[0], top) : add_node(&walk, &elements[0], top, PARQUET_STRUCT);
    thrift->bad = walk.bad || walk.at != count || file->nodes[root].kind != PARQUET_STRUCT;
}

/* -- Column chunks ----------------------------------------------------------------------------------------------------- */

static void read_chunk_facts(Thrift *thrift, int type, ParquetChunk *chunk) {
    int64_t data = -1, dictionary = 0;
    if (type != THRIFT_STRUCT) thrift->bad = true;
    for (int id = 0; (type = thrift_field(thrift, &id));) {
        if (id == 1) chunk->type = (int)thrift_int(thrift, type);
        else if (id == 4) chunk->codec = (int)thrift_int(thrift, type);
        else if (id == 5) chunk->values = thrift_int(thrift, type);
        else if (id == 7) chunk->bytes = thrift_int(thrift, type);
        else if (id == 9) data = thrift_int(thrift, type);
        else if (id == 11) dictionary = thrift_int(thrift, type);
        else thrift_skip(thrift, type);
    }
    chunk->offset = dictionary > 0 && dictionary < data ? dictionary : data;
}

static ParquetChunk read_column_chunk(Thrift *thrift) {
    ParquetChunk chunk = {.offset = -1};
    const char *name;
    for (int id = 0, type; (type = thrift_field(thrift, &id));) {
        if (id == 1) chunk.elsewhere = thrift_bytes(thrift, type, &name) > 0;
        else if (id == 3) read_chunk_facts(thrift, type, &chunk);
        else {
            chunk.encrypted = chunk.encrypted || (id == 8 && type == THRIFT_STRUCT);
            thrift_skip(thrift, type);
        }
    }
    if (chunk.offset < 0 && !chunk.encrypted) thrift->bad = true;
    return chunk;
}

static void read_group(ParquetFile *file, Thrift *thrift) {
    size_t count = 0;
    int64_t rows = -1;
    for (int id = 0, type; (type = thrift_field(thrift, &id));) {
        if (id == 1) {
            count = thrift_list(thrift, type, THRIFT_STRUCT);
            if (count != (size_t)file->leaf_count) thrift->bad = true;
            for (size_t i = 0; i < count && !thrift->bad; i++) array_append(file->chunks, file->chunk_count, read_column_chunk(thrift));
        } else if (id == 3) rows = thrift_int(thrift, type);
        else thrift_skip(thrift, type);
    }
    if (rows < 0 || file->chunk_count != (file->group_count + 1) * (size_t)file->leaf_count) thrift->bad = true;
    if (!thrift->bad) array_append(file->rows, file->group_count, rows);
}

static void read_metadata(ParquetFile *file, Thrift *thrift) {
    for (int id = 0, type; !thrift->bad && (type = thrift_field(thrift, &id));) {
        size_t count = 0;
        if (id == 2) read_schema(file, thrift, type);
        else if (id == 4) count = thrift_list(thrift, type, THRIFT_STRUCT);
        else thrift_skip(thrift, type);
        if (count && !file->nodes) thrift->bad = true; /* no writer puts row groups before the schema */
        for (size_t i = 0; i < count && !thrift->bad; i++) read_group(file, thrift);
    }
    if (!file->nodes) thrift->bad = true;
}

/* Checks that the rows of all groups have numbers below 2^62. */
static bool check_rows_sum(const ParquetFile *file) {
    int64_t sum = 0;
    for (size_t i = 0; i < file->group_count && sum >= 0; i++) sum = file->rows[i] < INT64_MAX / 2 - sum ? sum + file->rows[i] : -1;
    return sum >= 0;
}

static bool read_footer(ParquetFile *file, Error *error) {
    unsigned char tail[4 + MAGIC_BYTES];
    int64_t size = object_bytes(file->object);
    if (size < MAGIC_BYTES + (int64_t)sizeof tail) return refuse_footer(error, "it has no footer");
    if (!object_read(file->object, tail, sizeof tail, size - (int64_t)sizeof tail, error)) return error_recode(error, ERROR_DATA);
    if (!memcmp(tail + 4, "PARE", MAGIC_BYTES)) return parquet_refuse(error, "an encrypted Parquet file: write it without encryption");
    if (memcmp(tail + 4, "PAR1", MAGIC_BYTES) != 0) return refuse_footer(error, "its end is missing");
    int64_t length = tail[0] | tail[1] << 8 | tail[2] << 16 | (int64_t)tail[3] << 24;
    if (length > size - MAGIC_BYTES - (int64_t)sizeof tail) return refuse_footer(error, "its footer is longer than the file");
    if (length > PARQUET_FOOTER_BYTES)
        return parquet_refuse(error, "a Parquet file with a footer of %" PRId64 " bytes, more than %d: write larger row groups", length,
            PARQUET_FOOTER_BYTES);
    SCOPED_FREE unsigned char *bytes = memory_allocate((size_t)length + 1);
    file->data_end = size - length - (int64_t)sizeof tail;
    if (!object_read(file->object, bytes, length, file->data_end, error)) return error_recode(error, ERROR_DATA);
    Thrift thrift = {.at = bytes, .end = bytes + length};
    read_metadata(file, &thrift);
    return (!thrift.bad && check_rows_sum(file)) || refuse_footer(error, "its footer is malformed");
}

ParquetFile *parquet_open(const ObjectPlace *place, Error *error) {
    ParquetFile *file = memory_allocate(sizeof *file);
    file->object = object_open(place, error);
    if (file->object ? read_footer(file, error) : error_recode(error, ERROR_DATA)) return file;
    parquet_close(file);
    return NULL;
}

void parquet_close(ParquetFile *file) {
    if (!file) return;
    for (int i = 0; i < file->node_count; i++) free(file->nodes[i].name);
    free(file->nodes);
    free(file->leaves);
    free(file->rows);
    free(file->chunks);
    object_close(file->object);
    free(file);
}

/* -- Columns ----------------------------------------------------------------------------------------------------------- */

const ParquetNode *parquet_next(const ParquetFile *file, const ParquetNode *node) {
    return parquet_node(file, node ? node->sibling : file->nodes[0].child);
}

const ParquetNode *parquet_find(const ParquetFile *file, const char *name) {
    const ParquetNode *node = parquet_next(file, NULL);
    while (node && strcmp(node->name, name) != 0) node = parquet_next(file, node);
    return node;
}

void parquet_names(const ParquetFile *file, char *names, size_t size) {
    size_t used = 0;
    *names = '\0';
    for (const ParquetNode *node = NULL; used < size && (node = parquet_next(file, node));)
        used += (size_t)snprintf(names + used, size - used, "%s%s", used ? ", " : "", node->name);
}

/* Writes a field's name after those of the fields around it. */
static void write_path(const ParquetFile *file, const ParquetNode *node, char *path, size_t size) {
    if (node->parent > 0) write_path(file, &file->nodes[node->parent], path, size);
    else *path = '\0';
    size_t used = strlen(path);
    bool wraps = node->parent > 0 && file->nodes[node->parent].kind == PARQUET_LIST;
    if (!wraps) snprintf(path + used, size - used, "%s%s", used ? "." : "", node->name);
}

static bool refuse_column(const ParquetFile *file, const ParquetNode *node, Error *error, const char *what) {
    char path[200];
    write_path(file, node, path, sizeof path);
    return parquet_refuse(error, "a Parquet file whose column %s is %s", path, what);
}

static bool check_chunk(const ParquetFile *file, const ParquetNode *node, int64_t group, Error *error) {
    const ParquetChunk *chunk = parquet_chunk(file, group, node->leaf);
    char what[160];
    if (chunk->encrypted) return refuse_column(file, node, error, "encrypted: write it without encryption");
    if (chunk->elsewhere) return refuse_column(file, node, error, "in another file: write one file with all columns");
    const char *codec = parquet_unread_codec(chunk->codec);
    snprintf(what, sizeof what, "compressed by %s, which smelt does not read: write it anew with compression zstd or snappy", codec);
    if (codec) return refuse_column(file, node, error, what);
    bool inside = chunk->offset >= MAGIC_BYTES && chunk->bytes >= 0 && chunk->bytes <= file->data_end - chunk->offset;
    bool whole = node->lists ? chunk->values >= file->rows[group] : chunk->values == file->rows[group];
    if (chunk->type == (int)node->type && whole && (inside || chunk->values == 0)) return true;
    return refuse_column(file, node, error, "damaged (its place or its number of values is impossible): copy or download the file again");
}

bool parquet_check(const ParquetFile *file, const ParquetNode *node, Error *error) {
    char what[160];
    snprintf(what, sizeof what, "%s, which smelt does not read: leave the column out, or write it as text", node->unread);
    if (node->unread) return refuse_column(file, node, error, what);
    for (int child = node->child; child >= 0; child = file->nodes[child].sibling)
        if (!parquet_check(file, &file->nodes[child], error)) return false;
    for (size_t group = 0; group < file->group_count && node->kind == PARQUET_LEAF; group++)
        if (!check_chunk(file, node, (int64_t)group, error)) return false;
    return true;
}

/* Counts the leaves of the columns. */
static size_t count_leaves(const ParquetNode *const *nodes, size_t count) {
    size_t leaves = 0;
    for (size_t i = 0; i < count; i++) leaves += (size_t)nodes[i]->leaves;
    return leaves;
}

void parquet_expect(ParquetFile *file, const ParquetNode *const *nodes, size_t count, int64_t group) {
    size_t groups = file->group_count - (size_t)int_min(group, (int64_t)file->group_count), width = count_leaves(nodes, count), used = 0;
    SCOPED_FREE ObjectRange *ranges = memory_allocate((groups * width + 1) * sizeof *ranges);
    for (; group < (int64_t)file->group_count; group++)
        for (size_t i = 0; i < count; i++)
            for (int leaf = nodes[i]->leaf; leaf < nodes[i]->leaf + nodes[i]->leaves; leaf++) {
                const ParquetChunk *chunk = parquet_chunk(file, group, leaf);
                ranges[used++] = chunk->values > 0 ? (ObjectRange){chunk->offset, chunk->offset + chunk->bytes} : (ObjectRange){0};
            }
    object_expect(file->object, ranges, used, width ? width : 1);
}
