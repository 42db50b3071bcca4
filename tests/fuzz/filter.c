/* A libFuzzer entry for the rules of a filter. The first line of the input is an expression, the second a record as JSON, and
 * the rest the text that is judged: an expression is refused with a message of one line, or judges the text with a value that
 * is JSON. The rules over lines make no text longer. */
#include <stdlib.h>

#include "base/json_reader.h"
#include "base/memory.h"
#include "filter/filter.h"
#include "fuzz.h"

FUZZ(filter) {
    char *copy = memory_allocate(size + 1), *rest = copy, *where, *record, value[FILTER_VALUE];
    memcpy(copy, data, size);
    where = strsep(&rest, "\n");
    record = strsep(&rest, "\n");
    DocumentFilter *filter;
    Error error = {0};
    FilterOptions options = {where, "", "", "", "", "c4"};
    if (!filter_open(&options, &filter, &error)) require_line(&error);
    else if (filter) {
        FilterJudge *judge = filter_judge_open(filter);
        json_t *json = record ? json_parse(record, strlen(record), 0, &error) : NULL;
        size_t length = rest ? size - (size_t)(rest - copy) : 0;
        int rule = filter_judge(judge, json, rest ? rest : "", length, value);
        require(rule >= -1 && rule < filter_rules(filter));
        json_t *seen = rule < 0 ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);
        require(rule < 0 || seen);
        int32_t counts[LINE_RULES] = {0};
        require(!rest || filter_edit(filter, rest, length, counts) <= length);
        json_decref(seen);
        json_decref(json);
        filter_judge_free(judge);
    }
    filter_free(filter);
    free(copy);
}
