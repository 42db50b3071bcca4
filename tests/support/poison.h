/* Breaking one element of a checkpoint, whose checksums are right afterwards. */
#pragma once

#include "checkpoint.h"
#include "train_run.h"

/* Loads all tensors of a checkpoint as its manifest lists them, changes one element, and saves it as the same step. */
static inline void poison(const char *run, int64_t step, const char *tensor, int64_t element, float value) {
    char *path = checkpoint_file(run, step, "manifest.json");
    json_t *manifest = json_load_file(path, 0, NULL), *list = json_object_get(manifest, "intervals"), *item, *dimension;
    size_t count = json_array_size(list), index, axis;
    Interval *intervals = memory_allocate(count * sizeof *intervals);
    json_array_foreach(list, index, item) {
        Interval *interval = &intervals[index];
        assert_string_equal(json_string_value(json_object_get(item, "dtype")), "F32");
        *interval = (Interval){.name = json_string_value(json_object_get(item, "tensor")), .type = STORED_F32};
        json_array_foreach(json_object_get(item, "shape"), axis, dimension) interval->shape[interval->rank++] =
            json_integer_value(dimension);
        interval->slice.count = json_integer_value(json_object_get(item, "count"));
        interval->data = memory_allocate((size_t)interval->slice.count * sizeof(float));
    }
    Error error = {0};
    if (!checkpoint_load(run, step, intervals, count, NULL, &error)) fail_msg("%s", error.message);
    int found = 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(intervals[i].name, tensor) == 0) ((float *)intervals[i].data)[element] = value, found++;
    assert_int_equal(found, 1);
    if (!checkpoint_save(run, step, intervals, count, json_object_get(manifest, "metadata"), 2, NULL, &error))
        fail_msg("%s", error.message);
    for (size_t i = 0; i < count; i++) free(intervals[i].data);
    free(intervals);
    json_decref(manifest);
    free(path);
}
