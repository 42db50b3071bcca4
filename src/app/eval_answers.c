/* Tasks that a model answers in its own words (lm-evaluation-harness's generate_until with
 * exact_match). The questions are prompts of the engine; a text is matched as soon as it ends. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/eval_questions.h"
#include "base/array.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/match.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

enum { ANSWER_SLOTS = 64 };

typedef struct AnswerQuestion {
    struct AnswerSet *set;
    char *text;
    json_t *answers; /* a list of texts */
    TokenIds prompt;
    int64_t tokens; /* most of the answer */
    GeneratedText given;
    bool finished, matches;
    EngineEnd end;
} AnswerQuestion;

typedef struct AnswerSet {
    const char *path;
    const QuestionOptions *options;
    ModelText text;
    ModelChat chat; /* with QuestionOptions.template */
    ChatDocument document;
    StopTexts stops;
    MatchRegex *regex;
    AnswerQuestion *questions;
    size_t count;
    int64_t rows; /* of the caches, for the longest question and its answer */
} AnswerSet;

static void answers_close(AnswerSet *set) {
    for (size_t i = 0; i < set->count; i++) {
        free(set->questions[i].text);
        json_decref(set->questions[i].answers);
        token_ids_free(&set->questions[i].prompt);
        generated_text_free(&set->questions[i].given);
    }
    free(set->questions);
    stop_texts_free(&set->stops);
    match_regex_free(set->regex);
    chat_document_free(&set->document);
    model_chat_close(&set->chat);
    model_text_close(&set->text);
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

static const char *const answer_names[] = {"answer", "target", "gold", NULL};

bool answers_record(const json_t *record) {
    const json_t *answer = question_member(record, answer_names);
    return question_member(record, question_names) && (json_is_string(answer) || json_is_number(answer) || json_is_array(answer));
}

/* Whether the text gives the answer. */
static bool match_answer(const AnswerSet *set, const char *text, size_t size, const char *answer, bool *matches, Error *error) {
    switch (set->options->match) {
    case ANSWER_NUMBER: *matches = match_last_number(text, size, answer); return true;
    case ANSWER_BOXED: *matches = match_boxed(text, size, answer); return true;
    case ANSWER_REGEX: return match_regex(set->regex, text, size, answer, matches, error);
    default: *matches = match_exact(text, size, answer); return true;
    }
}

/* Adds an answer, which must be a text, or a number, that can be matched. */
static bool add_answer(AnswerSet *set, AnswerQuestion *question, const json_t *value, Error *error) {
    SCOPED_FREE char *number = json_is_number(value) ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
    SCOPED_FREE char *text = number ? memory_copy_string(number) : question_words(value);
    if (!text || !*text) return error_set(error, ERROR_DATA, "expected answer, target or gold: a text, a number, or a list of these");
    if (set->options->match == ANSWER_NUMBER && !match_last_number(text, strlen(text), text))
        return error_set(error, ERROR_DATA, "the answer %.40s has no number for match=number: use match=exact", text);
    json_array_append_new(question->answers, json_string(text));
    return true;
}

static bool take_answer_question(void *context, JsonLine line, Error *error) {
    AnswerSet *set = context;
    json_auto_t *record = line.value;
    const json_t *answer = question_member(record, answer_names);
    array_append(set->questions, set->count,
        (AnswerQuestion){.set = set, .text = question_words(question_member(record, question_names)), .answers = json_array()});
    AnswerQuestion *question = &set->questions[set->count - 1];
    if (!question->text || !*question->text) return error_set(error, ERROR_DATA, "expected a text as question, query, context or prompt");
    if (!json_is_array(answer)) return add_answer(set, question, answer, error);
    for (size_t i = 0; i < json_array_size(answer); i++)
        if (!add_answer(set, question, json_array_get(answer, i), error)) return false;
    return json_array_size(answer) > 0 || add_answer(set, question, NULL, error);
}

static const char *first_answer(const AnswerQuestion *question) { return json_string_value(json_array_get(question->answers, 0)); }

/* Joins the questions before the others with their answers. */
static char *join_shots(const AnswerSet *set) {
    char *text = memory_copy_string("");
    for (int64_t i = 0; i < set->options->shots; i++) {
        char *longer = memory_format("%s%s %s\n\n", text, set->questions[i].text, first_answer(&set->questions[i]));
        free(text);
        text = longer;
    }
    return text;
}

static void add_message(json_t *messages, const char *role, const char *text) {
    json_array_append_new(messages, json_pack("{ss ss}", "role", role, "content", text));
}

/* Renders the questions before the others with their answers, and a question, as a conversation. */
static bool encode_chat(AnswerSet *set, AnswerQuestion *question, Error *error) {
    json_t *messages = json_array();
    json_auto_t *conversation = json_pack("{so}", "messages", messages);
    for (int64_t i = 0; i < set->options->shots; i++) {
        add_message(messages, "user", set->questions[i].text);
        add_message(messages, "assistant", first_answer(&set->questions[i]));
    }
    add_message(messages, "user", question->text);
    if (!chat_prompt(set->chat.encoder, conversation, &set->document, error)) return false;
    for (size_t i = 0; i < set->document.ids.count; i++) token_ids_append(&question->prompt, set->document.ids.items[i]);
    return true;
}

static bool encode_text(AnswerSet *set, AnswerQuestion *question, const char *shots, Error *error) {
    SCOPED_FREE char *prompt = memory_format("%s%s", shots, question->text);
    return question_encode(&set->text, prompt, &question->prompt, error);
}

static bool encode_question(AnswerSet *set, AnswerQuestion *question, const char *shots, int64_t context, Error *error) {
    if (!(set->chat.chat ? encode_chat(set, question, error) : encode_text(set, question, shots, error))) return false;
    int64_t count = (int64_t)question->prompt.count;
    question->tokens = int_min(set->options->tokens, context - count);
    question->given = generated_text(set->text.tokenizer);
    set->rows = int_max(set->rows, count + question->tokens);
    return (count > 0 && question->tokens > 0) ||
           error_set(error, ERROR_USAGE,
               "%" PRId64 " tokens leave no room for an answer in the model's context of %" PRId64 ": set shots lower", count, context);
}

static bool open_chat(AnswerSet *set, const char *folder, const Config *config, Error *error) {
    const char *template = set->options->template;
    const ChatOptions options = {.template = strcmp(template, "own") ? template : ""};
    if (!*template) return true;
    return model_chat_open(&set->chat, &set->text, folder, config, &options, error) &&
           (chat_has_template(set->chat.chat) ||
               error_set(error, ERROR_USAGE, "%s has no chat template: set template=FILE, or template=chatml", folder));
}

static bool read_answers(AnswerSet *set, Error *error) {
    enum { ANSWERS_LIMIT = 1 << 30 /* bytes of the file */ };
    const QuestionOptions *options = set->options;
    bool regex = options->match == ANSWER_REGEX;
    if (regex != !!*options->pattern)
        return error_set(error, ERROR_USAGE, regex ? "match=regex needs pattern=" : "pattern= is only for match=regex: remove it");
    if (regex && !(set->regex = match_regex_compile(options->pattern, false, error))) return false;
    if (!generation_read_stops(options->stop, &set->stops, error)) return false;
    if (options->shots && !*options->stop && !*options->template) stop_texts_add(&set->stops, "\n\n", 2);
    return json_read_lines(set->path, ANSWERS_LIMIT, 0, take_answer_question, set, error) &&
           ((int64_t)set->count > options->shots ||
               error_set(error, ERROR_USAGE, "%s has %zu questions, which shots=%" PRId64 " uses up: set shots lower", set->path,
                   set->count, options->shots));
}

/* -- Answering ----------------------------------------------------------------------------------------------------- */

static bool take_answer_token(void *context, int sample, const EngineToken *token) {
    AnswerQuestion *question = context;
    (void)sample;
    return generated_text_add(&question->given, &question->set->stops, token->token);
}

static void take_answer_end(void *context, int sample, EngineEnd end) {
    AnswerQuestion *question = context;
    (void)sample;
    generated_text_finish(&question->given);
    question->end = end;
    question->finished = true;
}

static bool match_question(const AnswerSet *set, AnswerQuestion *question, Error *error) {
    const char *text = question->given.size ? question->given.bytes : "";
    for (size_t i = 0; i < json_array_size(question->answers) && !question->matches; i++)
        if (!match_answer(
                set, text, question->given.size, json_string_value(json_array_get(question->answers, i)), &question->matches, error))
            return false;
    return true;
}

static bool answer_questions(AnswerSet *set, int64_t count, Engine *engine, Error *error) {
    int64_t first = set->options->shots, at = first;
    Progress progress = progress_start("answering", "questions", count - first);
    for (int64_t i = first; i < count; i++) {
        AnswerQuestion *question = &set->questions[i];
        const EngineRequest request = {.prompt = question->prompt.items,
            .prompt_count = (int64_t)question->prompt.count,
            .tokens = question->tokens,
            .samples = 1,
            .sampling = {.temperature = 0, .top_p = 1},
            .ends = set->text.ends.items,
            .end_count = (int64_t)set->text.ends.count,
            .token = take_answer_token,
            .end = take_answer_end,
            .context = question};
        if (!engine_submit(engine, &request, error)) return error_context(error, "%s, question %" PRId64, set->path, i + 1);
    }
    while (engine_busy(engine)) {
        if (!engine_step(engine, error)) return false;
        for (; at < count && set->questions[at].finished; at++)
            if (!match_question(set, &set->questions[at], error)) return error_context(error, "%s, question %" PRId64, set->path, at + 1);
        progress_update(&progress, at - first);
    }
    progress_finish(&progress);
    return true;
}

static void print_answer(const AnswerQuestion *question, int64_t index) {
    question_print(json_pack("{s:s, s:I, s:O, s:s%, s:s, s:b}", "kind", "answer", "index", (json_int_t)index, "answers", question->answers,
        "text", question->given.size ? question->given.bytes : "", question->given.size, "finish",
        question->end == ENGINE_LENGTH ? "length" : "stop", "matches", question->matches));
}

static void print_answers(const AnswerSet *set, int64_t count) {
    double right = 0, questions = (double)(count - set->options->shots);
    for (int64_t i = set->options->shots; i < count; i++) {
        right += set->questions[i].matches;
        if (set->options->json) print_answer(&set->questions[i], i);
    }
    double share = right / questions, deviation = sqrt(share * (1 - share) / fmax(questions - 1, 1));
    if (set->options->json)
        question_print(json_pack("{s:s, s:I, s:f, s:f}", "kind", "answers", "questions", (json_int_t)questions, "exact_match", share,
            "exact_match_stderr", deviation));
    else printf("questions      %.0f\nexact_match    %.4f, standard error %.4f\n", questions, share, deviation);
}

bool eval_answers(
    Inference *inference, const char *folder, const char *path, Config *config, const QuestionOptions *options, Error *error) {
    SCOPED(answers_close) AnswerSet set = {.path = path, .options = options};
    const GenerationOptions generation = {.threads = options->threads, .device = options->device, .precision = options->precision};
    if (!read_answers(&set, error) || !model_text_open(&set.text, folder, config, error) || !open_chat(&set, folder, config, error))
        return false;
    int64_t count = (int64_t)set.count;
    if (options->most) count = int_min(count, options->shots + options->most);
    SCOPED_FREE char *shots = join_shots(&set);
    for (int64_t i = options->shots; i < count; i++)
        if (!encode_question(&set, &set.questions[i], shots, config->model.context, error))
            return error_context(error, "%s, question %" PRId64, path, i + 1);
    int64_t slots = int_min(ANSWER_SLOTS, count - options->shots);
    EngineSizes sizes = {.slots = slots, .cache_rows = slots * set.rows, .limit = model_text_limit(&set.text)};
    Engine *engine = generation_open_engine(inference, folder, config, &generation, sizes, error);
    bool done = engine && answer_questions(&set, count, engine, error);
    engine_free(engine);
    if (done && inference_leads(inference)) print_answers(&set, count);
    return done;
}
