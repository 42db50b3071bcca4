/* Tries as double arrays, in the layout of the Darts library, which SentencePiece's character maps
 * also use: unit `base ^ byte` is a node's child for the byte if its label is the byte. The child
 * for byte 0 holds the value of a key that ends. A step is one load, so searching at every
 * character of a text is cheap. Reading is safe on any units. The caller that builds or copies an
 * array owns it. */
#include <stdlib.h>

#include "base/array.h"
#include "token/token_internal.h"

/* A base is searched in the last OPEN_UNITS units only; earlier units are nearly full. */
enum { BLOCK = 256, OPEN_UNITS = 16 * BLOCK, TAKEN = 1, BASE = 2, UNITS_LIMIT = 1 << 28 };
#define LEAF_BIT (1u << 8)
#define FAR_BIT (1u << 9)

void double_array_free(DoubleArray *array) {
    free(array->units);
    *array = (DoubleArray){0};
}

bool double_array_copy(DoubleArray *array, const char *bytes, size_t size) {
    if (size == 0 || size % sizeof *array->units != 0) return false;
    array->count = size / sizeof *array->units;
    array->units = memory_allocate(size);
    memcpy(array->units, bytes, size);
    return true;
}

/* -- Building ------------------------------------------------------------------------------------------------------ */

typedef struct ArrayBuilder {
    DoubleArray *array;
    const TrieKey *keys;
    unsigned char *marks; /* per unit: TAKEN, and BASE if it is the base of a node */
    size_t capacity;
} ArrayBuilder;

typedef struct ArrayTask { size_t node, first, end, depth; /* the keys [first, end) share `depth` bytes */ } ArrayTask;

static int compare_key_spans(const void *left, const void *right) {
    const TrieKey *a = left, *b = right;
    size_t size = a->text.size < b->text.size ? a->text.size : b->text.size;
    int order = memcmp(a->text.bytes, b->text.bytes, size);
    return order ? order : (a->text.size > b->text.size) - (a->text.size < b->text.size);
}

static void double_array_grow(ArrayBuilder *builder) {
    size_t old = builder->array->count;
    builder->array->count = old + BLOCK;
    if (builder->array->count <= builder->capacity) return;
    size_t capacity = builder->capacity ? builder->capacity * 2 : OPEN_UNITS;
    builder->array->units = memory_resize(builder->array->units, capacity * sizeof *builder->array->units);
    builder->marks = memory_resize(builder->marks, capacity);
    memset(builder->array->units + builder->capacity, 0, (capacity - builder->capacity) * sizeof *builder->array->units);
    memset(builder->marks + builder->capacity, 0, capacity - builder->capacity);
    builder->capacity = capacity;
}

/* Lists the next bytes of a range of keys, in order; 0 first if a key ends. Returns their count. */
static int labels_of(const ArrayBuilder *builder, const ArrayTask *task, unsigned char labels[BLOCK]) {
    int count = 0;
    for (size_t i = task->first; i < task->end; i++) {
        Span text = builder->keys[i].text;
        unsigned char label = text.size == task->depth ? 0 : (unsigned char)text.bytes[task->depth];
        if (count == 0 || labels[count - 1] != label) labels[count++] = label;
    }
    return count;
}

static bool node_fits(const ArrayBuilder *builder, size_t node, size_t base, const unsigned char *labels, int count) {
    size_t offset = node ^ base;
    if ((builder->marks[base] & BASE) || (offset >= 1u << 21 && (offset & 0xFF) != 0)) return false;
    for (int i = 0; i < count; i++)
        if (builder->marks[base ^ labels[i]] & TAKEN) return false;
    return true;
}

static size_t find_base(ArrayBuilder *builder, size_t node, const unsigned char *labels, int count) {
    size_t from = builder->array->count > OPEN_UNITS ? builder->array->count - OPEN_UNITS : 0;
    for (;; from = builder->array->count, double_array_grow(builder))
        for (size_t at = from; at < builder->array->count; at++)
            if (!(builder->marks[at] & TAKEN) && node_fits(builder, node, at ^ labels[0], labels, count)) return at ^ labels[0];
}

/* Places the children of a node, and adds a task for each child that is not a value. */
static void place_node(ArrayBuilder *builder, const ArrayTask *task, ArrayTask **tasks, size_t *count) {
    unsigned char labels[BLOCK];
    int children = labels_of(builder, task, labels);
    size_t base = find_base(builder, task->node, labels, children), offset = task->node ^ base, first = task->first;
    uint32_t *units = builder->array->units;
    builder->marks[base] |= BASE;
    units[task->node] |= offset < 1u << 21 ? (uint32_t)offset << 10 : (uint32_t)(offset >> 8) << 10 | FAR_BIT;
    for (int i = 0; i < children; i++) {
        size_t child = base ^ labels[i], end = first;
        builder->marks[child] |= TAKEN;
        units[child] = labels[i];
        if (labels[i] == 0) {
            units[task->node] |= LEAF_BIT;
            units[child] = 1u << 31 | (uint32_t)builder->keys[first++].value;
            continue;
        }
        while (end < task->end && (unsigned char)builder->keys[end].text.bytes[task->depth] == labels[i]) end++;
        array_append(*tasks, *count, (ArrayTask){child, first, end, task->depth + 1});
        first = end;
    }
}

bool double_array_build(DoubleArray *array, TrieKey *keys, size_t count) {
    ArrayBuilder builder = {.array = array, .keys = keys};
    *array = (DoubleArray){0};
    SCOPED_FREE ArrayTask *tasks = NULL;
    size_t waiting = 0;
    if (count > 0) qsort(keys, count, sizeof *keys, compare_key_spans);
    double_array_grow(&builder);
    builder.marks[0] |= TAKEN;
    if (count > 0) array_append(tasks, waiting, (ArrayTask){0, 0, count, 0});
    while (waiting > 0 && array->count < UNITS_LIMIT) {
        ArrayTask task = tasks[--waiting];
        place_node(&builder, &task, &tasks, &waiting);
    }
    free(builder.marks);
    return waiting == 0;
}
