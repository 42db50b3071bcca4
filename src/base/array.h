/* Growable arrays with doubling room. An array that only grows needs no capacity besides its count
 * (array_append); a buffer that is emptied and refilled has one (array_reserve). Start with NULL;
 * release with free(). */
#pragma once

#include "base/memory.h"

/* Appends the last argument to `items`, which has `count` elements. Only this macro may grow the
 * array, because it assumes that there is room up to the next power of two. */
#define array_append(items, count, ...) \
    ((items) = array_grow((items), (size_t)(count), sizeof *(items)), (items)[(count)++] = (__VA_ARGS__))

/* Makes room in `items` for `needed` elements; `capacity` (a size_t) is the present room. */
#define array_reserve(items, capacity, needed) ((items) = array_resize((items), &(capacity), (needed), sizeof *(items)))

/* Returns count * bytes; SIZE_MAX, which no allocator grants, on overflow. */
static inline size_t array_bytes(size_t count, size_t bytes) {
    size_t product;
    return __builtin_mul_overflow(count, bytes, &product) ? SIZE_MAX : product;
}

/* For array_append: makes room for one element after `count` elements of `bytes` each. */
static inline void *array_grow(void *items, size_t count, size_t bytes) {
    if (count & (count - 1)) return items; /* it is full only if the count is 0 or a power of two */
    return memory_resize(items, array_bytes(count ? count * 2 : 1, bytes));
}

/* For array_reserve. */
static inline void *array_resize(void *items, size_t *capacity, size_t needed, size_t bytes) {
    if (needed <= *capacity) return items;
    *capacity = needed <= *capacity * 2 ? *capacity * 2 : needed;
    return memory_resize(items, array_bytes(*capacity, bytes));
}
