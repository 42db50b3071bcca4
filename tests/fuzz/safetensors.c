/* A libFuzzer entry for safetensors files: any bytes must be refused with a message, or give tensors that lie inside
 * the file, are found by name, and make a file with the same tensors. Owns two
 * files under /tmp while a call runs. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "fuzz.h"

static int64_t bytes_of(const StoredTensor *tensor) {
    int64_t bytes = (int64_t)stored_type_bytes(tensor->type);
    for (int i = 0; i < tensor->rank; i++) bytes *= tensor->shape[i];
    return bytes;
}

static void require_inside(const Safetensors *file) {
    for (size_t i = 0; i < file->count; i++) {
        const StoredTensor *tensor = &file->tensors[i];
        const char *begin = tensor->data, *mapped = (const char *)file->map.bytes;
        int64_t bytes = bytes_of(tensor);
        volatile char sum = 0;
        require(bytes >= 0 && begin >= mapped && begin + bytes <= mapped + file->map.size);
        for (int64_t j = 0; j < bytes; j++) sum ^= begin[j];
        require(safetensors_find(file, tensor->name) == tensor);
    }
}

static void require_same_tensors(const Safetensors *file, const char *path) {
    Safetensors copy;
    Error error = {0};
    require(safetensors_write(path, file->tensors, file->count, file->metadata, &error) && safetensors_open(&copy, path, &error));
    require(copy.count == file->count);
    for (size_t i = 0; i < copy.count; i++) {
        const StoredTensor *a = &file->tensors[i], *b = &copy.tensors[i];
        require(!strcmp(a->name, b->name) && a->type == b->type && a->rank == b->rank && bytes_of(a) == bytes_of(b));
        require(bytes_of(a) == 0 || !memcmp(a->data, b->data, (size_t)bytes_of(a)));
    }
    safetensors_close(&copy);
}

FUZZ(safetensors) {
    char in[] = "/tmp/smelt-fuzz-XXXXXX", out[] = "/tmp/smelt-fuzz-XXXXXX";
    int from = mkstemp(in), to = mkstemp(out);
    Safetensors file;
    Error error = {0};
    require(from >= 0 && to >= 0 && write(from, data, size) == (ssize_t)size);
    close(from);
    close(to);
    if (safetensors_open(&file, in, &error)) {
        require_inside(&file);
        require_same_tensors(&file, out);
        safetensors_close(&file);
    } else {
        require_line(&error);
    }
    unlink(in);
    unlink(out);
}
