/* Lists of numbers in options: what a benchmark sweeps over. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "bench/bench.h"

enum { MOST_NUMBERS = 4096 };

typedef struct List {
    const char *option, *text;
    int64_t *numbers, most;
    int count;
} List;

static bool refuse(const List *list, Error *error) {
    return error_set(error, ERROR_USAGE,
        "%s=%s: give numbers from 1 to %lld, at most %d, such as 64,1Ki or 256..8192 (doubling) or 256..4096+256", list->option, list->text,
        (long long)list->most, MOST_NUMBERS);
}

static bool append(List *list, int64_t number, Error *error) {
    if (number < 1 || number > list->most || list->count == MOST_NUMBERS) return refuse(list, error);
    list->numbers[list->count++] = number;
    return true;
}

/* The number that `text` is, as options are written; 0 when it is none. */
static int64_t parse(const char *text, size_t length) {
    static const Option row = {"number", OPTION_INT, 0, "1", 1, 1e18, NULL, "", ""};
    static const OptionTable table = {&row, 1};
    int64_t number = 0;
    OptionStrings strings = {0};
    Error ignored = {0};
    char *assignment = memory_format("number=%.*s", (int)length, text);
    if (!options_set(&table, &number, &strings, assignment, &ignored)) number = 0;
    free(assignment);
    options_free_strings(&strings);
    return number;
}

/* "A", "A..B" or "A..B+STEP". */
static bool append_item(List *list, const char *item, size_t length, Error *error) {
    const char *dots = memmem(item, length, "..", 2);
    if (!dots) return append(list, parse(item, length), error);
    const char *last = dots + 2, *end = item + length, *plus = memchr(last, '+', (size_t)(end - last));
    int64_t from = parse(item, (size_t)(dots - item)), to = parse(last, (size_t)((plus ? plus : end) - last));
    int64_t step = plus ? parse(plus + 1, (size_t)(end - plus - 1)) : 0;
    if (from < 1 || to < from || to > list->most || (plus && step < 1)) return refuse(list, error);
    for (int64_t number = from; number <= to; number = plus ? number + step : 2 * number)
        if (!append(list, number, error)) return false;
    return true;
}

int64_t *bench_list(const char *option, const char *text, int64_t most, int *count, Error *error) {
    List list = {.option = option, .text = text, .most = most, .numbers = memory_allocate(MOST_NUMBERS * sizeof(int64_t))};
    bool good = true;
    for (const char *item = text; good;) {
        size_t length = strcspn(item, ",");
        good = append_item(&list, item, length, error);
        if (item[length] == '\0') break;
        item += length + 1;
    }
    *count = list.count;
    if (good) return list.numbers;
    free(list.numbers);
    return NULL;
}
