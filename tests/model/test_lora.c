/* Adapters: against those that PEFT trains (tests/golden/lora.py), what a frozen model takes of memory, and whole
 * runs from the base to what is made of them. */
#include "support/check.h"
#include "support/mentions.h"
#include "support/train_run.h"

#include "backend/backend.h"
#include "base/scope.h"
#include "base/strings.h"
#include "formats/hf.h"
#include "formats/peft.h"
#include "graph/op.h"
#include "layout/layout.h"
#include "ops/loss/loss.h"
#include "run/source.h"
#include "session/session.h"
#include "session/weights.h"

/* -- Against PEFT -------------------------------------------------------------------------------------------------- */

enum { STEPS = 10 };
/* As in tests/golden/lora.py. */
static const struct {
    const char *name, *targets;
    bool rslora;
    const char *base, *modules_to_save, *tokens;
} families[] = {
    {"llama", "all", false, "llama", "", ""},
    {"qwen3", "q_proj,v_proj,layers.1.mlp.down_proj", true, "qwen3", "", ""},
    {"gpt2", "all", false, "gpt2", "", ""},
    {"mixtral", "attention,gate_up_proj,experts.down_proj,mlp.gate", false, "mixtral", "", ""},
    {"zaya", "all,router", false, "zaya", "", ""},
    {"llama-tables", "q_proj,v_proj", false, "llama", "embed_tokens,lm_head", ""},
    {"qwen2-tables", "q_proj,v_proj", false, "qwen2", "model.embed_tokens", ""},
    {"zaya-tables", "q_proj,o_proj", false, "zaya", "lm_head", ""},
    {"llama-rows", "q_proj,v_proj", false, "llama", "", "3-5,9,61-63"},
    {"qwen2-rows", "q_proj,v_proj", false, "qwen2", "", "3,4-5,9,61,62,63"},
    {"zaya-rows", "q_proj,o_proj", false, "zaya", "", "3-5,9,61-63"},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* The program of one rank, with the base of a family in place. */
typedef struct Golden {
    Config config;
    LoraConfig lora;
    OptionStrings strings;
    Safetensors expected;
    Layout *layout;
    Program program;
} Golden;

static const StoredTensor *expect(const Golden *g, const char *kind, const char *name) {
    char *full = memory_format("%s%s", kind, name);
    const StoredTensor *tensor = safetensors_find(&g->expected, full);
    if (!tensor) fail_msg("there is no %s", full);
    free(full);
    return tensor;
}

static float value(const StoredTensor *tensor, int64_t index) {
    float result;
    memcpy(&result, (const char *)tensor->data + index * (int64_t)sizeof result, sizeof result);
    return result;
}

static void put_tokens(const Golden *g, const StoredTensor *stored, int64_t sequences, int64_t length) {
    int32_t *tokens = executor_tensor(g->program.executor, g->program.model.tokens),
            *positions = executor_tensor(g->program.executor, g->program.model.positions);
    int32_t *targets = g->program.model.targets ? executor_tensor(g->program.executor, g->program.model.targets) : NULL;
    for (int64_t i = 0; i < sequences * length; i++) {
        const char *at = (const char *)stored->data + (i / length * (length + 1) + i % length) * (int64_t)sizeof(int32_t);
        memcpy(&tokens[i], at, sizeof(int32_t));
        if (targets) memcpy(&targets[i], at + sizeof(int32_t), sizeof(int32_t));
        positions[i] = (int32_t)(i % length);
    }
}

/* The base: parameters of the folder by name, for which a graph without adapters is filled. What is trained of them comes later. */
static void load_base(const Golden *g, const char *folder) {
    Model base = model_build(&g->config.model, PRECISION_FP32, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    const Graph *graph = g->program.model.graph;
    Error error = {0};
    float *master = memory_allocate((size_t)base.graph->parameter_bytes), *to = executor_arena(g->program.executor, ARENA_MASTER);
    if (!hf_load_weights(folder, &g->config.model, base.graph, master, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < graph->parameter_count; i++) {
        if (!graph->parameters[i].frozen) continue;
        const Parameter *p = &base.graph->parameters[graph_find_parameter(base.graph, graph->parameters[i].name)];
        memcpy(parameter_in(&graph->parameters[i], to), parameter_in(p, master), (size_t)p->count * sizeof *master);
    }
    free(master);
    model_free(&base);
}

static void load_adapters(const Golden *g, const char *kind) {
    float *to = executor_arena(g->program.executor, ARENA_MASTER);
    for (int i = 0; i < g->program.model.graph->parameter_count; i++) {
        const Parameter *p = &g->program.model.graph->parameters[i];
        if (!p->frozen) memcpy(parameter_in(p, to), expect(g, kind, p->name)->data, (size_t)p->count * sizeof *to);
    }
}

static void start(Golden *g, int f, ModelMode mode) {
    Error error = {0};
    *g = (Golden){0};
    char *folder = memory_format("tests/golden/%s", families[f].base),
         *path = memory_format("tests/golden/lora/%s.safetensors", families[f].name);
    if (!source_read_config(folder, &g->config, &g->strings, &error) || !safetensors_open(&g->expected, path, &error))
        fail_msg("%s", error.message);
    const StoredTensor *tokens = expect(g, "tokens", "");
    int64_t sequences = tokens->shape[0], length = tokens->shape[1] - 1;
    LoraConfig lora = g->lora = (LoraConfig){.rank = 3,
        .alpha = 8,
        .targets = families[f].targets,
        .rslora = families[f].rslora,
        .modules_to_save = families[f].modules_to_save,
        .tokens = families[f].tokens};
    if (!lora_check_targets(&g->config.model, &lora, &error)) fail_msg("%s", error.message);
    g->program.model = model_build_adapted(NULL, &g->config.model, &lora, PRECISION_FP32, mode, sequences, length, RECOMPUTE_NONE);
    g->layout = layout_create(g->program.model.graph, &g->config.optimizer, &g->config.layout, 1 << 20);
    g->program = check_program(g->program.model, device_cpu());
    put_tokens(g, tokens, sequences, length);
    load_base(g, folder);
    free(folder);
    free(path);
}

static void stop(Golden *g) {
    executor_free(g->program.executor);
    layout_free(g->layout);
    model_free(&g->program.model);
    safetensors_close(&g->expected);
    options_free_strings(&g->strings);
}

static double run(const Golden *g) {
    executor_set_scalar(g->program.executor, g->program.model.scale, 1.0 / (double)(g->program.model.sequences * g->program.model.length));
    executor_set_scalar(g->program.executor, g->program.model.share, 1);
    executor_zero(g->program.executor);
    executor_run(g->program.executor);
    return executor_get_metric(g->program.executor, g->program.model.loss, 0);
}

/* Relative error of all adapters' elements of an arena; `count` receives how many adapters there are. */
static double difference(const Golden *g, Arena arena, const char *kind, size_t *count) {
    const float *ours = executor_arena(g->program.executor, arena);
    double worst = 0;
    *count = 0;
    for (int i = 0; i < g->program.model.graph->parameter_count; i++) {
        const Parameter *p = &g->program.model.graph->parameters[i];
        double sum = 0, norm = 0;
        if (p->frozen) continue;
        const StoredTensor *theirs = expect(g, kind, p->name);
        assert_int_equal(theirs->rank, p->rank);
        for (int d = 0; d < p->rank; d++) assert_int_equal(theirs->shape[d], p->shape[d]);
        const float *values = parameter_in(p, ours);
        for (int64_t j = 0; j < p->count; j++) {
            double other = value(theirs, j);
            sum += (values[j] - other) * (values[j] - other);
            norm += other * other;
        }
        worst = fmax(worst, sqrt(sum / norm));
        ++*count;
    }
    return worst;
}

/* Sums in other orders differ by about 1e-6 of a tensor's norm. */
static void the_first_gradients_are_those_of_peft(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        size_t count, stored = 0;
        start(&g, f, MODEL_TRAIN);
        load_adapters(&g, "start/");
        run(&g);
        double worst = difference(&g, ARENA_GRADIENT, "gradient/", &count);
        if (!(worst < 1e-4)) fail_msg("%s: a gradient differs by %g of its norm", families[f].name, worst);
        for (size_t i = 0; i < g.expected.count; i++) stored += !strncmp(g.expected.tensors[i].name, "gradient/", strlen("gradient/"));
        assert_int_equal(count, stored);
        stop(&g);
    }
}

/* Rounding grows with the steps, to about 1e-6 of losses near 4; AdamW moves each element by about the same, however
 * small its gradient. */
static void ten_steps_have_the_losses_and_the_adapters_of_peft(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        Error error = {0};
        size_t count;
        start(&g, f, MODEL_TRAIN);
        load_adapters(&g, "start/");
        Optimizer *optimizer = optimizer_create(g.program.model.graph, &g.config.optimizer, &g.layout->shard, device_cpu(), &error);
        assert_non_null(optimizer);
        void *master = executor_arena(g.program.executor, ARENA_MASTER);
        for (int step = 1; step <= STEPS; step++) {
            double loss = run(&g), theirs = value(expect(&g, "losses", ""), step - 1);
            if (!(fabs(loss - theirs) < 1e-5))
                fail_msg("%s: the loss before step %d is %.7f, and PEFT has %.7f", families[f].name, step, loss, theirs);
            optimizer_step(optimizer, &(Update){master, master, executor_arena(g.program.executor, ARENA_GRADIENT), step, 0.003, 1});
        }
        double worst = difference(&g, ARENA_MASTER, "trained/", &count);
        if (!(worst < 1e-3)) fail_msg("%s: an adapter differs by %g of its norm", families[f].name, worst);
        optimizer_free(optimizer);
        stop(&g);
    }
}

static void logits_with_adapters_are_those_of_peft(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        start(&g, f, MODEL_LOGITS);
        load_adapters(&g, "trained/");
        executor_run(g.program.executor);
        const float *logits = executor_tensor(g.program.executor, g.program.model.logits);
        const StoredTensor *expected = expect(&g, "logits", "");
        double worst = 0;
        for (int64_t i = 0; i < expected->shape[0] * expected->shape[1]; i++) worst = fmax(worst, fabs(logits[i] - value(expected, i)));
        if (!(worst < 2e-5)) fail_msg("%s: logits differ by %g", families[f].name, worst); /* as in test_golden.c */
        stop(&g);
    }
}

/* PEFT gives adapters of gate_proj to the experts, whichever layer has a module of this name. */
static void adapters_of_mlps_beside_experts_are_not_written(void **state) {
    (void)state;
    static const char *const settings[] = {
        "model.family=llama", "model.layers=2", "model.qk_norm=true", "model.experts=2", "model.experts_first=1", "lora.rank=2"};
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, &strings);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_true(options_set(&config_table, &config, &strings, settings[i], &error));
    assert_true(config_check(&config, &error));
    SCOPED(model_free) Model model = model_describe(&config.model, &config.lora, PRECISION_FP32);
    assert_false(peft_write("no-folder", "base", &config.lora, &config.model, model.graph, NULL, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "model.layers.0.mlp.gate_proj lora.targets=attention,experts");
}

/* Elements that PEFT trained, through its folder: what is read has their values, what is written is that folder again. */
static void folders_of_peft_are_read_and_written_as_they_are(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        Error error = {0};
        PeftFolder peft = {0};
        size_t count;
        char written[] = "/tmp/smelt-peft-XXXXXX";
        SCOPED_FREE char *folder = memory_format("tests/golden/lora/%s", families[f].name);
        start(&g, f, MODEL_LOGITS);
        void *master = executor_arena(g.program.executor, ARENA_MASTER);
        if (!peft_open(&peft, folder, &error) || !peft_load(&peft, &g.lora, g.program.model.graph, master, &error))
            fail_msg("%s", error.message);
        assert_true(difference(&g, ARENA_MASTER, "trained/", &count) == 0);
        assert_true(peft.lora.rslora == families[f].rslora && peft.lora.rank == 3 && peft.lora.alpha == 8);
        assert_non_null(mkdtemp(written));
        if (!peft_write(written, peft.base, &g.lora, &g.config.model, g.program.model.graph, master, &error)) fail_msg("%s", error.message);
        Safetensors ours;
        SCOPED_FREE char *path = memory_format("%s/adapter_model.safetensors", written);
        assert_true(safetensors_open(&ours, path, &error));
        assert_int_equal(ours.count, peft.file.count);
        for (size_t i = 0; i < ours.count; i++) {
            const StoredTensor *a = &ours.tensors[i], *b = &peft.file.tensors[i];
            assert_string_equal(a->name, b->name);
            assert_true(a->rank == b->rank && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1]);
            assert_memory_equal(a->data, b->data, (size_t)(a->shape[0] * a->shape[1]) * sizeof(float));
        }
        safetensors_close(&ours);
        SCOPED_FREE char *config = memory_format("%s/adapter_config.json", written);
        unlink(path);
        unlink(config);
        rmdir(written);
        peft_close(&peft);
        stop(&g);
    }
}

/* The merged model has the logits that PEFT has of base and adapters, here with the bound of another order of sums. */
static void a_folder_of_peft_is_read_as_the_model_that_it_makes_of_its_base(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        Golden g;
        Error error = {0};
        Config config;
        OptionStrings strings = {0};
        SCOPED_FREE char *folder = memory_format("tests/golden/lora/%s", families[f].name),
                         *path = memory_format("tests/golden/lora/%s.safetensors", families[f].name);
        g = (Golden){0};
        if (!source_read_config(folder, &config, &strings, &error) || !safetensors_open(&g.expected, path, &error))
            fail_msg("%s", error.message);
        const StoredTensor *tokens = expect(&g, "tokens", ""), *expected = expect(&g, "logits", "");
        g.program = check_program(
            model_build(&config.model, PRECISION_FP32, MODEL_LOGITS, tokens->shape[0], tokens->shape[1] - 1, RECOMPUTE_NONE), device_cpu());
        put_tokens(&g, tokens, tokens->shape[0], tokens->shape[1] - 1);
        if (!weights_load_program(folder, &config, g.program.executor, &error)) fail_msg("%s", error.message);
        executor_run(g.program.executor);
        const float *logits = executor_tensor(g.program.executor, g.program.model.logits);
        double worst = 0;
        for (int64_t i = 0; i < expected->shape[0] * expected->shape[1]; i++) worst = fmax(worst, fabs(logits[i] - value(expected, i)));
        if (!(worst < 1e-4)) fail_msg("%s: logits differ by %g", families[f].name, worst);
        program_free(&g.program);
        safetensors_close(&g.expected);
        options_free_strings(&strings);
    }
}

/* -- What is not there --------------------------------------------------------------------------------------------- */

static Config config_of(const char *path, OptionStrings *strings) {
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, strings);
    if (!options_read_yaml(&config_table, &config, strings, path, &error) || !config_check(&config, &error)) fail_msg("%s", error.message);
    return config;
}

static Budget budget_of(const Config *config) {
    Session session;
    Error error = {0};
    if (!session_plan(&session, config, device_cpu(), &error)) fail_msg("%s", error.message);
    Budget budget = session_budget(&session);
    session_free(&session);
    return budget;
}

static void a_frozen_model_takes_two_bytes_a_parameter_in_bf16_and_four_in_fp32(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = config_of("configs/llama3.1-8b.yaml", &strings);
    config.batch.sequences = 1;
    config.lora = (LoraConfig){.rank = 16, .alpha = 16, .targets = "all"};
    const double base = 8030261248, adapters = 41943040; /* as PEFT counts them */
    config.precision = PRECISION_BF16;
    Budget half = budget_of(&config);
    config.precision = PRECISION_FP32;
    Budget single = budget_of(&config);
    assert_true((double)half.weights < 2.01 * (base + adapters));
    assert_true((double)half.master < 4.1 * adapters && (double)half.gradients < 4.1 * adapters && (double)half.optimizer < 8.1 * adapters);
    assert_int_equal(single.weights, 0);
    assert_true((double)single.master < 4.01 * (base + adapters) && (double)single.gradients < 4.1 * adapters);
    options_free_strings(&strings);
}

/* As QLoRA was made for: a model of 70 billion parameters on a card of 80 GB. 0.516 bytes an element of the layers, and 2 of
 * embedding and head. */
static void a_quantized_model_of_70b_fits_a_card_of_80_gb(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = config_of("configs/llama3.1-70b.yaml", &strings);
    config.batch.sequences = 1;
    config.recompute = RECOMPUTE_BLOCK;
    config.checkpoint.async = false;
    config.lora = (LoraConfig){.rank = 16, .alpha = 16, .targets = "all", .base = LORA_BASE_NF4, .start = ""};
    const double tables = 2.0 * 128256 * 8192, layers = 70553706496 - tables, adapters = 207093760, outer = 4.0 / 64 / 256;
    Budget budget = budget_of(&config);
    assert_true(fabs((double)budget.weights / (layers * (0.5 + 1.0 / 64 + outer) + 2 * (tables + adapters)) - 1) < 1e-3);
    assert_true((double)budget.total < 72e9);
    options_free_strings(&strings);
}

static void frozen_parameters_have_no_gradient_and_no_gemm_makes_one(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = config_of("configs/llama-tiny.yaml", &strings);
    LoraConfig lora = {.rank = 4, .alpha = 4, .targets = "attention"};
    Model model = model_build_adapted(NULL, &config.model, &lora, PRECISION_BF16, MODEL_TRAIN, 1, 16, RECOMPUTE_NONE);
    const Graph *graph = model.graph;
    int gemms = 0;
    for (int i = 1; i < graph->tensor_count; i++)
        if (graph->tensors[i].arena == ARENA_GRADIENT) assert_non_null(strstr(graph->tensors[i].name, "lora_"));
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        assert_true(node->op != OP_embed_grad);
        gemms += node->op == OP_linear_grad_weight || node->op == OP_lora_grad_weight;
        if (node->op == OP_linear_cross_entropy) assert_true(node->out[LOSS_D_X] && !node->out[LOSS_D_W]);
    }
    assert_int_equal(gemms, config.model.layers * 4); /* down and up of queries, keys and values together, and of the output */
    model_free(&model);
    options_free_strings(&strings);
}

/* -- Whole runs ---------------------------------------------------------------------------------------------------- */

/* What adapts the model in BASE; %s: more settings. */
#define ADAPT                                                                                                                              \
    "train data.train=text data.valid=text data.length=32 batch.sequences=4 batch.tokens=256 eval.sequences=0 threads=2 tensorboard=false steps=8 "      \
    "init=base lora.rank=4 optimizer.lr=1e-2 %s"

static ProcessResult command(int code, const char *format, const char *settings) {
    char *words = memory_format(format, settings);
    ProcessResult result = smelt(words);
    expect_code(&result, code, words);
    free(words);
    return result;
}

static void good(const char *format, const char *settings) {
    ProcessResult result = command(ERROR_NONE, format, settings);
    process_free(&result);
}

static void says(int code, const char *fragment, const char *format, const char *settings) {
    ProcessResult result = command(code, format, settings);
    if (!mentions(result.errors, fragment) && !mentions(result.output, fragment))
        fail_msg("\"%s\" is not in:\n%s\nnor in:\n%s", fragment, result.errors, result.output);
    process_free(&result);
}

/* A text of a few hundred words and a base that has learned a little of it. */
static int setup(void **state) {
    if (enter_folder(state) != 0) return -1;
    write_corpus("text", 600);
    train_good("run=base model.family=llama model.experts=0 precision=fp32 steps=5");
    return 0;
}

#define LORA_TEST(test) cmocka_unit_test_setup_teardown(test, setup, leave_folder)

/* The loss that `smelt eval` prints. */
static double evaluated(const char *folder) {
    ProcessResult result = command(ERROR_NONE, "eval %s text", folder);
    const char *at = strstr(result.output, "loss");
    assert_non_null(at);
    double loss = strtod(at + strlen("loss"), NULL);
    process_free(&result);
    return loss;
}

static void a_run_that_goes_on_has_the_bits_of_one_that_was_not_stopped(void **state) {
    (void)state;
    static const char *const precisions[] = {"bf16", "fp32"};
    for (int i = 0; i < 2; i++) {
        char *whole = memory_format("run=whole%d precision=%s", i, precisions[i]),
             *parts = memory_format("run=parts%d precision=%s", i, precisions[i]);
        char *first = memory_format("%s stop_at=3", parts), *run = memory_format("whole%d", i), *other = memory_format("parts%d", i);
        good(ADAPT, whole);
        good(ADAPT, first);
        says(ERROR_NONE, "after step 3", ADAPT, parts);
        assert_true(same_checkpoint(run, other, 8));
        assert_same_steps(run, other);
        free(whole);
        free(parts);
        free(first);
        free(run);
        free(other);
    }
}

static void a_model_folder_is_the_base_that_its_run_is(void **state) {
    (void)state;
    static const char *const precisions[] = {"bf16", "fp32", "pure_bf16"};
    good("convert base %s", "folder");
    for (int i = 0; i < 3; i++) {
        char *of_run = memory_format("run=run%d precision=%s", i, precisions[i]),
             *of_folder = memory_format("run=folder%d init=folder precision=%s", i, precisions[i]);
        char *run = memory_format("run%d", i), *folder = memory_format("folder%d", i);
        good(ADAPT, of_run);
        good(ADAPT, of_folder);
        assert_true(same_checkpoint(run, folder, 8));
        free(of_run);
        free(of_folder);
        free(run);
        free(folder);
    }
}

static void checkpoints_hold_the_adapters_and_their_state_alone(void **state) {
    (void)state;
    Safetensors file;
    Error error = {0};
    good(ADAPT, "run=adapted");
    char *path = shard_path("adapted", 8);
    assert_true(safetensors_open(&file, path, &error));
    assert_int_equal(file.count, 3 * 2 * 7 * 2); /* weights, momentum and variance of both halves, of 7 layers in each of 2 blocks */
    for (size_t i = 0; i < file.count; i++) assert_non_null(strstr(file.tensors[i].name, ".lora_"));
    safetensors_close(&file);
    free(path);
}

/* The same model in another order of sums, over texts of a few thousand tokens: losses near 5 agree to about 1e-6,
 * and are printed with six digits. */
static void merged_weights_have_the_loss_of_weights_with_adapters(void **state) {
    (void)state;
    good(ADAPT, "run=adapted precision=fp32");
    double trained = recorded("adapted", "evaluation", -1, "loss");
    good("convert adapted %s", "folder");
    assert_true(fabs(evaluated("adapted") - trained) < 1e-5);
    assert_true(fabs(evaluated("folder") - trained) < 1e-5);
    double base = evaluated("base");
    if (!(base - trained > 1e-3)) fail_msg("adapters changed the loss from %g to %g alone", base, trained); /* a hundred times that */
}

/* Sums over ranks have another order, for each number of ranks. */
static void ranks_share_out_what_is_trained(void **state) {
    (void)state;
    good(ADAPT, "run=alone precision=bf16");
    double alone = recorded("alone", "evaluation", -1, "loss");
    static const char *const stages[] = {"0", "1", "2", "3"};
    for (int i = 0; i < 4; i++) {
        char *settings = memory_format("run=stage%s layout.zero=%s precision=bf16", stages[i], stages[i]),
             *run = memory_format("stage%s", stages[i]);
        good("launch -n 2 -- " ADAPT, settings);
        assert_true(fabs(recorded(run, "evaluation", -1, "loss") - alone) < 1e-3);
        free(settings);
        free(run);
    }
}

static void the_adapters_are_written_as_peft_reads_them(void **state) {
    (void)state;
    static const char name[] = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
    Safetensors file;
    Error error = {0};
    good(ADAPT, "run=adapted lora.alpha=6");
    good("convert adapted %s adapter=true", "adapter");
    assert_true(safetensors_open(&file, "adapter/adapter_model.safetensors", &error));
    const StoredTensor *up = safetensors_find(&file, name);
    assert_true(up && up->type == STORED_F32 && up->rank == 2 && up->shape[0] == 32 && up->shape[1] == 4);
    assert_int_equal(file.count, 2 * 7 * 2);
    safetensors_close(&file);
    json_t *config = json_load_file("adapter/adapter_config.json", 0, NULL);
    assert_string_equal(json_string_value(json_object_get(config, "peft_type")), "LORA");
    char *base = realpath("base", NULL); /* as the run remembers it */
    assert_string_equal(json_string_value(json_object_get(config, "base_model_name_or_path")), base);
    free(base);
    assert_int_equal(json_integer_value(json_object_get(config, "r")), 4);
    assert_true(json_number_value(json_object_get(config, "lora_alpha")) == 6);
    assert_int_equal(json_array_size(json_object_get(config, "target_modules")), 7);
    json_decref(config);
    says(ERROR_USAGE, "empty", "convert adapted %s adapter=true", "adapter");
    says(ERROR_NONE, "PEFT", "convert adapted@8 %s adapter=true overwrite=true", "adapter");
    write_text("adapter/notes", "mine");
    says(ERROR_USAGE, "adapter contains notes", "convert adapted %s adapter=true overwrite=true", "adapter");
    static const char *const idle[] = {"other.gguf", "other.bin", "other dtype=bf16", "other tokenizer=none", "other shard_bytes=1M"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) says(ERROR_USAGE, "adapter=true", "convert adapted %s adapter=true", idle[i]);
    says(ERROR_USAGE, "adapters", "convert base %s adapter=true", "other");
}

/* Writes adapters of base as PEFT does, goes on from them, and reads them in every command. */
static void adapters_of_peft_go_on_and_are_read_everywhere(void **state) {
    (void)state;
    good(ADAPT, "run=adapted precision=fp32 lora.alpha=6 lora.targets=attention");
    good("convert adapted %s adapter=true", "adapter");
    double trained = evaluated("adapted");
    assert_true(fabs(evaluated("adapter") - trained) < 1e-5);
    says(ERROR_NONE, "merged logits 16", "convert adapter %s", "folder");
    assert_true(fabs(evaluated("folder") - trained) < 1e-5);
    good("generate adapter %s", "a tokens=2");
    good(ADAPT, "run=on precision=fp32 lora.start=adapter lora.alpha=6 lora.targets=q_proj,k_proj,v_proj,o_proj");
    double fresh = recorded("adapted", "step", 0, "loss"), on = recorded("on", "step", 0, "loss");
    if (!(on < fresh - 1e-3)) fail_msg("the first loss is %g with adapters and %g without", on, fresh);
    says(ERROR_USAGE, "lora.rank=4 lora.alpha=6", ADAPT, "run=other lora.start=adapter lora.targets=attention");
    says(ERROR_CHECKPOINT, "adapter has no base_model.model.model.layers.0.mlp.gate_proj.lora_A.weight", ADAPT,
        "run=other lora.start=adapter lora.alpha=6");
    says(ERROR_CHECKPOINT, "does not belong to a layer with an adapter", ADAPT,
        "run=other lora.start=adapter lora.alpha=6 lora.targets=q_proj");
    says(ERROR_USAGE, "lora.start=adapter", ADAPT, "run=other init=adapter");
    json_t *fields = json_load_file("adapter/adapter_config.json", 0, NULL);
    json_object_set_new(fields, "lora_dropout", json_real(0.25));
    json_object_set_new(fields, "base_model_name_or_path", json_string("owner/elsewhere"));
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
#define ON "precision=fp32 lora.start=adapter lora.alpha=6 lora.targets=q_proj,k_proj,v_proj,o_proj"
    says(ERROR_NONE, "lora_dropout=0.25", ADAPT, "run=dropout " ON);
    says(ERROR_NONE, "owner/elsewhere", ADAPT, "run=beside " ON);
    char *base = realpath("base", NULL);
    json_object_set_new(fields, "base_model_name_or_path", json_string(base));
    json_object_set_new(fields, "use_rslora", json_string("false"));
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
    says(ERROR_CHECKPOINT, "use_rslora type PEFT (true or false)", ADAPT, "run=truth " ON);
    json_object_set_new(fields, "use_rslora", json_false());
    json_object_set_new(fields, "r", json_real(4.5));
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
    says(ERROR_CHECKPOINT, "r is not an integer", "eval %s text", "adapter");
    json_object_set_new(fields, "r", json_integer(4));
    json_object_set_new(fields, "layers_to_transform", json_pack("[i]", 0));
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
    says(ERROR_CHECKPOINT, "layers_to_transform adapter_config.json", "eval %s text", "adapter");
    json_object_set_new(fields, "layers_to_transform", json_pack("[i, i]", 0, 1));
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
    assert_true(fabs(evaluated("adapter") - trained) < 1e-5);
    assert_int_equal(json_array_append_new(json_object_get(fields, "target_modules"), json_string("down_proj")), 0);
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
    says(ERROR_CHECKPOINT, "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight target_modules adapter_config.json", "eval %s text",
        "adapter");
    json_object_set_new(fields, "exclude_modules", json_pack("[s]", "mlp.down_proj"));
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
    assert_true(fabs(evaluated("adapter") - trained) < 1e-5);
    json_decref(fields);
    says(ERROR_USAGE, "adapters would replaced OUT", "convert adapted %s overwrite=true", "base");
    says(ERROR_USAGE, "adapted", "convert adapted %s overwrite=true", "adapted");
    says(ERROR_USAGE, "adapter/", "convert adapter@base %s overwrite=true", "adapter/");
    says(ERROR_USAGE, "base base adapters", "convert adapter@base %s overwrite=true", "./base");
    free(base);
    good(ADAPT, "run=full init=adapter lora.rank=0");
    assert_int_equal(rename("base", "moved"), 0);
    says(ERROR_CHECKPOINT, "not a folder here: adapter@FOLDER", "eval %s text", "adapter");
    assert_true(fabs(evaluated("adapter@moved") - trained) < 1e-5);
}

/* Of a configuration and its tensors, neither may have a layer that the other lacks: PEFT would begin it anew, or leave it out. */
static void the_layers_of_a_configuration_are_those_of_its_tensors(void **state) {
    (void)state;
#define LAYER "base_model.model.model.layers.0.self_attn."
#define LACKS_MLP "adapter has no base_model.model.model.layers.0.mlp.gate_proj.lora_A.weight, target_modules"
#define NO_ADAPTER ".weight, adapter_config.json layer no adapter"
    static const struct {
        const char *targets, *excluded, *message; /* in JSON; NULL: it is good */
    } cases[] = {
        {"[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]", "null", NULL},
        {"\".*self_attn\\\\..*\"", "\"\"", NULL},
        {"\".*\\\\.(q|k|v|o)_proj\"", "[]", NULL},
        {"\"ALL-linear\"", "\".*mlp.*\"", NULL},
        {"\"all-linear\"", "[\"gate_proj\", \"up_proj\", \"down_proj\"]", NULL},
        {"null", "null", NULL},
        {"\"all-linear\"", "null", LACKS_MLP},
        {"\".*_proj\"", "null", LACKS_MLP},
        {"\".*_proj\"", "\"mlp.*\"", LACKS_MLP},
        {"[\"q_proj\"]", "null", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"\".*q_proj\"", "null", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"\"q_proj\"", "null", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"\"self_attn\"", "null", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"[]", "null", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"\".*self_attn\\\\..*\"", "[\"k_proj\"]", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"\".*self_attn\\\\..*\"", "\".*k_proj\"", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"null", "[\"k_proj\"]", LAYER "k_proj.lora_A" NO_ADAPTER},
        {"\"(q_proj\"", "null", "adapter: target_modules adapter_config.json pattern: missing closing parenthesis"},
        {"\".*self_attn\\\\..*\"", "\"[\"", "adapter: exclude_modules adapter_config.json pattern: "},
        {"\"(.*.*.*.*)*[!?]\"", "null", "adapter: pattern adapter_config.json model.layers.0."},
    };
    good(ADAPT, "run=adapted lora.targets=attention");
    good("convert adapted %s adapter=true", "adapter");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_auto_t *fields = json_load_file("adapter/adapter_config.json", 0, NULL);
        json_object_set_new(fields, "target_modules", json_loads(cases[i].targets, JSON_DECODE_ANY, NULL));
        json_object_set_new(fields, "exclude_modules", json_loads(cases[i].excluded, JSON_DECODE_ANY, NULL));
        assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
        says(cases[i].message ? ERROR_CHECKPOINT : ERROR_NONE, cases[i].message ? cases[i].message : "", "eval %s text", "adapter");
    }
}

/* An adapter is A and B. */
static void half_of_an_adapter_is_refused_by_the_name_of_what_is_missing(void **state) {
    (void)state;
    static const char up[] = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight";
    good(ADAPT, "run=adapted lora.targets=q_proj,v_proj");
    for (int half = 0; half < 2; half++) {
        Safetensors file;
        Error error = {0};
        good("convert adapted %s adapter=true overwrite=true", "adapter");
        SCOPED_FREE char *name = memory_copy_string(up);
        if (half) name[strlen(name) - strlen("B.weight")] = 'A';
        assert_true(safetensors_open(&file, "adapter/adapter_model.safetensors", &error));
        StoredTensor kept[8];
        size_t count = 0;
        assert_int_equal(file.count, 8);
        for (size_t i = 0; i < file.count; i++)
            if (strcmp(file.tensors[i].name, name) != 0) kept[count++] = file.tensors[i];
        assert_int_equal(count, 7);
        assert_true(safetensors_write("half.safetensors", kept, count, NULL, &error));
        safetensors_close(&file);
        assert_int_equal(rename("half.safetensors", "adapter/adapter_model.safetensors"), 0);
        SCOPED_FREE char *missing = memory_format("not %s: adapter both", name);
        says(ERROR_CHECKPOINT, missing, "eval %s text", "adapter");
    }
}

/* Without the refusal, the first generated token would be the first sign. */
static void a_value_that_is_not_finite_is_refused_by_its_tensor(void **state) {
    (void)state;
    static const float wrong[] = {NAN, INFINITY};
    good(ADAPT, "run=adapted lora.targets=q_proj,v_proj");
    for (int i = 0; i < 2; i++) {
        Safetensors file;
        Error error = {0};
        good("convert adapted %s adapter=true overwrite=true", "adapter");
        assert_true(safetensors_open(&file, "adapter/adapter_model.safetensors", &error));
        StoredTensor *tensor = &file.tensors[1];
        const int64_t count = tensor->shape[0] * tensor->shape[1];
        assert_int_equal(tensor->type, STORED_F32);
        SCOPED_FREE float *values = memory_allocate((size_t)count * sizeof *values);
        memcpy(values, tensor->data, (size_t)count * sizeof *values);
        values[count - 1] = wrong[i];
        tensor->data = values;
        assert_true(safetensors_write("wrong.safetensors", file.tensors, file.count, NULL, &error));
        SCOPED_FREE char *name = memory_format("adapter tensor %s NaN or infinity", tensor->name);
        safetensors_close(&file);
        assert_int_equal(rename("wrong.safetensors", "adapter/adapter_model.safetensors"), 0);
        says(ERROR_CHECKPOINT, name, "eval %s text", "adapter");
    }
}

#define EMBEDDING "model.embed_tokens.weight"
#define HEAD "base_model.model.lm_head.weight"
#define ROWS "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"

/* Adds a tensor to the folder `adapter`, before the others, and that of the embedding as the head too. */
static void add_tensor(const char *name, int64_t rows, int64_t width, const float *values) {
    Safetensors file;
    Error error = {0};
    assert_true(safetensors_open(&file, "adapter/adapter_model.safetensors", &error));
    SCOPED_FREE StoredTensor *all = memory_allocate((file.count + 2) * sizeof *all);
    size_t count = 0;
    all[count++] = (StoredTensor){.name = name, .type = STORED_F32, .rank = 2, .shape = {rows, width}, .data = values};
    if (ends_with(name, EMBEDDING))
        all[count++] = (StoredTensor){.name = HEAD, .type = STORED_F32, .rank = 2, .shape = {rows, width}, .data = values};
    memcpy(all + count, file.tensors, file.count * sizeof *all);
    assert_true(safetensors_write("more.safetensors", all, count + file.count, NULL, &error));
    safetensors_close(&file);
    assert_int_equal(rename("more.safetensors", "adapter/adapter_model.safetensors"), 0);
}

static void set_field(const char *field, const char *value) {
    json_auto_t *fields = json_load_file("adapter/adapter_config.json", 0, NULL);
    assert_int_equal(json_object_set_new(fields, field, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    assert_int_equal(json_dump_file(fields, "adapter/adapter_config.json", 0), 0);
}

/* The adapter of a head is PEFT's, and no setting of the command is wrong. */
static void an_adapter_of_the_head_is_refused_by_the_folders_field(void **state) {
    (void)state;
    static const float zeros[4 * 1024];
    good(ADAPT, "run=adapted lora.targets=q_proj");
    good("convert adapted %s adapter=true", "adapter");
    add_tensor("base_model.model.lm_head.lora_A.weight", 4, 32, zeros);
    add_tensor("base_model.model.lm_head.lora_B.weight", 256, 4, zeros);
    set_field("target_modules", "[\"q_proj\", \"lm_head\"]");
    says(ERROR_CHECKPOINT, "adapter: target_modules in adapter_config.json names lm_head, which is not a linear layer", "eval %s text",
        "adapter");
}

/* Writes the folder `adapter` with one more tensor, and a field of its configuration set to JSON. */
static void extend_adapter(const char *name, int64_t rows, int64_t width, const float *values, const char *field, const char *value) {
    good("convert adapted %s adapter=true overwrite=true", "adapter");
    add_tensor(name, rows, width, values);
    set_field("ensure_weight_tying", "true");
    set_field(field, value);
}

/* Returns true if row `row` of the merged embedding is 0.5; otherwise it must equal the base's. */
static void check_row(const Safetensors *merged, int64_t row, bool replaced) {
    Safetensors base;
    Error error = {0};
    assert_true(safetensors_open(&base, "plain/model.safetensors", &error));
    const StoredTensor *now = safetensors_find(merged, EMBEDDING), *before = safetensors_find(&base, EMBEDDING);
    int64_t width = now->shape[1];
    for (int64_t c = 0; c < width; c++)
        assert_true(((const float *)now->data)[row * width + c] == (replaced ? 0.5F : ((const float *)before->data)[row * width + c]));
    safetensors_close(&base);
}

/* Returns true if the run of rows_of_tokens_are_trained_beside_adapters names the id. */
static bool is_named(int64_t id) { return id == 32 || (id >= 97 && id <= 101) || id == 116; }

/* The merged table differs from that of the base in rows that are named, all of them, and in no other. */
static void check_rows_differ(const char *table) {
    Safetensors base, merged;
    Error error = {0};
    assert_true(
        safetensors_open(&base, "plain/model.safetensors", &error) && safetensors_open(&merged, "merged/model.safetensors", &error));
    const StoredTensor *before = safetensors_find(&base, table), *now = safetensors_find(&merged, table);
    size_t bytes = (size_t)before->shape[1] * sizeof(float);
    for (int64_t id = 0; id < before->shape[0]; id++) {
        bool same = !memcmp((const char *)before->data + (size_t)id * bytes, (const char *)now->data + (size_t)id * bytes, bytes);
        if (same == is_named(id)) fail_msg("%s: row %lld %s", table, (long long)id, same ? "stayed" : "moved");
    }
    safetensors_close(&base);
    safetensors_close(&merged);
}

/* PEFT saves modules that were trained whole (modules_to_save), and rows of tokens (trainable_token_indices). */
static void parts_of_the_base_in_a_folder_of_peft_take_their_place(void **state) {
    (void)state;
    Safetensors base, merged;
    Error error = {0};
    good(ADAPT, "run=adapted lora.targets=q_proj,v_proj");
    good("convert base %s dtype=fp32", "plain");
    assert_true(safetensors_open(&base, "plain/model.safetensors", &error));
    const int64_t *shape = safetensors_find(&base, EMBEDDING)->shape, rows = shape[0], width = shape[1];
    safetensors_close(&base);
    SCOPED_FREE float *values = memory_allocate((size_t)(rows * width) * sizeof *values);
    for (int64_t i = 0; i < rows * width; i++) values[i] = 0.5F;
    for (int whole = 0; whole < 2; whole++) {
        extend_adapter(whole ? "base_model.model." EMBEDDING : ROWS, whole ? rows : 2, width, values,
            whole ? "modules_to_save" : "trainable_token_indices", whole ? "[\"embed_tokens\"]" : "[5, 7]");
        good("convert adapter %s dtype=fp32 overwrite=true", "merged");
        assert_true(safetensors_open(&merged, "merged/model.safetensors", &error));
        for (int64_t row = 0; row < 10; row++) check_row(&merged, row, whole || row == 5 || row == 7);
        safetensors_close(&merged);
        says(ERROR_USAGE, "adapter weights of the base", ADAPT, "run=other lora.start=adapter lora.targets=q_proj,v_proj");
    }
    extend_adapter(ROWS, 2, width, values, "trainable_token_indices", "{\"embed_tokens\": [5, 7]}");
    good("eval %s text", "adapter");
    extend_adapter(ROWS, 2, width, values, "trainable_token_indices", "[5]");
    says(ERROR_CHECKPOINT, "does not have one row per id", "eval %s text", "adapter");
    extend_adapter(ROWS, 2, width, values, "trainable_token_indices", "[5, 100000]");
    says(ERROR_CHECKPOINT, "base", "eval %s text", "adapter");
    extend_adapter("base_model.model." EMBEDDING, rows - 1, width, values, "modules_to_save", "[\"embed_tokens\"]");
    says(ERROR_CHECKPOINT, "shape", "eval %s text", "adapter");
    extend_adapter(ROWS, 2, width, values, "modules_to_save", "[\"norm\"]");
    says(ERROR_CHECKPOINT, "adapter has no tensor norm.weight, although modules_to_save", "eval %s text", "adapter");
    extend_adapter("base_model.model.model.other.weight", 2, width, values, "modules_to_save", "[\"other\"]");
    says(ERROR_CHECKPOINT, "other.weight", "eval %s text", "adapter");
}

/* Trains `whole` into the folder `run`, and `parts` into `other` with a pause. Both have the same bits,
 * and the run, its merged folder and its adapters have the recorded loss, which is returned. */
static double train_and_consume(const char *run, const char *whole, const char *other, const char *parts, double bound) {
    SCOPED_FREE char *first = memory_format("%s stop_at=3", parts);
    good(ADAPT, whole);
    good(ADAPT, first);
    says(ERROR_NONE, "after step 3", ADAPT, parts);
    assert_true(same_checkpoint(run, other, 8));
    double trained = recorded(run, "evaluation", -1, "loss");
    assert_true(fabs(evaluated(run) - trained) < bound);
    says(ERROR_NONE, "merged logits 16", "convert %s merged overwrite=true dtype=fp32", run);
    assert_true(fabs(evaluated("merged") - trained) < bound);
    good("convert %s adapter adapter=true overwrite=true", run);
    assert_true(fabs(evaluated("adapter") - trained) < bound);
    return trained;
}

/* Goes on from PEFT's folder "adapter" of `run` by `on` into the folder `next`: the first loss is lower by more than
 * `gain`. `less`, which does not train all that the folder holds, is refused. */
static void continue_adapter(const char *run, const char *on, const char *next, const char *less, double gain) {
    good(ADAPT, on);
    double step = recorded(next, "step", 0, "loss"), fresh = recorded(run, "step", 0, "loss");
    if (!(step < fresh - gain)) fail_msg("the first loss is %g after the adapters, and was %g before", step, fresh);
    says(ERROR_USAGE, "base_model.model", ADAPT, less);
}

/* A table that is trained whole has the bits of a run that was not stopped, the loss in each consumer, and goes on from PEFT's folder. */
static void tables_are_trained_beside_adapters(void **state) {
    (void)state;
    static const char *const bases[] = {"model.tied=true", "model.tied=false"}, *const precisions[] = {"fp32", "bf16"};
    for (int i = 0; i < 2; i++) {
#define TABLES "lora.targets=attention lora.modules_to_save=embed_tokens,lm_head"
        SCOPED_FREE char *base = memory_format("run=of%d model.family=llama model.experts=0 precision=fp32 steps=5 %s", i, bases[i]);
        train_good(base);
        for (int j = 0; j < 2; j++) {
            SCOPED_FREE char *run = memory_format("run%d%d", i, j), *other = memory_format("other%d%d", i, j),
                             *whole = memory_format("run=%s init=of%d precision=%s " TABLES, run, i, precisions[j]),
                             *parts = memory_format("run=%s init=of%d precision=%s " TABLES, other, i, precisions[j]);
            double bound = j ? 1e-2 : 1e-5, trained = train_and_consume(run, whole, other, parts, bound);
            good("convert %s merged.gguf overwrite=true dtype=fp32", run);
            assert_true(fabs(evaluated("merged.gguf") - trained) < bound);
            if (j) continue;
            SCOPED_FREE char *on = memory_format("run=on%d init=of%d precision=fp32 lora.start=adapter " TABLES, i, i),
                             *less = memory_format("run=less%d init=of%d lora.start=adapter lora.targets=attention", i, i),
                             *next = memory_format("on%d", i);
            continue_adapter(run, on, next, less, 0.1);
        }
    }
}

/* Rows of tables that the run names are trained, and no other: in each consumer, after a pause, and on from PEFT's folder. */
static void rows_of_tokens_are_trained_beside_adapters(void **state) {
    (void)state;
    static const char *const bases[] = {"model.tied=true", "model.tied=false"}, *const precisions[] = {"fp32", "bf16", "pure_bf16"};
    for (int i = 0; i < 2; i++) {
#define TOKENS "lora.targets=attention lora.tokens=32,97-101,116"
        SCOPED_FREE char *base = memory_format("run=of%d model.family=llama model.experts=0 precision=fp32 steps=5 %s", i, bases[i]),
                         *plain = memory_format("convert of%d %%s dtype=fp32 overwrite=true", i);
        train_good(base);
        good(plain, "plain");
        for (int j = 0; j < 3; j++) {
            SCOPED_FREE char *run = memory_format("run%d%d", i, j), *other = memory_format("other%d%d", i, j),
                             *init = j == 2 ? memory_copy_string("plain") : memory_format("of%d", i),
                             *whole = memory_format("run=%s init=%s precision=%s " TOKENS, run, init, precisions[j]),
                             *parts = memory_format("run=%s init=%s precision=%s " TOKENS, other, init, precisions[j]);
            train_and_consume(run, whole, other, parts, j ? 2e-2 : 1e-5);
            check_rows_differ(i ? "lm_head.weight" : EMBEDDING);
            check_rows_differ(EMBEDDING);
            if (j) continue;
            SCOPED_FREE char *on = memory_format("run=on%d init=of%d precision=fp32 lora.start=adapter " TOKENS, i, i),
                             *less = memory_format("run=less%d init=of%d lora.start=adapter lora.targets=attention", i, i),
                             *others = memory_format("%s lora.tokens=32", less), *next = memory_format("on%d", i);
            continue_adapter(run, on, next, less, 0.01);
            says(ERROR_CHECKPOINT, "lora.tokens", ADAPT, others);
        }
    }
}

static void what_names_no_table_or_row_is_refused(void **state) {
    (void)state;
    says(ERROR_USAGE, "lora.modules_to_save: q_proj is not the embedding or the head of this model", ADAPT,
        "run=layer lora.modules_to_save=lm_head,q_proj");
    says(ERROR_USAGE, "lora.modules_to_save=embed_tokens,,lm_head is not a list", ADAPT,
        "run=list lora.modules_to_save=embed_tokens,,lm_head");
    says(ERROR_USAGE, "lora.tokens=5-3", ADAPT, "run=range lora.tokens=5-3");
    says(ERROR_USAGE, "lora.tokens=7,5", ADAPT, "run=order lora.tokens=7,5");
    says(ERROR_USAGE, "16 runs consecutive", ADAPT, "run=runs lora.tokens=1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33");
    says(ERROR_USAGE, "lora.tokens=90000", ADAPT, "run=above lora.tokens=90000");
    says(ERROR_USAGE, "lora.modules_to_save=lm_head", ADAPT, "run=both lora.tokens=5 lora.modules_to_save=lm_head");
    says(ERROR_USAGE, "lora.tokens=5 fp8.head fp8.head", ADAPT, "run=fp8 lora.tokens=5 fp8.recipe=tensor fp8.head=true");
    says(ERROR_USAGE, "lora.tokens=5 lora.rank", ADAPT, "run=idle lora.rank=0 lora.tokens=5");
    says(ERROR_USAGE, "lora.modules_to_save=lm_head has no effect without lora.rank", ADAPT,
        "run=idle lora.rank=0 lora.modules_to_save=lm_head");
}

#define RESIZED "base_model.model.model.embed_tokens."

/* PEFT saves a resized module several times: as it is used, and as copies. */
static void a_resized_table_is_read_where_peft_reads_it(void **state) {
    (void)state;
    Safetensors base, merged;
    Error error = {0};
    good(ADAPT, "run=adapted lora.targets=q_proj,v_proj");
    good("convert base %s dtype=fp32", "plain");
    assert_true(safetensors_open(&base, "plain/model.safetensors", &error));
    const int64_t *shape = safetensors_find(&base, EMBEDDING)->shape, rows = shape[0], width = shape[1];
    safetensors_close(&base);
    SCOPED_FREE float *values = memory_allocate((size_t)(rows * width) * sizeof *values),
                      *other = memory_allocate((size_t)(rows * width) * sizeof *other);
    for (int64_t i = 0; i < rows * width; i++) values[i] = 0.5F;
    extend_adapter(RESIZED "weight", rows, width, values, "modules_to_save", "[\"embed_tokens\"]");
    add_tensor(RESIZED "original_module.weight", rows, width, other);
    add_tensor(RESIZED "modules_to_save.weight", rows, width, other);
    good("convert adapter %s dtype=fp32 overwrite=true", "merged");
    assert_true(safetensors_open(&merged, "merged/model.safetensors", &error));
    check_row(&merged, 3, true);
    safetensors_close(&merged);
    extend_adapter(RESIZED "token_adapter.base_layer.weight", rows, width, other, "trainable_token_indices", "[5, 7]");
    add_tensor(ROWS, 2, width, values);
    good("convert adapter %s dtype=fp32 overwrite=true", "merged");
    assert_true(safetensors_open(&merged, "merged/model.safetensors", &error));
    check_row(&merged, 5, true);
    check_row(&merged, 7, true);
    assert_true(*(const float *)safetensors_find(&merged, EMBEDDING)->data == 0);
    safetensors_close(&merged);
    add_tensor(HEAD, rows, width, values);
    says(ERROR_CHECKPOINT, "lm_head.weight", "eval %s text", "adapter");
}

/* A tokenizer beside adapters is theirs, as AutoTokenizer.from_pretrained(ADAPTER) has it. */
static void a_tokenizer_beside_adapters_goes_before_that_of_the_base(void **state) {
    (void)state;
    good(ADAPT, "run=adapted");
    good("convert adapted %s adapter=true", "adapter");
    write_text("adapter/tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    says(ERROR_USAGE, "adapter base number", "convert adapter %s", "merged");
    says(ERROR_USAGE, "2 tokens", "eval %s text", "adapter");
    good("convert adapter %s tokenizer=none", "merged");
}

/* Every field of PEFT 0.21's LoraConfig with a value that is not its default; tests/golden/check_side_files.py compares the list, and the
 * fields that are read, with PEFT. */
static void every_field_of_an_adapter_is_read_or_refused_by_name(void **state) {
    (void)state;
    static const char *const without_effect[][2] = {{"auto_mapping", "{\"a\": \"b\"}"}, {"revision", "\"main\""},
        {"inference_mode", "false"}, {"task_type", "\"SEQ_CLS\""}, {"peft_version", "\"1\""}, {"fan_in_fan_out", "true"},
        {"lora_dropout", "0.5"}, {"init_lora_weights", "\"gaussian\""}, {"init_lora_weights", "false"}, {"layers_pattern", "\"layers\""},
        {"loftq_config", "{\"bits\": 4}"}, {"eva_config", "{\"rho\": 2}"}, {"corda_config", "{}"}, {"lora_ga_config", "{\"a\": 1}"},
        {"velora_config", "{\"a\": 1}"}, {"megatron_core", "\"x\""}, {"qalora_group_size", "8"}, {"ensure_weight_tying", "true"},
        {"use_dora", "false"}, {"rank_pattern", "{}"}, {"a_field_of_tomorrow", "null"}};
    static const char *const refused[][2] = {{"use_dora", "true"}, {"rank_pattern", "{\"q_proj\": 4}"},
        {"alpha_pattern", "{\"q_proj\": 4}"}, {"bias", "\"all\""}, {"bias", "true"}, {"lora_bias", "true"}, {"use_qalora", "true"},
        {"layer_replication", "[[0, 1]]"}, {"alora_invocation_tokens", "[1]"}, {"monteclora_config", "{\"a\": 1}"},
        {"megatron_config", "{\"a\": 1}"}, {"runtime_config", "{\"a\": 1}"}, {"use_bdlora", "{\"a\": 1}"}, {"arrow_config", "{\"a\": 1}"},
        {"kasa_config", "{\"a\": 1}"}, {"a_field_of_tomorrow", "1"}, {"init_lora_weights", "\"pissa\""},
        {"init_lora_weights", "\"pissa_niter_4\""}, {"init_lora_weights", "\"olora\""}, {"init_lora_weights", "\"loftq\""},
        {"init_lora_weights", "\"corda\""}, {"init_lora_weights", "\"lora_ga\""}, {"init_lora_weights", "7"}, {"peft_type", "\"LOHA\""},
        {"peft_type", "null"}, {"peft_type", "[]"}, {"r", "0"}, {"r", "1.5"}, {"r", "\"4\""}, {"r", "null"}, {"lora_alpha", "-1"},
        {"lora_alpha", "true"}, {"lora_dropout", "\"no\""}, {"lora_dropout", "2"}, {"use_rslora", "\"false\""}, {"use_rslora", "0"},
        {"modules_to_save", "\"lm_head\""}, {"modules_to_save", "[\"lm_head\"]"}, {"target_modules", "7"}, {"target_modules", "[null]"},
        {"target_modules", "[[]]"}, {"modules_to_save", "[{}]"}, {"target_modules", "[\"k_proj\"]"}, {"target_parameters", "\"a\""},
        {"exclude_modules", "{}"}, {"exclude_modules", "[\"q_proj\"]"}, {"layers_to_transform", "true"}, {"layers_to_transform", "[0]"},
        {"trainable_token_indices", "\"5\""}, {"trainable_token_indices", "[5]"}, {"trainable_token_indices", "{\"embed_tokens\": [5]}"},
        {"base_model_name_or_path", "7"}, {"fan_in_fan_out", "1"}, {"auto_mapping", "[]"}};
    good(ADAPT, "run=adapted lora.targets=q_proj,v_proj");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        good("convert adapted %s adapter=true overwrite=true", "adapter");
        set_field(refused[i][0], refused[i][1]);
        says(ERROR_CHECKPOINT, refused[i][0], "eval %s text", "adapter");
    }
    good("convert adapted %s adapter=true overwrite=true", "adapter");
    for (size_t i = 0; i < sizeof without_effect / sizeof *without_effect; i++) set_field(without_effect[i][0], without_effect[i][1]);
    good("eval %s text", "adapter");
}

/* The base in 8 or 4 bits: rounding moves its loss by a little, training goes on with the same bits, on any number of ranks,
 * and what is merged is the base as it was. */
static void a_quantized_base_trains_the_same_adapters_but_for_rounding(void **state) {
    (void)state;
    static const char *const kinds[] = {"nf4", "fp8"};
    good(ADAPT, "run=same precision=bf16");
    double same = recorded("same", "step", 0, "loss");
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *whole = memory_format("run=whole-%s lora.base=%s precision=bf16", kinds[i], kinds[i]),
                         *parts = memory_format("run=parts-%s lora.base=%s precision=bf16", kinds[i], kinds[i]),
                         *ranks = memory_format("run=ranks-%s lora.base=%s precision=bf16 layout.zero=2", kinds[i], kinds[i]),
                         *first = memory_format("%s stop_at=3", parts), *run = memory_format("whole-%s", kinds[i]),
                         *other = memory_format("parts-%s", kinds[i]), *shared = memory_format("ranks-%s", kinds[i]);
        good(ADAPT, whole);
        good(ADAPT, first);
        good(ADAPT, parts);
        assert_true(same_checkpoint(run, other, 8));
        double moved = fabs(recorded(run, "step", 0, "loss") - same);
        if (!(moved > 0 && moved < 0.02)) fail_msg("%s moves the loss by %g", kinds[i], moved);
        assert_true(recorded(run, "evaluation", -1, "loss") < recorded(run, "step", 0, "loss"));
        good("launch -n 2 -- " ADAPT, ranks);
        assert_true(fabs(recorded(shared, "evaluation", -1, "loss") - recorded(run, "evaluation", -1, "loss")) < 1e-3);
        says(ERROR_NONE, "merged: logits of 16 tokens", "convert %s merged overwrite=true", run);
        assert_true(fabs(evaluated(run) - recorded(run, "evaluation", -1, "loss")) < 0.02);
    }
    says(ERROR_USAGE, "lora.base", "launch -n 2 -- " ADAPT, "run=tp lora.base=nf4 layout.tp=2");
    says(ERROR_USAGE, "lora.base=nf4 fp8.recipe", ADAPT, "run=both lora.base=nf4 fp8.recipe=tensor");
}

/* Experts' matrices too. */
static void a_quantized_base_of_experts_trains(void **state) {
    (void)state;
    train_good("run=moe model.family=zaya precision=fp32 steps=5");
    good(ADAPT, "run=whole init=moe lora.targets=all,router precision=bf16");
    good(ADAPT, "run=nf4 init=moe lora.targets=all,router lora.base=nf4 precision=bf16");
    assert_true(fabs(recorded("nf4", "step", 0, "loss") - recorded("whole", "step", 0, "loss")) < 0.02);
    assert_true(recorded("nf4", "evaluation", -1, "loss") < recorded("nf4", "step", 0, "loss"));
}

static void what_cannot_be_adapted_is_refused(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "init=FOLDER", "run=alone lora.rank=4");
    train_says(ERROR_USAGE, "init=FOLDER", "run=alone lora.rank=4 lora.targets=experts");
    says(ERROR_USAGE, "lora.targets: experts is not a linear layer of this model", ADAPT, "run=experts lora.targets=q_proj,experts");
    says(ERROR_USAGE, "lora.targets: roj is not a linear layer of this model", ADAPT, "run=end lora.targets=roj");
    says(ERROR_USAGE, "lora.targets=q_proj,,mlp is not a list", ADAPT, "run=list lora.targets=q_proj,,mlp");
    says(ERROR_USAGE, "lora.experts=shared", ADAPT, "run=shared lora.experts=shared");
    static const char *const idle[] = {
        "lora.alpha=6", "lora.rslora=true", "lora.targets=mlp", "lora.base=nf4", "lora.start=adapter", "lora.experts=shared"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        SCOPED_FREE char *message = memory_format("%s has no effect without lora.rank", idle[i]),
                         *settings = memory_format("run=idle lora.rank=0 %s", idle[i]);
        says(ERROR_USAGE, message, ADAPT, settings);
    }
    says(ERROR_USAGE, "optimizer.balance_lr=0 has no effect without training of all weights", ADAPT, "run=biases optimizer.balance_lr=0");
    says(ERROR_USAGE, "lora.rank", ADAPT, "run=dumped dump=dump");
    good(ADAPT, "run=adapted");
    says(ERROR_USAGE, "adapted has adapters lora.rank=4 config.yaml", ADAPT, "run=twice init=adapted lora.targets=q_proj");
    good(ADAPT, "run=full init=adapted lora.rank=0"); /* its merged weights */
}

static void a_run_without_its_base_says_which_is_missing(void **state) {
    (void)state;
    good(ADAPT, "run=adapted");
    assert_int_equal(rename("base", "moved"), 0);
    says(ERROR_CHECKPOINT, "adapted has adapters of init=/", "eval %s text", "adapted");
    says(ERROR_CHECKPOINT, "(if it has moved: smelt train adapted init=FOLDER)", "eval %s text", "adapted");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_gradients_are_those_of_peft),
        cmocka_unit_test(ten_steps_have_the_losses_and_the_adapters_of_peft),
        cmocka_unit_test(logits_with_adapters_are_those_of_peft),
        cmocka_unit_test(adapters_of_mlps_beside_experts_are_not_written),
        cmocka_unit_test(folders_of_peft_are_read_and_written_as_they_are),
        cmocka_unit_test(a_folder_of_peft_is_read_as_the_model_that_it_makes_of_its_base),
        cmocka_unit_test(a_frozen_model_takes_two_bytes_a_parameter_in_bf16_and_four_in_fp32),
        cmocka_unit_test(a_quantized_model_of_70b_fits_a_card_of_80_gb),
        cmocka_unit_test(frozen_parameters_have_no_gradient_and_no_gemm_makes_one),
        LORA_TEST(a_run_that_goes_on_has_the_bits_of_one_that_was_not_stopped),
        LORA_TEST(a_model_folder_is_the_base_that_its_run_is),
        LORA_TEST(checkpoints_hold_the_adapters_and_their_state_alone),
        LORA_TEST(merged_weights_have_the_loss_of_weights_with_adapters),
        LORA_TEST(ranks_share_out_what_is_trained),
        LORA_TEST(an_adapter_of_the_head_is_refused_by_the_folders_field),
        LORA_TEST(the_adapters_are_written_as_peft_reads_them),
        LORA_TEST(adapters_of_peft_go_on_and_are_read_everywhere),
        LORA_TEST(the_layers_of_a_configuration_are_those_of_its_tensors),
        LORA_TEST(half_of_an_adapter_is_refused_by_the_name_of_what_is_missing),
        LORA_TEST(a_value_that_is_not_finite_is_refused_by_its_tensor),
        LORA_TEST(parts_of_the_base_in_a_folder_of_peft_take_their_place),
        LORA_TEST(tables_are_trained_beside_adapters),
        LORA_TEST(rows_of_tokens_are_trained_beside_adapters),
        LORA_TEST(what_names_no_table_or_row_is_refused),
        LORA_TEST(a_resized_table_is_read_where_peft_reads_it),
        LORA_TEST(a_tokenizer_beside_adapters_goes_before_that_of_the_base),
        LORA_TEST(every_field_of_an_adapter_is_read_or_refused_by_name),
        LORA_TEST(a_quantized_base_trains_the_same_adapters_but_for_rounding),
        LORA_TEST(a_quantized_base_of_experts_trains),
        LORA_TEST(what_cannot_be_adapted_is_refused),
        LORA_TEST(a_run_without_its_base_says_which_is_missing),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
