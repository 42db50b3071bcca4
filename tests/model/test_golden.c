/* Against PyTorch: models that transformers made and saved (tests/golden/make.py) are read from their folders and
 * must give its logits, its loss, every gradient, and the losses of ten steps with AdamW and with Muon. In bf16 the
 * gradients must point the same way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "graph/op.h"
#include "formats/hf.h"
#include "optim/optim.h"
#include "support/each_isa.h"
#include "support/golden_run.h"

enum { STEPS = 10 };

static const char *const families[] = {"zaya", "zaya-window", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "mpt", "gpt2",
    "olmo2", "olmoe", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "smollm3", "phi3", "glm4_moe",
    "minimax_m2", "glm4_moe_lite", "ministral3", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "granite", "granitemoe", "glm4_moe-mtp",
    "deepseek_v3-mtp"};
enum { FAMILIES = sizeof families / sizeof *families };
/* Two programs sum the same numbers in other orders: a few units of 1e-7 of logits below 10. */
static void check_logits(const char *folder) {
    Golden g;
    golden_start(&g, folder, PRECISION_FP32, MODEL_LOGITS, NULL);
    executor_run(g.program.executor);
    const float *logits = executor_tensor(g.program.executor, g.program.model.logits);
    const StoredTensor *expected = golden_expect(&g, "logits");
    assert_int_equal(expected->shape[0], g.program.model.sequences * g.program.model.length);
    assert_int_equal(expected->shape[1], g.config.model.vocabulary);
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < expected->shape[0] * expected->shape[1]; i++) {
        worst = fmax(worst, fabs(logits[i] - golden_value(expected, i)));
        largest = fmax(largest, fabs(logits[i]));
    }
    if (!(worst < 2e-5) || !(largest > 0.5)) fail_msg("%s: logits differ by %g, the largest is %g", g.folder, worst, largest);
    golden_stop(&g);
}

static void logits_are_those_of_transformers(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) check_logits(families[f]);
}

static void a_folder_in_fp8_has_the_logits_of_transformers(void **state) {
    (void)state;
    check_logits("qwen3_moe-fp8");
}

/* Such a program reads matrices in bf16 and vectors in fp32, and is given nothing else. */
static void a_program_without_gradients_has_the_weights_of_one_that_trains(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden only, trained;
        golden_start(&only, families[f], PRECISION_BF16, MODEL_LOGITS, NULL);
        golden_start(&trained, families[f], PRECISION_BF16, MODEL_TRAIN, NULL);
        const Graph *graph = only.program.model.graph;
        for (int i = 0; i < graph->parameter_count; i++) {
            const Parameter *p = &graph->parameters[i];
            const Tensor *tensor = graph_get(graph, p->tensor);
            size_t unit = tensor->arena == ARENA_WEIGHT ? sizeof(uint16_t) : sizeof(float);
            const void *ours = executor_tensor(only.program.executor, p->tensor);
            const void *theirs = executor_tensor(trained.program.executor, trained.program.model.graph->parameters[i].tensor);
            assert_memory_equal(ours, theirs, p->count * unit);
        }
        golden_stop(&trained);
        golden_stop(&only);
    }
}

static void a_large_folder_takes_two_bytes_a_parameter_to_generate_from(void **state) {
    (void)state;
    Config config;
    OptionStrings strings = {0};
    Error error = {0};
    options_defaults(&config_table, &config, &strings);
    assert_true(options_read_yaml(&config_table, &config, &strings, "configs/llama3.1-8b.yaml", &error) && config_check(&config, &error));
    Precision precision = precision_for_inference(PRECISION_BF16);
    Model model = model_build(&config.model, precision, MODEL_GENERATE, 1, 1, RECOMPUTE_NONE);
    Backend backend = op_cpu_backend(precision);
    Plan plan = graph_plan(model.graph, &backend);
    double parameters = (double)model_parameters(model.graph), bytes = (double)(plan.bytes[ARENA_WEIGHT] + plan.bytes[ARENA_MASTER]);
    assert_true(bytes > 2 * parameters && bytes < 2.001 * parameters);
    model_free(&model);
    options_free_strings(&strings);
}

/* bf16 keeps eight bits, and errors of layers add up: single logits are off by a few hundredths of the largest. */
static void logits_in_bf16_point_the_same_way(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        golden_start(&g, families[f], PRECISION_BF16, MODEL_LOGITS, NULL);
        executor_run(g.program.executor);
        const float *logits = executor_tensor(g.program.executor, g.program.model.logits);
        const StoredTensor *expected = golden_expect(&g, "logits");
        double dot = 0, ours = 0, theirs = 0;
        for (int64_t i = 0; i < expected->shape[0] * expected->shape[1]; i++) {
            dot += logits[i] * golden_value(expected, i);
            ours += logits[i] * logits[i];
            theirs += golden_value(expected, i) * golden_value(expected, i);
        }
        if (!(dot / sqrt(ours * theirs) >= 0.999)) fail_msg("%s: logits have cosine %.6f", g.folder, dot / sqrt(ours * theirs));
        golden_stop(&g);
    }
}

/* Sums in other orders differ by about 1e-6 of a tensor's norm; the router's gradients are small differences of
 * large numbers. */
static void check_relative_error(const Golden *g, const char *name, const GoldenComparison *sums) {
    if (!(sums->difference <= 1e-4 * 1e-4 * sums->theirs))
        fail_msg(
            "%s: gradient of %s differs by %g of its norm %g", g->folder, name, sqrt(sums->difference / sums->theirs), sqrt(sums->theirs));
}

static void loss_and_gradients_are_those_of_pytorch(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        golden_start(&g, families[f], PRECISION_FP32, MODEL_TRAIN, NULL);
        assert_float_equal(golden_run(&g), golden_value(golden_expect(&g, "loss"), 0), 2e-6);
        TensorId prediction = g.program.model.prediction.loss;
        assert_int_equal(prediction != TENSOR_NONE, strstr(families[f], "-mtp") != NULL);
        if (prediction)
            assert_float_equal(*(const float *)executor_tensor(g.program.executor, prediction),
                0.3 * golden_value(golden_expect(&g, "prediction_loss"), 0), 2e-6);
        golden_each_gradient(&g, "gradient/", check_relative_error);
        golden_stop(&g);
    }
}

/* bf16 has eight bits: single elements are off by 2^-8 and more, the direction of a tensor is not. Four layers of olmo3, with
 * no norms before them, turn it more: transformers' own bf16 has a least cosine of 0.9974 there, of 0.973 for
 * deepseek_v3, of 0.9988 for gemma3_text, of 0.998 for qwen3_5_text, and of 0.9975 for qwen3_next. If scores of experts are
 * nearly equal, bf16 may choose other experts than fp32, so that the gradients of their layer point elsewhere. The -mtp folders
 * have no such scores (make.py). */
static void check_direction(const Golden *g, const char *name, const GoldenComparison *sums) {
    double cosine = sums->dot / sqrt(sums->ours * sums->theirs);
    double least = strstr(g->folder, "-mtp")                                                                   ? 0.999
                   : strstr(g->folder, "deepseek_v3")                                                          ? 0.99
                   : strstr(g->folder, "qwen3_next")                                                           ? 0.997
                   : strstr(g->folder, "olmo3") || strstr(g->folder, "gemma3") || strstr(g->folder, "qwen3_5") ? 0.998
                                                                                                               : 0.999;
    if (!(cosine >= least)) fail_msg("%s: gradient of %s has cosine %.6f", g->folder, name, cosine);
}

static void gradients_in_bf16_point_the_same_way(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        golden_start(&g, families[f], PRECISION_BF16, MODEL_TRAIN, NULL);
        assert_float_equal(golden_run(&g), golden_value(golden_expect(&g, "loss"), 0), 0.03);
        golden_each_gradient(&g, "gradient/", check_direction);
        golden_stop(&g);
    }
}

static void check_losses(OptimizerName name, const char *expected) {
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        Error error = {0};
        golden_start(&g, families[f], PRECISION_FP32, MODEL_TRAIN, NULL);
        OptimizerConfig config = g.config.optimizer;
        config.name = name;
        config.balance_lr = 0;
        Optimizer *optimizer = optimizer_create(g.program.model.graph, &config, NULL, device_cpu(), &error);
        assert_non_null(optimizer);
        for (int step = 1; step <= STEPS; step++) {
            double loss = golden_run(&g), theirs = golden_value(golden_expect(&g, expected), step - 1);
            if (!(fabs(loss - theirs) < 1e-5))
                fail_msg("%s: %s before step %d is %.7f, and PyTorch has %.7f", g.folder, expected, step, loss, theirs);
            optimizer_step(
                optimizer, &(Update){executor_arena(g.program.executor, ARENA_MASTER), executor_arena(g.program.executor, ARENA_WEIGHT),
                               executor_arena(g.program.executor, ARENA_GRADIENT), step, 0.003, 1});
        }
        optimizer_free(optimizer);
        golden_stop(&g);
    }
}

/* Rounding grows with the steps, to about 1e-6 of losses near 4. */
static void ten_steps_of_adamw_have_the_losses_of_pytorch(void **state) {
    (void)state;
    check_losses(OPTIMIZER_adamw, "adamw_losses");
}

static void ten_steps_of_muon_have_the_losses_of_pytorch(void **state) {
    (void)state;
    check_losses(OPTIMIZER_muon, "muon_losses");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(a_folder_in_fp8_has_the_logits_of_transformers),
        EACH_ISA(cmocka_unit_test(a_program_without_gradients_has_the_weights_of_one_that_trains)),
        cmocka_unit_test(a_large_folder_takes_two_bytes_a_parameter_to_generate_from),
        cmocka_unit_test(logits_in_bf16_point_the_same_way),
        cmocka_unit_test(loss_and_gradients_are_those_of_pytorch),
        cmocka_unit_test(gradients_in_bf16_point_the_same_way),
        cmocka_unit_test(ten_steps_of_adamw_have_the_losses_of_pytorch),
        cmocka_unit_test(ten_steps_of_muon_have_the_losses_of_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
