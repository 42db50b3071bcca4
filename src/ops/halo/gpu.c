/* Halos between GPUs. A thread adds one element, because there are few. */
#include "backend/gpu/vector.h"

typedef struct HaloAddArguments {
    const bf16 GLOBAL *ends;
    bf16 GLOBAL *sum;
    int64_t count, chunk, size; /* elements of all ends, of a chunk, and of its end */
} HaloAddArguments;

#ifdef GPU_DEVICE

KERNEL(halo_add, HaloAddArguments) {
    int64_t i = (int64_t)block_x() * TILE_THREADS + thread_id();
    if (i >= a.count) return;
    bf16 GLOBAL *sum = a.sum + (i / a.size + 1) * a.chunk - a.size + i % a.size;
    *sum = to_bf16(to_float(*sum) + to_float(a.ends[i]));
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/halo/halo.h"

LAUNCHER(halo_add, HaloAddArguments)

GPU_OP(halo, .rehearse = run_halo) { halo_send(call, sizeof(bf16)); }

GPU_OP(halo_add) {
    HaloChunks c = halo_chunks(call);
    HaloAddArguments arguments = {
        .ends = call->in[HALO_ADD_ENDS], .sum = call->out[HALO_ADD_SUM], .count = c.count * c.ends, .chunk = c.chunk, .size = c.ends};
    if (arguments.sum != call->in[HALO_ADD_X])
        device_copy(call->device, arguments.sum, call->in[HALO_ADD_X], c.count * c.chunk * (int64_t)sizeof(bf16));
    LaunchShape shape = {.x = divide_up(arguments.count, TILE_THREADS), .threads = TILE_THREADS};
    launch_halo_add(call->device, shape, &arguments);
}

#endif
