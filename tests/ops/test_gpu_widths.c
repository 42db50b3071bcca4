/* GPU kernels at the shapes that choose between them: every width that has a kernel of its own, its neighbors, and
 * those that only the kernels for any width take. Small shapes are in test_dense.c and test_attention.c. Skipped
 * without SMELT_TEST_DEVICE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/check.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/embed/embed.h"
#include "ops/heads.h"
#include "ops/loss/loss.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

/* Rounding to bf16 is off by 2^-9 / sqrt(3) = 0.1% on average, a few times over; one wrong column among 8,192 shows
 * as 1%. */
static const CheckBounds bounds = {.bf16 = 0.006};

#define CHECK_ALL(build, cases)                                                                                                            \
    do {                                                                                                                                   \
        check_gpu();                                                                                                       \
        for (size_t i = 0; i < sizeof(cases) / sizeof *(cases); i++) check_op(build, &(cases)[i], bounds);                                 \
    } while (0)

typedef struct Case {
    int64_t rows, columns;
    NormKind kind;
    bool biased, affine;
} Case;

static void build_norm(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_WIDE, 2, (int64_t[]){check_shape_rows(c->rows), c->columns}, 0.3, 1);
    Norm norm = check_norm(check, c->kind, c->biased, c->columns);
    check_output(check, op_norm(check->graph, x, &norm));
}

static void norms_of_every_width_pass(void **state) {
    (void)state;
    static const Case cases[] = {
        {70, 4, NORM_RMS},
        {70, 256, NORM_RMS},
        {33, 512, NORM_RMS},
        {33, 516, NORM_RMS},
        {33, 1024, NORM_RMS},
        {33, 1028, NORM_RMS},
        {33, 2048, NORM_RMS},
        {3, 2052, NORM_RMS},
        {35, 4096, NORM_RMS},
        {2, 8192, NORM_RMS},
        {2, 8196, NORM_RMS},
        {34, 1027, NORM_RMS},
        {70, 64, NORM_LAYER, true},
        {33, 508, NORM_LAYER},
        {33, 768, NORM_LAYER, true},
        {33, 1600, NORM_LAYER, true},
        {3, 2560, NORM_LAYER},
        {2, 8192, NORM_LAYER, true},
        {33, 1025, NORM_LAYER, true},
        {2, 9000, NORM_LAYER},
    };
    CHECK_ALL(build_norm, cases);
}

/* Two samples, with a residual add. */
static void build_adaptive(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t shape[] = {2 * check_shape_rows(c->rows), c->columns}, vector[] = {2, c->columns};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), gate = check_input(check, TYPE_WIDE, 2, vector, 0.5, 1);
    TensorId stream = check_input(check, TYPE_WIDE, 2, shape, 0.2, 1);
    Modulation modulation = {check_input(check, TYPE_WIDE, 2, vector, 0, 1), check_input(check, TYPE_WIDE, 2, vector, 0, 0.5)};
    ResidualNorm out = op_adaptive_norm(check->graph, block, gate, stream, modulation, 1e-6);
    check_output(check, out.stream);
    check_output(check, out.normed);
}

static void adaptive_norms_of_every_width_pass(void **state) {
    (void)state;
    static const Case cases[] = {
        {35, 512}, {33, 516}, {3, 1024}, {33, 2048}, {2, 2052}, {33, 3072}, {3, 4096}, {2, 4100}, {2, 8192}, {1030, 8}};
    CHECK_ALL(build_adaptive, cases);
}

static void build_post_norm(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t shape[] = {check_shape_rows(c->rows), c->columns};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0.2, 1), stream = check_input(check, TYPE_WIDE, 2, shape, 0.2, 1);
    Norm norm = check_norm(check, NORM_RMS, false, c->columns);
    ResidualNorm out = op_post_norm(check->graph, block, stream, &norm);
    check_output(check, out.stream);
    check_output(check, out.normed);
}

static void post_norms_of_every_width_pass(void **state) {
    (void)state;
    static const Case cases[] = {{70, 256}, {33, 516}, {33, 1028}, {33, 2048}, {3, 4096}, {2, 4100}, {2, 8192}, {1030, 8}};
    CHECK_ALL(build_post_norm, cases);
}

static void build_residual_norm(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t shape[] = {check_shape_rows(c->rows), c->columns};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), stream = check_input(check, TYPE_WIDE, 2, shape, 0.2, 1), affine[4];
    for (int i = 0; i < 4; i++) affine[i] = check_parameter(check, PARAMETER_NORM, 1, &c->columns, i % 2 ? 0 : 1, 0.3);
    Norm norm = check_norm(check, c->kind, c->biased, c->columns);
    ResidualNorm residual = op_residual_norm(
        check->graph, block, stream, c->affine ? &(AffineResidual){{affine[0], affine[1], affine[2], affine[3]}} : NULL, &norm);
    check_output(check, residual.stream);
    check_output(check, residual.normed);
}

static void residual_adds_of_every_width_pass(void **state) {
    (void)state;
    static const Case cases[] = {
        {70, 256, NORM_RMS},
        {33, 516, NORM_RMS},
        {33, 1028, NORM_RMS},
        {3, 4096, NORM_RMS},
        {2, 8192, NORM_RMS},
        {34, 1027, NORM_RMS},
        {70, 256, NORM_LAYER, true},
        {33, 768, NORM_LAYER, true},
        {33, 2048, NORM_LAYER},
        {3, 4096, NORM_LAYER, true},
        {2, 8192, NORM_LAYER},
        {70, 256, NORM_RMS, false, true},
        {33, 1024, NORM_RMS, false, true},
        {70, 2048, NORM_RMS, false, true},
        {33, 4096, NORM_RMS, false, true},
        {2, 8192, NORM_RMS, false, true},
        {34, 1027, NORM_RMS, false, true},
        {33, 512, NORM_LAYER, true, true},
    };
    CHECK_ALL(build_residual_norm, cases);
}

enum { ROWS = 700, MANY_ROWS = 8500 /* more than 256 chunks of 32 */ };
typedef struct Embedding {
    int64_t rows, columns, vocabulary;
    int shape;
    bool affine, padded;
    int64_t first; /* of the tokens that the table has, a third of all; 0: it has all */
} Embedding;
static int32_t tokens[MANY_ROWS];

/* Shape 0: all the same; 1: all different; 2: some often, many once. */
static void build_embed(Check *check, const void *argument) {
    const Embedding *c = argument;
    for (uint32_t i = 0; i < c->rows; i++) {
        uint32_t scattered = (i * 2654435761u >> 7) % (uint32_t)c->vocabulary;
        tokens[i] = c->shape == 0   ? c->vocabulary - 1
                    : c->shape == 1 ? i * (c->vocabulary / c->rows)
                    : i % 3         ? scattered % 7 * (c->vocabulary / 7)
                                    : scattered;
    }
    TensorId table = check_parameter(
                 check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->first ? c->vocabulary / 3 : c->vocabulary, c->columns}, 0, 1),
             bias = TENSOR_NONE, scale = TENSOR_NONE;
    if (c->affine) {
        bias = check_parameter(check, PARAMETER_BIAS, 1, &c->columns, 0, 1);
        scale = check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.5);
    }
    check_output(check, op_embed(check->graph, check_integers(check, 1, &c->rows, tokens), table, bias, scale, TENSOR_NONE,
                            &(EmbedSpec){.padding = c->padded ? tokens[0] : -1, .first = c->first, .factor = c->affine ? 0 : 2.5}));
}

static void tokens_that_repeat_over_blocks_add_to_their_entry(void **state) {
    (void)state;
    static const Embedding cases[] = {
        {ROWS, 8, 70000, 0, false},
        {ROWS, 8, 70000, 1, true},
        {ROWS, 8, 70000, 2, true},
        {ROWS, 4, 300, 2, false},
        {ROWS, 3, 1000, 2, true},
        {ROWS, 1032, 700, 2, true},
        {32, 8, 1000, 0, true},
        {33, 8, 1000, 0, false},
        {64, 260, 1, 0, true},
        {ROWS, 1, 1000, 1, false},
        {MANY_ROWS, 4, 300, 0, true},
        {ROWS, 8, 300, 2, true, true},
        {MANY_ROWS, 4, 300, 0, false, true},
        {ROWS, 8, 700, 2, true, true, 200},
        {MANY_ROWS, 4, 300, 2, true, false, 100},
        {MANY_ROWS, 4, 300, 0, false, false, 100},
    };
    CHECK_ALL(build_embed, cases);
}

typedef struct Rows { int64_t rows, columns; } Rows;

static void build_elementwise(Check *check, const void *argument) {
    const Rows *c = argument;
    int64_t shape[] = {check_shape_rows(c->rows), 2 * c->columns};
    TensorId x = check_input(check, TYPE_COMPUTE, 2, shape, 0, 2);
    TensorId y = op_clamp(check->graph, x, 3);
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++)
        check_output(check, op_activation_with(check->graph, y, f, (ActivationTerms){.alpha = 1.7, .limit = 1.25}));
}

static void build_scale_add(Check *check, const void *argument) {
    const Rows *c = argument;
    int64_t shape[] = {check_shape_rows(c->rows), c->columns};
    TensorId x = check_input(check, TYPE_WIDE, 2, shape, 0, 1), previous = check_input(check, TYPE_WIDE, 2, shape, 0, 1);
    TensorId sum = op_scale_add(check->graph, x, previous, check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.5));
    check_output(check, op_add(check->graph, sum, sum));
}

static void wide_rows_pass_through_elementwise_kernels(void **state) {
    (void)state;
    static const Rows cases[] = {{130, 256}, {67, 2056}, {3, 1031}, {1, 5}};
    CHECK_ALL(build_elementwise, cases);
    CHECK_ALL(build_scale_add, cases);
}

typedef struct Qkv {
    int64_t rows;
    Heads heads;
    int64_t query, key, rotated;
    NormKind kind;
    bool biased;
} Qkv;

static void build_qkv(Check *check, const void *argument) {
    static const int32_t positions[] = {0, 1, 2, 79, 0, 1, 40, 41, 42, 0, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const Qkv *c = argument;
    RopeSpec spec = {.theta = 10000, .dimensions = c->rotated, .positions = 80};
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, heads_columns(&c->heads)}, 0.2, 1);
    Norm query = check_norm(check, c->kind, c->biased, c->query), key = check_norm(check, c->kind, c->biased, c->key);
    TensorId normed = op_qk_norm(check->graph, qkv, &query, &key, &c->heads);
    check_output(check, op_rope(check->graph, normed, check_integers(check, 1, &c->rows, positions), op_rope_table(check->graph, &spec),
                            &c->heads, ROPE_HALVES));
}

static void heads_of_every_width_are_normed_and_turned(void **state) {
    (void)state;
    static const Qkv cases[] = {
        {17, {5, 2, 128, 128}, 128, 128, 128, NORM_RMS, false},
        {20, {4, 1, 64, 64}, 64, 64, 32, NORM_LAYER, true},
        {17, {2, 1, 256, 256}, 512, 256, 64, NORM_RMS, false},
        {17, {8, 8, 128, 128}, 1024, 1024, 128, NORM_LAYER, true},
        {17, {16, 8, 128, 128}, 2048, 1024, 16, NORM_LAYER, false},
        {3, {32, 16, 128, 128}, 4096, 2048, 128, NORM_RMS, false},
        {2, {64, 1, 128, 128}, 8192, 128, 128, NORM_LAYER, true},
        {17, {3, 1, 90, 90}, 270, 90, 36, NORM_RMS, false},
        {2, {65, 1, 128, 128}, 8320, 128, 128, NORM_LAYER, true},
        {17, {3, 2, 34, 34}, 34, 68, 34, NORM_LAYER, true},
    };
    CHECK_ALL(build_qkv, cases);
}

enum { LOSS_ROWS_MOST = 13 };
static int32_t loss_targets[LOSS_ROWS_MOST];

/* Targets lie in every part of the vocabulary, the last column among them; row 3 has none. */
static void set_targets(const Rows *c) {
    for (int r = 0; r < c->rows; r++) loss_targets[r] = r == 3 ? -1 : (int32_t)((c->columns - 1) * (c->rows - 1 - r) / c->rows);
    loss_targets[0] = (int32_t)c->columns - 1;
}

/* Logits of deviation 4, so that a few columns anywhere in the row have most of its softmax. */
static TensorId loss_input(Check *check, const Rows *c) { return check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, 16}, 0, 1); }
static TensorId loss_head(Check *check, const Rows *c) {
    return check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->columns, 16}, 0, 1);
}

static void build_token_losses(Check *check, const void *argument) {
    const Rows *c = argument;
    set_targets(c);
    check_output(check, op_token_losses(check->graph, loss_input(check, c), loss_head(check, c),
                            check_integers(check, 1, &c->rows, loss_targets), c->columns));
}

static void build_loss(Check *check, const void *argument) {
    const Rows *c = argument;
    set_targets(c);
    op_linear_cross_entropy(check->graph, loss_input(check, c), loss_head(check, c), check_integers(check, 1, &c->rows, loss_targets),
        check_scalar(check, 1), check_loss(check, 1), c->columns);
}

/* A soft-cap that most logits reach half of. */
static void build_capped_loss(Check *check, const void *argument) {
    build_loss(check, argument);
    op_cap_losses(check->graph, 8);
}

static void build_capped_logits(Check *check, const void *argument) {
    const Rows *c = argument;
    TensorId x = check_input(check, TYPE_WIDE, 2, (int64_t[]){c->rows, c->columns}, 0, 4);
    check_output(check, op_soft_cap(check->graph, x, 8));
}

/* Rows that one, two, four and eight blocks of a cluster hold, up to their last logit and one past that, and longer ones.
 * Logits of up to 18 are off by up to 2^-4 in bf16: sums of many of them by far less, so that a lost eighth of a row shows
 * in its loss as 0.13 of 17; gradients, of which a few logits have most, by up to 6%. The first two of many have slices of
 * 48 KiB, the most without an opt-in of which static memory is a part; once a longer row has opted in, they say nothing. */
static void vocabularies_of_every_width_have_their_loss(void **state) {
    (void)state;
    check_gpu();
    static const Rows few[] = {{13, 4099}}, many[] = {{5, 24576}, {5, 49152}, {5, 32000}, {5, 38016}, {5, 38017}, {13, 76032}, {3, 100003},
                                                {13, 151936}, {3, 152065}, {13, 262272}, {3, 304128}, {3, 304129}};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        check_op(build_token_losses, &few[i], (CheckBounds){.bf16 = 0.004, .forward_only = true});
        check_op(build_loss, &few[i], (CheckBounds){.bf16 = 0.05});
    }
    if (device_info(check_gpu())->kind != DEVICE_CUDA) return; /* AMD has one form for all, and an emulator takes minutes */
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        check_op(build_token_losses, &many[i], (CheckBounds){.bf16 = 0.004, .forward_only = true});
        check_op(build_loss, &many[i], (CheckBounds){.bf16 = 0.05});
    }
}

static void soft_caps_of_logits_pass(void **state) {
    (void)state;
    check_gpu();
    static const Rows widths[] = {{13, 4099}, {5, 4096}, {3, 7}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        check_op(build_capped_loss, &widths[i], (CheckBounds){.bf16 = 0.05});
        check_op(build_capped_logits, &widths[i], (CheckBounds){.forward_only = true});
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_every_width_pass),
        cmocka_unit_test(adaptive_norms_of_every_width_pass),
        cmocka_unit_test(post_norms_of_every_width_pass),
        cmocka_unit_test(residual_adds_of_every_width_pass),
        cmocka_unit_test(tokens_that_repeat_over_blocks_add_to_their_entry),
        cmocka_unit_test(wide_rows_pass_through_elementwise_kernels),
        cmocka_unit_test(heads_of_every_width_are_normed_and_turned),
        cmocka_unit_test(vocabularies_of_every_width_have_their_loss),
        cmocka_unit_test(soft_caps_of_logits_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
