/* Lists of numbers in options, which a benchmark sweeps over. Owns nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "bench/bench.h"

/* An option that is being parsed. */
typedef struct ListText {
    const char *option, *text;
    int64_t most;
} ListText;

static bool refuse_list(const ListText *from, Error *error) {
    return error_set(error, ERROR_USAGE,
        "%s=%s: must be numbers from 1 to %lld, at most %d of them; for example 64,1Ki or 256..8192 (doubling) or 256..4096+256",
        from->option, from->text, (long long)from->most, BENCH_LIST_NUMBERS);
}

static bool append_number(BenchList *list, const ListText *from, int64_t number, Error *error) {
    if (number < 1 || number > from->most || list->count == BENCH_LIST_NUMBERS) return refuse_list(from, error);
    list->numbers[list->count++] = number;
    return true;
}

/* Returns the number in `text`, in the syntax of options; 0 if it is not a number. */
static int64_t parse_numbers(const char *text, size_t length) {
    static const Option row = {"number", OPTION_INT, 0, "1", 1, 1e18, NULL, "", ""};
    static const OptionTable table = {&row, 1};
    int64_t number = 0;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Error ignored = {0};
    SCOPED_FREE char *assignment = memory_format("number=%.*s", (int)length, text);
    return options_set(&table, &number, &strings, assignment, &ignored) ? number : 0;
}

/* Appends "A", "A..B" or "A..B+STEP". */
static bool append_item(BenchList *list, const ListText *from, const char *item, size_t length, Error *error) {
    const char *dots = memmem(item, length, "..", 2);
    if (!dots) return append_number(list, from, parse_numbers(item, length), error);
    const char *last = dots + 2, *end = item + length, *plus = memchr(last, '+', (size_t)(end - last));
    int64_t low = parse_numbers(item, (size_t)(dots - item)), high = parse_numbers(last, (size_t)((plus ? plus : end) - last));
    int64_t step = plus ? parse_numbers(plus + 1, (size_t)(end - plus - 1)) : 0;
    if (low < 1 || high < low || high > from->most || (plus && step < 1)) return refuse_list(from, error);
    for (int64_t number = low; number <= high; number = plus ? number + step : 2 * number)
        if (!append_number(list, from, number, error)) return false;
    return true;
}

bool bench_list(BenchList *list, const char *option, const char *text, int64_t most, Error *error) {
    const ListText from = {option, text, most};
    list->count = 0;
    for (const char *item = text;; item++) {
        size_t length = strcspn(item, ",");
        if (!append_item(list, &from, item, length, error)) return false;
        item += length;
        if (*item == '\0') return true;
    }
}
