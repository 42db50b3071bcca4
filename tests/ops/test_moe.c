/* Mixture of experts: routing, balancing, dispatch, grouped GEMMs of experts and combining. Gradients, precisions,
 * instruction sets and threads go through check_op; what the ops mean is compared with plain loops in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "support/check.h"
#include "support/each_isa.h"
#include "backend/backend.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/moe/moe.h"
#include "ops/router/router.h"

enum { MAX_ROWS = 4200, MAX_K = 4 };
static const double EXACT = 1e-12; /* relative: both sides in double, sums in another order */

typedef struct Shape {
    int64_t rows, in, out;
    RouterSpec router;
    bool bias, gate_unused, adapted, biased;
    int choices; /* of choose_experts */
} Shape;

/* -- Gradients, precisions, instruction sets, threads -------------------------------------------------------------- */

static Routing add_router(Check *check, const Shape *s) {
    int64_t classes = s->router.experts + s->router.skip;
    TensorId logits = check_input(check, TYPE_WIDE, 2, (int64_t[]){s->rows, classes}, 0.5, 2);
    TensorId bias = s->bias ? check_input(check, TYPE_WIDE, 1, &classes, 0, 0.2) : TENSOR_NONE;
    return op_router(check->graph, logits, bias, check_scalar(check, 0.25), check_loss(check, 2), &s->router);
}

static void build_router(Check *check, const void *argument) {
    const Shape *s = argument;
    Routing routing = add_router(check, s);
    check_output(check, routing.index);
    if (!s->gate_unused) check_output(check, routing.gate);
}

static void routing_gradients_match_central_differences(void **state) {
    (void)state;
    static const Shape shapes[] = {
        {.rows = 1, .router = {.experts = 1, .k = 1}},
        {.rows = 17, .router = {.experts = 4, .k = 1}},
        {.rows = 5, .router = {.experts = 16, .k = 1, .skip = true}, .bias = true},
        {.rows = 70, .router = {.experts = 3, .k = 2}, .bias = true},
        {.rows = 9, .router = {.experts = 5, .k = 2, .renormalise = true, .skip = true}},
        {.rows = 3, .router = {.experts = 33, .k = 4, .renormalise = true}, .bias = true},
        {.rows = 4, .router = {.experts = 2, .k = 2, .renormalise = true}},
        {.rows = 70, .router = {.experts = 4, .k = 1, .auxiliary = 3}},
        {.rows = 20, .router = {.experts = 5, .k = 2, .renormalise = true, .skip = true, .auxiliary = 3}, .bias = true},
        {.rows = 20, .router = {.experts = 5, .k = 2, .auxiliary = 3}, .gate_unused = true},
        {.rows = 20, .router = {.experts = 5, .k = 2, .auxiliary = 3, .scale = 2.5}},
        {.rows = 9, .router = {.experts = 6, .k = 2, .renormalise = true, .scale = 0.7}, .bias = true},
        {.rows = 30, .router = {.experts = 9, .k = 2, .groups = 3, .groups_chosen = 2, .scale = 1.5, .auxiliary = 2}},
        {.rows = 30, .router = {.experts = 160, .k = 4, .groups = 8, .groups_chosen = 3}, .bias = true},
        {.rows = 17, .router = {.experts = 4, .k = 1, .sigmoid = true}},
        {.rows = 70, .router = {.experts = 40, .k = 3, .sigmoid = true, .renormalise = true, .scale = 2.5}, .bias = true},
        {.rows = 70, .router = {.experts = 12, .k = 3, .sigmoid = true, .groups = 4, .groups_chosen = 2}, .bias = true},
        {.rows = 10,
            .router = {.experts = 64, .k = 4, .sigmoid = true, .renormalise = true, .groups = 32, .groups_chosen = 5},
            .bias = true},
        {.rows = 10,
            .router = {.experts = 256, .k = 4, .sigmoid = true, .renormalise = true, .groups = 8, .groups_chosen = 4, .scale = 2.5},
            .bias = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_op(build_router, &shapes[i], (CheckBounds){0});
}

enum { CHOOSE_SPREAD, CHOOSE_LAST, CHOOSE_NONE };

/* Distinct experts for a row, about one in experts + 1 of them "skipped"; all rows to the last expert; or none. */
static const int32_t *choose_experts(const Shape *s) {
    static int32_t index[MAX_ROWS * MAX_K];
    int64_t experts = s->router.experts, k = s->router.k;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t j = 0; j < k; j++) {
            int32_t spread = (int32_t)((rng_bits(3, 0, r).word[0] + j) % (experts + 1));
            int32_t other = s->choices == CHOOSE_LAST && j == 0 ? experts - 1 : experts;
            index[r * k + j] = s->choices == CHOOSE_SPREAD ? spread : other;
        }
    return index;
}

static TensorId add_experts(Check *check, const Shape *s, TensorId index, TensorId gate) {
    Graph *graph = check->graph;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){s->rows, s->in}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_MATRIX, 3, (int64_t[]){s->router.experts, s->out, s->in}, 0, 0.5);
    Dispatch dispatch = op_moe_sort(graph, index, s->router.experts);
    TensorId x_slots = op_moe_permute(graph, x, &dispatch), y_slots = op_grouped_linear(graph, x_slots, w, &dispatch);
    if (s->adapted) y_slots = op_grouped_linear_add(graph, y_slots, x_slots, w, &dispatch);
    if (s->biased) {
        TensorId bias = check_parameter(check, PARAMETER_BIAS, 2, (int64_t[]){s->router.experts, s->out}, 0, 1);
        y_slots = op_grouped_bias(graph, y_slots, bias, &dispatch, 0);
    }
    check_output(check, x_slots); /* unused slots too: they are zero */
    check_output(check, y_slots);
    check_output(check, dispatch.slot);
    check_output(check, dispatch.offset);
    return op_moe_combine(graph, y_slots, gate, &dispatch);
}

static void build_dispatch(Check *check, const void *argument) {
    const Shape *s = argument;
    int64_t chosen[] = {s->rows, s->router.k};
    TensorId gate = check_input(check, TYPE_WIDE, 2, chosen, 0.5, 0.3);
    check_output(check, add_experts(check, s, check_integers(check, 2, chosen, choose_experts(s)), gate));
}

static void dispatch_gradients_match_central_differences(void **state) {
    (void)state;
    static const Shape shapes[] = {
        {.rows = 1, .in = 1, .out = 1, .router = {.experts = 1, .k = 1}, .choices = CHOOSE_LAST},
        {.rows = 9, .in = 17, .out = 5, .router = {.experts = 1, .k = 1}},
        {.rows = 40, .in = 7, .out = 33, .router = {.experts = 4, .k = 1}},
        {.rows = 40, .in = 7, .out = 33, .router = {.experts = 4, .k = 1}, .adapted = true},
        {.rows = 31, .in = 8, .out = 16, .router = {.experts = 3, .k = 2}, .choices = CHOOSE_LAST, .adapted = true},
        {.rows = 31, .in = 8, .out = 16, .router = {.experts = 3, .k = 2}, .adapted = true, .biased = true},
        {.rows = 150, .in = 5, .out = 9, .router = {.experts = 2, .k = 1}, .biased = true},
        {.rows = 40, .in = 8, .out = 264, .router = {.experts = 4, .k = 1}, .choices = CHOOSE_LAST, .biased = true},
        {.rows = 5, .in = 16, .out = 16, .router = {.experts = 16, .k = 1}},
        {.rows = 21, .in = 19, .out = 24, .router = {.experts = 3, .k = 2}},
        {.rows = 6, .in = 300, .out = 261, .router = {.experts = 2, .k = 2}},
        {.rows = 13, .in = 8, .out = 9, .router = {.experts = 5, .k = 4}},
        {.rows = 8, .in = 6, .out = 4, .router = {.experts = 4, .k = 1}, .choices = CHOOSE_LAST},
        {.rows = 8, .in = 6, .out = 4, .router = {.experts = 4, .k = 2}, .choices = CHOOSE_LAST},
        {.rows = 8, .in = 6, .out = 4, .router = {.experts = 4, .k = 1}, .choices = CHOOSE_NONE},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_op(build_dispatch, &shapes[i], (CheckBounds){0});
}

/* The offsets of `ranks` ranks, from experts with 0, 1, 2 ... rows up to `most`. */
typedef struct Arrivals {
    int64_t ranks, experts, first, own, most, spare; /* all experts; the first one and the number of this rank's */
} Arrivals;

static const int32_t *list_offsets(const Arrivals *a) {
    static int32_t offsets[1024];
    for (int64_t r = 0; r < a->ranks; r++)
        for (int64_t e = 0; e <= a->experts; e++)
            offsets[r * (a->experts + 1) + e] =
                e ? offsets[r * (a->experts + 1) + e - 1] + (int32_t)(rng_bits(5, r, e).word[0] % (a->most + 1)) : 0;
    return offsets;
}

static int64_t count_arrivals(const Arrivals *a) {
    const int32_t *offsets = list_offsets(a);
    int64_t count = 0;
    for (int64_t r = 0; r < a->ranks; r++, offsets += a->experts + 1) count += offsets[a->first + a->own] - offsets[a->first];
    return count;
}

static Dispatch add_arrivals(Graph *graph, const Arrivals *a, TensorId offsets) {
    int64_t arrivals = count_arrivals(a) + a->spare, own = a->own + 1;
    Dispatch local = {.slot = graph_activation(graph, TYPE_INT32, arrivals, 1, "slot"),
        .offset = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &own, "offset")};
    MoeArrivalsAttributes attributes = {.first = a->first};
    graph_node(graph, OP_moe_arrivals, (Inputs){[MOE_ARRIVALS_OFFSETS] = offsets},
        (Outputs){[MOE_ARRIVALS_SLOT] = local.slot, [MOE_ARRIVALS_OFFSET] = local.offset}, &attributes, sizeof attributes);
    return local;
}

static const Arrivals arrivals[] = {
    {.ranks = 2, .experts = 2, .first = 1, .own = 1, .most = 5},
    {.ranks = 4, .experts = 8, .first = 2, .own = 2, .most = 9, .spare = 3},
    {.ranks = 3, .experts = 12, .first = 0, .own = 4, .most = 1, .spare = 40},
    {.ranks = 8, .experts = 64, .first = 56, .own = 8, .most = 300, .spare = 1000},
    {.ranks = 2, .experts = 6, .first = 3, .own = 3, .most = 0, .spare = 10},
};
enum { ARRIVALS = sizeof arrivals / sizeof *arrivals };

/* What arrives, sorted and put back: as it was, but for the places where nothing arrives. */
static void build_arrivals(Check *check, const void *argument) {
    const Arrivals *a = argument;
    TensorId offsets = check_integers(check, 2, (int64_t[]){a->ranks, a->experts + 1}, list_offsets(a));
    Dispatch local = add_arrivals(check->graph, a, offsets);
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){count_arrivals(a) + a->spare, 3}, 0, 1);
    TensorId x_slots = op_moe_permute(check->graph, x, &local);
    check_output(check, local.slot);
    check_output(check, local.offset);
    check_output(check, x_slots);
    check_output(check, op_moe_unpermute(check->graph, x_slots, &local));
}

static void arrivals_are_sorted_and_put_back_with_their_gradients(void **state) {
    (void)state;
    for (int i = 0; i < ARRIVALS; i++)
        if (count_arrivals(&arrivals[i]) < 100 || check_device()) check_op(build_arrivals, &arrivals[i], (CheckBounds){0});
}

static void build_block(Check *check, const void *argument) {
    const Shape *s = argument;
    Routing routing = add_router(check, s);
    check_output(check, add_experts(check, s, routing.index, routing.gate));
}

static void gradients_reach_the_logits_through_the_experts(void **state) {
    (void)state;
    static const Shape shapes[] = {
        {.rows = 30, .in = 12, .out = 10, .router = {.experts = 4, .k = 1, .skip = true}, .bias = true},
        {.rows = 30, .in = 12, .out = 10, .router = {.experts = 4, .k = 2, .skip = true, .renormalise = true, .auxiliary = 0.5}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_op(build_block, &shapes[i], (CheckBounds){0});
}

/* -- Meaning, in double precision ---------------------------------------------------------------------------------- */

static Program start_program(Graph *graph, RecomputePolicy policy, const Seed *seeds, int seed_count) {
    if (graph->training) graph_differentiate(graph, policy, seeds, seed_count);
    for (int i = 1; i < graph->tensor_count; i++) graph->tensors[i].keep = true;
    return check_program((Model){.graph = graph}, device_cpu());
}

static void run_program(const Program *program) {
    memset(executor_arena(program->executor, ARENA_ACTIVATION), 0xff, program->plan.bytes[ARENA_ACTIVATION]);
    executor_run(program->executor);
}

static double *reals(const Program *program, TensorId tensor) { return executor_tensor(program->executor, tensor); }
static int32_t *integers(const Program *program, TensorId tensor) { return executor_tensor(program->executor, tensor); }

static void fill(const Program *program, TensorId tensor, uint64_t stream, double scale) {
    double *values = reals(program, tensor);
    for (int64_t i = 0; i < graph_elements(program->model.graph, tensor); i++) values[i] = scale * rng_normal(11, stream, i);
}

static void assert_close(double value, double expected) { assert_true(fabs(value - expected) <= EXACT * (1 + fabs(expected))); }

/* A graph with one router; bias is a load-balancing bias. */
typedef struct RouterProgram {
    Program program;
    RouterSpec spec;
    int64_t rows, classes;
    TensorId logits, bias, share, loss, d_gate;
    Routing routing;
} RouterProgram;

static RouterProgram router_start(int64_t rows, const RouterSpec *spec, bool training) {
    Graph *graph = graph_create(PRECISION_FP64, training);
    RouterProgram p = {.spec = *spec, .rows = rows, .classes = spec->experts + spec->skip};
    int64_t shape[] = {rows, p.classes};
    p.logits = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, shape, "logits");
    p.bias = graph_parameter(graph, "bias", PARAMETER_BALANCE_BIAS, 1, &p.classes, 0, 0, false);
    p.share = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, (int64_t[]){1}, "share");
    p.loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, (int64_t[]){2}, "loss");
    p.routing = op_router(graph, p.logits, p.bias, p.share, p.loss, spec);
    p.program = start_program(graph, RECOMPUTE_NONE, NULL, 0);
    fill(&p.program, p.logits, 1, 2);
    fill(&p.program, p.bias, 2, 0.2);
    reals(&p.program, p.share)[0] = 0.25;
    return p;
}

static void softmax(double *p, const double *logits, int64_t classes) {
    double sum = 0;
    for (int64_t c = 0; c < classes; c++) sum += p[c] = exp(logits[c]);
    for (int64_t c = 0; c < classes; c++) p[c] /= sum;
}

/* Returns whether class c is in a chosen group: fewer than groups_chosen groups have a higher score. */
static bool in_chosen_group(const double *p, const double *bias, const RouterSpec *spec, int64_t c) {
    if (spec->groups <= 1) return true;
    double scores[64];
    int64_t size = spec->experts / spec->groups, above = 0;
    for (int64_t g = 0; g < spec->groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (int64_t i = g * size; i < (g + 1) * size; i++) {
            second = fmax(second, fmin(best, p[i] + bias[i]));
            best = fmax(best, p[i] + bias[i]);
        }
        scores[g] = spec->sigmoid ? best + second : best;
    }
    for (int64_t g = 0; g < spec->groups; g++) above += scores[g] > scores[c / size];
    return above < spec->groups_chosen;
}

/* The number of classes that come before class c: higher biased probability, or an equal one and a lower index. */
static int64_t rank_of(const double *p, const double *bias, const RouterSpec *spec, int64_t classes, int64_t c) {
    int64_t rank = 0;
    for (int64_t i = 0; i < classes; i++) {
        if (!in_chosen_group(p, bias, spec, i)) continue;
        double difference = (p[i] + bias[i]) - (p[c] + bias[c]);
        rank += difference > 0 || (difference == 0 && i < c);
    }
    return rank;
}

static void check_routing(int64_t rows, const RouterSpec *spec) {
    RouterProgram p = router_start(rows, spec, false);
    const double *logits = reals(&p.program, p.logits), *bias = reals(&p.program, p.bias);
    const double *gate = reals(&p.program, p.routing.gate);
    const int32_t *index = integers(&p.program, p.routing.index);
    double probability[64];
    run_program(&p.program);
    for (int64_t r = 0; r < rows; r++) {
        double chosen = 0;
        softmax(probability, logits + r * p.classes, p.classes);
        for (int64_t c = 0; spec->sigmoid && c < p.classes; c++) probability[c] = 1 / (1 + exp(-logits[r * p.classes + c]));
        for (int64_t j = 0; j < spec->k; j++) chosen += probability[index[r * spec->k + j]];
        for (int64_t j = 0; j < spec->k; j++) {
            int32_t c = index[r * spec->k + j];
            assert_true(in_chosen_group(probability, bias, spec, c));
            assert_int_equal(rank_of(probability, bias, spec, p.classes, c), j);
            assert_close(gate[r * spec->k + j], (spec->scale > 0 ? spec->scale : 1) * probability[c] / (spec->renormalise ? chosen : 1));
        }
    }
    program_free(&p.program);
}

static void router_chooses_by_biased_and_gates_by_unbiased_probability(void **state) {
    (void)state;
    check_routing(1, &(RouterSpec){.experts = 1, .k = 1});
    check_routing(100, &(RouterSpec){.experts = 16, .k = 1, .skip = true});
    check_routing(67, &(RouterSpec){.experts = 5, .k = 2});
    check_routing(67, &(RouterSpec){.experts = 63, .k = 4, .skip = true, .renormalise = true});
}

static void router_chooses_in_the_best_groups_alone(void **state) {
    (void)state;
    check_routing(67, &(RouterSpec){.experts = 12, .k = 3, .groups = 4, .groups_chosen = 2, .scale = 16});
    check_routing(67, &(RouterSpec){.experts = 12, .k = 3, .groups = 4, .groups_chosen = 1, .renormalise = true});
    check_routing(67, &(RouterSpec){.experts = 12, .k = 4, .groups = 4, .groups_chosen = 2, .sigmoid = true});
    check_routing(
        67, &(RouterSpec){.experts = 64, .k = 4, .groups = 32, .groups_chosen = 7, .sigmoid = true, .renormalise = true, .scale = 2.5});
    check_routing(67, &(RouterSpec){.experts = 9, .k = 2, .sigmoid = true, .renormalise = true});
}

static void equal_scores_go_to_the_lower_index(void **state) {
    (void)state;
    RouterProgram p = router_start(3, &(RouterSpec){.experts = 5, .k = 2}, false);
    for (int64_t i = 0; i < 15; i++) reals(&p.program, p.logits)[i] = i % 5 == 0 ? -1 : 1;
    memset(reals(&p.program, p.bias), 0, 5 * sizeof(double));
    run_program(&p.program);
    for (int64_t r = 0; r < 3; r++) {
        assert_int_equal(integers(&p.program, p.routing.index)[2 * r], 1);
        assert_int_equal(integers(&p.program, p.routing.index)[2 * r + 1], 2);
    }
    program_free(&p.program);
}

static void logits_that_are_not_numbers_choose_an_existing_class(void **state) {
    (void)state;
    RouterProgram p = router_start(2, &(RouterSpec){.experts = 3, .k = 2}, false);
    for (int64_t i = 0; i < 6; i++) reals(&p.program, p.logits)[i] = NAN;
    run_program(&p.program);
    for (int64_t i = 0; i < 4; i++) assert_in_range(integers(&p.program, p.routing.index)[i], 0, 2);
    program_free(&p.program);
}

/* Tokens of each class and mean probability of each, as the router chose. */
static void measure_load(const RouterProgram *p, double *fraction, double *probability_mean) {
    double probability[64];
    memset(fraction, 0, p->classes * sizeof(double));
    memset(probability_mean, 0, p->classes * sizeof(double));
    for (int64_t i = 0; i < p->rows * p->spec.k; i++) fraction[integers(&p->program, p->routing.index)[i]] += 1.0 / (p->rows * p->spec.k);
    for (int64_t r = 0; r < p->rows; r++) {
        softmax(probability, reals(&p->program, p->logits) + r * p->classes, p->classes);
        for (int64_t c = 0; c < p->classes; c++) probability_mean[c] += probability[c] / p->rows;
    }
}

static void balance_bias_gradient_is_the_excess_load_and_leaves_the_skip_bias_alone(void **state) {
    (void)state;
    RouterProgram p = router_start(150, &(RouterSpec){.experts = 7, .k = 2, .skip = true}, true);
    double fraction[64], mean[64];
    executor_zero(p.program.executor);
    run_program(&p.program);
    run_program(&p.program);
    measure_load(&p, fraction, mean);
    const double *gradient = reals(&p.program, graph_parameter_gradient(p.program.model.graph, p.bias));
    for (int64_t e = 0; e < 7; e++) assert_true(gradient[e] == 2 * (7 * round(300 * fraction[e]) - 300));
    assert_true(fraction[7] > 0 && gradient[7] == 0);
    memset(reals(&p.program, p.share), 0, sizeof(double));
    for (int64_t e = 0; e < 7; e++) fraction[e] = gradient[e];
    run_program(&p.program);
    for (int64_t e = 0; e < 7; e++) assert_true(gradient[e] == fraction[e]); /* an empty microbatch has no load */
    program_free(&p.program);
}

/* Microbatches whose loads are uneven, and even together: by `order`, each expert is chosen by as many rows. The sum of
 * their errors, in fp32. */
static void sum_errors(int64_t experts, int64_t rows, const int *order, float *sums) {
    Graph *graph = graph_create(PRECISION_FP32, true);
    int64_t one = 1, two = 2, shape[] = {rows, experts};
    TensorId logits = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, shape, "logits");
    TensorId bias = graph_parameter(graph, "bias", PARAMETER_BALANCE_BIAS, 1, &experts, 0, 0, false);
    TensorId share = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "share");
    TensorId loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &two, "loss");
    op_router(graph, logits, bias, share, loss, &(RouterSpec){.experts = experts, .k = 1});
    Program program = start_program(graph, RECOMPUTE_NONE, NULL, 0);
    executor_zero(program.executor);
    executor_set_scalar(program.executor, share, 1.0 / (double)experts);
    for (int64_t m = 0; m < experts; m++) {
        float *values = memset(executor_tensor(program.executor, logits), 0, (size_t)(rows * experts) * sizeof(float));
        for (int64_t r = 0; r < rows; r++) values[r * experts + (r * r + order[m]) % experts] = 1;
        run_program(&program);
    }
    executor_read(program.executor, graph_parameter_gradient(graph, bias), sums);
    program_free(&program);
}

static void a_load_error_of_zero_is_zero_in_any_order_of_microbatches(void **state) {
    (void)state;
    static const struct { int64_t experts, rows; } cases[] = {{3, 10}, {6, 10}, {7, 64}, {16, 33}, {60, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int order = 0; order < 3; order++) {
            int64_t experts = cases[i].experts;
            int orders[64];
            float sums[64];
            for (int m = 0; m < experts; m++) orders[m] = order == 0 ? m : order == 1 ? (int)experts - 1 - m : (m * 7 + 1) % (int)experts;
            if (order == 2 && experts % 7 == 0) continue; /* which is no permutation */
            sum_errors(experts, cases[i].rows, orders, sums);
            for (int64_t e = 0; e < experts; e++) assert_true(sums[e] == 0);
        }
}

static void auxiliary_loss_is_that_of_switch_transformers(void **state) {
    (void)state;
    RouterProgram p = router_start(150, &(RouterSpec){.experts = 7, .k = 2, .skip = true, .auxiliary = 0.01}, true);
    double fraction[64], mean[64], dot = 0;
    executor_zero(p.program.executor);
    reals(&p.program, p.loss)[1] = 5;
    run_program(&p.program);
    measure_load(&p, fraction, mean);
    for (int64_t e = 0; e < 7; e++) dot += fraction[e] * mean[e];
    assert_close(reals(&p.program, p.loss)[1], 5 + 0.25 * 0.01 * 7 * dot);
    assert_true(reals(&p.program, p.loss)[0] == 0);
    program_free(&p.program);
}

static void generation_has_neither_balance_bias_nor_loss(void **state) {
    (void)state;
    RouterProgram p = router_start(4, &(RouterSpec){.experts = 3, .k = 1, .auxiliary = 1}, false);
    assert_true(p.program.model.graph->tensors[p.bias].gradient == TENSOR_NONE);
    run_program(&p.program);
    assert_true(reals(&p.program, p.loss)[1] == 0);
    program_free(&p.program);
}

static void a_router_without_any_gradient_to_pass_on_adds_no_backward_node(void **state) {
    (void)state;
    RouterProgram p = router_start(4, &(RouterSpec){.experts = 3, .k = 1}, true);
    assert_int_equal(p.program.model.graph->node_count, 1);
    program_free(&p.program);
}

static void check_sort(int64_t rows, int64_t k, int64_t experts, int choices) {
    Shape s = {.rows = rows, .router = {.experts = experts, .k = k}, .choices = choices};
    Graph *graph = graph_create(PRECISION_FP64, false);
    TensorId index = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 2, (int64_t[]){rows, k}, "index");
    Dispatch dispatch = op_moe_sort(graph, index, experts);
    Program program = start_program(graph, RECOMPUTE_NONE, NULL, 0);
    const int32_t *chosen = memcpy(integers(&program, index), choose_experts(&s), rows * k * sizeof *chosen);
    run_program(&program);
    const int32_t *slot = integers(&program, dispatch.slot);
    int32_t next = 0;
    for (int64_t e = 0; e < experts; e++) {
        assert_int_equal(integers(&program, dispatch.offset)[e], next);
        for (int64_t i = 0; i < rows * k; i++) {
            if (chosen[i] != e) continue;
            assert_int_equal(slot[i], next++);
        }
    }
    assert_int_equal(integers(&program, dispatch.offset)[experts], next);
    for (int64_t i = 0; i < rows * k; i++)
        if (chosen[i] == experts) assert_int_equal(slot[i], -1);
    program_free(&program);
}

static void slots_are_in_expert_then_row_order_and_skipped_rows_have_none(void **state) {
    (void)state;
    check_sort(1, 1, 1, CHOOSE_LAST);
    check_sort(100, 1, 4, CHOOSE_SPREAD);
    check_sort(100, 3, 7, CHOOSE_SPREAD);
    check_sort(4200, 2, 16, CHOOSE_SPREAD);
    check_sort(2048, 1, 3, CHOOSE_LAST);
    check_sort(50, 2, 3, CHOOSE_NONE);
}

static void arrivals_of_an_expert_are_in_the_order_of_ranks_and_their_rows(void **state) {
    (void)state;
    for (int i = 0; i < ARRIVALS; i++) {
        const Arrivals *a = &arrivals[i];
        int64_t row = a->experts + 1, shape[] = {a->ranks, row};
        Graph *graph = graph_create(PRECISION_FP64, false);
        TensorId offsets = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 2, shape, "offsets");
        Dispatch local = add_arrivals(graph, a, offsets);
        Program program = start_program(graph, RECOMPUTE_NONE, NULL, 0);
        const int32_t *from = memcpy(integers(&program, offsets), list_offsets(a), (size_t)(a->ranks * row) * sizeof(int32_t));
        run_program(&program);
        int32_t next = 0;
        for (int64_t e = 0; e < a->own; e++) {
            assert_int_equal(integers(&program, local.offset)[e], next);
            for (int64_t r = 0, begin = 0; r < a->ranks; r++) { /* where the rows of rank r begin among all that arrive */
                const int32_t *of_rank = from + r * row + a->first;
                for (int32_t k = of_rank[e]; k < of_rank[e + 1]; k++)
                    assert_int_equal(integers(&program, local.slot)[begin + k - of_rank[0]], next++);
                begin += of_rank[a->own] - of_rank[0];
            }
        }
        assert_int_equal(integers(&program, local.offset)[a->own], next);
        for (int64_t k = 0; k < a->spare; k++) assert_int_equal(integers(&program, local.slot)[next + k], -1);
        program_free(&program);
    }
}

/* Experts from permute to combine, with gradients; the choice of experts is an input. */
typedef struct BlockProgram {
    Program program;
    TensorId index, gate, x, w, y, d_y;
} BlockProgram;

static BlockProgram block_start(const Shape *s) {
    Graph *graph = graph_create(PRECISION_FP64, true);
    int64_t chosen[] = {s->rows, s->router.k};
    BlockProgram b = {.index = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 2, chosen, "index"),
        .gate = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, chosen, "gate"),
        .x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){s->rows, s->in}, "x"),
        .d_y = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){s->rows, s->out}, "d_y")};
    b.w = graph_parameter(graph, "w", PARAMETER_MATRIX, 3, (int64_t[]){s->router.experts, s->out, s->in}, 0, 1, false);
    Dispatch dispatch = op_moe_sort(graph, b.index, s->router.experts);
    TensorId y_slots = op_grouped_linear(graph, op_moe_permute(graph, b.x, &dispatch), b.w, &dispatch);
    b.y = op_moe_combine(graph, y_slots, b.gate, &dispatch);
    b.program = start_program(graph, RECOMPUTE_NONE, &(Seed){b.y, b.d_y}, 1);
    memcpy(integers(&b.program, b.index), choose_experts(s), s->rows * s->router.k * sizeof(int32_t));
    fill(&b.program, b.gate, 1, 1);
    fill(&b.program, b.x, 2, 1);
    fill(&b.program, b.w, 3, 1);
    fill(&b.program, b.d_y, 4, 1);
    executor_zero(b.program.executor);
    return b;
}

static void the_block_is_the_gated_sum_of_its_experts(void **state) {
    (void)state;
    const Shape s = {.rows = 90, .in = 11, .out = 270, .router = {.experts = 5, .k = 2}};
    BlockProgram b = block_start(&s);
    const int32_t *index = integers(&b.program, b.index);
    const double *gate = reals(&b.program, b.gate), *x = reals(&b.program, b.x), *w = reals(&b.program, b.w);
    run_program(&b.program);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t o = 0; o < s.out; o++) {
            double y = 0;
            for (int64_t j = 0; j < 2; j++)
                for (int64_t i = 0; index[2 * r + j] < 5 && i < s.in; i++)
                    y += gate[2 * r + j] * x[r * s.in + i] * w[(index[2 * r + j] * s.out + o) * s.in + i];
            assert_close(reals(&b.program, b.y)[r * s.out + o], y);
        }
    program_free(&b.program);
}

static void gradients_of_expert_weights_are_added_up(void **state) {
    (void)state;
    const Shape s = {.rows = 20, .in = 6, .out = 7, .router = {.experts = 3, .k = 1}};
    BlockProgram b = block_start(&s);
    int64_t count = graph_elements(b.program.model.graph, b.w);
    const double *gradient = reals(&b.program, graph_parameter_gradient(b.program.model.graph, b.w));
    double *once = memory_allocate(count * sizeof *once);
    run_program(&b.program);
    memcpy(once, gradient, count * sizeof *once);
    run_program(&b.program);
    for (int64_t i = 0; i < count; i++) assert_close(gradient[i], 2 * once[i]);
    free(once);
    program_free(&b.program);
}

static void a_block_that_every_row_skips_is_zero_and_learns_nothing(void **state) {
    (void)state;
    const Shape s = {.rows = 20, .in = 6, .out = 7, .router = {.experts = 3, .k = 2}, .choices = CHOOSE_NONE};
    BlockProgram b = block_start(&s);
    Graph *graph = b.program.model.graph;
    TensorId zeros[] = {b.y, graph->tensors[b.x].gradient, graph->tensors[b.gate].gradient, graph->tensors[b.w].gradient};
    run_program(&b.program);
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        for (int64_t j = 0; j < graph_elements(graph, zeros[i]); j++) assert_true(reals(&b.program, zeros[i])[j] == 0);
    program_free(&b.program);
}

static void experts_cost_two_flops_per_weight_and_slot(void **state) {
    (void)state;
    const Shape s = {.rows = 20, .in = 6, .out = 7, .router = {.experts = 3, .k = 2}};
    BlockProgram b = block_start(&s);
    for (int i = 0; i < b.program.model.graph->node_count; i++) {
        const Node *node = &b.program.model.graph->nodes[i];
        bool product =
            node->op == OP_grouped_linear || node->op == OP_grouped_linear_grad_input || node->op == OP_grouped_linear_grad_weight;
        if (product) assert_true(op_cost(b.program.model.graph, node).flops == 2.0 * 40 * 6 * 7);
    }
    program_free(&b.program);
}

/* Runs a whole block under a recompute policy; gives the gradients of bias and logits, returns the number of nodes. */
static int recomputed_gradients(RecomputePolicy policy, double d_bias[5], double d_logits[30 * 5]) {
    Graph *graph = graph_create(PRECISION_FP64, true);
    int64_t logits_shape[] = {30, 5}, x_shape[] = {30, 8}, classes = 5, one = 1, two = 2;
    TensorId logits = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, logits_shape, "logits");
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, x_shape, "x");
    TensorId d_y = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, x_shape, "d_y");
    TensorId share = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "share");
    TensorId loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &two, "loss");
    TensorId bias = graph_parameter(graph, "bias", PARAMETER_BALANCE_BIAS, 1, &classes, 0, 0, false);
    TensorId w = graph_parameter(graph, "w", PARAMETER_MATRIX, 3, (int64_t[]){4, 8, 8}, 0, 1, false);
    graph_scope(graph, 0, "layer.");
    RouterSpec spec = {.experts = 4, .k = 2, .skip = true, .auxiliary = 1};
    Routing routing = op_router(graph, logits, bias, share, loss, &spec);
    Dispatch dispatch = op_moe_sort(graph, routing.index, 4);
    TensorId y_slots = op_grouped_linear(graph, op_moe_permute(graph, x, &dispatch), w, &dispatch);
    TensorId y = op_moe_combine(graph, y_slots, routing.gate, &dispatch);
    Program program = start_program(graph, policy, &(Seed){y, d_y}, 1);
    const TensorId filled[] = {logits, x, d_y, share, bias, w};
    for (int i = 0; i < 6; i++) fill(&program, filled[i], 20 + i, 1);
    executor_zero(program.executor);
    run_program(&program);
    memcpy(d_bias, reals(&program, graph_parameter_gradient(graph, bias)), 5 * sizeof *d_bias);
    memcpy(d_logits, reals(&program, graph->tensors[logits].gradient), 30 * 5 * sizeof *d_logits);
    int nodes = graph->node_count;
    program_free(&program);
    return nodes;
}

static void recomputed_routing_has_the_same_bits_and_counts_the_load_once(void **state) {
    (void)state;
    double d_bias[2][5], d_logits[2][30 * 5];
    int kept = recomputed_gradients(RECOMPUTE_NONE, d_bias[0], d_logits[0]);
    int recomputed = recomputed_gradients(RECOMPUTE_BLOCK, d_bias[1], d_logits[1]);
    assert_true(recomputed > kept);
    assert_memory_equal(d_bias[0], d_bias[1], sizeof d_bias[0]);
    assert_memory_equal(d_logits[0], d_logits[1], sizeof d_logits[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routing_gradients_match_central_differences),
        cmocka_unit_test(dispatch_gradients_match_central_differences),
        cmocka_unit_test(arrivals_are_sorted_and_put_back_with_their_gradients),
        cmocka_unit_test(gradients_reach_the_logits_through_the_experts),
        cmocka_unit_test(router_chooses_by_biased_and_gates_by_unbiased_probability),
        cmocka_unit_test(router_chooses_in_the_best_groups_alone),
        cmocka_unit_test(equal_scores_go_to_the_lower_index),
        cmocka_unit_test(logits_that_are_not_numbers_choose_an_existing_class),
        cmocka_unit_test(balance_bias_gradient_is_the_excess_load_and_leaves_the_skip_bias_alone),
        cmocka_unit_test(a_load_error_of_zero_is_zero_in_any_order_of_microbatches),
        cmocka_unit_test(auxiliary_loss_is_that_of_switch_transformers),
        cmocka_unit_test(generation_has_neither_balance_bias_nor_loss),
        cmocka_unit_test(a_router_without_any_gradient_to_pass_on_adds_no_backward_node),
        cmocka_unit_test(slots_are_in_expert_then_row_order_and_skipped_rows_have_none),
        cmocka_unit_test(arrivals_of_an_expert_are_in_the_order_of_ranks_and_their_rows),
        cmocka_unit_test(the_block_is_the_gated_sum_of_its_experts),
        cmocka_unit_test(gradients_of_expert_weights_are_added_up),
        cmocka_unit_test(a_block_that_every_row_skips_is_zero_and_learns_nothing),
        cmocka_unit_test(experts_cost_two_flops_per_weight_and_slot),
        EACH_ISA(cmocka_unit_test(recomputed_routing_has_the_same_bits_and_counts_the_load_once)),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
