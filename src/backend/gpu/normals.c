/* Initial weights: mean + deviation * normal, with the bits that the host makes of them (base/normals.h). A thread
 * makes the values of one philox. Owns no memory. */
#include "backend/gpu/gpu.h"

#include "base/rng.h"

typedef struct NormalsArguments {
    void GLOBAL *to;
    int64_t first, count;
    uint64_t seed, stream;
    double mean, deviation;
    int32_t rounded; /* to bf16 */
} NormalsArguments;

enum { THREADS = 256 };

#ifdef GPU_DEVICE

#pragma clang fp contract(off)
#include "base/normals.h"

KERNEL(normals, NormalsArguments) {
    int64_t block = a.first / NORMALS_OF_BITS + (int64_t)block_x() * THREADS + thread_id(), at = block * NORMALS_OF_BITS - a.first;
    RngBits bits = philox(a.seed, a.stream, (uint64_t)block);
    float values[NORMALS_OF_BITS];
    normals_pair(bits.word[0], bits.word[1], &values[0], &values[1]);
    normals_pair(bits.word[2], bits.word[3], &values[2], &values[3]);
    UNROLL for (int i = 0; i < NORMALS_OF_BITS; i++) {
        float value = (float)(a.mean + a.deviation * values[i]);
        if (at + i < 0 || at + i >= a.count) continue;
        if (a.rounded) ((bf16 GLOBAL *)a.to)[at + i] = to_bf16(value);
        else ((float GLOBAL *)a.to)[at + i] = value;
    }
}

#else

#include "base/normals.h"
#include "backend/gpu/driver.h"

LAUNCHER(normals, NormalsArguments)

void gpu_normals(Device *device, void *to, int element_bytes, int64_t first, int64_t count, const Normals *normals) {
    assert(element_bytes == 2 || element_bytes == 4);
    if (count == 0) return;
    int64_t blocks = (first + count - 1) / NORMALS_OF_BITS - first / NORMALS_OF_BITS + 1;
    NormalsArguments arguments = {.to = to,
        .first = first,
        .count = count,
        .seed = normals->seed,
        .stream = normals->stream,
        .mean = normals->mean,
        .deviation = normals->deviation,
        .rounded = element_bytes == 2};
    launch_normals(device, (LaunchShape){.x = divide_up(blocks, THREADS), .threads = THREADS}, &arguments);
}

#endif
