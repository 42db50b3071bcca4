/* The table of rewards, and those that need no program. Owns nothing. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack.h"
#include "rl/reward_internal.h"

/* -- Comparisons --------------------------------------------------------------------------------------------------- */

static bool exact_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    (void)part, (void)error;
    result->value = match_exact(sample->completion, sample->completion_size, answer);
    return true;
}

static bool number_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    (void)part, (void)error;
    result->value = match_last_number(sample->completion, sample->completion_size, answer);
    return true;
}

static bool boxed_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    (void)part, (void)error;
    result->value = match_boxed(sample->completion, sample->completion_size, answer);
    return true;
}

static bool compile_pattern(RewardPart *part, Error *error) {
    return (part->pattern = match_regex_compile(part->argument, true, error)) != NULL;
}

/* The pattern of `format` matches a whole completion, of any number of lines. */
static bool compile_format(RewardPart *part, Error *error) {
    SCOPED_FREE char *whole = memory_format("(?s)\\A(?:%s)\\s*\\z", part->argument);
    return (part->pattern = match_regex_compile(whole, false, error)) != NULL;
}

/* `format` has no answer: kinds that do not compare get NULL. */
static bool pattern_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    bool matches = false;
    if (!match_regex(part->pattern, sample->completion, sample->completion_size, answer, &matches, error)) return false;
    result->value = matches;
    return true;
}

/* -- Characters ---------------------------------------------------------------------------------------------------- */

/* Returns the code points of a text without white space at its ends; U+FFFD for bytes that are not
 * UTF-8. The caller frees them. */
static int32_t *code_points(const char *text, size_t size, size_t *count) {
    SCOPED_FREE char *valid = utf8_replace(text, size, &size);
    const char *at = valid, *end = valid + size;
    while (at < end && isspace((unsigned char)*at)) at++;
    while (end > at && isspace((unsigned char)end[-1])) end--;
    int32_t *points = memory_allocate(((size_t)(end - at) + 1) * sizeof *points);
    for (*count = 0; at < end; (*count)++) at += utf8proc_iterate((const utf8proc_uint8_t *)at, end - at, &points[*count]);
    return points;
}

/* Share of positions at which both texts have the same character. */
static double same_positions(const int32_t *a, size_t a_count, const int32_t *b, size_t b_count) {
    size_t longer = a_count > b_count ? a_count : b_count, same = 0;
    for (size_t i = 0; i < a_count && i < b_count; i++) same += a[i] == b[i];
    return longer ? (double)same / (double)longer : 1;
}

static double compare_characters(
    const RewardSample *sample, const char *answer, double (*compare)(const int32_t *, size_t, const int32_t *, size_t)) {
    size_t given_count, expected_count;
    SCOPED_FREE int32_t *given = code_points(sample->completion, sample->completion_size, &given_count);
    SCOPED_FREE int32_t *expected = code_points(answer, strlen(answer), &expected_count);
    return compare(given, given_count, expected, expected_count);
}

static bool characters_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    (void)part, (void)error;
    result->value = compare_characters(sample, answer, same_positions);
    return true;
}

static bool similarity_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    (void)part, (void)error;
    result->value = compare_characters(sample, answer, reward_similarity);
    return true;
}

/* -- Length -------------------------------------------------------------------------------------------------------- */

static bool read_length(RewardPart *part, Error *error) {
    int end = 0;
    bool good = sscanf(part->argument, "%lf%n", &part->numbers[0], &end) == 1 && !part->argument[end] && part->numbers[0] >= 1;
    return good || error_set(error, ERROR_USAGE, "length:%s is not a number of tokens: write length:64", part->argument);
}

static bool read_overlong(RewardPart *part, Error *error) {
    int end = 0;
    bool good = sscanf(part->argument, "%lf-%lf%n", &part->numbers[0], &part->numbers[1], &end) == 2 && !part->argument[end] &&
                part->numbers[0] >= 0 && part->numbers[1] > part->numbers[0];
    return good ||
           error_set(error, ERROR_USAGE, "overlong:%s is not two increasing numbers of tokens: write overlong:3072-4096", part->argument);
}

static bool count_tokens(const RewardSample *sample, double *count, Error *error) {
    *count = (double)sample->completion_count;
    return sample->completion_ids ||
           error_set(error, ERROR_DATA, "the number of tokens of the completion is unknown: give \"completion_ids\"");
}

static bool length_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    double count, wanted = part->numbers[0];
    (void)answer;
    if (!count_tokens(sample, &count, error)) return false;
    result->value = fmax(0, 1 - fabs(count - wanted) / wanted);
    return true;
}

/* DAPO's soft penalty of length (arXiv 2503.14476, equation 13): 0 up to the first number, from there
 * linear to -1 at the second. */
static bool overlong_value(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    double count, soft = part->numbers[0], hard = part->numbers[1];
    (void)answer;
    if (!count_tokens(sample, &count, error)) return false;
    result->value = -fmin(1, fmax(0, (count - soft) / (hard - soft)));
    return true;
}

/* -- The table ----------------------------------------------------------------------------------------------------- */

static const RewardKind kinds[] = {
    {.name = "exact", .compares = true, .compute = exact_value},
    {.name = "last_number", .compares = true, .compute = number_value},
    {.name = "boxed", .compares = true, .compute = boxed_value},
    {.name = "regex", .takes_argument = true, .needs_argument = true, .compares = true, .parse = compile_pattern, .compute = pattern_value},
    {.name = "format", .takes_argument = true, .needs_argument = true, .parse = compile_format, .compute = pattern_value},
    {.name = "characters", .compares = true, .compute = characters_value},
    {.name = "similarity", .compares = true, .compute = similarity_value},
    {.name = "length", .takes_argument = true, .needs_argument = true, .parse = read_length, .compute = length_value},
    {.name = "overlong", .takes_argument = true, .needs_argument = true, .parse = read_overlong, .compute = overlong_value},
    {.name = "code",
        .takes_argument = true,
        .parse = reward_code_open,
        .check = reward_code_check,
        .compute = reward_code_compute,
        .work = reward_program_work},
    {.name = "program", .takes_argument = true, .needs_argument = true, .work = reward_program_work},
    {.name = "python", .takes_argument = true, .needs_argument = true, .parse = reward_python_check, .work = reward_program_work},
    {.name = "http", .takes_argument = true, .needs_argument = true, .parse = reward_http_open, .work = reward_http_work},
    {.name = "https", .takes_argument = true, .needs_argument = true, .parse = reward_http_open, .work = reward_http_work},
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

const RewardKind *reward_kind(const char *name) {
    for (int i = 0; i < KIND_COUNT; i++)
        if (!strcmp(kinds[i].name, name)) return &kinds[i];
    return NULL;
}

char *reward_kind_names(void) {
    char *names = memory_copy_string(kinds[0].name);
    for (int i = 1; i < KIND_COUNT; i++) {
        char *more = memory_format("%s, %s", names, kinds[i].name);
        free(names);
        names = more;
    }
    return names;
}
