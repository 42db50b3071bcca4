/* Reads llm.c's evaluation files and scores models on them. A file is held in memory unchanged
 * (HellaSwag's 10,042 examples are 3.6 MB); examples point into it. A context with one ending is a
 * sequence whose only targets are the ending's tokens, so the loss of the program is the ending's
 * negative log likelihood. Called by `smelt eval`. */
#include "eval/multiple_choice.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"

enum { MAGIC = 20240522, VERSION = 1, HEADER_INTEGERS = 256, HEADER_BYTES = 4 * HEADER_INTEGERS, START = 65535, FILE_LIMIT = 1 << 30 };
enum { AT_MAGIC, AT_VERSION, AT_EXAMPLES };
enum { AT_START, AT_BYTES, AT_INDEX, AT_LABEL, AT_ENDINGS, EXAMPLE_HEADER };

bool multiple_choice_is_file(const char *path) {
    int32_t number = 0;
    char text[sizeof number + 1];
    bool read_all = file_read_start(path, text, sizeof text) == sizeof number;
    memcpy(&number, text, sizeof number);
    return read_all && number == MAGIC;
}

/* -- One example --------------------------------------------------------------------------------------------------- */

static void skip(ChoiceText *rest, int64_t count) { *rest = (ChoiceText){rest->tokens + count, rest->count - count}; }

/* Takes a text, which follows its count of tokens, from the rest of an example. */
static bool take_choice_text(ChoiceText *rest, ChoiceText *text) {
    int64_t count = rest->count > 0 ? *rest->tokens : 0;
    if (count < 1 || count >= rest->count) return false;
    *text = (ChoiceText){rest->tokens + 1, count};
    skip(rest, 1 + count);
    return true;
}

static void note_text(MultipleChoice *set, const ChoiceText *text) {
    for (int64_t i = 0; i < text->count; i++)
        if (text->tokens[i] > set->max_token) set->max_token = text->tokens[i];
}

static void note_example(MultipleChoice *set, const ChoiceExample *example) {
    note_text(set, &example->context);
    for (int i = 0; i < example->endings; i++) {
        int64_t count = example->context.count + example->ending[i].count;
        if (count > set->longest) set->longest = count;
        note_text(set, &example->ending[i]);
    }
}

static const char *parse_header(const uint16_t *header, int64_t index, ChoiceExample *example) {
    example->label = header[AT_LABEL];
    example->endings = header[AT_ENDINGS];
    if (header[AT_INDEX] != index) return "has a wrong index";
    if (example->endings < 2 || example->endings > CHOICE_ENDINGS) return "has fewer than 2 or more than 16 endings";
    if (example->label >= example->endings) return "has a label that does not match an ending";
    return NULL;
}

/* Takes the next example from the rest of the file. Returns its fault, or NULL. */
static const char *parse_example(ChoiceText *rest, int64_t index, ChoiceExample *example) {
    const uint16_t *header = rest->tokens;
    if (rest->count < EXAMPLE_HEADER) return "is missing: the file is truncated";
    if (header[AT_START] != START) return "does not begin with 65535";
    int64_t length = header[AT_BYTES] / 2;
    if (header[AT_BYTES] % 2 || length < EXAMPLE_HEADER || length > rest->count)
        return "is longer than the file, or shorter than its header";
    const char *wrong = parse_header(header, index, example);
    ChoiceText texts = {header + EXAMPLE_HEADER, length - EXAMPLE_HEADER};
    bool good = !wrong && take_choice_text(&texts, &example->context);
    for (int i = 0; i < example->endings && good; i++) good = take_choice_text(&texts, &example->ending[i]);
    skip(rest, length);
    if (wrong) return wrong;
    return good && texts.count == 0 ? NULL : "has an empty text, or texts that do not fill it";
}

/* -- The file ------------------------------------------------------------------------------------------------------ */

static bool parse_examples(MultipleChoice *set, int64_t length, const char *path, Error *error) {
    const int32_t *header = (const int32_t *)set->content;
    if (length < HEADER_BYTES || header[AT_MAGIC] != MAGIC || header[AT_VERSION] != VERSION)
        return error_set(error, ERROR_DATA, "%s is not a file of multiple-choice examples in version 1 of llm.c's format", path);
    ChoiceText rest = {(const uint16_t *)(set->content + HEADER_BYTES), (length - HEADER_BYTES) / 2};
    int64_t count = header[AT_EXAMPLES];
    if (count < 1 || count > rest.count / EXAMPLE_HEADER)
        return error_set(error, ERROR_DATA, "%s claims %lld examples, but they do not fit into its %lld bytes", path, (long long)count,
            (long long)length);
    set->examples = memory_allocate((size_t)count * sizeof *set->examples);
    for (; set->count < count; set->count++) {
        ChoiceExample *example = &set->examples[set->count];
        const char *wrong = parse_example(&rest, set->count, example);
        if (wrong) return error_set(error, ERROR_DATA, "%s: example %lld of %lld %s", path, (long long)set->count, (long long)count, wrong);
        note_example(set, example);
    }
    if (rest.count || length % 2)
        return error_set(error, ERROR_DATA, "%s has more data after the %lld examples of its header", path, (long long)count);
    return true;
}

bool multiple_choice_open(MultipleChoice *set, const char *path, Error *error) {
    int64_t length;
    *set = (MultipleChoice){0};
    set->content = file_read(path, FILE_LIMIT, &length, error);
    return set->content ? parse_examples(set, length, path, error) : error_recode(error, ERROR_DATA);
}

void multiple_choice_close(MultipleChoice *set) {
    free(set->examples);
    free(set->content);
    *set = (MultipleChoice){0};
}

/* -- Scoring ------------------------------------------------------------------------------------------------------- */

/* Rows after the text are documents of one token each: attention does no work for them, and they
 * have no targets. */
static void load_ending(const Program *program, const ChoiceText *context, const ChoiceText *ending) {
    const Model *model = &program->model;
    Executor *executor = program->executor;
    SCOPED_FREE int32_t *rows = memory_allocate(3 * (size_t)model->length * sizeof *rows);
    int32_t *token = rows, *target = token + model->length, *position = target + model->length;
    int64_t last = context->count + ending->count - 1;
    for (int64_t i = 0; i < model->length; i++) {
        bool inside = i < last, predicts = inside && i >= context->count - 1;
        token[i] = !inside ? 0 : i < context->count ? context->tokens[i] : ending->tokens[i - context->count];
        target[i] = predicts ? ending->tokens[i - context->count + 1] : -1;
        position[i] = inside ? (int32_t)i : 0;
    }
    model_take_rows(model, executor_tensor(executor, model->tokens), token);
    model_take_rows(model, executor_tensor(executor, model->targets), target);
    model_take_rows(model, executor_tensor(executor, model->positions), position);
}

static bool score_ending(const Program *program, const ChoiceText *context, const ChoiceText *ending, double *loss, Error *error) {
    load_ending(program, context, ending);
    program_run(program, &(ProgramWork){.microbatches = 1});
    if (!executor_finish(program->executor, error)) return false;
    *loss = executor_get_metric(program->executor, program->model.loss, 0);
    return isfinite(*loss) || error_set(error, ERROR_NUMERICS, "its loss is %g", *loss);
}

static bool score_example(const Program *program, const ChoiceExample *example, double *loss, Error *error) {
    for (int i = 0; i < example->endings; i++)
        if (!score_ending(program, &example->context, &example->ending[i], &loss[i], error)) return error_context(error, "ending %d", i);
    return true;
}

static void choose_ending(const ChoiceExample *example, ChoiceScore *score) {
    double best = INFINITY, best_mean = INFINITY;
    for (int i = 0; i < example->endings; i++) {
        double loss = score->loss[i], mean = loss / example->ending[i].count;
        if (loss < best) best = loss, score->chosen = i;
        if (mean < best_mean) best_mean = mean, score->chosen_mean = i;
    }
}

/* Sets the losses of all examples, [count][CHOICE_ENDINGS], on every rank. Groups of ranks take
 * examples in turn, and each rank adds its losses to zeros. */
static bool score_all(const Program *program, Comm *comm, const MultipleChoice *set, int64_t count, double *losses, Error *error) {
    const Mesh *mesh = program->model.graph->mesh;
    int index = mesh_index(mesh, AXES_DATA), size = mesh_size(mesh, AXES_DATA);
    bool good = true;
    Progress progress = progress_start("evaluating", "examples", count);
    for (int64_t i = index; i < count && good; i += size) {
        good = score_example(program, &set->examples[i], losses + i * CHOICE_ENDINGS, error) ||
               error_context(error, "example %lld", (long long)i);
        progress_update(&progress, i + 1);
    }
    progress_finish(&progress);
    return good && comm_host_all_reduce(comm, "losses", losses, count * CHOICE_ENDINGS, COMM_F64, COMM_SUM, error);
}

bool multiple_choice_evaluate(
    const Program *program, Comm *comm, const MultipleChoice *set, int64_t count, ChoiceScore *scores, Error *error) {
    const Model *model = &program->model;
    assert(model->mode == MODEL_EVALUATE && model->sequences == 1 && model->length >= set->longest - 1);
    SCOPED_FREE double *losses = memory_allocate((size_t)(count * CHOICE_ENDINGS) * sizeof *losses);
    executor_set_scalar(program->executor, model->scale, 1);
    executor_set_scalar(program->executor, model->share, 1);
    if (!score_all(program, comm, set, count, losses, error)) return false;
    for (int64_t i = 0; i < count; i++) {
        memcpy(scores[i].loss, losses + i * CHOICE_ENDINGS, sizeof scores[i].loss);
        choose_ending(&set->examples[i], &scores[i]);
    }
    return true;
}
