/* config.json against transformers: tests/golden/configs.jsonl holds every field of the classes that we read, and a few
 * thousand edited configurations with what transformers made of each (tests/golden/configs.py). Every field must stand
 * in our tables. An edited configuration must be refused by the name of a field, or give transformers' loss, gradients
 * and logits; where transformers refuses it, so must we. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "formats/hf_internal.h"
#include "session/weights.h"
#include "support/check.h"

static const char *const families[] = {"zaya", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "mpt", "gpt2", "olmo2",
    "olmoe", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "smollm3", "phi3", "granite", "granitemoe",
    "glm4_moe", "minimax_m2", "glm4_moe_lite", "ministral3", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"};
enum { CLASSES = sizeof families / sizeof *families };

enum { SPOTS = 16 };

/* Of one configuration with its folder's weights and tokens. */
typedef struct Numbers {
    double loss;     /* with the router's */
    double gradient; /* norm over all parameters */
    double row;      /* norm of the gradient of the first token's row of the embedding */
    double logits[SPOTS];
} Numbers;

/* How edits ended. */
typedef struct Tally { int equal, refused, ours_only, theirs_only, warned, wrong; } Tally;

/* What the lines of one model share. */
typedef struct Golden {
    const char *family;
    json_t *config, *spots;
    ModelConfig model; /* of the folder as it is, ... */
    Numbers own, base; /* ... its numbers here, and in transformers */
    Safetensors expected;
    Tally tally;
} Golden;

/* -- Numbers ------------------------------------------------------------------------------------------------------- */

static void put_tokens(const Golden *g, const Model *model, Executor *executor) {
    const StoredTensor *stored = safetensors_find(&g->expected, "tokens");
    int32_t *tokens = executor_tensor(executor, model->tokens), *positions = executor_tensor(executor, model->positions);
    int32_t *targets = model->targets ? executor_tensor(executor, model->targets) : NULL;
    for (int64_t row = 0; row < model->sequences * model->length; row++) {
        int64_t sequence = row / model->length, at = row % model->length;
        const char *from = (const char *)stored->data + (sequence * (model->length + 1) + at) * (int64_t)sizeof(int32_t);
        memcpy(&tokens[row], from, sizeof(int32_t));
        if (targets) memcpy(&targets[row], from + sizeof(int32_t), sizeof(int32_t));
        positions[row] = (int32_t)at;
    }
    if (!model->scale) return;
    *(float *)executor_tensor(executor, model->scale) = 1.0f / (float)(model->sequences * model->length);
    *(float *)executor_tensor(executor, model->share) = 1;
}

static double norm(const float *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)values[i] * values[i];
    return sqrt(sum);
}

static void take_gradients(const Model *model, Executor *executor, const ModelConfig *config, Numbers *numbers) {
    const Graph *graph = model->graph;
    const float *gradients = executor_arena(executor, ARENA_GRADIENT);
    double sum = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        double size = p->kind == PARAMETER_BALANCE_BIAS ? 0 : norm(parameter_in(p, gradients), p->count);
        sum += size * size;
        bool table = !strcmp(p->name, "model.embed_tokens.weight") || !strcmp(p->name, "transformer.wte.weight");
        int64_t row = *(const int32_t *)executor_tensor(executor, model->tokens);
        if (table) numbers->row = norm((const float *)parameter_in(p, gradients) + row * config->width, config->width);
    }
    numbers->gradient = sqrt(sum);
}

static void take_logits(const Golden *g, const Model *model, Executor *executor, const ModelConfig *config, Numbers *numbers) {
    const float *logits = executor_tensor(executor, model->logits);
    size_t index;
    json_t *spot;
    json_array_foreach(g->spots, index, spot) {
        int64_t row = json_integer_value(json_array_get(spot, 0)), token = json_integer_value(json_array_get(spot, 1));
        numbers->logits[index] = logits[row * config->vocabulary + token];
    }
}

/* Multiplies parameters with a part of their name in `scale` by its factor. */
static void scale_parameters(const Graph *graph, Executor *executor, const json_t *scale) {
    const char *part;
    json_t *factor;
    json_object_foreach((json_t *)scale, part, factor) for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        float *values = executor_tensor(executor, p->tensor);
        for (int64_t j = 0; strstr(p->name, part) && j < p->count; j++) values[j] *= (float)json_number_value(factor);
    }
}

/* False with an error when the weights do not fit. */
static bool compute(const Golden *g, const ModelConfig *config, const json_t *scale, Numbers *numbers, Error *error) {
    static const ModelMode modes[] = {MODEL_TRAIN, MODEL_LOGITS};
    Config whole;
    OptionStrings strings = {0};
    bool good = true;
    char *folder = memory_format("tests/golden/%s", g->family);
    options_defaults(&config_table, &whole, &strings);
    options_free_strings(&strings);
    whole.model = *config;
    const StoredTensor *tokens = safetensors_find(&g->expected, "tokens");
    for (int i = 0; i < 2 && good; i++) {
        Program program = check_program(
            model_build(config, PRECISION_FP32, modes[i], tokens->shape[0], tokens->shape[1] - 1, RECOMPUTE_NONE), device_cpu());
        Executor *executor = program.executor;
        const Model *model = &program.model;
        good = weights_load_program(folder, &whole, executor, error);
        if (good) {
            put_tokens(g, model, executor);
            scale_parameters(model->graph, executor, scale);
            executor_zero(executor);
            executor_run(executor);
        }
        if (good && modes[i] == MODEL_TRAIN) {
            const float *loss = executor_tensor(executor, model->loss);
            numbers->loss = (double)loss[0] + loss[1];
            take_gradients(model, executor, config, numbers);
        } else if (good) take_logits(g, model, executor, config, numbers);
        program_free(&program);
    }
    free(folder);
    return good;
}

static Numbers read_numbers(const json_t *list) {
    Numbers numbers = {.loss = json_number_value(json_array_get(list, 0)),
        .gradient = json_number_value(json_array_get(list, 1)),
        .row = json_number_value(json_array_get(list, 2))};
    for (size_t i = 3; i < json_array_size(list); i++) numbers.logits[i - 3] = json_number_value(json_array_get(list, i));
    return numbers;
}

/* Two programs sum the same numbers in other orders, and the file has six digits of logits below 10: 2e-5; norms of
 * gradients differ by a few 1e-6 of themselves. A wrong sign or angle moves logits by 1e-2 and more. */
static bool agree(const Numbers *ours, const Numbers *theirs, char text[200]) {
    double worst = 0;
    for (int i = 0; i < SPOTS; i++) worst = fmax(worst, fabs(ours->logits[i] - theirs->logits[i]));
    snprintf(text, 200, "logits differ by %.2g; loss %.7g, theirs %.7g; gradient %.6g, %.6g; row %.6g, %.6g", worst, ours->loss,
        theirs->loss, ours->gradient, theirs->gradient, ours->row, theirs->row);
    return worst < 2e-5 && fabs(ours->loss - theirs->loss) < 3e-6 && fabs(ours->gradient - theirs->gradient) < 1e-4 * theirs->gradient &&
           fabs(ours->row - theirs->row) <= 1e-4 * theirs->row;
}

/* -- Edits --------------------------------------------------------------------------------------------------------- */

static json_t *edited(const Golden *g, const json_t *line) {
    json_t *object = json_deep_copy(g->config);
    size_t index;
    json_t *name;
    json_object_update(object, json_object_get(line, "set"));
    json_array_foreach(json_object_get(line, "delete"), index, name) json_object_del(object, json_string_value(name));
    return object;
}

/* Whether the text names a field that the line sets or deletes, or one inside of an object that it sets. */
static bool names_field(const json_t *fields, const char *text) {
    const char *name;
    json_t *value;
    json_object_foreach(
        (json_t *)fields, name, value) if (strstr(text, name) || (json_is_object(value) && names_field(value, text))) return true;
    return false;
}

static bool names_edit(const json_t *line, const char *text) {
    size_t index;
    json_t *name;
    json_array_foreach(json_object_get(line, "delete"), index, name) if (strstr(text, json_string_value(name))) return true;
    return names_field(json_object_get(line, "set"), text);
}

static void complain(Golden *g, const json_t *line, const char *format, ...) {
    char text[400], *edit = json_dumps(line, JSON_COMPACT);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_error("%s %.300s\n    %s\n", g->family, edit, text);
    free(edit);
    g->tally.wrong++;
}

static bool same_model(const ModelConfig *a, const ModelConfig *b) {
    Config left = {.model = *a}, right = {.model = *b};
    char text[8];
    for (size_t i = 0; i < config_table.count; i++) {
        const Option *row = &config_table.rows[i];
        OptionTable one = {row, 1};
        if (!strncmp(row->name, "model.", 6) && options_difference(&one, &left, &right, text, sizeof text)) return false;
    }
    return true;
}

static void check_accepted(Golden *g, const json_t *line, const ModelConfig *model, const char *warnings, bool theirs) {
    const json_t *verdict = json_object_get(line, "verdict");
    Numbers ours = g->own, expected = json_is_string(verdict) ? g->base : read_numbers(verdict);
    Error error = {0};
    char text[200];
    int64_t length = safetensors_find(&g->expected, "tokens")->shape[1] - 1;
    const json_t *scale = json_object_get(line, "scale");
    bool same = !scale && same_model(model, &g->model);
    if (model->context < length || (!same && !compute(g, model, scale, &ours, &error))) {
        if (theirs) g->tally.ours_only++;
        else g->tally.refused++;
    } else if (!theirs && same) g->tally.theirs_only++;
    else if (!theirs) complain(g, line, "is refused by transformers");
    else if (agree(&ours, &expected, text)) g->tally.equal++;
    else if (warnings && strstr(warnings, "transformers ignores it") && names_edit(line, warnings)) g->tally.warned++;
    else complain(g, line, "%s", text);
}

static void check_edit(Golden *g, const json_t *line) {
    const json_t *verdict = json_object_get(line, "verdict");
    const char *word = json_string_value(verdict);
    bool theirs = !word || strcmp(word, "refused") != 0;
    json_t *object = edited(g, line);
    ModelConfig model;
    Precision precision;
    Error error = {0};
    char *warnings;
    if (hf_parse_config(object, &model, &precision, &warnings, &error)) check_accepted(g, line, &model, warnings, theirs);
    else if (!names_edit(line, error.message)) complain(g, line, "is refused without its name: %s", error.message);
    else if (theirs) {
        g->tally.ours_only++;
        char *edit = json_dumps(line, JSON_COMPACT);
        if (getenv("CONFIGS_VERBOSE")) print_message("ONLY WE REFUSE %s %.300s\n   %s\n", g->family, edit, error.message);
        free(edit);
    } else g->tally.refused++;
    free(warnings);
    json_decref(object);
}

/* -- The file ------------------------------------------------------------------------------------------------------ */

static void start(Golden *g, int class, const json_t *header, const json_t *line) {
    Error error = {0};
    Precision precision;
    char *warnings, *config = memory_format("tests/golden/%s/config.json", families[class]),
                    *expected = memory_format("tests/golden/%s/expected.safetensors", families[class]);
    *g = (Golden){.family = families[class], .spots = json_object_get(header, "spots")};
    g->base = read_numbers(json_object_get(line, "numbers"));
    assert_string_equal(json_string_value(json_object_get(line, "model")), g->family);
    g->config = json_load_file(config, 0, NULL);
    if (!g->config || !safetensors_open(&g->expected, expected, &error)) fail_msg("%s %s", g->family, error.message);
    if (!hf_parse_config(g->config, &g->model, &precision, &warnings, &error)) fail_msg("%s: %s", g->family, error.message);
    if (warnings) fail_msg("%s: %s", g->family, warnings);
    if (!compute(g, &g->model, NULL, &g->own, &error)) fail_msg("%s: %s", g->family, error.message);
    free(expected);
    free(config);
}

static void report(const Golden *g) {
    Tally t = g->tally;
    if (t.equal)
        print_message("%-8s %4d equal, %4d refused by both, %3d by us only, %3d by transformers only, %d warned of, %d wrong\n", g->family,
            t.equal, t.refused, t.ours_only, t.theirs_only, t.warned, t.wrong);
}

static void stop(Golden *g) {
    report(g);
    safetensors_close(&g->expected);
    json_decref(g->config);
}

/* Calls `take` with each line of each class; returns how many were wrong. */
static int each_line(void (*take)(Golden *g, const json_t *line)) {
    FILE *file = fopen("tests/golden/configs.jsonl", "r");
    assert_non_null(file);
    json_t *header = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL), *line;
    Golden g = {0};
    int wrong = 0, classes = 0;
    while ((line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL))) {
        if (json_object_get(line, "model")) {
            if (classes) stop(&g);
            start(&g, classes++, header, line);
        }
        int before = g.tally.wrong;
        take(&g, line);
        wrong += g.tally.wrong - before;
        json_decref(line);
    }
    stop(&g);
    assert_int_equal(classes, CLASSES);
    json_decref(header);
    fclose(file);
    return wrong;
}

static void check_name(Golden *g, const char *name) {
    if (hf_find_field(hf_tables(hf_class(&g->model), g->config), name)) return;
    print_error("%s: no table has %s\n", g->family, name);
    g->tally.wrong++;
}

static void check_fields(Golden *g, const json_t *line) {
    const char *name;
    json_t *value;
    size_t index;
    json_object_foreach(json_object_get(line, "declared"), name, value) check_name(g, name);
    json_array_foreach(json_object_get(line, "read"), index, value) check_name(g, json_string_value(value));
}

static void every_field_of_transformers_stands_in_a_table(void **state) {
    (void)state;
    assert_int_equal(each_line(check_fields), 0);
}

/* transformers has no class kimi_k2. */
static void every_class_of_transformers_has_lines(void **state) {
    (void)state;
    for (int i = 0; i < family_count; i++)
        for (const HfClass *const *class = family_rules[i]->classes; *class; class++) {
            const char *type = (*class)->model_type;
            bool found = !type || !strcmp(type, "kimi_k2");
            for (int j = 0; j < CLASSES; j++) found |= type && !strcmp(type, families[j]);
            if (!found) fail_msg("configs.jsonl has no lines of %s", type);
        }
}

static void check_line(Golden *g, const json_t *line) {
    char text[200];
    if (json_object_get(line, "set")) check_edit(g, line);
    else if (!agree(&g->own, &g->base, text)) complain(g, line, "%s", text);
}

static void edited_configurations_give_the_numbers_of_transformers_or_are_refused(void **state) {
    (void)state;
    assert_int_equal(each_line(check_line), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class_of_transformers_has_lines),
        cmocka_unit_test(every_field_of_transformers_stands_in_a_table),
        cmocka_unit_test(edited_configurations_give_the_numbers_of_transformers_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
