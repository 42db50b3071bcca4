/* The amax of a tensor, computed by the kernel that makes the tensor, so that its cast to fp8 needs
 * no extra pass. The kernel's body returns the largest absolute-value bits that its thread made;
 * they are ordered like the numbers, with NaN above all. The kernel ends by recording them
 * (record_rounded), or omits this, and then nothing is computed. Maxima of integers use atomics:
 * the order of blocks does not change them. Owns no memory. */
#pragma once

#include "backend/gpu/gpu.h"

enum { AMAX_THREADS = 256 }; /* threads of blocks that record */

#ifdef GPU_DEVICE

INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
INLINE uint32_t larger_of(uint32_t most, float x) { return larger(most, __builtin_bit_cast(uint32_t, x) & 0x7fffffff); }

/* The same for a pair of bf16. */
INLINE uint32_t larger_of_pair(uint32_t most, uint32_t pair) { return larger(larger(most, pair << 17 >> 1), pair & 0x7fff0000); }

INLINE void atomic_max(uint32_t GLOBAL *to, uint32_t bits) { __scoped_atomic_fetch_max(to, bits, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE); }

/* Returns the maximum in all lanes; all lanes call it. */
#if defined __NVPTX__
INLINE uint32_t wave_amax(uint32_t most) { return __nvvm_redux_sync_umax(most, -1); }
#else
INLINE uint32_t wave_amax(uint32_t most) {
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) most = larger(most, shuffle(most, lane_id() ^ mask));
    return most;
}
#endif

/* Adds the maximum of a wave's lanes to a maximum in memory, for kernels whose waves end
 * separately. All lanes call it. The lanes that have the maximum write it: asking for a lane's
 * index would keep it in a register. */
INLINE void record_amax_of_wave(uint32_t GLOBAL *to, uint32_t most) {
    uint32_t amax = wave_amax(most);
    if (most == amax) atomic_max(to, amax);
}

/* Adds the maximum of a block's threads to a maximum in memory. All threads call it. */
INLINE void record_amax(uint32_t GLOBAL *to, uint32_t most) {
    static SHARED uint32_t of_waves[AMAX_THREADS / WAVE];
    most = wave_amax(most);
    if (lane_id() == 0) of_waves[wave_id()] = most;
    barrier();
    if (thread_id() > 0) return;
    for (int i = 1; i < AMAX_THREADS / WAVE; i++) most = larger(most, of_waves[i]);
    atomic_max(to, most);
}

/* The same for floats that were rounded to bf16 when they were stored; rounding keeps their
 * order. */
INLINE uint32_t round_amax(uint32_t most) { return (uint32_t)to_bf16(__builtin_bit_cast(float, most)) << 16; }
INLINE void record_rounded(uint32_t GLOBAL *to, uint32_t most) { record_amax(to, round_amax(most)); }
INLINE void record_rounded_of_wave(uint32_t GLOBAL *to, uint32_t most) { record_amax_of_wave(to, round_amax(most)); }

#else

#include "backend/gpu/kernel_launch.h"

/* Returns output `index` of a call, an amax for its kernel to record, zeroed; NULL if the node has
 * none. */
static inline uint32_t *amax_to_record(const OpCall *call, int index) {
    if (call->out[index]) device_fill(call->device, call->out[index], 0, sizeof(uint32_t));
    return call->out[index];
}

#endif
