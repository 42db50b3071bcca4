/* Updates of elements on a GPU: the launcher of each optimizer, and their shared arguments. Called
 * by optimizer.c through OptimBackend; owns no memory. */
#include <string.h>

#include "optim/optim_gpu_kernels.h"

ElementArguments optim_element_arguments(
    const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]) {
    ElementArguments arguments = {.chunks = optimizer->device_chunks + segment->first, .arenas = optim_arenas(optimizer, segment, update)};
    memcpy(arguments.rates, rates, sizeof arguments.rates);
    return arguments;
}

LaunchShape optim_element_shape(const Segment *segment) {
    return (LaunchShape){.x = segment->end - segment->first, .threads = OPTIM_THREADS};
}

void gpu_elements(const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]) {
    static ElementStep *const launchers[OPTIMIZER_COUNT] = {
#define ELEMENTS(name) [OPTIMIZER_##name] = gpu_update_##name,
#define MATRICES(name)
#define OPTIMIZER(name, kind) kind(name)
#include "config/optimizer_list.h"
#undef OPTIMIZER
    };
    launchers[segment->optimizer](optimizer, segment, update, rates);
}
