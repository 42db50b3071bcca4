/* The proof every operation passes. A test describes a small graph once, as a function; check_op then
 *   0. with SMELT_TEST_DEVICE=hip or cuda only runs it on that GPU, three times, compares with fp64 under the bf16
 *      bound and demands the same bits; else
 *   1. runs it in fp64 and compares every gradient with central differences of sum(output * cotangent) + losses,
 *   2. runs it in fp32, bf16 and, where pure bf16 keeps gradients in bf16, in pure bf16, with the kernels of every
 *      instruction set that this CPU has, and compares outputs and gradients with the fp64 ones,
 *   3. demands the same bits with one and with two threads, and that memory poisoned with NaN beforehand never shows.
 * Inputs and parameters are random values that bf16 represents exactly, so all precisions see the same problem. */
#pragma once

#include "backend/backend.h"
#include "base/cpu_isa.h"
#include "graph/graph.h"
#include "graph/op.h"
#include "program/program.h"
#include "ops/norm/norm.h"

typedef struct Check {
    Graph *graph;
    uint64_t seed;
    TensorId inputs[32];
    int input_count; /* real inputs: perturbed */
    TensorId integers[16];
    const int32_t *integer_values[16];
    int integer_count;
    TensorId outputs[16];
    int output_count;
    TensorId states[8];
    int state_count;
} Check;

typedef void (*CheckBuild)(Check *check, const void *argument);

/* A differentiable random input, INPUT arena, standard normal times `scale` plus `shift`. */
TensorId check_input(Check *check, TypeClass type, int rank, const int64_t *shape, double shift, double scale);
/* The same without a gradient: not perturbed. */
TensorId check_fixed(Check *check, TypeClass type, int rank, const int64_t *shape, double shift, double scale);
/* An integer input; the values are used as they are and must outlive the check. */
TensorId check_integers(Check *check, int rank, const int64_t *shape, const int32_t *values);
/* A random parameter of the kind; values normal with `shift` and `scale`. */
TensorId check_parameter(Check *check, ParameterKind kind, int rank, const int64_t *shape, double shift, double scale);
/* A norm of random parameters; `biased`: with a bias, which LayerNorm may have. */
Norm check_norm(Check *check, NormKind kind, bool biased, int64_t columns);
/* A WIDE input that is not perturbed (loss scales). */
TensorId check_scalar(Check *check, double value);
/* Marks a result: it is compared and, when real, gets a random cotangent. */
void check_output(Check *check, TensorId tensor);
/* A metric accumulator that losses add to; its first element is the loss and is differentiated. */
TensorId check_loss(Check *check, int64_t elements);

/* Bounds for relative L2 error per tensor: ||x - reference|| / (||reference|| + 0.01 * sqrt(elements)). */
typedef struct CheckBounds {
    double difference; /* analytic against central differences in fp64; 0: 1e-6 */
    double fp32;       /* 0: 1e-5 */
    double bf16;       /* 0: 0.02: inputs have 8 significant bits, half an ulp is 0.4%, a few roundings on the way */
    bool forward_only; /* no gradients */
} CheckBounds;

/* Runs its body once for each instruction set that this CPU has, chosen as `isa`, then chooses the one before again. The
 * body neither breaks nor returns. */
#define FOR_EACH_ISA(isa) \
    for (CpuIsa before_##isa = cpu_isa(), isa = check_isa_from(0, before_##isa); isa < CPU_ISA_COUNT; \
        isa = check_isa_from(isa + 1, before_##isa))
/* Chooses the first instruction set of this CPU from `isa` on, or `before` if there is none, and returns it or
 * CPU_ISA_COUNT. */
CpuIsa check_isa_from(CpuIsa isa, CpuIsa before);

/* The GPU of SMELT_TEST_DEVICE, NULL when it is not set. Open until the program ends. */
Device *check_device(void);
/* The GPU of SMELT_TEST_DEVICE; the test is skipped when that is not set. */
Device *check_gpu(void);

/* Plans and starts a program on a device; the test fails when that fails. `model` may have only a graph. */
Program check_program(Model model, Device *device);

/* The shapes of a test: for (int i = 0; check_has_shape(i); i++) { ... check_shape_rows(rows) ... } runs once, and with
 * SMELT_TEST_SHAPES=3 three times, in which check_shape_rows returns rows, 2 rows and 3 rows. It ends after the first round
 * if that did not call check_shape_rows. check_op is such a loop, so builders may call it. tools/test-gpu sets the
 * variable. */
bool check_has_shape(int number);
int64_t check_shape_rows(int64_t rows);

/* The median of the seconds that `run(what)` takes on check_device, after one run that is not counted. */
double check_median_seconds(void (*run)(const void *what), const void *what);

/* Runs the graph once in bf16 on check_device, with integers and scalars as given and all else zero: for what it launches,
 * not for results. While launches are timed (launches.h), it runs as often as launches_repeat does, on a card with random
 * numbers, because the clock of a card depends on them. */
void check_launch(CheckBuild build, const void *argument, bool gradients);

void check_op(CheckBuild build, const void *argument, CheckBounds bounds);
