/* fp32 to bf16: weights from their masters. */
#include "kernel/gpu.h"

typedef struct CastArguments { GLOBAL bf16 *to; GLOBAL const float *from; int64_t count; } CastArguments;

enum { THREADS = 256, PER_THREAD = 8 };

#ifdef GPU_DEVICE

KERNEL(cast, CastArguments) {
    int64_t at = ((int64_t)block_x() * THREADS + thread_id()) * PER_THREAD;
    if (at + PER_THREAD <= a.count) {
        f32x4 low = *(GLOBAL const f32x4 *)(a.from + at), high = *(GLOBAL const f32x4 *)(a.from + at + 4);
        *(GLOBAL u32x4 *)(a.to + at) = (u32x4){narrow_pair(low.x, low.y), narrow_pair(low.z, low.w), narrow_pair(high.x, high.y), narrow_pair(high.z, high.w)};
    } else {
        for (; at < a.count; at++) a.to[at] = narrow(a.from[at]);
    }
}

#else

#include "kernel/launch.h"

LAUNCHER(cast, cast, CastArguments)

void gpu_cast(Device *device, bf16 *to, const float *from, int64_t count) {
    launch_cast(device, (LaunchShape){.x = ceil_divide(count, THREADS * PER_THREAD), .threads = THREADS}, &(CastArguments){to, from, count});
}

#endif
