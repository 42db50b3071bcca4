/* Arithmetic of slices. Two slices are compared by walking through the runs of both at once, with a
 * division or two per run. Called by checkpoints, initial values and other readers of parts of a
 * tensor. */
#include "base/slice.h"

#include <string.h>

#include "base/math.h"

Slice slice_part(const Slice *slice, int64_t from, int64_t count) {
    Slice part = {.first = count > 0 ? slice_at(slice, from) : slice->first, .count = count};
    int64_t skip = slice->run ? (from + slice->skip) % slice->run : 0;
    if (slice->run == slice->stride || count <= slice->run - skip) return part;
    part.run = slice->run;
    part.stride = slice->stride;
    part.skip = skip;
    return part;
}

bool slice_is_valid(const Slice *slice, int64_t elements) {
    int64_t run = slice->run, skip = slice->skip;
    if (slice->first < 0 || slice->first > elements || slice->count < 0) return false;
    if (run == 0) return slice->stride == 0 && skip == 0 && slice->count <= elements - slice->first;
    if (run < 0 || run >= slice->stride || skip < 0 || skip >= run || skip > slice->first) return false;
    int64_t begin = slice->first - skip, behind = slice->count - (run - skip); /* elements after the first run */
    if (behind <= 0 || (behind - 1) / run + 1 > (elements - begin) / slice->stride) return false;
    return (behind - 1) % run < elements - begin - ((behind - 1) / run + 1) * slice->stride;
}

bool slice_equal(const Slice *a, const Slice *b) {
    return a->first == b->first && a->count == b->count && a->run == b->run && a->stride == b->stride && a->skip == b->skip;
}

int64_t slice_below(const Slice *slice, int64_t element) {
    if (element <= slice->first) return 0;
    if (slice->run == 0) return int_min(element - slice->first, slice->count);
    int64_t offset = element - slice->first + slice->skip;
    int64_t number = offset / slice->stride * slice->run + int_min(offset % slice->stride, slice->run) - slice->skip;
    return int_min(number, slice->count);
}

int64_t slice_follow(const Slice *slice, int64_t number) {
    int64_t left = slice->count - number;
    return slice->run == 0 ? left : int_min(left, slice->run - (number + slice->skip) % slice->run);
}

int64_t slice_within(const Slice *outer, const Slice *inner) {
    int64_t number = slice_below(outer, inner->first);
    if (inner->count > outer->count - number || number == outer->count || slice_at(outer, number) != inner->first) return -1;
    if (inner->run == 0) return inner->count <= slice_follow(outer, number) ? number : -1;
    bool alike = inner->run == outer->run && inner->stride == outer->stride && (number + outer->skip) % outer->run == inner->skip;
    return alike ? number : -1;
}

/* Returns whether whole runs of two slices with equal strides overlap modulo the stride. */
static bool runs_meet(const Slice *a, const Slice *b) {
    int64_t distance = (b->first - b->skip - (a->first - a->skip)) % a->stride;
    if (distance < 0) distance += a->stride;
    return distance < a->run || a->stride - distance < b->run;
}

bool slices_meet(const Slice *a, const Slice *b) {
    if (a->run && a->stride == b->stride && !runs_meet(a, b)) return false; /* avoids a walk through all runs */
    for (int64_t i = 0; i < a->count;) {
        int64_t element = slice_at(a, i), j = slice_below(b, element);
        if (j == b->count) return false;
        int64_t next = slice_at(b, j);
        if (next - element < slice_follow(a, i)) return true;
        i = slice_below(a, next);
    }
    return false;
}

void slice_copy(const Slice *to, void *to_memory, const Slice *from, const void *from_memory, size_t width) {
    for (int64_t i = 0; i < from->count;) {
        int64_t element = slice_at(from, i), j = slice_below(to, element);
        if (j == to->count) return;
        int64_t next = slice_at(to, j), skipped = next - element, left = slice_follow(from, i) - skipped;
        if (left <= 0) {
            i = slice_below(from, next);
            continue;
        }
        int64_t count = int_min(left, slice_follow(to, j));
        i += skipped;
        memcpy((char *)to_memory + (size_t)j * width, (const char *)from_memory + (size_t)i * width, (size_t)count * width);
        i += count;
    }
}
