/* Casts between fp32 and bf16: weights from their master weights, gradients that travel between
 * ranks. */
#include "backend/gpu/vector.h"

typedef struct CastArguments {
    GLOBAL bf16 *bf16s;
    GLOBAL float *floats;
    int64_t count;
} CastArguments;

#ifdef GPU_DEVICE

INLINE void unit_to_bf16(const CastArguments *a, int64_t at, int unit) {
    store8_bf16(a->bf16s + at, load8_wide(a->floats + at, unit), unit);
}
INLINE void unit_to_float(const CastArguments *a, int64_t at, int unit) {
    store8_wide(a->floats + at, load8_bf16(a->bf16s + at, unit), unit);
}
FLAT_KERNEL(cast_to_bf16, CastArguments, unit_to_bf16)
FLAT_KERNEL(cast_to_float, CastArguments, unit_to_float)

#else

#include "backend/gpu/driver.h"

LAUNCHER(cast_to_bf16, CastArguments)
LAUNCHER(cast_to_float, CastArguments)

void gpu_cast_to_bf16(Device *device, bf16 *to, const float *from, int64_t count) {
    launch_cast_to_bf16(device, flat_shape(count), &(CastArguments){to, (float *)from, count});
}

void gpu_cast_to_float(Device *device, float *to, const bf16 *from, int64_t count) {
    launch_cast_to_float(device, flat_shape(count), &(CastArguments){(bf16 *)from, to, count});
}

#endif
