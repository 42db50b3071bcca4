/* A slice: which elements of a flattened tensor a rank has. They are contiguous, or runs at equal distances, as the
 * columns [c, c + n) of a matrix of N columns are: runs of n elements, one every N. A slice may begin and end inside a
 * run, so any part of a slice, in its order, is a slice again. Elements of a slice are numbered from 0, in the order of
 * the tensor, and lie one after another in memory.
 *
 * A slice has one form: what lies within one run is contiguous. Numbers and elements fit int64_t; nothing is owned. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Slice {
    int64_t first, count; /* its lowest element; how many elements it has */
    int64_t run, stride;  /* runs of `run` elements begin every `stride` elements: 0 < run < stride; 0 and 0: contiguous */
    int64_t skip;         /* elements of the first run that lie before `first`: 0 <= skip < run */
} Slice;

/* The element that has a number, which is below `count`. */
static inline int64_t slice_at(const Slice *slice, int64_t number) {
    int64_t in_runs = number + slice->skip;
    if (slice->run == 0) return slice->first + number;
    return slice->first - slice->skip + in_runs / slice->run * slice->stride + in_runs % slice->run;
}

/* The `count` elements from number `from` on, of a slice whose `run` may reach `stride`. */
Slice slice_part(const Slice *slice, int64_t from, int64_t count);
/* Whether it has the form above and lies in a tensor of so many elements. Any numbers may be given. */
bool slice_is_valid(const Slice *slice, int64_t elements);
bool slice_equal(const Slice *a, const Slice *b);

/* How many of its elements lie below an element of the tensor. */
int64_t slice_below(const Slice *slice, int64_t element);
/* How many of its elements from a number on, which is below `count`, follow each other in the tensor. */
int64_t slice_follow(const Slice *slice, int64_t number);
/* The number in `outer` from which on it has the elements of `inner` and no others between them; -1: nowhere, or their
 * runs are not alike. */
int64_t slice_within(const Slice *outer, const Slice *inner);
/* Whether they have an element in common. */
bool slices_meet(const Slice *a, const Slice *b);
/* Copies the elements that both have; elements are `width` bytes. The memories do not overlap. */
void slice_copy(const Slice *to, void *to_memory, const Slice *from, const void *from_memory, size_t width);
