/* Operations of layers with the gated delta rule: short convolutions, the rule itself, and gates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/math.h"
#include "ops/convolution/convolution.h"
#include "ops/delta/delta.h"
#include "ops/gate/gate.h"
#include "support/check.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MOST_ROWS = 160 };

/* Positions of rows: documents of `document` tokens, from position `first` in the first row on. */
typedef struct Documents { int64_t first, document; } Documents;

static TensorId positions_of(Check *check, const Documents *d, int64_t rows, int32_t values[MOST_ROWS]) {
    for (int64_t r = 0; r < rows; r++) values[r] = (int32_t)((d->first + r) % d->document);
    return check_integers(check, 1, &rows, values);
}

/* -- Gates --------------------------------------------------------------------------------------------------------- */

typedef struct GateShape {
    int64_t rows, columns, width; /* width: elements of x per gate */
    GateFunction function;
} GateShape;

static void build_gate(Check *check, const void *argument) {
    const GateShape *s = argument;
    TensorId gate = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){s->rows, s->width > 1 ? 1 : s->columns}, 0, 1);
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){s->rows, s->columns}, 0, 1);
    check_output(check, op_gate(check->graph, gate, x, s->function));
}

static void gates_multiply_elements_or_rows(void **state) {
    (void)state;
    static const GateShape shapes[] = {
        {1, 1, 1, GATE_SILU}, {5, 7, 1, GATE_SIGMOID}, {67, 24, 1, GATE_SILU}, {9, 300, 300, GATE_SIGMOID}, {33, 5, 5, GATE_SILU}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_gate, &shapes[i], (CheckBounds){0});
}

/* -- Convolutions -------------------------------------------------------------------------------------------------- */

typedef struct ConvolutionShape {
    int64_t sequences, length, columns, taps;
    Documents documents;
} ConvolutionShape;

static void build_convolution(Check *check, const void *argument) {
    static int32_t positions[MOST_ROWS];
    const ConvolutionShape *s = argument;
    int64_t rows = s->sequences * s->length;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, s->columns}, 0, 1);
    TensorId weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){s->columns, 1, s->taps}, 0, 1);
    TensorId at = positions_of(check, &s->documents, rows, positions);
    check_output(check, op_convolution(check->graph, x, weight, at, TENSOR_NONE, s->sequences));
}

static void convolutions_stay_in_their_document_and_sequence(void **state) {
    (void)state;
    static const ConvolutionShape shapes[] = {{1, 1, 3, 4, {0, 9}}, {1, 9, 5, 4, {0, 4}}, {3, 7, 8, 2, {2, 40}}, {2, 70, 70, 4, {5, 33}},
        {1, 6, 300, 8, {0, 6}}, {2, 67, 12, 4, {5, 66}}, {1, 130, 7, 6, {0, 129}}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_convolution, &shapes[i], (CheckBounds){0});
}

/* The rows of a sequence at once, and in two parts with a state between them. */
static void build_continued_convolution(Check *check, const void *argument) {
    static int32_t positions[MOST_ROWS];
    const ConvolutionShape *s = argument;
    int64_t columns = s->columns, first = s->sequences; /* rows of the first part */
    TensorId weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){columns, 1, s->taps}, 0, 1);
    TensorId history = graph_tensor(check->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){s->taps - 1, columns}, "history");
    for (int64_t r = 0; r < s->length; r++) positions[r] = (int32_t)r;
    for (int64_t r = 0, rows = first; r < s->length; r += rows, rows = s->length - r) {
        TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, columns}, 0, 1);
        TensorId at = check_integers(check, 1, &rows, positions + r);
        check_output(check, op_convolution(check->graph, x, weight, at, history, 1));
    }
}

static void a_history_precedes_the_rows(void **state) {
    (void)state;
    static const ConvolutionShape shapes[] = {{1, 2, 3, 4}, {2, 9, 8, 4}, {5, 6, 300, 2}, {66, 133, 8, 5}, {3, 7, 5, 7}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_continued_convolution, &shapes[i], (CheckBounds){.forward_only = true});
}

/* -- The rule ------------------------------------------------------------------------------------------------------ */

typedef struct RuleShape {
    DeltaSpec spec;
    int64_t length;
    Documents documents;
} RuleShape;

static DeltaInputs rule_inputs(Check *check, const RuleShape *s, int64_t rows, int32_t positions[MOST_ROWS]) {
    DeltaShape shape = delta_shape(&s->spec, rows);
    return (DeltaInputs){.x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, shape.columns}, 0, 1),
        .gates = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, 2 * shape.heads}, 0, 1),
        .positions = positions_of(check, &s->documents, rows, positions),
        .rates = check_parameter(check, PARAMETER_BIAS, 1, &shape.heads, -1, 1),
        .bias = check_parameter(check, PARAMETER_BIAS, 1, &shape.heads, -1, 1)};
}

static void build_rule(Check *check, const void *argument) {
    static int32_t positions[MOST_ROWS];
    const RuleShape *s = argument;
    DeltaInputs inputs = rule_inputs(check, s, s->spec.sequences * s->length, positions);
    check_output(check, op_delta(check->graph, &inputs, &(DeltaState){0}, &s->spec));
}

static void the_rule_and_its_gradients_agree(void **state) {
    (void)state;
    static const RuleShape shapes[] = {{{1, 1, 2, 3, 1}, 1, {0, 9}}, {{1, 1, 3, 2, 1}, 5, {0, 9}}, {{2, 4, 4, 5, 2}, 9, {0, 4}},
        {{1, 3, 5, 4, 3}, 7, {2, 40}}, {{2, 2, 12, 70, 1}, 33, {0, 21}}, {{1, 2, 128, 128, 1}, 3, {0, 9}}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_rule, &shapes[i], (CheckBounds){.bf16 = 0.03});
}

/* Several chunks of 64 tokens; documents that begin inside of chunks, and many in each. Gradients of rates and
 * biases are sums over documents whose terms cancel. */
static const RuleShape long_shapes[] = {{{1, 2, 6, 3, 1}, 140, {0, 200}}, {{1, 2, 5, 4, 2}, 75, {3, 70}}, {{2, 2, 17, 16, 1}, 160, {0, 9}}};

static void chunks_of_tokens_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(long_shapes); i++) check_op(build_rule, &long_shapes[i], (CheckBounds){.fp32 = 1e-4, .bf16 = 0.03});
}

/* Heads as models have them: kernels of GPUs divide 128 columns among blocks and waves. CPUs have the same code for all. */
static void wide_heads_agree(void **state) {
    (void)state;
    static const RuleShape shapes[] = {
        {{1, 2, 128, 128, 1}, 140, {0, 200}}, {{1, 1, 72, 128, 2}, 80, {0, 30}}, {{1, 2, 128, 40, 1}, 65, {5, 64}}};
    check_gpu();
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_rule, &shapes[i], (CheckBounds){.bf16 = 0.03});
}

/* With device_set_exact chunks have one token. */
static void single_tokens_agree(void **state) {
    (void)state;
    Device *device = check_device() ? check_device() : device_cpu();
    device_set_exact(device, true);
    for (size_t i = 0; i < COUNT(long_shapes); i++) check_op(build_rule, &long_shapes[i], (CheckBounds){.fp32 = 1e-4, .bf16 = 0.03});
    device_set_exact(device, false);
}

/* y of a head by the rule itself: S = decay S;  error = v - S^T k;  S += k (beta error)^T;  y = S^T q. */
static void expect_rule(const RuleShape *s, const double *values[5], const int32_t *positions, const double *y) {
    DeltaShape d = delta_shape(&s->spec, s->spec.sequences * s->length);
    enum { MOST_HEADS = 4, MOST_CHANNELS = 20 };
    static double states[MOST_HEADS][MOST_CHANNELS * MOST_CHANNELS];
    double q[MOST_CHANNELS], k[MOST_CHANNELS];
    for (int64_t r = 0; r < d.rows; r++)
        for (int64_t h = 0; h < d.heads; h++) {
            const double *x = values[0] + r * d.columns, *gates = values[1] + r * 2 * d.heads, *v = x + 2 * d.keys + h * d.value_dim;
            double beta = 1 / (1 + exp(-gates[h])), squares[2] = {delta_epsilon, delta_epsilon},
                   softened = gates[d.heads + h] + values[3][h];
            double decay = exp(-exp(values[2][h]) * log1p(exp(softened)));
            double *state = states[h];
            if (r % s->length == 0 || positions[r] == 0) memset(state, 0, sizeof states[h]);
            for (int64_t i = 0; i < d.key_dim; i++) {
                q[i] = x[h / d.group * d.key_dim + i], k[i] = x[d.keys + h / d.group * d.key_dim + i];
                squares[0] += q[i] * q[i], squares[1] += k[i] * k[i];
            }
            for (int64_t j = 0; j < d.value_dim; j++) {
                double recalled = 0, read = 0;
                for (int64_t i = 0; i < d.key_dim; i++) recalled += decay * state[i * d.value_dim + j] * k[i] / sqrt(squares[1]);
                for (int64_t i = 0; i < d.key_dim; i++) {
                    double *at = &state[i * d.value_dim + j];
                    *at = decay * *at + k[i] / sqrt(squares[1]) * beta * (v[j] - recalled);
                    read += *at * q[i] / sqrt(squares[0] * (double)d.key_dim);
                }
                double found = y[(r * d.heads + h) * d.value_dim + j];
                if (fabs(found - read) > 1e-12)
                    fail_msg("row %lld, head %lld, channel %lld: %.15g, not %.15g", (long long)r, (long long)h, (long long)j, found, read);
            }
        }
}

static void outputs_are_those_of_the_rule(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(long_shapes); i++) {
        const RuleShape *s = &long_shapes[i / 2];
        DeltaShape d = delta_shape(&s->spec, s->spec.sequences * s->length);
        int64_t shapes[5][2] = {{d.rows, d.columns}, {d.rows, 2 * d.heads}, {d.heads, 1}, {d.heads, 1}, {d.rows, 1}};
        TensorId ids[5];
        double *values[5];
        int32_t positions[MOST_ROWS];
        Graph *graph = graph_create(PRECISION_FP64, false);
        for (int j = 0; j < 5; j++)
            ids[j] = graph_tensor(graph, ARENA_INPUT,
                j == 4  ? TYPE_INT32
                : j < 2 ? TYPE_COMPUTE
                        : TYPE_WIDE,
                j < 2 ? 2 : 1, shapes[j], "in");
        DeltaInputs in = {.x = ids[0], .gates = ids[1], .rates = ids[2], .bias = ids[3], .positions = ids[4]};
        TensorId y = op_delta(graph, &in, &(DeltaState){0}, &s->spec);
        graph->tensors[y].keep = true;
        device_set_exact(device_cpu(), i % 2);
        Program program = check_program((Model){.graph = graph}, device_cpu());
        for (int j = 0; j < 5; j++) values[j] = executor_tensor(program.executor, ids[j]);
        for (int j = 0; j < 4; j++)
            for (int64_t k = 0; k < shapes[j][0] * shapes[j][1]; k++)
                values[j][k] = sin((double)(k * (j + 3)) + 0.7 * (double)(k % 11)) - (j > 1);
        for (int64_t r = 0; r < d.rows; r++)
            ((int32_t *)values[4])[r] = positions[r] = (int32_t)((s->documents.first + r) % s->documents.document);
        executor_run(program.executor);
        expect_rule(
            s, (const double *[]){values[0], values[1], values[2], values[3], values[4]}, positions, executor_tensor(program.executor, y));
        device_set_exact(device_cpu(), false);
        program_free(&program);
    }
}

/* Slots and the last rows in use of a first part, whose padding the second part must not see. */
enum { RULE_SLOTS = 3, RULE_SEQUENCES = 2 };
static const int32_t rule_slots[RULE_SEQUENCES] = {2, 0}, rule_lasts[RULE_SEQUENCES] = {1, 3}, rule_ends[RULE_SEQUENCES] = {2, 2};

/* Two parts of two sequences, with a state between them. */
static void build_continued_rule(Check *check, const void *argument) {
    static int32_t positions[2][MOST_ROWS];
    const RuleShape *s = argument;
    DeltaShape shape = delta_shape(&s->spec, RULE_SEQUENCES * s->length);
    int64_t rows = RULE_SLOTS * shape.heads * shape.key_dim, count = RULE_SEQUENCES;
    DeltaState states = {.state = graph_tensor(check->graph, ARENA_STATE, TYPE_WIDE, 2, (int64_t[]){rows, shape.value_dim}, "state"),
        .slots = check_integers(check, 1, &count, rule_slots)};
    for (int part = 0; part < 2; part++) {
        DeltaInputs inputs = rule_inputs(check, s, shape.rows, positions[part]);
        for (int64_t r = 0; r < shape.rows; r++) positions[part][r] = (int32_t)(r % s->length + (part ? rule_lasts[r / s->length] + 1 : 0));
        states.lasts = check_integers(check, 1, &count, part ? rule_ends : rule_lasts);
        check_output(check, op_delta(check->graph, &inputs, &states, &s->spec));
    }
}

static void the_rule_continues_from_the_states_of_slots(void **state) {
    (void)state;
    static const RuleShape shapes[] = {{{1, 2, 3, 5, RULE_SEQUENCES}, 4, {0, 9}}, {{2, 2, 70, 66, RULE_SEQUENCES}, 5, {0, 9}}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        check_op(build_continued_rule, &shapes[i], (CheckBounds){.forward_only = true, .bf16 = 0.03});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_multiply_elements_or_rows),
        cmocka_unit_test(convolutions_stay_in_their_document_and_sequence),
        cmocka_unit_test(a_history_precedes_the_rows),
        cmocka_unit_test(the_rule_and_its_gradients_agree),
        cmocka_unit_test(chunks_of_tokens_agree),
        cmocka_unit_test(wide_heads_agree),
        cmocka_unit_test(single_tokens_agree),
        cmocka_unit_test(outputs_are_those_of_the_rule),
        cmocka_unit_test(the_rule_continues_from_the_states_of_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
