/* fp32 to bf16 and back: weights from their masters, gradients on their way between ranks. */
#include "backend/gpu/vector.h"

typedef struct CastArguments {
    GLOBAL bf16 *narrow;
    GLOBAL float *wide;
    int64_t count;
} CastArguments;

#ifdef GPU_DEVICE

INLINE void unit_to_bf16(const CastArguments *a, int64_t at, int unit) {
    store8_bf16(a->narrow + at, load8_wide(a->wide + at, unit), unit);
}
INLINE void unit_to_float(const CastArguments *a, int64_t at, int unit) {
    store8_wide(a->wide + at, load8_bf16(a->narrow + at, unit), unit);
}
FLAT_KERNEL(narrow_all, CastArguments, unit_to_bf16)
FLAT_KERNEL(widen_all, CastArguments, unit_to_float)

#else

#include "backend/gpu/kernel_launch.h"

LAUNCHER(narrow_all, CastArguments)
LAUNCHER(widen_all, CastArguments)

void gpu_cast_to_bf16(Device *device, bf16 *to, const float *from, int64_t count) {
    launch_narrow_all(device, flat_shape(count), &(CastArguments){to, (float *)from, count});
}

void gpu_cast_to_float(Device *device, float *to, const bf16 *from, int64_t count) {
    launch_widen_all(device, flat_shape(count), &(CastArguments){(bf16 *)from, to, count});
}

#endif
