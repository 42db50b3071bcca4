/* The GPU kernels of narrow: flat, eight elements a thread. */
#include "backend/gpu/vector.h"

typedef struct NarrowCastArguments {
    const void GLOBAL *x;
    void GLOBAL *y;
    int64_t count;
} NarrowCastArguments;

#ifdef GPU_DEVICE

INLINE void narrow_at(const NarrowCastArguments *a, int64_t at, int unit) {
    store8_bf16((bf16 GLOBAL *)a->y + at, load8_wide((const float GLOBAL *)a->x + at, unit), unit);
}

INLINE void widen_at(const NarrowCastArguments *a, int64_t at, int unit) {
    store8_wide((float GLOBAL *)a->y + at, load8_bf16((const bf16 GLOBAL *)a->x + at, unit), unit);
}

FLAT_KERNEL(narrow, NarrowCastArguments, narrow_at)
FLAT_KERNEL(widen, NarrowCastArguments, widen_at)

#else

#include "ops/narrow/narrow.h"

LAUNCHER(narrow, NarrowCastArguments)
LAUNCHER(widen, NarrowCastArguments)

static NarrowCastArguments arguments_of(const OpCall *call) {
    return (NarrowCastArguments){
        .x = call->in[NARROW_X], .y = call->out[NARROW_Y], .count = call->in_shape[NARROW_X][0] * call->in_shape[NARROW_X][1]};
}

GPU_OP(narrow) {
    NarrowCastArguments arguments = arguments_of(call);
    launch_narrow(call->device, flat_shape(arguments.count), &arguments);
}

GPU_OP(widen) {
    NarrowCastArguments arguments = arguments_of(call);
    launch_widen(call->device, flat_shape(arguments.count), &arguments);
}

#endif
