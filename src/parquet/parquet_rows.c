/* Puts rows together from the columns of a row group (Melnik et al., "Dremel: Interactive
 * Analysis of Web-Scale Datasets", 2010), and writes them as JSON. The next value of each leaf
 * is decoded ahead, because its repetition level says whether a list continues. ParquetRows own
 * a column, a page and its values for each leaf, and the text of one row. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "parquet/parquet_internal.h"

typedef struct RowLeaf {
    ParquetColumn column;
    ParquetPage page;
    ParquetValues values;
    ParquetValue next; /* at the end of the column its levels are 0 */
    bool ended;
} RowLeaf;

struct ParquetRows {
    const ParquetFile *file;
    const ParquetNode **nodes;
    size_t count;
    RowLeaf **leaves; /* by the number of the leaf; NULL: not read */
    int leaf_end;     /* above the numbers of all leaves */
    bool started;
    char *text;
    size_t size, capacity, limit;
};

static bool disagree(const ParquetNode *node, Error *error) {
    return parquet_refuse(error, "the columns of %s do not agree about its rows", node->name);
}

/* -- Text ------------------------------------------------------------------------------------------------------------ */

static void put(ParquetRows *rows, const char *text, size_t size) {
    if (rows->size > rows->limit || size > rows->limit - rows->size) rows->size = rows->limit + 1;
    if (rows->size > rows->limit) return;
    array_reserve(rows->text, rows->capacity, rows->size + size + 1);
    memcpy(rows->text + rows->size, text, size);
    rows->size += size;
}

static void put_string(ParquetRows *rows, const char *text, size_t size) {
    static const char short_escapes[32] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    char escape[8] = "\\";
    put(rows, "\"", 1);
    for (size_t at = 0, from = 0;; at++) {
        if (at < size && (unsigned char)text[at] >= 0x20 && text[at] != '"' && text[at] != '\\') continue;
        put(rows, text + from, at - from);
        if (at == size) break;
        unsigned char byte = (unsigned char)text[at];
        escape[1] = byte >= 0x20 ? (char)byte : short_escapes[byte];
        if (escape[1]) put(rows, escape, 2);
        else put(rows, escape, (size_t)(1 + snprintf(escape + 1, sizeof escape - 1, "u%04x", byte)));
        from = at + 1;
    }
    put(rows, "\"", 1);
}

static void put_value(ParquetRows *rows, const ParquetNode *node, const ParquetValue *value) {
    char number[40];
    bool real = node->type == PARQUET_FLOAT || node->type == PARQUET_DOUBLE, nan = real && value->real != value->real;
    if (node->type == PARQUET_BYTES) return put_string(rows, (const char *)value->bytes, value->size);
    if (node->type == PARQUET_BOOLEAN) snprintf(number, sizeof number, value->whole ? "true" : "false");
    else if (nan) snprintf(number, sizeof number, "NaN");
    else if (real && value->real - value->real != 0) snprintf(number, sizeof number, value->real > 0 ? "Infinity" : "-Infinity");
    else if (real) snprintf(number, sizeof number, "%.17g", value->real);
    else if (node->is_unsigned && node->type == PARQUET_INT32) snprintf(number, sizeof number, "%" PRIu32, (uint32_t)value->whole);
    else if (node->is_unsigned) snprintf(number, sizeof number, "%" PRIu64, (uint64_t)value->whole);
    else snprintf(number, sizeof number, "%" PRId64, value->whole);
    put(rows, number, strlen(number));
}

/* -- Leaves ---------------------------------------------------------------------------------------------------------- */

/* Decodes the next value of a leaf. */
static bool advance(RowLeaf *leaf, Error *error) {
    if (leaf->values.left == 0) {
        parquet_page_free(&leaf->page);
        if (!parquet_column_page(&leaf->column, &leaf->page, error)) return false;
        leaf->ended = !leaf->page.stored;
        leaf->next = (ParquetValue){0};
        if (!leaf->ended && !parquet_values_open(&leaf->values, &leaf->page, leaf->column.dictionary, error)) return false;
    }
    return leaf->ended || parquet_values_next(&leaf->values, &leaf->next, error);
}

/* Passes over one value of each leaf below a field that is null or empty. */
static bool advance_all(ParquetRows *rows, const ParquetNode *node, Error *error) {
    for (int i = node->leaf; i < node->leaf + node->leaves; i++)
        if (rows->leaves[i]->ended || !advance(rows->leaves[i], error)) return rows->leaves[i]->ended && disagree(node, error);
    return true;
}

/* -- Fields ---------------------------------------------------------------------------------------------------------- */

static bool put_field(ParquetRows *rows, const ParquetNode *node, Error *error);

static bool put_leaf(ParquetRows *rows, const ParquetNode *node, Error *error) {
    RowLeaf *leaf = rows->leaves[node->leaf];
    if (leaf->ended) return disagree(node, error);
    if (leaf->next.defined < node->defined) put(rows, "null", 4);
    else put_value(rows, node, &leaf->next);
    return advance(leaf, error);
}

static bool put_struct(ParquetRows *rows, const ParquetNode *node, Error *error) {
    put(rows, "{", 1);
    for (const ParquetNode *field = parquet_node(rows->file, node->child); field; field = parquet_node(rows->file, field->sibling)) {
        if (field != parquet_node(rows->file, node->child)) put(rows, ", ", 2);
        put_string(rows, field->name, strlen(field->name));
        put(rows, ": ", 2);
        if (!put_field(rows, field, error)) return false;
    }
    put(rows, "}", 1);
    return true;
}

/* Sets *more to whether a list has another element; all leaves must say the same. */
static bool list_goes_on(const ParquetRows *rows, const ParquetNode *node, bool *more, Error *error) {
    *more = rows->leaves[node->leaf]->next.repeated == node->repeats;
    for (int i = node->leaf; i < node->leaf + node->leaves; i++)
        if ((rows->leaves[i]->next.repeated == node->repeats) != *more) return disagree(node, error);
    return true;
}

static bool put_list(ParquetRows *rows, const ParquetNode *node, Error *error) {
    put(rows, "[", 1);
    bool more = rows->leaves[node->leaf]->next.defined >= node->filled;
    if (!more && !advance_all(rows, node, error)) return false;
    for (bool first = true; more; first = false) {
        if (!first) put(rows, ", ", 2);
        if (!put_field(rows, parquet_node(rows->file, node->child), error) || !list_goes_on(rows, node, &more, error)) return false;
    }
    put(rows, "]", 1);
    return true;
}

static bool put_field(ParquetRows *rows, const ParquetNode *node, Error *error) {
    if (node->kind == PARQUET_LEAF) return put_leaf(rows, node, error);
    if (rows->leaves[node->leaf]->next.defined < node->defined) return put(rows, "null", 4), advance_all(rows, node, error);
    return node->kind == PARQUET_LIST ? put_list(rows, node, error) : put_struct(rows, node, error);
}

/* -- Rows ------------------------------------------------------------------------------------------------------------ */

ParquetRows *parquet_rows_open(const ParquetFile *file, int64_t group, const ParquetNode *const *nodes, size_t count) {
    ParquetRows *rows = memory_allocate(sizeof *rows);
    rows->file = file;
    rows->nodes = memory_allocate((count + 1) * sizeof *rows->nodes);
    rows->count = count;
    for (size_t i = 0; i < count; i++) {
        rows->nodes[i] = nodes[i];
        int end = nodes[i]->leaf + nodes[i]->leaves;
        rows->leaf_end = end > rows->leaf_end ? end : rows->leaf_end;
    }
    rows->leaves = memory_allocate(((size_t)rows->leaf_end + 1) * sizeof *rows->leaves);
    for (size_t i = 0; i < count; i++)
        for (int leaf = nodes[i]->leaf; leaf < nodes[i]->leaf + nodes[i]->leaves; leaf++) {
            rows->leaves[leaf] = memory_allocate(sizeof **rows->leaves);
            parquet_column_start(&rows->leaves[leaf]->column, file, parquet_leaf(file, leaf), group);
        }
    return rows;
}

/* Checks that all leaves are at the start of a row. */
static bool check_row_start(ParquetRows *rows, Error *error) {
    for (size_t i = 0; i < rows->count; i++)
        for (int leaf = rows->nodes[i]->leaf; leaf < rows->nodes[i]->leaf + rows->nodes[i]->leaves; leaf++) {
            if (!rows->started && !advance(rows->leaves[leaf], error)) return false;
            if (rows->leaves[leaf]->ended || rows->leaves[leaf]->next.repeated > 0) return disagree(rows->nodes[i], error);
        }
    rows->started = true;
    return true;
}

bool parquet_rows_next(ParquetRows *rows, size_t limit, const char **json, size_t *size, Error *error) {
    rows->size = 0;
    rows->limit = limit;
    if (!check_row_start(rows, error)) return false;
    put(rows, "{", 1);
    for (size_t i = 0; i < rows->count; i++) {
        if (i > 0) put(rows, ", ", 2);
        put_string(rows, rows->nodes[i]->name, strlen(rows->nodes[i]->name));
        put(rows, ": ", 2);
        if (!put_field(rows, rows->nodes[i], error)) return false;
    }
    put(rows, "}", 1);
    *json = rows->text;
    *size = rows->size;
    return true;
}

void parquet_rows_free(ParquetRows *rows) {
    if (!rows) return;
    for (int i = 0; i < rows->leaf_end; i++) {
        if (!rows->leaves[i]) continue;
        parquet_column_free(&rows->leaves[i]->column);
        parquet_page_free(&rows->leaves[i]->page);
        parquet_values_free(&rows->leaves[i]->values);
        free(rows->leaves[i]);
    }
    free(rows->leaves);
    free(rows->nodes);
    free(rows->text);
    free(rows);
}
