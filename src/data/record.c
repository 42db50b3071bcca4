/* Converts a record to the text of a document: checks UTF-8, and extracts the text of a JSON line.
 * Called by the threads of the pipeline. Faults are only marked, because the writer decides what
 * happens to them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/memory.h"
#include "base/strings.h"
#include "data/pack_internal.h"

/* -- UTF-8 ------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of the well-formed character at `at`, or, negative, the bytes of the ill-formed
 * sequence there: the longest prefix of a character, or else one byte (Unicode 15, section 3.9,
 * "U+FFFD substitution of maximal subparts"). */
static int utf8_bytes(const unsigned char *at, size_t left) {
    unsigned char lead = at[0], low = 0x80, high = 0xbf;
    if (lead < 0x80) return 1;
    int more = lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2 : lead >= 0xf0 && lead < 0xf5 ? 3 : 0;
    if (lead == 0xe0) low = 0xa0;
    else if (lead == 0xed) high = 0x9f;
    else if (lead == 0xf0) low = 0x90;
    else if (lead == 0xf4) high = 0x8f;
    int size = 1;
    for (; size <= more && (size_t)size < left && at[size] >= low && at[size] <= high; size++) low = 0x80, high = 0xbf;
    return more > 0 && size > more ? size : -size;
}

/* Returns the number of bytes before the first ill-formed one, or all. */
static size_t well_formed(const char *text, size_t size) {
    size_t at = 0;
    uint64_t eight;
    while (at < size) {
        while (size - at >= sizeof eight && (memcpy(&eight, text + at, sizeof eight), (eight & 0x8080808080808080u) == 0))
            at += sizeof eight;
        if (at == size) break;
        int bytes = utf8_bytes((const unsigned char *)text + at, size - at);
        if (bytes < 0) break;
        at += (size_t)bytes;
    }
    return at;
}

char *utf8_replace(const char *text, size_t size, size_t *result) {
    static const char replacement[] = "\xef\xbf\xbd";
    char *out = memory_allocate(3 * size + 1);
    *result = 0;
    for (size_t at = 0; at < size;) {
        size_t good = well_formed(text + at, size - at);
        memcpy(out + *result, text + at, good);
        *result += good;
        at += good;
        if (at == size) break;
        memcpy(out + *result, replacement, 3);
        *result += 3;
        at += (size_t)-utf8_bytes((const unsigned char *)text + at, size - at);
    }
    return out;
}

/* Checks the whole record, including JSON, whose names and values are UTF-8 as well. Returns
 * whether a text is left. */
static bool check_utf8(Record *record, PackInvalid invalid) {
    size_t good = well_formed(record->text, record->text_size);
    if (good == record->text_size) return true;
    record->bad = PACK_BAD_UTF8;
    for (size_t i = 0; i < good; i++) record->line += record->text[i] == '\n';
    snprintf(record->what, sizeof record->what, "byte %02x", (unsigned char)record->text[good]);
    if (invalid == PACK_INVALID_SKIP || invalid == PACK_INVALID_STOP) return false;
    if (invalid == PACK_INVALID_KEEP && !record->json) return true;
    record->owned = utf8_replace(record->text, record->text_size, &record->text_size); /* JSON cannot hold other bytes */
    record->text = record->owned;
    return true;
}

/* -- JSON -------------------------------------------------------------------------------------------------------- */

bool record_mark(Record *record, PackBad bad, const char *what) {
    record->bad = bad;
    snprintf(record->what, sizeof record->what, "%.*s", (int)sizeof record->what - 1, what);
    one_line(record->what);
    return false;
}

bool record_mark_json(Record *record, const char *fault) {
    size_t at = 0;
    while (at < record->text_size && strchr(" \t\r\n", record->text[at])) at++;
    bool list = at < record->text_size && record->text[at] == '[';
    return record_mark(record, PACK_BAD_JSON, list ? "a list instead of a record: convert it with jq -c '.[]' FILE" : fault);
}

/* Returns the member that shows that a record is a conversation; NULL: none. */
static const char *find_turns(const json_t *object) {
    static const char *const names[] = {"messages", "conversations", "completion", "instruction"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_object_get(object, names[i])) return names[i];
    return NULL;
}

/* Names the existing fields, because the text often has another name than the requested one. */
bool record_mark_missing(Record *record, const json_t *object, const char *field) {
    char what[sizeof record->what];
    size_t used = (size_t)snprintf(what, sizeof what, "%s; it has ", field);
    const char *name;
    json_t *value;
    int count = 0;
    const char *turns = find_turns(object);
    if (turns) snprintf(what, sizeof what, "%s; it has %s: pass format=chat to smelt data pack", field, turns);
    else
        json_object_foreach((json_t *)object, name, value) if (used < sizeof what) used +=
            (size_t)snprintf(what + used, sizeof what - used, "%s%s", count++ ? ", " : "", name);
    if (!json_object_size(object)) snprintf(what, sizeof what, "%s; it has no fields", field);
    return record_mark(record, PACK_BAD_FIELD, what);
}

/* Extracts the text in place of the line: it is never longer. */
static bool take_field(Record *record, char *place, const char *field, json_t **taken) {
    Error fault;
    json_auto_t *object = json_parse(record->text, record->text_size, 0, &fault);
    const json_t *text = json_object_get(object, field);
    if (!json_is_object(object)) return record_mark_json(record, object ? "not an object" : fault.message);
    if (!text) return record_mark_missing(record, object, field);
    if (!json_is_string(text)) return record_mark(record, PACK_BAD_FIELD, "it is not a string");
    record->text_size = json_string_length(text);
    memcpy(place, json_string_value(text), record->text_size);
    record->text = place;
    if (taken) *taken = json_incref(object);
    return record->text_size > 0 || record_mark(record, PACK_BAD_EMPTY, field);
}

/* Extracts the text in place of the row: it is never longer. */
static bool take_cell(Record *record, char *place, json_t **taken) {
    char what[TABLE_FAULT];
    if (taken && record->place.fields) *taken = table_object(record->text, record->text_size, &record->place);
    if (!table_field(record->text, record->text_size, &record->place, place, &record->text_size, what))
        return record_mark(record, PACK_BAD_ROW, what);
    record->text = place;
    return record->text_size > 0 || record_mark(record, PACK_BAD_EMPTY, "");
}

void record_text(Record *record, char *block_text, const char *field, PackInvalid invalid, json_t **object) {
    record->text = block_text + record->start;
    record->text_size = record->size;
    bool left = record->bad == PACK_GOOD && check_utf8(record, invalid);
    char *place = record->owned ? record->owned : block_text + record->start;
    if (left && record->place.columns) left = take_cell(record, place, object);
    else if (left && record->json && field) left = take_field(record, place, field, object);
    if (!left) record->text_size = 0;
}

void record_edit(Record *record, char *block_text, const DocumentFilter *filter) {
    char *text = record->owned ? record->owned : block_text + record->start; /* where record_text has left it */
    record->text_size = filter_edit(filter, text, record->text_size, record->edits);
    if (record->text_size == 0) record_mark(record, PACK_BAD_EMPTY, "lines= leaves nothing of it");
}
