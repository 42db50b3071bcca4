/* GPU kernels that the shapes of other tests do not choose: heads of compressed convolutional attention in 16-byte
 * accesses and in generation, norms of many heads together, routers of many experts, sums for a bias, the row that
 * generation asks for. With the other tests, every kernel of src/kernel runs (tools/rocemu/test.sh looks). Skipped
 * without SMELT_TEST_DEVICE. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/check.h"
#include "ops/cca/cca.h"
#include "ops/heads.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"

#define CHECK_ALL(build, cases, ...)                                                                                                       \
    do {                                                                                                                                   \
        check_gpu();                                                                                                       \
        for (size_t i = 0; i < sizeof(cases) / sizeof *(cases); i++) check_op(build, &(cases)[i], (CheckBounds){__VA_ARGS__});             \
    } while (0)

/* -- Compressed convolutional attention ---------------------------------------------------------------------------- */

enum { POSITIONS = 160 };
typedef struct Cca {
    int64_t rows;
    Heads heads;
    int64_t rotated;
    int documents;
    int64_t chunks; /* of the rows, each with a halo; 0: none */
} Cca;
static int32_t positions[2][POSITIONS]; /* of a call, and of the one that goes on where it ended */

static CcaParameters cca_parameters(Check *check, const Heads *h) {
    int64_t convolved = heads_query_columns(h) + heads_key_columns(h);
    return (CcaParameters){
        .depthwise_weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){convolved, 1, 2}, 0.2, 0.7),
        .depthwise_bias = check_parameter(check, PARAMETER_BIAS, 1, &convolved, 0.3, 0.5),
        .grouped_weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){convolved, h->qk_dim, 2}, 0, 1 / sqrt(h->qk_dim)),
        .grouped_bias = check_parameter(check, PARAMETER_BIAS, 1, &convolved, 0.3, 0.5),
        .temperature = check_parameter(check, PARAMETER_NORM, 1, &h->kv_heads, 1.5, 0.3),
    };
}

static void add_cca(Check *check, const Cca *c, const int32_t *at, TensorId table, const CcaParameters *parameters, TensorId kept) {
    TensorId u = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, heads_columns(&c->heads)}, 0.1, 1);
    CcaSpec spec = {.heads = c->heads, .delayed = heads_value_columns(&c->heads) / 2};
    check_output(check, op_cca(check->graph, u, check_integers(check, 1, &c->rows, at), table, parameters, kept, &spec));
}

static TensorId rope_table(Check *check, const Cca *c) {
    return op_rope_table(check->graph, &(RopeSpec){.theta = 100, .dimensions = c->rotated, .positions = 2 * POSITIONS, .factor = 1});
}

static void build_cca(Check *check, const void *argument) {
    const Cca *c = argument;
    for (int r = 0; r < c->rows; r++) positions[0][r] = r % (int)((c->rows + c->documents - 1) / c->documents);
    CcaParameters parameters = cca_parameters(check, &c->heads);
    TensorId halo = TENSOR_NONE;
    if (c->chunks) halo = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->chunks * CCA_HALO_ROWS, heads_columns(&c->heads)}, 0.1, 1);
    add_cca(check, c, positions[0], rope_table(check, c), &parameters, halo);
}

/* The temperature's gradient is one number per head, a sum of signed terms of which bf16 keeps 8 bits each: it may
 * cancel to a tenth of their magnitude. */
static void heads_of_whole_chunks_are_convolved(void **state) {
    (void)state;
    static const Cca cases[] = {{70, {2, 1, 64, 64}, 32, 3, 0}, {70, {2, 1, 64, 64}, 32, 3, 2}, {144, {2, 1, 128, 128}, 64, 1, 4},
        {140, {2, 2, 16, 16}, 16, 1}, {40, {4, 2, 128, 128}, 64, 2}, {130, {4, 2, 128, 128}, 128, 4, 2}, {33, {1, 1, 96, 96}, 96, 33},
        {1, {1, 1, 128, 128}, 16, 1}};
    CHECK_ALL(build_cca, cases, .bf16 = 0.05);
}

/* The second call begins with the two rows that the first one kept. */
static void build_cca_in_chunks(Check *check, const void *argument) {
    const Cca *c = argument;
    int64_t shape[] = {2, heads_columns(&c->heads)};
    check->graph->training = false;
    TensorId kept = graph_tensor(check->graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "kept"), table = rope_table(check, c);
    CcaParameters parameters = cca_parameters(check, &c->heads);
    for (int call = 0; call < 2; call++) {
        for (int r = 0; r < c->rows; r++) positions[call][r] = call * (int32_t)c->rows + r;
        add_cca(check, c, positions[call], table, &parameters, kept);
    }
}

static void a_sequence_goes_on_where_its_first_chunk_ended(void **state) {
    (void)state;
    static const Cca cases[] = {{20, {2, 1, 64, 64}, 32}, {1, {4, 2, 128, 128}, 64}, {2, {3, 1, 10, 10}, 10}};
    CHECK_ALL(build_cca_in_chunks, cases, .forward_only = true);
}

/* -- Norms of queries and keys ------------------------------------------------------------------------------------- */

typedef struct Qkv {
    int64_t rows;
    Heads heads;
    NormKind kind;
} Qkv; /* all heads of a row are one group */

static Norm group_norm(Check *check, NormKind kind, int64_t columns) {
    Norm norm = {.kind = kind, .epsilon = 1e-5, .gain = check_parameter(check, PARAMETER_NORM, 1, &columns, 1, 0.2)};
    if (kind == NORM_LAYER) norm.bias = check_parameter(check, PARAMETER_BIAS, 1, &columns, 0, 0.5);
    return norm;
}

static void build_qk_norm(Check *check, const void *argument) {
    const Qkv *c = argument;
    const Heads *h = &c->heads;
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, heads_columns(h)}, 0.2, 1);
    Norm query = group_norm(check, c->kind, heads_query_columns(h)), key = group_norm(check, c->kind, heads_key_columns(h));
    check_output(check, op_qk_norm(check->graph, qkv, &query, &key, h));
}

static void groups_of_heads_are_normed_in_every_width(void **state) {
    (void)state;
    static const Qkv cases[] = {{9, {8, 4, 128, 128}, NORM_RMS}, {3, {64, 16, 128, 128}, NORM_RMS}, {5, {32, 4, 128, 128}, NORM_LAYER},
        {1541, {1, 1, 20, 20}, NORM_RMS}, {1541, {1, 1, 20, 20}, NORM_LAYER}};
    CHECK_ALL(build_qk_norm, cases, .bf16 = 0.006); /* as in test_gpu_widths.c */
}

/* -- The rest ------------------------------------------------------------------------------------------------------ */

typedef struct Route {
    int64_t rows;
    RouterSpec spec;
} Route;

static void build_router(Check *check, const void *argument) {
    const Route *c = argument;
    int64_t classes = c->spec.experts + c->spec.skip;
    TensorId logits = check_input(check, TYPE_WIDE, 2, (int64_t[]){check_shape_rows(c->rows), classes}, 0.5, 2);
    TensorId bias = check_input(check, TYPE_WIDE, 1, &classes, 0, 0.2);
    Routing routing = op_router(check->graph, logits, bias, check_scalar(check, 0.25), check_loss(check, 2), &c->spec);
    check_output(check, routing.index);
    check_output(check, routing.gate);
}

static void routers_choose_among_hundreds_of_experts(void **state) {
    (void)state;
    static const Route cases[] = {{40, {.experts = 511, .k = 4, .skip = true, .renormalise = true}},
        {9, {.experts = 130, .k = 1, .auxiliary = 3}}, {70, {.experts = 512, .k = 8}}};
    CHECK_ALL(build_router, cases, 0);
}

typedef struct Layer {
    int64_t rows, in, out;
    bool wide;
} Layer;

static void build_linear(Check *check, const void *argument) {
    const Layer *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){c->out, c->in}, 0, 1 / sqrt(c->in));
    check_output(check, op_linear(check->graph, x, w, check_parameter(check, PARAMETER_BIAS, 1, &c->out, 0, 0.5), c->wide));
}

static void biases_get_the_sums_of_all_rows(void **state) {
    (void)state;
    static const Layer cases[] = {{1, 8, 8}, {300, 16, 264}, {77, 24, 40, true}, {300, 7, 13}};
    CHECK_ALL(build_linear, cases, 0);
}

static void build_last_row(Check *check, const void *argument) {
    const Layer *c = argument;
    check_output(check, op_last_row(check->graph, check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, 0, 1)));
}

static void the_last_row_is_copied(void **state) {
    (void)state;
    static const Layer cases[] = {{1, 1}, {5, 300}};
    CHECK_ALL(build_last_row, cases, .forward_only = true, .bf16 = 1e-9); /* inputs are exact in bf16 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_of_whole_chunks_are_convolved),
        cmocka_unit_test(a_sequence_goes_on_where_its_first_chunk_ended),
        cmocka_unit_test(groups_of_heads_are_normed_in_every_width),
        cmocka_unit_test(routers_choose_among_hundreds_of_experts),
        cmocka_unit_test(biases_get_the_sums_of_all_rows),
        cmocka_unit_test(the_last_row_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
