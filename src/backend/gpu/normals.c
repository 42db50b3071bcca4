/* Initial weights: mean + deviation * normal, with the same bits as on the host (base/normals.h). A
 * thread makes four values, those of one philox call if the slice allows it. Owns no memory. */
#include "backend/gpu/gpu.h"

#include "base/rng.h"
#include "base/slice.h"

typedef struct NormalsArguments {
    void GLOBAL *to;
    Slice slice;
    uint64_t seed, stream;
    double mean, deviation;
    int32_t rounded; /* to bf16 */
} NormalsArguments;

enum { THREADS = 256 };

#ifdef GPU_DEVICE

#pragma clang fp contract(off)
#include "base/normals.h"

KERNEL(normals, NormalsArguments) {
    int64_t at = ((int64_t)block_x() * THREADS + thread_id()) * NORMALS_OF_BITS, made = -1;
    float values[NORMALS_OF_BITS];
    for (int i = 0; i < NORMALS_OF_BITS && at + i < a.slice.count; i++) {
        int64_t element = slice_at(&a.slice, at + i), block = element / NORMALS_OF_BITS;
        if (block != made) {
            RngBits bits = philox(a.seed, a.stream, (uint64_t)block);
            normals_pair(bits.word[0], bits.word[1], &values[0], &values[1]);
            normals_pair(bits.word[2], bits.word[3], &values[2], &values[3]);
            made = block;
        }
        float normal = element % 4 < 2 ? (element % 2 ? values[1] : values[0]) : (element % 2 ? values[3] : values[2]);
        float value = (float)(a.mean + a.deviation * normal);
        if (a.rounded) ((bf16 GLOBAL *)a.to)[at + i] = to_bf16(value);
        else ((float GLOBAL *)a.to)[at + i] = value;
    }
}

#else

#include "base/normals.h"
#include "backend/gpu/driver.h"

LAUNCHER(normals, NormalsArguments)

void gpu_normals(Device *device, void *to, int element_bytes, const Slice *slice, const Normals *normals) {
    assert(element_bytes == 2 || element_bytes == 4);
    if (slice->count == 0) return;
    NormalsArguments arguments = {.to = to,
        .slice = *slice,
        .seed = normals->seed,
        .stream = normals->stream,
        .mean = normals->mean,
        .deviation = normals->deviation,
        .rounded = element_bytes == 2};
    launch_normals(device, (LaunchShape){.x = divide_up(slice->count, THREADS * NORMALS_OF_BITS), .threads = THREADS}, &arguments);
}

#endif
