/* The summary of a packing: warnings about dropped and changed text, and the error if nothing useful is left. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/packer_internal.h"

/* Returns the fault of the first record of a kind; its file and line in *sample, unless it is
 * NULL. */
static const char *note_first_bad(const Packer *packer, PackBad kind, const json_t **sample) {
    size_t at;
    const json_t *each;
    json_array_foreach(packer->report.samples, at, each) {
        if (strcmp(json_string_value(json_object_get(each, "kind")), pack_bad_name(kind)) != 0) continue;
        if (sample) *sample = each;
        return json_string_value(json_object_get(each, "what"));
    }
    return "";
}

static void warn_bad(const Packer *packer) {
    static const char *const became[] = {"invalid UTF-8 was replaced by U+FFFD (invalid=replace)",
        "their bytes were kept; invalid UTF-8 in JSON became U+FFFD (invalid=keep)", "they were skipped (invalid=skip)", ""};
    const PackResult *result = &packer->report.result;
    for (int kind = 1; kind < PACK_BAD_KINDS; kind++) {
        const json_t *first = NULL;
        if (result->bad[kind] == 0) continue;
        const char *what = note_first_bad(packer, (PackBad)kind, &first);
        (kind == PACK_BAD_EMPTY ? log_info : log_warn)("%" PRId64 " record%s: %s: %s; the first is line %" PRId64 " of %s%s%s%s",
            result->bad[kind], plural(result->bad[kind]), pack_bad_name((PackBad)kind),
            kind == PACK_BAD_UTF8 ? became[packer->options.invalid] : "left out",
            (int64_t)json_integer_value(json_object_get(first, "line")), json_string_value(json_object_get(first, "file")),
            *what ? " (" : "", what, *what ? ")" : "");
    }
}

/* Logs how often each rule over lines applied. */
static void say_edits(const Packer *packer) {
    for (int i = 0; i < LINE_RULES; i++)
        if (packer->report.edits[i]) log_info("%s applied to %" PRId64 " lines", line_rule_name(i), packer->report.edits[i]);
}

/* Says how many documents each rule dropped, and warns of a rule that drops nearly all. */
static void warn_filtered(const Packer *packer) {
    const PackResult *result = &packer->report.result;
    for (int i = 0; packer->options.filter && i < filter_rules(packer->options.filter); i++) {
        int64_t count = packer->report.filtered[i];
        bool most = count > 0 && (double)count > 0.9 * (double)result->records;
        if (count > 0)
            (most ? log_warn : log_info)("%s dropped %" PRId64 " of %" PRId64 " documents%s", filter_rule(packer->options.filter, i), count,
                result->records, most ? ", more than 90%: check the rule and the field that it reads" : "");
    }
}

static void warn_of_answers(const PackResult *result) {
    if (result->empty_answers)
        log_warn("%" PRId64 " answer%s empty: %s only the end-of-answer token", result->empty_answers,
            result->empty_answers == 1 ? " is" : "s are", result->empty_answers == 1 ? "it trains" : "they train");
    if (result->decoded_arguments)
        log_warn("the arguments of %" PRId64 " tool call%s JSON text: smelt decoded them, because the chat template writes objects as JSON",
            result->decoded_arguments, result->decoded_arguments == 1 ? " are" : "s are");
    if (result->text_arguments)
        log_warn("the arguments of %" PRId64 " tool call%s text, but not a JSON object: smelt passed them to the template unchanged",
            result->text_arguments, result->text_arguments == 1 ? " are" : "s are");
}

/* Warns of parts that the text of conversations lacks, as "tool_calls of 3, history of 1". */
static void warn_of_lost(const PackResult *result) {
    char list[512] = "";
    size_t used = 0;
    for (int i = 0; i < CHAT_PARTS && used < sizeof list; i++)
        if (result->lost[i])
            used += (size_t)snprintf(
                list + used, sizeof list - used, "%s%s of %" PRId64, used ? ", " : "", chat_part_name((ChatPart)i), result->lost[i]);
    if (*list) log_warn("the chat template or the format of some conversations drops part of them: %s", list);
}

void packer_warn(const Packer *packer) {
    warn_bad(packer);
    say_edits(packer);
    warn_filtered(packer);
    warn_of_answers(&packer->report.result);
    warn_of_lost(&packer->report.result);
}

/* A mask that excludes nothing, or everything, is an error. */
static bool check_mask(const Packer *packer, int64_t trained, int64_t tokens, Error *error) {
    if (!packer->chat || tokens == 0 || (trained > 0 && trained < tokens)) return true;
    return error_set(error, ERROR_DATA,
        "%s of the %" PRId64
        " tokens of %s are trained: a conversation must have both prompt tokens (not trained) and answer tokens (trained)",
        trained ? "all" : "none", tokens, packer->options.inputs[0]);
}

/* Reports that nothing is left to pack, with the cause. */
static bool refuse_nothing(const Packer *packer, Error *error) {
    const PackOptions *options = &packer->options;
    bool pairs = options->format == PACK_PREFERENCE;
    PackBad none = pairs ? PACK_BAD_PAIR : PACK_BAD_CHAT;
    int64_t bad = 0, left = pack_files_left(&packer->files);
    for (int i = 1; i < PACK_BAD_KINDS; i++) bad += packer->report.result.bad[i];
    const PackResult *result = &packer->report.result;
    SCOPED_FREE char *dropped = packer_path(packer, PACK_DROPPED);
    if (result->filtered + result->left_out > 0)
        return error_set(error, ERROR_DATA,
            "no document of %s is left: of %" PRId64 " the rules dropped %" PRId64 ", and %" PRId64 " repeat others; see %s",
            options->inputs[0], result->records, result->filtered, result->left_out, dropped);
    if (bad > 0 && bad == packer->report.result.bad[none])
        return error_set(error, ERROR_DATA, "no record of %s is a valid %s: %s", options->inputs[0],
            pairs ? "preference pair" : "conversation", note_first_bad(packer, none, NULL));
    if (bad > 0 && bad == packer->report.result.bad[PACK_BAD_FIELD])
        return error_set(error, ERROR_DATA,
            options->tokens ? "no record of %s has tokens in the field %s: name the field with tokens, as tokens=NAME of smelt data pack"
                            : "no record of %s has text in the field %s: name the field with text, as field=NAME of smelt data pack",
            options->inputs[0], note_first_bad(packer, PACK_BAD_FIELD, NULL));
    if (bad > 0 && bad == packer->report.result.bad[PACK_BAD_JSON])
        return error_set(
            error, ERROR_DATA, "no line of %s is a JSON record: %s", options->inputs[0], note_first_bad(packer, PACK_BAD_JSON, NULL));
    return error_set(error, ERROR_DATA,
        "%s contains no text: %zu file%s, %" PRId64 " bytes, %" PRId64 " file%s skipped, %" PRId64
        " invalid record%s; give a file or folder with text",
        options->inputs[0], packer->files.list.count, plural((int64_t)packer->files.list.count), packer->files.bytes, left, plural(left),
        bad, plural(bad));
}

static bool check_result(const Packer *packer, Error *error) {
    const PackOptions *options = &packer->options;
    const PackResult *result = &packer->report.result;
    if (result->train_tokens + result->valid_tokens == 0) return refuse_nothing(packer, error);
    if (!check_mask(packer, result->trained_train, result->train_tokens, error) ||
        !check_mask(packer, result->trained_valid, result->valid_tokens, error))
        return false;
    if (packer->valid.name && result->valid_tokens == 0)
        return error_set(error, ERROR_DATA,
            "%s yields no validation part of %g: it has too few lines or records; set valid=0 (in training data.valid_fraction=0), or use "
            "more text",
            options->inputs[0], options->valid_fraction);
    if (result->train_tokens == 0)
        return error_set(error, ERROR_DATA, "%s yields no training part, because all text is in its last %g: set a smaller valid",
            options->inputs[0], options->valid_fraction);
    return true;
}

bool packer_check_kept(Packer *packer, Error *error) {
    const PackResult *result = &packer->report.result;
    Error ignored = {0};
    if (check_result(packer, error)) return true;
    if (packer->dropped && result->train_tokens + result->valid_tokens == 0) drop_log_finish(packer->dropped, &ignored);
    return false;
}
