/* A slice: the elements of a flattened tensor that a rank has. They are contiguous, or runs at
 * equal distances. For example, the columns [c, c + n) of a matrix of N columns are runs of n
 * elements, one every N. A slice may begin and end inside a run, so any consecutive part of a slice
 * is a slice again. Elements of a slice are numbered from 0, in the order of the tensor, and are
 * contiguous in memory.
 *
 * The form of a slice is unique: a slice within one run is contiguous. Numbers and elements fit
 * int64_t; nothing is owned. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Slice {
    int64_t first, count; /* its lowest element; its number of elements */
    int64_t run, stride;  /* runs of `run` elements begin every `stride` elements: 0 < run < stride; 0 and 0: contiguous */
    int64_t skip;         /* elements of the first run before `first`: 0 <= skip < run */
} Slice;

/* Returns the element with this number, which is below `count`. */
static inline int64_t slice_at(const Slice *slice, int64_t number) {
    int64_t in_runs = number + slice->skip;
    if (slice->run == 0) return slice->first + number;
    return slice->first - slice->skip + in_runs / slice->run * slice->stride + in_runs % slice->run;
}

/* Returns the `count` elements from number `from`, of a slice whose `run` may equal `stride`. */
Slice slice_part(const Slice *slice, int64_t from, int64_t count);
/* Returns whether a slice has the form above and fits a tensor of `elements` elements. Accepts any
 * numbers. */
bool slice_is_valid(const Slice *slice, int64_t elements);
bool slice_equal(const Slice *a, const Slice *b);

/* Returns how many elements of the slice are below an element of the tensor. */
int64_t slice_below(const Slice *slice, int64_t element);
/* Returns how many elements of the slice are consecutive in the tensor, from element `number`
 * on, which is below `count`. */
int64_t slice_follow(const Slice *slice, int64_t number);
/* Returns the number of the element of `outer` from which on it has exactly the elements of
 * `inner`, without others in between. -1 if it has none or their runs differ. */
int64_t slice_within(const Slice *outer, const Slice *inner);
/* Returns whether they share an element. */
bool slices_meet(const Slice *a, const Slice *b);
/* Copies the elements that both have; elements are `width` bytes. The memories must not overlap. */
void slice_copy(const Slice *to, void *to_memory, const Slice *from, const void *from_memory, size_t width);
