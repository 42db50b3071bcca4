/* Multiple choice as lm-evaluation-harness scores it (output_type multiple_choice): the likelihood of
 * " choice" after the question, whole and per character. A question's choices are prompts of the
 * engine, which scores their tokens and draws none. */
#include "app/eval_questions.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/generation.h"
#include "base/array.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"

enum { QUESTIONS_LIMIT = 1 << 30 /* bytes of the file */, QUESTION_SLOTS = 8, MOST_CHOICES = 64 };

typedef struct Choice {
    char *text;
    TokenIds tokens;  /* of the question and the choice */
    int64_t question; /* tokens of the question alone */
    int64_t seen;     /* scored tokens so far */
    double sum;       /* log-likelihood */
    bool finished;
} Choice;

typedef struct ChoiceQuestion {
    char *text;
    Choice choices[MOST_CHOICES];
    int count, answer;
} ChoiceQuestion;

typedef struct QuestionSet {
    const char *path;
    ModelText text;
    ChoiceQuestion *questions;
    size_t count;
    int64_t shots, longest;
    char *examples; /* text before every question */
} QuestionSet;

static void questions_close(QuestionSet *set) {
    for (size_t i = 0; i < set->count; i++) {
        for (int k = 0; k < set->questions[i].count; k++) {
            free(set->questions[i].choices[k].text);
            token_ids_free(&set->questions[i].choices[k].tokens);
        }
        free(set->questions[i].text);
    }
    free(set->questions);
    free(set->examples);
    model_text_close(&set->text);
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

QuestionKind questions_kind(const char *path) {
    char start[1 << 16];
    Error ignored;
    size_t length = strlen(path);
    if (length < 6 || strcmp(path + length - 6, ".jsonl") != 0) return QUESTION_NONE;
    int64_t size = file_read_start(path, start, sizeof start);
    const char *end = size > 0 ? memchr(start, '\n', (size_t)size) : NULL;
    json_auto_t *record = size > 0 ? json_parse(start, end ? (size_t)(end - start) : (size_t)size, 0, &ignored) : NULL;
    if (json_object_get(record, "choices")) return QUESTION_CHOICES;
    return answers_record(record) ? QUESTION_ANSWERS : QUESTION_NONE;
}

const char *const question_names[] = {"question", "query", "context", "prompt", NULL};

const json_t *question_member(const json_t *record, const char *const names[]) {
    for (; *names; names++)
        if (json_object_get(record, *names)) return json_object_get(record, *names);
    return NULL;
}

char *question_words(const json_t *value) {
    size_t length = json_string_length(value);
    if (!json_is_string(value) || strlen(json_string_value(value)) != length) return NULL;
    while (length > 0 && isspace((unsigned char)json_string_value(value)[length - 1])) length--;
    return memory_format("%.*s", (int)length, json_string_value(value));
}

/* Returns the index of the answer: a number, a letter, a label or the text of a choice; -1: none. */
static int find_answer(const ChoiceQuestion *question, const json_t *answer, const json_t *labels) {
    const char *text = json_string_value(answer);
    if (json_is_integer(answer)) return json_integer_value(answer) < question->count ? (int)json_integer_value(answer) : -1;
    for (int k = 0; text && k < question->count; k++) {
        const char *label = json_string_value(json_array_get(labels, (size_t)k));
        bool letter = !labels && text[0] == 'A' + k && !text[1];
        if (letter || (label && !strcmp(label, text)) || !strcmp(question->choices[k].text, text)) return k;
    }
    return -1;
}

static bool take_question(void *context, JsonLine line, Error *error) {
    QuestionSet *set = context;
    json_auto_t *record = line.value;
    static const char *const answers[] = {"answer", "answerKey", "gold", "label", NULL};
    const json_t *choices = json_object_get(record, "choices"), *labels = NULL;
    if (json_is_object(choices)) labels = json_object_get(choices, "label"), choices = json_object_get(choices, "text");
    size_t count = json_array_size(choices);
    array_append(set->questions, set->count, (ChoiceQuestion){.text = question_words(question_member(record, question_names))});
    ChoiceQuestion *question = &set->questions[set->count - 1];
    if (!question->text || !*question->text) return error_set(error, ERROR_DATA, "expected a text as question, query, context or prompt");
    if (count < 2 || count > MOST_CHOICES) return error_set(error, ERROR_DATA, "expected 2 to %d texts as choices", MOST_CHOICES);
    for (; question->count < (int)count; question->count++) {
        char *text = question_words(json_array_get(choices, (size_t)question->count));
        question->choices[question->count].text = text;
        if (text && *text) continue;
        free(text);
        return error_set(error, ERROR_DATA, "choice %d is not a text", question->count + 1);
    }
    question->answer = find_answer(question, question_member(record, answers), labels);
    return question->answer >= 0 ||
           error_set(error, ERROR_DATA, "expected answer, answerKey, gold or label: the index from 0, the letter, or the text of a choice");
}

static bool read_questions(QuestionSet *set, Error *error) {
    return json_read_lines(set->path, QUESTIONS_LIMIT, 0, take_question, set, error) &&
           ((int64_t)set->count > set->shots ||
               error_set(error, ERROR_USAGE, "%s has %zu questions, which shots=%" PRId64 " uses up: set shots lower", set->path,
                   set->count, set->shots));
}

/* -- Tokens -------------------------------------------------------------------------------------------------------- */

bool question_encode(ModelText *text, const char *words, TokenIds *tokens, Error *error) {
    if (text->encoder) return tokenizer_encode(text->encoder, words, strlen(words), TOKENIZER_ADD_BOS, tokens, error);
    for (const char *at = words; *at; at++) token_ids_append(tokens, (uint8_t)*at);
    return true;
}

/* Joins the questions before the others with their answers. */
static char *join_examples(const QuestionSet *set) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) memory_refused(0);
    for (int64_t i = 0; i < set->shots; i++) {
        const ChoiceQuestion *q = &set->questions[i];
        fprintf(out, "%s %s\n\n", q->text, q->choices[q->answer].text);
    }
    fclose(out);
    return text;
}

/* Encodes a question with each choice. The choice's tokens are those after as many as the question
 * alone has. */
static bool encode_question(QuestionSet *set, ChoiceQuestion *question, Error *error) {
    SCOPED(token_ids_free) TokenIds alone = {0};
    SCOPED_FREE char *text = memory_format("%s%s", set->examples, question->text);
    if (!question_encode(&set->text, text, &alone, error)) return false;
    for (int k = 0; k < question->count; k++) {
        Choice *choice = &question->choices[k];
        SCOPED_FREE char *whole = memory_format("%s %s", text, choice->text);
        if (!question_encode(&set->text, whole, &choice->tokens, error)) return false;
        choice->question = (int64_t)alone.count;
        set->longest = int_max(set->longest, (int64_t)choice->tokens.count);
        if (alone.count == 0 || choice->tokens.count <= alone.count)
            return error_set(error, ERROR_DATA, "the tokenizer joins the question and choice %d into one token", k + 1);
    }
    return true;
}

static bool encode_questions(QuestionSet *set, int64_t count, const ModelConfig *model, Error *error) {
    set->examples = join_examples(set);
    for (int64_t i = set->shots; i < count; i++)
        if (!encode_question(set, &set->questions[i], error)) return error_context(error, "%s, question %" PRId64, set->path, i + 1);
    return set->longest <= model->context ||
           error_set(error, ERROR_USAGE, "the longest question of %s has %" PRId64 " tokens, but the model's context is %" PRId64,
               set->path, set->longest, model->context);
}

/* -- Scoring ------------------------------------------------------------------------------------------------------- */

static void take_choice_score(void *context, const EngineToken *token) {
    Choice *choice = context;
    if (++choice->seen >= choice->question) choice->sum += token->log_probability;
}

static void take_choice_end(void *context, int sample, EngineEnd end) {
    (void)sample, (void)end;
    ((Choice *)context)->finished = true;
}

static bool score_questions(QuestionSet *set, int64_t count, Engine *engine, Error *error) {
    int64_t at = set->shots;
    Progress progress = progress_start("scoring", "questions", count - set->shots);
    for (int64_t i = set->shots; i < count; i++) {
        for (int k = 0; k < set->questions[i].count; k++) {
            Choice *choice = &set->questions[i].choices[k];
            const EngineRequest request = {.prompt = choice->tokens.items,
                .prompt_count = (int64_t)choice->tokens.count,
                .samples = 1,
                .scored = take_choice_score,
                .end = take_choice_end,
                .context = choice};
            if (!engine_submit(engine, &request, error)) return error_context(error, "%s, question %" PRId64, set->path, i + 1);
        }
    }
    while (engine_busy(engine)) {
        if (!engine_step(engine, error)) return false;
        while (at < count && set->questions[at].choices[set->questions[at].count - 1].finished) at++;
        progress_update(&progress, at - set->shots);
    }
    progress_finish(&progress);
    return true;
}

/* Returns the likeliest choice, by log-likelihood or by that per character; the first of equals. */
static int likeliest_choice(const ChoiceQuestion *question, bool per_character) {
    double best = -INFINITY;
    int chosen = 0;
    for (int k = 0; k < question->count; k++) {
        const Choice *choice = &question->choices[k];
        double score = choice->sum / (per_character ? (double)text_characters(choice->text, strlen(choice->text)) : 1);
        if (score > best) best = score, chosen = k;
    }
    return chosen;
}

void question_print(json_t *object) {
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

static void print_question(const ChoiceQuestion *question, int64_t index) {
    json_t *sums = json_array();
    for (int k = 0; k < question->count; k++) json_array_append_new(sums, json_real(question->choices[k].sum));
    question_print(json_pack("{s:s, s:I, s:i, s:i, s:i, s:o}", "kind", "question", "index", (json_int_t)index, "answer", question->answer,
        "chosen", likeliest_choice(question, false), "chosen_per_character", likeliest_choice(question, true), "log_likelihoods", sums));
}

static void print_questions(const QuestionSet *set, int64_t count, bool json) {
    double right = 0, right_norm = 0, scored = (double)(count - set->shots);
    for (int64_t i = set->shots; i < count; i++) {
        const ChoiceQuestion *question = &set->questions[i];
        right += likeliest_choice(question, false) == question->answer;
        right_norm += likeliest_choice(question, true) == question->answer;
        if (json) print_question(question, i);
    }
    double acc = right / scored, norm = right_norm / scored, divisor = fmax(scored - 1, 1);
    double acc_error = sqrt(acc * (1 - acc) / divisor), norm_error = sqrt(norm * (1 - norm) / divisor);
    if (json)
        question_print(json_pack("{s:s, s:I, s:f, s:f, s:f, s:f}", "kind", "questions", "questions", (json_int_t)scored, "acc", acc,
            "acc_stderr", acc_error, "acc_norm", norm, "acc_norm_stderr", norm_error));
    else
        printf("questions      %.0f\nacc            %.4f, standard error %.4f, by likelihood\nacc_norm       %.4f, standard error %.4f, by "
               "likelihood per character\n",
            scored, acc, acc_error, norm, norm_error);
}

bool eval_questions(
    Inference *inference, const char *folder, const char *path, Config *config, const QuestionOptions *options, Error *error) {
    SCOPED(questions_close) QuestionSet set = {.path = path, .shots = options->shots};
    const GenerationOptions generation = {.threads = options->threads, .device = options->device, .precision = options->precision};
    if (!read_questions(&set, error) || !model_text_open(&set.text, folder, config, error)) return false;
    int64_t count = (int64_t)set.count;
    if (options->most) count = int_min(count, set.shots + options->most);
    if (!encode_questions(&set, count, &config->model, error)) return false;
    EngineSizes sizes = {
        .slots = QUESTION_SLOTS, .cache_rows = QUESTION_SLOTS * set.longest, .limit = model_text_limit(&set.text), .scores = true};
    Engine *engine = generation_open_engine(inference, folder, config, &generation, sizes, error);
    bool done = engine && score_questions(&set, count, engine, error);
    engine_free(engine);
    if (done && inference_leads(inference)) print_questions(&set, count, options->json);
    return done;
}
