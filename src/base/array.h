/* Growable arrays. Two idioms, both of which double: an array that only grows needs no capacity beside its count, and a
 * buffer that is emptied and filled again keeps one. Arrays come from memory_allocate or NULL, and free() frees them. */
#pragma once

#include "base/memory.h"

/* Appends the value given last to `items`, which has `count` elements and, being grown by this macro alone, room for the
 * next power of two. */
#define array_append(items, count, ...) \
    ((items) = array_grow((items), (size_t)(count), sizeof *(items)), (items)[(count)++] = (__VA_ARGS__))

/* Makes room in `items` for `needed` elements; `capacity` (a size_t) says how many there is room for. */
#define array_reserve(items, capacity, needed) ((items) = array_resize((items), &(capacity), (needed), sizeof *(items)))

/* An amount that is refused when the product overflows. */
static inline size_t array_bytes(size_t count, size_t bytes) {
    size_t product;
    return __builtin_mul_overflow(count, bytes, &product) ? SIZE_MAX : product;
}

/* Behind array_append: room for one element after `count` of `bytes` each. */
static inline void *array_grow(void *items, size_t count, size_t bytes) {
    if (count & (count - 1)) return items; /* not full: only powers of two are reached with no room left */
    return memory_resize(items, array_bytes(count ? count * 2 : 1, bytes));
}

/* Behind array_reserve. */
static inline void *array_resize(void *items, size_t *capacity, size_t needed, size_t bytes) {
    if (needed <= *capacity) return items;
    *capacity = needed <= *capacity * 2 ? *capacity * 2 : needed;
    return memory_resize(items, array_bytes(*capacity, bytes));
}
