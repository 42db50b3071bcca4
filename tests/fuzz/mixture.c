/* A libFuzzer entry for the file of a mixture: it is refused with a message of one line, or gives sources and phases of
 * which an order can be made, whose samples lie inside their sources. */
#include "data/mixture.h"
#include "fuzz.h"

static void require_samples(const Mixture *mixture) {
    int64_t inputs[MIXTURE_MOST_SOURCES];
    const char *names[MIXTURE_MOST_SOURCES];
    OrderPhase phases[MIXTURE_MOST_PHASES];
    Error error = {0};
    for (int i = 0; i < mixture->source_count; i++) {
        inputs[i] = 100000 + i;
        names[i] = mixture->sources[i].name;
    }
    for (int i = 0; i < mixture->phase_count; i++) {
        const MixturePhase *phase = &mixture->phases[i];
        int64_t length = phase->length ? phase->length : 256;
        phases[i] = (OrderPhase){phase->name, (phase->tokens + length - 1) / length, length, phase->weights};
    }
    OrderOptions options = {.shuffle = true,
        .source_count = mixture->source_count,
        .phase_count = mixture->phase_count,
        .inputs = inputs,
        .names = names,
        .phases = phases};
    Order *order = order_create(&options, &error);
    if (!order) {
        require_line(&error);
        return;
    }
    for (int phase = 0; phase < mixture->phase_count; phase++) {
        int64_t first = order_phase_start(order, phase), end = order_phase_start(order, phase + 1);
        for (int64_t n = first; n < end && n < first + 50; n++) {
            Draw draw = order_draw(order, n);
            require(draw.phase == phase && mixture->phases[phase].weights[draw.source] > 0 && draw.start >= 0 && draw.count >= 1 &&
                    draw.count <= order_phase_length(order, phase) && draw.start + draw.count <= inputs[draw.source]);
        }
    }
    order_free(order);
}

FUZZ(mixture) {
    Mixture mixture;
    Error error = {0};
    if (!mixture_read(&mixture, fuzz_file("mixture.yaml", data, size), &error)) require_line(&error);
    else require_samples(&mixture);
    mixture_free(&mixture);
}
