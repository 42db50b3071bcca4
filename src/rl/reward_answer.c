/* The JSON that smelt and reward programs exchange: requests and answers. Owns nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack.h"
#include "rl/reward_internal.h"

void reward_answer_free(RewardAnswer *answer) {
    json_decref(answer->metrics);
    json_decref(answer->append);
    free(answer->note);
    free(answer->failure);
    *answer = (RewardAnswer){0};
}

/* -- Answers ------------------------------------------------------------------------------------------------------- */

/* Returns the start of a text of the object, in one line; NULL: there is none. */
static char *take_line(const json_t *object, const char *name) {
    enum { LIMIT = 1000 };
    const json_t *text = json_object_get(object, name);
    if (!json_is_string(text)) return NULL;
    size_t size = json_string_length(text) < LIMIT ? json_string_length(text) : LIMIT;
    char *line = utf8_replace(json_string_value(text), size, &size);
    for (size_t i = 0; i < size; i++)
        if (line[i] == '\0') line[i] = ' ';
    blank_controls(line, ' ', false);
    return line;
}

/* Copies the metrics, which jansson may hold as integers, booleans or wide numbers. Returns the name of
 * one that is not a finite number; NULL: all are. */
static const char *take_metrics(const json_t *given, json_t **metrics) {
    const char *name;
    json_t *value;
    *metrics = json_object();
    json_object_foreach((json_t *)given, name, value) {
        if (!json_is_boolean(value) && !json_is_finite(value)) return name;
        json_object_set_new(*metrics, name, json_real(json_is_boolean(value) ? json_is_true(value) : json_finite_value(value)));
    }
    return NULL;
}

/* Returns what an environment appends: a text, or a list of messages; NULL: nothing. */
static const json_t *find_append(const json_t *object, RewardAnswer *answer) {
    const json_t *append = json_object_get(object, "append");
    if (!append || json_is_null(append)) return NULL;
    if (!json_string_length(append) && !json_array_size(append))
        answer->failure = memory_copy_string("its \"append\" is neither a text nor a list of messages, or is empty");
    return append;
}

/* Reads an object that has an id or is a server's. */
static void take_answer(const json_t *object, bool environment, RewardAnswer *answer) {
    const json_t *reward = json_object_get(object, "reward"), *metrics = json_object_get(object, "metrics");
    const char *wide = json_wide_number(reward), *wrong;
    answer->note = take_line(object, "note");
    answer->failure = take_line(object, "error");
    if (answer->failure && !*answer->failure)
        free(answer->failure), answer->failure = memory_copy_string("it reports an error without a text");
    const json_t *append = environment && !answer->failure ? find_append(object, answer) : NULL;
    if (answer->failure) return;
    answer->append = json_incref((json_t *)append);
    if (append && !reward) answer->value = 0;
    else if (json_is_boolean(reward)) answer->value = json_is_true(reward);
    else if (json_is_finite(reward)) answer->value = json_finite_value(reward);
    else if (wide) answer->failure = memory_format("its reward is %s: give a finite number", wide);
    else answer->failure = memory_format("its answer has no number \"reward\": write {\"id\": ..., \"reward\": 0.5}");
    if (!metrics || json_is_null(metrics) || answer->failure) return;
    if (!json_is_object(metrics)) answer->failure = memory_copy_string("its \"metrics\" are not an object: write {\"name\": number}");
    else if ((wrong = take_metrics(metrics, &answer->metrics)))
        answer->failure = memory_format("its metric \"%.100s\" is not a finite number", wrong), one_line(answer->failure);
}

bool reward_answer_read(const char *text, size_t size, bool environment, RewardAnswer *answer, Error *error) {
    *answer = (RewardAnswer){.id = -1};
    Error reason;
    json_auto_t *object = json_parse(text, size, 0, &reason);
    if (!json_is_object(object)) {
        char quoted[OPTIONS_QUOTED];
        return error_set(error, ERROR_DATA,
            "wrote %s, which is not an answer: write one JSON object a line, and print other text to stderr",
            options_quote(quoted, text, size));
    }
    const json_t *id = json_object_get(object, "id");
    if (id && !json_is_integer(id))
        return error_set(error, ERROR_DATA, "answered with an \"id\" that is not an integer: copy that of the request");
    if (id) answer->id = json_integer_value(id);
    take_answer(object, environment, answer);
    return true;
}

/* -- Requests ------------------------------------------------------------------------------------------------------ */

static json_t *text_value(const char *text, size_t size) {
    size_t length;
    SCOPED_FREE char *valid = utf8_replace(text ? text : "", size, &length);
    return json_stringn(valid, length);
}

static json_t *ids_value(const int32_t *ids, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

char *reward_request_write(const RewardSample *sample) {
    json_auto_t *request = json_object();
    json_object_set_new(request, "prompt", text_value(sample->prompt, sample->prompt_size));
    json_object_set_new(request, "completion", text_value(sample->completion, sample->completion_size));
    json_t *answer = json_object_get(sample->record, "answer");
    if (answer) json_object_set(request, "answer", answer);
    if (sample->turns) {
        json_object_set(request, "turns", (json_t *)sample->turns);
        json_object_set_new(request, "turn", json_integer((json_int_t)json_array_size(sample->turns)));
        json_object_set_new(request, "last", json_boolean(sample->last));
    }
    if (sample->finish) json_object_set_new(request, "finish", json_string(sample->finish));
    if (sample->prompt_ids) json_object_set_new(request, "prompt_ids", ids_value(sample->prompt_ids, sample->prompt_count));
    if (sample->completion_ids) json_object_set_new(request, "completion_ids", ids_value(sample->completion_ids, sample->completion_count));
    json_object_set_new(request, "record", sample->record ? json_incref((json_t *)sample->record) : json_object());
    return json_format_line(request);
}

bool reward_sample_read(const json_t *object, RewardSample *sample, int32_t **ids, Error *error) {
    const json_t *prompt = json_object_get(object, "prompt"), *completion = json_object_get(object, "completion");
    const json_t *list = json_object_get(object, "completion_ids"), *text = json_object_get(object, "prompt_text"),
                 *record = json_object_get(object, "record");
    if (!json_is_string(prompt)) prompt = text; /* in a rollout, which has the number of the line */
    *sample = (RewardSample){.prompt = json_string_value(prompt),
        .prompt_size = json_string_length(prompt),
        .completion = json_string_value(completion),
        .completion_size = json_string_length(completion),
        .completion_count = json_array_size(list),
        .finish = json_string_value(json_object_get(object, "finish")),
        .record = record ? record : object};
    *ids = list ? memory_allocate((sample->completion_count + 1) * sizeof **ids) : NULL;
    sample->completion_ids = *ids;
    for (size_t i = 0; list && i < sample->completion_count; i++) (*ids)[i] = (int32_t)json_integer_value(json_array_get(list, i));
    if (!json_is_object(sample->record)) return error_set(error, ERROR_DATA, "\"record\" is not an object: write {\"answer\": ...}");
    return sample->completion || error_set(error, ERROR_DATA, "there is no text \"completion\": add it");
}
