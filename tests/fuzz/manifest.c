/* A libFuzzer entry for manifests of checkpoints: the input is a manifest without its own checksum, which is appended,
 * since no change of bytes would pass it. It is refused, or its intervals lie inside its files and it is written and read
 * back as the same. Owns two files in the entries' folder. */
#include <inttypes.h>
#include <xxhash.h>

#include "base/memory.h"
#include "ckpt/ckpt_internal.h"
#include "fuzz.h"

/* The slice is what was written, and walking through it, as loading does, stays in the tensor. */
static void require_slice(const Interval *interval, const Slice *written) {
    const Slice *slice = &interval->slice;
    int64_t elements = 1, number = 0;
    require(slice_equal(slice, written));
    for (int i = 0; i < interval->rank; i++) elements *= interval->shape[i];
    for (int steps = 0; steps < 100 && number < slice->count; steps++) {
        int64_t element = slice_at(slice, number), follow = slice_follow(slice, number);
        require(element >= 0 && element < elements && follow > 0 && follow <= elements - element);
        require(slice_below(slice, element) == number && slice_below(slice, element + follow) == number + follow);
        number += follow;
    }
    require(slice->count == 0 || slice_at(slice, slice->count - 1) < elements);
}

static void require_same_manifest(const Manifest *manifest, Store *store) {
    Manifest again;
    Error error = {0};
    int64_t bytes;
    require(manifest_write(manifest, store, "again", &bytes, &error) && manifest_read(&again, store, "again", &error));
    require(again.step == manifest->step && again.file_count == manifest->file_count && again.interval_count == manifest->interval_count);
    for (size_t i = 0; i < again.interval_count; i++) {
        const ManifestInterval *a = &again.intervals[i], *b = &manifest->intervals[i];
        const ManifestFile *file = &again.files[a->file];
        require(interval_compare(a, b) == 0 && interval_same_tensor(&a->interval, &b->interval) && a->file == b->file);
        require_slice(&a->interval, &b->interval.slice);
        require(a->range.begin == b->range.begin && a->range.end == b->range.end && a->range.hash == b->range.hash);
        require(a->range.begin >= file->header.end && a->range.begin <= a->range.end && a->range.end <= file->bytes);
    }
    manifest_free(&again);
}

FUZZ(manifest) {
    Error error = {0};
    Manifest manifest;
    char *hashed = memory_format("%.*s,\n\"manifest_xxh3\": \"", (int)size, (const char *)data);
    char *text = memory_format("%s%016" PRIx64 "\"\n}\n", hashed, (uint64_t)XXH3_64bits(hashed, strlen(hashed)));
    fuzz_file("manifest", text, strlen(text));
    Store *store = store_open(fuzz_folder(), &error);
    require(store != NULL);
    if (manifest_read(&manifest, store, "manifest", &error)) {
        require_same_manifest(&manifest, store);
        manifest_free(&manifest);
    } else {
        require_line(&error);
    }
    store_close(store);
    free(text);
    free(hashed);
}
