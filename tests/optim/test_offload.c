/* Optimizer state in host memory, on a device whose memory is host memory too: updates through the two buffers against updates in
 * place, bit for bit, for every optimizer, precision and ZeRO stage's arenas; and how state is cut into portions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "layout/layout.h"
#include "optim/offload_internal.h"
#include "support/check.h"
#include "support/late_device.h"

enum { LAYERS = 3, STEPS = 3, PORTION = 96 << 10 };

/* Vectors, a table that needs several portions, stacked and single matrices, one of them too small for 8-bit moments. */
static Graph *make_graph(Precision precision) {
    Graph *graph = graph_create(precision, true);
    graph_parameter(graph, "table", PARAMETER_EMBEDDING, 2, (int64_t[]){300, 128}, 0, 0.02, false);
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[32];
        snprintf(name, sizeof name, "norm.%d", layer);
        graph_parameter(graph, name, PARAMETER_NORM, 1, (int64_t[]){37 + layer}, 1, 0, false);
        snprintf(name, sizeof name, "balance.%d", layer);
        graph_parameter(graph, name, PARAMETER_BALANCE_BIAS, 1, (int64_t[]){5}, 0, 0, false);
        snprintf(name, sizeof name, "up.%d", layer);
        graph_parameter(graph, name, PARAMETER_MATRIX, 2, (int64_t[]){96, 128}, 0, 0.02, false);
        snprintf(name, sizeof name, "small.%d", layer);
        graph_parameter(graph, name, PARAMETER_MATRIX, 2, (int64_t[]){17, 19}, 0, 0.02, false);
        snprintf(name, sizeof name, "experts.%d", layer);
        graph_parameter(graph, name, PARAMETER_MATRIX, 3, (int64_t[]){2, 64, 128}, 0, 0.02, false);
        snprintf(name, sizeof name, "convolution.%d", layer);
        graph_parameter(graph, name, PARAMETER_CONVOLUTION, 2, (int64_t[]){33, 4}, 0, 0.02, false);
    }
    return graph;
}

/* -- Updates ------------------------------------------------------------------------------------------------------- */

/* A model that an optimizer updates. Masters from `resident` on are in `hosted` if the layout has put them there. */
typedef struct Trained {
    Graph *graph;
    Layout *layout;
    Optimizer *optimizer;
    char *master, *hosted, *weights, *gradients;
    int64_t bytes;
} Trained;

static char *master_at(const Trained *t, int64_t offset) {
    return t->hosted && offset >= t->layout->shard.offload.resident ? t->hosted + offset - t->layout->shard.offload.resident
                                                                    : t->master + offset;
}

static void open_graph(Trained *t, const OptimizerConfig *config, Precision precision, bool offloads, Device *device) {
    Error error = {0};
    t->layout = layout_create(t->graph, config, &(LayoutConfig){.dp = 1, .tp = 1, .pp = 1, .cp = 1, .ep = 1}, 128 << 10);
    if (offloads) layout_offload(t->layout, precision, PORTION);
    t->bytes = t->graph->parameter_bytes;
    t->optimizer = optimizer_create(t->graph, config, &t->layout->shard, device, &error);
    assert_non_null(t->optimizer);
    t->master = memory_allocate((size_t)t->bytes);
    t->gradients = memory_allocate((size_t)t->bytes);
    t->weights = precision == PRECISION_BF16 ? memory_allocate((size_t)t->bytes / 2) : t->master;
    t->hosted = t->layout->shard.offload.masters ? memory_allocate((size_t)(t->bytes - t->layout->shard.offload.resident)) : NULL;
    optimizer_set_masters(t->optimizer, t->hosted);
}

static Trained open_on(const OptimizerConfig *config, Precision precision, bool offloads, Device *device) {
    Trained t = {.graph = make_graph(precision)};
    open_graph(&t, config, precision, offloads, device);
    return t;
}

static Trained open_trained(const OptimizerConfig *config, Precision precision, bool offloads) {
    return open_on(config, precision, offloads, device_cpu());
}

static void close_trained(Trained *t) {
    optimizer_free(t->optimizer);
    layout_free(t->layout);
    if (t->weights != t->master) free(t->weights);
    free(t->master), free(t->hosted), free(t->gradients);
    graph_free(t->graph);
}

static void set_number(char *to, int64_t element_bytes, double value) {
    if (element_bytes == 2) *(uint16_t *)to = bf16_from_float((float)value);
    else if (element_bytes == 4) *(float *)to = (float)value;
    else *(double *)to = value;
}

static void fill_parameter(const Trained *t, int index, int step) {
    const Parameter *p = &t->graph->parameters[index];
    for (int64_t i = 0; i < p->count; i++) {
        double value = rng_normal(7, (uint64_t)(index + 100 * step), (uint64_t)i);
        int64_t at = p->offset + i * p->element_bytes;
        if (step == 0) set_number(master_at(t, at), p->element_bytes, 0.02 * value);
        else set_number(t->gradients + at, p->element_bytes, p->kind == PARAMETER_BALANCE_BIAS ? (int)(4 * value) : value);
    }
}

/* Buckets in an order of their own, as the backward pass has it. */
static void train(const Trained *t) {
    for (int step = 0; step <= STEPS; step++) {
        for (int i = 0; i < t->graph->parameter_count; i++) fill_parameter(t, i, step);
        for (int b = t->layout->bucket_count; step > 0 && b-- > 0;)
            optimizer_step_bucket(t->optimizer, b, &(Update){t->master, t->weights, t->gradients, step, 1e-2, 0.5});
    }
    optimizer_settle(t->optimizer);
}

static int64_t bytes_of(const Trained *t, const OptimizerState *state) {
    int64_t width = state->form == STATE_QUANTIZED ? 1
                    : state->form == STATE_SCALES  ? 4
                                                   : t->graph->parameters[state->elements.parameter].element_bytes;
    return state->elements.count / state->each * width;
}

static void assert_same_states(const Trained *a, const Trained *b) {
    size_t count = optimizer_states(a->optimizer, NULL, 0);
    SCOPED_FREE OptimizerState *x = memory_allocate(count * sizeof *x), *y = memory_allocate(count * sizeof *y);
    assert_int_equal(optimizer_states(b->optimizer, NULL, 0), count);
    optimizer_states(a->optimizer, x, count);
    optimizer_states(b->optimizer, y, count);
    for (size_t i = 0; i < count; i++) {
        const Parameter *p = &a->graph->parameters[x[i].elements.parameter];
        bool vector = graph_get(a->graph, p->tensor)->arena == ARENA_MASTER;
        assert_string_equal(x[i].kind, y[i].kind);
        assert_true(!x[i].in_host && y[i].in_host == !vector);
        if (memcmp(x[i].data, y[i].data, (size_t)bytes_of(a, &x[i]))) fail_msg("%s of %s differs", x[i].kind, p->name);
    }
}

static OptimizerConfig config_of(int name) {
    return (OptimizerConfig){.name = name,
        .lr = 1e-2,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .epsilon = 1e-8,
        .weight_decay = 0.1,
        .momentum = 0.95,
        .balance_lr = 1e-3,
        .newton_schulz_steps = 3};
}

static void check_on(const OptimizerConfig *config, Precision precision, const Trained *plain, Device *device) {
    Trained offloaded = open_on(config, precision, true, device);
    assert_true(plain->layout->bucket_count > 3 && offloaded.optimizer->offload->portion_count > 3);
    train(&offloaded);
    for (int i = 0; i < plain->graph->parameter_count; i++) {
        const Parameter *p = &plain->graph->parameters[i];
        int64_t weight = precision == PRECISION_BF16 ? p->offset / 2 : p->offset,
                width = precision == PRECISION_BF16 ? 2 : p->element_bytes;
        if (memcmp(plain->master + p->offset, master_at(&offloaded, p->offset), (size_t)(p->count * p->element_bytes)))
            fail_msg("%s: %s differs", optimizer_of(config)->name, p->name);
        if (graph_get(plain->graph, p->tensor)->arena == ARENA_WEIGHT)
            assert_memory_equal(plain->weights + weight, offloaded.weights + weight, (size_t)(p->count * width));
    }
    assert_same_states(plain, &offloaded);
    close_trained(&offloaded);
}

static void check_optimizer(const OptimizerConfig *config, Precision precision) {
    Trained plain = open_trained(config, precision, false);
    train(&plain);
    check_on(config, precision, &plain, device_cpu());
    check_on(config, precision, &plain, late_device());
    close_trained(&plain);
}

/* Its next upload waits for its own download. */
static void a_single_portion_has_the_bits_too(void **state) {
    (void)state;
    OptimizerConfig config = config_of(OPTIMIZER_adamw);
    Trained t[2];
    for (int i = 0; i < 2; i++) {
        t[i] = (Trained){.graph = graph_create(PRECISION_BF16, true)};
        graph_parameter(t[i].graph, "only", PARAMETER_MATRIX, 2, (int64_t[]){64, 64}, 0, 0.02, false);
        open_graph(&t[i], &config, PRECISION_BF16, i, i ? late_device() : device_cpu());
        train(&t[i]);
    }
    assert_int_equal(t[1].optimizer->offload->portion_count, 1);
    assert_memory_equal(t[0].master, master_at(&t[1], 0), 64 * 64 * sizeof(float));
    assert_memory_equal(t[0].weights, t[1].weights, 64 * 64 * sizeof(uint16_t));
    assert_same_states(&t[0], &t[1]);
    for (int i = 0; i < 2; i++) close_trained(&t[i]);
}

static void updates_have_the_bits_of_state_in_device_memory(void **state) {
    (void)state;
    static const Precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_PURE_BF16, PRECISION_FP64};
    for (int name = 0; name < OPTIMIZER_COUNT; name++)
        for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
            OptimizerConfig config = config_of(name);
            if (optimizer_of(&config)->quantizes_moments && precisions[i] == PRECISION_FP64) continue;
            check_optimizer(&config, precisions[i]);
        }
}

/* Each chunk is in one portion, no byte of an array is in two, and only a bucket of Muon has more than a portion's bytes. */
static void portions_cover_each_chunk_once(void **state) {
    (void)state;
    for (int name = 0; name < OPTIMIZER_COUNT; name++) {
        OptimizerConfig config = config_of(name);
        Trained t = open_trained(&config, PRECISION_BF16, true);
        const Optimizer *o = t.optimizer;
        if (name == OPTIMIZER_adamw) assert_true(o->offload->portion_count > t.layout->bucket_count); /* the table has several */
        SCOPED_FREE int *covered = memory_allocate((size_t)o->chunk_count * sizeof *covered);
        for (int k = 0; k < o->offload->portion_count; k++) {
            const HostedPortion *portion = &o->offload->portions[k];
            int64_t bytes = 0;
            for (int64_t i = portion->first; i < portion->end; i++) covered[i]++;
            for (int a = 0; a < HOSTED_COUNT; a++) {
                bytes += portion->spans[a].end - portion->spans[a].begin;
                for (int other = 0; other < k; other++) {
                    const ByteSpan *x = &portion->spans[a], *y = &o->offload->portions[other].spans[a];
                    assert_true(x->begin == x->end || y->begin == y->end || x->end <= y->begin || y->end <= x->begin);
                }
            }
            assert_true(
                bytes > 0 && (bytes <= PORTION || portion->end - portion->first == 1 || portion->first_segment >= o->element_segments));
        }
        for (int s = 0; s < o->segment_count; s++)
            for (int64_t i = o->segments[s].first; i < o->segments[s].end; i++) assert_int_equal(covered[i], o->segments[s].hosted);
        close_trained(&t);
    }
}

/* The sum of what is on the device and in host memory is what there is without offload. */
static void bytes_are_counted_where_they_are(void **state) {
    (void)state;
    OptimizerConfig config = config_of(OPTIMIZER_adamw);
    Trained plain = open_trained(&config, PRECISION_BF16, false), offloaded = open_trained(&config, PRECISION_BF16, true);
    int64_t all = optimizer_state_bytes(plain.graph, &config, &plain.layout->shard), matrices = 0, vectors = 0;
    int64_t hosted = optimizer_host_bytes(offloaded.graph, &config, &offloaded.layout->shard);
    for (int i = 0; i < plain.graph->parameter_count; i++) {
        const Parameter *p = &plain.graph->parameters[i];
        *(graph_get(plain.graph, p->tensor)->arena == ARENA_WEIGHT ? &matrices : &vectors) += 8 * p->count;
    }
    assert_int_equal(optimizer_host_bytes(plain.graph, &config, &plain.layout->shard), 0);
    assert_int_equal(optimizer_state_bytes(offloaded.graph, &config, &offloaded.layout->shard), all);
    assert_true(hosted >= matrices && hosted <= all - vectors);
    int64_t buffers = optimizer_workspace_bytes(offloaded.graph, &config, &offloaded.layout->shard, device_cpu()) -
                      optimizer_workspace_bytes(plain.graph, &config, &plain.layout->shard, device_cpu());
    assert_true(buffers > 0 && buffers <= 4 * OPTIM_CHUNK * 12 + 2 * PORTION);
    close_trained(&plain);
    close_trained(&offloaded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_have_the_bits_of_state_in_device_memory),
        cmocka_unit_test(a_single_portion_has_the_bits_too),
        cmocka_unit_test(portions_cover_each_chunk_once),
        cmocka_unit_test(bytes_are_counted_where_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
